//! What a verb works on: a model, or a Program file, told apart by the first bytes.

use std::path::Path;

use precast::{
    InputInfo, Model, Named, PassOptions, ProgramRunner, Ready, Runner, RunnerOptions, Tensor, is_program_file,
};

use crate::args::Shared;
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
            return Ok(Subject::Program(ProgramRunner::open(path, options(shared).threads)?));
        }
        Ok(Subject::Model(Box::new(open_runner(path, shared)?)))
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

/// A runner of a model.
pub fn open_runner(path: &Path, shared: &Shared) -> Result<Runner, Failure> {
    Ok(Runner::new(open_model(path, shared)?, options(shared)))
}
