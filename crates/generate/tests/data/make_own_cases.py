"""Makes models of our own and their cases (`own_cases.json`).

`gpt2_like-fp32`: int32 ids, explicit positions, keys and values of a layer in one tensor. `gqa_like-fp32`: queries, keys and
values apart, interleaved rotary embedding of half a head, a window without a cache of its own, head sinks, smooth softmax.

Random weights; needs numpy, onnx and onnxruntime. Expected tokens are greedy ones of onnxruntime, which runs the whole
context again for every token. Usage: python make_own_cases.py FOLDER
"""

import json
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, CONTEXT, HIDDEN, HEADS, KV_HEADS, LAYERS = 96, 128, 64, 2, 1, 2
SIZE = HIDDEN // HEADS
PROMPTS = {
    "greedy": [[5, 6, 7, 8]],
    "one-token": [[17]],
    "pad-last": [[3, 9, 2]],
    "batch": [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [90]],
}
NEW_TOKENS = 12


class Builder:
    """Nodes and constants of a graph."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def array(self, name, array):
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def constant(self, name, *shape, scale=0.4, shift=0.0):
        return self.array(name, (self.random.standard_normal(shape) * scale + shift).astype(np.float32))

    def norm(self, name):
        return [self.constant(f"{name}.weight", HIDDEN, scale=0.2, shift=1.0), self.constant(f"{name}.bias", HIDDEN, scale=0.2)]

    def microsoft(self, op, inputs, outputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, domain="com.microsoft", name=outputs[0], **attributes))

    def onnx(self, op, inputs, outputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0], **attributes))

    def model(self, name, inputs, outputs):
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_gqa_like():
    build = Builder(20261116)
    angles = np.arange(CONTEXT)[:, None] / 50.0 ** (np.arange(SIZE // 4) / (SIZE // 4))
    tables = [build.array("cos", np.cos(angles).astype(np.float32)), build.array("sin", np.sin(angles).astype(np.float32))]
    build.onnx("ReduceSum", ["attention_mask", build.array("axis", np.array([1]))], ["sum"], keepdims=0)
    build.onnx("Sub", ["sum", build.array("one", np.array([1]))], ["last"])
    build.onnx("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
    build.onnx("Shape", ["attention_mask"], ["mask_shape"])
    build.onnx("Gather", ["mask_shape", build.array("second", np.array(1))], ["total_long"])
    build.onnx("Cast", ["total_long"], ["total"], to=TensorProto.INT32)
    build.onnx("Gather", [build.constant("embedding", VOCABULARY, HIDDEN), "input_ids"], ["x_0"])
    x = "x_0"
    for layer in range(LAYERS):
        build.onnx("LayerNormalization", [x, *build.norm(f"ln_{layer}")], [f"n_{layer}"])
        widths = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
        for part, width in widths.items():
            build.onnx("MatMul", [f"n_{layer}", build.constant(f"{part}_weight_{layer}", HIDDEN, width)], [f"{part}_{layer}"])
        past = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        sink = build.constant(f"sink_{layer}", HEADS, scale=1.0) if layer == 0 else ""
        inputs = [f"q_{layer}", f"k_{layer}", f"v_{layer}", *past, "seqlens_k", "total", *tables, "", "", sink]
        outputs = [f"a_{layer}", f"present.{layer}.key", f"present.{layer}.value"]
        build.microsoft("GroupQueryAttention", inputs, outputs, num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1,
                        rotary_interleaved=1, local_window_size=5 if layer == 0 else -1, smooth_softmax=int(layer == 1))
        build.onnx("MatMul", [f"a_{layer}", build.constant(f"o_{layer}", HIDDEN, HIDDEN)], [f"o_out_{layer}"])
        build.onnx("Add", [x, f"o_out_{layer}"], [f"x_{layer + 1}"])
        x = f"x_{layer + 1}"
    build.onnx("MatMul", [x, build.constant("head", HIDDEN, VOCABULARY)], ["logits"])
    ids = lambda name, length: helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
    cache = lambda name, length: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", KV_HEADS, length, SIZE])
    halves = [f"{layer}.{half}" for layer in range(LAYERS) for half in ("key", "value")]
    inputs = [ids("input_ids", "length"), ids("attention_mask", "total_length")]
    inputs += [cache(f"past_key_values.{half}", "past") for half in halves]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])
    return build.model("gqa_like", inputs, [logits] + [cache(f"present.{half}", "total_length") for half in halves])


def make_gpt2_like():
    build = Builder(20261115)
    constant, norm, microsoft, nodes = build.constant, build.norm, build.microsoft, build.nodes
    embedding = ["input_ids", "", constant("wte", VOCABULARY, HIDDEN), constant("wpe", CONTEXT, HIDDEN), ""]
    microsoft("EmbedLayerNormalization", [*embedding, *norm("ln_0"), "", "position_ids"], ["x_0", "mask_index", "sum_0"])
    stream, x = "sum_0", "x_0"
    for layer in range(LAYERS):
        qkv = [constant(f"qkv_{layer}", HIDDEN, 3 * HIDDEN, scale=0.3), constant(f"qkv_bias_{layer}", 3 * HIDDEN, scale=0.1)]
        microsoft("Attention", [x, *qkv, "attention_mask", f"past_{layer}"], [f"a_{layer}", f"present_{layer}"],
                  num_heads=HEADS, unidirectional=1)
        nodes.append(helper.make_node("MatMul", [f"a_{layer}", constant(f"o_{layer}", HIDDEN, HIDDEN)], [f"o_out_{layer}"]))
        microsoft("SkipLayerNormalization", [f"o_out_{layer}", stream, *norm(f"ln_a{layer}")], [f"h_{layer}", "", "", f"t_{layer}"])
        nodes.append(helper.make_node("MatMul", [f"h_{layer}", constant(f"up_{layer}", HIDDEN, 4 * HIDDEN)], [f"u_{layer}"]))
        microsoft("FastGelu", [f"u_{layer}", constant(f"up_bias_{layer}", 4 * HIDDEN, scale=0.1)], [f"g_{layer}"])
        nodes.append(helper.make_node("MatMul", [f"g_{layer}", constant(f"down_{layer}", 4 * HIDDEN, HIDDEN)], [f"d_{layer}"]))
        microsoft("SkipLayerNormalization", [f"d_{layer}", f"t_{layer}", *norm(f"ln_b{layer}")],
                  [f"x_{layer + 1}", "", "", f"sum_{layer + 1}"])
        stream, x = f"sum_{layer + 1}", f"x_{layer + 1}"
    nodes.append(helper.make_node("MatMul", [x, constant("head", HIDDEN, VOCABULARY)], ["logits"]))
    ids = lambda name, length: helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", length])
    cache = lambda name, length: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, "batch", HEADS, length, SIZE])
    inputs = [ids("input_ids", "length"), ids("position_ids", "length"), ids("attention_mask", "total")]
    inputs += [cache(f"past_{layer}", "past") for layer in range(LAYERS)]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCABULARY])
    outputs = [logits] + [cache(f"present_{layer}", "total") for layer in range(LAYERS)]
    return build.model("gpt2_like", inputs, outputs)


def next_logits(session, tokens):
    count = len(tokens)
    inputs = {}
    for port in session.get_inputs():
        integers = np.int32 if port.type == "tensor(int32)" else np.int64
        if port.name == "input_ids":
            inputs[port.name] = np.array([tokens], integers)
        elif port.name == "position_ids":
            inputs[port.name] = np.arange(count, dtype=integers)[None]
        elif port.name == "attention_mask":
            inputs[port.name] = np.ones((1, count), integers)
        else:
            shape = [{"batch": 1, "past": 0}.get(size, size) for size in port.shape]
            inputs[port.name] = np.zeros(shape, np.float32)
    return session.run(["logits"], inputs)[0][0, -1]


def make_case(session, model, kind, prompts):
    generated, heads, gap = [], [], float("inf")
    for prompt in prompts:
        tokens = list(prompt)
        heads.append([float(score) for score in next_logits(session, tokens)[:8]])
        for _ in range(NEW_TOKENS):
            logits = next_logits(session, tokens)
            best = np.sort(logits)[-2:]
            gap = min(gap, float(best[1] - best[0]))
            tokens.append(int(logits.argmax()))
        generated.append(tokens[len(prompt):])
    return {"id": f"own/{model}-{kind}", "model": f"{model}-fp32", "prompts": prompts, "search": {"do_sample": False},
            "max_new_tokens": NEW_TOKENS, "generated": generated, "finish": ["length"] * len(prompts),
            "first_logits_head": heads, "min_top2_gap": round(gap, 5)}


def config_of(model):
    decoder = {"filename": "model.onnx", "num_hidden_layers": LAYERS, "head_size": SIZE}
    if model == "gpt2_like":
        decoder |= {"inputs": {"past_names": "past_%d"}, "outputs": {"present_names": "present_%d"}}
    return {"model": {"type": model, "vocab_size": VOCABULARY, "context_length": CONTEXT, "pad_token_id": 2,
                      "eos_token_id": 95, "decoder": decoder}}


def main():
    folder = pathlib.Path(sys.argv[1])
    cases = []
    for model, make in {"gpt2_like": make_gpt2_like, "gqa_like": make_gqa_like}.items():
        place = folder / f"{model}-fp32"
        place.mkdir(exist_ok=True)
        onnx.save(make(), place / "model.onnx")
        (place / "genai_config.json").write_text(json.dumps(config_of(model), indent=1) + "\n")
        session = onnxruntime.InferenceSession(str(place / "model.onnx"), providers=["CPUExecutionProvider"])
        cases += [make_case(session, model, kind, prompts) for kind, prompts in PROMPTS.items()]
    assert not any(95 in tokens for case in cases for tokens in case["generated"]), "the end token was generated"
    made_with = {"onnxruntime": f"{onnxruntime.__version__} (full re-prefill of the whole context for every token)"}
    text = ",\n  ".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (folder / "own_cases.json").write_text(f'{{\n "made_with": {json.dumps(made_with)},\n "cases": [\n  {text}\n ]\n}}\n')


main()
