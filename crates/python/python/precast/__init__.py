"""Precast: ONNX models compiled ahead of time, for requests of any size.

`import precast as ort` runs most scripts that were written for onnxruntime:

    import numpy, precast
    session = precast.InferenceSession("model.onnx", providers=["amdgpu", "CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: numpy.zeros((1, 3, 224, 224), numpy.float32)})
"""

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from precast._precast import (
    IOBinding,
    ModelMetadata,
    NodeArg,
    OrtValue,
    RunOptions,
    RunReport,
    option_keys,
)
from precast.compiling import compile
from precast.exceptions import (
    DeviceError,
    IntegrityError,
    InternalError,
    LimitExceeded,
    PrecastError,
    UnsupportedModel,
    UsageError,
)
from precast.inference_session import (
    InferenceSession,
    disable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_device,
    preload_dlls,
    set_default_logger_severity,
)
from precast.progress import progress_bar
from precast.session_options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, SessionOptions
from precast import _precast

if TYPE_CHECKING:
    from precast import cache, genai, generate, ray
    from precast.engine import Engine
    from precast.generate import Generator

__version__: str = _precast.VERSION

__all__ = [
    "DeviceError",
    "Engine",
    "ExecutionMode",
    "ExecutionOrder",
    "Generator",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "IntegrityError",
    "InternalError",
    "LimitExceeded",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "PrecastError",
    "RunOptions",
    "RunReport",
    "SessionOptions",
    "UnsupportedModel",
    "UsageError",
    "cache",
    "compile",
    "disable_telemetry_events",
    "genai",
    "generate",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "option_keys",
    "preload_dlls",
    "progress_bar",
    "ray",
    "set_default_logger_severity",
]

# Parts that are imported when they are first named: they are not needed to run a model.
_PARTS = ("cache", "genai", "generate", "ray")
# Names of such parts.
_NAMES = {"Engine": "engine", "Generator": "generate"}


def get_version_string() -> str:
    """The version of precast."""
    return __version__


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"precast.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"precast.{_NAMES[name]}"), name)
    near = difflib.get_close_matches(name, __all__, n=3)
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    raise AttributeError(f"precast has no '{name}'{hint}")
