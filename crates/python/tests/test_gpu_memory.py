"""Tensors on a GPU stay there: values, bindings and DLPack, on whatever CUDA driver there is, which may be a fake one."""

import ctypes
import gc
import threading

import numpy
import precast
import pytest
from onnx import TensorProto, helper

from conftest import save

pytestmark = pytest.mark.skipif("cuda:0" not in precast.get_available_providers(), reason="there is no GPU")
try:
    import torch
except ImportError:
    torch = None
try:
    import cupy
except ImportError:
    cupy = None
with_torch = pytest.mark.skipif(torch is None or not torch.cuda.is_available(), reason="there is no torch with a GPU")
with_cupy = pytest.mark.skipif(cupy is None, reason="there is no cupy")


def rows(count, seed=0):
    return numpy.random.default_rng(seed).standard_normal((count, 4), dtype=numpy.float32)


def on_gpu(array):
    return precast.OrtValue.ortvalue_from_numpy(array, "cuda", 0)


@pytest.fixture(autouse=True)
def no_rule_is_violated():
    """The fake driver, where it is the driver, has nothing to say of what was called."""
    yield
    violations = getattr(ctypes.CDLL("libcuda.so.1"), "fake_driver_violations", None)
    if violations is not None:
        text = ctypes.create_string_buffer(1 << 16)
        violations(text, ctypes.c_size_t(len(text)))
        assert text.value == b""


@pytest.fixture(scope="module")
def session(linear):
    return precast.InferenceSession(linear, providers=["cuda:0"])


@pytest.fixture(scope="module")
def expected(linear):
    """What the CPU gives for an array of rows."""
    reference = precast.InferenceSession(linear, providers=["cpu"])
    return lambda x: reference.run(None, {"x": x})[0]


def near(found, expected):
    numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Foreign:
    """A tensor of another library on a GPU, which speaks DLPack and remembers what it was asked."""

    def __init__(self, value, is_old=False):
        self.value, self.is_old, self.asked = value, is_old, []

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()

    def __dlpack__(self, **arguments):
        self.asked.append(arguments)
        if self.is_old and "max_version" in arguments:
            raise TypeError("version 0 knows no such argument")
        return self.value.__dlpack__(**arguments)


def test_values_lie_on_the_gpu_and_come_back():
    x = rows(3)
    value = on_gpu(x)
    assert (value.device_name(), value.__dlpack_device__()) == ("cuda", (2, 0))
    assert value.shape() == [3, 4] and value.data_ptr() != 0 and "at cuda:0" in repr(value)
    assert (value.numpy() == x).all()
    value.update_inplace(x + 1)
    assert (value.numpy() == x + 1).all()
    with pytest.raises(precast.UsageError, match=r"f32\[2, 4\] is given"):
        value.update_inplace(rows(2))
    made = precast.OrtValue.ortvalue_from_shape_and_type([2, 5], numpy.int64, "cuda", 0)
    assert (made.shape(), made.element_type(), made.device_name()) == ([2, 5], TensorProto.INT64, "cuda")
    assert (on_gpu(numpy.asfortranarray(x)).numpy() == x).all()


