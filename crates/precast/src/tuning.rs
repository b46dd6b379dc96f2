//! Tuning of one runner or session: measures what its Programs need and the cache does not have, keeps the records there,
//! and says which records a Program rests on without importing the model again.

use std::sync::Arc;

use precast_cache::{KeyRecord, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Problem, TuneMode, TuneOptions, Tuner};
use precast_ir::Graph;
use precast_program::Target;
use precast_tensor::Digest;

use crate::error::Error;

/// Kind of the notes that list the problems of a Program.
const KIND: &str = "problems";

/// Measures tactics for a target on a device, and keeps the records in a cache.
pub(crate) struct Tuning {
    tuner: Tuner,
    /// The CPU's target and device; other devices have nothing to measure.
    cpu: Option<(Arc<CpuTarget>, Arc<CpuDevice>)>,
    cache: Arc<ProgramCache>,
}

impl Tuning {
    pub(crate) fn new(
        options: TuneOptions,
        cpu: Option<(Arc<CpuTarget>, Arc<CpuDevice>)>,
        cache: Arc<ProgramCache>,
    ) -> Tuning {
        Tuning { tuner: Tuner::new(options), cpu, cache }
    }

    /// The problems of a Graph as the steps compute it; measures those that are open, if asked to.
    pub(crate) fn tune(&self, optimised: &Graph) -> Vec<Problem> {
        let Some((target, device)) = &self.cpu else { return Vec::new() };
        let problems = target.tactics().problems(optimised);
        if self.is_measuring() {
            self.cache.keep_tuning(&self.tuner.tune(target.tactics(), &problems, device));
        }
        problems
    }

    /// The digest of the records that the Program of `untuned` rests on; none if it rests on none. The problems of a
    /// Program are kept as a note, so that its Graph is asked for only once, or to measure.
    pub(crate) fn digest(
        &self,
        untuned: &KeyRecord,
        graph: impl FnOnce() -> Result<Graph, Error>,
    ) -> Result<Option<Digest>, Error> {
        let Some((target, _)) = &self.cpu else { return Ok(None) };
        let tactics = target.tactics();
        if !self.is_measuring() && !tactics.has_records() {
            return Ok(None);
        }
        let subject = Digest::of_bytes(&untuned.canonical_bytes());
        let noted = self.cache.note(KIND, &subject).and_then(|note| postcard::from_bytes::<Noted>(&note).ok());
        let wanted = |candidates: usize| self.tuner.mode().candidates(candidates);
        let is_open = |noted: &Noted| noted.iter().any(|(key, candidates)| tactics.is_open(key, wanted(*candidates)));
        let noted = match noted {
            Some(noted) if !(self.is_measuring() && is_open(&noted)) => noted,
            _ => {
                let problems = self.tune(&target.optimise(&graph()?)?);
                let noted: Noted =
                    problems.into_iter().map(|problem| (problem.key, problem.candidates.len())).collect();
                if let Ok(note) = postcard::to_allocvec(&noted) {
                    self.cache.keep_note(KIND, &subject, &note);
                }
                noted
            }
        };
        Ok(tactics.digest(noted.iter().map(|(key, _)| key.as_str())))
    }

    /// Whether tactics are measured.
    pub(crate) fn is_measuring(&self) -> bool {
        self.cpu.is_some() && self.tuner.mode() != TuneMode::Off
    }
}

/// Keys of problems and how many tactics cover each.
type Noted = Vec<(String, usize)>;
