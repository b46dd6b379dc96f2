"""Text generation from a model folder.

With an object that remembers how tokens are chosen:

    generator = precast.Generator("folder", device="cpu", max_new_tokens=64, do_sample=False)
    for piece in generator.stream("Once upon a time"):
        print(piece, end="", flush=True)

In one call:

    for piece in precast.generate.stream("folder", "Once upon a time", max_new_tokens=64):
        print(piece, end="", flush=True)

Step by step, with the names of onnxruntime-genai:

    config = precast.generate.Config("folder")
    config.clear_providers()
    config.append_provider("amdgpu")
    model = precast.generate.Model(config)
    tokenizer = precast.generate.Tokenizer(model)
    params = precast.generate.GeneratorParams(model)
    params.set_search_options(max_length=128, temperature=0.7)
    generator = precast.generate.Generator(model, params)
    generator.append_tokens(tokenizer.encode("Once upon a time"))
    while not generator.is_done():
        generator.generate_next_token()
        print(tokenizer.decode(generator.get_next_tokens()), end="")
"""

import asyncio
import json
import logging
import os
from dataclasses import dataclass
from typing import Any, AsyncIterator, Iterator, Mapping, Sequence, Union

import numpy

from precast import _precast
from precast._precast import Token
from precast.exceptions import UsageError

__all__ = [
    "Adapters",
    "Completion",
    "Config",
    "Generator",
    "GeneratorParams",
    "Model",
    "Step",
    "Token",
    "Tokenizer",
    "TokenizerStream",
    "chat",
    "complete",
    "stream",
    "stream_async",
]

_log = logging.getLogger("precast")

Folder = Union[str, "os.PathLike[str]"]
Tokens = Sequence[int]
Prompt = Union[str, Tokens]
Message = Mapping[str, Any]


# Options of a device that mean something here: which of its kind it is, and whether steps that run often are captured.
_DEVICE_OPTIONS = ("device_id", "enable_cuda_graph", "enable_graph_capture", "enableGraphCapture")


class Config:
    """The configuration of a model folder, before it is opened."""

    def __init__(self, config_path: Folder) -> None:
        self.path = os.fspath(config_path)
        self._providers: list[str] | None = None
        self._provider_options: dict[str, dict[str, str]] = {}
        self._overlays: list[str] = []

    def clear_providers(self) -> None:
        """Forgets the devices that the folder names; the CPU is used unless one is appended."""
        self._providers = []

    def append_provider(self, name: str) -> None:
        """Names a device, by its name or by what others call it; the first one counts."""
        _precast.resolve_device(name)
        self._providers = [*(self._providers or []), name]

    def set_provider_option(self, name: str, key: str, value: str) -> None:
        """Sets an option of a device: `device_id` says which of its kind it is, `enable_cuda_graph`, `enable_graph_capture` and
        `enableGraphCapture` whether steps that run often are captured (`"0"` or `"1"`)."""
        if key not in _DEVICE_OPTIONS:
            raise UsageError(f"provider '{name}': there is no option '{key}'; there are {', '.join(_DEVICE_OPTIONS)}")
        self._provider_options.setdefault(name, {})[key] = value

    def overlay(self, text: str) -> None:
        """Applies a JSON merge patch to the folder's configuration."""
        self._overlays.append(text)

    def _all_overlays(self) -> list[str]:
        """Overlays, behind what was said about devices."""
        names = self._providers if self._providers is not None else list(self._provider_options)
        if not names:
            return self._overlays
        providers = [{name: self._provider_options.get(name, {})} for name in names]
        said = {"model": {"decoder": {"session_options": {"provider_options": providers}}}}
        return [json.dumps(said), *self._overlays]

    def _device(self) -> str | None:
        if self._providers is None:
            return None
        if not self._providers:
            return "cpu"
        name = self._providers[0]
        number = self._provider_options.get(name, {}).get("device_id")
        return name if number is None or ":" in name else f"{name}:{number}"


class Model:
    """A decoder that is open on its device."""

    def __init__(
        self,
        config: Union[Config, Folder],
        *,
        device: str | None = None,
        cache: Folder | None = None,
        threads: int | None = None,
        activations: str | None = None,
    ) -> None:
        config = config if isinstance(config, Config) else Config(config)
        asked = device if device is not None else config._device()
        self._native = _precast.TextModel(config.path, asked, config._all_overlays(), cache, threads, activations)
        for notice in self._native.notices:
            _log.info(notice)

    @property
    def device(self) -> str:
        """The one name of the device that the decoder is on."""
        return self._native.device

    @property
    def device_type(self) -> str:
        """The kind of the device: `cpu`, `cuda` or `hip`."""
        return self._native.device.partition(":")[0]

    @property
    def type(self) -> str:
        """Family of the model, as its exporter calls it."""
        return self._native.family

    @property
    def context_length(self) -> int:
        """Tokens that a sequence may have."""
        return self._native.context_length

    @property
    def vocabulary(self) -> int:
        """Ids that the decoder gives scores of."""
        return self._native.vocabulary

    @property
    def has_tokenizer(self) -> bool:
        """Whether the folder has a tokenizer."""
        return self._native.has_tokenizer


