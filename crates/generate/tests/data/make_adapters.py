"""Makes a tiny model with parameters that adapters replace, two adapters, and their cases (`adapter_cases.json`).

`llama_lora-fp32` is `llama_unfused-fp32` with a product of two small matrices beside some of its products. These are inputs
that have initializers. Those of queries and values are empty in the model (rank 0), and their rank is the adapter's, as
Olive writes them; those behind attention have two columns in every adapter, and values of their own without one.
`first.onnx_adapter` has rank 4 and leaves the latter as they are, `second.onnx_adapter` has rank 8 and replaces all.

Random weights; needs numpy, onnx, onnxruntime and onnxruntime-genai. Expected tokens are greedy ones of onnxruntime with the
adapter active, which runs the whole context again for every token; `confirmed_by` names who gave the same with its cache.

Usage: python make_adapters.py FOLDER
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
import onnxruntime_genai
from onnx import TensorProto, helper, numpy_helper

BASE, MODEL = "llama_unfused-fp32", "llama_lora-fp32"
LAYERS, HIDDEN, QUERIES, VALUES, SIZE, CONTEXT, NEW_TOKENS = 2, 32, 64, 32, 16, 128, 20
#: Product: its columns, and its rank in the model where that is the same in every adapter.
PRODUCTS = {"q_proj": (HIDDEN, QUERIES, None), "v_proj": (HIDDEN, VALUES, None), "o_proj": (QUERIES, HIDDEN, 2)}
#: Adapter: rank, products that it replaces.
ADAPTERS = {"first": (4, ["q_proj", "v_proj"]), "second": (8, ["q_proj", "v_proj", "o_proj"])}
#: Values are drawn again, with the next seed, until no row ends early and no two scores are near.
SEED, GAP_MIN, SPREAD = 20261118, 0.002, 0.4
PROMPTS = {
    "greedy": [[5, 60, 7, 8, 93, 23, 41, 5, 60, 88, 12, 77, 3, 30, 91, 64, 9, 17, 52, 70, 33, 46]],
    "one-token": [[17]],
    "batch": [[11, 4, 93], [40, 41, 42, 80, 44, 45, 46, 71, 18, 29, 85, 6, 13], [90]],
}


def names(layer, product):
    return [f"model.layers.{layer}.attn.{product}.lora_{half}.weight" for half in "AB"]


def values(random, product, rank):
    rows, columns, fixed = PRODUCTS[product]
    rank = fixed or rank
    return [(random.standard_normal(shape) * SPREAD).astype(np.float32) for shape in ((rows, rank), (rank, columns))]


def make_model(folder, base, random):
    """The base model with products beside some of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    nodes = []
    for node in model.graph.node:
        layer = node.name.split("/")[2].removeprefix("layers.") if node.op_type == "MatMul" and "/attn/" in node.name else None
        product = node.name.split("/")[-2]
        if layer is None or product not in PRODUCTS:
            nodes.append(node)
            continue
        (down, up), output, place = names(layer, product), node.output[0], node.name.removesuffix("/MatMul")
        parts = {name: f"{place}/{name}/output_0" for name in ("base", "down", "up")}
        node.output[0] = parts["base"]
        nodes += [node, helper.make_node("MatMul", [node.input[0], down], [parts["down"]], name=f"{place}/lora_A/MatMul"),
                  helper.make_node("MatMul", [parts["down"], up], [parts["up"]], name=f"{place}/lora_B/MatMul"),
                  helper.make_node("Add", [parts["base"], parts["up"]], [output], name=f"{place}/lora/Add")]
        rank = PRODUCTS[product][2]
        for name, array in zip((down, up), values(random, product, 0)):
            dims = [("lora_r" if size == 0 else size) for size in array.shape] if rank is None else array.shape
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "model.onnx")


