//! Text generation: a model folder that is open, and generators of rows of tokens on it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use precast::device_name::resolve_device_with_notice;
use precast::generate::chat_template::{ChatOptions, ChatValue};
use precast::generate::config::Source;
use precast::generate::{GenerateError, Generator, GeneratorParams, StepToken, Tokenizer};
use precast::{Error, TextFolder, TextOptions, open_text_model};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::exceptions::{exception, usage};
use crate::interruptible::{detached, interruptible};
use crate::text_adapters::{NamedAdapter, named};

/// A model folder that is open: the decoder on its device, and the tokenizer where the folder has one.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextModel {
    folder: TextFolder,
    /// What a person should know about how the folder was read.
    #[pyo3(get)]
    notices: Vec<String>,
}

impl TextModel {
    /// What is open.
    pub(crate) fn folder(&self) -> &TextFolder {
        &self.folder
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<&Tokenizer> {
        self.folder.tokenizer.as_ref().ok_or_else(|| usage(py, "the folder has no tokenizer.json: give ids of tokens"))
    }
}

/// A failure of the library as an exception.
fn raised(py: Python<'_>) -> impl Fn(GenerateError) -> PyErr {
    move |error| exception(py, &Error::from(error))
}

#[pymethods]
impl TextModel {
    /// Opens a folder. Overlays are JSON merge patches on its configuration, each a text.
    #[new]
    #[pyo3(signature = (folder, device = None, overlays = Vec::new(), cache = None, threads = None, activations = None))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        device: Option<&str>,
        overlays: Vec<String>,
        cache: Option<PathBuf>,
        threads: Option<usize>,
        activations: Option<&str>,
    ) -> PyResult<TextModel> {
        let mut options = TextOptions { cache, ..TextOptions::default() };
        let mut notices = Vec::new();
        if let Some(asked) = device {
            let resolved = resolve_device_with_notice(asked).map_err(|error| exception(py, &error))?;
            notices.extend(resolved.notice);
            options.device = Some(resolved.name);
        }
        let source = |(position, text): (usize, String)| Source { name: format!("overlay {}", position + 1), text };
        options.overlays = overlays.into_iter().enumerate().map(source).collect();
        options.threads = threads.filter(|&threads| threads > 0);
        if let Some(text) = activations {
            let parsed = text.parse().map_err(|reason: String| usage(py, &format!("activations: {reason}")))?;
            options.runner.passes.numerics.activations = parsed;
        }
        let open = move || open_text_model(&folder, &options);
        let folder = interruptible(py, "open", open)?.map_err(|error| exception(py, &error))?;
        notices.extend(folder.notices.iter().cloned());
        Ok(TextModel { folder, notices })
    }

    /// The one name of the device that the decoder is on.
    #[getter]
    fn device(&self) -> &str {
        self.folder.model.device()
    }

    /// Ids that the decoder gives scores of.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.folder.model.vocabulary()
    }

    /// Tokens that a sequence may have.
    #[getter]
    fn context_length(&self) -> usize {
        self.folder.model.config().model.context_length
    }

    /// Family of the model, as its exporter calls it.
    #[getter]
    fn family(&self) -> &str {
        &self.folder.model.config().model.family
    }

    /// Tokens that end a sequence.
    #[getter]
    fn eos_token_ids(&self) -> Vec<u32> {
        self.folder.model.config().model.eos_token_ids.clone()
    }

    /// The first token of sequences, if the folder names one.
    #[getter]
    fn bos_token_id(&self) -> Option<i64> {
        self.folder.model.config().model.bos_token_id
    }

    /// The token that stands for nothing, if the folder names one.
    #[getter]
    fn pad_token_id(&self) -> Option<i64> {
        self.folder.model.config().model.pad_token_id
    }

    /// Whether the folder has a tokenizer.
    #[getter]
    fn has_tokenizer(&self) -> bool {
        self.folder.tokenizer.is_some()
    }

    /// Ids of a text.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        self.tokenizer(py)?.encode(text).map_err(|error| exception(py, &error.into()))
    }

    /// The text of ids.
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        Ok(self.tokenizer(py)?.decode(&tokens))
    }

    /// The id of a token by its text.
    fn token_id(&self, py: Python<'_>, token: &str) -> PyResult<Option<u32>> {
        Ok(self.tokenizer(py)?.token_id(token))
    }

    /// The prompt of a conversation. Messages, tools, documents and further variables of the template are JSON.
    #[pyo3(signature = (messages, tools = None, documents = None, variables = Vec::new(), add_generation_prompt = true))]
    fn apply_chat_template(
        &self,
        py: Python<'_>,
        messages: &str,
        tools: Option<&str>,
        documents: Option<&str>,
        variables: Vec<(String, String)>,
        add_generation_prompt: bool,
    ) -> PyResult<String> {
        let read = |json: &str| ChatValue::from_json(json).map_err(|error| usage(py, &error.to_string()));
        let variable = |(name, json): (String, String)| Ok((name, read(&json)?));
        let options = ChatOptions {
            tools: tools.map(read).transpose()?,
            documents: documents.map(read).transpose()?,
            variables: variables.into_iter().map(variable).collect::<PyResult<_>>()?,
            add_generation_prompt,
            ..ChatOptions::default()
        };
        let prompt = self.tokenizer(py)?.apply_chat_template(&read(messages)?, &options);
        prompt.map_err(|error| exception(py, &error.into()))
    }

    /// A text that grows by one token at a time.
    fn text_stream(&self, py: Python<'_>) -> PyResult<TextStream> {
        Ok(TextStream { stream: Mutex::new(self.tokenizer(py)?.stream()) })
    }
}

