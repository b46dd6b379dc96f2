"""`InferenceSession`: what scripts for onnxruntime do with it, and what they are told when they go wrong."""

import logging
import re
import subprocess
import sys
import textwrap
import threading

import numpy
import onnx
import onnxruntime
import precast
import pytest
from onnx import TensorProto, helper

from conftest import ROOT, identity_of, save


def rows(count, seed=0):
    return numpy.random.default_rng(seed).standard_normal((count, 4), dtype=numpy.float32)


def test_a_script_in_the_style_of_onnxruntimes_tutorial_runs_with_another_import(linear):
    script = textwrap.dedent(
        """
        import sys
        import numpy as np
        import MODULE as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        session = ort.InferenceSession(sys.argv[1], sess_options=options, providers=["CPUExecutionProvider"])
        input_name = session.get_inputs()[0].name
        output_name = session.get_outputs()[0].name
        x = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)
        prediction = session.run([output_name], {input_name: x})[0]
        meta = session.get_modelmeta()
        print(input_name, output_name, prediction.shape, prediction.dtype, meta.producer_name, meta.graph_name)
        print(session.get_inputs()[0].shape, session.get_inputs()[0].type)
        print(np.array2string(prediction, precision=4))
        """
    )
    outputs = []
    for module in ["onnxruntime", "precast"]:
        code = script.replace("MODULE", module)
        ran = subprocess.run([sys.executable, "-c", code, linear], capture_output=True, text=True, check=True)
        outputs.append(ran.stdout)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("provider", ["cpu", "CPUExecutionProvider", "CPU", ("CPUExecutionProvider", {})])
def test_every_name_of_the_cpu_is_the_cpu(linear, provider):
    assert precast.InferenceSession(linear, providers=[provider]).get_providers() == ["cpu"]


@pytest.mark.parametrize(
    "provider", ["amdgpu", "AMDGPUExecutionProvider", "MIGraphXExecutionProvider", "ROCMExecutionProvider", "hip:0"]
)
def test_a_gpu_that_is_not_there_is_announced_and_the_next_provider_taken(linear, provider, caplog):
    if "hip:0" in precast.get_available_providers():
        pytest.skip("this machine has such a GPU")
    with caplog.at_level(logging.WARNING, logger="precast"):
        session = precast.InferenceSession(linear, providers=[provider, "CPUExecutionProvider"])
    assert session.get_providers() == ["cpu"]
    assert "'hip:0' cannot be used, 'cpu' is tried instead" in caplog.text
    with pytest.raises(precast.DeviceError):
        precast.InferenceSession(linear, providers=[provider])


def test_a_misspelt_provider_is_an_error_with_a_suggestion(linear):
    with pytest.raises(precast.UsageError, match="there is no device 'cpuu'; devices are: .*Did you mean 'cpu'"):
        precast.InferenceSession(linear, providers=["cpuu"])
    with pytest.raises(precast.UsageError, match="'OpenVINOExecutionProvider' is not supported; devices are"):
        precast.InferenceSession(linear, providers=["OpenVINOExecutionProvider"])


def test_answers_are_those_of_onnxruntime_at_any_batch(linear):
    ours, theirs = precast.InferenceSession(linear), onnxruntime.InferenceSession(linear)
    for count in [1, 3, 8, 1, 5]:
        x = rows(count, count)
        numpy.testing.assert_allclose(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0], rtol=1e-5)


def test_the_model_of_the_readme_runs_on_buckets(readme_model):
    session = precast.InferenceSession(readme_model, max_batch=8, startup="all")
    theirs = onnxruntime.InferenceSession(readme_model)
    generator = numpy.random.default_rng(0)
    feed = {}
    for node in theirs.get_inputs():
        shape = [size if isinstance(size, int) else 3 for size in node.shape]
        is_float = node.type == "tensor(float)"
        feed[node.name] = (
            generator.random(shape, dtype=numpy.float32) if is_float else numpy.ones(shape, dtype=numpy.int64)
        )
    for ours, other in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
        numpy.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)
    assert session.buckets == [1, 2, 4, 8]
    assert (session.last_run.fit, session.last_run.pad_rows) in [("padded", 1), ("split", 0)]


