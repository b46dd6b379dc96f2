"""A model as a deployment of Ray Serve.

    app = precast.ray.deployment("model.onnx", num_replicas=4, max_batch=64, cache="/var/cache/precast")
    handle = serve.run(app)
    outputs = precast.ray.infer(handle, {"x": array})

Replicas share one cache of Programs: whoever is first compiles, the others load. Requests that wait are joined to batches
of the session's Buckets. A request whose replica dies is sent again, since running a model twice changes nothing.
"""

import asyncio
import os
from typing import Any, Mapping, Union

from ray import serve
from ray.exceptions import RayActorError

from precast.batching import BatchRunner
from precast.exceptions import DeviceError, UsageError
from precast.inference_session import InferenceSession

__all__ = ["Replica", "deployment", "infer", "infer_async"]

ModelSource = Union[str, bytes, "os.PathLike[str]"]

# Requests that a replica holds for each row of its largest Bucket, so that the next batch is there when one is done.
_REQUESTS_PER_ROW = 4
# Times that a request is sent before its replicas' deaths are the caller's business.
_ATTEMPTS = 10
_EACH_DIED = f"the request was sent {_ATTEMPTS} times, and each time its replica died"


class Replica:
    """One replica: a session, and the requests that wait for its next run."""

    def __init__(self, model: ModelSource, max_batch: int, batch_wait_s: float, options: Mapping[str, Any]) -> None:
        self._session = InferenceSession(model, max_batch=max_batch, **options)
        self._runner = BatchRunner(self._session)
        self._runs = self._batches = 0
        self._infer.set_max_batch_size(self._runner.rows_max)
        self._infer.set_batch_wait_timeout_s(batch_wait_s)

    @serve.batch
    async def _infer(self, feeds: list[Mapping[str, Any]]) -> list[Any]:
        self._runs += len(feeds)
        self._batches += 1
        # On another thread, so that requests are taken in while the model runs.
        return await asyncio.to_thread(self._runner.run, feeds)

    async def infer(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name for inputs by name."""
        result = await self._infer(feed)
        if isinstance(result, BaseException):
            raise result
        return dict(result)

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Outputs for a request over HTTP: JSON of lists by the name of each input."""
        body = await request.json()
        types = {node.name: node.type for node in self._session.get_inputs()}
        feed = {name: _array(name, values, types) for name, values in body.items()}
        return {name: output.tolist() for name, output in (await self.infer(feed)).items()}

    def stats(self) -> dict[str, Any]:
        """What this replica has done: its process, Programs compiled, requests, runs and Buckets."""
        return {
            "pid": os.getpid(),
            "compiles": self._session.compiles,
            "requests": self._runs,
            "batches": self._batches,
            "buckets": self._session.buckets,
        }

    def check_health(self) -> None:
        """Ray's question whether the replica is well: a Bucket that could not be had is an error."""
        self._session.warm(timeout=0)


def _array(name: str, values: Any, types: Mapping[str, str]) -> Any:
    """Values of JSON as the array that an input takes."""
    import numpy

    if name not in types:
        raise UsageError(f"there is no input '{name}'; there are {', '.join(types)}")
    element = types[name].removeprefix("tensor(").removesuffix(")")
    numpy_name = {"float": "float32", "double": "float64"}.get(element, element)
    return numpy.asarray(values, dtype=numpy_name)


def deployment(
    model: ModelSource,
    *,
    name: str = "precast",
    num_replicas: int = 1,
    max_batch: int = 64,
    batch_wait_s: float = 0.002,
    ray_actor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A deployment of a model, bound and ready for `serve.run`.

    `cache` should be a folder that all replicas of a host share, and `cache_remote` a store that all hosts share: then each
    Bucket is compiled once in the fleet. Other options are those of `InferenceSession`. `batch_wait_s` is how long a request
    waits for others to join its batch.
    """
    rows = max_batch * _REQUESTS_PER_ROW
    deployed = serve.deployment(
        Replica,
        name=name,
        num_replicas=num_replicas,
        max_ongoing_requests=rows,
        ray_actor_options=dict(ray_actor_options or {}),
        health_check_period_s=1,
    )
    return deployed.bind(model, max_batch, batch_wait_s, dict(options))


def infer(handle: Any, feed: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
    """Outputs by name for inputs by name, through a handle of Ray Serve, sent again where a replica died."""
    died: RayActorError | None = None
    for _ in range(_ATTEMPTS):
        try:
            return dict(handle.infer.remote(dict(feed)).result(timeout_s=timeout_s))
        except RayActorError as error:
            died = error
    raise DeviceError(_EACH_DIED) from died


async def infer_async(handle: Any, feed: Mapping[str, Any]) -> dict[str, Any]:
    """`infer` for callers on an event loop."""
    died: RayActorError | None = None
    for _ in range(_ATTEMPTS):
        try:
            return dict(await handle.infer.remote(dict(feed)))
        except RayActorError as error:
            died = error
    raise DeviceError(_EACH_DIED) from died
