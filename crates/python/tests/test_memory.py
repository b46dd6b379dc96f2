"""Zero copy: where inputs are read, where outputs are written, and what DLPack hands over."""

import ctypes
import gc
import weakref

import numpy
import precast
import pytest
from onnx import TensorProto

from conftest import identity_of


def rows(count, seed=0):
    return numpy.random.default_rng(seed).standard_normal((count, 4), dtype=numpy.float32)


def address(array):
    return array.__array_interface__["data"][0]


def test_arrays_in_row_major_order_are_not_copied_and_others_are_counted(linear):
    session = precast.InferenceSession(linear)
    x = rows(4)
    expected = session.run(None, {"x": x})[0]
    assert session.last_run.copies == 0
    swapped = x.astype(">f4")
    fortran = numpy.asfortranarray(x)
    every_other = numpy.repeat(x, 2, axis=0)[::2]
    raw = numpy.empty(x.nbytes + 1, dtype=numpy.uint8)
    unaligned = raw[1:].view(numpy.float32).reshape(x.shape)
    unaligned[...] = x
    for copied in [swapped, fortran, every_other, unaligned]:
        assert (session.run(None, {"x": copied})[0] == expected).all()
        assert session.last_run.copies == 1
    read_only = x.copy()
    read_only.flags.writeable = False
    assert (session.run(None, {"x": read_only})[0] == expected).all()
    assert session.last_run.copies == 0


def test_strict_copies_refuses_what_would_be_copied(linear):
    session = precast.InferenceSession(linear, strict_copies=True)
    session.run(None, {"x": rows(2)})
    with pytest.raises(precast.UsageError, match="input 'x' would have to be copied"):
        session.run(None, {"x": numpy.asfortranarray(rows(2))})


def test_outputs_are_the_callers_own(linear):
    session, x = precast.InferenceSession(linear), rows(2)
    (first,) = session.run(None, {"x": x})
    before = first.copy()
    (second,) = session.run(None, {"x": x + 1})
    assert address(first) != address(second)
    assert (first == before).all() and first.flags.owndata and first.flags.writeable


def test_a_bound_output_is_written_where_it_lies(linear):
    session, x = precast.InferenceSession(linear), rows(3)
    expected = session.run(None, {"x": x})[0]
    y = numpy.zeros((3, 3), numpy.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, numpy.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    assert (y == expected).all()
    x += 1
    session.run_with_iobinding(binding)
    assert (y == session.run(None, {"x": x})[0]).all()
    assert binding.get_outputs()[0].data_ptr() == address(y)


def test_memory_that_a_run_would_write_twice_or_write_while_it_reads_is_refused(two_outputs):
    session = precast.InferenceSession(two_outputs)
    values = [precast.OrtValue.ortvalue_from_shape_and_type([2, 2], numpy.float32) for _ in range(4)]
    a, b, total, difference = values
    binding = session.io_binding()
    binding.bind_ortvalue_input("a", a)
    binding.bind_ortvalue_input("b", b)
    binding.bind_ortvalue_output("sum", total)
    for taken in [total, a]:
        binding.bind_ortvalue_output("difference", taken)
        with pytest.raises(precast.UsageError, match="output 'difference' is bound to memory of an input or of another"):
            session.run_with_iobinding(binding)
    binding.bind_ortvalue_output("difference", difference)
    session.run_with_iobinding(binding)


def test_ort_values_are_read_and_written_in_place(linear):
    session, x = precast.InferenceSession(linear), rows(2)
    given = precast.OrtValue.ortvalue_from_numpy(x)
    made = precast.OrtValue.ortvalue_from_shape_and_type([2, 3], numpy.float32)
    assert given.data_ptr() == address(x)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", made)
    session.run_with_iobinding(binding)
    assert (made.numpy() == session.run(None, {"x": x})[0]).all()
    assert address(made.numpy()) == made.data_ptr()
    assert binding.copy_outputs_to_cpu()[0].shape == (2, 3)
    given.update_inplace(x * 2)
    assert (given.numpy() == x).all()
    assert (made.shape(), made.element_type(), made.device_name()) == ([2, 3], TensorProto.FLOAT, "cpu")


def test_a_run_makes_outputs_that_are_bound_to_no_memory(linear):
    session, x = precast.InferenceSession(linear), rows(2)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert (binding.get_outputs()[0].numpy() == session.run(None, {"x": x})[0]).all()


def test_bindings_that_do_not_fit_say_why(linear):
    session = precast.InferenceSession(linear)
    binding = session.io_binding()
    with pytest.raises(precast.UsageError, match="input 'x' is not bound"):
        session.run_with_iobinding(binding)
    with pytest.raises(precast.UsageError, match="there is no input 'z'"):
        binding.bind_cpu_input("z", rows(1))
    binding.bind_cpu_input("x", rows(2))
    binding.bind_ortvalue_output("y", precast.OrtValue.ortvalue_from_shape_and_type([3, 3], numpy.float32))
    with pytest.raises(precast.UsageError, match=r"output 'y' is bound to f32\[3, 3\]; this run gives f32\[2, 3\]"):
        session.run_with_iobinding(binding)
    with pytest.raises(precast.DeviceError, match="there is no device 'cuda:99'|the cuda driver is not here"):
        binding.bind_output("y", "cuda", 99)
    binding.clear_binding_outputs()
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(precast.UsageError, match="input 'x' is not bound"):
        session.run_with_iobinding(binding)


class Foreign:
    """A tensor of another library, which speaks DLPack and nothing else of numpy."""

    def __init__(self, array, is_old=False):
        self.array, self.is_old = array, is_old

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **arguments):
        if self.is_old and arguments:
            raise TypeError("version 0 knows no such argument")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("is_old", [False, True])
