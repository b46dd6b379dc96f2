//! Questions about a whole cache: what is there, how large, what differs, what is damaged. Behind the commands
//! `precast cache ls|show|why|diff|verify|pin`.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use precast_program::Program;
use precast_tensor::Digest;

use crate::artifact::{self, Manifest, Wanted};
use crate::cache::ProgramCache;
use crate::disk::{DiskError, Stat};
use crate::gc::names_by_constant;
use crate::key::{FieldDiff, KeyRecord, ProgramKey};
use crate::layout::{PROGRAM_ENDING, WEIGHT_ENDING};
use crate::miss::{CacheError, Miss, Nearest};
use crate::shelf::Shelf;
use crate::tuning;
use crate::weights::Pages;

/// One Program on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: ProgramKey,
    /// Everything its code depends on.
    pub record: KeyRecord,
    /// Size of the artifact.
    pub program_bytes: u64,
    /// Size of the constants it names; other Programs may share them.
    pub weights_bytes: u64,
    /// Last use, to the hour.
    pub last_use: Option<SystemTime>,
    /// Time it took to compile.
    pub compile_time: Option<Duration>,
    /// Whether `gc` must keep it.
    pub is_pinned: bool,
    /// Digests of the constants it names.
    pub(crate) constants: Vec<Digest>,
}

/// One constant on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstantEntry {
    /// Digest of element type, shape and bytes.
    pub digest: Digest,
    /// Size of its file, or of its elements where it lies in a pack.
    pub bytes: u64,
    /// Programs that name it.
    pub programs: usize,
}

/// Everything about one Program on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// As in the list.
    pub entry: Entry,
    /// What the artifact says.
    pub manifest: Manifest,
    /// The Program.
    pub program: Program,
}

/// Why a record hits or misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Key of the record.
    pub key: ProgramKey,
    /// Why it misses; nothing if it hits.
    pub miss: Option<Miss>,
    /// The entry of the whole cache that differs in the fewest fields.
    pub nearest: Option<Nearest>,
    /// Entries looked at.
    pub entries: usize,
}

/// A file that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name below the root.
    pub name: String,
    /// What is wrong.
    pub miss: Miss,
}

/// What `verify` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Programs checked.
    pub programs: usize,
    /// Constants checked.
    pub weights: usize,
    /// Files that are not what they should be. Damaged ones are in quarantine if the cache may write.
    pub problems: Vec<Problem>,
}

/// Bytes below the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Artifacts.
    pub programs: u64,
    /// Constants, each once.
    pub weights: u64,
    /// Damaged entries.
    pub quarantine: u64,
    /// Measured tactics.
    pub tuning: u64,
    /// Temps, locks, index.
    pub other: u64,
}

impl Usage {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.programs + self.weights + self.quarantine + self.tuning + self.other
    }
}

impl ProgramCache {
    /// Programs on disk, by key. What cannot be read is left to `verify`.
    pub fn ls(&self) -> Result<Vec<Entry>, CacheError> {
        let files = self.program_files()?;
        Ok(files.iter().filter_map(|file| self.entry(file).ok()).map(|(entry, _)| entry).collect())
    }

    /// Constants on disk, by digest, and how many Programs name each.
    pub fn ls_constants(&self) -> Result<Vec<ConstantEntry>, CacheError> {
        let names = names_by_constant(&self.ls()?);
        let entry = |(digest, bytes)| ConstantEntry {
            digest,
            bytes,
            programs: names.get(&digest).copied().unwrap_or_default(),
        };
        let mut files: BTreeMap<Digest, u64> =
            self.weight_files()?.into_iter().map(|(digest, (bytes, _))| (digest, bytes)).collect();
        files.extend(self.pack_files()?.into_iter().flat_map(|pack| pack.constants));
        Ok(files.into_iter().map(entry).collect())
    }

    /// The Program whose key starts with these hex digits.
    pub fn show(&self, prefix: &str) -> Result<Details, CacheError> {
        let file = self.one_file(prefix)?;
        let unreadable = |miss| CacheError::Entry { name: file.name.clone(), miss };
        let (entry, bytes) = self.entry(&file).map_err(unreadable)?;
        let opened = artifact::open(&bytes).map_err(unreadable)?;
        let program = opened.program().map_err(unreadable)?;
        Ok(Details { entry, manifest: opened.manifest, program })
    }

    /// Why a record hits or misses, compared with every entry.
    pub fn why(&self, record: &KeyRecord) -> Explanation {
        let wanted = Wanted::new(record, self.options.digest_bits);
        let miss = self.probe(record).err();
        let files = self.program_files().unwrap_or_default();
        let names = files.iter().filter_map(|file| file.name.strip_suffix(PROGRAM_ENDING)).map(String::from);
        let nearest = self.nearest_of(&wanted, names);
        Explanation { key: wanted.key, miss, nearest, entries: files.len() }
    }

    /// Fields in which two entries differ; `want` is of the first.
    pub fn diff(&self, one: &str, other: &str) -> Result<Vec<FieldDiff>, CacheError> {
        Ok(self.show(one)?.entry.record.diff(&self.show(other)?.entry.record))
    }

