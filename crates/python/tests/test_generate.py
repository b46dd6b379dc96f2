"""Text generation: step by step, streamed, whole answers, conversations."""

import asyncio
import json
from pathlib import Path

import numpy
import precast
import pytest

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(text_folder):
    return precast.generate.Model(text_folder)


def test_a_generator_takes_steps_and_rewinds(model):
    params = precast.generate.GeneratorParams(model)
    params.set_search_options(max_new_tokens=8, do_sample=False, ignore_eos=True)
    generator = precast.generate.Generator(model, params)
    generator.append_tokens(PROMPT)
    seen = []
    while not generator.is_done():
        generator.generate_next_token()
        seen += generator.get_next_tokens()
    assert len(seen) == 8 and generator.get_sequence(0) == PROMPT + seen
    assert generator.finish_reason(0) == "max_new_tokens"
    generator.rewind_to(len(PROMPT) + 3)
    generator.generate_next_token()
    assert generator.get_next_tokens() == [seen[3]]
    assert generator.token_count() == len(PROMPT) + 4


def test_whole_answers_are_those_of_the_steps_for_several_prompts(model):
    options = {"max_new_tokens": 6, "do_sample": False, "ignore_eos": True}
    together = precast.generate.complete(model, [PROMPT, [9, 10]], **options)
    alone = [precast.generate.complete(model, prompt, **options)[0] for prompt in [PROMPT, [9, 10]]]
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]
    assert [answer.prompt for answer in together] == [0, 1]


def test_the_golden_tokens_of_the_engine_come_out(model, text_folder):
    golden = json.loads((Path(text_folder).parent / "golden.json").read_text())
    cases = [case for case in golden["cases"] if case["model"] == Path(text_folder).name]
    assert cases
    for case in cases:
        options = {**case["search"], "max_new_tokens": case["max_new_tokens"]}
        answers = precast.generate.complete(model, case["prompts"], **options)
        assert [answer.tokens for answer in answers] == case["generated"], case["id"]


def test_a_seed_decides_every_draw(model):
    options = {"max_new_tokens": 8, "temperature": 0.9, "ignore_eos": True}
    draws = [precast.generate.complete(model, PROMPT, seed=seed, **options)[0].tokens for seed in [7, 7, 8]]
    assert draws[0] == draws[1] != draws[2]
    assert len(precast.generate.complete(model, PROMPT, seed=7, n=3, **options)) == 3


def test_pieces_of_a_stream_are_the_text_of_the_answer(model):
    options = {"max_new_tokens": 12, "do_sample": False}
    pieces = list(precast.generate.stream(model, "hello world", **options))
    (answer,) = precast.generate.complete(model, "hello world", **options)
    assert "".join(pieces) == answer.text

    async def gather():
        return [piece async for piece in precast.generate.stream_async(model, "hello world", **options)]

    assert asyncio.run(gather()) == pieces


def test_a_conversation_is_answered(model):
    messages = [{"role": "user", "content": "hello"}]
    prompt = precast.generate.Tokenizer(model).apply_chat_template(messages)
    assert "hello" in prompt
    answer = "".join(precast.generate.chat(model, messages, max_new_tokens=4, do_sample=False))
    (expected,) = precast.generate.complete(model, prompt, max_new_tokens=4, do_sample=False)
    assert answer == expected.text


def test_logprobs_and_logits(model):
    params = precast.generate.GeneratorParams(model)
    params.set_search_options(max_new_tokens=2, logprobs=2, do_sample=False)
    generator = precast.generate.Generator(model, params)
    generator.append_tokens(numpy.array(PROMPT))
    logits = generator.get_logits()
    (token,) = generator.generate_next_token()
    assert token.id == int(numpy.argmax(logits))
    assert token.top_logprobs[0] == (token.id, pytest.approx(token.logprob))


def test_rows_have_seeds_of_their_own(model):
    options = dict(max_new_tokens=6, temperature=1.5, top_k=0)
    alone = [precast.generate.complete(model, PROMPT, seed=seed, **options)[0].tokens for seed in [7, 8]]
    answers = precast.generate.complete(model, [PROMPT, PROMPT, PROMPT], seeds=[8, 7, -1], **options)
    assert [answer.tokens for answer in answers[:2]] == alone[::-1]
    assert [answer.seed for answer in answers[:2]] == [8, 7]
    generator = precast.generate.Generator(model, seed=3, seeds=[None, 9], **options)
    generator.append([PROMPT, PROMPT])
    assert [generator.row_seed(row) for row in range(3)] == [3, 9, None]


def test_logprobs_of_what_may_be_drawn(model):
    options = dict(max_new_tokens=1, logprobs=5, temperature=1.0, top_k=2, seed=3)
    counts = []
    for mode in ["raw", "processed"]:
        generator = precast.generate.Generator(model, logprobs_mode=mode, **options)
        generator.append_tokens(PROMPT)
        (token,) = generator.generate_next_token()
        counts.append(len(token.top_logprobs))
    assert counts == [5, 2]


def test_devices_are_named_by_any_alias_and_unknown_ones_refused(text_folder):
    config = precast.generate.Config(text_folder)
    config.clear_providers()
    config.append_provider("CPUExecutionProvider")
    assert precast.generate.Model(config).device == "cpu"
    with pytest.raises(precast.UsageError, match="there is no device"):
        config.append_provider("typewriter")
    with pytest.raises(precast.UsageError, match="device_id"):
        config.set_provider_option("cpu", "num_threads", "2")
    config.set_provider_option("CPUExecutionProvider", "enable_graph_capture", "0")
    assert precast.generate.Model(config).device == "cpu"
    config.set_provider_option("CPUExecutionProvider", "enable_graph_capture", "perhaps")
    with pytest.raises(precast.PrecastError, match="enable_graph_capture is 'perhaps'"):
        precast.generate.Model(config)


def test_mistakes_are_told(model, text_folder):
    with pytest.raises(precast.UsageError, match="there is no option 'top_q'.*top_"):
        precast.generate.complete(model, PROMPT, top_q=0.5)
    with pytest.raises(precast.UsageError):
        precast.generate.complete(model, [10**9], max_new_tokens=2)
    with pytest.raises(precast.PrecastError):
        precast.generate.Model(text_folder / "nowhere")
    config = precast.generate.Config(text_folder)
    config.overlay('{"search": {"no_such_key": 1}}')
    with pytest.raises(precast.PrecastError, match="no_such_key"):
        precast.generate.Model(config)