def test_devices_that_are_not_there_say_so():
    with pytest.raises(precast.DeviceError, match="there is no device 'cuda:99'"):
        precast.OrtValue.ortvalue_from_numpy(rows(1), "cuda", 99)
    with pytest.raises(precast.UsageError, match="there is no device 'cudda:0'.*Did you mean 'cuda'"):
        precast.OrtValue.ortvalue_from_numpy(rows(1), "cudda", 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_bound_values_are_read_and_written_where_they_lie(session, expected, count):
    x = rows(count, count)
    given, made = on_gpu(x), precast.OrtValue.ortvalue_from_shape_and_type([count, 3], numpy.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", made)
    for _ in range(3):
        session.run_with_iobinding(binding)
    assert session.last_run.copies == 0
    near(made.numpy(), expected(x))
    given.update_inplace(x * 2)
    session.run_with_iobinding(binding)
    near(made.numpy(), expected(x * 2))
    assert binding.get_outputs()[0].data_ptr() == made.data_ptr()


def test_addresses_on_the_gpu_are_bound_in_place(session, expected):
    x = rows(5)
    given, made = on_gpu(x), precast.OrtValue.ortvalue_from_shape_and_type([5, 3], numpy.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, numpy.float32, [5, 4], given.data_ptr())
    binding.bind_output("y", "cuda", 0, numpy.float32, [5, 3], made.data_ptr())
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    near(made.numpy(), expected(x))
    with pytest.raises(precast.UsageError, match="0x[0-9a-f]+ is no memory of device 0"):
        binding.bind_input("x", "cuda", 0, numpy.float32, [5, 4], x.ctypes.data)


def test_rows_of_a_larger_tensor_are_bound_by_their_address(session, expected):
    """Addresses that kernels cannot take as they lie are taken all the same."""
    x = rows(6)
    given = on_gpu(x.reshape(-1))
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, numpy.float32, [5, 4], given.data_ptr() + 4)
    binding.bind_output("y", "cuda", 0)
    session.run_with_iobinding(binding)
    near(binding.get_outputs()[0].numpy(), expected(x.reshape(-1)[1:21].reshape(5, 4)))


def test_runs_make_outputs_on_the_gpu_that_is_named(session, expected):
    x = rows(4)
    for given in [x, on_gpu(x)]:
        binding = session.io_binding()
        if isinstance(given, numpy.ndarray):
            binding.bind_cpu_input("x", given)
        else:
            binding.bind_ortvalue_input("x", given)
        binding.bind_output("y", "cuda", 0)
        session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert y.device_name() == "cuda"
        near(y.numpy(), expected(x))
        near(binding.copy_outputs_to_cpu()[0], expected(x))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert y.device_name() == "cpu"
        near(y.numpy(), expected(x))


def test_values_on_the_gpu_give_values_on_the_gpu_and_run_gives_arrays(session, expected):
    x = rows(3)
    (y,) = session.run_with_ort_values(None, {"x": on_gpu(x)})
    assert y.device_name() == "cuda"
    near(y.numpy(), expected(x))
    for given in [on_gpu(x), Foreign(on_gpu(x))]:
        (y,) = session.run(None, {"x": given})
        assert isinstance(y, numpy.ndarray) and session.last_run.copies == 0
        near(y, expected(x))


def test_inputs_may_lie_in_both_memories(two_outputs):
    session = precast.InferenceSession(two_outputs, providers=["cuda:0"])
    a, b = rows(3, 1), rows(3, 2)
    for first, second in [(a, on_gpu(b)), (on_gpu(a), b), (on_gpu(a), on_gpu(b))]:
        total, difference = session.run(None, {"a": first, "b": second})
        near(total, a + b)
        near(difference, a - b)
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", on_gpu(a))
    binding.bind_cpu_input("b", b)
    binding.bind_output("sum", "cuda", 0)
    binding.bind_output("difference")
    session.run_with_iobinding(binding)
    total, difference = binding.get_outputs()
    assert (total.device_name(), difference.device_name()) == ("cuda", "cpu")
    near(total.numpy(), a + b)
    near(difference.numpy(), a - b)


def test_outputs_on_memory_of_inputs_are_refused(two_outputs):
    session = precast.InferenceSession(two_outputs, providers=["cuda:0"])
    binding, a = session.io_binding(), on_gpu(rows(2))
    binding.bind_ortvalue_input("a", a)
    binding.bind_ortvalue_input("b", on_gpu(rows(2)))
    binding.bind_ortvalue_output("sum", a)
    with pytest.raises(precast.UsageError, match="output 'sum' is bound to memory of an input"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("is_old", [False, True])
def test_dlpack_tensors_are_adopted_behind_the_default_stream(session, expected, is_old):
    x = rows(2)
    foreign = Foreign(on_gpu(x), is_old)
    value = precast.OrtValue.from_dlpack(foreign)
    assert value.data_ptr() == foreign.value.data_ptr()
    assert foreign.asked[-1]["stream"] == 1
    near(session.run(None, {"x": value})[0], expected(x))


def test_our_tensors_go_to_other_libraries_on_the_gpu_and_to_the_host():
    x = rows(2)
    value = on_gpu(x)
    for stream in [None, 1, 2, -1]:
        there = precast.OrtValue.from_dlpack(value.__dlpack__(stream=stream))
        assert there.data_ptr() == value.data_ptr() and there.device_name() == "cuda"
    copied = precast.OrtValue.from_dlpack(value.__dlpack__(copy=True))
    assert copied.data_ptr() != value.data_ptr() and (copied.numpy() == x).all()
    here = precast.OrtValue.from_dlpack(value.__dlpack__(dl_device=(1, 0)))
    assert here.device_name() == "cpu" and (here.numpy() == x).all()
    with pytest.raises(BufferError, match="as a copy alone"):
        value.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="exported to it or to the host"):
        value.__dlpack__(dl_device=(2, 1))


def test_memory_that_others_know_is_not_given_to_the_next_value():
    value = precast.OrtValue.ortvalue_from_shape_and_type([1000], numpy.float32, "cuda", 0)
    address = value.data_ptr()
    del value
    gc.collect()
    again = precast.OrtValue.ortvalue_from_shape_and_type([900], numpy.float32, "cuda", 0)
    assert again.data_ptr() == address
    capsule = again.__dlpack__()
    del again
    gc.collect()
    other = precast.OrtValue.ortvalue_from_shape_and_type([900], numpy.float32, "cuda", 0)
    assert other.data_ptr() != address
    del capsule


def test_a_session_on_the_cpu_copies_what_lies_on_a_gpu(linear, expected):
    x = rows(3)
    session = precast.InferenceSession(linear, providers=["cpu"])
    near(session.run(None, {"x": on_gpu(x)})[0], expected(x))
    assert session.last_run.copies == 1
    binding, made = session.io_binding(), precast.OrtValue.ortvalue_from_shape_and_type([3, 3], "float32", "cuda", 0)
    binding.bind_ortvalue_input("x", on_gpu(x))
    binding.bind_ortvalue_output("y", made)
    session.run_with_iobinding(binding)
    near(made.numpy(), expected(x))
    assert binding.get_outputs()[0].data_ptr() == made.data_ptr()
    strict = precast.InferenceSession(linear, providers=["cpu"], strict_copies=True)
    with pytest.raises(precast.UsageError, match="input 'x' would have to be copied: it lies on 'cuda:0'"):
        strict.run(None, {"x": on_gpu(x)})


def test_models_that_run_part_by_part_take_values_of_the_gpu(models):
    node = helper.make_node("NonZero", ["x"], ["y"])
    path = save(
        models, "nonzero", [node], [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.INT64, [2, "found"])]
    )
    session = precast.InferenceSession(path, providers=["cuda:0"])
    x = numpy.maximum(rows(3), 0)
    for given in [on_gpu(x), Foreign(on_gpu(x))]:
        assert (session.run(None, {"x": given})[0] == numpy.array(numpy.nonzero(x))).all()


