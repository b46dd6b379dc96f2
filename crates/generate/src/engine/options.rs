//! How an engine shares a device: what the folder says, and what callers may change.

use crate::config::{EngineConfig, GenerationConfig, SpeculativeConfig};
use crate::text_model::TextModel;

/// Tokens of a page where a folder does not say.
const DEFAULT_PAGE_TOKENS: usize = 256;
/// Tokens of a step where a folder does not say.
const DEFAULT_TOKENS_MAX: usize = 2048;
/// Share of a step's tokens that the oldest prompt gets, unless the folder says otherwise.
const PREFILL_SHARE: f64 = 0.25;
/// Events that a request may have waiting before it pauses.
const EVENTS_MAX: usize = 256;
/// Answers that may wait to be let in.
const QUEUED_MAX: usize = 1 << 16;
/// Pages that an engine may have: each is counted, whether it is written or not.
const PAGES_MAX: usize = 1 << 24;
/// Rows of a step that may be asked for.
const ROWS_MAX: usize = 1 << 16;

/// How an engine shares a device.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Pages; unless set, as many as `kv_bytes_max` allows.
    pub pages: Option<usize>,
    /// Bytes that pages may take; unless set, room for a full context in every row.
    pub kv_bytes_max: Option<usize>,
    /// Rows of a step.
    pub rows_max: usize,
    /// Tokens of a step.
    pub tokens_max: usize,
    /// Requests that share steps; the others wait. Unless set, pages alone decide.
    pub admitted_max: Option<usize>,
    /// Share pages of equal beginnings between requests.
    pub prefix_caching: bool,
    /// Share of a step's tokens that the oldest prompt gets.
    pub prefill_share: f64,
    /// Tokens that prompts get in one step; unless set, and at most, the chunk of the model.
    pub prefill_max: Option<usize>,
    /// Speculation.
    pub speculation: SpeculativeConfig,
    /// Compile Programs ahead of need, on a thread of its own: for engines that live longer than a few requests.
    pub prepares_programs: bool,
    /// Propose in every step, whether that pays or not: for measurements and tests.
    pub proposes_always: bool,
    /// Events that a request may have waiting before it pauses.
    pub events_max: usize,
    /// Answers that may wait to be let in; requests beyond them are refused.
    pub queued_max: usize,
    /// Check after every step what must hold between steps.
    pub checks_invariants: bool,
}

impl EngineOptions {
    /// What a folder says. `free_bytes` is the memory that is free for pages, where it is known.
    pub fn from_config(config: &GenerationConfig, free_bytes: Option<usize>) -> EngineOptions {
        let speculation = config.speculative.clone();
        let prefill_share = config.tuning.prefill_share.unwrap_or(PREFILL_SHARE);
        let options = EngineOptions {
            page_tokens: DEFAULT_PAGE_TOKENS,
            pages: None,
            kv_bytes_max: None,
            rows_max: 1,
            tokens_max: DEFAULT_TOKENS_MAX,
            admitted_max: None,
            prefix_caching: false,
            prefill_share,
            prefill_max: None,
            speculation,
            prepares_programs: config.tuning.prepares_programs.unwrap_or(false),
            proposes_always: false,
            events_max: EVENTS_MAX,
            queued_max: QUEUED_MAX,
            checks_invariants: false,
        };
        match config.engine {
            EngineConfig::Static { max_batch_size } => EngineOptions {
                page_tokens: config.tuning.kv_page.unwrap_or(DEFAULT_PAGE_TOKENS),
                rows_max: max_batch_size,
                admitted_max: Some(max_batch_size),
                ..options
            },
            EngineConfig::Dynamic {
                block_size,
                num_blocks,
                gpu_utilization_factor,
                max_batch_size,
                max_scheduled_tokens,
                prefix_caching,
            } => EngineOptions {
                page_tokens: config.tuning.kv_page.unwrap_or(block_size),
                pages: num_blocks,
                kv_bytes_max: gpu_utilization_factor
                    .zip(free_bytes)
                    .map(|(factor, free_bytes)| (factor * free_bytes as f64) as usize),
                rows_max: max_batch_size,
                tokens_max: max_scheduled_tokens,
                prefix_caching,
                ..options
            },
        }
    }

    /// The same where pages are of a device that has so many bytes free, as far as it says, before it has the decoder's weights.
    /// Pages that nobody counted are as many as fit.
    pub(super) fn within_device(&self, model: &TextModel, free_bytes: Option<u64>) -> Result<EngineOptions, String> {
        let (None, Some(free_bytes)) = (self.pages, free_bytes) else { return Ok(self.clone()) };
        let (context_length, token_bytes) = (model.config().model.context_length, model.kv_bytes_per_token());
        let limits = self.limits(context_length, token_bytes, model.ladders().length.largest())?;
        let left = usize::try_from(free_bytes.saturating_sub(model.weight_bytes())).unwrap_or(usize::MAX);
        // Unless someone says how many bytes, half is left to captures, workspaces and the caches of generators.
        let room = if self.kv_bytes_max.is_some() { left } else { left / 2 };
        let fitting = room / limits.page_tokens.saturating_mul(token_bytes).max(1);
        let pages = if fitting < limits.pages { few_bits(fitting) } else { limits.pages };
        match pages {
            0 => {
                Err(format!("the device has {free_bytes} bytes free, and there is room for no page beside the weights"))
            }
            pages => Ok(EngineOptions { pages: Some(pages), ..self.clone() }),
        }
    }

