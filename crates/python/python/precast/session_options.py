"""`SessionOptions` of onnxruntime: what of it means something here, and an error for what cannot be honoured."""

import difflib
from enum import IntEnum
from typing import Any, Callable, Mapping

from precast.exceptions import UsageError


class GraphOptimizationLevel(IntEnum):
    """How far a model may be rewritten. A Program is the result of all passes, so only `ORT_DISABLE_ALL` is refused."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """How the nodes of a model are ordered: steps of a Program run one after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of nodes, which is decided when a model is compiled."""

    DEFAULT = 0
    PRIORITY_BASED = 1


def _refuse_parallel(mode: Any) -> None:
    if ExecutionMode(mode) is not ExecutionMode.ORT_SEQUENTIAL:
        raise UsageError(
            "execution_mode: steps of a Program run one after another, each on all threads; ORT_PARALLEL cannot be honoured"
        )


def _refuse_disabled(level: Any) -> None:
    if GraphOptimizationLevel(level) is GraphOptimizationLevel.ORT_DISABLE_ALL:
        raise UsageError(
            "graph_optimization_level: a Program is made by passes, so ORT_DISABLE_ALL cannot be honoured; "
            "numerics='strict' keeps sums as the model is written"
        )


def _refuse_false(name: str, why: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if not value:
            raise UsageError(f"{name}: {why}; False cannot be honoured")

    return check


def _refuse_true(name: str, why: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        if value:
            raise UsageError(f"{name}: {why}")

    return check


def _refuse_many(count: Any) -> None:
    if count not in (0, 1):
        raise UsageError(
            f"inter_op_num_threads: steps run one after another, so {count} threads between them cannot be honoured; "
            "intra_op_num_threads says how many work on each step"
        )


def _is_count(count: Any) -> None:
    if not isinstance(count, int) or count < 0:
        raise UsageError(f"intra_op_num_threads: {count!r} is given; a number of threads is expected, 0 for all cores")


def _accept(_: Any) -> None:
    pass


_PROFILING = "times of steps come from `precast trace` and `precast perf --per-step`; a session records none"

# Every option: its default, and what refuses a value that cannot be honoured.
_OPTIONS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "enable_cpu_mem_arena": (True, _refuse_false("enable_cpu_mem_arena", "a Program has one planned arena")),
    "enable_mem_pattern": (True, _refuse_false("enable_mem_pattern", "memory is planned when a model is compiled")),
    "enable_mem_reuse": (True, _refuse_false("enable_mem_reuse", "memory is planned when a model is compiled")),
    "enable_profiling": (False, _refuse_true("enable_profiling", _PROFILING)),
    "execution_mode": (ExecutionMode.ORT_SEQUENTIAL, _refuse_parallel),
    "execution_order": (ExecutionOrder.DEFAULT, _accept),
    "graph_optimization_level": (GraphOptimizationLevel.ORT_ENABLE_ALL, _refuse_disabled),
    "inter_op_num_threads": (0, _refuse_many),
    "intra_op_num_threads": (0, _is_count),
    "log_severity_level": (2, _accept),
    "log_verbosity_level": (0, _accept),
    "logid": ("", _accept),
    "optimized_model_filepath": (
        "",
        _refuse_true("optimized_model_filepath", "a compiled model is written by precast.compile, as a Program file"),
    ),
    "use_deterministic_compute": (False, _accept),
    "use_per_session_threads": (True, _refuse_false("use_per_session_threads", "every session has its own threads")),
}

# Entries of the session's configuration that mean something here: the option and the values that set it.
_ENTRIES: dict[str, tuple[str, dict[str, bool]]] = {
    "session.disable_cpu_ep_fallback": ("strict", {"0": False, "1": True}),
}


class SessionOptions:
    """Options of a session, by onnxruntime's names. What cannot be honoured is refused when it is set."""

    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    enable_profiling: bool
    execution_mode: ExecutionMode
    execution_order: ExecutionOrder
    graph_optimization_level: GraphOptimizationLevel
    inter_op_num_threads: int
    intra_op_num_threads: int
    log_severity_level: int
    log_verbosity_level: int
    logid: str
    optimized_model_filepath: str
    use_deterministic_compute: bool
    use_per_session_threads: bool
    _dims: dict[str, int]
    _entries: dict[str, tuple[str, bool, str]]
    _providers: list[tuple[str, dict[str, str]]]

    def __init__(self) -> None:
        for name, (default, _) in _OPTIONS.items():
            object.__setattr__(self, name, default)
        object.__setattr__(self, "_dims", {})
        object.__setattr__(self, "_entries", {})
        object.__setattr__(self, "_providers", [])

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS, n=3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise AttributeError(f"SessionOptions has no option '{name}'{hint}")
        _OPTIONS[name][1](value)
        object.__setattr__(self, name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Sets an entry of the session's configuration; entries without a meaning here are refused."""
        if key not in _ENTRIES:
            raise UsageError(f"there is no entry '{key}' of a session's configuration; there are {', '.join(_ENTRIES)}")
        option, values = _ENTRIES[key]
        if value not in values:
            raise UsageError(f"{key}: '{value}' is given; one of {', '.join(values)} is expected")
        self._entries[key] = (option, values[value], value)

    def get_session_config_entry(self, key: str) -> str:
        """The value of an entry that was set."""
        if key not in self._entries:
            raise UsageError(f"the entry '{key}' is not set")
        return self._entries[key][2]

    def has_session_config_entry(self, key: str) -> bool:
        """Whether an entry was set."""
        return key in self._entries

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Names a device for sessions that are opened without `providers`; the first that is there is used."""
        self._providers.append((name, dict(options or {})))

    def has_providers(self) -> bool:
        """Whether a device was named."""
        return bool(self._providers)

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Gives a dim of the model, by its name, a number that every request shares."""
        self._dims[dim_name] = dim_value

    def add_free_dimension_override_by_denotation(self, denotation: str, dim_value: int) -> None:
        """Dims are known by name here."""
        raise UsageError(
            f"dims are known by their names, not by denotations such as '{denotation}'; "
            "add_free_dimension_override_by_name takes one"
        )

    def register_custom_ops_library(self, path: str) -> None:
        """There are no operators but those of ONNX and the ones that `docs/operators.md` lists."""
        raise UsageError(f"custom operators cannot be loaded (from '{path}')")

    def _settings(self) -> dict[str, Any]:
        """What was set, in the words of `precast`'s own options."""
        settings: dict[str, Any] = {option: value for option, value, _ in self._entries.values()}
        if self.intra_op_num_threads:
            settings["threads"] = self.intra_op_num_threads
        if self._dims:
            settings["dims"] = dict(self._dims)
        return settings