class Adapters:
    """Adapters of a model: files (`*.onnx_adapter`) with other values for some of its parameters, by names."""

    def __init__(self, model: Model) -> None:
        self._native = _precast.TextAdapters(model._native)

    def load(self, file: Folder, name: str) -> None:
        """Loads a file under a name. Parameters that the model has not, or of another type or shape, are refused."""
        self._native.load(os.fspath(file), name)

    def unload(self, name: str, *, wait: bool = False) -> None:
        """Forgets an adapter. Where a generator or a request has it, that is refused; with `wait`, it is waited for."""
        self._native.unload(name, wait)

    @property
    def names(self) -> list[str]:
        """Names of those that are loaded."""
        return self._native.names()


#: An adapter: a file, or one that is loaded and its name.
Adapter = Union[str, "os.PathLike[str]", tuple[Adapters, str]]


def _named(model: Model, adapter: Adapter | None) -> tuple[_precast.TextAdapters, str] | None:
    """An adapter by what it is loaded into and its name; a file is loaded here."""
    if adapter is None:
        return None
    if isinstance(adapter, tuple):
        return adapter[0]._native, adapter[1]
    loaded = Adapters(model)
    loaded.load(adapter, os.fspath(adapter))
    return loaded._native, os.fspath(adapter)


class Tokenizer:
    """Texts to ids of tokens, and back."""

    def __init__(self, model: Model) -> None:
        self._native = model._native
        if not self._native.has_tokenizer:
            raise UsageError("the folder has no tokenizer.json: give ids of tokens")

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return self._native.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, each of its own length: nothing is padded."""
        return [self._native.encode(text) for text in texts]

    def decode(self, tokens: Tokens) -> str:
        """The text of ids."""
        return self._native.decode([int(token) for token in tokens])

    def decode_batch(self, rows: Sequence[Tokens]) -> list[str]:
        """The texts of several rows of ids."""
        return [self.decode(row) for row in rows]

    def to_token_id(self, text: str) -> int:
        """The id of a token by its text."""
        token = self._native.token_id(text)
        if token is None:
            raise UsageError(f"there is no token '{text}'")
        return token

    def apply_chat_template(
        self,
        messages: Union[str, Sequence[Message]],
        *,
        tools: Union[str, Sequence[Any], None] = None,
        documents: Union[str, Sequence[Any], None] = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation: a list of messages with `role` and `content`, or the same as JSON. Tools and documents
        are lists, or the same as JSON; the template sees `variables` by their names."""

        def as_json(value: Union[str, Sequence[Any], None]) -> str | None:
            return value if value is None or isinstance(value, str) else json.dumps(list(value), ensure_ascii=False)

        named = [(name, json.dumps(value, ensure_ascii=False)) for name, value in variables.items()]
        return self._native.apply_chat_template(
            as_json(messages) or "[]", as_json(tools), as_json(documents), named, add_generation_prompt
        )

    def create_stream(self) -> "TokenizerStream":
        """A text that grows by one token at a time."""
        return TokenizerStream(self)

    stream = create_stream

    @property
    def eos_token_ids(self) -> list[int]:
        """Tokens that end a sequence."""
        return self._native.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """The first token of sequences, if the folder names one."""
        return self._native.bos_token_id

    @property
    def pad_token_id(self) -> int | None:
        """The token that stands for nothing, if the folder names one."""
        return self._native.pad_token_id


class TokenizerStream:
    """A text that grows by one token at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._native = tokenizer._native.text_stream()

    def decode(self, token: int) -> str:
        """Adds a token and gives the text that is complete with it."""
        return self._native.push(int(token))

    push = decode

    def finish(self) -> str:
        """What is left: bytes that did not become a character."""
        return self._native.finish()


class GeneratorParams:
    """How tokens are chosen: what the folder says, and what is set here."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._options: dict[str, Any] = {}

    def set_search_options(self, **options: Any) -> None:
        """Sets options by name: those of `genai_config.json`'s `search`, and `row_seeds`, `max_new_tokens`, `stop`, `min_p`,
        `presence_penalty`, `frequency_penalty`, `logit_bias`, `logprobs`, `logprobs_mode`, `ignore_eos`,
        `include_stop_token`."""
        self._options.update(options)


