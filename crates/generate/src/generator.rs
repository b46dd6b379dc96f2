//! Generation of one batch of independent rows: prompts are appended, tokens come out one step at a time. After an error the
//! state is the one before the call.

use std::sync::Arc;

use crate::adapter::{Adapter, AdapterError};
use crate::config::GenerationConfig;
use crate::decoder_state::{DecoderState, Sequence, StepObserver, StepStats};
use crate::row_search::{ChoiceError, ChosenToken, Logprobs, RowDraws, RowSearch, SearchOptions};
use crate::search::{FinishReason, GeneratorParams, ParamsError, RowSeed, RuleError};
use crate::text_model::{StepError, TextModel};
use crate::tokenizer::Tokenizer;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// An option cannot be.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// What was given does not fit.
    #[error("{0}")]
    Input(String),
    /// A step did not run.
    #[error(transparent)]
    Step(#[from] StepError),
    /// No token can be chosen.
    #[error("row {row}: {source}")]
    Rule {
        /// The row.
        row: usize,
        /// Why.
        source: RuleError,
    },
    /// An adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The caller gave up between two steps.
    #[error("cancelled")]
    Cancelled,
    /// The system gave no seed.
    #[error("the system gave no random seed: {0}")]
    Seed(String),
}

/// A token that a step chose.
#[derive(Clone, Debug, PartialEq)]
pub struct StepToken {
    /// The row.
    pub row: usize,
    /// The token.
    pub id: u32,
    /// Text that is complete with it; empty without a tokenizer.
    pub text: String,
    /// The logarithm of its probability, and the likeliest tokens with theirs, where asked for.
    pub logprobs: Option<(f64, Vec<(u32, f64)>)>,
    /// Why the row ended with it, if it did.
    pub finished: Option<FinishReason>,
}

/// What one row knows beside its tokens.
struct Row {
    search: RowSearch,
    /// The row that was appended and that this one is, or was forked from.
    appended: usize,
    finish: Option<FinishReason>,
    /// Scores that replace the model's for one step.
    given_logits: Option<Vec<f32>>,
}

/// Generation of one batch of rows.
pub struct Generator {
    model: TextModel,
    options: Arc<SearchOptions>,
    /// The seed of rows that have none of their own.
    seed: u64,
    state: Option<DecoderState>,
    rows: Vec<Row>,
    observer: Option<StepObserver>,
}

impl Generator {
    /// A generator without rows.
    pub fn new(model: &TextModel, params: GeneratorParams) -> Result<Generator, GenerateError> {
        Generator::open(model, params, None)
    }

    /// A generator that gives text beside tokens and looks for stop strings in it.
    pub fn with_tokenizer(
        model: &TextModel,
        params: GeneratorParams,
        tokenizer: &Tokenizer,
    ) -> Result<Generator, GenerateError> {
        Generator::open(model, params, Some(tokenizer.clone()))
    }

    fn open(
        model: &TextModel,
        params: GeneratorParams,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Generator, GenerateError> {
        params.check(model.vocabulary())?;
        if params.search.num_beams > 1 {
            return Err(GenerateError::Input("beams have no steps of single tokens; use `generate`".to_string()));
        }
        if !params.stop.is_empty() && tokenizer.is_none() {
            return Err(GenerateError::Input("stop strings need a tokenizer".to_string()));
        }
        let seed = match params.search.random_seed {
            Some(seed) => seed,
            None => system_seed()?,
        };
        let config = &model.config().model;
        let (eos, length_max) = (config.eos_token_ids.clone(), params.search.max_length.min(config.context_length));
        let options = Arc::new(SearchOptions { params, eos, length_max, tokenizer, guide: None });
        Ok(Generator { model: model.clone(), options, seed, state: None, rows: Vec::new(), observer: None })
    }

    /// The seed of all rows that have none of their own.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The seed that a row draws by.
    pub fn row_seed(&self, row: usize) -> Option<u64> {
        self.rows.get(row).map(|row| row.search.draws().seed)
    }

    /// Tells someone what each step ran.
    pub fn observe(&mut self, observer: StepObserver) {
        match &mut self.state {
            Some(state) => state.observe(observer),
            None => self.observer = Some(observer),
        }
    }

    /// Computes with the values of an adapter from now on, or with the model's own. Tokens that are cached are run again with
    /// the next step, which `StepStats::reruns` reports.
    pub fn set_adapter(&mut self, adapter: Option<&Adapter>) -> Result<(), GenerateError> {
        self.model = self.model.with_adapter(adapter)?;
        if let Some(state) = &mut self.state {
            state.set_model(&self.model);
        }
        Ok(())
    }

    /// The adapter whose values it computes with.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.model.adapter()
    }

