//! `IOBinding`: inputs and outputs of a session bound to memory that runs read and write in place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use precast::{Gpu, Value};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::exceptions::usage;
use crate::gpu_place::named_gpu;
use crate::host_array::array_of_tensor;
use crate::ort_value::{OrtValue, read_element_type};
use crate::request::KnownForm;
use crate::session::Session;

/// Inputs and outputs of a session bound to memory.
#[pyclass(frozen, name = "IOBinding", module = "precast")]
pub struct IoBinding {
    session: Py<Session>,
    bound: Mutex<Bindings>,
}

#[derive(Default)]
struct Bindings {
    /// By position of the input.
    inputs: Vec<Option<Py<OrtValue>>>,
    outputs: Vec<OutputBinding>,
    /// Outputs of the last run.
    results: Vec<Py<PyAny>>,
    /// Whether outputs were shown to lie apart from one another and from inputs since something was last bound.
    is_apart: bool,
}

impl Bindings {
    /// Refuses memory that a run would write twice, or write while it reads it.
    fn check_apart(&mut self, py: Python<'_>, session: &Session) -> PyResult<()> {
        if self.is_apart {
            return Ok(());
        }
        let place = |value: &Py<OrtValue>| (value.get().address(), value.get().bytes());
        let outputs = self.outputs.iter().enumerate().filter_map(|(position, output)| match output {
            OutputBinding::Value(value) => Some((position, place(value))),
            OutputBinding::Unasked | OutputBinding::New(_) => None,
        });
        let mut taken: Vec<(usize, usize)> = self.inputs.iter().flatten().map(place).collect();
        for (position, (start, bytes)) in outputs {
            if taken.iter().any(|&(other, others)| start < other + others && other < start + bytes) {
                let name = session.output_names()[position].bind(py);
                return Err(usage(py, &format!("output '{name}' is bound to memory of an input or of another output")));
            }
            taken.push((start, bytes));
        }
        self.is_apart = true;
        Ok(())
    }
}

/// Where an output goes.
#[derive(Default)]
enum OutputBinding {
    /// Nobody asked for it.
    #[default]
    Unasked,
    /// Into memory that each run makes, on this GPU or the host.
    New(Option<Arc<Gpu>>),
    /// Into this memory.
    Value(Py<OrtValue>),
}

impl IoBinding {
    /// A binding of nothing yet.
    pub fn new(session: Py<Session>) -> IoBinding {
        IoBinding { session, bound: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Bindings> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inputs, all of which must be bound.
    pub fn inputs(&self, py: Python<'_>, session: &Session) -> PyResult<Vec<Py<OrtValue>>> {
        let bound = self.lock();
        let mut inputs = Vec::with_capacity(bound.inputs.len());
        for (position, name) in session.input_names(py).enumerate() {
            match bound.inputs.get(position) {
                Some(Some(value)) => inputs.push(value.clone_ref(py)),
                _ => return Err(usage(py, &format!("input '{name}' is not bound"))),
            }
        }
        Ok(inputs)
    }

    /// A value for every output of a form: the one that is bound, which must be of its form, or a new one. One that nobody
    /// asked for is made on the GPU that inputs lie on.
    pub fn places<'py>(
        &self,
        py: Python<'py>,
        session: &Session,
        known: &KnownForm,
        inputs_on: Option<&Arc<Gpu>>,
    ) -> PyResult<Vec<Bound<'py, OrtValue>>> {
        let mut bound = self.lock();
        bound.check_apart(py, session)?;
        let mut places = Vec::with_capacity(known.outputs.len());
        for (position, form) in known.outputs.iter().enumerate() {
            let shape: Vec<usize> = form.shape.iter().map(|&size| size as usize).collect();
            let gpu = match bound.outputs.get(position) {
                Some(OutputBinding::New(gpu)) => gpu.as_ref(),
                Some(OutputBinding::Unasked | OutputBinding::Value(_)) | None => inputs_on,
            };
            let Some(OutputBinding::Value(value)) = bound.outputs.get(position) else {
                places.push(Bound::new(py, OrtValue::empty_at(py, gpu, form.dtype, &shape)?)?);
                continue;
            };
            let held = value.get();
            if held.dtype != form.dtype || held.shape != shape || !held.is_writable {
                let name = session.output_names()[position].bind(py);
                let found = format!("{}{:?}", held.dtype.name(), held.shape);
                let expected = format!("{}{shape:?}", form.dtype.name());
                let why = if held.is_writable { "" } else { ", and may only be read" };
                return Err(usage(py, &format!("output '{name}' is bound to {found}{why}; this run gives {expected}")));
            }
            places.push(value.bind(py).clone());
        }
        Ok(places)
    }

    /// Keeps the outputs of a run.
    pub fn keep(&self, values: Vec<Bound<'_, OrtValue>>) {
        self.lock().results = values.into_iter().map(|value| value.into_any().unbind()).collect();
    }

