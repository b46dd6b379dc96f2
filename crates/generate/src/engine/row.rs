//! One answer of a request inside an engine: its tokens, its pages and where it stands.

use std::sync::Arc;
use std::time::Instant;

use precast_tensor::Digest;

use crate::adapter::Adapter;
use crate::row_search::RowSearch;

use super::draft_model::DraftAsk;
use super::events::{EventQueue, Usage};
use super::page_pool::PageId;
use super::prefix_cache::long_root;
use super::speculation::Speculation;
use super::window_group::WindowTable;

/// The number of a row. Rows that came earlier have lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub u64);

/// Where a row stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowState {
    /// It waits for pages.
    Queued,
    /// It has pages and takes part in steps. The number says in which order rows were let in.
    Running {
        /// Rows that were let in before.
        admission: u64,
    },
    /// Its turn has ended; its pages stay for the next one until others need them.
    Parked,
}

/// One answer of a request.
pub struct Row {
    pub(super) id: RowId,
    /// Which of the request's answers it is.
    pub(super) answer: usize,
    /// All tokens, prompt and generated.
    pub(super) tokens: Vec<u32>,
    /// Which of them were generated.
    pub(super) is_generated: Vec<bool>,
    /// Tokens of the row before each of its turns began.
    pub(super) turns: Vec<usize>,
    /// Whose values it is computed with, those of its pages too.
    pub(super) adapter: Option<Adapter>,
    /// Leading tokens whose keys and values lie in its pages.
    pub(super) cached: usize,
    pub(super) pages: Vec<PageId>,
    /// Pages of its last tokens, of each window.
    pub(super) windows: Vec<WindowTable>,
    /// Names of its full pages, as far as they are entries of the prefix cache.
    pub(super) chain: Vec<Digest>,
    pub(super) chain_root: Digest,
    /// Whether its pages were computed as those of long rows.
    pub(super) is_long: bool,
    /// Whether its pages become entries of the prefix cache.
    pub(super) is_sharing: bool,
    pub(super) state: RowState,
    /// Whether its pending tokens are a prompt, or are run again; false when it decodes.
    pub(super) is_prompt: bool,
    pub(super) priority: u8,
    /// The step in which its turn came.
    pub(super) arrived: u64,
    /// The step in which it was last queued.
    pub(super) queued: u64,
    /// The last step that it took part in.
    pub(super) stepped: u64,
    /// The last step that it took part in, or could not because its client took nothing.
    pub(super) ready: u64,
    /// Steps that failed with this row alone.
    pub(super) failures: usize,
    pub(super) is_told_of_wait: bool,
    /// Whether it lost its place because its client took nothing.
    pub(super) is_stalled: bool,
    /// Whether its pages stay when its turn has ended.
    pub(super) keeps_turn: bool,
    pub(super) deadline: Option<Instant>,
    pub(super) search: RowSearch,
    pub(super) speculation: Speculation,
    /// Proposed tokens for the next step.
    pub(super) draft: Vec<u32>,
    /// Whether they were looked up in the row itself.
    pub(super) is_looked_up: bool,
    pub(super) usage: Usage,
    pub(super) events: Arc<EventQueue>,
    /// The row whose prompt this one shares, until that one has run it.
    pub(super) waits_for: Option<RowId>,
}

impl Row {
    /// Tokens that are not cached.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Tokens that may be proposed. The last token of a row never is, since its scores are not needed; nor are those behind which
    /// a row that is not long yet would be, since scores behind them are computed in another way.
    pub(super) fn draft_room(&self, length_switch: Option<usize>) -> usize {
        let room = self.search.room(self.tokens.len()).saturating_sub(1);
        match length_switch.filter(|_| !self.is_long) {
            Some(limit) => room.min(limit.saturating_sub(self.tokens.len())),
            None => room,
        }
    }

    /// What a draft model is asked.
    pub(super) fn draft_ask(&self, length_switch: Option<usize>) -> DraftAsk<'_> {
        DraftAsk {
            row: self.id,
            tokens: &self.tokens,
            is_generated: &self.is_generated,
            search: &self.search,
            width: self.speculation.width(self.draft_room(length_switch)),
        }
    }

    /// Whether it takes part in steps.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, RowState::Running { .. })
    }

    /// Where its chain begins.
    pub(super) fn root(&self) -> Digest {
        if self.is_long { long_root(self.chain_root) } else { self.chain_root }
    }

    /// Adds a token.
    pub(super) fn push(&mut self, token: u32, is_generated: bool) {
        self.tokens.push(token);
        self.is_generated.push(is_generated);
    }
}
