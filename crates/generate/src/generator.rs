//! Generation of one batch of independent rows: prompts are appended, tokens come out one step at a time. After an error the
//! state is the one before the call.

use crate::config::GenerationConfig;
use crate::decoder_state::{DecoderState, Sequence, StepObserver, StepStats};
use crate::search::{
    Draw, FinishReason, GeneratorParams, History, ParamsError, RuleError, StopMatcher, apply_rules, choose,
    choose_likeliest, log_softmax_at, top_logprobs, uniform,
};
use crate::text_model::{StepError, TextModel};
use crate::text_stream::TextStream;
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
    /// The logarithm of its probability before any rule, and the likeliest tokens with theirs, where asked for.
    pub logprobs: Option<(f64, Vec<(u32, f64)>)>,
    /// Why the row ended with it, if it did.
    pub finished: Option<FinishReason>,
}

/// What one row knows beside its tokens.
struct Row {
    finish: Option<FinishReason>,
    /// Tokens generated since the last append.
    new_tokens: usize,
    text: Option<(TextStream, StopMatcher)>,
    /// Scores that replace the model's for one step.
    given_logits: Option<Vec<f32>>,
    /// Which stream of random numbers the row draws from.
    stream: u32,
    return_index: u32,
}

/// Generation of one batch of rows.
pub struct Generator {
    model: TextModel,
    params: GeneratorParams,
    tokenizer: Option<Tokenizer>,
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
        Ok(Generator { model: model.clone(), params, tokenizer, seed, state: None, rows: Vec::new(), observer: None })
    }

    /// The seed of all draws.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tells someone what each step ran.
    pub fn observe(&mut self, observer: StepObserver) {
        match &mut self.state {
            Some(state) => state.observe(observer),
            None => self.observer = Some(observer),
        }
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
                (row.finish, row.new_tokens, row.given_logits) = (None, 0, None);
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
        let chosen: Vec<StepToken> = live.iter().map(|&row| self.choose(row)).collect::<Result<_, GenerateError>>()?;
        Ok(chosen.into_iter().map(|token| self.commit(token)).collect())
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
        row_state.new_tokens = row_state.new_tokens.saturating_sub(dropped);
        self.retell(row)
    }

    /// A new row that is what another is, with random numbers of its own.
    pub fn fork(&mut self, row: usize) -> Result<usize, GenerateError> {
        self.state_of(row)?.fork(row)?;
        let (text, rows) = (self.new_text()?, self.rows.len());
        let parent = &self.rows[row];
        let siblings = self.rows.iter().filter(|other| other.stream == parent.stream).count();
        let new = Row {
            finish: parent.finish,
            new_tokens: parent.new_tokens,
            text,
            given_logits: parent.given_logits.clone(),
            stream: parent.stream,
            return_index: siblings as u32,
        };
        self.rows.push(new);
        self.retell(rows)?;
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
            check_batch(self.params.search.batch_size, tokens.len())?;
        }
        let config = self.model.config();
        for (row, tokens) in tokens.iter().enumerate() {
            check_tokens(row, tokens, self.model.vocabulary())?;
            if is_first && tokens.is_empty() {
                return refuse(format!("row {row} has no tokens"));
            }
            check_length(row, self.len(row), tokens.len(), self.params.search.max_length, config)?;
        }
        Ok(())
    }

    /// Makes rows for the first prompts.
    fn begin(&mut self, tokens: &[&[u32]]) -> Result<(), GenerateError> {
        if self.state.is_some() {
            return Ok(());
        }
        let longest = tokens.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        let chunk = self.params.search.chunk_size;
        let mut state = DecoderState::new(&self.model, tokens.len(), longest, self.params.max_new_tokens, chunk)?;
        if self.params.takes_largest() {
            state.leave_scores();
        }
        if let Some(observer) = self.observer.take() {
            state.observe(observer);
        }
        self.state = Some(state);
        for stream in 0..tokens.len() as u32 {
            let text = self.new_text()?;
            let row = Row { finish: None, new_tokens: 0, text, given_logits: None, stream, return_index: 0 };
            self.rows.push(row);
        }
        Ok(())
    }

    fn new_text(&self) -> Result<Option<(TextStream, StopMatcher)>, GenerateError> {
        let matcher = StopMatcher::new(&self.params.stop)?;
        Ok(self.tokenizer.as_ref().map(|tokenizer| (tokenizer.stream(), matcher)))
    }

    /// Reads the generated tokens of a row again, after some were dropped or copied.
    fn retell(&mut self, row: usize) -> Result<(), GenerateError> {
        let mut text = self.new_text()?;
        if let (Some((stream, matcher)), Some(state)) = (&mut text, &self.state) {
            let sequence = &state.rows()[row];
            for (&token, _) in
                sequence.tokens.iter().zip(&sequence.is_generated).filter(|(_, is_generated)| **is_generated)
            {
                matcher.push(stream.push(token));
            }
        }
        self.rows[row].text = text;
        Ok(())
    }

    fn choose(&self, row: usize) -> Result<StepToken, GenerateError> {
        let missing = || GenerateError::Input(format!("row {row} has no tokens, so nothing follows them"));
        let sequence = self.state.as_ref().and_then(|state| state.rows().get(row)).ok_or_else(missing)?;
        let control = &self.rows[row];
        if let (Some((id, _)), None, None) = (sequence.best, &sequence.logits, &control.given_logits) {
            return Ok(StepToken { row, id, text: String::new(), logprobs: None, finished: None });
        }
        let raw = control.given_logits.as_deref().or(sequence.logits.as_deref()).ok_or_else(missing)?;
        if self.params.takes_largest() {
            let id =
                choose_likeliest(raw, sequence.tokens.len()).map_err(|source| GenerateError::Rule { row, source })?;
            return Ok(StepToken { row, id, text: String::new(), logprobs: None, finished: None });
        }
        let mut logits = raw.to_vec();
        let history = History { tokens: &sequence.tokens, is_generated: &sequence.is_generated };
        apply_rules(&mut logits, history, &self.params, self.eos())
            .map_err(|source| GenerateError::Rule { row, source })?;
        let (stream, return_index) = (control.stream, control.return_index);
        let draw = Draw { stream, return_index, position: sequence.tokens.len() as u32 };
        let choice = choose(&logits, &self.params, || uniform(self.seed, draw));
        let logprobs = self.params.logprobs.map(|count| (log_softmax_at(raw, choice.token), top_logprobs(raw, count)));
        Ok(StepToken { row, id: choice.token, text: String::new(), logprobs, finished: None })
    }

    /// Makes a chosen token part of its row, and ends the row where it must.
    fn commit(&mut self, mut token: StepToken) -> StepToken {
        let row = token.row;
        self.rows[row].given_logits = None;
        let is_eos = !self.params.ignore_eos && self.eos().contains(&token.id);
        let Some(state) = &mut self.state else { return token };
        if !is_eos || self.params.include_stop_token {
            state.row_mut(row).push(token.id, true);
        }
        let length = state.rows()[row].tokens.len();
        let control = &mut self.rows[row];
        if !is_eos {
            control.new_tokens += 1;
        }
        let mut stop = None;
        if let (Some((stream, matcher)), false) = (&mut control.text, is_eos) {
            let passed = matcher.push(stream.push(token.id));
            (token.text, stop) = (passed.text, passed.stop);
        }
        control.finish = match stop {
            _ if is_eos => Some(FinishReason::Eos),
            Some(position) => Some(FinishReason::StopString(position)),
            None if self.params.max_new_tokens.is_some_and(|max| control.new_tokens >= max) => {
                Some(FinishReason::MaxNewTokens)
            }
            None if length >= self.params.search.max_length.min(self.model.config().model.context_length) => {
                Some(FinishReason::MaxLength)
            }
            None => None,
        };
        if let (Some(reason), Some((stream, matcher))) = (control.finish, &mut control.text)
            && !matches!(reason, FinishReason::StopString(_))
        {
            let rest = stream.finish();
            let passed = matcher.push(&rest);
            token.text.push_str(&passed.text);
            token.text.push_str(&matcher.finish());
        }
        state.row_mut(row).is_live = control.finish.is_none();
        token.finished = control.finish;
        token
    }

    /// Rows that an append has made as long as they may be.
    fn end_full_rows(&mut self) {
        let longest = self.params.search.max_length.min(self.model.config().model.context_length);
        let Some(state) = &mut self.state else { return };
        for (position, row) in self.rows.iter_mut().enumerate() {
            if row.finish.is_none() && state.rows()[position].tokens.len() >= longest {
                row.finish = Some(FinishReason::MaxLength);
                state.row_mut(position).is_live = false;
            }
        }
    }

    fn eos(&self) -> &[u32] {
        &self.model.config().model.eos_token_ids
    }
}

/// A folder or a caller may say how many rows there are; 1 says nothing.
pub(crate) fn check_batch(batch_size: usize, rows: usize) -> Result<(), GenerateError> {
    match batch_size > 1 && batch_size != rows {
        true => Err(GenerateError::Input(format!("batch_size is {batch_size} and {rows} rows were given"))),
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
