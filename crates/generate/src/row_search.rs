//! How the tokens of one row are chosen, told and ended: the rules of a search with the row's own options, seed, text and
//! grammar, for a generator's rows and an engine's alike. Nothing here knows of other rows, so no token depends on them.

use std::sync::Arc;

use crate::engine::guidance::{GuidanceError, Guide, TokenMask};
use crate::search::{
    Draw, FinishReason, GeneratorParams, History, LogprobsMode, ParamsError, RuleError, StopMatcher,
    apply_rules_within, choose, choose_likeliest, log_softmax_at, processed_logprobs, top_logprobs, uniform,
};
use crate::text_stream::TextStream;
use crate::tokenizer::Tokenizer;

/// Why no token of a row could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// The rules leave nothing, or scores are none.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The grammar cannot go on.
    #[error(transparent)]
    Guidance(#[from] GuidanceError),
}

/// The logarithm of a token's probability, before any rule or after all of them, and the likeliest tokens with theirs.
pub type Logprobs = (f64, Vec<(u32, f64)>);

/// A token that was chosen and is part of the row from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub id: u32,
    /// Text that is complete with it.
    pub text: String,
    /// How likely it was, where asked for.
    pub logprobs: Option<Logprobs>,
    /// Whether it stays in the row; a token that ends a sequence does not, unless asked for.
    pub is_kept: bool,
    /// Why the row ends with it, if it does.
    pub finish: Option<FinishReason>,
}

/// What of a request says how its tokens are chosen, all of its answers' alike.
#[derive(Clone)]
pub struct SearchOptions {
    /// Options of the search.
    pub params: GeneratorParams,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Tokens that a row may have.
    pub length_max: usize,
    /// The tokenizer, where texts are wanted.
    pub tokenizer: Option<Tokenizer>,
    /// A guide at its beginning, where answers follow a grammar.
    pub guide: Option<Guide>,
}

/// Which random numbers a row draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDraws {
    /// The seed.
    pub seed: u64,
    /// Which of the seed's streams.
    pub stream: u32,
    /// Which of the answers to one prompt.
    pub return_index: u32,
}

/// How the tokens of one row are chosen.
pub struct RowSearch {
    options: Arc<SearchOptions>,
    draws: RowDraws,
    /// Tokens generated in this turn.
    new_tokens: usize,
    text: Option<(TextStream, StopMatcher)>,
    guide: Option<Guide>,
}

impl RowSearch {
    /// At the beginning of an answer that draws these random numbers.
    pub fn new(options: Arc<SearchOptions>, draws: RowDraws) -> Result<RowSearch, ParamsError> {
        let text = new_text(&options)?;
        let guide = options.guide.clone();
        Ok(RowSearch { options, draws, new_tokens: 0, text, guide })
    }

    /// The same row as another answer: all but its random numbers and its text, which is to be told again.
    pub fn fork(&self, return_index: u32) -> Result<RowSearch, ParamsError> {
        let (text, guide) = (new_text(&self.options)?, self.guide.clone());
        let (draws, new_tokens) = (RowDraws { return_index, ..self.draws }, self.new_tokens);
        Ok(RowSearch { options: self.options.clone(), draws, new_tokens, text, guide })
    }

    /// Which random numbers the row draws.
    pub fn draws(&self) -> RowDraws {
        self.draws
    }

    /// Tokens generated in this turn.
    pub fn new_tokens(&self) -> usize {
        self.new_tokens
    }

    /// Options of the search.
    pub fn params(&self) -> &GeneratorParams {
        &self.options.params
    }

    /// Tokens that the row may have.
    pub fn length_max(&self) -> usize {
        self.options.length_max
    }

    /// Tokens that may still be generated behind so many tokens of the row.
    pub fn room(&self, length: usize) -> usize {
        let by_length = self.options.length_max.saturating_sub(length);
        let by_count = self.options.params.max_new_tokens.map_or(usize::MAX, |max| max.saturating_sub(self.new_tokens));
        by_length.min(by_count)
    }

    /// Why a row of so many tokens may not have another one, if it may not.
    pub fn limit(&self, length: usize) -> Option<FinishReason> {
        match self.options.params.max_new_tokens {
            Some(max) if self.new_tokens >= max => Some(FinishReason::MaxNewTokens),
            _ if length >= self.options.length_max => Some(FinishReason::MaxLength),
            _ => None,
        }
    }

    /// Begins a new turn: tokens, text and grammar from the start.
    pub fn begin_turn(&mut self) {
        self.begin_count();
        self.guide = self.options.guide.clone();
        // Stop strings were accepted when the row began.
        self.text = new_text(&self.options).ok().flatten();
    }

    /// Counts new tokens from here on; the text goes on.
    pub fn begin_count(&mut self) {
        self.new_tokens = 0;
    }

    /// The last tokens of the row, so many, are no more; what is left is to be told again.
    pub fn drop_tokens(&mut self, count: usize) {
        self.new_tokens = self.new_tokens.saturating_sub(count);
    }

    /// Reads generated tokens again, after some were dropped or copied.
    pub fn retell(&mut self, generated: impl Iterator<Item = u32>) {
        // Stop strings were accepted when the row began.
        self.text = new_text(&self.options).ok().flatten();
        if let Some((stream, matcher)) = &mut self.text {
            generated.for_each(|token| _ = matcher.push(stream.push(token)));
        }
    }

    /// Where the answer stands in its grammar, to imagine tokens behind it.
    pub fn guide(&self) -> Option<Guide> {
        self.guide.clone()
    }

    /// Cuts proposed tokens where the grammar does not allow them.
    pub fn cut_draft(&mut self, draft: &mut Vec<u32>) {
        if let Some(guide) = &mut self.guide {
            draft.truncate(guide.valid_prefix(draft));
        }
    }

