//! Memory of numpy arrays: read in place where it lies as kernels read it, and made for outputs that kernels write.
#![allow(unsafe_code, reason = "numpy's arrays are reached through its C interface")]

use std::ffi::c_int;

use bytes::Bytes;
use numpy::npyffi::{self, PyArrayObject, PyArrayObject_fields};
use numpy::{PY_ARRAY_API, PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use precast::{DType, Tensor};
use pyo3::prelude::*;

use crate::element_type::{NumpyType, from_descr};
use crate::exceptions::usage;

/// The elements of an array in row-major order, where they lie.
#[derive(Clone, Copy)]
pub struct Elements {
    pointer: *const u8,
    bytes: usize,
}

// SAFETY: a pointer and a length; whoever reads through them says why that may be done.
unsafe impl Send for Elements {}
// SAFETY: as above.
unsafe impl Sync for Elements {}

impl Elements {
    /// `bytes` bytes at an address.
    pub fn new(pointer: *const u8, bytes: usize) -> Elements {
        Elements { pointer, bytes }
    }

    /// The bytes.
    ///
    /// # Safety
    /// Whatever owns them must be held, and must not be written by others, while the slice lives. A numpy array that somebody
    /// holds a reference to is not moved: numpy refuses to resize it.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for the owner; the length is that of its elements.
        unsafe { std::slice::from_raw_parts(self.pointer, self.bytes) }
    }

    /// The bytes, to write them.
    ///
    /// # Safety
    /// As for `as_slice`; besides, nobody else may use them at all while the slice lives.
    pub unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: the caller vouches for the owner and for being alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.cast_mut(), self.bytes) }
    }

    /// Copies as many bytes from another place, which may be the same.
    ///
    /// # Safety
    /// As for `as_mut_slice` and `as_slice`; the two places must have the same number of bytes.
    pub unsafe fn copy_from(self, other: Elements) {
        debug_assert_eq!(self.bytes, other.bytes);
        if self.bytes > 0 {
            // SAFETY: the caller vouches for both owners.
            unsafe { std::ptr::copy(other.pointer, self.pointer.cast_mut(), self.bytes.min(other.bytes)) };
        }
    }

    /// The address.
    pub fn address(self) -> usize {
        self.pointer.addr()
    }
}

/// The fields of an array.
fn fields(array: *mut PyArrayObject) -> *mut PyArrayObject_fields {
    // SAFETY: every caller has an array that it holds a reference to.
    unsafe { npyffi::objects::_PyArray_GET_ITEM_DATA(array.cast_const()) }
}

/// The elements of an array of this type, appending its rank and sizes to `shape`. None if it is no array of this type or its
/// elements do not lie in row-major order, aligned and in the machine's byte order.
pub fn elements_in_place(object: &Bound<'_, PyAny>, ty: &NumpyType, shape: &mut Vec<usize>) -> Option<Elements> {
    let array = object.cast::<PyUntypedArray>().ok()?;
    let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_ALIGNED;
    // SAFETY: the array is held by `object`, and its fields are read under the interpreter's lock.
    let PyArrayObject_fields { data, nd, dimensions, descr, flags, .. } = *unsafe { &*fields(array.as_array_ptr()) };
    // SAFETY: an array has a type for as long as it lives.
    let descr = unsafe { &(*descr).fields };
    let is_swapped = descr.byteorder as u8 == b'>';
    if descr.type_num != ty.number || flags & wanted != wanted || is_swapped {
        return None;
    }
    let rank = nd as usize;
    shape.push(rank);
    let mut bytes = ty.dtype.size_bytes();
    for axis in 0..rank {
        // SAFETY: an array has as many sizes as its rank says.
        let size = unsafe { *dimensions.add(axis) } as usize;
        bytes *= size;
        shape.push(size);
    }
    Some(Elements::new(data.cast_const().cast(), bytes))
}

/// An array for an output, whose elements are not set yet.
pub fn empty_array<'py>(py: Python<'py>, ty: &NumpyType, shape: &[isize]) -> PyResult<Bound<'py, PyAny>> {
    let dims = shape.as_ptr().cast_mut();
    // SAFETY: numpy's own type; `NewFromDescr` takes over one reference to the type, copies the sizes, and allocates itself.
    let array = unsafe {
        PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            ty.descr.clone_ref(py).into_ptr().cast(),
            shape.len() as c_int,
            dims,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, array) }
}

/// An array over elements that `owner` holds, without copying.
pub fn array_over<'py>(
    owner: &Bound<'py, PyAny>,
    elements: Elements,
    ty: &NumpyType,
    shape: &[usize],
    is_writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    let mut dims: Vec<isize> = shape.iter().map(|&size| size as isize).collect();
    let flags = npyffi::NPY_ARRAY_C_CONTIGUOUS
        | npyffi::NPY_ARRAY_ALIGNED
        | if is_writable { npyffi::NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: as in `empty_array`; the elements outlive the array, which is made to hold their owner right below.
    let array = unsafe {
        PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            ty.descr.clone_ref(py).into_ptr().cast(),
            dims.len() as c_int,
            dims.as_mut_ptr(),
            std::ptr::null_mut(),
            elements.pointer.cast_mut().cast(),
            flags,
            std::ptr::null_mut(),
        )
    };
    // SAFETY: a new reference, or null with an exception set.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array)? };
    // SAFETY: a new array has no base; this takes over one reference to the owner.
    let status = unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), owner.clone().into_ptr()) };
    match status {
        0 => Ok(array),
        _ => Err(PyErr::fetch(py)),
    }
}