def _pairs(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Options as names and JSON. Who sets what only draws have, wants to draw; `seed`, `seeds` and `n` are short names."""
    names = {"seed": "random_seed", "seeds": "row_seeds", "n": "num_return_sequences"}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    draws = given.get("temperature", 0) > 0 or "top_p" in given or "min_p" in given
    if draws:
        given.setdefault("do_sample", True)
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    return [(name, json.dumps(value)) for name, value in given.items()]


@dataclass(frozen=True)
class Step:
    """One step of a generator."""

    tokens: list[Token]
    """A token of every row that had not ended."""


class Generator:
    """Generation of one batch of independent rows. A model is one that is open, or a folder; options are those of
    `set_search_options`, and those of `params` count less. An adapter is a file, or `Adapters` and a name."""

    def __init__(
        self,
        model: Union[Model, Folder],
        params: GeneratorParams | None = None,
        *,
        device: str | None = None,
        cache: Folder | None = None,
        threads: int | None = None,
        adapter: Adapter | None = None,
        **options: Any,
    ) -> None:
        if isinstance(model, Model):
            if (device, cache, threads) != (None, None, None):
                raise UsageError("device, cache and threads are those of the model, which is open already")
            self.model = model
        else:
            self.model = Model(model, device=device, cache=cache, threads=threads)
        self._options = {**(params._options if params is not None else {}), **options}
        self._adapter = _named(self.model, adapter)
        self.reset()

    def reset(self) -> None:
        """Forgets all rows."""
        self._native = _precast.TextGenerator(self.model._native, _pairs(self._options))
        self._native.set_adapter(self._adapter)
        self._next: list[Token] = []

    def set_adapter(self, adapter: Adapter | None) -> None:
        """Computes with the values of an adapter from now on, or with the model's own. Cached tokens are run again."""
        named = _named(self.model, adapter)
        self._native.set_adapter(named)
        self._adapter = named

    def set_active_adapter(self, adapters: Adapters, adapter_name: str) -> None:
        """Computes with the values of a loaded adapter from now on."""
        self.set_adapter((adapters, adapter_name))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the folder."""
        return Tokenizer(self.model)

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], **options: Any) -> "list[Completion]":
        """Whole answers to one prompt or several, each a text or ids. The rows of this generator stay as they are."""
        return _complete(self.model, prompts, self._adapter, {**self._options, **options})

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The pieces of one answer as they come. The rows of this generator stay as they are."""
        return _stream(self.model, prompt, self._adapter, {**self._options, **options})

    def chat(self, messages: Sequence[Message], **options: Any) -> Iterator[str]:
        """The pieces of the answer to a conversation as they come. The rows of this generator stay as they are."""
        prompt = Tokenizer(self.model).apply_chat_template(messages)
        return _stream(self.model, prompt, self._adapter, {**self._options, **options})

    def append(self, rows: Sequence[Tokens]) -> None:
        """Adds tokens to each row and runs them; the first call says how many rows there are."""
        self._native.append([[int(token) for token in row] for row in rows])

    def __iter__(self) -> Iterator[Step]:
        """Steps until every row has ended."""
        while not self._native.is_done():
            yield Step(self.generate_next_token())

    def rewind(self, row: int, length: int) -> None:
        """Keeps exactly the first tokens of a row. The next step yields the token behind them."""
        self._native.rewind(row, length)

    def sequence(self, row: int) -> list[int]:
        """All tokens of a row."""
        return self._native.sequence(row)

    def logits(self, row: int) -> "numpy.ndarray[Any, numpy.dtype[numpy.float32]]":
        """Scores of the next token of a row, before any rule: f32 of the vocabulary."""
        return numpy.frombuffer(self._native.logits(row), dtype=numpy.float32)

    def append_tokens(self, tokens: Union[Tokens, Sequence[Tokens]]) -> None:
        """Adds tokens to the one row, or a list of tokens to each of several rows, and runs them."""
        rows: Sequence[Any] = [tokens] if _is_row(tokens) else tokens
        self._native.append([[int(token) for token in row] for row in rows])

    def generate_next_token(self) -> list[Token]:
        """Chooses the next token of every row that has not ended."""
        self._next = self._native.next()
        return self._next

    def get_next_tokens(self) -> list[int]:
        """Ids that the last step chose."""
        return [token.id for token in self._next]

    def get_sequence(self, index: int) -> list[int]:
        """All tokens of a row."""
        return self._native.sequence(index)

    def is_done(self) -> bool:
        """Whether every row has ended."""
        return self._native.is_done()

    def finish_reason(self, index: int) -> str | None:
        """Why a row ended, if it has."""
        return self._native.finish_reason(index)

    def row_seed(self, row: int) -> int | None:
        """The seed that a row draws by: its own, or that of all rows."""
        return self._native.row_seed(row)

    def token_count(self) -> int:
        """Tokens of the longest row."""
        return max((len(self._native.sequence(row)) for row in range(self._native.row_count())), default=0)

    def rewind_to(self, new_length: int) -> None:
        """Keeps exactly the first tokens of every row."""
        for row in range(self._native.row_count()):
            self._native.rewind(row, new_length)

    def fork(self, index: int) -> int:
        """A new row that is what another is, with random numbers of its own."""
        return self._native.fork(index)

    def get_logits(self, index: int = 0) -> "numpy.ndarray[Any, numpy.dtype[numpy.float32]]":
        """Scores of the next token of a row, before any rule."""
        return self.logits(index)

    def set_logits(self, logits: Sequence[float], index: int = 0) -> None:
        """Replaces the scores of the next token of a row, for one step."""
        self._native.set_logits(index, [float(score) for score in logits])


def _is_row(tokens: Any) -> bool:
    """Whether these are tokens, and not rows of tokens."""
    return len(tokens) == 0 or not hasattr(tokens[0], "__len__")


@dataclass(frozen=True)
class Completion:
    """One answer to a prompt."""

    prompt: int
    """Which prompt it answers."""
    tokens: list[int]
    """Generated tokens."""
    text: str | None
    """Their text up to a stop string, where the folder has a tokenizer."""
    finish_reason: str
    """Why it ended."""
    score: float | None
    """Score of a beam search."""
    seed: int | None = None
    """The seed of its draws; a beam search draws nothing."""


def _opened(model: Union[Model, Folder]) -> Model:
    return model if isinstance(model, Model) else Model(model)


def _encoded(model: Model, prompt: Prompt) -> list[int]:
    return model._native.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]


