//! A model as Sessions on a device. Most models are one Session; a model whose form depends on the values of some inputs has
//! one Session for each set of those values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use precast_cache::{CacheOptions, KeyRecord, Mode, ProgramCache};
use precast_cpu::TuneOptions;
use precast_onnx::{ImportError, ImportOptions};
use precast_program::TuningTable;
use precast_session::{BucketPolicy, DimOptions, Readiness, RunReport, Session, SessionOptions, Startup};
use precast_tensor::{Digest, Dim, Tensor};

use crate::dim_bind::DimBinds;
use crate::error::Error;
use crate::model::Model;
use crate::model_source::ModelSource;
use crate::open_device::{OpenDevice, open_device};
use crate::runner::{Named, RunnerOptions};
use crate::suggestion::listed;
use crate::tuning::Tuning;

/// How a model is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Threads, instruction set and passes.
    pub runner: RunnerOptions,
    /// Numbers for dims that every request shares, by symbol.
    pub dims: BTreeMap<String, i64>,
    /// Axes of inputs that are one dim.
    pub binds: DimBinds,
    /// Values of inputs that every request shares, by name.
    pub freeze: BTreeMap<String, Tensor>,
    /// Which extents of the batch have Programs.
    pub buckets: BucketPolicy,
    /// The rest of what a Session may be told. Its `dims` come on top of `buckets`.
    pub session: SessionOptions,
    /// Folder of the cache; none keeps Programs in memory only.
    pub cache: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            runner: RunnerOptions::default(),
            dims: BTreeMap::new(),
            binds: DimBinds::default(),
            freeze: BTreeMap::new(),
            buckets: BucketPolicy::Exact,
            session: SessionOptions::default(),
            cache: None,
        }
    }
}

/// A model opened for requests of any size: inputs and outputs go by name.
pub struct ModelSession {
    model: Model,
    /// Names of the model's inputs, in its order.
    input_names: Vec<String>,
    options: OpenOptions,
    device: OpenDevice,
    cache: Arc<ProgramCache>,
    tuning: Arc<Tuning>,
    /// Inputs whose values decide the form of the model, beside those that are frozen; learned from it.
    deciding: Mutex<BTreeSet<String>>,
    /// Forms by the values of those inputs.
    forms: RwLock<BTreeMap<FormKey, Arc<Form>>>,
    /// Held while a form is opened, so that it is opened once; requests of other forms do not wait for it.
    opening: Mutex<()>,
}

/// Values of the inputs that decide a form, by name.
type FormKey = Vec<(String, Digest)>;

