//! The native half of `InferenceSession`: requests on a model that is open. Names, options and defaults of onnxruntime are
//! given to it by the Python half.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use precast::device_name::resolve_device;
use precast::{Form, Gpu, Model, OutputMemory, Readiness, Value, run_on_gpu};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::element_type::NumpyType;
use crate::exceptions::{exception, usage};
use crate::host_array::{elements_mut, empty_array};
use crate::interruptible::{detached, interruptible};
use crate::io_binding::IoBinding;
use crate::model_value::{object_of, value_of};
use crate::node_arg::{NodeArg, PyModelMetadata};
use crate::opened_model::{OpenedModel, Opening};
use crate::ort_value::{OrtValue, Place};
use crate::request::{InputSlot, KnownForm, KnownForms, Request, Unknown};
use crate::run_options::RunOptions;
use crate::run_report::PyRunReport;
use crate::settings::read_settings;

/// A model on a device, for requests of any size from any number of threads.
#[pyclass(frozen, subclass, module = "precast._precast")]
pub struct Session {
    /// Taken out when the Session is dropped.
    opened: Option<Arc<OpenedModel>>,
    /// What the person who opened it should know.
    #[pyo3(get)]
    notices: Vec<String>,
    inputs: Vec<Py<NodeArg>>,
    outputs: Vec<Py<NodeArg>>,
    /// Inputs of the one Session in its order; empty where there is not one.
    slots: Vec<InputSlot>,
    /// Names of the outputs.
    output_names: Vec<Py<PyString>>,
    /// Element types of outputs, once each was asked for.
    output_types: Mutex<Vec<Option<Arc<NumpyType>>>>,
    known: KnownForms,
    refuses_copies: bool,
    last_run: Mutex<Option<PyRunReport>>,
}

/// Where the outputs of a request go.
enum Places<'py> {
    /// New arrays.
    Arrays(Vec<Bound<'py, PyAny>>),
    /// Values that the caller bound, or new ones.
    Values(Vec<Bound<'py, OrtValue>>),
}

impl Places<'_> {
    /// Whether an output goes to a GPU.
    fn are_on_gpu(&self) -> bool {
        match self {
            Places::Arrays(_) => false,
            Places::Values(values) => values.iter().any(|value| value.get().gpu().is_some()),
        }
    }

    /// The memory of each output.
    ///
    /// # Safety
    /// The places must outlive what is given, be of the forms of a run, and be used by nobody else.
    #[allow(unsafe_code, reason = "hands out memory of Python objects to be written")]
    unsafe fn outputs<'a>(&'a self, known: &'a KnownForm) -> impl Iterator<Item = OutputMemory<'a>> {
        let (arrays, values): (&[_], &[_]) = match self {
            Places::Arrays(arrays) => (arrays, &[]),
            Places::Values(values) => (&[], values),
        };
        let arrays = arrays.iter().zip(&known.outputs);
        // SAFETY: each array was made for this run, has the bytes of its form, and nobody else has it yet.
        let arrays = arrays.map(|(array, form)| OutputMemory::Host(unsafe { elements_mut(array, form.bytes) }));
        let values = values.iter().map(|value| match &value.get().place {
            // SAFETY: the caller gave these values to be written by this run, holds them, and they are of their forms.
            Place::Host(elements) => OutputMemory::Host(unsafe { elements.as_mut_slice() }),
            Place::Gpu(memory) => OutputMemory::Gpu(memory),
        });
        arrays.chain(values)
    }
}

impl Session {
    fn opened(&self) -> &Arc<OpenedModel> {
        self.opened.as_ref().expect("taken out by drop alone")
    }

