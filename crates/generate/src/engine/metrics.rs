//! What an engine did so far, and how things stand in it.

use super::speculation::SpeculationStats;

/// Where an engine keeps keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KvPlace {
    /// In the memory of the host, which computes.
    #[default]
    Host,
    /// In the memory of the device that computes.
    Device,
    /// In the memory of the host, from where every step brings them to the device that computes, and why.
    HostForDevice(String),
}

/// What an engine did so far, and how things stand in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineMetrics {
    /// Answers that wait for pages.
    pub queued: usize,
    /// Answers that take part in steps.
    pub running: usize,
    /// Turns that have ended and may go on.
    pub parked: usize,
    /// Pages.
    pub pages_total: usize,
    /// Pages that nobody holds.
    pub pages_free: usize,
    /// Pages that the prefix cache holds.
    pub pages_shared: usize,
    /// Bytes that keys and values take.
    pub kv_bytes: usize,
    /// Where they lie.
    pub kv_place: KvPlace,
    /// Most steps from one step of an answer to its next, while it decodes and its client takes what it is told.
    pub decode_wait_max: u64,
    /// Most steps that an answer waited for pages.
    pub queue_wait_max: u64,
    /// Tokens that were not run because their pages were there.
    pub prefix_hit_tokens: usize,
    /// Steps that were committed.
    pub steps: usize,
    /// Steps that failed and left everything as it was.
    pub aborted_steps: usize,
    /// Times that a row lost its pages to an earlier one.
    pub preemptions: usize,
    /// Tokens of prompts that were run, those that were run again included.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub generated_tokens: usize,
    /// Answers that ended.
    pub finished: usize,
    /// Answers that were cancelled.
    pub cancelled: usize,
    /// Answers that failed.
    pub failed: usize,
    /// What speculation did.
    pub speculation: SpeculationStats,
}
