"""Run every model of a folder of folders on onnxruntime, plain and optimised: fuzz_ort.py FOLDER

Each FOLDER/SEED/ holds model.onnx and input_I.npy; plain_J.npy and optimised_J.npy are written beside them. A model that
onnxruntime cannot run leaves error.txt instead.
"""
import os
import sys

import numpy
import onnxruntime


def run(folder, level, prefix):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    path = os.path.join(folder, "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    inputs = {name: numpy.load(os.path.join(folder, f"input_{i}.npy")) for i, name in enumerate(names)}
    if any(array.dtype.kind == "V" for array in inputs.values()):
        raise ValueError("an input has a type that numpy lacks")
    outputs = session.run(None, inputs)
    for j, output in enumerate(outputs):
        numpy.save(os.path.join(folder, f"{prefix}_{j}.npy"), output)


def main():
    (root,) = sys.argv[1:]
    levels = onnxruntime.GraphOptimizationLevel
    for seed in sorted(os.listdir(root)):
        folder = os.path.join(root, seed)
        if not os.path.isdir(folder):
            continue
        try:
            run(folder, levels.ORT_DISABLE_ALL, "plain")
            run(folder, levels.ORT_ENABLE_ALL, "optimised")
        except Exception as error:  # what it cannot run it does not judge
            with open(os.path.join(folder, "error.txt"), "w") as file:
                file.write(" ".join(str(error).split())[:200])


if __name__ == "__main__":
    main()