    /// The GPU that the model is on, if it is on one.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.opened().gpu.as_ref()
    }

    /// Waits for everything that is queued on the session's GPU.
    pub fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let Some(gpu) = self.gpu() else { return Ok(()) };
        detached(py, || gpu.synchronize())?.map_err(|error| exception(py, &error))
    }

    /// Names of the outputs.
    pub fn output_names(&self) -> &[Py<PyString>] {
        &self.output_names
    }

    /// Names of the inputs.
    pub fn input_names<'py>(&self, py: Python<'py>) -> impl Iterator<Item = Bound<'py, PyString>> {
        self.inputs.iter().map(move |input| input.get().name.bind(py).clone())
    }

    /// Which of the inputs has this name.
    pub fn input_position(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<usize> {
        position_of(py, name, self.inputs.iter().map(|input| &input.get().name), "input")
    }

    /// Which of the outputs has this name.
    pub fn output_position(&self, py: Python<'_>, name: &Bound<'_, PyString>) -> PyResult<usize> {
        position_of(py, name, self.output_names.iter(), "output")
    }

    /// The outputs that are asked for, by position; none asks for all.
    fn wanted(&self, py: Python<'_>, names: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<usize>>> {
        let Some(names) = names.filter(|names| !names.is_none()) else { return Ok(None) };
        let mut wanted = Vec::new();
        for name in names.try_iter()? {
            let name = name?;
            let text = name.cast::<PyString>().map_err(|_| usage(py, &format!("'{name}' is no name of an output")))?;
            wanted.push(self.output_position(py, text)?);
        }
        // As onnxruntime has it: no names ask for all outputs.
        Ok((!wanted.is_empty()).then_some(wanted))
    }

    /// The inputs of a feed.
    fn gather<'py>(&'py self, feed: &Bound<'py, PyDict>) -> PyResult<Request<'py>> {
        let py = feed.py();
        let mut request = Request::with_capacity(self.slots.len(), self.gpu(), self.refuses_copies);
        for slot in &self.slots {
            match feed.get_item(slot.name.bind(py))? {
                Some(object) => request.add(slot, object)?,
                None => {
                    self.check_names(feed)?;
                    return Err(usage(py, &format!("input '{}' is not given", slot.name.bind(py))));
                }
            }
        }
        if feed.len() != self.slots.len() {
            self.check_names(feed)?;
        }
        Ok(request)
    }

    /// Every name of a feed must be an input.
    fn check_names(&self, feed: &Bound<'_, PyDict>) -> PyResult<()> {
        for name in feed.keys() {
            let text = name.cast::<PyString>().map_err(|_| usage(feed.py(), &format!("'{name}' is no name")))?;
            self.input_position(feed.py(), text)?;
        }
        Ok(())
    }

    /// Runs a request of the one Session. None where it turned out that the model must be run part by part.
    fn run_request<'py>(
        &self,
        form: &Arc<Form>,
        request: &Request<'py>,
        places: impl FnOnce(&KnownForm) -> PyResult<Places<'py>>,
        waits: bool,
        py: Python<'py>,
    ) -> PyResult<Option<Places<'py>>> {
        let known = match self.known.find(form, request, py) {
            Ok(known) => known,
            Err(Unknown::Refused(error)) if self.opened().turn_to_parts(&error) => return Ok(None),
            Err(unknown) => return Err(unknown.raise(py)),
        };
        let places = places(&known)?;
        match self.gpu().filter(|_| request.is_on_gpu || places.are_on_gpu()) {
            Some(gpu) => self.run_on_gpu(form, gpu, request, &known, &places, waits, py)?,
            None => self.run_into(form, request, &known, &places, py)?,
        }
        Ok(Some(places))
    }

    #[allow(unsafe_code, reason = "one of two places where memory of Python objects is used without the lock")]
    fn run_into(
        &self,
        form: &Arc<Form>,
        request: &Request<'_>,
        known: &KnownForm,
        places: &Places<'_>,
        py: Python<'_>,
    ) -> PyResult<()> {
        // SAFETY: the request outlives the run.
        let arguments = unsafe { request.arguments() };
        // SAFETY: the places outlive the run, and were made or given for it.
        let outputs = unsafe { places.outputs(known) };
        let mut outputs: Vec<&mut [u8]> = outputs
            .map(|output| match output {
                OutputMemory::Host(bytes) => bytes,
                OutputMemory::Gpu(_) => unreachable!("such a request runs on its GPU"),
            })
            .collect();
        let report = detached(py, || form.session().run_into(&arguments, &mut outputs))?;
        let report = report.map_err(|error| exception(py, &error.into()))?;
        self.keep_report(PyRunReport { report: Some(report), copies: request.copies });
        Ok(())
    }

    #[allow(unsafe_code, reason = "one of two places where memory of Python objects is used without the lock")]
    fn run_on_gpu(
        &self,
        form: &Arc<Form>,
        gpu: &Arc<Gpu>,
        request: &Request<'_>,
        known: &KnownForm,
        places: &Places<'_>,
        waits: bool,
        py: Python<'_>,
    ) -> PyResult<()> {
        // SAFETY: the request outlives the run.
        let inputs = unsafe { request.gpu_inputs() };
        // SAFETY: the places outlive the run, and were made or given for it.
        let mut outputs: Vec<OutputMemory<'_>> = unsafe { places.outputs(known) }.collect();
        let report = detached(py, || run_on_gpu(form.session(), gpu, &inputs, &mut outputs, waits))?;
        let report = report.map_err(|error| exception(py, &error))?;
        self.keep_report(PyRunReport { report: Some(report), copies: request.copies });
        Ok(())
    }

    fn keep_report(&self, report: PyRunReport) {
        *self.last_run.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// New arrays for the outputs of a form.
    fn new_arrays<'py>(&self, py: Python<'py>, known: &KnownForm) -> PyResult<Places<'py>> {
        let mut types = self.output_types.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arrays = Vec::with_capacity(known.outputs.len());
        for (form, ty) in known.outputs.iter().zip(types.iter_mut()) {
            if ty.as_ref().is_none_or(|ty| ty.dtype != form.dtype) {
                *ty = Some(Arc::new(NumpyType::of(py, form.dtype)?));
            }
            let ty = ty.as_ref().expect("set above");
            arrays.push(empty_array(py, ty, &form.shape)?);
        }
        Ok(Places::Arrays(arrays))
    }

    /// Runs a model whose requests are no single Session's: by the values of the feed.
    fn run_by_values<'py>(&self, feed: &Bound<'py, PyDict>) -> PyResult<Vec<Value>> {
        let py = feed.py();
        self.check_names(feed)?;
        let mut inputs = Vec::with_capacity(feed.len());
        for (name, object) in feed {
            let name: String = name.extract()?;
            let value = value_of(&name, &object)?;
            inputs.push((name, value));
        }
        let (opened, copies) = (self.opened().clone(), inputs.len());
        let ran = interruptible(py, "run", move || opened.run_values(inputs))?;
        let (outputs, report) = ran.map_err(|error| exception(py, &error))?;
        self.keep_report(PyRunReport { report, copies });
        Ok(outputs)
    }

    /// Runs what is bound.
    pub fn run_bound(&self, py: Python<'_>, binding: &IoBinding, waits: bool) -> PyResult<()> {
        let inputs = binding.inputs(py, self)?;
        if let Some(form) = self.opened().form() {
            let mut request = Request::with_capacity(self.slots.len(), self.gpu(), self.refuses_copies);
            for slot in &self.slots {
                let position = self.input_position(py, slot.name.bind(py))?;
                request.add_value(slot, inputs[position].bind(py))?;
            }
            let inputs_on = self.gpu().filter(|_| request.is_on_gpu);
            let mut bound = Vec::new();
            let places = |known: &KnownForm| {
                bound = binding.places(py, self, known, inputs_on)?;
                Ok(Places::Values(self.reachable(py, &bound)?))
            };
            if let Some(Places::Values(written)) = self.run_request(form, &request, places, waits, py)? {
                for (value, written) in bound.iter().zip(&written).filter(|(value, written)| !value.is(*written)) {
                    value.get().copy_from(py, written.get())?;
                }
                binding.keep(bound);
                return Ok(());
            }
        }
        let feed = PyDict::new(py);
        for (input, value) in self.inputs.iter().zip(&inputs) {
            feed.set_item(&input.get().name, value)?;
        }
        binding.keep_values(py, self, &self.run_by_values(&feed)?)
    }

    /// The same values, with new ones on the host for those on GPUs that the session does not run on.
    fn reachable<'py>(&self, py: Python<'py>, values: &[Bound<'py, OrtValue>]) -> PyResult<Vec<Bound<'py, OrtValue>>> {
        let is_here = |gpu: &Arc<Gpu>| self.gpu().is_some_and(|own| Arc::ptr_eq(own, gpu));
        let reachable = |value: &Bound<'py, OrtValue>| match value.get().gpu() {
            Some(gpu) if !is_here(gpu) => {
                let held = value.get();
                Bound::new(py, OrtValue::empty(py, held.dtype, &held.shape)?)
            }
            Some(_) | None => Ok(value.clone()),
        };
        values.iter().map(reachable).collect()
    }

    /// All outputs as objects.
    fn run_all<'py>(&'py self, feed: &Bound<'py, PyDict>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = feed.py();
        if let Some(form) = self.opened().form() {
            let request = self.gather(feed)?;
            let places = |known: &KnownForm| self.new_arrays(py, known);
            if let Some(Places::Arrays(arrays)) = self.run_request(form, &request, places, true, py)? {
                return Ok(arrays);
            }
        }
        self.run_by_values(feed)?.iter().map(|value| object_of(py, value)).collect()
    }
}

