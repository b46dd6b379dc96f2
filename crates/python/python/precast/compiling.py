"""`precast.compile`: Programs made ahead of time, in a cache or in a file."""

import os
from typing import Any, Callable, Mapping, Union

from precast import _precast
from precast.exceptions import UsageError
from precast.progress import progress_bar

ModelSource = Union[str, bytes, "os.PathLike[str]"]


def compile(
    model: ModelSource,
    output: Union[str, "os.PathLike[str]", None] = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    device: str = "cpu",
    progress: Union[bool, Callable[[dict[str, Any]], None], None] = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Compiles a model ahead of time.

    With `cache=FOLDER` every Bucket that the folder does not have is compiled into it, as `precast cache warm` does; the
    result says which Buckets there are, how many were compiled and how long that took. `buckets` or `max_batch` say which.

    With `output=FILE` and `inputs` (an array for each input, of the sizes that are wanted) the one Program for those sizes
    is written to a file, as `precast compile` does; nothing is returned.

    `progress=True` shows a bar; a function is called with a dict of how far it is. Other options are those of
    `InferenceSession`.
    """
    if progress:
        options["progress"] = progress_bar() if progress is True else progress
    if output is None:
        if "cache" not in options:
            raise UsageError("compile needs a place for what it makes: cache=FOLDER, or output=FILE with inputs")
        if inputs is not None:
            raise UsageError("inputs say the sizes of one Program; they go with output=FILE")
        return _precast.compile_buckets(model, device, options)
    if inputs is None:
        raise UsageError("output=FILE is one Program: inputs must say its sizes")
    _precast.compile_program(model, dict(inputs), output, device, options)
    return None