def test_tensors_of_other_libraries_come_by_dlpack_in_place(linear, is_old):
    session, x = precast.InferenceSession(linear), rows(2)
    value = precast.OrtValue.from_dlpack(Foreign(x, is_old))
    assert value.data_ptr() == address(x) and value.shape() == [2, 4]
    expected = session.run(None, {"x": x})[0]
    assert (session.run(None, {"x": Foreign(x, is_old)})[0] == expected).all()
    assert session.last_run.copies == 0


class Watched(bytearray):
    """Memory whose end can be seen."""


def test_a_foreign_tensor_is_let_go():
    memory = Watched(32)
    alive = weakref.ref(memory)
    value = precast.OrtValue.from_dlpack(Foreign(numpy.frombuffer(memory, numpy.float32)))
    del memory
    gc.collect()
    assert alive() is not None
    del value
    gc.collect()
    assert alive() is None


def test_our_tensors_go_to_other_libraries_in_place():
    x = rows(2)
    value = precast.OrtValue.ortvalue_from_numpy(x)
    seen = numpy.from_dlpack(value)
    assert address(seen) == address(x) and (seen == x).all()
    assert value.__dlpack_device__() == (1, 0)
    copied = precast.OrtValue.from_dlpack(value.__dlpack__(copy=True))
    assert copied.data_ptr() != value.data_ptr() and (copied.numpy() == x).all()
    del value
    gc.collect()
    assert (seen == x).all()


def test_a_capsule_is_consumed_once():
    capsule = precast.OrtValue.ortvalue_from_numpy(rows(2)).__dlpack__()
    precast.OrtValue.from_dlpack(capsule)
    with pytest.raises(BufferError, match="used already"):
        precast.OrtValue.from_dlpack(capsule)


def test_memory_that_may_only_be_read_says_so():
    x = rows(2)
    x.flags.writeable = False
    value = precast.OrtValue.ortvalue_from_numpy(x)
    assert not value.numpy().flags.writeable
    with pytest.raises(precast.UsageError, match="may only be read"):
        value.update_inplace(rows(2))
    with pytest.raises(BufferError, match="version 1"):
        value.__dlpack__()
    assert value.__dlpack__(max_version=(1, 0)) is not None


def test_dlpack_tensors_that_cannot_be_read_in_place_are_refused(linear):
    session = precast.InferenceSession(linear)
    with pytest.raises(precast.UsageError, match="row-major"):
        session.run(None, {"x": Foreign(numpy.asfortranarray(rows(2)))})


def test_a_capsule_that_nobody_takes_frees_its_tensor():
    memory = Watched(32)
    alive = weakref.ref(memory)
    capsule = precast.OrtValue.ortvalue_from_numpy(numpy.frombuffer(memory, numpy.float32)).__dlpack__()
    del memory
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_an_address_of_the_caller_is_read_in_place(models):
    session = precast.InferenceSession(identity_of(models, TensorProto.INT32, "identity_address"))
    values = (ctypes.c_int32 * 3)(1, 2, 3)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, numpy.int32, [3], ctypes.addressof(values))
    session.run_with_iobinding(binding)
    values[1] = 7
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tolist() == [1, 7, 3]
