//! How the tokens of one row are chosen, told and ended: the rules of a search with the row's own options, seed, text and
//! grammar. Nothing here knows of other rows, so no token depends on them.

use std::sync::Arc;

use crate::search::{
    Draw, FinishReason, GeneratorParams, History, ParamsError, RuleError, StopMatcher, apply_rules_within, choose,
    choose_likeliest, log_softmax_at, top_logprobs, uniform,
};
use crate::text_stream::TextStream;
use crate::tokenizer::Tokenizer;

use super::guidance::{GuidanceError, Guide, TokenMask};

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

/// A token that was chosen and is part of the row from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub id: u32,
    /// Text that is complete with it.
    pub text: String,
    /// The logarithm of its probability before any rule, and the likeliest tokens with theirs.
    pub logprobs: Option<(f64, Vec<(u32, f64)>)>,
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
    /// The seed of all draws.
    pub seed: u64,
    /// Tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Tokens that a row may have.
    pub length_max: usize,
    /// The tokenizer, where texts are wanted.
    pub tokenizer: Option<Tokenizer>,
    /// A guide at its beginning, where answers follow a grammar.
    pub guide: Option<Guide>,
}

/// How the tokens of one row are chosen.
pub struct RowSearch {
    options: Arc<SearchOptions>,
    return_index: u32,
    /// Tokens generated in this turn.
    new_tokens: usize,
    text: Option<(TextStream, StopMatcher)>,
    guide: Option<Guide>,
}

impl RowSearch {
    /// At the beginning of the answer of this number.
    pub fn new(options: Arc<SearchOptions>, return_index: u32) -> Result<RowSearch, ParamsError> {
        let text = new_text(&options)?;
        let guide = options.guide.clone();
        Ok(RowSearch { options, return_index, new_tokens: 0, text, guide })
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

    /// Begins a new turn: tokens, text and grammar from the start.
    pub fn begin_turn(&mut self) {
        self.new_tokens = 0;
        self.guide = self.options.guide.clone();
        // Stop strings were accepted when the request came.
        self.text = new_text(&self.options).ok().flatten();
    }

    /// Cuts proposed tokens where the grammar does not allow them.
    pub fn cut_draft(&mut self, draft: &mut Vec<u32>) {
        if let Some(guide) = &mut self.guide {
            draft.truncate(guide.valid_prefix(draft));
        }
    }

    /// Chooses the token behind `tokens` by its scores.
    pub fn choose(&mut self, raw: &[f32], tokens: &[u32], is_generated: &[bool]) -> Result<ChosenToken, ChoiceError> {
        let mask = self.mask()?;
        let params = &self.options.params;
        if params.takes_largest() && mask.is_none() {
            let id = choose_likeliest(raw, tokens.len())?;
            return self.accept(id, tokens.len(), None);
        }
        let ban = |logits: &mut [f32]| mask.iter().for_each(|mask| mask.apply(logits));
        let mut logits = raw.to_vec();
        apply_rules_within(&mut logits, History { tokens, is_generated }, params, &self.options.eos, &ban)?;
        let draw = Draw { stream: 0, return_index: self.return_index, position: tokens.len() as u32 };
        let id = choose(&logits, params, || uniform(self.options.seed, draw)).token;
        let logprobs = params.logprobs.map(|count| (log_softmax_at(raw, id), top_logprobs(raw, count)));
        self.accept(id, tokens.len(), logprobs)
    }

    /// The token that must come next, if the grammar allows only one and nothing is wanted of its scores. Choosing it by
    /// scores would give the same token.
    pub fn choose_forced(&mut self, length: usize) -> Result<Option<ChosenToken>, ChoiceError> {
        let params = &self.options.params;
        if params.logprobs.is_some() || params.search.no_repeat_ngram_size > 0 || length < params.search.min_length {
            return Ok(None);
        }
        match self.mask()?.and_then(|mask| mask.only_token()) {
            Some(id) => self.accept(id, length, None).map(Some),
            None => Ok(None),
        }
    }

    /// Tokens that the grammar allows next. Where an end is to be ignored it is allowed when nothing else is.
    fn mask(&mut self) -> Result<Option<TokenMask>, GuidanceError> {
        let Some(guide) = &mut self.guide else { return Ok(None) };
        let mask = if self.options.params.ignore_eos { guide.mask_to_go_on() } else { guide.mask() };
        mask.map(Some)
    }

    /// Makes a token part of the answer, behind so many tokens of the row.
    fn accept(
        &mut self,
        id: u32,
        length: usize,
        logprobs: Option<(f64, Vec<(u32, f64)>)>,
    ) -> Result<ChosenToken, ChoiceError> {
        let params = &self.options.params;
        // A grammar knows ends as its end only; where one is to be ignored, nothing else was left.
        let is_eos = (!params.ignore_eos || self.guide.is_some()) && self.options.eos.contains(&id);
        if let (Some(guide), false) = (&mut self.guide, is_eos) {
            guide.accept(id)?;
        }
        let is_kept = !is_eos || params.include_stop_token;
        self.new_tokens += usize::from(!is_eos);
        let (mut text, mut stop) = (String::new(), None);
        if let (Some((stream, matcher)), false) = (&mut self.text, is_eos) {
            let passed = matcher.push(stream.push(id));
            (text, stop) = (passed.text, passed.stop);
        }
        let is_at_end = self.guide.as_ref().is_some_and(Guide::is_at_end);
        let finish = match stop {
            _ if is_eos && params.ignore_eos => Some(FinishReason::GrammarEnd),
            _ if is_eos => Some(FinishReason::Eos),
            Some(position) => Some(FinishReason::StopString(position)),
            None if is_at_end => Some(FinishReason::GrammarEnd),
            None if params.max_new_tokens.is_some_and(|max| self.new_tokens >= max) => Some(FinishReason::MaxNewTokens),
            None if length + usize::from(is_kept) >= self.options.length_max => Some(FinishReason::MaxLength),
            None => None,
        };
        if let (Some(reason), Some((stream, matcher))) = (finish, &mut self.text)
            && !matches!(reason, FinishReason::StopString(_))
        {
            let passed = matcher.push(&stream.finish());
            text.push_str(&passed.text);
            text.push_str(&matcher.finish());
        }
        Ok(ChosenToken { id, text, logprobs, is_kept, finish })
    }
}

fn new_text(options: &SearchOptions) -> Result<Option<(TextStream, StopMatcher)>, ParamsError> {
    let matcher = StopMatcher::new(&options.params.stop)?;
    Ok(options.tokenizer.as_ref().map(|tokenizer| (tokenizer.stream(), matcher)))
}
