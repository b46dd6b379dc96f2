//! What an engine runs its steps on. A runner keeps the keys and values of pages; which pages belong to whom is the
//! engine's business.

use crate::adapter::Adapter;
pub use crate::step_buffers::Scores;

use super::draft_model::DraftModel;
use super::metrics::KvPlace;
use super::page_pool::PageId;
use super::row::RowId;

/// The pages of a row's last tokens that layers with a window keep.
#[derive(Clone, Copy, Debug)]
pub struct WindowPages<'a> {
    /// Pages of the row before the first one here.
    pub first: usize,
    /// The pages, with room for the new tokens.
    pub pages: &'a [PageId],
}

/// One row of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepRow<'a> {
    /// The row.
    pub row: RowId,
    /// Tokens to run, at least one.
    pub tokens: &'a [u32],
    /// Tokens before them, whose keys and values lie in the pages.
    pub cached: usize,
    /// The pages of the row in the order of its tokens, with room for the new ones.
    pub pages: &'a [PageId],
    /// The pages that layers of each window have for themselves, the least window first; none where those layers have the pages of
    /// all others.
    pub windows: &'a [WindowPages<'a>],
    /// Behind how many of the last tokens scores are wanted.
    pub scored: usize,
    /// Whether all that is wanted of scores is which token has the largest.
    pub takes_largest: bool,
    /// Whether the row is computed as long ones are, those of its pages too.
    pub is_long: bool,
    /// Whose values the row is computed with, those of its pages too; the decoder's own where none.
    pub adapter: Option<&'a Adapter>,
}

/// What a step found behind a token.
#[derive(Clone, Debug)]
pub enum Found {
    /// The scores of all ids.
    Scores(Scores),
    /// The id of the largest score, which is a number, of equal ones the lowest; only of rows that want no more.
    Largest(u32),
}

/// Why a step did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// It may run another time, or with fewer rows.
    #[error("{0}")]
    Retryable(String),
    /// The device has failed, and with it all that it kept.
    #[error("the device has failed: {0}")]
    DeviceLost(String),
}

/// Runs steps.
pub trait StepRunner: Send {
    /// Ids that scores have.
    fn vocabulary(&self) -> usize;

    /// Bytes that keys and values take now, copies included.
    fn kv_bytes(&self) -> usize;

    /// Where they lie.
    fn kv_place(&self) -> KvPlace {
        KvPlace::Host
    }

    /// Whether a row may be cut into pieces and run beside others without changing its answer.
    fn is_divisible(&self) -> bool;

    /// Whether it computes rows with the values of adapters; where not, requests with one are refused.
    fn runs_adapters(&self) -> bool {
        false
    }

    /// Runs the new tokens of rows and keeps their keys and values in the rows' pages, behind what is cached. Gives for each
    /// row what is wanted of scores. After a fault what was cached is as before.
    fn run(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Vec<Found>>, StepFault>;

    /// The model that proposes tokens, if there is one.
    fn draft(&mut self) -> Option<&mut DraftModel> {
        None
    }

    /// Forgets what it knows of a row beside its pages: its tokens may change, or it has ended.
    fn forget(&mut self, row: RowId);

    /// Begins anew after the device was lost: nothing is kept. After a fault it runs nothing any more.
    fn rebuild(&mut self) -> Result<(), StepFault>;
}
