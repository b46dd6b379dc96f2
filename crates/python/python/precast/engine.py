"""Requests that come and go on one decoder: prompts are read and answers generated side by side.

    engine = precast.Engine("folder")
    for event in engine.submit("Once upon a time", max_new_tokens=64):
        print(event.text, end="", flush=True)

On an event loop: `async for event in engine.submit(...)`.
"""

import asyncio
import json
from typing import Any, AsyncIterator, Iterator, Mapping, Union

from precast import _precast
from precast._precast import Event
from precast.exceptions import UsageError
from precast.generate import Adapters, Folder, GeneratorParams, Model, Prompt, _encoded, _opened, _pairs

__all__ = ["Engine", "Event", "Request"]


class Request:
    """A request that was sent: its events, in a loop of either kind. Forgetting it cancels it."""

    def __init__(self, native: _precast.TextRequest) -> None:
        self._native = native

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return self._native.seed

    def cancel(self) -> None:
        """Asks for an end, which comes with the next step."""
        self._native.cancel()

    def text(self) -> str:
        """The text of the first answer, when it has ended."""
        pieces = []
        for event in self:
            if event.kind == "failed":
                raise UsageError(event.message or "the request failed")
            if event.answer == 0:
                pieces.append(event.text)
        return "".join(pieces)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._native.next_event()) is not None:
            yield event

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await asyncio.to_thread(self._native.next_event)) is not None:
            yield event


class Engine:
    """Serves requests on a decoder, as the folder's `engine` says. With `prepares_programs`, Programs are compiled ahead of need
    on a thread of its own; unless given, the folder's `precast.json` says whether they are."""

    def __init__(self, model: Union[Model, Folder], *, prepares_programs: Union[bool, None] = None) -> None:
        self.model = _opened(model)
        self._native = _precast.TextEngine(self.model._native, prepares_programs)

    def submit(
        self,
        prompt: Prompt,
        params: Union[GeneratorParams, None] = None,
        *,
        schema: Union[str, Mapping[str, Any], None] = None,
        regex: Union[str, None] = None,
        lark: Union[str, None] = None,
        adapter: Union[tuple[Adapters, str], None] = None,
        **options: Any,
    ) -> Request:
        """Sends a prompt, a text or ids. Options are those of `set_search_options`. Answers are of a JSON schema, match a
        regular expression or follow a Lark grammar where one of them is given. An adapter is one that is loaded, and its name;
        requests of several adapters share steps."""
        if schema is not None and not isinstance(schema, str):
            schema = json.dumps(schema)
        kinds = (("schema", schema), ("regex", regex), ("lark", lark))
        grammars = [(kind, text) for kind, text in kinds if text is not None]
        if len(grammars) > 1:
            raise UsageError("schema, regex and lark exclude one another")
        given = {**(params._options if params is not None else {}), **options}
        grammar = grammars[0] if grammars else None
        named = None if adapter is None else (adapter[0]._native, adapter[1])
        return Request(self._native.submit(_encoded(self.model, prompt), _pairs(given), grammar, named))

    def close(self) -> None:
        """Ends every request and lets go of the engine's memory."""
        self._native.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
