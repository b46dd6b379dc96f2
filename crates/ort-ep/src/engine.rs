//! A compiled model behind a fused node: one Session where the model is one, one Session for each form where the values of
//! inputs decide the form, and a Runner where only a run decides sizes or branches.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use precast::{
    Argument, CompiledModel, DType, Form, Model, ModelSession, OpenOptions, ProgramCache, Runner, Session,
    SessionError, Tensor,
};

use crate::error::EpError;
use crate::known_shapes::{KnownShapes, OutputType, Outputs};

/// What a run reads and writes; the runtime's side of it.
pub(crate) trait RunMemory {
    /// Inputs in the model's order.
    fn inputs(&self) -> &[Argument<'_>];

    /// Has outputs of these types made, and calls `write` with the inputs and with their bytes.
    fn with_outputs<T>(
        &self,
        outputs: &Outputs,
        write: impl FnOnce(&[Argument<'_>], &mut [&mut [u8]]) -> Result<T, EpError>,
    ) -> Result<T, EpError>;
}

/// A compiled model.
pub(crate) struct Engine {
    kind: Kind,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// What is compiled from; none for a model that was compiled before.
    origin: Option<Origin>,
}

/// A model, and what runs it where Sessions turn out not to.
struct Origin {
    model: Model,
    options: OpenOptions,
    exact: OnceLock<Runner>,
}

enum Kind {
    /// One Session, and which of the model's inputs it takes where these are not all.
    Whole { form: Arc<Form>, places: Option<Vec<usize>>, shapes: KnownShapes, session: Option<ModelSession> },
    /// One Session for each form.
    Forms { session: ModelSession },
    /// No Session.
    Exact { reason: String },
}

impl Engine {
    /// Opens a model: its Buckets are loaded or compiled as the options say.
    pub(crate) fn open(model: Model, options: OpenOptions, cache: Arc<ProgramCache>) -> Result<Engine, EpError> {
        let (inputs, outputs) = (model.input_names(), model.outputs());
        let kind = match ModelSession::open_on(&model, &options, cache) {
            Ok(session) => Kind::of(session, &inputs),
            Err(error @ precast::Error::NoSession(_)) => Kind::Exact { reason: error.to_string() },
            Err(error) => return Err(error.into()),
        };
        let origin = Some(Origin { model, options, exact: OnceLock::new() });
        Ok(Engine { kind, inputs, outputs, origin })
    }

    /// Opens a model that was compiled before.
    pub(crate) fn of_compiled(compiled: &CompiledModel, options: &OpenOptions) -> Result<Engine, EpError> {
        let form = Arc::new(compiled.open(options)?);
        let (inputs, outputs) = (form.inputs().to_vec(), form.outputs().to_vec());
        let kind = Kind::Whole { form, places: None, shapes: KnownShapes::default(), session: None };
        Ok(Engine { kind, inputs, outputs, origin: None })
    }

    /// All that was compiled, to be saved.
    pub(crate) fn compiled(&self) -> Result<CompiledModel, EpError> {
        match &self.kind {
            Kind::Whole { session: Some(session), .. } | Kind::Forms { session } => Ok(CompiledModel::of(session)?),
            Kind::Whole { session: None, .. } => Err(EpError::other("the model was compiled before")),
            Kind::Exact { reason } => Err(EpError::other(format!("it cannot be saved: {reason}"))),
        }
    }

    /// Names of the inputs, in the order of a run's.
    pub(crate) fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// Names of the outputs, in the order of a run's.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Why runs are compiled for each shape by itself, if they are.
    pub(crate) fn is_exact_because(&self) -> Option<&str> {
        match &self.kind {
            Kind::Exact { reason } => Some(reason),
            Kind::Whole { .. } | Kind::Forms { .. } => None,
        }
    }

    /// Runs once.
    pub(crate) fn run(&self, memory: &impl RunMemory) -> Result<(), EpError> {
        if let Some(origin) = self.origin.as_ref().filter(|origin| origin.exact.get().is_some()) {
            return origin.run(memory);
        }
        let result = match &self.kind {
            Kind::Whole { form, places, shapes, .. } => run_session(form.session(), places.as_deref(), shapes, memory),
            Kind::Forms { session } => run_form(session, &self.inputs, memory),
            Kind::Exact { reason } => Err(EpError::Session(SessionError::Source(reason.clone()))),
        };
        match (result, &self.origin) {
            // Where its Graph exists only for given dims, only now is it seen not to be one Program.
            (Err(EpError::Session(SessionError::Source(_))), Some(origin)) => origin.run(memory),
            (result, _) => result,
        }
    }
}

impl Origin {
    /// Runs at exactly the shapes of the request, which is compiled for them.
    fn run(&self, memory: &impl RunMemory) -> Result<(), EpError> {
        let runner = match self.exact.get() {
            Some(runner) => runner,
            None => {
                let runner = Runner::new(self.model.clone(), self.options.runner.clone())?;
                self.exact.get_or_init(|| runner)
            }
        };
        let inputs = self.model.input_names().into_iter().zip(memory.inputs());
        let named = inputs.map(|(name, argument)| Ok((name, tensor_of(argument)?)));
        let outputs = runner.run(&named.collect::<Result<Vec<_>, EpError>>()?)?;
        let types: Vec<OutputType> =
            outputs.iter().map(|(_, tensor)| OutputType::new(tensor.dtype(), tensor.shape())).collect();
        memory.with_outputs(&Outputs::new(types), |_, buffers| {
            for (buffer, (_, tensor)) in buffers.iter_mut().zip(&outputs) {
                buffer.copy_from_slice(tensor.as_bytes());
            }
            Ok(())
        })
    }
}

impl Kind {
    fn of(session: ModelSession, names: &[String]) -> Kind {
        match session.forms().into_iter().next() {
            Some(form) if session.deciding_inputs().is_empty() => {
                let places = (form.inputs() != names).then(|| places_of(form.inputs(), names));
                Kind::Whole { form, places, shapes: KnownShapes::default(), session: Some(session) }
            }
            _ => Kind::Forms { session },
        }
    }
}

/// Where names stand among all; each is one of them.
fn places_of(names: &[String], all: &[String]) -> Vec<usize> {
    names.iter().filter_map(|name| all.iter().position(|known| known == name)).collect()
}

fn run_session(
    session: &Session,
    places: Option<&[usize]>,
    shapes: &KnownShapes,
    memory: &impl RunMemory,
) -> Result<(), EpError> {
    let inputs = memory.inputs();
    let known = shapes.get_or(inputs, || {
        let chosen = choose(places, inputs);
        let types = session.output_forms(chosen.as_deref().unwrap_or(inputs))?;
        Ok(types.iter().map(|(dtype, shape)| OutputType::new(*dtype, shape)).collect())
    })?;
    memory.with_outputs(&known.outputs, |inputs, outputs| {
        let chosen = choose(places, inputs);
        session.run_into(chosen.as_deref().unwrap_or(inputs), outputs)?;
        Ok(())
    })
}

/// The inputs that a Session takes; none where it takes all in their order.
fn choose<'a>(places: Option<&[usize]>, inputs: &[Argument<'a>]) -> Option<Vec<Argument<'a>>> {
    places.map(|places| places.iter().map(|&place| inputs[place]).collect())
}

