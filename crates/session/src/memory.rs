//! The memory of a Session, known before the first run: weights once, and workspace and padded copies for each context.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::SessionError;
use crate::session::{Inner, Session};

/// What a Session needs on each of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySheet {
    /// Constants of all loaded Programs, each once.
    pub weight_bytes: u64,
    /// Workspace of the largest loaded Program.
    pub workspace_bytes: u64,
    /// Padded copies of the inputs and outputs of the largest loaded Program, where anything is padded.
    pub staging_bytes: u64,
    /// Runs that may be in flight at once on one device, each with workspace and copies of its own.
    pub contexts: u64,
}

impl MemorySheet {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes + self.contexts * (self.workspace_bytes + self.staging_bytes)
    }
}

impl fmt::Display for MemorySheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemorySheet { weight_bytes, workspace_bytes, staging_bytes, contexts } = self;
        let total = self.total_bytes();
        write!(
            f,
            "{total} bytes = {weight_bytes} of weights + {contexts} contexts × ({workspace_bytes} of workspace + \
             {staging_bytes} of copies)"
        )
    }
}

impl Session {
    /// What the loaded Programs need.
    pub fn memory(&self) -> MemorySheet {
        self.inner.memory()
    }

    /// Bytes that contexts hold at the moment, those of runs in flight left out.
    pub fn idle_context_bytes(&self) -> u64 {
        self.inner.contexts.idle_bytes()
    }
}

impl Inner {
    fn memory(&self) -> MemorySheet {
        let entries: Vec<_> = self.programs.read(|table| table.entries.values().cloned().collect());
        let programs = || entries.iter().map(|entry| entry.program());
        let constants = programs().flat_map(|program| &program.constants);
        let weights: BTreeMap<&str, u64> =
            constants.map(|constant| (constant.digest.as_str(), constant.bytes)).collect();
        let is_bucketed = self.programs.read(|table| table.ladders.primary().is_some());
        let ports =
            programs().map(|program| program.inputs.iter().chain(&program.outputs).map(|port| port.bytes).sum());
        MemorySheet {
            weight_bytes: weights.values().sum(),
            workspace_bytes: programs().map(|program| program.arena_bytes).max().unwrap_or(0),
            staging_bytes: if is_bucketed { ports.max().unwrap_or(0) } else { 0 },
            contexts: self.contexts.len_a_device() as u64,
        }
    }

    /// Refuses to go on where the limit is exceeded, after giving up contexts.
    pub(crate) fn check_memory(&self) -> Result<(), SessionError> {
        let Some(limit) = self.options.memory_limit else { return Ok(()) };
        let sheet = self.memory();
        let one = MemorySheet { contexts: 1, ..sheet };
        if one.total_bytes() > limit {
            return Err(SessionError::Memory(format!("the limit is {limit} bytes; the model needs {one}")));
        }
        let room = (limit - sheet.weight_bytes) / (sheet.workspace_bytes + sheet.staging_bytes).max(1);
        self.contexts.limit(room.max(1) as usize);
        Ok(())
    }
}