def test_outputs_come_in_the_order_in_which_they_are_named(two_outputs):
    session = precast.InferenceSession(two_outputs)
    a, b = numpy.ones((2, 2), numpy.float32), numpy.full((2, 2), 3, numpy.float32)
    difference, total = session.run(["difference", "sum"], {"a": a, "b": b})
    assert difference[0, 0] == -2 and total[0, 0] == 4
    assert [output[0, 0] for output in session.run(None, {"b": b, "a": a})] == [4, -2]
    assert len(session.run([], {"a": a, "b": b})) == 2


def test_what_a_session_says_about_its_model(linear):
    session = precast.InferenceSession(linear)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["batch", 4])
    assert (y.name, y.type, y.shape) == ("y", "tensor(float)", ["batch", 3])
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.description) == ("precast tests", "linear", "a product and a sum")
    assert session.get_overridable_initializers() == []
    assert session.get_provider_options() == {"cpu": {}}
    assert session.get_session_options().intra_op_num_threads == 0


def test_a_model_may_be_bytes(linear):
    session = precast.InferenceSession(open(linear, "rb").read())
    assert session.run(None, {"x": rows(2)})[0].shape == (2, 3)


@pytest.mark.parametrize(
    "feed, message",
    [
        ({"z": rows(1)}, r"there is no input 'z'; there are 'x'"),
        ({}, "input 'x' is not given"),
        ({"x": rows(1), "extra": rows(1)}, "there is no input 'extra'"),
        ({"x": rows(1).astype(numpy.float64)}, r"input 'x' is f64\[1,4\]; the model expects f32\[batch,4\]"),
        ({"x": rows(1)[:, :3]}, r"input 'x' is f32\[1,3\]; the model expects f32\[batch,4\]"),
        ({"x": rows(1)[0]}, r"input 'x' is f32\[4\]; the model expects f32\[batch,4\]"),
        ({"x": rows(1).astype(numpy.complex64)}, "input 'x' is an array of complex64; the model expects f32"),
        ({"x": "a text"}, "input 'x' is an array of <U6; the model expects f32"),
    ],
)
def test_requests_that_do_not_fit_say_why(linear, feed, message):
    session = precast.InferenceSession(linear)
    session.run(None, {"x": rows(1)})
    with pytest.raises(precast.UsageError, match=message) as raised:
        session.run(None, feed)
    assert raised.value.code == 2 and isinstance(raised.value, ValueError)
    assert session.run(None, {"x": rows(1)})[0].shape == (1, 3)


def test_the_text_of_an_exception_is_that_of_the_command_line(models):
    path = models / "broken.onnx"
    path.write_bytes(b"this is no model")
    with pytest.raises(precast.UnsupportedModel, match="^not a valid ONNX file: field 14 is a group") as raised:
        precast.InferenceSession(str(path))
    assert raised.value.code == 3
    with pytest.raises(precast.UsageError, match="no-such-file.onnx"):
        precast.InferenceSession("no-such-file.onnx")


