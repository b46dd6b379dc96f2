//! A request of a Session: what its inputs are and where they lie, and the forms of outputs that requests had before.

use std::sync::{Arc, Mutex, PoisonError};

use precast::{Argument, DType, Form, Gpu, GpuInput, InputMemory, SessionError, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::element_type::NumpyType;
use crate::exceptions::{exception, usage};
use crate::host_array::{
    Elements, array_dtype, as_row_major, borrowed_tensor, elements_in_place, is_array, whole_bytes,
};
use crate::interruptible::interruptible;
use crate::ort_value::{OrtValue, Place};

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
    /// The GPU whose memory the Session reads in place.
    gpu: Option<&'py Arc<Gpu>>,
    /// Whether an input lies on that GPU.
    pub is_on_gpu: bool,
    /// Whether inputs that would have to be copied are refused.
    refuses_copies: bool,
    /// Inputs that had to be copied.
    pub copies: usize,
    /// Whether every input has the element type that the model expects.
    pub is_typed: bool,
}

struct Input<'py> {
    dtype: DType,
    elements: InputElements<'py>,
    /// Held for its elements.
    owner: Bound<'py, PyAny>,
}

/// Where the elements of an input lie.
enum InputElements<'py> {
    Host(Elements),
    /// On the Session's GPU, in this value.
    Gpu(Bound<'py, OrtValue>),
}

