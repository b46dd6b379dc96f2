"""Requests joined to batches: rows of several requests go through one run and are handed back to whom they belong."""

from typing import Any, Mapping, Sequence

import numpy

from precast.exceptions import UsageError
from precast.inference_session import InferenceSession

Feed = Mapping[str, Any]
Outputs = dict[str, Any]


class BatchRunner:
    """Runs requests on a session, several at once where they can be joined along its batch.

    Requests can be joined where they differ in rows alone: inputs without the batch are the same, all others have the same
    sizes behind the first. How many rows a run takes is the session's largest Bucket.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.rows_max = max(session.buckets, default=1)
        batched_inputs, batched_outputs = session.batched_names
        self._batched = {node.name: node.name in batched_inputs for node in session.get_inputs()}
        self._outputs = [node.name for node in session.get_outputs()]
        # Outputs must all have rows, or nobody knows whose they are.
        self._can_join = bool(batched_inputs) and len(batched_outputs) == len(self._outputs)

    def run(self, feeds: Sequence[Feed]) -> list[Any]:
        """For every request its outputs by name, or the exception that it ended in. One that fails costs no other."""
        results: list[Any] = [None] * len(feeds)
        groups: dict[Any, list[int]] = {}
        for place, feed in enumerate(feeds):
            try:
                groups.setdefault(self._signature(place, feed), []).append(place)
            except Exception as error:  # noqa: BLE001 - handed to whom it belongs
                results[place] = error
        for places in groups.values():
            for batch in self._batches(places, feeds):
                self._run_batch(batch, feeds, results)
        return results

    def _signature(self, place: int, feed: Feed) -> Any:
        """Equal for requests that can be joined."""
        if not self._can_join:
            return place
        parts: list[Any] = []
        for name in sorted(feed):
            if name not in self._batched:
                return place
            array = numpy.asarray(feed[name])
            if self._batched[name]:
                if array.ndim == 0:
                    raise UsageError(f"input '{name}' is a single value; rows are expected along its first axis")
                parts.append((name, array.dtype.str, array.shape[1:]))
            else:
                parts.append((name, array.dtype.str, array.shape, array.tobytes()))
        return tuple(parts)

    def _rows(self, feed: Feed) -> int:
        batched = (name for name in feed if self._batched.get(name))
        return max((numpy.asarray(feed[name]).shape[0] for name in batched), default=1)

    def _batches(self, places: Sequence[int], feeds: Sequence[Feed]) -> list[list[int]]:
        """Requests in order, as many at once as fit the largest Bucket."""
        batches: list[list[int]] = []
        rows = 0
        for place in places:
            own = self._rows(feeds[place])
            if not batches or rows + own > self.rows_max:
                batches.append([])
                rows = 0
            batches[-1].append(place)
            rows += own
        return batches

    def _run_batch(self, batch: Sequence[int], feeds: Sequence[Feed], results: list[Any]) -> None:
        try:
            if len(batch) == 1:
                outputs = self.session.run(None, dict(feeds[batch[0]]))
                results[batch[0]] = dict(zip(self._outputs, outputs))
                return
            self._run_joined(batch, feeds, results)
        except Exception as error:  # noqa: BLE001 - handed to whom it belongs
            if len(batch) == 1:
                results[batch[0]] = error
                return
            # Which of them is at fault shows when each runs alone.
            for place in batch:
                self._run_batch([place], feeds, results)

    def _run_joined(self, batch: Sequence[int], feeds: Sequence[Feed], results: list[Any]) -> None:
        first = feeds[batch[0]]
        joined = {
            name: numpy.concatenate([numpy.asarray(feeds[place][name]) for place in batch])
            if self._batched[name]
            else first[name]
            for name in first
        }
        outputs = self.session.run(None, joined)
        start = 0
        for place in batch:
            end = start + self._rows(feeds[place])
            results[place] = {name: output[start:end] for name, output in zip(self._outputs, outputs)}
            start = end
