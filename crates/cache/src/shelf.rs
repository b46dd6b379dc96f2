//! A shelf: where the constants of one model lie on disk. Large ones have files of their own, which models share; small
//! ones lie together in packs that carry the digest of the model's weights in their names. A Bucket that is published adds
//! a pack of those that no pack has yet, so every constant of a model is on disk once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use precast_tensor::{Digest, FilePages, Tensor};

use crate::disk::{Answer, Call, DiskError, LockKind};
use crate::layout::Layout;
use crate::lock;
use crate::miss::{Event, Miss};
use crate::pack::{self, PACKED_BYTES_MAX, Pack};
use crate::publish::{self, Existing};
use crate::weights::{Files, WeightStore};

/// How long a publisher waits for another process that writes a pack of the same model.
const PACK_WAIT: Duration = Duration::from_secs(5);

/// The constants of the model whose weights have this digest. Lives as long as one operation: packs are looked for once.
pub(crate) struct Shelf<'a> {
    store: &'a WeightStore,
    weights: Digest,
    packs: Option<Vec<Pack>>,
}

impl<'a> Shelf<'a> {
    pub(crate) fn new(store: &'a WeightStore, weights: Digest) -> Shelf<'a> {
        Shelf { store, weights, packs: None }
    }

    /// The constant, from memory or from disk, verified.
    pub(crate) fn load(&mut self, digest: &Digest) -> Result<Tensor, Miss> {
        if let Some(tensor) = self.store.resident_tensor(digest) {
            return Ok(tensor);
        }
        match self.unpack(digest)? {
            Some(tensor) => Ok(self.store.keep_mapped(*digest, tensor)),
            None => self.store.load(digest),
        }
    }

    /// Whether a constant of this size is on disk, without looking at its elements.
    pub(crate) fn find(&mut self, digest: &Digest, bytes: u64) -> Result<(), Miss> {
        let Some(files) = self.store.files() else { return Err(Miss::absent()) };
        if bytes > PACKED_BYTES_MAX {
            files.disk.stat(&files.layout.weight(digest))?;
            return Ok(());
        }
        let is_found = self.packs()?.iter().any(|pack| pack.contains(digest));
        if is_found { Ok(()) } else { Err(Miss::absent()) }
    }

    /// Makes sure that these constants are on disk; gives the bytes that this added.
    pub(crate) fn publish(&mut self, bytes_by_digest: &BTreeMap<Digest, u64>) -> Answer<u64> {
        if self.store.files().is_none() {
            return Ok(0);
        }
        let is_small = |digest: &Digest| bytes_by_digest[digest] <= PACKED_BYTES_MAX;
        let (small, large): (Vec<Digest>, Vec<Digest>) = bytes_by_digest.keys().partition(|digest| is_small(digest));
        // Buckets that compile at once have most constants in common: one thread writes, the others find the files.
        let store = self.store;
        let _writing = store.lock_writing();
        let mut added = self.publish_small(&small)?;
        for digest in large {
            added += store.publish_file(&digest)?;
        }
        Ok(added)
    }

    fn publish_small(&mut self, digests: &[Digest]) -> Answer<u64> {
        let mut added = 0;
        // Twice: a pack that turns out to be damaged is moved away, and what it had is written again.
        for _ in 0..2 {
            self.packs = None;
            if !self.missing(digests)?.is_empty() {
                added += self.write_missing(digests)?;
            }
            if self.map_unmapped(digests) {
                break;
            }
        }
        Ok(added)
    }

    /// Writes a pack of what no pack has.
    fn write_missing(&mut self, digests: &[Digest]) -> Answer<u64> {
        let Some(Files { disk, layout, .. }) = self.store.files() else { return Ok(0) };
        // Another process may be about to write the same for another Bucket; without the lock both do.
        let path = layout.pack_lock(&self.weights);
        let acquired = lock::acquire_within(&**disk, &path, LockKind::Exclusive, PACK_WAIT);
        let _alone = acquired.unwrap_or_else(|error| {
            self.store.tell(&Event::unavailable("locking the packs of a model", &error));
            None
        });
        self.packs = None;
        let missing = self.missing(digests)?;
        if missing.is_empty() {
            return Ok(0);
        }
        let tensor = |digest: &Digest| {
            let tensor = self.store.resident_tensor(digest);
            let absent = || DiskError::new(Call::Stat, &layout.weight(digest), std::io::ErrorKind::NotFound.into());
            tensor.map(|tensor| (*digest, tensor)).ok_or_else(absent)
        };
        let tensors = missing.iter().map(tensor).collect::<Answer<Vec<(Digest, Tensor)>>>()?;
        let unwritable = |error: String| DiskError::new(Call::Write, &path, std::io::Error::other(error));
        let pack = pack::encode(&tensors).map_err(unwritable)?;
        publish::publish(&**disk, layout, &layout.pack(&self.weights, &pack.name), pack.parts(), Existing::Keeps)?;
        self.packs = None;
        Ok(pack.bytes() as u64)
    }

    fn missing(&mut self, digests: &[Digest]) -> Answer<Vec<Digest>> {
        let packs = self.open_packs()?;
        Ok(digests.iter().filter(|digest| !packs.iter().any(|pack| pack.contains(digest))).copied().collect())
    }

    /// Lets mapped packs take the place of copies in memory. False if a pack was damaged, and is gone now.
    fn map_unmapped(&mut self, digests: &[Digest]) -> bool {
        if self.store.files().is_none_or(|files| files.is_network) {
            return true;
        }
        for digest in digests.iter().filter(|digest| !self.store.is_mapped(digest)) {
            match self.unpack(digest) {
                Ok(Some(tensor)) => self.store.replace_by_mapped(*digest, tensor),
                Ok(None) | Err(Miss::Corrupt { .. } | Miss::Absent { .. }) => return false,
                // The copy in memory serves as well.
                Err(Miss::Unavailable { call, errno, message }) => {
                    self.store.tell(&Event::Unavailable { doing: "mapping a pack", call, errno, message });
                    return true;
                }
                Err(Miss::Incompatible { .. }) => return true,
            }
        }
        true
    }

    /// A constant from the first pack that has it. A pack that turns out to be damaged is moved away.
    fn unpack(&mut self, digest: &Digest) -> Result<Option<Tensor>, Miss> {
        let found = self.packs()?.iter().enumerate().find_map(|(at, pack)| Some((at, pack.tensor(digest)?)));
        match found {
            None => Ok(None),
            Some((_, Ok(tensor))) => Ok(Some(tensor)),
            Some((at, Err(miss))) => {
                let pack = self.packs.as_mut().map(|packs| packs.remove(at));
                if let (Some(pack), Some(files)) = (pack, self.store.files()) {
                    let path = files.layout.pack(&self.weights, &pack.name());
                    self.store.quarantine(&path, &miss);
                }
                Err(miss)
            }
        }
    }

    fn packs(&mut self) -> Result<&[Pack], Miss> {
        Ok(self.open_packs()?)
    }

    /// The packs of the model. One that is damaged is moved away and does not count; so does one of another format.
    fn open_packs(&mut self) -> Answer<&[Pack]> {
        if self.packs.is_none() {
            let mut packs = Vec::new();
            for (name, path) in self.pack_files()? {
                match self.store.open_pack(name, &path) {
                    Ok(pack) => packs.push(pack),
                    Err(Unopened::Disk(error)) if error.is_not_found() => {}
                    Err(Unopened::Disk(error)) => return Err(error),
                    Err(Unopened::Unsound(_)) => {}
                }
            }
            self.packs = Some(packs);
        }
        Ok(self.packs.as_deref().unwrap_or_default())
    }

    fn pack_files(&self) -> Answer<Vec<(Digest, PathBuf)>> {
        let Some(files) = self.store.files() else { return Ok(Vec::new()) };
        let dir = files.layout.packs_dir(&self.weights);
        let stats = match files.disk.list(&dir) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            answer => answer?,
        };
        let of_model = |name: &str| Layout::pack_of(name).filter(|(weights, _)| *weights == self.weights);
        let named = stats.iter().filter_map(|stat| Some((of_model(&stat.name)?.1, dir.join(&stat.name))));
        Ok(named.collect())
    }
}