def test_a_model_with_an_unknown_operator_is_not_supported(models):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="nobody.knows")
    graph = helper.make_graph(
        [node],
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("nobody.knows", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(precast.UnsupportedModel, match="Frobnicate") as raised:
        precast.InferenceSession(model.SerializeToString())
    assert raised.value.code == 3


def test_unknown_outputs_and_options_are_refused(linear):
    session = precast.InferenceSession(linear)
    with pytest.raises(precast.UsageError, match="there is no output 'z'; there are 'y'"):
        session.run(["z"], {"x": rows(1)})
    with pytest.raises(precast.UsageError, match="there is no option 'max_bach'.*Did you mean 'max_batch'"):
        precast.InferenceSession(linear, max_bach=4)
    with pytest.raises(precast.UsageError, match="startup: 'eager' is given"):
        precast.InferenceSession(linear, startup="eager")
    with pytest.raises(AttributeError, match="intra_op_num_threads"):
        precast.SessionOptions().intra_op_num_thread = 2
    with pytest.raises(precast.UsageError, match="ORT_PARALLEL cannot be honoured"):
        precast.SessionOptions().execution_mode = precast.ExecutionMode.ORT_PARALLEL
    with pytest.raises(AttributeError, match="InferenceSession"):
        precast.InferenceSesion


def test_options_of_onnxruntime_reach_the_session(linear):
    options = precast.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_free_dimension_override_by_name("batch", 2)
    session = precast.InferenceSession(linear, options)
    assert session.run(None, {"x": rows(2)})[0].shape == (2, 3)
    with pytest.raises(precast.UsageError, match=r"input 'x' is f32\[3,4\]; the model expects f32\[2,4\]"):
        session.run(None, {"x": rows(3)})


def test_names_of_onnxruntime_that_are_missing_are_in_the_documentation():
    text = (ROOT / "docs" / "python.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text[text.index("## What onnxruntime has") :]))
    # What a module happens to import is no part of its surface.
    incidental = {"capi", "contextlib", "onnxruntime_validation", "import_capi_exception", "package_name", "version"}

    def public(thing):
        return {name for name in dir(thing) if not name.startswith("_")}

    missing = public(onnxruntime) - public(precast) - incidental
    for name in ["InferenceSession", "OrtValue", "IOBinding", "RunOptions", "NodeArg", "ModelMetadata"]:
        missing |= public(getattr(onnxruntime, name)) - public(getattr(precast, name))
    missing |= public(onnxruntime.SessionOptions()) - public(precast.SessionOptions())
    assert sorted(missing - documented) == []
    assert not documented & (public(precast) | public(precast.InferenceSession)), "documented as missing, and there"


def test_providers_may_come_with_the_options(linear):
    options = precast.SessionOptions()
    options.add_provider("CPUExecutionProvider", {})
    assert options.has_providers() and precast.InferenceSession(linear, options).get_providers() == ["cpu"]


def test_a_terminated_run_is_refused(linear):
    session, options = precast.InferenceSession(linear), precast.RunOptions()
    session.run(None, {"x": rows(1)}, options)
    options.terminate = True
    with pytest.raises(precast.UsageError, match="terminate"):
        session.run(None, {"x": rows(1)}, options)
    with pytest.raises(precast.UsageError, match="a Program computes all outputs"):
        options.only_execute_path_to_fetches = True
    with pytest.raises(precast.UsageError, match="there is no option 'gpu_graph_id' of a run"):
        options.add_run_config_entry("gpu_graph_id", "1")


def test_run_async_calls_back(linear):
    session, done, seen = precast.InferenceSession(linear), threading.Event(), []

    def callback(outputs, user_data, error):
        seen.append((outputs, user_data, error))
        done.set()

    session.run_async(None, {"x": rows(2)}, callback, "mine")
    assert done.wait(30)
    outputs, user_data, error = seen[0]
    assert outputs[0].shape == (2, 3) and (user_data, error) == ("mine", "")
    done.clear()
    session.run_async(None, {"z": rows(2)}, callback, None)
    assert done.wait(30)
    assert "there is no input 'z'" in seen[1][2]


def test_every_element_type_of_numpy_goes_through(models):
    types = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
    for name in [*types, "bool"]:
        element_type = helper.np_dtype_to_tensor_dtype(numpy.dtype(name))
        session = precast.InferenceSession(identity_of(models, element_type, f"identity_{name}"))
        x = numpy.array([0, 1, 1], dtype=name)
        (y,) = session.run(None, {"x": x})
        assert y.dtype == x.dtype and (y == x).all()


def test_types_that_numpy_lacks_come_from_ml_dtypes(models):
    import ml_dtypes

    session = precast.InferenceSession(identity_of(models, TensorProto.BFLOAT16, "identity_bfloat16"))
    x = numpy.array([1.5, -2, 3], dtype=ml_dtypes.bfloat16)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == ml_dtypes.bfloat16 and (y == x).all()
    bits = precast.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(numpy.uint16), TensorProto.BFLOAT16)
    (value,) = session.run_with_ort_values(None, {"x": bits})
    assert value.data_type() == "tensor(bfloat16)" and (value.numpy() == x).all()


@pytest.mark.parametrize("name", ["int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_narrow_types_go_through(models, name):
    import ml_dtypes

    dtype = numpy.dtype(getattr(ml_dtypes, name))
    session = precast.InferenceSession(identity_of(models, helper.np_dtype_to_tensor_dtype(dtype), f"identity_{name}"))
    x = numpy.array([0, 1, 2] if name.startswith("u") else [0, 1, -2], dtype=dtype)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == dtype and y.tolist() == x.tolist()
    (value,) = session.run_with_ort_values(None, {"x": precast.OrtValue.ortvalue_from_numpy(x)})
    assert value.numpy().tolist() == x.tolist()


def test_every_element_type_of_onnx_but_text_and_complex_numbers_can_be_held():
    held = [number for number in range(1, 27) if number not in (TensorProto.STRING, 14, 15)]
    for number in held:
        value = precast.OrtValue.ortvalue_from_shape_and_type([3], number)
        assert value.element_type() == number and value.tensor_size_in_bytes() in (3, 6, 12, 24)
        assert value.data_type() == f"tensor({TensorProto.DataType.Name(number).lower()})"


def test_strings_and_sequences_are_arrays_of_objects_and_lists(models):
    node = helper.make_node("StringConcat", ["a", "b"], ["y"])
    string = TensorProto.STRING
    path = save(models, "strings", [node], [("a", string, ["n"]), ("b", string, ["n"])], [("y", string, ["n"])])
    session = precast.InferenceSession(path)
    assert session.get_inputs()[0].type == "tensor(string)"
    (y,) = session.run(None, {"a": numpy.array(["ab", "c"]), "b": numpy.array(["x", "yz"], dtype=object)})
    assert y.tolist() == ["abx", "cyz"] and y.dtype == object

    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["a", "b"], ["s"])],
        "sequence",
        [helper.make_tensor_value_info(name, float32, ["n"]) for name in ["a", "b"]],
        [helper.make_tensor_sequence_value_info("s", float32, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = precast.InferenceSession(model.SerializeToString())
    assert session.get_outputs()[0].type == "seq(tensor(float))"
    (s,) = session.run(None, {"a": numpy.zeros(2, numpy.float32), "b": numpy.ones(2, numpy.float32)})
    assert [element.tolist() for element in s] == [[0, 0], [1, 1]]


def test_sizes_that_depend_on_values_run_part_by_part(models):
    node = helper.make_node("NonZero", ["x"], ["y"])
    path = save(models, "nonzero", [node], [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.INT64, [1, "m"])])
    session = precast.InferenceSession(path)
    assert session.run(None, {"x": numpy.array([0, 2, 0, 1], numpy.float32)})[0].tolist() == [[1, 3]]
    assert session.last_run.path == "parts"
    assert session.run(None, {"x": numpy.array([5], numpy.float32)})[0].tolist() == [[0]]


def test_empty_batches_and_scalars(models, linear):
    session = precast.InferenceSession(linear, max_batch=4)
    assert session.run(None, {"x": rows(0)})[0].shape == (0, 3)
    node = helper.make_node("Neg", ["x"], ["y"])
    path = save(models, "scalar", [node], [("x", TensorProto.FLOAT, [])], [("y", TensorProto.FLOAT, [])])
    (y,) = precast.InferenceSession(path).run(None, {"x": numpy.float32(2).reshape(())})
    assert y.shape == () and y == -2


def test_lists_are_taken_where_numpy_makes_the_right_array_of_them(models):
    session = precast.InferenceSession(identity_of(models, TensorProto.INT64, "identity_list"))
    assert session.run(None, {"x": [1, 2, 3]})[0].tolist() == [1, 2, 3]
    assert session.last_run.copies == 1
