"""Run a model with onnxruntime on the CPU.

ort_run.py run MODEL THREADS FOLDER...         run the inputs of every FOLDER, write its outputs beside them
ort_run.py open MODEL THREADS                  print the milliseconds that making a session takes
ort_run.py peak MODEL THREADS FOLDER           print the most memory that the process had, in MiB, after its imports and
                                               after a session was made and the inputs of FOLDER were run once
ort_run.py measure MODEL THREADS FOLDER        print the median milliseconds of a run for each line read from stdin,
                                               which is the number of seconds to measure for

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


def open_session(model, threads):
    options = onnxruntime.SessionOptions()
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


def make_runner(session, inputs):
    """A function that runs once. Buffers are bound once, as on our side: Python's handling of the arguments is not
    what is measured. A model that declares a wrong rank for an output cannot be bound and is run plainly."""
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    try:
        for _ in range(WARM_UP_RUNS):
            session.run_with_iobinding(binding)
        return lambda: session.run_with_iobinding(binding)
    except RuntimeError:
        return lambda: session.run(None, inputs)


def measure(session, folder):
    inputs = read_inputs(folder)  # kept here: a binding may point into these arrays
    run_once = make_runner(session, inputs)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            run_once()
            times.append(time.perf_counter() - start)
        print(json.dumps({"ms": statistics.median(times) * 1e3}), flush=True)


def peak_mb():
    with open("/proc/self/status", encoding="utf-8") as file:
        peak = next(line for line in file if line.startswith("VmHWM:"))
    return int(peak.split()[1]) / 1024


def peak(model, threads, folder):
    imports_mb = peak_mb()
    open_session(model, threads).run(None, read_inputs(folder))
    print(json.dumps({"imports_mb": imports_mb, "peak_mb": peak_mb()}))


def main():
    command, model, threads, *folders = sys.argv[1:]
    if command == "peak":
        return peak(model, int(threads), folders[0])
    if command == "open":
        start = time.perf_counter()
        open_session(model, int(threads))
        return print(json.dumps({"ms": (time.perf_counter() - start) * 1e3}))
    session = open_session(model, int(threads))
    for folder in folders:
        if command == "run":
            run(session, folder)
        else:
            measure(session, folder)


if __name__ == "__main__":
    main()
