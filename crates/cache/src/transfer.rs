//! Between this root and the remote store: fetching one Program on a miss, uploading what was compiled, and whole
//! transfers (`push`, `pull`). What comes from a store is checked like what comes from a disk (spec C23).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::PutMode;
use precast_program::Program;
use precast_tensor::Digest;

use crate::artifact::{self, Manifest, Wanted};
use crate::cache::ProgramCache;
use crate::key::ProgramKey;
use crate::layout::Layout;
use crate::lease::Lease;
use crate::miss::{CacheError, Event, Miss};
use crate::options::{CacheOptions, Mode};
use crate::publish::{self, Existing};
use crate::remote::{Remote, RemoteError};
use crate::shelf::Shelf;
use crate::weights::{self, WeightStore};

/// Largest artifact that is fetched. Weights are not inside, so real ones are far below.
const ARTIFACT_BYTES_MAX: u64 = 1 << 30;
/// Page before the elements of a constant.
const WEIGHT_HEADER_BYTES: u64 = 4096;

/// What a transfer moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Programs that were not there before.
    pub programs: usize,
    /// Constants that were not there before.
    pub weights: usize,
    /// Bytes of both.
    pub bytes: u64,
    /// Programs that were passed over, and why.
    pub skipped: Vec<(String, Miss)>,
}

impl ProgramCache {
    /// The Program from the remote store, if it has it. A store that fails is reported and costs only time.
    pub(crate) fn fetch(&self, wanted: &Wanted) -> Option<Arc<Program>> {
        let remote = self.remote.as_ref()?;
        match self.fetch_from(remote, wanted) {
            Ok(program) => Some(program),
            Err(Miss::Absent { .. }) => None,
            Err(miss) => {
                let errno = None;
                let (doing, call) = ("fetching from the remote store", miss.class().to_string());
                self.event(Event::Unavailable { doing, call, errno, message: miss.to_string() });
                None
            }
        }
    }

    /// The same while polling, where each failure need not be told.
    pub(crate) fn fetch_quietly(&self, wanted: &Wanted) -> Option<Arc<Program>> {
        self.fetch_from(self.remote.as_ref()?, wanted).ok()
    }

    fn fetch_from(&self, remote: &Remote, wanted: &Wanted) -> Result<Arc<Program>, Miss> {
        let got = remote.get(&Layout::program_name(&wanted.key), ARTIFACT_BYTES_MAX);
        let (bytes, _) = got.map_err(|error| error.miss("get"))?;
        let (manifest, program) = self.verify_artifact(&bytes, wanted)?;
        self.fetch_weights(remote, wanted, &manifest)?;
        let winner = if self.mode.writes() { self.publish_artifact(wanted, &bytes, None) } else { None };
        Ok(winner.unwrap_or_else(|| self.memory.keep(wanted, Arc::new(program))))
    }

    /// Brings the constants that are not here into memory, verified. Gives how many that were, and their bytes.
    fn fetch_weights(&self, remote: &Remote, wanted: &Wanted, manifest: &Manifest) -> Result<(usize, u64), Miss> {
        let (mut count, mut total) = (0, 0);
        let mut shelf = Shelf::new(&self.weights, wanted.record.weights);
        for constant in &manifest.constants {
            let digest = constant.digest();
            if shelf.load(&digest).is_ok() {
                continue;
            }
            let bytes_max = constant.bytes.saturating_add(WEIGHT_HEADER_BYTES);
            let got = remote.get_large(&Layout::weight_name(&digest), bytes_max);
            let (bytes, _) = got.map_err(|error| error.miss("get"))?;
            total += bytes.len() as u64;
            count += 1;
            self.weights.adopt(&digest, bytes)?;
        }
        Ok((count, total))
    }

