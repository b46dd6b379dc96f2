"""Generators made from a folder, engines, and the names of onnxruntime-genai."""

import asyncio
import re

import numpy
import precast
import precast.genai as og
import pytest

PROMPT = [5, 6, 7, 8]
OPTIONS = {"max_new_tokens": 6, "do_sample": False, "ignore_eos": True}


@pytest.fixture(scope="module")
def generator(text_folder):
    return precast.Generator(text_folder, device="cpu", **OPTIONS)


@pytest.fixture(scope="module")
def expected(generator):
    return generator.generate(PROMPT)[0]


def test_a_generator_of_a_folder_steps_rewinds_and_begins_again(generator, expected):
    generator.reset()
    generator.append([PROMPT, numpy.array([9, 10])])
    assert generator.logits(0).dtype == numpy.float32 and generator.logits(0).shape == (generator.model.vocabulary,)
    assert int(numpy.argmax(generator.logits(0))) == expected.tokens[0]
    stream, text, rows = generator.tokenizer.stream(), "", []
    for step in generator:
        rows.append([token.id for token in step.tokens])
        text += stream.push(step.tokens[0].id)
    assert [row[0] for row in rows] == expected.tokens and text + stream.finish() == expected.text
    assert generator.sequence(0) == PROMPT + expected.tokens
    generator.rewind(0, len(PROMPT) + 1)
    (step,) = [next(iter(generator))]
    assert step.tokens[0].id == expected.tokens[1]
    generator.reset()
    generator.append([PROMPT])
    assert next(iter(generator)).tokens[0].id == expected.tokens[0]


def test_texts_and_conversations_come_with_the_options_of_the_generator(generator):
    answers = generator.generate(["hello world", "a"])
    assert [len(answer.tokens) for answer in answers] == [6, 6]
    assert "".join(generator.stream("hello world")) == answers[0].text
    messages = [{"role": "user", "content": "hi"}]
    (expected,) = generator.generate(generator.tokenizer.apply_chat_template(messages))
    assert "".join(generator.chat(messages)) == expected.text
    assert "".join(generator.chat(messages, max_new_tokens=1)) != expected.text


def test_templates_see_tools_documents_and_variables(text_folder, tmp_path):
    for file in text_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{{ tools|length }} {{ documents[0].title }} {{ style }} {{ messages[0].content }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = precast.generate.Tokenizer(precast.generate.Model(tmp_path))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "é"}], tools=[{"name": "f"}], documents=[{"title": "t"}], style="brief"
    )
    assert text == "1 t brief é"


def test_half_a_character_is_flushed(generator):
    tokenizer = generator.tokenizer
    stream = tokenizer.create_stream()
    assert stream.push(tokenizer.encode("日")[0]) == "" and stream.finish() == "\ufffd"


def test_requests_of_an_engine_are_answered_side_by_side(generator, expected):
    with precast.Engine(generator.model) as engine:
        requests = [engine.submit(prompt, **OPTIONS) for prompt in (PROMPT, [9, 10])]
        events = list(requests[0])
        assert [event.id for event in events if event.kind == "token"] == expected.tokens
        assert events[-1].kind == "finished" and events[-1].finish_reason == "max_new_tokens"
        assert events[-1].usage == (len(PROMPT), 0, 6, 0)
        assert requests[1].text() == generator.generate([[9, 10]])[0].text

        async def gather():
            params = precast.generate.GeneratorParams(generator.model)
            params.set_search_options(**OPTIONS)
            return [event.id async for event in engine.submit(PROMPT, params) if event.kind == "token"]

        assert asyncio.run(gather()) == expected.tokens
        guided = engine.submit("hello", regex="[0-9]{3}", max_new_tokens=20)
        assert re.fullmatch("[0-9]{3}", guided.text())
        cancelled = engine.submit(PROMPT, max_new_tokens=400, ignore_eos=True)
        cancelled.cancel()
        assert list(cancelled)[-1].finish_reason in ("cancelled", "max_new_tokens")
        with pytest.raises(precast.UsageError, match="top_q"):
            engine.submit(PROMPT, top_q=1)
        with pytest.raises(precast.UsageError, match="exclude one another"):
            engine.submit(PROMPT, regex="a", lark="start: A")
    with pytest.raises(precast.UsageError, match="closed"):
        engine.submit(PROMPT)


def test_scripts_of_onnxruntime_genai_run(text_folder, expected):
    config = og.Config(str(text_folder))
    config.clear_providers()
    model = og.Model(config)
    tokenizer = og.Tokenizer(model)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(PROMPT) + 6, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(PROMPT)
    stream, text = tokenizer.create_stream(), ""
    while not generator.is_done():
        generator.generate_next_token()
        text += stream.decode(generator.get_next_tokens()[0])
    assert list(generator.get_sequence(0)) == PROMPT + expected.tokens
    assert text + stream.finish() == expected.text
    assert isinstance(og.is_cuda_available(), bool)


def test_a_model_that_is_open_keeps_its_device(generator):
    with pytest.raises(precast.UsageError, match="open already"):
        precast.Generator(generator.model, device="cpu")
