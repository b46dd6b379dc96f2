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
KINDS = ("greedy",)
FOLDERS = ("llama-fp32", "qwen3-fp32", "phi3-fp32", "llama-int4-acc1")
CASES_MAX = 2
TOKENS_MAX = 16


def folder_with_provider(name, more=None):
    folder = os.path.join(WORK, name + "".join(more or {}))
    if not os.path.exists(folder):
        shutil.copytree(os.path.join(DATA, name), folder)
        file = os.path.join(folder, "genai_config.json")
        with open(file, encoding="utf-8") as stream:
            config = json.load(stream)
        options = {"strict": "1", "cache.mode": "off", **(more or {})}
        decoder = config["model"]["decoder"]
        decoder.setdefault("session_options", {})["provider_options"] = [{NAME: options}]
        # Past and present are tensors of their own: an output cannot lie in an input of another length.
        config.setdefault("search", {})["past_present_share_buffer"] = False
        with open(file, "w", encoding="utf-8") as stream:
            json.dump(config, stream)
    return folder


def generate(model, case):
    params = og.GeneratorParams(model)
    params.set_search_options(batch_size=len(case["prompts"]), **case["search"])
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(case["prompts"], np.int32))
    count = min(case["max_new_tokens"], TOKENS_MAX)
    for _ in range(count):
        if generator.is_done():
            break
        generator.generate_next_token()
    prompt = len(case["prompts"][0])
    return [[int(token) for token in generator.get_sequence(row)[prompt:]] for row in range(len(case["prompts"]))]


def main():
    og.register_execution_provider_library(NAME, LIBRARY)
    with open(os.path.join(DATA, "golden.json"), encoding="utf-8") as stream:
        cases = json.load(stream)["cases"]
    checked, wrong = 0, []
    try:
        og.Model(folder_with_provider(FOLDERS[0], {"nonsense": "1"}))
        wrong.append("an option that does not exist was not refused: the provider is not used")
    except Exception as error:
        if "nonsense=1" not in str(error):
            raise
    for name in FOLDERS:
        fitting = [case for case in cases if case["model"] == name and case["kind"] in KINDS]
        fitting = [case for case in fitting if len({len(prompt) for prompt in case["prompts"]}) == 1][:CASES_MAX]
        model = og.Model(folder_with_provider(name))
        for case in fitting:
            found = generate(model, case)
            expected = [row[: len(tokens)] for row, tokens in zip(case["generated"], found)]
            checked += 1
            if [tokens[: len(row)] for tokens, row in zip(found, expected)] != expected or not any(expected):
                wrong.append({"case": case["id"], "found": found, "expected": expected})
    print(json.dumps({"cases": checked, "wrong": wrong}))
    return 1 if wrong or not checked else 0


sys.exit(main())