    /// Adds tokens to every row and runs them; the first call says how many rows there are. A row that had ended goes on.
    pub fn append(&mut self, tokens: &[&[u32]]) -> Result<(), GenerateError> {
        self.append_unless(tokens, &|| false)
    }

    /// The same, but asks before each step whether to give up; the call then fails as cancelled.
    pub fn append_unless(&mut self, tokens: &[&[u32]], is_cancelled: &dyn Fn() -> bool) -> Result<(), GenerateError> {
        self.check_append(tokens)?;
        let is_first = self.state.is_none();
        self.begin(tokens)?;
        let Some(state) = &mut self.state else { return Ok(()) };
        let before: Vec<Sequence> = state.rows().to_vec();
        for (row, tokens) in tokens.iter().enumerate() {
            for &token in *tokens {
                state.row_mut(row).push(token, false);
            }
            state.row_mut(row).is_live |= !tokens.is_empty();
        }
        let ran = match state.run_pending_unless(is_cancelled) {
            Ok(true) => Ok(()),
            Ok(false) => Err(GenerateError::Cancelled),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = ran {
            state.restore(before);
            if is_first {
                (self.state, self.rows) = (None, Vec::new());
            }
            return Err(error);
        }
        for (row, tokens) in self.rows.iter_mut().zip(tokens) {
            if !tokens.is_empty() {
                // Scores that were given are those behind a token that is no longer the last.
                (row.finish, row.given_logits) = (None, None);
                row.search.begin_count();
            }
        }
        self.end_full_rows();
        Ok(())
    }

    /// Chooses the next token of every row that has not ended.
    #[allow(clippy::should_implement_trait, reason = "a step of several rows that can fail is no iterator's next")]
    pub fn next(&mut self) -> Result<Vec<StepToken>, GenerateError> {
        let Some(state) = &mut self.state else { return Ok(Vec::new()) };
        state.run_pending()?;
        let live: Vec<usize> = (0..self.rows.len()).filter(|&row| self.rows[row].finish.is_none()).collect();
        for &row in &live {
            // What is no number is judged, and told, with all scores at hand.
            if state.rows()[row].best.is_some_and(|(_, score)| !score.is_finite()) {
                state.read_scores(row)?;
            }
        }
        // All are picked before any is part of its row, so that after an error none is.
        let picked: Vec<Picked> = live.iter().map(|&row| self.pick(row)).collect::<Result<_, GenerateError>>()?;
        picked.into_iter().map(|picked| self.commit(picked)).collect()
    }

    /// Whether every row has ended.
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| row.finish.is_some())
    }

    /// Rows.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// All tokens of a row.
    pub fn sequence(&self, row: usize) -> &[u32] {
        self.state.as_ref().map_or(&[], |state| state.rows().get(row).map_or(&[], |row| &row.tokens))
    }

    /// Tokens of a row.
    pub fn len(&self, row: usize) -> usize {
        self.sequence(row).len()
    }

    /// Whether a row has no tokens.
    pub fn is_empty(&self, row: usize) -> bool {
        self.sequence(row).is_empty()
    }

    /// Why a row ended, if it has.
    pub fn finish_reason(&self, row: usize) -> Option<FinishReason> {
        self.rows.get(row)?.finish
    }

    /// What was run so far.
    pub fn stats(&self) -> StepStats {
        self.state.as_ref().map_or_else(StepStats::default, |state| state.stats().clone())
    }

    /// Bytes of cached keys and values.
    pub fn cache_bytes(&self) -> usize {
        self.state.as_ref().map_or(0, DecoderState::cache_bytes)
    }

    /// Scores of the next token of a row, before any rule.
    pub fn logits(&mut self, row: usize) -> Result<&[f32], GenerateError> {
        let state = self.state_of(row)?;
        let was_live = state.rows()[row].is_live;
        state.row_mut(row).is_live = true;
        let ran = state.run_pending().and_then(|()| state.read_scores(row));
        state.row_mut(row).is_live = was_live;
        ran?;
        let logits = state.rows()[row].logits.as_deref();
        logits.ok_or_else(|| GenerateError::Input(format!("row {row} has no tokens, so nothing follows them")))
    }

    /// Replaces the scores of the next token of a row, for one step.
    pub fn set_logits(&mut self, row: usize, logits: &[f32]) -> Result<(), GenerateError> {
        self.state_of(row)?;
        if logits.len() != self.model.vocabulary() {
            let expected = self.model.vocabulary();
            return Err(GenerateError::Input(format!("{} scores were given; {expected} were expected", logits.len())));
        }
        self.rows[row].given_logits = Some(logits.to_vec());
        Ok(())
    }

    /// Keeps exactly the first tokens of a row. The next step yields the token behind them.
    pub fn rewind(&mut self, row: usize, length: usize) -> Result<(), GenerateError> {
        let state = self.state_of(row)?;
        let tokens = state.rows()[row].tokens.len();
        if length > tokens {
            return Err(GenerateError::Input(format!("row {row} has {tokens} tokens; {length} cannot be kept")));
        }
        state.rewind(row, length);
        state.row_mut(row).is_live = true;
        let dropped = tokens - length;
        let row_state = &mut self.rows[row];
        row_state.finish = None;
        row_state.given_logits = None;
        row_state.search.drop_tokens(dropped);
        self.retell(row);
        self.end_full_rows();
        Ok(())
    }

    /// A new row that is what another is, with random numbers of its own.
    pub fn fork(&mut self, row: usize) -> Result<usize, GenerateError> {
        self.state_of(row)?.fork(row)?;
        let (parent, rows) = (&self.rows[row], self.rows.len());
        let (appended, given_logits) = (parent.appended, parent.given_logits.clone());
        let siblings = self.rows.iter().filter(|other| other.appended == appended).count();
        let search = parent.search.fork(siblings as u32)?;
        let new = Row { search, appended, finish: parent.finish, given_logits };
        self.rows.push(new);
        self.retell(rows);
        Ok(rows)
    }

    fn state_of(&mut self, row: usize) -> Result<&mut DecoderState, GenerateError> {
        let rows = self.rows.len();
        match &mut self.state {
            Some(state) if row < rows => Ok(state),
            _ => Err(GenerateError::Input(format!("there is no row {row}; there are {rows}"))),
        }
    }

    /// Everything about an append that can be known before anything runs.
    fn check_append(&self, tokens: &[&[u32]]) -> Result<(), GenerateError> {
        let refuse = |reason: String| Err(GenerateError::Input(reason));
        let is_first = self.state.is_none();
        if tokens.is_empty() || (!is_first && tokens.len() != self.rows.len()) {
            return refuse(format!("{} rows were given; {} were expected", tokens.len(), self.rows.len().max(1)));
        }
        if is_first {
            check_batch(self.options.params.search.batch_size, tokens.len())?;
            check_row_seeds(&self.options.params.row_seeds, tokens.len())?;
        }
        let config = self.model.config();
        for (row, tokens) in tokens.iter().enumerate() {
            check_tokens(row, tokens, self.model.vocabulary())?;
            if is_first && tokens.is_empty() {
                return refuse(format!("row {row} has no tokens"));
            }
            check_length(row, self.len(row), tokens.len(), self.options.params.search.max_length, config)?;
        }
        Ok(())
    }

    /// Makes rows for the first prompts.
    fn begin(&mut self, tokens: &[&[u32]]) -> Result<(), GenerateError> {
        if self.state.is_some() {
            return Ok(());
        }
        let rows: Vec<Row> = (0..tokens.len()).map(|row| self.new_row(row)).collect::<Result<_, _>>()?;
        let longest = tokens.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        let chunk = self.options.params.search.chunk_size;
        let mut state =
            DecoderState::new(&self.model, tokens.len(), longest, self.options.params.max_new_tokens, chunk)?;
        if self.options.params.takes_largest() {
            state.leave_scores();
        }
        if let Some(observer) = self.observer.take() {
            state.observe(observer);
        }
        (self.state, self.rows) = (Some(state), rows);
        Ok(())
    }

    /// A row that is appended.
    fn new_row(&self, row: usize) -> Result<Row, GenerateError> {
        let (seed, stream) = match self.options.params.row_seeds.get(row).copied().unwrap_or_default() {
            RowSeed::Shared => (self.seed, row as u32),
            // As if it were alone.
            RowSeed::Own(seed) => (seed, 0),
            RowSeed::FromSystem => (system_seed()?, 0),
        };
        let search = RowSearch::new(self.options.clone(), RowDraws { seed, stream, return_index: 0 })?;
        Ok(Row { search, appended: row, finish: None, given_logits: None })
    }

    /// Reads the generated tokens of a row again, after some were dropped or copied.
    fn retell(&mut self, row: usize) {
        let Some(sequence) = self.state.as_ref().and_then(|state| state.rows().get(row)) else { return };
        let tokens = sequence.tokens.iter().zip(&sequence.is_generated);
        let generated = tokens.filter(|(_, is_generated)| **is_generated).map(|(&token, _)| token);
        self.rows[row].search.retell(generated);
    }

    fn pick(&mut self, row: usize) -> Result<Picked, GenerateError> {
        let missing = || GenerateError::Input(format!("row {row} has no tokens, so nothing follows them"));
        let sequence = self.state.as_ref().and_then(|state| state.rows().get(row)).ok_or_else(missing)?;
        let Row { search, given_logits, .. } = &mut self.rows[row];
        if let (Some((id, _)), None, None) = (sequence.best, &sequence.logits, &given_logits) {
            return Ok(Picked { row, id, logprobs: None });
        }
        let raw = given_logits.as_deref().or(sequence.logits.as_deref()).ok_or_else(missing)?;
        let picked = search.pick(raw, &sequence.tokens, &sequence.is_generated);
        let (id, logprobs) = picked.map_err(|error| refused(row, error))?;
        Ok(Picked { row, id, logprobs })
    }

    /// Makes a picked token part of its row, and ends the row where it must.
    fn commit(&mut self, Picked { row, id, logprobs }: Picked) -> Result<StepToken, GenerateError> {
        let Row { search, finish, given_logits, .. } = &mut self.rows[row];
        let length = self.state.as_ref().map_or(0, |state| state.rows()[row].tokens.len());
        let chosen = search.accept(id, length).map_err(|error| refused(row, error))?;
        let ChosenToken { text, is_kept, finish: finished, .. } = chosen;
        (*finish, *given_logits) = (finished, None);
        if let Some(state) = &mut self.state {
            if is_kept {
                state.row_mut(row).push(id, true);
            }
            state.row_mut(row).is_live = finished.is_none();
        }
        Ok(StepToken { row, id, text, logprobs, finished })
    }

    /// Ends rows that may not have another token: an append has filled them, or a rewind left them full.
    fn end_full_rows(&mut self) {
        let Some(state) = &mut self.state else { return };
        for (position, row) in self.rows.iter_mut().enumerate().filter(|(_, row)| row.finish.is_none()) {
            row.finish = row.search.limit(state.rows()[position].tokens.len());
            state.row_mut(position).is_live &= row.finish.is_none();
        }
    }
}

