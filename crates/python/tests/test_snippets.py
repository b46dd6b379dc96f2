"""Snippets in the style of onnxruntime's users, run once with each module: what they compute must be the same.

Each sees `ort` (the module), `np`, `x`, `path` (y = x · w + b with a symbolic batch), `pair` (sum and difference of two inputs)
and `identity(type)` (a model that gives its input back), and leaves its answer in `result`.
"""

import numpy
import onnx
import onnxruntime
import precast
import pytest
from conftest import identity_of

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
    "two_inputs": """
session = ort.InferenceSession(pair)
result = session.run(None, {"a": x, "b": x * 2})
""",
    "feed_by_zip": """
session = ort.InferenceSession(pair)
names = [node.name for node in session.get_inputs()]
result = session.run(None, dict(zip(names, [x, x + 1])))
""",
    "one_of_two_outputs": """
result = ort.InferenceSession(pair).run(["difference"], {"a": x, "b": x * 2})
""",
    "outputs_in_another_order": """
result = ort.InferenceSession(pair).run(["difference", "sum"], {"a": x, "b": x * 2})
""",
    "names_of_outputs_as_a_tuple": """
result = ort.InferenceSession(pair).run(("sum", "difference"), {"a": x, "b": x})
""",
    "outputs_by_name": """
session = ort.InferenceSession(pair)
result = {node.name: value for node, value in zip(session.get_outputs(), session.run(None, {"a": x, "b": x}))}
""",
    "types_and_shapes_of_outputs": """
result = [(node.name, node.type, node.shape) for node in ort.InferenceSession(pair).get_outputs()]
""",
    "one_row_repeated": """
result = ort.InferenceSession(pair).run(["sum"], {"a": x, "b": np.broadcast_to(x[:1], x.shape)})[0]
""",
    "transposed_input": """
result = ort.InferenceSession(pair).run(["sum"], {"a": x.T, "b": x.T})[0]
""",
    "every_second_row": """
result = ort.InferenceSession(path).run(None, {"x": np.concatenate([x, x])[::2]})[0]
""",
    "read_only_input": """
x.setflags(write=False)
result = ort.InferenceSession(path).run(None, {"x": x})[0]
""",
    "fortran_order": """
result = ort.InferenceSession(path).run(None, {"x": np.asfortranarray(x)})[0]
""",
    "other_byte_order_converted": """
result = ort.InferenceSession(path).run(None, {"x": x.astype(">f4").astype(np.float32)})[0]
""",
    "an_empty_batch": """
result = ort.InferenceSession(path).run(None, {"x": np.zeros((0, 4), np.float32)})[0]
""",
    "one_row": """
result = ort.InferenceSession(path).run(None, {"x": x[1:2]})[0]
""",
    "unsqueezed_row": """
result = ort.InferenceSession(path).run(None, {"x": np.expand_dims(x[0], 0)})[0].squeeze()
""",
    "softmax_after_the_model": """
logits = ort.InferenceSession(path).run(None, {"x": x})[0]
exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
result = (exponents / exponents.sum(axis=-1, keepdims=True), logits.argmax(axis=-1))
""",
    "batches_joined": """
session = ort.InferenceSession(path)
parts = np.array_split(np.tile(x, (4, 1)), 5)
result = np.concatenate([session.run(None, {"x": part})[0] for part in parts])
""",
    "outputs_are_the_callers": """
session = ort.InferenceSession(path)
first = session.run(None, {"x": x})[0]
kept = first.copy()
session.run(None, {"x": x * 9})
first += 1
result = first - kept
""",
    "two_sessions_of_one_model": """
result = [ort.InferenceSession(path).run(None, {"x": x})[0] for _ in range(2)]
""",
    "a_path_object": """
import pathlib
result = ort.InferenceSession(pathlib.Path(path)).run(None, {"x": x})[0]
""",
    "the_providers_attribute_of_a_session": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
result = (len(session.get_providers()), type(session.get_provider_options()) is dict)
""",
    "no_overridable_initializers": """
result = [node.name for node in ort.InferenceSession(path).get_overridable_initializers()]
""",
    "a_missing_input_is_an_exception": """
try:
    ort.InferenceSession(pair).run(None, {"a": x})
    result = "no exception"
except Exception as error:
    result = "b" in str(error)
""",
    "an_unknown_input_is_an_exception": """
try:
    ort.InferenceSession(path).run(None, {"x": x, "nonsense": x})
    result = "no exception"