def test_runs_that_are_not_waited_for_are_there_after_the_wait(session, expected):
    options = precast.RunOptions()
    assert options.get_run_config_entry("disable_synchronize_execution_providers") == "0"
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    with pytest.raises(precast.UsageError, match="0 or 1 is expected"):
        options.add_run_config_entry("disable_synchronize_execution_providers", "yes")
    for seed in range(4):
        x = rows(6, seed)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", on_gpu(x))
        binding.bind_output("y", "cuda", 0)
        session.run_with_iobinding(binding, options)
        (y,) = binding.get_outputs()
        if seed % 2:
            binding.synchronize_outputs()
        # What the run reads may be let go before it has ended.
        del binding
        gc.collect()
        near(y.numpy(), expected(x))


def test_threads_share_a_session(session, expected):
    failures = []

    def work(seed):
        try:
            for turn in range(8):
                x = rows(seed + turn + 1, seed)
                (y,) = session.run_with_ort_values(None, {"x": on_gpu(x)})
                near(y.numpy(), expected(x))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@with_torch
def test_torch_tensors_stay_on_the_gpu(session, expected):
    x = torch.randn(37, 4, device="cuda")
    value = precast.OrtValue.from_dlpack(x)
    assert value.data_ptr() == x.data_ptr()
    (y,) = session.run_with_ort_values(None, {"x": value})
    seen = torch.from_dlpack(y)
    assert seen.is_cuda and seen.data_ptr() == y.data_ptr()
    near(seen.cpu().numpy(), expected(x.cpu().numpy()))
    made = torch.empty(37, 3, device="cuda")
    binding = session.io_binding()
    binding.bind_input("x", "cuda", 0, numpy.float32, list(x.shape), x.data_ptr())
    binding.bind_output("y", "cuda", 0, numpy.float32, list(made.shape), made.data_ptr())
    session.run_with_iobinding(binding)
    near(made.cpu().numpy(), expected(x.cpu().numpy()))
    del y
    gc.collect()
    near((seen + 1).cpu().numpy(), expected(x.cpu().numpy()) + 1)


