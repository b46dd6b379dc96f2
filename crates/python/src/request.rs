//! A request of a Session: what its inputs are and where they lie, and the forms of outputs that requests had before.

use std::sync::{Arc, Mutex, PoisonError};

use precast::{Argument, DType, Form, SessionError, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::element_type::NumpyType;
use crate::exceptions::{exception, usage};
use crate::host_array::{
    Elements, array_dtype, as_row_major, borrowed_tensor, elements_in_place, is_array, whole_bytes,
};
use crate::interruptible::interruptible;
use crate::ort_value::OrtValue;

/// Forms of requests that are remembered; beyond this they are forgotten and learned again.
const FORMS_KEPT: usize = 256;

/// An input of a Session.
pub struct InputSlot {
    /// Its name, which Python compares by address first.
    pub name: Py<PyString>,
    /// What its elements are.
    pub ty: NumpyType,
}

/// The inputs of one request.
pub struct Request<'py> {
    /// Rank and sizes of every input, one after another.
    pub shapes: Vec<usize>,
    inputs: Vec<Input<'py>>,
    /// Inputs that had to be copied.
    pub copies: usize,
    /// Whether every input has the element type that the model expects.
    pub is_typed: bool,
}

struct Input<'py> {
    dtype: DType,
    elements: Elements,
    /// Held for its elements.
    owner: Bound<'py, PyAny>,
}

impl<'py> Request<'py> {
    /// A request without inputs yet.
    pub fn with_capacity(inputs: usize) -> Request<'py> {
        Request {
            shapes: Vec::with_capacity(5 * inputs),
            inputs: Vec::with_capacity(inputs),
            copies: 0,
            is_typed: true,
        }
    }

    /// Adds an input.
    pub fn add(&mut self, slot: &InputSlot, object: Bound<'py, PyAny>, refuses_copies: bool) -> PyResult<()> {
        let is_narrow = slot.ty.dtype.bits() < u8::BITS;
        if is_narrow && is_array(&object) {
            return self.add_narrow(slot, &object, refuses_copies);
        }
        if let Some(elements) = elements_in_place(&object, &slot.ty, &mut self.shapes) {
            self.inputs.push(Input { dtype: slot.ty.dtype, elements, owner: object });
            return Ok(());
        }
        if let Ok(value) = object.cast::<OrtValue>() {
            self.add_value(slot, &value.clone());
            return Ok(());
        }
        if !is_array(&object) && object.hasattr("__dlpack__")? {
            let value = OrtValue::from_dlpack(&object)?;
            let value = Bound::new(object.py(), value)?;
            self.add_value(slot, &value);
            return Ok(());
        }
        self.add_copy(slot, &object, refuses_copies)
    }

    /// Adds an input that an OrtValue holds.
    pub fn add_value(&mut self, slot: &InputSlot, value: &Bound<'py, OrtValue>) {
        let held = value.get();
        self.is_typed &= held.dtype == slot.ty.dtype;
        self.shapes.push(held.shape.len());
        self.shapes.extend_from_slice(&held.shape);
        self.inputs.push(Input { dtype: held.dtype, elements: held.elements, owner: value.clone().into_any() });
    }

    /// Adds an input whose elements do not lie as kernels read them, or are no array's.
    fn add_copy(&mut self, slot: &InputSlot, object: &Bound<'py, PyAny>, refuses_copies: bool) -> PyResult<()> {
        let py = object.py();
        let name = slot.name.bind(py);
        let (array, is_copy) = as_row_major(object)?;
        if is_copy && refuses_copies {
            let why = "its elements are not in row-major order, aligned and in the machine's byte order";
            return Err(usage(py, &format!("input '{name}' would have to be copied: {why}")));
        }
        let Some(dtype) = array_dtype(&array)? else {
            let (found, expected) = (array.getattr("dtype")?, slot.ty.dtype.name());
            return Err(usage(py, &format!("input '{name}' is an array of {found}; the model expects {expected}")));
        };
        self.is_typed &= dtype == slot.ty.dtype;
        self.copies += usize::from(is_copy);
        let ty = NumpyType::of(py, dtype)?;
        let elements = elements_in_place(&array, &ty, &mut self.shapes).or_else(|| {
            // Types that are alike under two numbers, as numpy's `int64` and `longlong` are.
            let view = array.call_method1("view", (ty.descr.bind(py),)).ok()?;
            elements_in_place(&view, &ty, &mut self.shapes)
        });
        let Some(elements) = elements else {
            return Err(usage(py, &format!("input '{name}' cannot be read: {}", array.getattr("flags")?)));
        };
        self.inputs.push(Input { dtype, elements, owner: array });
        Ok(())
    }

    /// Adds an array of elements of less than a byte.
    fn add_narrow(&mut self, slot: &InputSlot, object: &Bound<'py, PyAny>, refuses_copies: bool) -> PyResult<()> {
        let py = object.py();
        let dtype = slot.ty.dtype;
        if array_dtype(object)? != Some(dtype) {
            return self.add_copy(slot, object, refuses_copies);
        }
        if refuses_copies {
            let (name, ty) = (slot.name.bind(py), dtype.name());
            return Err(usage(py, &format!("input '{name}' would have to be copied: numpy has {ty} in another form")));
        }
        let (bytes, ty) = whole_bytes(object, dtype)?;
        self.copies += 1;
        let elements = elements_in_place(&bytes, &ty, &mut self.shapes);
        let elements = elements.ok_or_else(|| usage(py, &format!("input '{}' cannot be read", slot.name.bind(py))))?;
        self.inputs.push(Input { dtype, elements, owner: bytes });
        Ok(())
    }

    /// The inputs as a Session takes them.
    ///
    /// # Safety
    /// The request must live as long as the arguments are read.
    #[allow(unsafe_code, reason = "reads what the request holds")]
    pub unsafe fn arguments<'a>(&'a self) -> Vec<Argument<'a>> {
        let mut rest = &self.shapes[..];
        let argument = |input: &Input<'py>| {
            let rank = rest[0];
            let (shape, after) = rest[1..].split_at(rank);
            rest = after;
            // SAFETY: the owner of the elements is held by this request.
            Argument { dtype: input.dtype, shape, bytes: unsafe { input.elements.as_slice() } }
        };
        self.inputs.iter().map(argument).collect()
    }

    /// The inputs as tensors over the same elements, for another thread.
    fn borrowed(&self) -> PyResult<Vec<Tensor>> {
        let mut rest = &self.shapes[..];
        let mut tensors = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let (shape, after) = rest[1..].split_at(rest[0]);
            rest = after;
            tensors.push(borrowed_tensor(input.elements, input.dtype, shape, input.owner.clone().unbind())?);
        }
        Ok(tensors)
    }
}