/// Runs a model whose form the values of inputs decide. The form keeps those values, so they are copied.
fn run_form(session: &ModelSession, names: &[String], memory: &impl RunMemory) -> Result<(), EpError> {
    let named = || names.iter().zip(memory.inputs());
    let copies = |is_wanted: &dyn Fn(&String) -> bool| {
        let wanted = named().filter(|(name, _)| is_wanted(name));
        wanted.map(|(name, argument)| Ok((name.clone(), tensor_of(argument)?))).collect::<Result<Vec<_>, EpError>>()
    };
    let deciding = session.deciding_inputs();
    let form = match session.open_form_of(&copies(&|name| deciding.contains(name))?) {
        Some(form) => form,
        None => session.form(&copies(&|_| true)?)?,
    };
    let places = places_of(form.inputs(), names);
    run_session(form.session(), Some(&places), &KnownShapes::default(), memory)
}

/// An input as a tensor of its own.
fn tensor_of(argument: &Argument<'_>) -> Result<Tensor, EpError> {
    let Argument { dtype, shape, bytes } = *argument;
    Ok(Tensor::new(dtype, shape.to_vec(), Bytes::copy_from_slice(bytes))?.aligned())
}

/// Whether tensors of this type lie in the runtime's memory as they lie in ours.
pub(crate) fn is_laid_out_alike(dtype: DType) -> bool {
    dtype.bits() >= 8
}
