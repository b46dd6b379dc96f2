//! Requests that come and go on one decoder: an engine, its requests and what it tells of them.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use precast::generate::engine::{Engine, EngineError, Event, Request, RequestHandle};
use precast::{Error, Guidance};
use pyo3::prelude::*;

use crate::exceptions::{exception, usage};
use crate::interruptible::{detached, interruptible};
use crate::text_adapters::{NamedAdapter, named};
use crate::text_model::{TextModel, read_params};

/// Time between two looks at signals while a request has nothing to tell.
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn raised(py: Python<'_>) -> impl Fn(EngineError) -> PyErr {
    move |error| exception(py, &Error::from(error))
}

/// An engine on a model folder that is open.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextEngine {
    /// None once it is closed.
    engine: Mutex<Option<Engine>>,
    model: Py<TextModel>,
}

#[pymethods]
impl TextEngine {
    /// An engine that shares its device as the folder says, and compiles Programs ahead of need as the folder or the caller says.
    #[new]
    #[pyo3(signature = (model, prepares_programs = None))]
    fn new(py: Python<'_>, model: Py<TextModel>, prepares_programs: Option<bool>) -> PyResult<TextEngine> {
        let folder = model.get().folder();
        let mut options = folder.engine_options();
        options.prepares_programs = prepares_programs.unwrap_or(options.prepares_programs);
        let engine = detached(py, || folder.engine(options))?;
        let engine = Mutex::new(Some(engine.map_err(|error| exception(py, &error))?));
        Ok(TextEngine { engine, model })
    }

    /// Sends a request. Options are pairs of a name and a value as JSON; a grammar is its kind and its text.
    #[pyo3(signature = (prompt, options, grammar = None, adapter = None))]
    fn submit(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        options: Vec<(String, String)>,
        grammar: Option<(String, String)>,
        adapter: Option<NamedAdapter<'_>>,
    ) -> PyResult<TextRequest> {
        let params = read_params(py, self.model.get(), &options)?;
        let adapter = named(py, adapter.as_ref())?;
        let guidance = match grammar {
            None => None,
            Some((kind, text)) => Some(match kind.as_str() {
                "schema" => Guidance::JsonSchema(text),
                "regex" => Guidance::Regex(text),
                "lark" => Guidance::Lark(text),
                _ => return Err(usage(py, &format!("'{kind}' is no grammar; schema, regex or lark was expected"))),
            }),
        };
        let request = Request { guidance, adapter, ..Request::new(prompt, params) };
        let sent = detached(py, || {
            let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            engine.as_ref().map(|engine| engine.submit(request))
        })?;
        let handle = sent.ok_or_else(|| usage(py, "the engine is closed"))?.map_err(raised(py))?;
        Ok(TextRequest { handle })
    }

    /// Ends every request and lets go of the engine's memory.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = detached(py, || self.engine.lock().unwrap_or_else(PoisonError::into_inner).take())?;
        interruptible(py, "close", move || drop(engine))
    }
}

/// A request that was sent. Forgetting it cancels it.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextRequest {
    handle: RequestHandle,
}

#[pymethods]
impl TextRequest {
    /// The next event, when there is one; none when every answer has ended.
    fn next_event(&self, py: Python<'_>) -> PyResult<Option<TextEvent>> {
        loop {
            match detached(py, || self.handle.next_event_within(LOOK_EVERY))? {
                Some(event) => return Ok(Some(TextEvent(event))),
                None if self.handle.has_ended() => return Ok(None),
                None => py.check_signals()?,
            }
        }
    }

    /// Asks for an end, which comes with the next step.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.handle.cancel())
    }

    /// The seed of all draws.
    #[getter]
    fn seed(&self) -> u64 {
        self.handle.seed()
    }
}

/// What happened to a request.
#[pyclass(frozen, name = "Event", module = "precast")]
pub struct TextEvent(Event);

#[pymethods]
impl TextEvent {
    /// `token`, `blocked`, `finished` or `failed`.
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.0 {
            Event::Token(_) => "token",
            Event::Blocked => "blocked",
            Event::Finished { .. } => "finished",
            Event::Failed { .. } => "failed",
        }
    }

    /// Which of the request's answers.
    #[getter]
    fn answer(&self) -> Option<usize> {
        match &self.0 {
            Event::Token(token) => Some(token.answer),
            Event::Blocked => None,
            Event::Finished { answer, .. } | Event::Failed { answer, .. } => Some(*answer),
        }
    }

    /// The id of a token.
    #[getter]
    fn id(&self) -> Option<u32> {
        match &self.0 {
            Event::Token(token) => Some(token.id),
            Event::Blocked | Event::Finished { .. } | Event::Failed { .. } => None,
        }
    }

    /// Text that is complete with a token.
    #[getter]
    fn text(&self) -> &str {
        match &self.0 {
            Event::Token(token) => &token.text,
            Event::Blocked | Event::Finished { .. } | Event::Failed { .. } => "",
        }
    }

    /// The logarithm of a token's probability, where asked for.
    #[getter]
    fn logprob(&self) -> Option<f64> {
        match &self.0 {
            Event::Token(token) => token.logprobs.as_ref().map(|(logprob, _)| *logprob),
            Event::Blocked | Event::Finished { .. } | Event::Failed { .. } => None,
        }
    }

    /// Why an answer ended.
    #[getter]
    fn finish_reason(&self) -> Option<String> {
        match &self.0 {
            Event::Finished { reason, .. } => Some(reason.to_string()),
            Event::Token(_) | Event::Blocked | Event::Failed { .. } => None,
        }
    }

    /// Tokens that an answer took: of the prompt, of these cached, generated, and of these proposed and right.
    #[getter]
    fn usage(&self) -> Option<(usize, usize, usize, usize)> {
        match &self.0 {
            Event::Finished { usage, .. } => Some((
                usage.prompt_tokens,
                usage.cached_prompt_tokens,
                usage.generated_tokens,
                usage.accepted_draft_tokens,
            )),
            Event::Token(_) | Event::Blocked | Event::Failed { .. } => None,
        }
    }

    /// Why an answer failed.
    #[getter]
    fn message(&self) -> Option<&str> {
        match &self.0 {
            Event::Failed { message, .. } => Some(message),
            Event::Token(_) | Event::Blocked | Event::Finished { .. } => None,
        }
    }

    /// Whether the same request may succeed another time.
    #[getter]
    fn is_retryable(&self) -> bool {
        matches!(&self.0, Event::Failed { is_retryable: true, .. })
    }

    fn __repr__(&self) -> String {
        format!("Event({:?})", self.0)
    }
}