def make_adapter(folder, name, random):
    rank, products = ADAPTERS[name]
    parameters = {}
    for layer in range(LAYERS):
        for product in products:
            parameters |= zip(names(layer, product), values(random, product, rank))
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({key: onnxruntime.OrtValue.ortvalue_from_numpy(value) for key, value in parameters.items()})
    adapter.export_adapter(str(folder / f"{name}.onnx_adapter"))


def by_onnxruntime(session, adapter, prompt):
    """Greedy tokens, the smallest distance of the best two scores, the first scores."""
    options = onnxruntime.RunOptions()
    if adapter is not None:
        options.add_active_adapter(adapter)
    tokens, gap, head = list(prompt), float("inf"), None
    for _ in range(NEW_TOKENS):
        inputs = {"input_ids": np.array([tokens], np.int64), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        for port in session.get_inputs():
            if port.name.startswith("past_key_values"):
                inputs[port.name] = np.zeros((1, port.shape[1], CONTEXT, SIZE), np.float32)
        logits = session.run(["logits"], inputs, options)[0][0, -1]
        if head is None:
            head = [round(float(score), 5) for score in logits[:8]]
        best = np.sort(logits)[-2:]
        gap = min(gap, float(best[1] - best[0]))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):], gap, head


def by_genai(model, adapters, name, prompt):
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + NEW_TOKENS)
    generator = onnxruntime_genai.Generator(model, params)
    if name is not None:
        generator.set_active_adapter(adapters, name)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt):]]


def make_cases(folder, seed):
    """All cases; none where one of them would not hold for every correct computation, or an adapter changes nothing."""
    random, place = np.random.default_rng(seed), folder / MODEL
    make_model(place, folder / BASE, random)
    for name in ADAPTERS:
        make_adapter(place, name, random)
    session = onnxruntime.InferenceSession(str(place / "model.onnx"), providers=["CPUExecutionProvider"])
    genai_model = onnxruntime_genai.Model(str(place))
    genai_adapters = onnxruntime_genai.Adapters(genai_model)
    cases = []
    for name in [None, *ADAPTERS]:
        adapter = None
        if name is not None:
            adapter = onnxruntime.LoraAdapter()
            adapter.Load(str(place / f"{name}.onnx_adapter"))
            genai_adapters.load(str(place / f"{name}.onnx_adapter"), name)
        for kind, prompts in PROMPTS.items():
            generated, gaps, heads = zip(*(by_onnxruntime(session, adapter, prompt) for prompt in prompts))
            is_dull = kind == "greedy" and len(set(generated[0])) < 4
            if any(1 in tokens for tokens in generated) or min(gaps) < GAP_MIN or is_dull:
                return None
            agrees = [by_genai(genai_model, genai_adapters, name, prompt) for prompt in prompts] == list(generated)
            confirmed = [f"onnxruntime-genai {onnxruntime_genai.__version__}"] if agrees else []
            print(f"{name} {kind}: gap {min(gaps):.4f}, confirmed by {confirmed}", flush=True)
            cases.append({"id": f"adapter/{name or 'none'}-{kind}", "model": MODEL,
                          "adapter": name and f"{name}.onnx_adapter", "prompts": prompts,
                          "search": {"do_sample": False}, "max_new_tokens": NEW_TOKENS, "generated": list(generated),
                          "finish": ["length"] * len(prompts), "first_logits_head": list(heads),
                          "min_top2_gap": round(min(gaps), 5), "confirmed_by": confirmed, "seed": seed})
    answers = [tuple(map(tuple, case["generated"])) for case in cases]
    return cases if len(set(answers)) == len(answers) else None


def main():
    folder, cases, seed = pathlib.Path(sys.argv[1]), None, SEED
    while cases is None:
        cases, seed = make_cases(folder, seed), seed + 1
    made_with = {"onnxruntime": f"{onnxruntime.__version__} (active adapter, the whole context again for every token)",
                 "adapters": f"onnxruntime.AdapterFormat {onnxruntime.__version__}"}
    text = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (folder / "adapter_cases.json").write_text(f'{{\n "made_with": {json.dumps(made_with)},\n "cases": [\n  {text}\n ]\n}}\n')


main()