/// Where a name is in a list. Names that Python handed out before are found by address.
fn position_of<'a>(
    py: Python<'_>,
    name: &Bound<'_, PyString>,
    names: impl Iterator<Item = &'a Py<PyString>> + Clone,
    what: &str,
) -> PyResult<usize> {
    if let Some(position) = names.clone().position(|known| known.is(name)) {
        return Ok(position);
    }
    let text = name.to_str()?;
    let known: Vec<&str> = names.map(|name| name.bind(py).to_str()).collect::<PyResult<_>>()?;
    known.iter().position(|known| *known == text).ok_or_else(|| {
        usage(py, &format!("there is no {what} '{text}'; {}", precast::suggestion::listed(text, &known)))
    })
}

/// Opens the model that a path or bytes are.
pub fn read_model(py: Python<'_>, path_or_bytes: &Bound<'_, PyAny>) -> PyResult<Model> {
    let model = if let Ok(bytes) = path_or_bytes.cast::<PyBytes>() {
        let bytes = Bytes::copy_from_slice(bytes.as_bytes());
        interruptible(py, "read", move || Model::from_bytes(bytes))?
    } else {
        let path: PathBuf = path_or_bytes
            .extract()
            .map_err(|_| usage(py, &format!("a model is a path or bytes; a {} is given", path_or_bytes.get_type())))?;
        interruptible(py, "read", move || Model::open(&path))?
    };
    model.map_err(|error| exception(py, &error))
}

