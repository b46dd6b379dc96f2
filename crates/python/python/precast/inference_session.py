"""`InferenceSession`, with the names and the order of arguments of onnxruntime."""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Mapping, Sequence, Union

from precast import _precast
from precast.exceptions import PrecastError, UsageError
from precast.session_options import SessionOptions

_log = logging.getLogger("precast")

Provider = Union[str, tuple[str, Mapping[str, Any]]]


def get_available_providers() -> list[str]:
    """Devices of this machine by their one name each, GPUs first: `cuda:0`, `hip:0`, `cpu`."""
    return _precast.devices()


def get_all_providers() -> list[str]:
    """Kinds of devices that models can be compiled for."""
    return ["cuda", "hip", "cpu"]


def get_device() -> str:
    """The best device of this machine, in onnxruntime's words: `GPU` or `CPU`."""
    return "CPU" if _precast.devices()[0] == "cpu" else "GPU"


def set_default_logger_severity(severity: int) -> None:
    """Sets what the logger `precast` passes on: 0 everything, 1 notices, 2 warnings, 3 errors, 4 nothing but failures."""
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    if severity not in range(len(levels)):
        raise UsageError(f"severity {severity} is given; a number from 0 to 4 is expected")
    _log.setLevel(levels[severity])


def disable_telemetry_events() -> None:
    """Nothing is ever sent to anybody, so there is nothing to disable."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Drivers are opened when a session needs them, so there is nothing to load before."""


def _device_of(provider: Provider, options: Mapping[str, Any]) -> str:
    """The one name of the device that a provider means. The only option of a provider is which device it is."""
    name, own = (provider, {}) if isinstance(provider, str) else provider
    options = {**own, **options}
    number = options.pop("device_id", None)
    if options:
        raise UsageError(
            f"provider '{name}': there is no option '{next(iter(options))}'; there is 'device_id'. "
            "Options of precast are keyword arguments of InferenceSession"
        )
    asked = name if number is None or ":" in name else f"{name}:{number}"
    device, notice = _precast.resolve_device(asked)
    if notice is not None:
        _log.info(notice)
    return device


def resolve_providers(
    providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> list[str]:
    """The devices that a list of providers means, in order, each once. Without a list: the best device of this machine."""
    if not providers:
        if provider_options:
            raise UsageError("provider_options are given without providers")
        device = _precast.devices()[0]
        _log.info("no device is named; '%s' is used", device)
        return [device]
    if isinstance(providers, str):
        providers = [providers]
    options = provider_options or [{}] * len(providers)
    if len(options) != len(providers):
        raise UsageError(f"{len(options)} provider_options are given for {len(providers)} providers")
    devices = [_device_of(provider, own) for provider, own in zip(providers, options)]
    return list(dict.fromkeys(devices))


class InferenceSession(_precast.Session):
    """A model opened on a device, for requests of any size from any number of threads.

    The arguments up to `provider_options` are onnxruntime's. `providers` takes names of devices (`cpu`, `cuda:0`, `hip:0`)
    and what others call them (`CPUExecutionProvider`, `amdgpu`, `MIGraphXExecutionProvider`, ...); the first that is there
    is used, and a device that is not is announced on the logger `precast`, or an error where it is the last.

    Keyword arguments are precast's own options; `precast.option_keys()` lists them. `strict_copies=True` refuses inputs
    that would have to be copied.
    """

    def __new__(
        cls,
        path_or_bytes: Union[str, bytes, "os.PathLike[str]"],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        strict_copies: bool = False,
        **options: Any,
    ) -> "InferenceSession":
        sess_options = sess_options if sess_options is not None else SessionOptions()
        if not providers and sess_options.has_providers():
            providers, provider_options = sess_options._providers, None
        devices = resolve_providers(providers, provider_options)
        settings = {**sess_options._settings(), **options}
        session: InferenceSession = super().__new__(cls, path_or_bytes, devices, strict_copies, settings)
        session._sess_options = sess_options
        session._pool = None
        session._pool_lock = threading.Lock()
        for notice in session.notices:
            _log.warning(notice)
        return session

    _sess_options: SessionOptions
    _pool: ThreadPoolExecutor | None
    _pool_lock: threading.Lock

    def get_session_options(self) -> SessionOptions:
        """The options that the session was opened with."""
        return self._sess_options

    def get_providers(self) -> list[str]:
        """The one name of the device that the model is on, as a list."""
        return [self.device]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each device: which of its kind it is."""
        number = self.device.partition(":")[2]
        return {self.device: {"device_id": number} if number else {}}

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """A session stays on its device; naming the same one is no change."""
        devices = resolve_providers(providers, provider_options)
        if devices[0] != self.device:
            raise UsageError(f"the session is on '{self.device}' for life; open another one on '{devices[0]}'")

    def disable_fallback(self) -> None:
        """A session never changes its device, so there is nothing to disable."""

    def enable_fallback(self) -> None:
        """A session never changes its device."""
        raise UsageError("a session never changes its device; name several providers when it is opened")

    def end_profiling(self) -> str:
        """Nothing is recorded: `enable_profiling` is refused."""
        raise UsageError("no profile was begun; `precast trace` and `precast perf --per-step` show where time goes")

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Any, Any, str], None],
        user_data: Any,
        run_options: _precast.RunOptions | None = None,
    ) -> None:
        """Runs the model on another thread, then calls `callback(outputs, user_data, error)`; `error` is empty on success."""
        feed = dict(input_feed)

        def work() -> None:
            try:
                outputs, error = self.run(output_names, feed, run_options), ""
            except PrecastError as raised:
                outputs, error = [], str(raised)
            callback(outputs, user_data, error)

        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix="precast-async")
            pool = self._pool
        pool.submit(work)
