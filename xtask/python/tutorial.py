import sys

import numpy as np
import precast as ort

print("devices:", ort.get_available_providers())
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = 2
session = ort.InferenceSession(
    sys.argv[1], sess_options=options, providers=["amdgpu", "CUDAExecutionProvider", "CPUExecutionProvider"]
)

inputs = {}
for node in session.get_inputs():
    shape = [size if isinstance(size, int) else 4 for size in node.shape]
    kind = np.float32 if node.type == "tensor(float)" else np.int64
    inputs[node.name] = np.zeros(shape, dtype=kind)
output_names = [node.name for node in session.get_outputs()]
outputs = session.run(output_names, inputs)

print("providers:", session.get_providers())
for name, output in zip(output_names, outputs):
    print(name, output.dtype, output.shape)