/// An output as the caller gets it.
pub struct OutputForm {
    /// What its elements are.
    pub dtype: DType,
    /// Its sizes, as numpy takes them.
    pub shape: Vec<isize>,
    /// Bytes of all elements.
    pub bytes: usize,
}

impl OutputForm {
    fn new(dtype: DType, shape: &[usize]) -> OutputForm {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        OutputForm { dtype, shape: shape.iter().map(|&size| size as isize).collect(), bytes }
    }
}

/// What requests of one form get.
pub struct KnownForm {
    shapes: Vec<usize>,
    pub outputs: Vec<OutputForm>,
}

/// Forms of requests that were seen before.
#[derive(Default)]
pub struct KnownForms(Mutex<Vec<Arc<KnownForm>>>);

/// Why a form is not known and cannot be.
pub enum Unknown {
    /// The Session cannot answer.
    Refused(SessionError),
    /// Something else.
    Raised(PyErr),
}

impl From<PyErr> for Unknown {
    fn from(error: PyErr) -> Unknown {
        Unknown::Raised(error)
    }
}

impl Unknown {
    /// The exception.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Unknown::Refused(error) => exception(py, &error.into()),
            Unknown::Raised(error) => error,
        }
    }
}

impl KnownForms {
    /// What a request gets: what one like it got before, else what the Session says, which may have to compile first.
    pub fn find(&self, form: &Arc<Form>, request: &Request<'_>, py: Python<'_>) -> Result<Arc<KnownForm>, Unknown> {
        if request.is_typed {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(position) = known.iter().position(|known| known.shapes == request.shapes) {
                known[..=position].rotate_right(1);
                return Ok(known[0].clone());
            }
        }
        let (form, tensors) = (form.clone(), request.borrowed()?);
        let ask = move || {
            let arguments: Vec<Argument<'_>> = tensors.iter().map(Argument::from).collect();
            form.session().output_forms(&arguments)
        };
        let outputs = interruptible(py, "bind", ask)?.map_err(Unknown::Refused)?;
        let outputs = outputs.iter().map(|(dtype, shape)| OutputForm::new(*dtype, shape)).collect();
        let found = Arc::new(KnownForm { shapes: request.shapes.clone(), outputs });
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= FORMS_KEPT {
            known.clear();
        }
        known.insert(0, found.clone());
        Ok(found)
    }
}