fn declared(py: Python<'_>, values: Vec<precast::DeclaredValue>) -> PyResult<Vec<Py<NodeArg>>> {
    let arg = |value: precast::DeclaredValue| {
        let name = PyString::intern(py, &value.name).unbind();
        Py::new(py, NodeArg::new(py, value, &name))
    };
    values.into_iter().map(arg).collect()
}

/// The inputs of the one Session, in its order, under the names that are handed out.
fn slots_of(py: Python<'_>, opened: &OpenedModel) -> PyResult<Vec<InputSlot>> {
    let Some(form) = opened.form() else { return Ok(Vec::new()) };
    let slot = |input: &precast::SymbolicPort| {
        let name = PyString::intern(py, &input.name).unbind();
        Ok(InputSlot { name, ty: NumpyType::of(py, input.ty.dtype)? })
    };
    form.session().interface().inputs.iter().map(slot).collect()
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path_or_bytes, devices, refuses_copies = false, settings = None))]
    fn new(
        py: Python<'_>,
        path_or_bytes: &Bound<'_, PyAny>,
        devices: Vec<String>,
        refuses_copies: bool,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Session> {
        let settings = read_settings(py, settings)?;
        let model = read_model(py, path_or_bytes)?;
        let names = devices.iter().map(|device| resolve_device(device)).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|error| exception(py, &error))?;
        let open = move || OpenedModel::open(&model, &settings, &names);
        let Opening { opened, notices } = interruptible(py, "open", open)?.map_err(|error| exception(py, &error))?;
        let inputs = declared(py, opened.model.declared_inputs().map_err(|error| exception(py, &error))?)?;
        let outputs = declared(py, opened.model.declared_results().map_err(|error| exception(py, &error))?)?;
        let output_names: Vec<Py<PyString>> = outputs.iter().map(|output| output.get().name.clone_ref(py)).collect();
        Ok(Session {
            slots: slots_of(py, &opened)?,
            opened: Some(Arc::new(opened)),
            notices,
            inputs,
            output_types: Mutex::new(outputs.iter().map(|_| None).collect()),
            outputs,
            output_names,
            known: KnownForms::default(),
            refuses_copies,
            last_run: Mutex::default(),
        })
    }

    /// Runs the model: the outputs of these names, in order, or all of them.
    #[pyo3(signature = (output_names, input_feed, run_options = None))]
    fn run<'py>(
        &'py self,
        py: Python<'py>,
        output_names: Option<&Bound<'py, PyAny>>,
        input_feed: &Bound<'py, PyDict>,
        run_options: Option<&Bound<'py, RunOptions>>,
    ) -> PyResult<Bound<'py, PyList>> {
        RunOptions::check(py, run_options)?;
        let wanted = self.wanted(py, output_names)?;
        let outputs = self.run_all(input_feed)?;
        match wanted {
            None => PyList::new(py, outputs),
            Some(wanted) => PyList::new(py, wanted.into_iter().map(|position| &outputs[position])),
        }
    }

    /// Runs the model on OrtValues, and gives OrtValues.
    #[pyo3(signature = (output_names, input_dict_ort_values, run_options = None))]
    fn run_with_ort_values<'py>(
        slf: &Bound<'py, Self>,
        output_names: Option<&Bound<'py, PyAny>>,
        input_dict_ort_values: &Bound<'py, PyDict>,
        run_options: Option<&Bound<'py, RunOptions>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, session) = (slf.py(), slf.get());
        RunOptions::check(py, run_options)?;
        let wanted = session.wanted(py, output_names)?;
        let binding = IoBinding::new(slf.clone().unbind());
        for (name, value) in input_dict_ort_values {
            binding.bind_ortvalue_input(py, name.cast::<PyString>()?, value.cast::<OrtValue>()?)?;
        }
        session.run_bound(py, &binding, true)?;
        let outputs = binding.get_outputs(py)?;
        match wanted {
            None => Ok(outputs),
            Some(wanted) => {
                let chosen = wanted.into_iter().map(|position| outputs.get_item(position));
                PyList::new(py, chosen.collect::<PyResult<Vec<_>>>()?)
            }
        }
    }

    /// Runs the model on what is bound.
    #[pyo3(signature = (iobinding, run_options = None))]
    fn run_with_iobinding(
        &self,
        py: Python<'_>,
        iobinding: &Bound<'_, IoBinding>,
        run_options: Option<&Bound<'_, RunOptions>>,
    ) -> PyResult<()> {
        RunOptions::check(py, run_options)?;
        self.run_bound(py, iobinding.get(), RunOptions::waits(run_options))
    }

    /// A new binding of inputs and outputs to memory.
    fn io_binding(slf: &Bound<'_, Self>) -> IoBinding {
        IoBinding::new(slf.clone().unbind())
    }

    /// Inputs that a request must give, in order.
    fn get_inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.inputs.iter().map(|input| input.bind(py)))
    }

    /// Outputs, in order.
    fn get_outputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.outputs.iter().map(|output| output.bind(py)))
    }

    /// Inputs that have a value in the model. They are constants of the compiled Programs: a request cannot change them.
    fn get_overridable_initializers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let initialized = self.opened().model.initialized_inputs().map_err(|error| exception(py, &error))?;
        PyList::new(py, declared(py, initialized)?)
    }

    /// What the author of the model wrote beside it.
    fn get_modelmeta(&self) -> PyModelMetadata {
        PyModelMetadata(self.opened().model.metadata())
    }

    /// The one name of the device that the model is on.
    #[getter]
    fn device(&self) -> String {
        self.opened().device.to_string()
    }

    /// What the last run did, of whichever thread; None before the first.
    #[getter]
    fn last_run(&self) -> Option<PyRunReport> {
        self.last_run.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Programs that this session compiled, and did not find in its cache.
    #[getter]
    fn compiles(&self) -> u64 {
        self.opened().session().map_or(0, |session| session.compiles())
    }

    /// Extents of the batch that have Programs, in increasing order; empty where every size is exact.
    #[getter]
    fn buckets(&self) -> Vec<i64> {
        self.opened().form().map_or(Vec::new(), |form| form.session().extents())
    }

    /// The dim that the Buckets are of, by its name in the model.
    #[getter]
    fn batch_dim(&self) -> Option<String> {
        self.opened().form().and_then(|form| form.session().primary_dim().map(ToString::to_string))
    }

    /// Names of inputs and of outputs whose first axis is the batch, row by row.
    #[getter]
    fn batched_names(&self) -> (Vec<String>, Vec<String>) {
        let Some(form) = self.opened().form() else { return Default::default() };
        let (session, interface) = (form.session(), form.session().interface());
        let Some(batch) = session.primary_dim() else { return Default::default() };
        let is_batch = |dim: &precast::Dim| dim.as_symbol().is_some_and(|symbol| symbol.as_str() == batch);
        let inputs = interface.inputs.iter().filter(|input| input.ty.dims.first().is_some_and(is_batch));
        let rows = interface.dims.iter().find(|dim| dim.symbol == batch).map_or(&[][..], |dim| &dim.outputs);
        let has_rows = |rows: &&Option<precast::RowAxis>| {
            rows.is_some_and(|rows| (rows.axis, rows.outer, rows.inner) == (0, 1, 1))
        };
        let outputs = interface.outputs.iter().zip(rows).filter(|(_, rows)| has_rows(rows));
        let names = |ports: Vec<&precast::SymbolicPort>| ports.iter().map(|port| port.name.clone()).collect();
        (names(inputs.collect()), names(outputs.map(|(port, _)| port).collect()))
    }

    /// Waits until every Bucket is compiled and measured, at most so many seconds. Says whether it is.
    #[pyo3(signature = (timeout = None))]
    fn warm(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0))).transpose();
        let limit = limit.map_err(|error| usage(py, &format!("timeout: {error}")))?;
        let opened = self.opened().clone();
        let wait = move || opened.session().map_or(Readiness::Ready, |session| session.wait_until_ready(limit));
        match interruptible(py, "warm", wait)? {
            Readiness::Ready => Ok(true),
            Readiness::Partial => Ok(false),
            Readiness::Degraded(error) => Err(exception(py, &error.into())),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let opened = self.opened.take();
        // Dropping waits for compiles that have begun, and their progress is told under the interpreter's lock.
        let _ = Python::try_attach(|py| py.detach(|| drop(opened)));
    }
}
