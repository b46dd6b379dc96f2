//! How an engine shares a device: what the folder says, and what callers may change.

use crate::config::{EngineConfig, GenerationConfig, SpeculativeConfig};

/// Tokens of a page where a folder does not say.
const DEFAULT_PAGE_TOKENS: usize = 256;
/// Tokens of a step where a folder does not say.
const DEFAULT_TOKENS_MAX: usize = 2048;
/// Share of a step's tokens that the oldest prompt gets, unless the folder says otherwise.
const PREFILL_SHARE: f64 = 0.25;
/// Events that a request may have waiting before it pauses.
const EVENTS_MAX: usize = 256;

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
    /// Events that a request may have waiting before it pauses.
    pub events_max: usize,
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
            events_max: EVENTS_MAX,
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

    /// The numbers that an engine works with, for a model of which a token takes so many bytes.
    pub fn limits(&self, context_length: usize, token_bytes: usize, chunk: usize) -> Result<EngineLimits, String> {
        let claims = [
            (self.page_tokens > 0, "page_tokens of 1 or more"),
            (self.rows_max > 0, "rows_max of 1 or more"),
            (self.tokens_max > 0, "tokens_max of 1 or more"),
            (self.admitted_max != Some(0), "admitted_max of 1 or more"),
            (self.events_max > 0, "events_max of 1 or more"),
            (self.prefill_share > 0.0 && self.prefill_share <= 1.0, "prefill_share above 0 and up to 1"),
        ];
        if let Some((_, expected)) = claims.iter().find(|(holds, _)| !holds) {
            return Err(format!("engine options: a {expected} was expected"));
        }
        let page_bytes = self.page_tokens * token_bytes;
        let by_bytes = self.kv_bytes_max.map(|bytes| bytes / page_bytes.max(1));
        let whole_rows = self.rows_max * context_length.div_ceil(self.page_tokens);
        let pages = self.pages.or(by_bytes).unwrap_or(whole_rows);
        if pages == 0 {
            return Err(format!("engine options: a page takes {page_bytes} bytes, and there is room for none"));
        }
        let prefill_max = self.prefill_max.unwrap_or(chunk).clamp(1, self.tokens_max.min(chunk.max(1)));
        Ok(EngineLimits {
            page_tokens: self.page_tokens,
            pages,
            rows_max: self.rows_max,
            tokens_max: self.tokens_max,
            admitted_max: self.admitted_max.unwrap_or(usize::MAX),
            prefill_min: ((self.tokens_max as f64 * self.prefill_share) as usize).clamp(1, prefill_max),
            prefill_max,
            length_max: context_length.min(pages * self.page_tokens),
            prefix_caching: self.prefix_caching,
            events_max: self.events_max,
            length_switch: None,
        })
    }
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
    /// Tokens that a row may have: its context, and what all pages hold.
    pub length_max: usize,
    /// Share pages of equal beginnings between requests.
    pub prefix_caching: bool,
    /// Events that a request may have waiting before it pauses.
    pub events_max: usize,
    /// Most tokens of a row that is not long, where long ones are computed in another way.
    pub length_switch: Option<usize>,
}