    /// Queues what was compiled here for the remote store. The lease ends when the Program is stored.
    pub(crate) fn upload(&self, wanted: &Wanted, bytes: Bytes, program: &Program, lease: Option<Lease>) {
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.is_uploading()) else { return };
        let mut objects = Vec::new();
        let mut shelf = Shelf::new(&self.weights, wanted.record.weights);
        for digest in digests_of(program) {
            match shelf.load(&digest).and_then(|tensor| weights::file_parts(&digest, &tensor)) {
                Ok(parts) => objects.push((Layout::weight_name(&digest), parts.to_vec())),
                Err(miss) => {
                    return self.event(Event::Unstored { constant: digest, reason: miss.to_string() });
                }
            }
        }
        objects.push((Layout::program_name(&wanted.key), vec![bytes.clone()]));
        let (client, events) = (remote.clone(), Arc::clone(&self.options.events));
        // A refresh replaces what is there; otherwise the first stays.
        let mode = if self.mode == Mode::Refresh { PutMode::Overwrite } else { PutMode::Create };
        let loser = Loser {
            wanted: wanted.clone(),
            options: self.options.clone(),
            layout: self.layout.clone(),
            weights: self.weights.clone(),
            bytes,
        };
        let job = async move {
            let _lease = lease;
            // Weights come before the Program that names them; without them it must not appear.
            let mut is_first = false;
            for (name, parts) in objects {
                match put_limited(&client, &name, parts, mode.clone()).await {
                    Ok(()) => is_first = true,
                    Err(RemoteError::Exists) => is_first = false,
                    Err(error) => {
                        let (doing, call) = ("uploading", "remote put".to_string());
                        let message = format!("{name}: {}", error.miss("put"));
                        return events(&Event::Unavailable { doing, call, errno: None, message });
                    }
                }
            }
            if !is_first {
                loser.adopt_winner(&client).await;
            }
        };
        if !remote.spawn(job) {
            self.event(Event::UploadDropped { key: wanted.key });
        }
    }

    /// Waits for uploads; false if they take longer. A door calls this before it ends.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.remote.as_ref().is_none_or(|remote| remote.flush(timeout))
    }

    /// Uploads every entry of the root that the store does not have.
    pub fn push(&self) -> Result<Transfer, CacheError> {
        let remote = self.remote_or_error()?;
        let failed = |error: RemoteError| self.remote_failed(error.miss("push"));
        let mut transfer = Transfer::default();
        let have: BTreeSet<String> = remote.list("programs").map_err(failed)?.into_iter().collect();
        let have_weights: BTreeSet<String> = remote.list("weights").map_err(failed)?.into_iter().collect();
        for entry in self.ls()? {
            let name = Layout::program_name(&entry.key);
            if have.contains(&name) {
                continue;
            }
            let sent = self.read_fresh(&self.layout.program(&entry.key)).and_then(|bytes| {
                let opened = artifact::open(&bytes)?;
                opened.check_signature(&self.options.sign)?;
                opened.program()?;
                let mut shelf = Shelf::new(&self.weights, entry.record.weights);
                for constant in &opened.manifest.constants {
                    let weight = Layout::weight_name(&constant.digest());
                    if !have_weights.contains(&weight) {
                        let tensor = shelf.load(&constant.digest())?;
                        let parts = weights::file_parts(&constant.digest(), &tensor)?;
                        self.send(remote, &weight, parts.to_vec(), &mut transfer, |transfer| transfer.weights += 1)?;
                    }
                }
                self.send(remote, &name, vec![bytes.clone()], &mut transfer, |transfer| transfer.programs += 1)
            });
            if let Err(miss) = sent {
                transfer.skipped.push((name, miss));
            }
        }
        Ok(transfer)
    }

    fn send(
        &self,
        remote: &Remote,
        name: &str,
        parts: Vec<Bytes>,
        transfer: &mut Transfer,
        count: impl FnOnce(&mut Transfer),
    ) -> Result<(), Miss> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        match remote.put_new(name, parts) {
            Ok(_) => {
                count(transfer);
                transfer.bytes += bytes;
                Ok(())
            }
            // Another machine was first.
            Err(RemoteError::Exists) => Ok(()),
            Err(error) => Err(error.miss("put")),
        }
    }

    /// Downloads every Program of the store that the root does not have. Those of other builds are passed over.
    pub fn pull(&self) -> Result<Transfer, CacheError> {
        let remote = self.remote_or_error()?;
        if !self.mode.writes() {
            return Err(CacheError::ReadOnly { action: "pull", mode: self.mode.name() });
        }
        let names = remote.list("programs").map_err(|error| self.remote_failed(error.miss("list")))?;
        let mut transfer = Transfer::default();
        for name in names {
            if self.options.disk.stat(&self.layout.root().join(&name)).is_ok() {
                continue;
            }
            if let Err(miss) = self.pull_one(remote, &name, &mut transfer) {
                transfer.skipped.push((name, miss));
            }
        }
        Ok(transfer)
    }

    fn pull_one(&self, remote: &Remote, name: &str, transfer: &mut Transfer) -> Result<(), Miss> {
        let (bytes, _) = remote.get(name, ARTIFACT_BYTES_MAX).map_err(|error| error.miss("get"))?;
        let opened = artifact::open(&bytes)?;
        opened.check_signature(&self.options.sign)?;
        let wanted = Wanted::new(&opened.manifest.record()?, self.options.digest_bits);
        let own: ProgramKey = wanted.key;
        if Layout::program_name(&own) != name {
            return Err(Miss::corrupt("name", name, Layout::program_name(&own)));
        }
        opened.program()?;
        let (weights, weight_bytes) = self.fetch_weights(remote, &wanted, &opened.manifest)?;
        self.publish_artifact(&wanted, &bytes, None);
        if !self.is_filed(&wanted) {
            let message = "it could not be published here; the event before says why".to_string();
            return Err(Miss::Unavailable { call: "publish".to_string(), errno: None, message });
        }
        transfer.programs += 1;
        transfer.weights += weights;
        transfer.bytes += bytes.len() as u64 + weight_bytes;
        Ok(())
    }

    fn remote_or_error(&self) -> Result<&Remote, CacheError> {
        let missing = || CacheError::Remote { url: String::new(), reason: "no cache.remote is set".to_string() };
        self.remote.as_ref().ok_or_else(missing)
    }

    fn remote_failed(&self, miss: Miss) -> CacheError {
        let url = self.remote.as_ref().map_or("", Remote::url).to_string();
        CacheError::Remote { url, reason: miss.to_string() }
    }
}

