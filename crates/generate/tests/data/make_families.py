"""Makes a tiny model of each family that the public builder of onnxruntime-genai exports, and their cases (`family_cases.json`).

Random weights, norms and biases included, so that an importer that drops one gives other tokens. Needs torch, transformers,
onnx, onnxruntime and onnxruntime-genai. Expected tokens are greedy ones of onnxruntime, which runs the whole context of the
exported graph again for every token; `confirmed_by` names who gave the same: onnxruntime-genai with its cache, and
transformers with the weights before they were exported (not for weights that the export rounds). Rows of a batch are
expected to give what they give alone.

Usage: python make_families.py FOLDER [NAME..], NAME a folder of `MODELS` or `NARROW_MODELS`; the cases of others are kept.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import onnxruntime
import onnxruntime_genai
import torch
import transformers
from onnxruntime_genai.models import builder

VOCABULARY, CONTEXT, NEW_TOKENS = 96, 128, 20
#: Weights are drawn again, with the next seed, until no row ends early and no two scores are near.
SEED = 20261117
#: How near the best two scores may come: nearer ones may change places between two correct computations.
GAP_MIN = 0.002
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1, pad_token_id=2,
             tie_word_embeddings=False)
#: Kernels of onnxruntime want heads of 16; where a family has no size of its own for them, that follows from these.
WIDE, NARROW = dict(hidden_size=64), dict(num_attention_heads=2, num_key_value_heads=1)
#: The builder takes a matrix with as many columns as there are tokens for the last one: gates beside values must not be that.
UNLIKE = dict(intermediate_size=40)
#: Products that onnxruntime makes of quantised weights beside plain ones round activations to 8 bits unless told otherwise.
EXACT_SESSION = {"session.qdq_matmulnbits_accuracy_level": "1"}
LOCAL_GLOBAL = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
LONG_ROPE = {"rope_type": "longrope", "type": "longrope", "rope_theta": 10000.0,
             "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8], "long_factor": [1.2, 1.5, 2.0, 2.5, 3.5, 5.0, 6.5, 8.0],
             "original_max_position_embeddings": 32}
LLAMA_3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}

#: Family: class, what its configuration says beside `SIZES`, how far weights spread.
FAMILIES = {
    "llama": ("Llama", dict(head_dim=16), 0.25),
    "llama_tied": ("Llama", dict(head_dim=16, tie_word_embeddings=True), 0.25),
    "llama_long": ("Llama", dict(head_dim=16, rope_parameters=LLAMA_3_ROPE), 0.25),
    # The builder forgets a window that no list of layers repeats.
    "mistral": ("Mistral", dict(head_dim=16, sliding_window=8, layer_types=["sliding_attention"] * 2), 0.25),
    "gemma": ("Gemma", dict(head_dim=16, tie_word_embeddings=True), 0.2),
    "gemma3": ("Gemma3", dict(head_dim=16, tie_word_embeddings=True, num_hidden_layers=4, sliding_window=8,
                              layer_types=LOCAL_GLOBAL, query_pre_attn_scalar=16), 0.2),
    "qwen3": ("Qwen3", dict(head_dim=16), 0.25),
    "phi": ("Phi", WIDE | dict(num_attention_heads=2, rope_parameters=PARTIAL_ROPE), 0.2),
    "granite": ("Granite", WIDE | dict(embedding_multiplier=6.0, logits_scaling=0.7, residual_multiplier=0.6,
                                       attention_multiplier=0.3), 0.2),
    "olmo": ("Olmo", WIDE, 0.2),
    "smollm3": ("SmolLM3", NARROW | dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0]), 0.25),
    "smollm3_local": ("SmolLM3", NARROW | dict(num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True,
                                               sliding_window=8, layer_types=LOCAL_GLOBAL), 0.25),
    "nemotron": ("Nemotron", dict(head_dim=32, rope_parameters=PARTIAL_ROPE), 0.25),
    "ernie": ("Ernie4_5", dict(head_dim=16, use_bias=True), 0.25),
    "hunyuan": ("HunYuanDenseV1", dict(head_dim=16), 0.25),
    # The same as ChatGLM, which transformers has no classes for, in newer names.
    "chatglm": ("Glm", UNLIKE | dict(head_dim=32, attention_bias=True, rope_parameters=PARTIAL_ROPE), 0.25),
    "phi3_long": ("Phi3", WIDE | UNLIKE | dict(rope_parameters=LONG_ROPE, original_max_position_embeddings=32), 0.2),
}
#: What the builder calls classes of transformers, where it has another name.
ARCHITECTURES = {"GlmForCausalLM": "ChatGLMModel"}

#: Folder: family, precision, device, options of the builder.
MODELS = {
    "llama_tied-fp32": ("llama_tied", "fp32", "cpu", []),
    "llama_long-fp32": ("llama_long", "fp32", "cpu", []),
    "mistral-fp32": ("mistral", "fp32", "cpu", []),
    "gemma-fp32": ("gemma", "fp32", "cpu", []),
    "gemma3-fp32": ("gemma3", "fp32", "cpu", []),
    "qwen3_tiny-fp32": ("qwen3", "fp32", "cpu", []),
    "phi-fp32": ("phi", "fp32", "cpu", []),
    "granite-fp32": ("granite", "fp32", "cpu", []),
    "olmo-fp32": ("olmo", "fp32", "cpu", []),
    "smollm3-fp32": ("smollm3", "fp32", "cpu", []),
    "smollm3_local-fp32": ("smollm3_local", "fp32", "cpu", []),
    "nemotron-fp32": ("nemotron", "fp32", "cpu", []),
    "ernie-fp32": ("ernie", "fp32", "cpu", []),
    "hunyuan-fp32": ("hunyuan", "fp32", "cpu", []),
    "chatglm-fp32": ("chatglm", "fp32", "cpu", []),
    "phi3_long-fp32": ("phi3_long", "fp32", "cpu", []),
    "llama_unfused-fp32": ("llama", "fp32", "cpu", ["fuse_qkv=false", "prune_lm_head=true"]),
    "llama-int4-acc4": ("llama", "int4", "cpu", ["block_size=32", "accuracy_level=4"]),
    "llama_tied-int4": ("llama_tied", "int4", "cpu", ["block_size=32", "accuracy_level=1"]),
    "llama-uint4": ("llama", "int4", "cpu", ["block_size=16", "accuracy_level=1", "is_symmetric=false"]),
    "llama-int8": ("llama", "int8", "cpu", ["block_size=32", "accuracy_level=1"]),
    "llama-uint8": ("llama", "int8", "cpu", ["block_size=32", "accuracy_level=1", "is_symmetric=false"]),
    "llama-int4-qdq": ("llama", "int4", "cpu", ["block_size=32", "accuracy_level=1", "use_qdq=true"]),
}

#: Folders of 16 bits: the one with the same weights in f32, precision, device. Their scores are compared with those of that one.
NARROW_MODELS = {
    "llama-fp16": ("llama_unfused-fp32", "fp16", "cuda"),
    "llama-bf16": ("llama_unfused-fp32", "bf16", "cuda"),
    "qwen3_tiny-fp16": ("qwen3_tiny-fp32", "fp16", "cuda"),
    "gemma3-bf16": ("gemma3-fp32", "bf16", "cuda"),
}

PROMPTS = {
    "greedy": [[5, 60, 7, 8, 93, 23, 41, 5, 60, 88, 12, 77, 3, 30, 91, 64, 9, 17, 52, 70, 33, 46]],
    "one-token": [[17]],
    "batch": [[11, 4, 93], [40, 41, 42, 80, 44, 45, 46, 71, 18, 29, 85, 6, 13], [90]],
}


class ConfigForBuilder:
    """Configurations as the builder reads them: it knows older names of what newer releases of transformers say."""

    @staticmethod
    def from_pretrained(*arguments, **named):
        config = transformers.AutoConfig.from_pretrained(*arguments, **named)
        config.architectures = [ARCHITECTURES.get(name, name) for name in config.architectures]
        by_layer_type = config.rope_parameters
        if "full_attention" in by_layer_type:
            config.rope_parameters = by_layer_type["full_attention"]
            config.rope_local_base_freq = by_layer_type["sliding_attention"]["rope_theta"]
        return config


def make_rope_where_there_is_one(self, layer_id, **named):
    """The builder knows which layers of SmolLM3 have no rotary embedding, and then adds one of its own before attention."""
    if not self.no_rope_layers[layer_id]:
        return "", ""
    return builder.Model.make_attention_qk_rope(self, layer_id, **named)


def make_weights(family, folder, seed):
    """Saves a random model, and gives it."""
    name, changes, spread = FAMILIES[family]
    # What is written behind Text belongs to models that are more than their decoder.
    config_class = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    config = config_class(**(SIZES | changes))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.float32).eval()
    for path, parameter in model.named_parameters():
        middle = 0.0
        if parameter.dim() == 1 and path.endswith("weight"):
            middle = float(parameter.detach().mean().round())
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * spread + middle)
    model.generation_config = transformers.GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(__file__).parent / "llama-fp32" / file, folder / file)
    return model


def make_folder(weights, folder, precision, device, options):
    """Exports saved weights, and keeps what tokens need."""
    exported, cache = weights.parent / f"exported-{folder.name}", weights.parent / "cache"
    details = (None, str(weights), str(exported), precision, device, str(cache))
    builder.create_model(*details, **builder.parse_extra_options(*details, ["hf_token=false", *options]))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in ("model.onnx", "model.onnx.data", "genai_config.json"):
        shutil.copy(exported / file, folder / file)
    config = json.loads((folder / "genai_config.json").read_text())
    # The device is the caller's: the same folder is run on all of them.
    session_options = config["model"]["decoder"]["session_options"]
    session_options["provider_options"] = []
    if "use_qdq=true" in options:
        session_options |= EXACT_SESSION
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1) + "\n")


def next_logits(session, tokens, size):
    """Scores behind tokens of which none is cached; `size` is that of a head. Caches of windows want room for their window."""
    inputs = {}
    for port in session.get_inputs():
        if port.name == "input_ids":
            inputs[port.name] = np.array([tokens], np.int64)
        elif port.name == "position_ids":
            inputs[port.name] = np.arange(len(tokens), dtype=np.int64)[None]
        elif port.name == "attention_mask":
            inputs[port.name] = np.ones((1, len(tokens)), np.int64)
        else:
            inputs[port.name] = np.zeros((1, port.shape[1], CONTEXT, size), np.float32)
    return session.run(["logits"], inputs)[0][0, -1]


def by_onnxruntime(session, prompt, size):
    """Greedy tokens, the smallest distance of the best two scores, the first scores."""
    tokens, gap, head = list(prompt), float("inf"), None
    for _ in range(NEW_TOKENS):
        logits = next_logits(session, tokens, size)
        if head is None:
            head = [round(float(score), 5) for score in logits[:8]]
        best = np.sort(logits)[-2:]
        gap = min(gap, float(best[1] - best[0]))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):], gap, head


def by_genai(model, prompt):
    params = onnxruntime_genai.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=len(prompt) + NEW_TOKENS)
    generator = onnxruntime_genai.Generator(model, params)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[len(prompt):]]


def by_transformers(model, prompt):
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt):]


def make_case(name, kind, prompts, seed, run, others):
    """A case, or none where it would not hold for every correct computation."""
    generated, gaps, heads = zip(*map(run, prompts))
    # Rows that repeat one token would not show what is wrong.
    is_dull = kind == "greedy" and len(set(generated[0])) < 4
    if any(1 in tokens for tokens in generated) or min(gaps) < GAP_MIN or is_dull:
        return None
    confirmed = [other for other, run in others.items() if agrees(run, prompts, list(generated))]
    print(f"{name} {kind}: gap {min(gaps):.4f}, confirmed by {confirmed}", flush=True)
    return {"id": f"family/{name}-{kind}", "model": name, "prompts": prompts, "search": {"do_sample": False},
            "max_new_tokens": NEW_TOKENS, "generated": list(generated), "finish": ["length"] * len(prompts),
            "first_logits_head": list(heads), "min_top2_gap": round(min(gaps), 5), "confirmed_by": confirmed,
            "seed": seed}


def agrees(run, prompts, generated):
    try:
        return [run(prompt) for prompt in prompts] == generated
    except RuntimeError as error:
        print(f"cannot confirm: {error}", flush=True)
        return False


def make_cases(folder, name, scratch, seed):
    """The cases of a folder, which is made; none where one of them would not hold."""
    family, precision, device, options = MODELS[name]
    weights = scratch / family
    torch_model = make_weights(family, weights, seed)
    make_folder(weights, folder / name, precision, device, options)
    # Leave to round activations is not taken, so tokens are those of the same weights without it.
    exact = [option.replace("accuracy_level=4", "accuracy_level=1") for option in options]
    run_from = folder / name if exact == options else scratch / "exact"
    if exact != options:
        make_folder(weights, run_from, precision, device, exact)
    session_options = onnxruntime.SessionOptions()
    for key, value in EXACT_SESSION.items():
        session_options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(str(run_from / "model.onnx"), session_options, providers=["CPUExecutionProvider"])
    size = json.loads((run_from / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    genai_model = onnxruntime_genai.Model(str(run_from))
    others = {f"onnxruntime-genai {onnxruntime_genai.__version__}": lambda prompt: by_genai(genai_model, prompt)}
    if precision == "fp32":
        others[f"transformers {transformers.__version__}"] = lambda prompt: by_transformers(torch_model, prompt)
    cases = []
    for kind, prompts in PROMPTS.items():
        cases.append(make_case(name, kind, prompts, seed, lambda prompt: by_onnxruntime(session, prompt, size), others))
        if cases[-1] is None:
            return None
    return cases


def make_narrow(folder, name, cases, scratch):
    twin, precision, device = NARROW_MODELS[name]
    family = MODELS[twin][0]
    make_weights(family, scratch / family, cases[f"family/{twin}-greedy"]["seed"])
    make_folder(scratch / family, folder / name, precision, device, [])


def main():
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or [*MODELS, *NARROW_MODELS]
    file = folder / "family_cases.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    cases = {case["id"]: case for case in cases}
    builder.AutoConfig = ConfigForBuilder
    builder.SmolLM3Model.make_attention_qk_rope = make_rope_where_there_is_one
    for name in names:
        made, seed = None, SEED
        while made is None:
            with tempfile.TemporaryDirectory() as scratch:
                if name in NARROW_MODELS:
                    made = make_narrow(folder, name, cases, pathlib.Path(scratch)) or []
                else:
                    made = make_cases(folder, name, pathlib.Path(scratch), seed)
            seed += 1
        cases |= {case["id"]: case for case in made}
    order = [f"family/{name}-{kind}" for name in MODELS for kind in PROMPTS]
    made_with = {"onnxruntime": f"{onnxruntime.__version__} (full re-prefill of the whole context for every token)",
                 "folders": f"onnxruntime_genai.models.builder {onnxruntime_genai.__version__}"}
    text = ",\n  ".join(json.dumps(cases[key], separators=(",", ":")) for key in order if key in cases)
    file.write_text(f'{{\n "made_with": {json.dumps(made_with)},\n "cases": [\n  {text}\n ]\n}}\n')


main()
