"""What a request from Python costs by where its tensors lie: microseconds a call on cuda:0, median of many, with a wait each.

Arguments: a model with one input and one output of floats, and the sizes of the input.
"""

import json
import sys
import time

import numpy
import precast


def median_microseconds(call, turns=2000):
    for _ in range(200):
        call()
    times = []
    for _ in range(turns):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return round(sorted(times)[turns // 2] / 1000, 2)


def main():
    path, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    session = precast.InferenceSession(path, providers=["cuda:0"])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    x = numpy.random.default_rng(0).standard_normal(sizes, dtype=numpy.float32)
    (y,) = session.run(None, {given.name: x})
    on_gpu = precast.OrtValue.ortvalue_from_numpy(x, "cuda", 0)
    bound = session.io_binding()
    bound.bind_ortvalue_input(given.name, on_gpu)
    bound.bind_ortvalue_output(
        made.name, precast.OrtValue.ortvalue_from_shape_and_type(y.shape, numpy.float32, "cuda", 0)
    )
    unsynchronized = precast.RunOptions()
    unsynchronized.add_run_config_entry("disable_synchronize_execution_providers", "1")
    calls = {
        "run, arrays of numpy": lambda: session.run(None, {given.name: x}),
        "run_with_iobinding, both on the GPU": lambda: session.run_with_iobinding(bound),
        "the same, not waited for": lambda: session.run_with_iobinding(bound, unsynchronized),
        "run_with_ort_values, new output on the GPU": lambda: session.run_with_ort_values(None, {given.name: on_gpu}),
    }
    times = {name: median_microseconds(call) for name, call in calls.items()}
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        tensor = torch.from_numpy(x).cuda()
        answer = torch.empty(y.shape, device="cuda")

        def by_dlpack():
            (value,) = session.run_with_ort_values(None, {given.name: precast.OrtValue.from_dlpack(tensor)})
            return torch.from_dlpack(value)

        times["torch to torch by DLPack"] = median_microseconds(by_dlpack)
        by_address = session.io_binding()
        by_address.bind_input(given.name, "cuda", 0, numpy.float32, sizes, tensor.data_ptr())
        by_address.bind_output(made.name, "cuda", 0, numpy.float32, list(y.shape), answer.data_ptr())
        times["torch to torch by bound addresses"] = median_microseconds(lambda: session.run_with_iobinding(by_address))
    print(json.dumps({"model": path.rsplit("/", 1)[-1], "sizes": sizes, "microseconds": times}))


main()