@with_torch
@pytest.mark.parametrize("is_side_stream", [False, True])
def test_work_of_torch_that_is_still_queued_is_waited_for(session, expected, is_side_stream):
    """Nothing is waited for by hand: the tensor is written behind seconds of other work on its stream."""
    stream = torch.cuda.Stream() if is_side_stream else torch.cuda.default_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for turn in range(3):
            x = torch.zeros(16, 4, device="cuda")
            torch.cuda._sleep(200_000_000)
            x += turn + 1
            (y,) = session.run(None, {"x": x})
            near(y, expected(numpy.full((16, 4), turn + 1, numpy.float32)))
            (y,) = session.run_with_ort_values(None, {"x": precast.OrtValue.from_dlpack(x)})
            near(torch.from_dlpack(y).cpu().numpy(), expected(numpy.full((16, 4), turn + 1, numpy.float32)))


@with_torch
def test_half_precision_of_torch_is_read_in_place(models):
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    for element_type, dtype in [(TensorProto.FLOAT16, torch.float16), (TensorProto.BFLOAT16, torch.bfloat16)]:
        name = f"square_{dtype}".replace(".", "_")
        path = save(models, name, [node], [("x", element_type, ["n"])], [("y", element_type, ["n"])])
        session = precast.InferenceSession(path, providers=["cuda:0"])
        x = torch.arange(9, device="cuda", dtype=dtype)
        (y,) = session.run_with_ort_values(None, {"x": precast.OrtValue.from_dlpack(x)})
        assert (torch.from_dlpack(y) == x * x).all()


@with_cupy
def test_arrays_of_cupy_stay_on_the_gpu(session, expected):
    x = cupy.asarray(rows(11))
    value = precast.OrtValue.from_dlpack(x)
    assert value.data_ptr() == x.data.ptr
    (y,) = session.run_with_ort_values(None, {"x": value})
    seen = cupy.from_dlpack(y)
    assert seen.data.ptr == y.data_ptr()
    near(cupy.asnumpy(seen), expected(cupy.asnumpy(x)))
    near(session.run(None, {"x": x})[0], expected(cupy.asnumpy(x)))
    with pytest.raises(precast.UsageError, match="row-major"):
        session.run(None, {"x": cupy.asfortranarray(x)})


@with_torch
def test_memory_of_torch_is_let_go_with_the_value(session):
    """Torch's own count of its memory says who holds it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    value = precast.OrtValue.from_dlpack(torch.zeros(1 << 20, device="cuda"))
    gc.collect()
    assert torch.cuda.memory_allocated() - before == 4 << 20
    del value
    gc.collect()
    assert torch.cuda.memory_allocated() == before
