//! `OrtValue`: a tensor in the host's memory that models read and write in place, shared with numpy and DLPack.

use precast::{DType, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dlpack;
use crate::element_type::{NumpyType, from_numpy_name, from_onnx_number, numpy_name, onnx_number};
use crate::exceptions::usage;
use crate::host_array::{
    Elements, array_dtype, array_over, as_row_major, borrowed_tensor, elements_in_place, empty_array, whole_bytes,
    writable_elements,
};

/// A tensor in the host's memory. Models read it in place as an input and write it in place as an output.
#[pyclass(frozen, module = "precast")]
pub struct OrtValue {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub elements: Elements,
    pub is_writable: bool,
    /// Held for the elements.
    owner: Py<PyAny>,
}

impl OrtValue {
    /// The elements of an array, in place where they lie as kernels read them.
    pub fn of_array(object: &Bound<'_, PyAny>) -> PyResult<OrtValue> {
        let (array, _) = as_row_major(object)?;
        let py = object.py();
        let Some(dtype) = array_dtype(&array)? else {
            return Err(usage(py, &format!("models have no elements of {}", array.getattr("dtype")?)));
        };
        if dtype.bits() < u8::BITS {
            let (bytes, ty) = whole_bytes(&array, dtype)?;
            return OrtValue::over(&bytes, &ty, dtype);
        }
        OrtValue::over(&array, &NumpyType::of(py, dtype)?, dtype)
    }

    /// The elements of an array that lie as kernels read them, read as `dtype`, which takes as many bytes.
    fn over(array: &Bound<'_, PyAny>, ty: &NumpyType, dtype: DType) -> PyResult<OrtValue> {
        let mut shape = Vec::new();
        let is_writable = writable_elements(array, ty, &mut shape).is_some();
        shape.clear();
        let elements = elements_in_place(array, ty, &mut shape);
        let elements = elements.ok_or_else(|| usage(array.py(), "the array's elements cannot be read in place"))?;
        shape.remove(0);
        Ok(OrtValue { dtype, shape, elements, is_writable, owner: array.clone().unbind() })
    }

    /// A new tensor whose elements are not set yet. numpy owns the memory, as integers where it lacks the element type.
    pub fn empty(py: Python<'_>, dtype: DType, shape: &[usize]) -> PyResult<OrtValue> {
        let storage = NumpyType::of(py, storage_type(dtype))?;
        let dims: Vec<isize> = shape.iter().map(|&size| size as isize).collect();
        let array = empty_array(py, &storage, &dims)?;
        OrtValue::over(&array, &storage, dtype)
    }

    /// A tensor of another library, in place.
    pub fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<OrtValue> {
        let imported = dlpack::import(object)?;
        let (elements, is_writable) = (imported.elements, imported.is_writable);
        let (dtype, shape) = (imported.dtype, imported.shape.clone());
        let owner = Bound::new(object.py(), imported)?.into_any().unbind();
        Ok(OrtValue { dtype, shape, elements, is_writable, owner })
    }

    /// Memory that the caller owns and keeps.
    pub fn at_address(dtype: DType, shape: Vec<usize>, address: usize, owner: Py<PyAny>) -> OrtValue {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        let pointer = std::ptr::with_exposed_provenance(address);
        OrtValue { dtype, shape, elements: Elements::new(pointer, bytes), is_writable: true, owner }
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// A tensor with a copy of its values, which may be kept.
    pub fn to_tensor(&self, py: Python<'_>) -> PyResult<Tensor> {
        let borrowed = borrowed_tensor(self.elements, self.dtype, &self.shape, self.owner.clone_ref(py))?;
        let bytes = bytes::Bytes::copy_from_slice(borrowed.as_bytes());
        let copy = Tensor::new(self.dtype, self.shape.clone(), bytes);
        copy.map(|copy| copy.aligned()).map_err(|error| usage(py, &error.to_string()))
    }
}

/// The element type that numpy stores such elements as: itself, or an integer of the same size.
fn storage_type(dtype: DType) -> DType {
    let is_numpy_own = matches!(
        dtype,
        DType::Bool
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::F16
            | DType::F32
            | DType::F64
    );
    match (is_numpy_own, dtype.size_bytes()) {
        (true, _) => dtype,
        (false, 2) => DType::U16,
        (false, _) => DType::U8,
    }
}

/// The element type that a caller names: by a number of ONNX, a numpy type, or a name.
pub fn read_element_type(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = object.py();
    let found = match object.extract::<i32>() {
        Ok(number) => from_onnx_number(number),
        Err(_) => {
            let dtype = py.import("numpy")?.call_method1("dtype", (object,))?;
            from_numpy_name(&dtype.getattr("name")?.extract::<String>()?)
        }
    };
    found.ok_or_else(|| usage(py, &format!("'{object}' is no element type of models")))
}

/// Refuses devices other than the host.
pub fn require_host(py: Python<'_>, device_type: &str, device_id: i64) -> PyResult<()> {
    match (device_type, device_id) {
        ("cpu" | "CPU" | "Cpu", 0) => Ok(()),
        _ => Err(usage(py, &format!("an OrtValue lies in the memory of 'cpu'; '{device_type}:{device_id}' is given"))),
    }
}

#[pymethods]
impl OrtValue {
    /// The values of an array, which is not copied where its elements lie in row-major order.
    #[staticmethod]
    #[pyo3(signature = (numpy_obj, device_type = "cpu", device_id = 0))]
    fn ortvalue_from_numpy(numpy_obj: &Bound<'_, PyAny>, device_type: &str, device_id: i64) -> PyResult<OrtValue> {
        require_host(numpy_obj.py(), device_type, device_id)?;
        OrtValue::of_array(numpy_obj)
    }

    /// The bits of an array as elements of an ONNX type that numpy lacks, such as bfloat16 from uint16.
    #[staticmethod]
    fn ortvalue_from_numpy_with_onnx_type(data: &Bound<'_, PyAny>, onnx_element_type: i32) -> PyResult<OrtValue> {
        let py = data.py();
        let dtype = from_onnx_number(onnx_element_type)
            .ok_or_else(|| usage(py, &format!("ONNX's element type {onnx_element_type} is not supported")))?;
        let value = OrtValue::of_array(data)?;
        if value.dtype.size_bytes() != dtype.size_bytes() {
            let (found, wanted) = (value.dtype.name(), dtype.name());
            return Err(usage(py, &format!("elements of {found} take another number of bytes than those of {wanted}")));
        }
        Ok(OrtValue { dtype, ..value })
    }

    /// A new tensor of this shape and element type (a numpy type or a number of ONNX) whose values are not set.
    #[staticmethod]
    #[pyo3(signature = (shape, element_type, device_type = "cpu", device_id = 0))]
    fn ortvalue_from_shape_and_type(
        shape: Vec<usize>,
        element_type: &Bound<'_, PyAny>,
        device_type: &str,
        device_id: i64,
    ) -> PyResult<OrtValue> {
        require_host(element_type.py(), device_type, device_id)?;
        OrtValue::empty(element_type.py(), read_element_type(element_type)?, &shape)
    }

    /// A tensor of another library, not copied. `is_bool_tensor` reads bytes as booleans.
    #[staticmethod]
    #[pyo3(name = "from_dlpack", signature = (data, is_bool_tensor = false))]
    fn from_dlpack_object(data: &Bound<'_, PyAny>, is_bool_tensor: bool) -> PyResult<OrtValue> {
        let value = OrtValue::from_dlpack(data)?;
        let dtype = if is_bool_tensor && value.dtype == DType::U8 { DType::Bool } else { value.dtype };
        Ok(OrtValue { dtype, ..value })
    }

    /// An array over the same memory.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let value = slf.get();
        let ty = NumpyType::of(slf.py(), value.dtype)?;
        array_over(slf.as_any(), value.elements, &ty, &value.shape, value.is_writable)
    }

    /// Copies the values of an array of the same type and shape into this tensor.
    fn update_inplace(slf: &Bound<'_, Self>, np_arr: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = slf.get();
        if !value.is_writable {
            return Err(usage(slf.py(), "the memory of this OrtValue may only be read"));
        }
        let given = OrtValue::of_array(np_arr)?;
        if (given.dtype, &given.shape) != (value.dtype, &value.shape) {
            let text = |value: &OrtValue| format!("{}{:?}", value.dtype.name(), value.shape);
            return Err(usage(slf.py(), &format!("{} is given; this OrtValue is {}", text(&given), text(value))));
        }
        OrtValue::numpy(slf)?.set_item(PyTuple::new(slf.py(), [slf.py().Ellipsis()])?, np_arr)
    }

    /// The address of the first element.
    fn data_ptr(&self) -> usize {
        self.elements.address()
    }

    /// Its sizes.
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Its type as ONNX writes it, such as `tensor(float)`.
    fn data_type(&self) -> String {
        format!("tensor({})", precast::onnx_name(self.dtype))
    }

    /// The number of its element type in ONNX.
    fn element_type(&self) -> i32 {
        onnx_number(self.dtype)
    }

    /// Where its memory is.
    fn device_name(&self) -> &'static str {
        "cpu"
    }

    /// Whether it holds a value; it does.
    fn has_value(&self) -> bool {
        true
    }

    /// Whether it is a tensor; it is.
    fn is_tensor(&self) -> bool {
        true
    }

    /// Whether it is a sparse tensor; it is not.
    fn is_sparse_tensor(&self) -> bool {
        false
    }

    /// Whether it is a sequence of tensors; it is not.
    fn is_tensor_sequence(&self) -> bool {
        false
    }

    /// Its bytes.
    fn tensor_size_in_bytes(&self) -> usize {
        self.bytes()
    }

    /// A DLPack capsule over the same memory.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some_and(|stream| !stream.is_none()) {
            return Err(usage(slf.py(), "memory of the host has no stream"));
        }
        dlpack::export(slf, max_version, dl_device, copy.unwrap_or(false))
    }

    /// DLPack's kind and number of the device: the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }

    fn __repr__(&self) -> String {
        format!("OrtValue({} of {:?} at cpu)", numpy_name(self.dtype), self.shape)
    }
}
