//! A model that is open on a device: as Sessions where it can be, otherwise run part by part at the shapes of each request.

use std::sync::{Arc, OnceLock};

use precast::device_name::{DeviceKind, DeviceName};
use precast::{
    Error, ErrorKind, Form, Gpu, Model, ModelSession, OpenOptions, RunReport, Runner, SessionError, Tensor, Value,
};

use crate::settings::Settings;

/// A model on a device.
pub struct OpenedModel {
    pub model: Model,
    pub device: DeviceName,
    /// The same where it is a GPU, whose memory callers may hold.
    pub gpu: Option<Arc<Gpu>>,
    options: OpenOptions,
    /// None where the model is known to be no Session.
    session: Option<ModelSession>,
    /// The model run part by part, once something showed that it must be.
    runner: OnceLock<Arc<Runner>>,
    /// The one Session of a model whose form depends on no value.
    form: Option<Arc<Form>>,
}

/// What opening a model told.
pub struct Opening {
    pub opened: OpenedModel,
    /// What a person should know.
    pub notices: Vec<String>,
}

impl OpenedModel {
    /// Opens a model on the first of the devices that is there. Why others are not is among the notices.
    pub fn open(model: &Model, settings: &Settings, devices: &[DeviceName]) -> Result<Opening, Error> {
        let mut notices = Vec::new();
        for (position, &device) in devices.iter().enumerate() {
            match OpenedModel::open_on(model, settings, device) {
                Ok(opened) => return Ok(Opening { opened, notices }),
                Err(error) if error.kind() == ErrorKind::Device && position + 1 < devices.len() => {
                    let next = devices[position + 1];
                    notices.push(format!("'{device}' cannot be used, '{next}' is tried instead: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Request("no device was named".to_string()))
    }

    fn open_on(model: &Model, settings: &Settings, device: DeviceName) -> Result<OpenedModel, Error> {
        let mut options = settings.options.clone();
        options.runner.device = device;
        let gpu = match device.kind {
            DeviceKind::Cpu => None,
            DeviceKind::Cuda | DeviceKind::Hip => Some(Gpu::open(device)?),
        };
        let session = match has_numbers_alone(model)? {
            false => None,
            true => match ModelSession::open_on(model, &options, settings.cache.clone()) {
                Ok(session) => Some(session),
                Err(Error::NoSession(_)) => None,
                Err(error) => return Err(error),
            },
        };
        let runner = OnceLock::new();
        if session.is_none() {
            let _ = runner.set(Arc::new(Runner::new(model.clone(), options.runner.clone())?));
        }
        let form = session.as_ref().and_then(|session| session.forms().first().cloned());
        Ok(OpenedModel { model: model.clone(), device, gpu, options, session, runner, form })
    }

    /// The one Session that every request runs on, if there is one.
    pub fn form(&self) -> Option<&Arc<Form>> {
        self.form.as_ref().filter(|_| self.runner.get().is_none())
    }

    /// The model's Sessions, if it has any.
    pub fn session(&self) -> Option<&ModelSession> {
        self.session.as_ref().filter(|_| self.runner.get().is_none())
    }

    /// Whether an error of the first request says that only a run part by part can answer. Then all later ones do.
    pub fn turn_to_parts(&self, error: &SessionError) -> bool {
        // A model whose dims decide its form is imported with its first request, and only then shown to be no Session.
        if !matches!(error, SessionError::Source(_)) || self.runner.get().is_some() {
            return false;
        }
        match Runner::new(self.model.clone(), self.options.runner.clone()) {
            Ok(runner) => self.runner.set(Arc::new(runner)).is_ok(),
            Err(_) => false,
        }
    }

    /// Outputs of any kind for inputs of any kind, in the model's order.
    pub fn run_values(&self, inputs: Vec<(String, Value)>) -> Result<(Vec<Value>, Option<RunReport>), Error> {
        if let Some(runner) = self.runner.get() {
            let outputs = runner.run_values(&inputs)?;
            return Ok((outputs.into_iter().map(|(_, value)| value).collect(), None));
        }
        let Some(session) = &self.session else { return Err(Error::Request("the model is not open".to_string())) };
        let tensors: Vec<(String, Tensor)> = inputs
            .into_iter()
            .map(|(name, value)| match value {
                Value::Tensor(tensor) => Ok((name, tensor)),
                Value::Strings(_) | Value::Sequence(_) | Value::Nothing => {
                    Err(Error::Request(format!("input '{name}' is no tensor of numbers, which the model expects")))
                }
            })
            .collect::<Result<_, Error>>()?;
        let (outputs, report) = session.run(&tensors)?;
        Ok((outputs.into_iter().map(|(_, tensor)| Value::Tensor(tensor)).collect(), Some(report)))
    }
}

/// Whether all inputs and outputs are tensors of numbers.
fn has_numbers_alone(model: &Model) -> Result<bool, Error> {
    let inputs = model.declared_inputs()?;
    let outputs = model.declared_results()?;
    // An output need not be declared; what it is follows from the graph.
    let is_other = outputs.iter().any(|output| output.ty.is_some() && output.as_numbers().is_none());
    Ok(inputs.iter().all(|input| input.as_numbers().is_some()) && !is_other)
}