    /// Keeps the outputs of a run part by part, copying them to where they are bound.
    pub fn keep_values(&self, py: Python<'_>, session: &Session, values: &[Value]) -> PyResult<()> {
        let mut results = Vec::with_capacity(values.len());
        for (position, value) in values.iter().enumerate() {
            let Value::Tensor(tensor) = value else {
                let name = session.output_names()[position].bind(py);
                return Err(usage(py, &format!("output '{name}' is no tensor of numbers; only run gives such values")));
            };
            let array = array_of_tensor(py, tensor)?;
            let target = match self.lock().outputs.get(position) {
                Some(OutputBinding::Value(target)) => Some(target.clone_ref(py)),
                _ => None,
            };
            results.push(match target {
                Some(target) => {
                    target.bind(py).call_method1("update_inplace", (array,))?;
                    target.into_any()
                }
                None => Py::new(py, OrtValue::of_array(&array)?)?.into_any(),
            });
        }
        self.lock().results = results;
        Ok(())
    }

    fn set_input(&self, py: Python<'_>, name: &Bound<'_, PyString>, value: Py<OrtValue>) -> PyResult<()> {
        let position = self.session.get().input_position(py, name)?;
        let mut bound = self.lock();
        if bound.inputs.len() <= position {
            bound.inputs.resize_with(position + 1, || None);
        }
        bound.inputs[position] = Some(value);
        bound.is_apart = false;
        Ok(())
    }

    fn set_output(&self, py: Python<'_>, name: &Bound<'_, PyString>, binding: OutputBinding) -> PyResult<()> {
        let position = self.session.get().output_position(py, name)?;
        let mut bound = self.lock();
        if bound.outputs.len() <= position {
            bound.outputs.resize_with(position + 1, OutputBinding::default);
        }
        bound.outputs[position] = binding;
        bound.is_apart = false;
        Ok(())
    }
}

#[pymethods]
impl IoBinding {
    #[new]
    fn of_session(session: Py<Session>) -> IoBinding {
        IoBinding::new(session)
    }

    /// Binds an input to an array, which runs read in place where its elements lie in row-major order.
    fn bind_cpu_input(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        arr_on_cpu: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.set_input(py, name, Py::new(py, OrtValue::of_array(arr_on_cpu)?)?)
    }

    /// Binds an input to memory at an address of the host or of a GPU, which the caller keeps.
    fn bind_input(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        device_type: &str,
        device_id: i64,
        element_type: &Bound<'_, PyAny>,
        shape: Vec<usize>,
        buffer_ptr: usize,
    ) -> PyResult<()> {
        let gpu = named_gpu(py, device_type, device_id)?;
        let value = OrtValue::at_address(py, gpu.as_ref(), read_element_type(element_type)?, shape, buffer_ptr)?;
        self.set_input(py, name, Py::new(py, value)?)
    }

    /// Binds an input to an OrtValue.
    pub fn bind_ortvalue_input(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        ortvalue: &Bound<'_, OrtValue>,
    ) -> PyResult<()> {
        self.set_input(py, name, ortvalue.clone().unbind())
    }

    /// Binds an output to memory at an address of the host or of a GPU, or to memory that each run makes there.
    #[pyo3(signature = (name, device_type = "cpu", device_id = 0, element_type = None, shape = None, buffer_ptr = None))]
    fn bind_output(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        device_type: &str,
        device_id: i64,
        element_type: Option<&Bound<'_, PyAny>>,
        shape: Option<Vec<usize>>,
        buffer_ptr: Option<usize>,
    ) -> PyResult<()> {
        let gpu = named_gpu(py, device_type, device_id)?;
        let binding = match (element_type, shape, buffer_ptr) {
            (_, _, None) => OutputBinding::New(gpu),
            (Some(ty), Some(shape), Some(address)) => {
                let value = OrtValue::at_address(py, gpu.as_ref(), read_element_type(ty)?, shape, address)?;
                OutputBinding::Value(Py::new(py, value)?)
            }
            _ => return Err(usage(py, &format!("output '{name}': buffer_ptr needs element_type and shape"))),
        };
        self.set_output(py, name, binding)
    }

    /// Binds an output to an OrtValue, which runs write in place.
    fn bind_ortvalue_output(
        &self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        ortvalue: &Bound<'_, OrtValue>,
    ) -> PyResult<()> {
        self.set_output(py, name, OutputBinding::Value(ortvalue.clone().unbind()))
    }

    /// Waits for everything that is queued on the session's GPU, such as what writes inputs. Memory of the host is there at once.
    fn synchronize_inputs(&self, py: Python<'_>) -> PyResult<()> {
        self.session.get().synchronize(py)
    }

    /// Waits for runs that were told not to be waited for.
    fn synchronize_outputs(&self, py: Python<'_>) -> PyResult<()> {
        self.session.get().synchronize(py)
    }

    /// Outputs of the last run, as OrtValues: those that are bound, or all where none is.
    pub fn get_outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let bound = self.lock();
        let is_asked = |position: usize| !matches!(bound.outputs.get(position), None | Some(OutputBinding::Unasked));
        let asks_for_some = (0..bound.results.len()).any(is_asked);
        let results = bound.results.iter().enumerate().filter(|(position, _)| !asks_for_some || is_asked(*position));
        PyList::new(py, results.map(|(_, result)| result.bind(py)))
    }

    /// Outputs of the last run, as arrays over the same memory, or of copies where that is a GPU's.
    fn copy_outputs_to_cpu<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let arrays = self.get_outputs(py)?.iter().map(|value| value.call_method0("numpy"));
        PyList::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
    }

    /// Forgets what inputs are bound to.
    fn clear_binding_inputs(&self) {
        self.lock().inputs.clear();
    }

    /// Forgets what outputs are bound to.
    fn clear_binding_outputs(&self) {
        self.lock().outputs.clear();
    }
}