/// Why a pack is not there to read from.
enum Unopened {
    Disk(DiskError),
    /// Damaged, and moved away where the cache may write; or of another format.
    Unsound(Miss),
}

impl WeightStore {
    /// Opens a pack; a damaged one is moved away.
    fn open_pack(&self, name: Digest, path: &Path) -> Result<Pack, Unopened> {
        let (bytes, pages) = self.open_file(path).map_err(Unopened::Disk)?;
        Pack::open(name, bytes, pages).map_err(|miss| {
            self.quarantine(path, &miss);
            Unopened::Unsound(miss)
        })
    }

    /// The constants in a pack and their sizes; nothing where it cannot be read, which is left to `verify`.
    pub(crate) fn list_pack(&self, name: Digest, path: &Path) -> Vec<(Digest, u64)> {
        let pack = self.open_file(path).ok().and_then(|(bytes, pages)| Pack::open(name, bytes, pages).ok());
        pack.map(|pack| pack.constants().collect()).unwrap_or_default()
    }

    /// Checks every constant of a pack; a damaged pack is moved away. Gives how many constants it has.
    pub(crate) fn verify_pack(&self, name: Digest, path: &Path) -> Result<usize, Miss> {
        let pack = match self.open_pack(name, path) {
            Ok(pack) => pack,
            Err(Unopened::Disk(error)) => return Err(error.into()),
            Err(Unopened::Unsound(miss)) => return Err(miss),
        };
        let mut count = 0;
        for (digest, _) in pack.constants() {
            if let Some(Err(miss)) = pack.tensor(&digest) {
                self.quarantine(path, &miss);
                return Err(miss);
            }
            count += 1;
        }
        Ok(count)
    }

    fn open_file(&self, path: &Path) -> Answer<(Bytes, FilePages)> {
        let Some(files) = self.files() else {
            return Err(DiskError::new(Call::Stat, path, std::io::ErrorKind::NotFound.into()));
        };
        files.open(path)
    }
}

#[cfg(test)]
#[path = "shelf_tests.rs"]
mod tests;