async fn put_limited(remote: &Remote, name: &str, parts: Vec<Bytes>, mode: PutMode) -> Result<(), RemoteError> {
    let limit = remote.limit_of(parts.iter().map(|part| part.len() as u64).sum());
    let put = tokio::time::timeout(limit, remote.put(name, parts, mode)).await;
    put.unwrap_or_else(|_| Err(RemoteError::Failed(format!("no answer within {limit:?}")))).map(drop)
}

/// A machine whose Program was not the first in the store: the next process here is to load the winner's bytes, so that
/// all machines run the same code.
struct Loser {
    wanted: Wanted,
    options: CacheOptions,
    layout: Layout,
    weights: WeightStore,
    bytes: Bytes,
}

impl Loser {
    async fn adopt_winner(&self, remote: &Remote) {
        let name = Layout::program_name(&self.wanted.key);
        let fetched = tokio::time::timeout(remote.limit_of(0), remote.fetch(&name, ARTIFACT_BYTES_MAX)).await;
        let Ok(Ok((winner, _))) = fetched else { return };
        let CacheOptions { provides, sign, .. } = &self.options;
        let Ok((manifest, _)) = artifact::verify(&winner, &self.wanted, provides, sign) else { return };
        let disk = &*self.options.disk;
        let mut shelf = Shelf::new(&self.weights, self.wanted.record.weights);
        let mut has_constants = || manifest.constants.iter().all(|it| shelf.find(&it.digest(), it.bytes).is_ok());
        if winner == self.bytes || !has_constants() {
            return;
        }
        let path = self.layout.program(&self.wanted.key);
        if let Err(error) = publish::publish(disk, &self.layout, &path, [&winner[..]], Existing::Yields) {
            (self.options.events)(&Event::unavailable("adopting the store's Program", &error));
        }
    }
}

fn digests_of(program: &Program) -> BTreeSet<Digest> {
    program.constants.iter().filter_map(|constant| constant.digest.parse().ok()).collect()
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
