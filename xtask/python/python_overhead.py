"""Measures what one call of `run` costs on a model, for the module that is named, whenever a line comes on stdin."""

import importlib
import json
import sys
import time

import numpy

MODULE, MODEL, CALL = sys.argv[1:4]
# Calls between two looks at the clock.
CHUNK = 200


def opened():
    module = importlib.import_module(MODULE)
    options = module.SessionOptions()
    options.intra_op_num_threads = 1
    return module.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])


def feed_of(session):
    names = [(node.name, [size if isinstance(size, int) else 1 for size in node.shape], node.type) for node in session.get_inputs()]
    types = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64}
    return {name: numpy.ones(shape, types[kind]) for name, shape, kind in names}


def caller(session):
    """The call to measure, without arguments."""
    feed = feed_of(session)
    if CALL == "run":
        return lambda run=session.run: run(None, feed)
    if CALL == "run-named":
        names = [node.name for node in session.get_outputs()]
        return lambda run=session.run: run(names, feed)
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    outputs = session.run(None, feed)
    for node, output in zip(session.get_outputs(), outputs):
        shape, kind = list(output.shape), output.dtype.type
        binding.bind_output(node.name, "cpu", 0, kind, shape, output.ctypes.data)
    # Memory that is bound by its address is kept by nobody else.
    return lambda run=session.run_with_iobinding, kept=(feed, outputs): run(binding)


def measure(call, seconds):
    """Best mean of a chunk of calls, in microseconds: what is left when nothing else gets in the way."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(CHUNK):
            call()
        best = min(best, (time.perf_counter() - begun) / CHUNK)
    return best * 1e6


def main():
    call = caller(opened())
    measure(call, 0.2)
    for line in sys.stdin:
        print(json.dumps(measure(call, json.loads(line))), flush=True)


main()