/// A token that a row's rules picked.
struct Picked {
    row: usize,
    id: u32,
    logprobs: Option<Logprobs>,
}

/// Why no token of a row could be chosen.
fn refused(row: usize, error: ChoiceError) -> GenerateError {
    match error {
        ChoiceError::Rule(source) => GenerateError::Rule { row, source },
        ChoiceError::Guidance(error) => GenerateError::Input(format!("row {row}: {error}")),
    }
}

/// A folder or a caller may say how many rows there are; 1 says nothing.
pub(crate) fn check_batch(batch_size: usize, rows: usize) -> Result<(), GenerateError> {
    match batch_size > 1 && batch_size != rows {
        true => Err(GenerateError::Input(format!("batch_size is {batch_size} and {rows} rows were given"))),
        false => Ok(()),
    }
}

/// Seeds of rows are those of all rows, or of none.
pub(crate) fn check_row_seeds(seeds: &[RowSeed], rows: usize) -> Result<(), GenerateError> {
    match !seeds.is_empty() && seeds.len() != rows {
        true => Err(GenerateError::Input(format!("row_seeds has {} seeds and {rows} rows were given", seeds.len()))),
        false => Ok(()),
    }
}

/// Tokens are ids of the vocabulary.
pub(crate) fn check_tokens(row: usize, tokens: &[u32], vocabulary: usize) -> Result<(), GenerateError> {
    match tokens.iter().position(|&token| token as usize >= vocabulary) {
        Some(position) => Err(GenerateError::Input(format!(
            "token {position} of row {row} is {}; the vocabulary has {vocabulary}",
            tokens[position]
        ))),
        None => Ok(()),
    }
}

/// A first prompt leaves room for a token; a later append may fill the row.
pub(crate) fn check_length(
    row: usize,
    length: usize,
    added: usize,
    max_length: usize,
    config: &GenerationConfig,
) -> Result<(), GenerateError> {
    let context = config.model.context_length;
    let total = length + added;
    let refuse = |limit: &str, value: usize| {
        Err(GenerateError::Input(format!("row {row} would have {total} tokens; {limit} is {value}")))
    };
    if total > context {
        return refuse("context_length", context);
    }
    if total > max_length || (length == 0 && total == max_length) {
        return refuse("max_length", max_length);
    }
    Ok(())
}

pub(crate) fn system_seed() -> Result<u64, GenerateError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| GenerateError::Seed(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}
