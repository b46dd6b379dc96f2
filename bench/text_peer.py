"""Measures one peer on one model, in this process: text_peer.py genai FOLDER | llama FILE, then PROMPT NEW THREADS.

Prints one JSON object: prompt tokens a second, new tokens a second (greedy, end tokens ignored), milliseconds to the first
token and the peak of resident memory in MB. Each is the median of three runs after one that is not counted.
"""

import json
import resource
import statistics
import sys
import time

RUNS = 3


def genai(path, threads):
    import onnxruntime_genai as og

    config = og.Config(path)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)

    def run(prompt, new):
        params = og.GeneratorParams(model)
        length = len(prompt) + new + 1
        params.set_search_options(do_sample=False, min_length=length, max_length=length)
        generator = og.Generator(model, params)
        begin = time.perf_counter()
        generator.append_tokens(prompt)
        read = time.perf_counter()
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new - 1):
            generator.generate_next_token()
        return read - begin, first - begin, time.perf_counter() - first

    return run


def llama(path, threads):
    import llama_cpp
    import numpy

    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def run(prompt, new):
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = len(prompt) + new + 8, 512, 512
        options.n_threads, options.n_threads_batch = threads, threads
        context = llama_cpp.llama_init_from_model(model, options)

        def decode(tokens):
            array = (llama_cpp.llama_token * len(tokens))(*tokens)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
                raise SystemExit("llama.cpp could not run a batch")
            scores = llama_cpp.llama_get_logits_ith(context, -1)
            return int(numpy.argmax(numpy.ctypeslib.as_array(scores, (vocabulary,))))

        begin = time.perf_counter()
        token = decode(prompt)
        first = time.perf_counter()
        for _ in range(new - 1):
            token = decode([token])
        end = time.perf_counter()
        llama_cpp.llama_free(context)
        return first - begin, first - begin, end - first

    return run


def main():
    peer, path, prompt, new, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    run = {"genai": genai, "llama": llama}[peer](path, threads)
    tokens = [100 + (7 * i) % 4000 for i in range(prompt)]
    short = tokens[:8]
    run(short, 8)
    prompts = [run(tokens, 1) for _ in range(RUNS)]
    decodes = [run(short, new) for _ in range(RUNS)]
    median = lambda values: statistics.median(values)
    print(
        json.dumps(
            {
                "prompt_per_s": prompt / median(read for read, _, _ in prompts),
                "new_per_s": (new - 1) / median(rest for _, _, rest in decodes),
                "first_ms": 1e3 * median(first for _, first, _ in prompts),
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