/// A model in one form.
pub struct Form {
    session: Session,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl ModelSession {
    /// Opens a model, and its Buckets unless the values of inputs decide its form: then with the first request.
    pub fn open(model: &Model, options: &OpenOptions) -> Result<ModelSession, Error> {
        let cache = match &options.cache {
            Some(folder) => CacheOptions::new(folder),
            None => CacheOptions { mode: Mode::Off, ..CacheOptions::new("") },
        };
        ModelSession::open_on(model, options, Arc::new(ProgramCache::open(cache)?))
    }

    /// Opens a model on a cache that is open already.
    pub fn open_on(model: &Model, options: &OpenOptions, cache: Arc<ProgramCache>) -> Result<ModelSession, Error> {
        let device = open_device(&options.runner, &cache)?;
        let tuning = Tuning::new(options.runner.tune, device.cpu.clone(), cache.clone());
        let session = ModelSession {
            model: model.clone(),
            input_names: model.inputs()?.into_iter().map(|input| input.name).collect(),
            device,
            tuning: Arc::new(tuning),
            cache,
            deciding: Mutex::default(),
            forms: RwLock::default(),
            opening: Mutex::default(),
            options: options.clone(),
        };
        match session.open_form(&BTreeMap::new()) {
            Ok(form) => drop(session.keep(Vec::new(), form)),
            Err(Error::Import(ImportError::NeedsInputs { inputs, .. })) if !inputs.is_empty() => session.learn(inputs),
            Err(error) => return Err(error),
        }
        Ok(session)
    }

    /// The forms that are open.
    pub fn forms(&self) -> Vec<Arc<Form>> {
        self.forms.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Inputs whose values decide the form of the model, as far as that is known yet.
    pub fn deciding_inputs(&self) -> Vec<String> {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The form of these values of the inputs that decide it, if it is open; other inputs need not be given.
    pub fn open_form_of(&self, inputs: &[(String, Tensor)]) -> Option<Arc<Form>> {
        self.known(&self.key(inputs))
    }

    /// Where its Programs are kept.
    pub(crate) fn cache(&self) -> &ProgramCache {
        &self.cache
    }

    /// How it was opened.
    pub(crate) fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// What the Program of each Bucket is found by, in increasing order.
    pub fn records(&self) -> Result<Vec<KeyRecord>, Error> {
        let forms = self.forms();
        let form = forms.first().ok_or_else(|| {
            Error::Request(
                "the values of inputs decide the form of the model; its Programs are not known ahead".to_string(),
            )
        })?;
        Ok(form.session.records()?)
    }

    /// Programs compiled so far.
    pub fn compiles(&self) -> u64 {
        self.forms().iter().map(|form| form.session.counters().compiles()).sum()
    }

    /// Waits until every open form has all its Buckets; gives what became of the first that does not.
    pub fn wait_until_ready(&self, limit: Option<Duration>) -> Readiness {
        let deadline = limit.map(|limit| Instant::now() + limit);
        for form in self.forms() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match form.session.wait_until_ready(left) {
                Readiness::Ready => {}
                other @ (Readiness::Partial | Readiness::Degraded(_)) => return other,
            }
        }
        Readiness::Ready
    }

    /// Outputs for these inputs, which may come in any order, and what was done.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<(Named, RunReport), Error> {
        let form = self.form(inputs)?;
        let (outputs, report) = form.session.run(&form.in_order(inputs)?)?;
        Ok((form.outputs.iter().cloned().zip(outputs).collect(), report))
    }

    /// The form that a request runs on, opened if it was not yet.
    pub fn form(&self, inputs: &[(String, Tensor)]) -> Result<Arc<Form>, Error> {
        self.check_names(inputs)?;
        loop {
            let key = self.key(inputs);
            if let Some(form) = self.known(&key) {
                return Ok(form);
            }
            let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(form) = self.known(&key) {
                return Ok(form);
            }
            let find = |name: &String| inputs.iter().find(|(given, _)| given == name).map(|(_, tensor)| tensor.clone());
            let values: BTreeMap<String, Tensor> =
                key.iter().filter_map(|(name, _)| Some((name.clone(), find(name)?))).collect();
            match self.open_form(&values) {
                Ok(form) => return Ok(self.keep(key, form)),
                Err(Error::Import(ImportError::NeedsInputs { inputs, what })) => {
                    if inputs.iter().all(|name| values.contains_key(name)) {
                        return Err(Error::Import(ImportError::NeedsInputs { inputs, what }));
                    }
                    self.learn(inputs);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn known(&self, key: &[(String, Digest)]) -> Option<Arc<Form>> {
        self.forms.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn learn(&self, inputs: BTreeSet<String>) {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner).extend(inputs);
    }

    fn keep(&self, key: FormKey, form: Form) -> Arc<Form> {
        let mut forms = self.forms.write().unwrap_or_else(PoisonError::into_inner);
        forms.entry(key).or_insert(Arc::new(form)).clone()
    }

    /// Values of the inputs that decide the form.
    fn key(&self, inputs: &[(String, Tensor)]) -> FormKey {
        let deciding = self.deciding.lock().unwrap_or_else(PoisonError::into_inner);
        let given = inputs.iter().filter(|(name, _)| deciding.contains(name));
        let mut key: FormKey = given.map(|(name, tensor)| (name.clone(), tensor.digest())).collect();
        key.sort();
        key
    }

    fn open_form(&self, values: &BTreeMap<String, Tensor>) -> Result<Form, Error> {
        let options = &self.options;
        let declared = self.model.inputs()?;
        let freeze = options.freeze.iter().chain(values).map(|(name, tensor)| (name.clone(), tensor.clone()));
        let dims: BTreeMap<String, Dim> =
            options.dims.iter().map(|(symbol, &number)| (symbol.clone(), Dim::from(number))).collect();
        let mut shapes = options.binds.shapes(&declared)?;
        for dim in shapes.values_mut().flatten() {
            *dim = dim.substitute(&|symbol| dims.get(symbol.as_str()).cloned());
        }
        let shares_caches = options.runner.shares_caches;
        let import =
            ImportOptions { dims, shapes, freeze: freeze.collect(), shares_caches, ..ImportOptions::default() };
        let source =
            Arc::new(ModelSource::new(&self.model, import, options.runner.passes.clone(), self.tuning.clone()));
        let interface = source.interface(&*self.device.target, &self.cache)?;
        let mut session = options.session.clone();
        if let (Some(symbol), true) = (batch_symbol(&interface), options.buckets != BucketPolicy::Exact) {
            session.dims.entry(symbol).or_insert(DimOptions { buckets: options.buckets.clone() });
        }
        let passes = &options.runner.passes;
        session.target_options.insert("disable".to_string(), passes.disabled.join(","));
        if shares_caches {
            session.target_options.insert("caches".to_string(), "shared".to_string());
        }
        session.device_label = self.device.label.clone();
        let inputs = interface.inputs.iter().map(|input| input.name.clone()).collect();
        let devices = std::iter::once(&self.device.device).chain(&self.device.more).cloned().collect();
        let (target, cache) = (self.device.target.clone(), self.cache.clone());
        let session = Session::open_on(interface, source, session, target, devices, cache)?;
        Ok(Form { session, inputs, outputs: self.model.outputs() })
    }

    fn check_names(&self, inputs: &[(String, Tensor)]) -> Result<(), Error> {
        let names = &self.input_names;
        let (mut is_given, mut next) = (vec![false; names.len()], 0);
        for (name, tensor) in inputs {
            let Some(position) = find_from(names, next, |known| known == name) else {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                return Err(Error::Request(format!("there is no input '{name}'; {}", listed(name, &names))));
            };
            next = position + 1;
            if std::mem::replace(&mut is_given[position], true) {
                return Err(Error::Request(format!("input '{name}' is given twice")));
            }
            if self.options.freeze.get(name).is_some_and(|frozen| frozen != tensor) {
                return Err(Error::Request(format!(
                    "input '{name}' was frozen to another value when the model was opened"
                )));
            }
        }
        Ok(())
    }
}

/// The first item from `start` on that is wanted, and then from the beginning: requests give their inputs mostly in the model's
/// order, in which the next one wanted lies right behind the last.
fn find_from<T>(items: &[T], start: usize, is_wanted: impl Fn(&T) -> bool) -> Option<usize> {
    let (before, after) = items.split_at(start.min(items.len()));
    let behind = after.iter().position(&is_wanted).map(|at| before.len() + at);
    behind.or_else(|| before.iter().position(is_wanted))
}

impl Form {
    pub(crate) fn new(session: Session, inputs: Vec<String>, outputs: Vec<String>) -> Form {
        Form { session, inputs, outputs }
    }

    /// The Session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Names of the inputs that the Session takes, in its order.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// Names of the outputs, in order.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// The Session's inputs in its order.
    pub fn in_order(&self, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>, Error> {
        let mut next = 0;
        let find = |name: &String| {
            let found = find_from(inputs, next, |(given, _)| given == name);
            let found = found.ok_or_else(|| Error::Request(format!("input '{name}' is not given")))?;
            next = found + 1;
            Ok(inputs[found].1.clone())
        };
        self.inputs.iter().map(find).collect()
    }
}

/// What the Program of each Bucket of a model is found by in a cache with these measured tactics, in increasing order.
/// Compiles, loads and measures nothing.
pub fn program_records(model: &Model, options: &OpenOptions, tuning: &TuningTable) -> Result<Vec<KeyRecord>, Error> {
    let session = SessionOptions { startup: Startup::Lazy, ..options.session.clone() };
    let runner = RunnerOptions { tune: TuneOptions::default(), ..options.runner.clone() };
    let options = OpenOptions { session, runner, ..options.clone() };
    let cache = ProgramCache::open(CacheOptions::memory())?;
    cache.keep_tuning(tuning);
    ModelSession::open_on(model, &options, Arc::new(cache))?.records()
}

/// The symbol of the batch: that of axis 0 of the first input that has one.
pub fn batch_symbol(interface: &precast_session::Interface) -> Option<String> {
    let first = |input: &precast_session::SymbolicPort| Some(input.ty.dims.first()?.as_symbol()?.as_str().to_string());
    interface.inputs.iter().find_map(first)
}
