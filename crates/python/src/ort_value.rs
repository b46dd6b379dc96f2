//! `OrtValue`: a tensor in the memory of the host or of a GPU that models read and write in place, shared with numpy and DLPack.

use std::sync::Arc;

use precast::device_name::DeviceKind;
use precast::{DType, Gpu, GpuBytes, Tensor};
use pyo3::prelude::*;

use crate::dlpack;
use crate::element_type::{NumpyType, from_numpy_name, from_onnx_number, numpy_name, onnx_number};
use crate::exceptions::{exception, usage};
use crate::gpu_place::{adopted, dlpack_device, dlpack_gpu, named_gpu, open_gpu};
use crate::host_array::{
    Elements, array_dtype, array_over, as_row_major, borrowed_tensor, elements_in_place, empty_array, whole_bytes,
    writable_elements,
};
use crate::interruptible::detached;

/// The stream by which a consumer of DLPack says that it orders its work itself.
const NO_ORDER: i64 = -1;

/// A tensor in the memory of the host or of a GPU. Models read it in place as an input and write it in place as an output.
#[pyclass(frozen, module = "precast")]
pub struct OrtValue {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub place: Place,
    pub is_writable: bool,
    /// Held for elements on the host.
    owner: Py<PyAny>,
}

/// Where the elements of a tensor lie, in row-major order.
pub enum Place {
    /// On the host.
    Host(Elements),
    /// On a GPU.
    Gpu(GpuBytes),
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
        Ok(OrtValue { dtype, shape, place: Place::Host(elements), is_writable, owner: array.clone().unbind() })
    }

    /// A new tensor whose elements are not set yet. numpy owns the memory, as integers where it lacks the element type.
    pub fn empty(py: Python<'_>, dtype: DType, shape: &[usize]) -> PyResult<OrtValue> {
        let storage = NumpyType::of(py, storage_type(dtype))?;
        let dims: Vec<isize> = shape.iter().map(|&size| size as isize).collect();
        let array = empty_array(py, &storage, &dims)?;
        OrtValue::over(&array, &storage, dtype)
    }

    /// A new tensor on a GPU whose elements are not set yet.
    pub fn empty_on(py: Python<'_>, gpu: &Arc<Gpu>, dtype: DType, shape: &[usize]) -> PyResult<OrtValue> {
        let bytes = bytes_of(py, dtype, shape)?;
        let memory = detached(py, || gpu.allocate(bytes))?.map_err(|error| exception(py, &error))?;
        Ok(OrtValue { dtype, shape: shape.to_vec(), place: Place::Gpu(memory), is_writable: true, owner: py.None() })
    }

    /// A new tensor on a GPU or the host whose elements are not set yet.
    pub fn empty_at(py: Python<'_>, gpu: Option<&Arc<Gpu>>, dtype: DType, shape: &[usize]) -> PyResult<OrtValue> {
        match gpu {
            Some(gpu) => OrtValue::empty_on(py, gpu, dtype, shape),
            None => OrtValue::empty(py, dtype, shape),
        }
    }

    /// A tensor of another library, in place.
    pub fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<OrtValue> {
        let py = object.py();
        let dlpack::Imported { dtype, shape, address, is_writable, device, lender } = dlpack::import(object)?;
        let bytes = bytes_of(py, dtype, &shape)?;
        if let Some(gpu) = dlpack_gpu(device) {
            let memory = adopted(py, &open_gpu(py, gpu)?, address, bytes, Box::new(lender))?;
            return Ok(OrtValue { dtype, shape, place: Place::Gpu(memory), is_writable, owner: py.None() });
        }
        let elements = Elements::new(std::ptr::with_exposed_provenance(address), bytes);
        let owner = Bound::new(py, lender)?.into_any().unbind();
        Ok(OrtValue { dtype, shape, place: Place::Host(elements), is_writable, owner })
    }

    /// Memory of the host or of a GPU that the caller owns and keeps.
    pub fn at_address(
        py: Python<'_>,
        gpu: Option<&Arc<Gpu>>,
        dtype: DType,
        shape: Vec<usize>,
        address: usize,
    ) -> PyResult<OrtValue> {
        let bytes = bytes_of(py, dtype, &shape)?;
        let place = match gpu {
            Some(gpu) => Place::Gpu(adopted(py, gpu, address, bytes, Box::new(()))?),
            None => Place::Host(Elements::new(std::ptr::with_exposed_provenance(address), bytes)),
        };
        Ok(OrtValue { dtype, shape, place, is_writable: true, owner: py.None() })
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// The address of the first element.
    pub fn address(&self) -> usize {
        match &self.place {
            Place::Host(elements) => elements.address(),
            Place::Gpu(memory) => memory.address() as usize,
        }
    }

    /// The GPU that it lies on; none for the host.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.place {
            Place::Host(_) => None,
            Place::Gpu(memory) => Some(memory.gpu()),
        }
    }

    /// DLPack's kind and number of where it lies.
    pub fn dlpack_device(&self) -> (i32, i32) {
        self.gpu().map_or(dlpack::HOST, |gpu| dlpack_device(gpu))
    }

    /// Another library knows the memory from now on.
    pub fn share(&self) {
        if let Place::Gpu(memory) = &self.place {
            memory.share();
        }
    }

    /// A tensor with a copy of its values, which may be kept.
    pub fn to_tensor(&self, py: Python<'_>) -> PyResult<Tensor> {
        let Place::Host(elements) = self.place else { return self.on_host(py)?.to_tensor(py) };
        let borrowed = borrowed_tensor(elements, self.dtype, &self.shape, self.owner.clone_ref(py))?;
        let bytes = bytes::Bytes::copy_from_slice(borrowed.as_bytes());
        let copy = Tensor::new(self.dtype, self.shape.clone(), bytes);
        copy.map(|copy| copy.aligned()).map_err(|error| usage(py, &error.to_string()))
    }

    /// A copy of it on the host.
    pub fn on_host(&self, py: Python<'_>) -> PyResult<OrtValue> {
        let copy = OrtValue::empty(py, self.dtype, &self.shape)?;
        copy.copy_from(py, self)?;
        Ok(copy)
    }

    /// A copy of it where it lies.
    pub fn copied(&self, py: Python<'_>) -> PyResult<OrtValue> {
        let copy = OrtValue::empty_at(py, self.gpu(), self.dtype, &self.shape)?;
        copy.copy_from(py, self)?;
        Ok(copy)
    }

    /// Copies the elements of a tensor with as many bytes.
    #[allow(unsafe_code, reason = "reads and writes memory of Python objects that are held")]
    pub fn copy_from(&self, py: Python<'_>, from: &OrtValue) -> PyResult<()> {
        let copied = match (&self.place, &from.place) {
            (Place::Host(to), Place::Host(from)) => {
                // SAFETY: both owners are held, and the interpreter's lock keeps others from using them. The two may be the
                // same memory, so no slices are made of them.
                unsafe { to.copy_from(*from) };
                Ok(())
            }
            (Place::Host(to), Place::Gpu(from)) => {
                // SAFETY: the owner is held by this, which is being written and not shared while it is.
                let to = unsafe { to.as_mut_slice() };
                detached(py, || from.read(to))?
            }
            (Place::Gpu(to), Place::Host(from)) => {
                // SAFETY: the owner is held by the value.
                let from = unsafe { from.as_slice() };
                detached(py, || to.write(from))?
            }
            (Place::Gpu(to), Place::Gpu(memory)) => {
                let mut bytes = vec![0; from.bytes()];
                detached(py, || memory.read(&mut bytes).and_then(|()| to.write(&bytes)))?
            }
        };
        copied.map_err(|error| exception(py, &error))
    }
}