impl<'py> Request<'py> {
    /// A request without inputs yet.
    pub fn with_capacity(inputs: usize, gpu: Option<&'py Arc<Gpu>>, refuses_copies: bool) -> Request<'py> {
        Request {
            shapes: Vec::with_capacity(5 * inputs),
            inputs: Vec::with_capacity(inputs),
            gpu,
            is_on_gpu: false,
            refuses_copies,
            copies: 0,
            is_typed: true,
        }
    }

    /// Adds an input.
    pub fn add(&mut self, slot: &InputSlot, object: Bound<'py, PyAny>) -> PyResult<()> {
        let is_narrow = slot.ty.dtype.bits() < u8::BITS;
        if is_narrow && is_array(&object) {
            return self.add_narrow(slot, &object);
        }
        if let Some(elements) = elements_in_place(&object, &slot.ty, &mut self.shapes) {
            self.push(slot.ty.dtype, elements, object);
            return Ok(());
        }
        if let Ok(value) = object.cast::<OrtValue>() {
            return self.add_value(slot, &value.clone());
        }
        if !is_array(&object) && object.hasattr("__dlpack__")? {
            let value = OrtValue::from_dlpack(&object)?;
            let value = Bound::new(object.py(), value)?;
            return self.add_value(slot, &value);
        }
        self.add_copy(slot, &object)
    }

    /// Adds an input whose elements lie on the host.
    fn push(&mut self, dtype: DType, elements: Elements, owner: Bound<'py, PyAny>) {
        self.inputs.push(Input { dtype, elements: InputElements::Host(elements), owner });
    }

    /// Adds an input that an OrtValue holds. One on a GPU that the Session does not run on is copied to the host.
    pub fn add_value(&mut self, slot: &InputSlot, value: &Bound<'py, OrtValue>) -> PyResult<()> {
        let (py, held) = (value.py(), value.get());
        let elements = match &held.place {
            Place::Host(elements) => InputElements::Host(*elements),
            Place::Gpu(memory) if self.gpu.is_some_and(|gpu| Arc::ptr_eq(gpu, memory.gpu())) => {
                self.is_on_gpu = true;
                InputElements::Gpu(value.clone())
            }
            Place::Gpu(memory) => {
                if self.refuses_copies {
                    let (name, found) = (slot.name.bind(py), memory.gpu().name());
                    let why = format!("it lies on '{found}', which the session does not run on");
                    return Err(usage(py, &format!("input '{name}' would have to be copied: {why}")));
                }
                self.copies += 1;
                return self.add_value(slot, &Bound::new(py, held.on_host(py)?)?);
            }
        };
        self.is_typed &= held.dtype == slot.ty.dtype;
        self.shapes.push(held.shape.len());
        self.shapes.extend_from_slice(&held.shape);
        self.inputs.push(Input { dtype: held.dtype, elements, owner: value.clone().into_any() });
        Ok(())
    }

    /// Adds an input whose elements do not lie as kernels read them, or are no array's.
    fn add_copy(&mut self, slot: &InputSlot, object: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = object.py();
        let name = slot.name.bind(py);
        let (array, is_copy) = as_row_major(object)?;
        if is_copy && self.refuses_copies {
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
        self.push(dtype, elements, array);
        Ok(())
    }

    /// Adds an array of elements of less than a byte.
    fn add_narrow(&mut self, slot: &InputSlot, object: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = object.py();
        let dtype = slot.ty.dtype;
        if array_dtype(object)? != Some(dtype) {
            return self.add_copy(slot, object);
        }
        if self.refuses_copies {
            let (name, ty) = (slot.name.bind(py), dtype.name());
            return Err(usage(py, &format!("input '{name}' would have to be copied: numpy has {ty} in another form")));
        }
        let (bytes, ty) = whole_bytes(object, dtype)?;
        self.copies += 1;
        let elements = elements_in_place(&bytes, &ty, &mut self.shapes);
        let elements = elements.ok_or_else(|| usage(py, &format!("input '{}' cannot be read", slot.name.bind(py))))?;
        self.push(dtype, elements, bytes);
        Ok(())
    }

    /// The inputs with their shapes.
    fn shaped(&self) -> impl Iterator<Item = (&Input<'py>, &[usize])> {
        let mut rest = &self.shapes[..];
        self.inputs.iter().map(move |input| {
            let (shape, after) = rest[1..].split_at(rest[0]);
            rest = after;
            (input, shape)
        })
    }

    /// The inputs as a Session takes them, none of which is on a GPU.
    ///
    /// # Safety
    /// The request must live as long as the arguments are read.
    #[allow(unsafe_code, reason = "reads what the request holds")]
    pub unsafe fn arguments<'a>(&'a self) -> Vec<Argument<'a>> {
        let bytes = |input: &Input<'py>| match &input.elements {
            // SAFETY: the owner of the elements is held by this request.
            InputElements::Host(elements) => unsafe { elements.as_slice() },
            InputElements::Gpu(_) => unreachable!("such a request runs on its GPU"),
        };
        self.shaped().map(|(input, shape)| Argument { dtype: input.dtype, shape, bytes: bytes(input) }).collect()
    }

    /// The inputs as a Session on their GPU takes them.
    ///
    /// # Safety
    /// As for `arguments`.
    #[allow(unsafe_code, reason = "reads what the request holds")]
    pub unsafe fn gpu_inputs<'a>(&'a self) -> Vec<GpuInput<'a>> {
        let memory = |input: &'a Input<'py>| match &input.elements {
            // SAFETY: as above.
            InputElements::Host(elements) => InputMemory::Host(unsafe { elements.as_slice() }),
            InputElements::Gpu(value) => match &value.get().place {
                Place::Gpu(memory) => InputMemory::Gpu(memory),
                Place::Host(_) => unreachable!("a value does not move"),
            },
        };
        self.shaped().map(|(input, shape)| GpuInput { dtype: input.dtype, shape, memory: memory(input) }).collect()
    }

    /// What inputs the outputs' forms are asked for with, on another thread.
    fn question(&self) -> PyResult<Question> {
        let (mut tensors, mut forms) = (Vec::new(), Vec::new());
        for (input, shape) in self.shaped() {
            match &input.elements {
                InputElements::Host(elements) if !self.is_on_gpu => {
                    tensors.push(borrowed_tensor(*elements, input.dtype, shape, input.owner.clone().unbind())?);
                }
                InputElements::Host(_) | InputElements::Gpu(_) => forms.push((input.dtype, shape.to_vec())),
            }
        }
        Ok(if self.is_on_gpu { Question::Forms(forms) } else { Question::Tensors(tensors) })
    }
}

/// The inputs of a request as far as the forms of its outputs depend on them.
enum Question {
    /// Tensors over the request's elements.
    Tensors(Vec<Tensor>),
    /// Element types and sizes of inputs that the host does not read.
    Forms(Vec<(DType, Vec<usize>)>),
}

impl Question {
    /// Element types and sizes of the outputs.
    fn ask(&self, session: &precast::Session) -> Result<Vec<(DType, Vec<usize>)>, SessionError> {
        match self {
            Question::Tensors(tensors) => {
                session.output_forms(&tensors.iter().map(Argument::from).collect::<Vec<Argument<'_>>>())
            }
            Question::Forms(forms) => {
                let forms: Vec<(DType, &[usize])> = forms.iter().map(|(dtype, shape)| (*dtype, &shape[..])).collect();
                session.output_forms_on_device(&forms)
            }
        }
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
        let (form, question) = (form.clone(), request.question()?);
        let outputs = interruptible(py, "bind", move || question.ask(form.session()))?.map_err(Unknown::Refused)?;
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