_NamedAdapter = Union[tuple[_precast.TextAdapters, str], None]


def _complete(
    model: Model, prompts: Union[Prompt, Sequence[Prompt]], adapter: _NamedAdapter, options: Mapping[str, Any]
) -> list[Completion]:
    several: Sequence[Any] = [prompts] if isinstance(prompts, str) or _is_row(prompts) else prompts
    encoded = [_encoded(model, prompt) for prompt in several]
    answers = _precast.complete(model._native, encoded, _pairs(options), adapter)
    return [Completion(*answer) for answer in answers]


def complete(
    model: Union[Model, Folder],
    prompts: Union[Prompt, Sequence[Prompt]],
    *,
    adapter: Adapter | None = None,
    **options: Any,
) -> list[Completion]:
    """Whole answers to one prompt or several, each a text or ids. Options are those of `set_search_options`; `seed`,
    `seeds` and `n` are short for `random_seed`, `row_seeds` (a seed for each prompt: -1 is one from the system, None that of all)
    and `num_return_sequences`."""
    opened = _opened(model)
    return _complete(opened, prompts, _named(opened, adapter), options)


def stream(
    model: Union[Model, Folder], prompt: Prompt, *, adapter: Adapter | None = None, **options: Any
) -> Iterator[str]:
    """The pieces of one answer as they come. Needs a tokenizer in the folder."""
    opened = _opened(model)
    yield from _stream(opened, prompt, _named(opened, adapter), options)


def _stream(model: Model, prompt: Prompt, adapter: _NamedAdapter, options: Mapping[str, Any]) -> Iterator[str]:
    generator = _precast.TextGenerator(model._native, _pairs(options))
    generator.set_adapter(adapter)
    generator.append([_encoded(model, prompt)])
    while not generator.is_done():
        for token in generator.next():
            if token.text:
                yield token.text


async def stream_async(model: Union[Model, Folder], prompt: Prompt, **options: Any) -> AsyncIterator[str]:
    """`stream` for callers on an event loop, which goes on while a step runs."""
    pieces = stream(model, prompt, **options)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def chat(model: Union[Model, Folder], messages: Sequence[Message], **options: Any) -> Iterator[str]:
    """The pieces of the answer to a conversation as they come."""
    opened = _opened(model)
    prompt = Tokenizer(opened).apply_chat_template(messages)
    yield from stream(opened, prompt, **options)
