"""A model on Ray Serve: four replicas on one cache of Programs.

    pip install precast "ray[serve]"
    python serve_fleet.py model.onnx
"""

import os
import sys

import numpy
import precast.ray
from ray import serve

app = precast.ray.deployment(
    sys.argv[1],
    num_replicas=4,
    max_batch=64,
    cache=os.path.abspath("precast-cache"),
    ray_actor_options={"num_cpus": 0.25},
)
handle = serve.run(app)
session = precast.InferenceSession(sys.argv[1])
feed = {}
for node in session.get_inputs():
    shape = [size if isinstance(size, int) else 3 for size in node.shape]
    feed[node.name] = numpy.zeros(shape, numpy.float32 if node.type == "tensor(float)" else numpy.int64)
for name, output in precast.ray.infer(handle, feed).items():
    print(name, output.shape)
serve.shutdown()