/// The elements of an array that `empty_array` made, to write them.
///
/// # Safety
/// Nobody else may use the array while the slice lives, and somebody must hold it.
pub unsafe fn elements_mut<'a>(array: &Bound<'_, PyAny>, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller has the array from `empty_array`.
    let data = unsafe { (*fields(array.as_ptr().cast())).data };
    // SAFETY: the array has so many bytes, and the caller says that nobody else uses them.
    unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) }
}

/// Where an array that may be written lies in row-major order, aligned; none if it does not.
pub fn writable_elements(object: &Bound<'_, PyAny>, ty: &NumpyType, shape: &mut Vec<usize>) -> Option<Elements> {
    let elements = elements_in_place(object, ty, shape)?;
    // SAFETY: it is an array, since it has elements, and is held by `object`.
    let flags = unsafe { (*fields(object.as_ptr().cast())).flags };
    (flags & npyffi::NPY_ARRAY_WRITEABLE != 0).then_some(elements)
}

/// Bytes that a Python object owns.
struct Held {
    elements: Elements,
    /// Given back when the last reader is done; without the interpreter's lock that waits for who has it.
    _owner: Py<PyAny>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the owner is held by this.
        unsafe { self.elements.as_slice() }
    }
}

/// A tensor over elements that a Python object owns, without copying. For calls only: who keeps it would see the values
/// change when the owner is written.
pub fn borrowed_tensor(elements: Elements, dtype: DType, shape: &[usize], owner: Py<PyAny>) -> PyResult<Tensor> {
    let bytes = Bytes::from_owner(Held { elements, _owner: owner });
    Tensor::new(dtype, shape, bytes).map_err(|error| Python::attach(|py| usage(py, &error.to_string())))
}

/// The object as an array whose elements lie as kernels read them: itself, or a copy. Says whether it is one.
pub fn as_row_major<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let py = object.py();
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("asarray", (object,))?;
    let native = array.getattr("dtype")?.call_method1("newbyteorder", ("=",))?;
    let requirements = ["C_CONTIGUOUS", "ALIGNED"];
    let required = numpy.call_method1("require", (&array, native, requirements.to_vec()))?;
    let is_copy = !required.is(object);
    Ok((required, is_copy))
}

/// Elements of less than a byte as bytes, and what numpy calls those. numpy leaves the rest of a byte as it is; kernels expect
/// the element's sign or zero there.
pub fn whole_bytes<'py>(array: &Bound<'py, PyAny>, dtype: DType) -> PyResult<(Bound<'py, PyAny>, NumpyType)> {
    let py = array.py();
    let (array, _) = as_row_major(array)?;
    if matches!(dtype, DType::I4 | DType::I2) {
        return Ok((array.call_method1("astype", ("int8",))?, NumpyType::of(py, DType::I8)?));
    }
    let mask = (1_u8 << dtype.bits()) - 1;
    let masked = array.call_method1("view", ("uint8",))?.call_method1("__and__", (mask,))?;
    Ok((masked, NumpyType::of(py, DType::U8)?))
}

/// The element type of an array; none for types that models do not have.
pub fn array_dtype(array: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    from_descr(array.getattr("dtype")?.cast::<PyArrayDescr>()?)
}

/// Whether an object is an array of numpy.
pub fn is_array(object: &Bound<'_, PyAny>) -> bool {
    object.cast::<PyUntypedArray>().is_ok()
}

/// The object's values as a tensor of its own, of any element type that models have.
pub fn copied_tensor(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let (array, _) = as_row_major(object)?;
    let Some(dtype) = array_dtype(&array)? else { return Ok(None) };
    let (array, ty) = match dtype.bits() < u8::BITS {
        true => whole_bytes(&array, dtype)?,
        false => (array, NumpyType::of(object.py(), dtype)?),
    };
    let mut shape = Vec::new();
    let Some(elements) = elements_in_place(&array, &ty, &mut shape) else { return Ok(None) };
    // SAFETY: `array` is held, and the interpreter's lock keeps others from writing it while it is copied.
    let bytes = Bytes::copy_from_slice(unsafe { elements.as_slice() });
    let tensor = Tensor::new(dtype, &shape[1..], bytes).map_err(|error| usage(object.py(), &error.to_string()))?;
    Ok(Some(tensor.aligned()))
}

/// A tensor as a new array with a copy of its values.
pub fn array_of_tensor<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let ty = NumpyType::of(py, tensor.dtype())?;
    let shape: Vec<isize> = tensor.shape().iter().map(|&size| size as isize).collect();
    let array = empty_array(py, &ty, &shape)?;
    let bytes = tensor.as_bytes();
    // SAFETY: the array was just made here and nobody else has it.
    unsafe { elements_mut(&array, bytes.len()) }.copy_from_slice(bytes);
    Ok(array)
}
