"""Measure a model with OpenVINO on the CPU, in f32, for the lowest latency.

ov_run.py MODEL THREADS FOLDER     print the median milliseconds of a run for each line read from stdin, which is the
                                   number of seconds to measure for

The FOLDER is that of ort_run.py. Inputs are shared, not copied, and outputs stay where OpenVINO writes them.
"""
import json
import os
import statistics
import sys
import time

import numpy as np
import openvino

WARM_UP_RUNS = 2


def read_inputs(folder):
    with open(os.path.join(folder, "names.json"), encoding="utf-8") as file:
        names = json.load(file)
    return {name: np.load(os.path.join(folder, f"input_{i}.npy")) for i, name in enumerate(names)}


def main():
    model_path, threads, folder = sys.argv[1:]
    inputs = read_inputs(folder)
    core = openvino.Core()
    model = core.read_model(model_path)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    hints = {"INFERENCE_NUM_THREADS": int(threads), "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", hints).create_infer_request()
    for _ in range(WARM_UP_RUNS):
        request.infer(inputs, share_inputs=True, share_outputs=True)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            request.infer(inputs, share_inputs=True, share_outputs=True)
            times.append(time.perf_counter() - start)
        print(json.dumps({"ms": statistics.median(times) * 1e3}), flush=True)


if __name__ == "__main__":
    main()
