"""Run a model with onnxruntime on the CPU.

ort_run.py run MODEL THREADS LEVEL FOLDER...   run the inputs of every FOLDER, write its outputs beside them
ort_run.py measure MODEL THREADS LEVEL FOLDER  print the median milliseconds of a run for each line read from stdin,
                                               which is the number of seconds to measure for

LEVEL is "optimised", or "as-written" for a run of the graph without any rewriting.

A FOLDER holds names.json with the names of the inputs, and input_0.npy, input_1.npy, ... in that order. The outputs
are written as output_0.npy, ... in the order that the model declares them.
"""
import json
import os
import statistics
import sys
import time

import numpy as np
import onnxruntime

WARM_UP_RUNS = 2
LEVELS = {
    "optimised": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "as-written": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def open_session(model, threads, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def read_inputs(folder):
    with open(os.path.join(folder, "names.json"), encoding="utf-8") as file:
        names = json.load(file)
    return {name: np.load(os.path.join(folder, f"input_{i}.npy")) for i, name in enumerate(names)}


def run(session, folder):
    for i, output in enumerate(session.run(None, read_inputs(folder))):
        np.save(os.path.join(folder, f"output_{i}.npy"), np.asarray(output, order="C"))


def measure(session, folder):
    inputs = read_inputs(folder)
    for _ in range(WARM_UP_RUNS):
        session.run(None, inputs)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            session.run(None, inputs)
            times.append(time.perf_counter() - start)
        print(json.dumps({"ms": statistics.median(times) * 1e3}), flush=True)


def main():
    command, model, threads, level, *folders = sys.argv[1:]
    session = open_session(model, int(threads), level)
    for folder in folders:
        if command == "run":
            run(session, folder)
        else:
            measure(session, folder)


if __name__ == "__main__":
    main()
