"""Generate with onnxruntime-genai through the plugin provider and compare with golden tokens.

ort_ep_genai.py LIBRARY DATA WORK

DATA holds golden.json and the model folders that it names; WORK is a folder for copies of them, in which the provider is
the plugin. Prints one line of JSON.
"""
import json
import os
import shutil
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime_genai as og

LIBRARY, DATA, WORK = (os.path.abspath(path) for path in sys.argv[1:4])
NAME = "PrecastExecutionProvider"
KINDS = ("greedy", "repetition_penalty", "beam")
FOLDERS = ("llama-fp32", "qwen3-fp32", "phi3-fp32", "qwen2-fp32", "llama-int4-acc1")
# A model whose answer goes on for long, and how many tokens of it are compared with the runtime's own kernels.
LONG_FOLDER, LONG_PROMPT, LONG_TOKENS = "llama-fp32", [5, 17, 23, 42], 150


def folder_with(name, provider_options, is_shared):
    """A copy of a model folder with other options."""
    folder = os.path.join(WORK, f"{name}-{len(os.listdir(WORK))}")
    shutil.copytree(os.path.join(DATA, name), folder)
    file = os.path.join(folder, "genai_config.json")
    with open(file, encoding="utf-8") as stream:
        config = json.load(stream)
    decoder = config["model"]["decoder"]
    decoder.setdefault("session_options", {})["provider_options"] = provider_options
    config.setdefault("search", {})["past_present_share_buffer"] = is_shared
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(config, stream)
    return folder


def open_plugin(name, is_shared, more=None):
    """A model on the plugin. Whether past and present are one buffer is said twice: to genai, and to the provider."""
    options = {"strict": "1", "cache.mode": "off", "past_present_share_buffer": str(int(is_shared)), **(more or {})}
    return og.Model(folder_with(name, [{NAME: options}], is_shared))


def generate(model, prompts, count, search):
    params = og.GeneratorParams(model)
    params.set_search_options(batch_size=len(prompts), **search)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done() and generator.token_count() < len(prompts[0]) + count:
        generator.generate_next_token()
    return [[int(token) for token in generator.get_sequence(row)[len(prompts[0]) :]] for row in range(len(prompts))]


def check_golden(cases, name, is_shared, wrong):
    """Compares with golden tokens; gives how many cases there were."""
    model = open_plugin(name, is_shared)
    # Beams take rows from each other, for which genai keeps past and present apart.
    fitting = [case for case in cases if case["model"] == name and case["kind"] in KINDS]
    fitting = [case for case in fitting if not (is_shared and case["kind"] == "beam")]
    for case in fitting:
        found = generate(model, case["prompts"], case["max_new_tokens"], case["search"])
        if found != case["generated"] and not (case["kind"] == "beam" and found[0] == case["generated"][0]):
            wrong.append({"case": case["id"], "shared": is_shared, "found": found, "expected": case["generated"]})
    return len(fitting)


def check_long(is_shared, wrong):
    """Compares an answer that goes on for long with the runtime's own kernels."""
    search = {"do_sample": False, "min_length": 200, "max_length": 256}
    own = og.Model(folder_with(LONG_FOLDER, [], is_shared))
    expected = generate(own, [LONG_PROMPT], LONG_TOKENS, search)
    found = generate(open_plugin(LONG_FOLDER, is_shared), [LONG_PROMPT], LONG_TOKENS, search)
    if found != expected or len(expected[0]) != LONG_TOKENS:
        wrong.append({"case": "long", "shared": is_shared, "found": found, "expected": expected})


def main():
    og.register_execution_provider_library(NAME, LIBRARY)
    with open(os.path.join(DATA, "golden.json"), encoding="utf-8") as stream:
        cases = json.load(stream)["cases"]
    checked, wrong = 0, []
    try:
        open_plugin(FOLDERS[0], False, {"nonsense": "1"})
        wrong.append("an option that does not exist was not refused: the provider is not used")
    except Exception as error:
        if "nonsense=1" not in str(error):
            raise
    for is_shared in (False, True):
        for name in FOLDERS:
            checked += check_golden(cases, name, is_shared, wrong)
        check_long(is_shared, wrong)
    print(json.dumps({"cases": checked, "wrong": wrong}))
    return 1 if wrong or not checked else 0


sys.exit(main())