    /// Chooses the token behind `tokens` by its scores and makes it part of the answer.
    pub fn choose(&mut self, raw: &[f32], tokens: &[u32], is_generated: &[bool]) -> Result<ChosenToken, ChoiceError> {
        let (id, logprobs) = self.pick(raw, tokens, is_generated)?;
        Ok(ChosenToken { logprobs, ..self.accept(id, tokens.len())? })
    }

    /// Whether the token of the largest score is taken, whatever the others are, so that nobody needs to know them.
    pub fn takes_largest(&self) -> bool {
        self.options.params.takes_largest() && self.guide.is_none()
    }

    /// The token behind `tokens` by its scores. Nothing changes: the same scores give the same token again.
    pub fn pick(
        &mut self,
        raw: &[f32],
        tokens: &[u32],
        is_generated: &[bool],
    ) -> Result<(u32, Option<Logprobs>), ChoiceError> {
        let mut guide = self.guide.take();
        let picked = self.pick_by(guide.as_mut(), raw, tokens, is_generated);
        self.guide = guide;
        picked
    }

    /// As `pick`, behind tokens that are imagined: the grammar stands where `guide` does.
    pub fn pick_by(
        &self,
        guide: Option<&mut Guide>,
        raw: &[f32],
        tokens: &[u32],
        is_generated: &[bool],
    ) -> Result<(u32, Option<Logprobs>), ChoiceError> {
        let params = &self.options.params;
        let mask = self.mask(guide)?;
        if params.takes_largest() && mask.is_none() {
            return Ok((choose_likeliest(raw, tokens.len())?, None));
        }
        let ban = |logits: &mut [f32]| mask.iter().for_each(|mask| mask.apply(logits));
        let mut logits = raw.to_vec();
        apply_rules_within(&mut logits, History { tokens, is_generated }, params, &self.options.eos, &ban)?;
        let RowDraws { seed, stream, return_index } = self.draws;
        let draw = Draw { stream, return_index, position: tokens.len() as u32 };
        let id = choose(&logits, params, || uniform(seed, draw)).token;
        let logprobs = |count: usize| match params.logprobs_mode {
            LogprobsMode::Raw => (log_softmax_at(raw, id), top_logprobs(raw, count)),
            LogprobsMode::Processed => processed_logprobs(&logits, params, id, count),
        };
        Ok((id, params.logprobs.map(logprobs)))
    }

    /// The token that must come next, if the grammar allows only one and nothing is wanted of its scores. Choosing it by
    /// scores would give the same token.
    pub fn choose_forced(&mut self, length: usize) -> Result<Option<ChosenToken>, ChoiceError> {
        let params = &self.options.params;
        if params.logprobs.is_some() || params.search.no_repeat_ngram_size > 0 || length < params.search.min_length {
            return Ok(None);
        }
        let mut guide = self.guide.take();
        let mask = self.mask(guide.as_mut());
        self.guide = guide;
        match mask?.and_then(|mask| mask.only_token()) {
            Some(id) => self.accept(id, length).map(Some),
            None => Ok(None),
        }
    }

    /// Tokens that the grammar allows next. Where an end is to be ignored it is allowed when nothing else is.
    fn mask(&self, guide: Option<&mut Guide>) -> Result<Option<TokenMask>, GuidanceError> {
        let Some(guide) = guide else { return Ok(None) };
        let mask = if self.options.params.ignore_eos { guide.mask_to_go_on() } else { guide.mask() };
        mask.map(Some)
    }

    /// Whether a token ends the answer. A grammar knows ends as its end only; where one is to be ignored, nothing else was
    /// left.
    pub fn is_end(&self, id: u32) -> bool {
        (!self.options.params.ignore_eos || self.guide.is_some()) && self.options.eos.contains(&id)
    }

    /// Makes a token part of the answer, behind so many tokens of the row.
    pub fn accept(&mut self, id: u32, length: usize) -> Result<ChosenToken, ChoiceError> {
        let is_end = self.is_end(id);
        let params = &self.options.params;
        if let (Some(guide), false) = (&mut self.guide, is_end) {
            guide.accept(id)?;
        }
        let is_kept = !is_end || params.include_stop_token;
        self.new_tokens += usize::from(!is_end);
        let (mut text, mut stop) = (String::new(), None);
        if let (Some((stream, matcher)), false) = (&mut self.text, is_end) {
            let passed = matcher.push(stream.push(id));
            (text, stop) = (passed.text, passed.stop);
        }
        let is_at_end = self.guide.as_ref().is_some_and(Guide::is_at_end);
        let finish = match stop {
            _ if is_end && params.ignore_eos => Some(FinishReason::GrammarEnd),
            _ if is_end => Some(FinishReason::Eos),
            Some(position) => Some(FinishReason::StopString(position)),
            None if is_at_end => Some(FinishReason::GrammarEnd),
            None => self.limit(length + usize::from(is_kept)),
        };
        if let (Some(reason), Some((stream, matcher))) = (finish, &mut self.text)
            && !matches!(reason, FinishReason::StopString(_))
        {
            let passed = matcher.push(&stream.finish());
            text.push_str(&passed.text);
            text.push_str(&matcher.finish());
        }
        Ok(ChosenToken { id, text, logprobs: None, is_kept, finish })
    }
}

fn new_text(options: &SearchOptions) -> Result<Option<(TextStream, StopMatcher)>, ParamsError> {
    let matcher = StopMatcher::new(&options.params.stop)?;
    Ok(options.tokenizer.as_ref().map(|tokenizer| (tokenizer.stream(), matcher)))
}