    /// The numbers that an engine works with, for a model of which a token takes so many bytes.
    pub fn limits(&self, context_length: usize, token_bytes: usize, chunk: usize) -> Result<EngineLimits, String> {
        let claims = [
            (self.page_tokens > 0, "page_tokens (block_size) of 1 or more"),
            (self.rows_max > 0 && self.rows_max <= ROWS_MAX, "rows_max (max_batch_size) of 1 to 65536"),
            (self.pages.is_none_or(|pages| pages <= PAGES_MAX), "pages (num_blocks) of 16777216 at most"),
            (self.tokens_max > 0, "tokens_max of 1 or more"),
            (self.admitted_max != Some(0), "admitted_max of 1 or more"),
            (self.events_max > 0, "events_max of 1 or more"),
            (self.prefill_share > 0.0 && self.prefill_share <= 1.0, "prefill_share above 0 and up to 1"),
        ];
        if let Some((_, expected)) = claims.iter().find(|(holds, _)| !holds) {
            return Err(format!("engine options: {expected} was expected"));
        }
        // No row has more tokens than a context, so longer pages would be memory that nobody writes.
        let page_tokens = self.page_tokens.min(context_length.max(1));
        let page_bytes = page_tokens.saturating_mul(token_bytes);
        let by_bytes = self.kv_bytes_max.map(|bytes| bytes / page_bytes.max(1));
        let whole_rows = self.rows_max.saturating_mul(context_length.div_ceil(page_tokens));
        let pages = self.pages.or(by_bytes).unwrap_or(whole_rows).min(PAGES_MAX);
        if pages == 0 {
            return Err(format!("engine options: a page takes {page_bytes} bytes, and there is room for none"));
        }
        let prefill_max = self.prefill_max.unwrap_or(chunk).clamp(1, self.tokens_max.min(chunk.max(1)));
        Ok(EngineLimits {
            page_tokens,
            pages,
            rows_max: self.rows_max,
            tokens_max: self.tokens_max,
            admitted_max: self.admitted_max.unwrap_or(usize::MAX),
            prefill_min: ((self.tokens_max as f64 * self.prefill_share) as usize).clamp(1, prefill_max),
            prefill_max,
            chunk: chunk.max(1),
            length_max: context_length.min(pages.saturating_mul(page_tokens)),
            prefix_caching: self.prefix_caching,
            events_max: self.events_max,
            proposes_always: self.proposes_always,
            length_switch: None,
            windows: Vec::new(),
        })
    }
}

/// A number that is at most an eighth less and has three bits: Programs are of a number of pages, and free memory varies a little
/// from one process to the next.
fn few_bits(number: usize) -> usize {
    let shift = (usize::BITS - number.leading_zeros()).saturating_sub(3);
    number >> shift << shift
}

/// The numbers that an engine works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Pages.
    pub pages: usize,
    /// Rows of a step.
    pub rows_max: usize,
    /// Tokens of a step.
    pub tokens_max: usize,
    /// Rows that share steps.
    pub admitted_max: usize,
    /// Tokens that the oldest prompt gets in every step.
    pub prefill_min: usize,
    /// Tokens that prompts get in one step.
    pub prefill_max: usize,
    /// Tokens of one row that there are Programs for.
    pub chunk: usize,
    /// Tokens that a row may have: its context, and what all pages hold.
    pub length_max: usize,
    /// Share pages of equal beginnings between requests.
    pub prefix_caching: bool,
    /// Events that a request may have waiting before it pauses.
    pub events_max: usize,
    /// Propose in every step, whether that pays or not.
    pub proposes_always: bool,
    /// Most tokens of a row that is not long, where long ones are computed in another way.
    pub length_switch: Option<usize>,
    /// Windows that layers have, the least first: those layers keep pages of a row's last tokens alone.
    pub windows: Vec<usize>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn options() -> EngineOptions {
        EngineOptions {
            page_tokens: 16,
            pages: None,
            kv_bytes_max: None,
            rows_max: 4,
            tokens_max: 64,
            admitted_max: None,
            prefix_caching: false,
            prefill_share: 0.25,
            prefill_max: None,
            speculation: SpeculativeConfig {
                max_draft_tokens: 4,
                ngram_size: 0,
                ngram_chained_lookup: false,
                min_adaptive_k: 0,
                cooldown: false,
            },
            prepares_programs: false,
            proposes_always: false,
            events_max: 8,
            queued_max: 8,
            checks_invariants: false,
        }
    }

    #[test]
    fn pages_that_fit_a_device_are_a_number_of_three_bits() {
        assert_eq!([0, 1, 7, 8, 9, 1000, 1 << 20].map(few_bits), [0, 1, 7, 8, 8, 896, 1 << 20]);
    }

    #[test]
    fn numbers_beyond_all_bounds_are_refused_or_held_to_what_is_of_use() {
        let limits = |options: EngineOptions| options.limits(512, 1 << 20, 128);
        let refused = |options| limits(options).unwrap_err();
        let many_pages = EngineOptions { pages: Some(usize::MAX), ..options() };
        assert_eq!(refused(many_pages), "engine options: pages (num_blocks) of 16777216 at most was expected");
        assert!(refused(EngineOptions { rows_max: usize::MAX, ..options() }).contains("max_batch_size"));
        let long_pages = limits(EngineOptions { page_tokens: usize::MAX, ..options() }).unwrap();
        assert_eq!((long_pages.page_tokens, long_pages.pages, long_pages.length_max), (512, 4, 512));
        let many_bytes = EngineOptions { kv_bytes_max: Some(usize::MAX), tokens_max: usize::MAX, ..options() };
        assert_eq!(limits(many_bytes).unwrap().length_max, 512);
    }
}
