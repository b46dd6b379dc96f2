"""Precast as an execution provider of ONNX Runtime.

    import onnxruntime, onnxruntime_ep_precast

    onnxruntime_ep_precast.register()
    options = onnxruntime.SessionOptions()
    onnxruntime_ep_precast.append(options, {"device": "cpu"})
    session = onnxruntime.InferenceSession("model.onnx", sess_options=options)
"""
import os

__all__ = ["EP_NAME", "append", "get_ep_name", "get_library_path", "register", "unregister"]

EP_NAME = "PrecastExecutionProvider"
_REGISTRATION = "precast"


def get_library_path() -> str:
    """Absolute path of the library: ONNX Runtime reads relative ones from its own folder."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "libprecast_ort_ep.so")


def get_ep_name() -> str:
    """Name of the provider."""
    return EP_NAME


def register(name: str = _REGISTRATION) -> None:
    """Registers the library with the onnxruntime of this process."""
    import onnxruntime

    onnxruntime.register_execution_provider_library(name, get_library_path())


def unregister(name: str = _REGISTRATION) -> None:
    """Undoes `register`."""
    import onnxruntime

    onnxruntime.unregister_execution_provider_library(name)


def append(session_options, options=None) -> None:
    """Has sessions with these options run on the provider. `register` comes first."""
    import onnxruntime

    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]
    if not devices:
        raise RuntimeError("the provider is not registered: call onnxruntime_ep_precast.register() first")
    session_options.add_provider_for_devices(devices, {key: str(value) for key, value in (options or {}).items()})