/// A text that grows by one token at a time.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextStream {
    stream: Mutex<precast::generate::text_stream::TextStream>,
}

#[pymethods]
impl TextStream {
    /// Adds a token and gives the text that is complete with it.
    fn push(&self, token: u32) -> String {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).push(token).to_string()
    }

    /// What is left: bytes that did not become a character.
    fn finish(&self) -> String {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

/// A token that a step chose.
#[pyclass(frozen, module = "precast")]
pub struct Token(StepToken);

#[pymethods]
impl Token {
    /// The row.
    #[getter]
    fn row(&self) -> usize {
        self.0.row
    }

    /// The id.
    #[getter]
    fn id(&self) -> u32 {
        self.0.id
    }

    /// Text that is complete with it; empty without a tokenizer.
    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    /// The logarithm of its probability, where asked for: before any rule, or with `logprobs_mode` of `processed` after all.
    #[getter]
    fn logprob(&self) -> Option<f64> {
        self.0.logprobs.as_ref().map(|(logprob, _)| *logprob)
    }

    /// The likeliest ids with the logarithms of their probabilities, where asked for.
    #[getter]
    fn top_logprobs(&self) -> Vec<(u32, f64)> {
        self.0.logprobs.as_ref().map_or(Vec::new(), |(_, top)| top.clone())
    }

    /// Why the row ended with it, if it did.
    #[getter]
    fn finish_reason(&self) -> Option<String> {
        self.0.finished.map(|reason| reason.to_string())
    }

    fn __repr__(&self) -> String {
        format!("Token(row={}, id={}, text={:?})", self.0.row, self.0.id, self.0.text)
    }
}

/// Generation of one batch of rows.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextGenerator {
    generator: Arc<Mutex<Generator>>,
    /// Steps since something was appended: the first may have to compile.
    is_settled: Mutex<bool>,
}

impl TextGenerator {
    fn lock(&self) -> MutexGuard<'_, Generator> {
        self.generator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work on the generator that Ctrl-C ends.
    fn long<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Generator) -> Result<T, GenerateError> + Send + 'static,
    ) -> PyResult<T> {
        let generator = self.generator.clone();
        let work = move || work(&mut generator.lock().unwrap_or_else(PoisonError::into_inner));
        interruptible(py, "generate", work)?.map_err(raised(py))
    }

    fn set_settled(&self, is_settled: bool) -> bool {
        std::mem::replace(&mut *self.is_settled.lock().unwrap_or_else(PoisonError::into_inner), is_settled)
    }

    /// Looks at a generator that no step is running on.
    fn look<T: Send>(&self, py: Python<'_>, look: impl FnOnce(&mut Generator) -> T + Send) -> PyResult<T> {
        detached(py, || look(&mut self.lock()))
    }
}

#[pymethods]
impl TextGenerator {
    /// A generator without rows. Options are pairs of a name and a value as JSON.
    #[new]
    fn new(py: Python<'_>, model: &Bound<'_, TextModel>, options: Vec<(String, String)>) -> PyResult<TextGenerator> {
        let folder = &model.get().folder;
        let params = read_params(py, model.get(), &options)?;
        let generator = match &folder.tokenizer {
            Some(tokenizer) => Generator::with_tokenizer(&folder.model, params, tokenizer),
            None => Generator::new(&folder.model, params),
        };
        let generator = Arc::new(Mutex::new(generator.map_err(raised(py))?));
        Ok(TextGenerator { generator, is_settled: Mutex::new(false) })
    }

    /// Computes with the values of an adapter from now on, or with the model's own; cached tokens are run again.
    #[pyo3(signature = (adapter = None))]
    fn set_adapter(&self, py: Python<'_>, adapter: Option<NamedAdapter<'_>>) -> PyResult<()> {
        let adapter = named(py, adapter.as_ref())?;
        self.set_settled(false);
        self.look(py, |generator| generator.set_adapter(adapter.as_ref()))?.map_err(raised(py))
    }