    /// Checks every byte of every Program and constant, and the measured tactics.
    pub fn verify(&self) -> Result<Verification, CacheError> {
        let mut verification = Verification::default();
        for file in self.program_files()? {
            verification.programs += 1;
            if let Err(miss) = self.verify_file(&file) {
                let Some(path) = file.name.strip_suffix(PROGRAM_ENDING).and_then(|key| self.program_path(key)) else {
                    continue;
                };
                self.quarantine_program(&path, file.name.trim_end_matches(PROGRAM_ENDING), &miss);
                verification.problems.push(Problem { name: format!("programs/{}", file.name), miss });
            }
        }
        for file in self.sharded("weights")? {
            let Some(digest) = file.name.strip_suffix(WEIGHT_ENDING).and_then(|hex| hex.parse().ok()) else { continue };
            verification.weights += 1;
            if let Err(miss) = self.weights.read(&digest, Pages::Go) {
                verification.problems.push(Problem { name: format!("weights/{}", file.name), miss });
            }
        }
        for file in self.pack_files()? {
            let path = self.layout.pack(&file.weights, &file.name);
            match self.weights.verify_pack(file.name, &path) {
                Ok(count) => verification.weights += count,
                Err(miss) => {
                    verification.weights += 1;
                    let name = path.file_name().unwrap_or_default().display();
                    verification.problems.push(Problem { name: format!("weights/{name}"), miss });
                }
            }
        }
        if let Some((name, miss)) = self.tuning_problem() {
            verification.problems.push(Problem { name, miss });
        }
        Ok(verification)
    }

    /// Keeps an entry from `gc`.
    pub fn pin(&self, prefix: &str) -> Result<(), CacheError> {
        let pin = self.pin_path("pin", prefix)?;
        let dir = self.layout.dir("index/pin");
        self.options.disk.make_dir(&dir)?;
        match self.options.disk.create(&pin) {
            Err(error) if error.source.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(self.options.disk.sync_dir(&dir)?),
        }
    }

    /// Leaves an entry to `gc` again.
    pub fn unpin(&self, prefix: &str) -> Result<(), CacheError> {
        match self.options.disk.remove(&self.pin_path("unpin", prefix)?) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Bytes below the root, by kind.
    pub fn bytes(&self) -> Result<Usage, CacheError> {
        let sum = |stats: Vec<Stat>| stats.iter().map(|stat| stat.bytes).sum();
        let mut usage = Usage {
            programs: sum(self.sharded("programs")?),
            weights: sum(self.sharded("weights")?),
            quarantine: sum(self.flat("quarantine")?),
            tuning: sum(self.flat(tuning::DIR)?),
            other: 0,
        };
        for dir in ["tmp", "locks", "index/use", "index/pin"] {
            usage.other += sum(self.flat(dir)?);
        }
        Ok(usage)
    }

    /// Artifacts, by name.
    pub(crate) fn program_files(&self) -> Result<Vec<Stat>, DiskError> {
        let mut files = self.sharded("programs")?;
        files.retain(|file| file.name.ends_with(PROGRAM_ENDING));
        Ok(files)
    }

    /// Files of a directory of directories, by name.
    pub(crate) fn sharded(&self, dir: &str) -> Result<Vec<Stat>, DiskError> {
        let mut files = Vec::new();
        for shard in self.flat(dir)?.into_iter().filter(|shard| shard.is_dir) {
            files.extend(self.flat(&format!("{dir}/{}", shard.name))?.into_iter().filter(|file| !file.is_dir));
        }
        Ok(files)
    }

    /// Entries of a directory; none if it is not there.
    pub(crate) fn flat(&self, dir: &str) -> Result<Vec<Stat>, DiskError> {
        match self.options.disk.list(&self.layout.dir(dir)) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            answer => answer,
        }
    }

    /// The entry of a file, and the file's bytes. Its name must be that of its record.
    pub(crate) fn entry(&self, file: &Stat) -> Result<(Entry, bytes::Bytes), Miss> {
        let name = file.name.trim_end_matches(PROGRAM_ENDING);
        let path = self.program_path(name).ok_or_else(|| Miss::corrupt("name", "a key", name))?;
        let bytes = self.read_fresh(&path)?;
        let manifest = artifact::open(&bytes)?.manifest;
        let record = manifest.record()?;
        let key = Wanted::new(&record, self.options.digest_bits).key;
        if key.to_string() != name {
            return Err(Miss::corrupt("name", name, key));
        }
        let stamp = self.stamp(name);
        let entry = Entry {
            key,
            record,
            program_bytes: bytes.len() as u64,
            weights_bytes: manifest.constants_bytes(),
            last_use: stamp.map(|stamp| stamp.last_use()),
            compile_time: stamp.and_then(|stamp| stamp.compile_ms).map(Duration::from_millis),
            is_pinned: self.options.disk.stat(&self.layout.pin(name)).is_ok(),
            constants: manifest.constants.iter().map(|constant| constant.digest()).collect(),
        };
        Ok((entry, bytes))
    }

    fn verify_file(&self, file: &Stat) -> Result<(), Miss> {
        let (entry, bytes) = self.entry(file)?;
        let opened = artifact::open(&bytes)?;
        opened.check_signature(&self.options.sign)?;
        opened.program()?;
        let mut shelf = Shelf::new(&self.weights, entry.record.weights);
        opened.manifest.constants.iter().try_for_each(|constant| shelf.find(&constant.digest(), constant.bytes))
    }

    fn one_file(&self, prefix: &str) -> Result<Stat, CacheError> {
        let mut files = self.program_files()?;
        files.retain(|file| file.name.starts_with(prefix));
        let found = files.len();
        match (files.pop(), found) {
            (Some(file), 1) => Ok(file),
            _ => Err(CacheError::NotOneEntry { prefix: prefix.to_string(), found }),
        }
    }

    fn pin_path(&self, action: &'static str, prefix: &str) -> Result<std::path::PathBuf, CacheError> {
        if !self.mode.writes() {
            return Err(CacheError::ReadOnly { action, mode: self.mode.name() });
        }
        Ok(self.layout.pin(self.one_file(prefix)?.name.trim_end_matches(PROGRAM_ENDING)))
    }
}

#[cfg(test)]
#[path = "manage_tests.rs"]
mod tests;
