//! The memory tier: Programs that are loaded. Found by key, told apart by record, so that colliding keys stay apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use precast_program::Program;
use precast_tensor::Digest;

use crate::artifact::Wanted;
use crate::key::ProgramKey;

/// Loaded Programs.
#[derive(Default)]
pub(crate) struct Memory(Mutex<BTreeMap<ProgramKey, Vec<Resident>>>);

struct Resident {
    record: Arc<[u8]>,
    program: Arc<Program>,
}

impl Memory {
    /// The Program of a record.
    pub(crate) fn get(&self, wanted: &Wanted) -> Option<Arc<Program>> {
        let programs = self.lock();
        let resident = programs.get(&wanted.key)?.iter().find(|resident| resident.record == wanted.bytes)?;
        Some(Arc::clone(&resident.program))
    }

    /// Keeps a Program; where two threads loaded it, both get the first one.
    pub(crate) fn keep(&self, wanted: &Wanted, program: Arc<Program>) -> Arc<Program> {
        let mut programs = self.lock();
        let same_key = programs.entry(wanted.key).or_default();
        if let Some(resident) = same_key.iter().find(|resident| resident.record == wanted.bytes) {
            return Arc::clone(&resident.program);
        }
        same_key.push(Resident { record: Arc::clone(&wanted.bytes), program: Arc::clone(&program) });
        program
    }

    /// Lets go of the Program of a record.
    pub(crate) fn forget(&self, wanted: &Wanted) {
        if let Some(same_key) = self.lock().get_mut(&wanted.key) {
            same_key.retain(|resident| resident.record != wanted.bytes);
        }
    }

    /// Lets go of Programs that nobody else holds; gives the constants of the rest.
    pub(crate) fn trim(&self) -> BTreeSet<Digest> {
        let mut programs = self.lock();
        for same_key in programs.values_mut() {
            same_key.retain(|resident| Arc::strong_count(&resident.program) > 1);
        }
        programs.retain(|_, same_key| !same_key.is_empty());
        let constants = programs.values().flatten().flat_map(|resident| &resident.program.constants);
        constants.filter_map(|constant| constant.digest.parse().ok()).collect()
    }

    /// Programs in memory.
    pub(crate) fn len(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ProgramKey, Vec<Resident>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
