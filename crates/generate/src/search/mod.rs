//! How the next token is chosen from scores, and when a sequence ends. Pure code: the same rules for one row, a batch,
//! beams and every device.

mod beam;
mod choose;
mod params;
mod philox;
mod rules;
mod stop;

pub use beam::{BeamSearch, BeamStep, Hypothesis};
pub use choose::{Choice, choose, choose_likeliest, log_softmax, log_softmax_at, processed_logprobs, top_logprobs};
pub use params::{GeneratorParams, LogprobsMode, ParamsError, RowSeed};
pub use philox::{Draw, uniform};
pub use rules::{History, RuleError, apply_rules, apply_rules_within, check_logits};
pub use stop::{Passed, StopMatcher};

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A token that ends sequences was chosen.
    Eos,
    /// The stop string of this position appeared.
    StopString(usize),
    /// As many tokens were generated as were asked for.
    MaxNewTokens,
    /// The row is as long as it may be.
    MaxLength,
    /// Its grammar lets nothing follow.
    GrammarEnd,
    /// Whoever asked for it did not want more of it.
    Cancelled,
}

impl std::fmt::Display for FinishReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FinishReason::StopString(position) => write!(f, "{}({position})", self.name()),
            reason => f.write_str(reason.name()),
        }
    }
}

impl FinishReason {
    /// The reason in one word; printed, it also says which stop string it was.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Eos => "eos",
            FinishReason::StopString(_) => "stop_string",
            FinishReason::MaxNewTokens => "max_new_tokens",
            FinishReason::MaxLength => "max_length",
            FinishReason::GrammarEnd => "grammar_end",
            FinishReason::Cancelled => "cancelled",
        }
    }
}
