"""How far opening or compiling has come: a bar in terminals and notebooks, lines elsewhere."""

import sys
from typing import Any, Callable

Progress = dict[str, Any]


def progress_bar(quiet_seconds: float = 2.0) -> Callable[[Progress], None]:
    """A function for `progress=`. It shows a bar of tqdm where that package is installed (in a notebook too), else a line
    for each Bucket; work that takes less than `quiet_seconds` shows nothing."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines(quiet_seconds)
    return _Bar(quiet_seconds, tqdm)


def _text(progress: Progress) -> str:
    left = f", about {progress['eta']:.0f} s left" if progress["eta"] is not None else ""
    what = "measuring" if progress["phase"] == "measuring" else "Buckets"
    return f"{what} {progress['done']} of {progress['total']}, {progress['compiled']} compiled{left}"


class _Lines:
    """A line on stderr whenever a Bucket is done."""

    def __init__(self, quiet_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._told: tuple[Any, ...] | None = None

    def __call__(self, progress: Progress) -> None:
        state = (progress["phase"], progress["done"])
        if progress["elapsed"] >= self._quiet_seconds and progress["phase"] != "ready" and state != self._told:
            self._told = state
            print(_text(progress), file=sys.stderr)


class _Bar:
    """A bar of tqdm."""

    def __init__(self, quiet_seconds: float, tqdm: Any) -> None:
        self._quiet_seconds = quiet_seconds
        self._tqdm = tqdm
        self._bar: Any = None

    def __call__(self, progress: Progress) -> None:
        if progress["phase"] == "ready":
            if self._bar is not None:
                self._bar.close()
                self._bar = None
            return
        if progress["elapsed"] < self._quiet_seconds:
            return
        if self._bar is None:
            self._bar = self._tqdm(total=progress["total"], unit="Bucket")
        self._bar.set_description(_text(progress), refresh=False)
        self._bar.update(progress["done"] - self._bar.n)