/// Bytes of a tensor; an error where no memory has so many.
fn bytes_of(py: Python<'_>, dtype: DType, shape: &[usize]) -> PyResult<usize> {
    let bytes = shape.iter().try_fold(dtype.size_bytes(), |bytes, &size| bytes.checked_mul(size));
    bytes.ok_or_else(|| usage(py, &format!("a tensor of {}{shape:?} is larger than any memory", dtype.name())))
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

#[pymethods]
impl OrtValue {
    /// The values of an array: in place on the host where its elements lie in row-major order, copied to a GPU.
    #[staticmethod]
    #[pyo3(signature = (numpy_obj, device_type = "cpu", device_id = 0))]
    fn ortvalue_from_numpy(numpy_obj: &Bound<'_, PyAny>, device_type: &str, device_id: i64) -> PyResult<OrtValue> {
        let py = numpy_obj.py();
        let value = OrtValue::of_array(numpy_obj)?;
        let Some(gpu) = named_gpu(py, device_type, device_id)? else { return Ok(value) };
        let copy = OrtValue::empty_on(py, &gpu, value.dtype, &value.shape)?;
        copy.copy_from(py, &value)?;
        Ok(copy)
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
        let py = element_type.py();
        let dtype = read_element_type(element_type)?;
        OrtValue::empty_at(py, named_gpu(py, device_type, device_id)?.as_ref(), dtype, &shape)
    }

    /// A tensor of another library, not copied. `is_bool_tensor` reads bytes as booleans.
    #[staticmethod]
    #[pyo3(name = "from_dlpack", signature = (data, is_bool_tensor = false))]
    fn from_dlpack_object(data: &Bound<'_, PyAny>, is_bool_tensor: bool) -> PyResult<OrtValue> {
        let value = OrtValue::from_dlpack(data)?;
        let dtype = if is_bool_tensor && value.dtype == DType::U8 { DType::Bool } else { value.dtype };
        Ok(OrtValue { dtype, ..value })
    }

    /// An array over the same memory, or of a copy where that is a GPU's.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, value) = (slf.py(), slf.get());
        let Place::Host(elements) = value.place else {
            return OrtValue::numpy(&Bound::new(py, value.on_host(py)?)?);
        };
        let ty = NumpyType::of(py, value.dtype)?;
        array_over(slf.as_any(), elements, &ty, &value.shape, value.is_writable)
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
        value.copy_from(slf.py(), &given)
    }

    /// The address of the first element.
    fn data_ptr(&self) -> usize {
        self.address()
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

    /// Where its memory is: "cpu", "cuda" or "hip".
    fn device_name(&self) -> &'static str {
        self.gpu().map_or(DeviceKind::Cpu, |gpu| gpu.name().kind).name()
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

    /// A DLPack capsule over the same memory. The consumer's stream is told nothing: what runs have written is there, and where
    /// a run was not waited for, this waits for it, unless the stream is -1.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        match (&slf.get().place, stream) {
            (Place::Host(_), Some(_)) => return Err(usage(py, "memory of the host has no stream")),
            (Place::Host(_), None) | (Place::Gpu(_), Some(NO_ORDER)) => {}
            (Place::Gpu(memory), _) => {
                detached(py, || memory.wait())?.map_err(|error| exception(py, &error.into()))?;
            }
        }
        dlpack::export(slf, max_version, dl_device, copy)
    }

    /// DLPack's kind and number of the device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.dlpack_device()
    }

    fn __repr__(&self) -> String {
        let place = self.gpu().map_or("cpu".to_string(), |gpu| gpu.name().to_string());
        format!("OrtValue({} of {:?} at {place})", numpy_name(self.dtype), self.shape)
    }
}