except Exception as error:
    result = "nonsense" in str(error)
""",
    "an_unknown_output_is_an_exception": """
try:
    ort.InferenceSession(path).run(["nonsense"], {"x": x})
    result = "no exception"
except Exception as error:
    result = "nonsense" in str(error)
""",
    "a_wrong_rank_is_an_exception": """
try:
    ort.InferenceSession(path).run(None, {"x": x[0]})
    result = "no exception"
except Exception as error:
    result = isinstance(error, Exception)
""",
    "a_missing_file_is_an_exception": """
try:
    ort.InferenceSession(path + ".nowhere")
    result = "no exception"
except Exception as error:
    result = "nowhere" in str(error)
""",
    "bytes_that_are_no_model_are_an_exception": """
try:
    ort.InferenceSession(b"no model")
    result = "no exception"
except Exception:
    result = "an exception"
""",
    "config_entries": """
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
result = options.get_session_config_entry("session.disable_cpu_ep_fallback")
""",
    "log_identity": """
options = ort.SessionOptions()
options.logid = "mine"
options.log_verbosity_level = 0
result = (options.logid, ort.InferenceSession(path, options).run(None, {"x": x})[0])
""",
    "half_precision": """
values = np.linspace(-2, 2, 5).astype(np.float16)
result = ort.InferenceSession(identity("FLOAT16")).run(None, {"x": values})[0]
""",
    "integers_and_flags": """
integers = ort.InferenceSession(identity("INT64")).run(None, {"x": np.arange(5)})[0]
flags = ort.InferenceSession(identity("BOOL")).run(None, {"x": np.array([True, False])})[0]
result = (integers, flags)
""",
    "texts": """
session = ort.InferenceSession(identity("STRING"))
result = (session.get_inputs()[0].type, list(session.run(None, {"x": np.array(["one", "two"], dtype=object)})[0]))
""",
    "value_from_numpy": """
value = ort.OrtValue.ortvalue_from_numpy(x)
result = (value.shape(), value.data_type(), value.device_name(), value.data_ptr() != 0, value.is_sparse_tensor())
""",
    "values_of_every_type": """
types = (np.float32, np.float64, np.float16, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_)
result = [ort.OrtValue.ortvalue_from_numpy(np.zeros(2, kind)).data_type() for kind in types]
""",
    "binding_kept_for_many_runs": """
session = ort.InferenceSession(path)
given, y = np.zeros_like(x), ort.OrtValue.ortvalue_from_shape_and_type([3, 3], np.float32)
binding = session.io_binding()
binding.bind_input("x", "cpu", 0, np.float32, given.shape, given.ctypes.data)
binding.bind_ortvalue_output("y", y)
result = []
for scale in (1, 2, 3):
    given[:] = x * scale
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    result.append(y.numpy().copy())
""",
    "outputs_of_a_binding_are_inputs_of_the_next": """
session = ort.InferenceSession(pair)
binding = session.io_binding()
binding.bind_cpu_input("a", x)
binding.bind_cpu_input("b", x)
binding.bind_output("sum")
binding.bind_output("difference")
session.run_with_iobinding(binding)
(total, _) = binding.get_outputs()
binding.clear_binding_inputs()
binding.bind_ortvalue_input("a", total)
binding.bind_ortvalue_input("b", total)
session.run_with_iobinding(binding)
result = binding.copy_outputs_to_cpu()
""",
    "pickled_as_its_path": """
class Pickled:
    def __init__(self, path):
        self.path, self.session = path, ort.InferenceSession(path)
    def __getstate__(self):
        return {"path": self.path}
    def __setstate__(self, state):
        self.__init__(state["path"])
original = Pickled(path)
copied = Pickled.__new__(Pickled)
copied.__setstate__(original.__getstate__())
result = copied.session.run(None, {"x": x})[0]
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
def test_a_snippet_computes_the_same_with_both_modules(linear, two_outputs, models, name):
    def identity(element_type):
        return identity_of(models, onnx.TensorProto.DataType.Value(element_type), f"identity_{element_type}")

    results = []
    for module in [precast, onnxruntime]:
        x = numpy.linspace(-1, 1, 12, dtype=numpy.float32).reshape(3, 4)
        scope = {"ort": module, "np": numpy, "path": linear, "pair": two_outputs, "identity": identity, "x": x}
        exec(SNIPPETS[name], scope)
        results.append(scope["result"])
    assert equal(*results), results


def test_there_are_sixty_snippets():
    assert len(SNIPPETS) >= 60
