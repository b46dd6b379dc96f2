//! Jobs side by side, each of which runs Programs of a Session: one thread of the host has one job, and not all threads each of
//! the many short steps of every job. Who has nothing left to do leaves its threads to the runs that go on.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::session::Session;

impl Session {
    /// Jobs that are best done side by side: as many as threads of the host compute and there are contexts for.
    pub fn jobs_beside(&self) -> usize {
        match self.devices() {
            [device] => device.threads().min(self.inner.contexts.len_a_device()),
            _ => 1,
        }
    }

    /// Does jobs, `jobs_beside` at a time, and gives what each gave, in their order. They are begun in their order.
    pub fn do_beside<J: Send, R: Send>(&self, jobs: Vec<J>, job: impl Fn(J) -> R + Sync) -> Vec<R> {
        let workers = self.jobs_beside().min(jobs.len());
        let [device] = self.devices() else { return jobs.into_iter().map(job).collect() };
        if workers <= 1 {
            return jobs.into_iter().map(job).collect();
        }
        let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
        let left: Mutex<VecDeque<(J, &mut Option<R>)>> = Mutex::new(jobs.into_iter().zip(&mut results).collect());
        device.do_beside(workers, &|| {
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some((given, result)) = next else { break };
                *result = Some(job(given));
            }
        });
        drop(left);
        results.into_iter().flatten().collect()
    }
}
