//! What a verb works on: a model, or a Program file, told apart by the first bytes.

use std::path::Path;
use std::sync::Arc;

use precast::{
    CacheOptions, Captures, InputInfo, Model, Named, PassOptions, ProgramCache, ProgramRunner, Ready, Runner,
    RunnerOptions, Tensor, TuneOptions, Value, is_program_file,
};

use crate::args::{Capture, Shared, TuneArgs};
use crate::exit::Failure;

/// A model or a Program file.
pub enum Subject {
    /// A model, compiled as needed.
    Model(Box<Runner>),
    /// A Program.
    Program(ProgramRunner),
}

impl Subject {
    /// Opens either.
    pub fn open(path: &Path, shared: &Shared) -> Result<Subject, Failure> {
        if is_program_file(path)? {
            shared.numerics.refuse_for_program(path)?;
            return Ok(Subject::Program(ProgramRunner::open(path, &options(shared))?));
        }
        Ok(Subject::Model(Box::new(open_runner(path, shared)?)))
    }

    /// Opens either; a model is compiled with the measured tactics of a cache, and measured first if asked to.
    pub fn open_tuned(path: &Path, shared: &Shared, tune: &TuneArgs, cache: Option<&Path>) -> Result<Subject, Failure> {
        if !is_program_file(path)? {
            return Ok(Subject::Model(Box::new(open_tuned_runner(path, shared, tune, cache)?)));
        }
        if tune.options() != TuneOptions::default() {
            return Err(Failure::usage(format!("--tune: '{}' is a Program file, compiled already", path.display())));
        }
        Subject::open(path, shared)
    }

    /// The instruction set it runs on, with its numerics: a Program's own, or the flags' for a model.
    pub fn isa(&self, shared: &Shared) -> String {
        match self {
            Subject::Model(_) => format!("{}{}", options(shared).isa.name(), shared.numerics.numerics()),
            Subject::Program(program) => {
                let target = &program.program().target;
                let features = target.split_once(':').and_then(|(_, features)| features.split(' ').next());
                features.unwrap_or(target).to_string()
            }
        }
    }

    /// Inputs that a request must give.
    pub fn inputs(&self) -> Result<Vec<InputInfo>, Failure> {
        match self {
            Subject::Model(runner) => Ok(runner.model().inputs()?),
            Subject::Program(program) => Ok(program.inputs()?),
        }
    }

    /// The runner of a model.
    pub fn runner(&self) -> Option<&Runner> {
        match self {
            Subject::Model(runner) => Some(runner),
            Subject::Program(_) => None,
        }
    }

    /// Outputs for these inputs.
    pub fn run(&self, inputs: &[(String, Tensor)]) -> Result<Named, Failure> {
        match self {
            Subject::Model(runner) => Ok(runner.run(inputs)?),
            Subject::Program(program) => Ok(program.run(inputs)?),
        }
    }

    /// Outputs of any kind for these inputs. Strings, sequences and optionals are known by what the model declares.
    pub fn run_values(&self, inputs: &[(String, Tensor)]) -> Result<Vec<(String, Value)>, Failure> {
        if let Subject::Model(runner) = self
            && runner.model().declared_outputs().iter().any(|output| output.dtype.is_none())
        {
            let inputs: Vec<(String, Value)> =
                inputs.iter().map(|(name, tensor)| (name.clone(), tensor.clone().into())).collect();
            return Ok(runner.run_values(&inputs)?);
        }
        Ok(self.run(inputs)?.into_iter().map(|(name, tensor)| (name, tensor.into())).collect())
    }

    /// Buffers for repeated runs, if the subject is one Program.
    pub fn ready(&self, inputs: &[(String, Tensor)]) -> Result<Option<Ready>, Failure> {
        match self {
            Subject::Model(runner) => Ok(runner.ready(inputs)?),
            Subject::Program(program) => Ok(Some(program.ready(inputs)?)),
        }
    }
}

/// How models are compiled and run, as the flags say.
pub fn options(shared: &Shared) -> RunnerOptions {
    let defaults = RunnerOptions::default();
    RunnerOptions {
        threads: shared.threads.unwrap_or(defaults.threads),
        isa: shared.isa.unwrap_or(defaults.isa),
        passes: PassOptions { numerics: shared.numerics.numerics(), ..defaults.passes },
        tune: defaults.tune,
        device: shared.device(),
        more_devices: shared.devices()[1..].to_vec(),
        is_device_strict: shared.strict,
        shares_caches: defaults.shares_caches,
        captures: Captures { is_on: shared.capture == Capture::Auto, ..defaults.captures },
    }
}

/// Opens a model, and nothing else.
pub fn open_model(path: &Path, shared: &Shared) -> Result<Model, Failure> {
    if is_program_file(path)? {
        return Err(Failure::usage(format!("'{}' is a Program file; a model is expected", path.display())));
    }
    Ok(match &shared.model_root {
        Some(root) => Model::open_within(path, root)?,
        None => Model::open(path)?,
    })
}

/// A runner of a model on the measured tactics of a cache, or of this process alone.
pub fn open_tuned_runner(
    path: &Path,
    shared: &Shared,
    tune: &TuneArgs,
    cache: Option<&Path>,
) -> Result<Runner, Failure> {
    let cache_options = cache.map_or_else(CacheOptions::memory, CacheOptions::new);
    let cache = Arc::new(ProgramCache::open(cache_options).map_err(precast::Error::from)?);
    let options = RunnerOptions { tune: tune.options(), ..options(shared) };
    Ok(Runner::with_tuning_of(open_model(path, shared)?, options, cache)?)
}

/// A runner of a model.
pub fn open_runner(path: &Path, shared: &Shared) -> Result<Runner, Failure> {
    Ok(Runner::new(open_model(path, shared)?, options(shared))?)
}
