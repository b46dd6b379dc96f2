"""Snippets in the style of onnxruntime's users, run once with each module: what they compute must be the same.

Each sees `ort` (the module), `np`, `path` (y = x · w + b with a symbolic batch) and leaves its answer in `result`.
"""

import numpy
import onnxruntime
import precast
import pytest

SNIPPETS = {
    "positional_feed": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
result = session.run(None, {session.get_inputs()[0].name: x})[0]
""",
    "named_outputs": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
result = dict(zip(names, session.run(names, {"x": x})))
""",
    "bytes_of_a_file": """
with open(path, "rb") as file:
    session = ort.InferenceSession(file.read(), providers=["CPUExecutionProvider"])
result = session.run(["y"], {"x": x})[0]
""",
    "options": """
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.inter_op_num_threads = 1
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.log_severity_level = 3
options.enable_mem_pattern = True
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
result = (session.get_session_options().intra_op_num_threads, session.run(None, {"x": x})[0])
""",
    "keyword_arguments": """
session = ort.InferenceSession(path_or_bytes=path, sess_options=ort.SessionOptions(), providers=["CPUExecutionProvider"])
result = session.run(output_names=["y"], input_feed={"x": x}, run_options=None)[0]
""",
    "provider_with_options": """
session = ort.InferenceSession(path, providers=[("CPUExecutionProvider", {})])
result = session.run(None, {"x": x})[0]
""",
    "shapes_of_inputs": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
node = session.get_inputs()[0]
result = (node.name, node.type, node.shape, isinstance(node.shape[0], str))
""",
    "fill_symbolic_dims": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
shape = [2 if isinstance(size, str) or size is None else size for size in session.get_inputs()[0].shape]
result = session.run(None, {"x": np.full(shape, 0.5, dtype=np.float32)})[0]
""",
    "metadata": """
meta = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_modelmeta()
result = (meta.producer_name, meta.graph_name, meta.description, meta.version, meta.custom_metadata_map)
""",
    "free_dimension": """
options = ort.SessionOptions()
options.add_free_dimension_override_by_name("batch", 3)
result = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
""",
    "binding_of_arrays": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
result = binding.copy_outputs_to_cpu()[0]
""",
    "binding_of_addresses": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
y = np.empty((3, 3), dtype=np.float32)
binding = session.io_binding()
binding.bind_input(name="x", device_type="cpu", device_id=0, element_type=np.float32, shape=x.shape, buffer_ptr=x.ctypes.data)
binding.bind_output(name="y", device_type="cpu", device_id=0, element_type=np.float32, shape=y.shape, buffer_ptr=y.ctypes.data)
session.run_with_iobinding(binding)
result = y
""",
    "binding_of_values": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
given = ort.OrtValue.ortvalue_from_numpy(x)
made = ort.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
binding = session.io_binding()
binding.bind_ortvalue_input("x", given)
binding.bind_ortvalue_output("y", made)
session.run_with_iobinding(binding)
result = (made.numpy(), made.shape(), made.data_type(), given.is_tensor(), given.has_value())
""",
    "values_in_and_out": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
(value,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(x)})
result = (value.numpy(), value.element_type())
""",
    "values_updated_in_place": """
value = ort.OrtValue.ortvalue_from_numpy(np.zeros((3, 4), dtype=np.float32))
value.update_inplace(x)
result = value.numpy()
""",
    "run_options": """
options = ort.RunOptions()
options.logid = "mine"
result = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x}, options)[0]
""",
    "asynchronous": """
import threading
session, done, seen = ort.InferenceSession(path, providers=["CPUExecutionProvider"]), threading.Event(), []
def callback(outputs, user_data, error):
    seen.append((outputs[0], user_data, error))
    done.set()
session.run_async(["y"], {"x": x}, callback, {"id": 7})
assert done.wait(30)
result = seen[0]
""",
    "threads_on_one_session": """
from concurrent.futures import ThreadPoolExecutor
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
with ThreadPoolExecutor(4) as pool:
    result = list(pool.map(lambda scale: session.run(None, {"x": x * np.float32(scale)})[0], range(8)))
""",
    "batches_of_many_sizes": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
result = [session.run(None, {"x": np.tile(x[:1], (count, 1))})[0].shape for count in (1, 7, 2, 7, 16)]
""",
    "a_wrong_type_is_an_exception": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
try:
    session.run(None, {"x": x.astype(np.float64)})
    result = "no exception"
except Exception as error:
    result = isinstance(error, RuntimeError) or "Argument" in type(error).__name__
""",
    "devices": """
result = (len(ort.get_available_providers()) > 0, ort.get_device(), isinstance(ort.__version__, str))
""",
    "quiet_logger": """
ort.set_default_logger_severity(3)
ort.disable_telemetry_events()
result = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
""",
}


def equal(ours, theirs):
    if isinstance(theirs, numpy.ndarray):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and numpy.allclose(ours, theirs, rtol=1e-5)
    if isinstance(theirs, (list, tuple)):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in theirs)
    return ours == theirs


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_computes_the_same_with_both_modules(linear, name):
    results = []
    for module in [precast, onnxruntime]:
        x = numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(3, 4)
        scope = {"ort": module, "np": numpy, "path": linear, "x": x}
        exec(SNIPPETS[name], scope)
        results.append(scope["result"])
    assert equal(*results), results
