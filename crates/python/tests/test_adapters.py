"""Adapters: tokens are those of onnxruntime with the adapter active, by every door of text."""

import json

import precast
import precast.genai as og
import pytest


@pytest.fixture(scope="module")
def model(adapter_folder):
    return og.Model(str(adapter_folder))


@pytest.fixture(scope="module")
def golden(adapter_folder):
    """Prompt and tokens by adapter."""
    cases = json.loads((adapter_folder.parent / "adapter_cases.json").read_text())["cases"]
    greedy = [case for case in cases if case["id"].endswith("-greedy")]
    return {case["adapter"]: (case["prompts"][0], case["generated"][0]) for case in greedy}


FIRST, SECOND = "first.onnx_adapter", "second.onnx_adapter"


def tokens_of(generator, prompt, count):
    generator.append_tokens(prompt)
    return [generator.generate_next_token()[0].id for _ in range(count)]


def test_adapters_are_loaded_set_and_unloaded_by_the_names_of_genai(model, golden, adapter_folder):
    adapters = og.Adapters(model)
    adapters.load(str(adapter_folder / FIRST), "first")
    adapters.load(adapter_folder / SECOND, "second")
    assert adapters.names == ["first", "second"]
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=64)
    for name, file in [("first", FIRST), ("second", SECOND)]:
        generator = og.Generator(model, params)
        generator.set_active_adapter(adapters, name)
        prompt, expected = golden[file]
        assert tokens_of(generator, prompt, len(expected)) == expected
        with pytest.raises(precast.UsageError, match=f"adapter '{name}' is in use"):
            adapters.unload(name)
        del generator
        adapters.unload(name)
    assert adapters.names == []
    with pytest.raises(precast.UsageError, match="there is no adapter 'first'; none is loaded"):
        og.Generator(model, params).set_active_adapter(adapters, "first")


def test_a_generator_takes_a_file_and_another_one_later(model, golden, adapter_folder):
    (prompt, first), (_, second), (_, base) = golden[FIRST], golden[SECOND], golden[None]
    options = {"max_new_tokens": len(first), "do_sample": False}
    generator = precast.Generator(adapter_folder, adapter=adapter_folder / FIRST, **options)
    assert tokens_of(generator, prompt, 3) == first[:3]
    assert generator.generate(prompt)[0].tokens == first
    generator.rewind(0, len(prompt))
    generator.set_adapter(adapter_folder / SECOND)
    assert [generator.generate_next_token()[0].id for _ in range(3)] == second[:3]
    generator.set_adapter(None)
    generator.reset()
    assert tokens_of(generator, prompt, 3) == base[:3]
    assert precast.generate.complete(model, prompt, adapter=adapter_folder / SECOND, **options)[0].tokens == second


def test_requests_of_an_engine_have_adapters_of_their_own(model, golden, adapter_folder):
    adapters = og.Adapters(model)
    for file in (FIRST, SECOND):
        adapters.load(adapter_folder / file, file)
    with precast.Engine(model) as engine:
        requests = {
            file: engine.submit(prompt, adapter=file and (adapters, file), max_new_tokens=len(tokens), do_sample=False)
            for file, (prompt, tokens) in golden.items()
        }
        found = {file: [event.id for event in request if event.kind == "token"] for file, request in requests.items()}
    assert found == {file: tokens for file, (_, tokens) in golden.items()}
    del requests
    adapters.unload(FIRST, wait=True)
    assert adapters.names == [SECOND]


def test_files_that_do_not_fit_say_what_was_expected(model, text_folder, adapter_folder, tmp_path):
    broken = tmp_path / "broken.onnx_adapter"
    broken.write_bytes((adapter_folder / FIRST).read_bytes()[:200])
    with pytest.raises(precast.UnsupportedModel, match="broken.onnx_adapter': not a valid adapter file"):
        og.Adapters(model).load(broken, "broken")
    with pytest.raises(precast.UnsupportedModel, match="that may be replaced; there are none"):
        og.Adapters(og.Model(str(text_folder))).load(adapter_folder / FIRST, "first")