    /// Adds tokens to every row and runs them; the first call says how many rows there are.
    fn append(&self, py: Python<'_>, rows: Vec<Vec<u32>>) -> PyResult<()> {
        self.set_settled(false);
        self.long(py, move |generator| {
            let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
            generator.append(&rows)
        })
    }

    /// Chooses the next token of every row that has not ended.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let tokens = if self.set_settled(true) {
            let tokens = self.look(py, Generator::next)?.map_err(raised(py))?;
            py.check_signals()?;
            tokens
        } else {
            self.long(py, Generator::next)?
        };
        let tokens = tokens.into_iter().map(|token| Py::new(py, Token(token)));
        PyList::new(py, tokens.collect::<PyResult<Vec<_>>>()?)
    }

    /// Whether every row has ended.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        self.look(py, |generator| generator.is_done())
    }

    /// Rows.
    fn row_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |generator| generator.row_count())
    }

    /// All tokens of a row.
    fn sequence(&self, py: Python<'_>, row: usize) -> PyResult<Vec<u32>> {
        self.look(py, |generator| generator.sequence(row).to_vec())
    }

    /// Why a row ended, if it has.
    fn finish_reason(&self, py: Python<'_>, row: usize) -> PyResult<Option<String>> {
        self.look(py, |generator| generator.finish_reason(row).map(|reason| reason.to_string()))
    }

    /// The seed of all rows that have none of their own.
    fn seed(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, |generator| generator.seed())
    }

    /// The seed that a row draws by, if there is such a row.
    fn row_seed(&self, py: Python<'_>, row: usize) -> PyResult<Option<u64>> {
        self.look(py, |generator| generator.row_seed(row))
    }

    /// Scores of the next token of a row, before any rule, as bytes of f32.
    fn logits<'py>(&self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.long(py, move |generator| {
            Ok(generator.logits(row)?.iter().flat_map(|score| score.to_ne_bytes()).collect::<Vec<u8>>())
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Replaces the scores of the next token of a row, for one step.
    fn set_logits(&self, py: Python<'_>, row: usize, logits: Vec<f32>) -> PyResult<()> {
        self.look(py, |generator| generator.set_logits(row, &logits))?.map_err(raised(py))
    }

    /// Keeps exactly the first tokens of a row.
    fn rewind(&self, py: Python<'_>, row: usize, length: usize) -> PyResult<()> {
        self.look(py, |generator| generator.rewind(row, length))?.map_err(raised(py))
    }

    /// A new row that is what another is, with random numbers of its own.
    fn fork(&self, py: Python<'_>, row: usize) -> PyResult<usize> {
        self.look(py, |generator| generator.fork(row))?.map_err(raised(py))
    }
}

pub(crate) fn read_params(
    py: Python<'_>,
    model: &TextModel,
    options: &[(String, String)],
) -> PyResult<GeneratorParams> {
    let mut params = GeneratorParams::new(model.folder.model.config().search.clone());
    for (name, json) in options {
        params.set(name, json).map_err(|error| usage(py, &error.to_string()))?;
    }
    params.check(model.folder.model.vocabulary()).map_err(|error| usage(py, &error.to_string()))?;
    Ok(params)
}

/// Answers of one beam search or draw: prompt, tokens, text, why it ended, score, and seed of its draws.
type Answers = Vec<(usize, Vec<u32>, Option<String>, String, Option<f64>, Option<u64>)>;

/// Whole answers to prompts: greedy, drawn, several draws of one prompt, or by beams.
#[pyfunction]
#[pyo3(signature = (model, prompts, options, adapter = None))]
pub fn complete(
    py: Python<'_>,
    model: &Bound<'_, TextModel>,
    prompts: Vec<Vec<u32>>,
    options: Vec<(String, String)>,
    adapter: Option<NamedAdapter<'_>>,
) -> PyResult<Answers> {
    let params = read_params(py, model.get(), &options)?;
    let decoder = model.get().folder.model.with_adapter(named(py, adapter.as_ref())?.as_ref());
    let decoder = decoder.map_err(|error| exception(py, &error.into()))?;
    let tokenizer = model.get().folder.tokenizer.clone();
    let work = move || {
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        precast::generate::generate(&decoder, tokenizer.as_ref(), &params, &prompts, &mut |_| {}, None)
    };
    let completions = interruptible(py, "generate", work)?.map_err(raised(py))?;
    let answer = |answer: precast::generate::Completion| {
        (answer.prompt, answer.tokens, answer.text, answer.finish.to_string(), answer.score, answer.seed)
    };
    Ok(completions.answers.into_iter().map(answer).collect())
}
