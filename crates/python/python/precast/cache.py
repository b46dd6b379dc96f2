"""Folders of compiled Programs: what they hold, whether they are whole, making them smaller, sharing them."""

import os
from typing import Any, Mapping, Union

from precast import _precast

__all__ = ["gc", "ls", "pull", "push", "verify", "why"]

Folder = Union[str, "os.PathLike[str]"]
ModelSource = Union[str, bytes, "os.PathLike[str]"]


def ls(folder: Folder) -> list[dict[str, Any]]:
    """The Programs of a folder: key, Bucket, target, sizes in bytes, and how long each took to compile."""
    return _precast.cache_ls(folder)


def why(model: ModelSource, folder: Folder, *, device: str = "cpu", **options: Any) -> list[dict[str, Any]]:
    """For every Bucket of a model whether the folder has its Program, and if not, which fields of the nearest key differ.
    Options are those of `InferenceSession`; `max_batch` or `buckets` say which Buckets there are."""
    return _precast.cache_why(model, device, {**options, "cache": folder, "cache_mode": "ro"})


def verify(folder: Folder) -> list[tuple[str, str]]:
    """Files of a folder that are damaged, with what is wrong; empty where all is well."""
    return _precast.cache_verify(folder)


def gc(folder: Folder, max_bytes: int, *, apply: bool = False) -> tuple[list[str], int]:
    """What has to go for a folder to take at most so many bytes: names and bytes. It goes only with `apply=True`."""
    return _precast.cache_gc(folder, max_bytes, apply)


def push(folder: Folder, url: str, options: Mapping[str, str] | None = None) -> int:
    """Copies what a store does not have to it; gives the number of Programs."""
    return _precast.cache_transfer(folder, url, list((options or {}).items()), True)


def pull(folder: Folder, url: str, options: Mapping[str, str] | None = None) -> int:
    """Copies what a folder does not have from a store; gives the number of Programs."""
    return _precast.cache_transfer(folder, url, list((options or {}).items()), False)
