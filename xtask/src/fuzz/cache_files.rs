//! A cache on disk that somebody has changed: bytes that are damaged, and files that are whole and do not belong where they
//! lie, with lengths and digests made right again, so that every check behind the digests is reached too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use precast::{CacheOptions, ModelSession, ProgramCache};
use precast_cache::artifact::{FORMAT, MAGIC};
use precast_cache::layout::{PACK_ENDING, PROGRAM_ENDING};
use precast_cache::{Event, KeyRecord, Requires};
use precast_program::Bucket;
use precast_tensor::Digest;
use serde::{Deserialize, Serialize};

use super::mutate::{EDGES, Random, mutate};
use super::targets::break_program;
use crate::torture::cache_model::{Subject, small, write, write_small};

/// Bytes of a digest.
const DIGEST_BYTES: usize = 32;
/// The largest Bucket of the model: there are two, so that each can stand in for the other.
const BATCH_MAX: i64 = 2;
/// Rows of the requests.
const ROWS: [usize; 3] = [1, 2, 3];

/// Files by their path below the root of a cache.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A cache with one model's Programs in it, and the same of a model with other weights.
pub struct CacheFiles {
    folder: tempfile::TempDir,
    subject: Subject,
    answers: String,
    files: Files,
    stale: Files,
}

/// What an input did to the cache.
pub struct CacheOutcome {
    /// Whether all Programs were taken from it.
    pub is_accepted: bool,
    /// What was changed, and what became of it.
    pub note: String,
}

/// What is done to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Bytes of any file are damaged.
    Damaged,
    /// A file is gone.
    Removed,
    /// Two files of one kind have changed places.
    Swapped,
    /// A file is that of the model with other weights.
    Stale,
    /// A file ends early, and a Program's digests are right all the same.
    Cut,
    /// A Program says that it was compiled for something else.
    Rekeyed,
    /// A Manifest says something else of the Program that follows.
    Misdescribed,
    /// Another Program under the key, or another text in a note.
    Rewritten,
    /// The Program under the key has an input or output, a buffer or a constant of another form.
    Reshaped,
}

impl Change {
    const ALL: [Change; 9] = [
        Change::Damaged,
        Change::Removed,
        Change::Swapped,
        Change::Stale,
        Change::Cut,
        Change::Rekeyed,
        Change::Misdescribed,
        Change::Rewritten,
        Change::Reshaped,
    ];

    /// Whoever writes a whole Program under its key decides what it computes, as far as the verifier goes. Anything less
    /// must leave the answers as they are.
    fn decides_answers(self) -> bool {
        matches!(self, Change::Rewritten | Change::Reshaped)
    }
}

impl CacheFiles {
    /// Fills a cache, and another one.
    pub fn new() -> Result<CacheFiles> {
        let folder = tempfile::tempdir()?;
        let mut other = small();
        for tensor in other.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            let bytes = tensor.raw_data.take().unwrap_or_default();
            tensor.raw_data = Some(bytes.iter().rev().copied().collect::<Vec<u8>>().into());
        }
        let path = folder.path().join("other.onnx");
        write(&path, &other)?;
        let subject = Subject { rows: ROWS.to_vec(), ..write_small(&folder.path().join("m.onnx"))? };
        let subject = subject.with_max_batch(BATCH_MAX);
        let stale = Subject { model: path, ..subject.clone() };
        let (_, stale) = filled(&stale, &folder.path().join("other"))?;
        let (answers, files) = filled(&subject, &folder.path().join("cache"))?;
        Ok(CacheFiles { folder, subject, answers, files, stale })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Changes the cache; a Session on it must be refused, or give the answers that it gave before.
    pub fn run(&self, random: &mut Random) -> Result<CacheOutcome> {
        let change = *random.pick(&Change::ALL);
        let mut files = self.files.clone();
        self.change(change, &mut files, random).with_context(|| format!("cannot make a cache {change:?}"))?;
        let root = self.folder.path().join("changed");
        write_files(&root, &files)?;
        let refusals: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let told = refusals.clone();
        let tell = move |event: &Event| {
            if let Event::Quarantined { miss, .. } = event {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(miss.class());
            }
        };
        let outcome =
            |is_accepted: bool, what: &str| Ok(CacheOutcome { is_accepted, note: format!("{change:?}: {what}") });
        let options = CacheOptions { events: Arc::new(tell), ..CacheOptions::new(&root) };
        // A root that does not look like one is refused as a whole.
        let Ok(cache) = ProgramCache::open(options) else { return outcome(false, "the root is refused") };
        match self.subject.open(Arc::new(cache)).and_then(|session| self.answered(&session, change)) {
            Ok((0, true)) => outcome(true, "accepted"),
            Ok((0, false)) => outcome(true, "accepted, as another Program"),
            Ok(_) => {
                let refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
                outcome(false, refusals.first().map_or("compiled again", |&class| class))
            }
            Err(error) if change.decides_answers() => outcome(false, &format!("an error: {error:#}")),
            Err(error) => Err(error.context(format!("{change:?}"))),
        }
    }

    /// How many Programs a Session compiled, and whether it answers as before.
    fn answered(&self, session: &ModelSession, change: Change) -> Result<(u64, bool)> {
        let is_same = self.subject.answers(session)? == self.answers;
        ensure!(is_same || change.decides_answers(), "other answers");
        Ok((session.compiles(), is_same))
    }

    fn change(&self, change: Change, files: &mut Files, random: &mut Random) -> Result<()> {
        match change {
            Change::Damaged => {
                let (_, bytes) = pick(files, random, |_| true)?;
                mutate(bytes, &[], random);
            }
            Change::Removed => {
                let path = pick(files, random, |_| true)?.0.clone();
                files.remove(&path);
            }
            Change::Swapped => swap(files, random)?,
            Change::Stale => self.put_stale(files, random)?,
            Change::Cut => cut(files, random)?,
            Change::Rekeyed => change_artifact(files, random, rekey)?,
            Change::Misdescribed => change_artifact(files, random, misdescribe)?,
            Change::Rewritten if random.once_in(2) => rewrite_note(files, random)?,
            Change::Rewritten => change_artifact(files, random, rewrite_steps)?,
            Change::Reshaped => change_artifact(files, random, reshape)?,
        }
        Ok(())
    }

    /// A file of the other model, under the name of one of this model's of the same kind.
    fn put_stale(&self, files: &mut Files, random: &mut Random) -> Result<()> {
        let (path, bytes) = pick(files, random, |path| self.stale.keys().any(|stale| kind(stale) == kind(path)))?;
        let alike: Vec<&Vec<u8>> =
            self.stale.iter().filter(|(stale, _)| kind(stale) == kind(path)).map(|(_, bytes)| bytes).collect();
        *bytes = (*random.pick(&alike)).clone();
        Ok(())
    }
}

/// The answers of a Session on a cache, and the files that it leaves.
fn filled(subject: &Subject, root: &Path) -> Result<(String, Files)> {
    let session = subject.open(Arc::new(ProgramCache::open(CacheOptions::new(root))?))?;
    let answers = subject.answers(&session)?;
    drop(session);
    let mut files = Files::new();
    read_files(root, root, &mut files)?;
    ensure!(files.keys().any(|path| kind(path) == PROGRAM_ENDING), "nothing was filed");
    Ok((answers, files))
}

fn read_files(root: &Path, folder: &Path, files: &mut Files) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => read_files(root, &path, files)?,
            false => drop(files.insert(path.strip_prefix(root)?.to_path_buf(), fs::read(&path)?)),
        }
    }
    Ok(())
}

/// Writes a cache as it is described, whatever lay there before.
fn write_files(root: &Path, files: &Files) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for (path, bytes) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// What kind of file a path is: by its ending, or by the folder it lies in.
fn kind(path: &Path) -> &str {
    let text = path.to_str().unwrap_or_default();
    match [PROGRAM_ENDING, PACK_ENDING].into_iter().find(|ending| text.ends_with(ending)) {
        Some(ending) => ending,
        None => path.parent().and_then(Path::to_str).unwrap_or_default(),
    }
}

/// One of the files that are as wanted.
fn pick<'a>(
    files: &'a mut Files,
    random: &mut Random,
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<(&'a PathBuf, &'a mut Vec<u8>)> {
    let mut wanted: Vec<_> = files.iter_mut().filter(|(path, _)| is_wanted(path)).collect();
    ensure!(!wanted.is_empty(), "there is no such file");
    let at = random.below(wanted.len());
    Ok(wanted.swap_remove(at))
}

fn swap(files: &mut Files, random: &mut Random) -> Result<()> {
    let (path, bytes) = pick(files, random, |_| true)?;
    let (path, bytes) = (path.clone(), bytes.clone());
    let alike = |other: &Path| kind(other) == kind(&path) && *other != *path;
    // Where a kind has one file alone, it takes the place of any other.
    let (_, other) = match files.keys().any(|other| alike(other)) {
        true => pick(files, random, alike)?,
        false => pick(files, random, |_| true)?,
    };
    let other = std::mem::replace(other, bytes);
    files.insert(path, other);
    Ok(())
}

fn cut(files: &mut Files, random: &mut Random) -> Result<()> {
    let (path, bytes) = pick(files, random, |_| true)?;
    let is_program = kind(path) == PROGRAM_ENDING;
    if is_program && random.once_in(2) {
        let mut artifact = Artifact::read(bytes)?;
        artifact.body.truncate(random.below(artifact.body.len()));
        *bytes = artifact.written()?;
        return Ok(());
    }
    let length = random.below(bytes.len() + 1);
    bytes.truncate(length);
    if is_program && bytes.len() > DIGEST_BYTES {
        bytes.truncate(bytes.len() - DIGEST_BYTES);
        bytes.extend(Digest::of_bytes(bytes).0);
    }
    Ok(())
}

/// Changes the artifact of one Program and makes its digests right again.
fn change_artifact(
    files: &mut Files,
    random: &mut Random,
    change: impl Fn(&mut Artifact, &mut Random) -> Result<()>,
) -> Result<()> {
    let (_, bytes) = pick(files, random, |path| kind(path) == PROGRAM_ENDING)?;
    let mut artifact = Artifact::read(bytes)?;
    change(&mut artifact, random)?;
    *bytes = artifact.written()?;
    Ok(())
}

/// Another value in one field of the KeyRecord, or bytes that are none.
fn rekey(artifact: &mut Artifact, random: &mut Random) -> Result<()> {
    let record = &mut artifact.manifest.record;
    if random.once_in(4) {
        let before = record.clone();
        mutate(record, &before, random);
        if *record == before {
            record.push(0);
        }
        return Ok(());
    }
    let mut key = KeyRecord::from_canonical_bytes(record).map_err(anyhow::Error::msg)?;
    let word = format!("{:x}", random.word());
    let digest = Digest::of_bytes(word.as_bytes());
    match random.below(15) {
        0 => key.schema = word,
        1 => key.compiler = word,
        2 => key.graph = digest,
        3 => key.weights = digest,
        4 => key.bucket = Bucket::new([("batch".to_string(), *random.pick(&EDGES))]),
        5 => drop(key.types.pop()),
        6 => drop(key.precision.insert(word, "f16".to_string())),
        7 => key.calibration = Some(word),
        8 => drop(key.options.insert(word, "1".to_string())),
        9 => key.tuning = Some(digest),
        10 => key.target = word,
        11 => key.toolchain = word,
        12 => key.driver = Some(word),
        13 => drop(key.custom_ops.insert(word, "1".to_string())),
        _ => drop(key.assertions.insert(format!("pad.{word}"), "independent".to_string())),
    }
    *record = key.canonical_bytes();
    Ok(())
}

/// Other constants, or more than a machine has, in a Manifest.
fn misdescribe(artifact: &mut Artifact, random: &mut Random) -> Result<()> {
    let manifest = &mut artifact.manifest;
    let constants = manifest.constants.len();
    match random.below(6) {
        0 if constants > 0 => drop(manifest.constants.remove(random.below(constants))),
        1 if constants > 0 => manifest.constants[random.below(constants)].1 = *random.pick(&EDGES) as u64,
        2 if constants > 0 => manifest.constants[random.below(constants)].0[0] ^= 1,
        3 => manifest.constants.push(([7; DIGEST_BYTES], 64)),
        4 => drop(manifest.requires.features.insert("of another machine".to_string())),
        _ => manifest.requires.driver_min = Some("99.0".to_string()),
    }
    Ok(())
}

/// Steps in another order, fewer of them, or others.
fn rewrite_steps(artifact: &mut Artifact, random: &mut Random) -> Result<()> {
    let mut program = precast_program::decode(&artifact.body)?;
    for _ in 0..1 + random.below(3) {
        break_program(&mut program, random);
    }
    artifact.set_body(precast_program::encode(&program));
    Ok(())
}

/// Ports, buffers and constants of another form.
fn reshape(artifact: &mut Artifact, random: &mut Random) -> Result<()> {
    let mut program = precast_program::decode(&artifact.body)?;
    let edge = *random.pick(&EDGES) as u64;
    match random.below(9) {
        0 => drop(program.inputs.pop()),
        1 => drop(program.outputs.pop()),
        2 => program.inputs[0].name.push('x'),
        3 => program.inputs[0].bytes = edge,
        4 => program.outputs[0].bytes = edge,
        5 => program.arena_bytes = edge,
        6 => drop(program.constants.pop()),
        7 => std::mem::swap(&mut program.inputs[0], &mut program.outputs[0]),
        _ => program.outputs[0].dtype = program.outputs[0].dtype.chars().rev().collect(),
    }
    artifact.set_body(precast_program::encode(&program));
    Ok(())
}

/// Another text in a note, with the digest that belongs to it.
fn rewrite_note(files: &mut Files, random: &mut Random) -> Result<()> {
    let (path, bytes) = pick(files, random, |path| path.starts_with("notes"))?;
    let names: Vec<&str> = path.iter().filter_map(|name| name.to_str()).collect();
    let [_, kind, subject] = names[..] else { bail!("a note lies in the folder of its kind") };
    let subject: Digest = subject.parse().map_err(anyhow::Error::msg)?;
    // The digest and the length of no signature go before the text.
    let mut text = bytes.split_off(DIGEST_BYTES + 1);
    mutate(&mut text, &[], random);
    let digest = Digest::of_bytes(&[kind.as_bytes(), &[0], &subject.0, &text].concat());
    *bytes = [&digest.0[..], &[0], &text].concat();
    Ok(())
}

/// The parts of an artifact, as somebody would write them who has read its layout and not our code.
struct Artifact {
    manifest: Manifest,
    body: Vec<u8>,
}

/// The fields of a Manifest in their order.
#[derive(Serialize, Deserialize)]
struct Manifest {
    record: Vec<u8>,
    program_bytes: u64,
    program_digest: [u8; DIGEST_BYTES],
    constants: Vec<([u8; DIGEST_BYTES], u64)>,
    requires: Requires,
}

impl Artifact {
    /// The parts of a sound artifact without a signature.
    fn read(bytes: &[u8]) -> Result<Artifact> {
        let header = MAGIC.len() + size_of_val(&FORMAT);
        let length = bytes.get(header..).and_then(|rest| rest.first_chunk()).context("a length")?;
        let start = header + size_of_val(length) + DIGEST_BYTES;
        let end = start + u64::from_le_bytes(*length) as usize;
        let manifest = postcard::from_bytes(bytes.get(start..end).context("a Manifest")?)?;
        let body = bytes.get(end + 1..bytes.len() - DIGEST_BYTES).context("a Program")?.to_vec();
        Ok(Artifact { manifest, body })
    }

    fn set_body(&mut self, body: Vec<u8>) {
        self.body = body;
    }

    /// The artifact with right lengths and digests.
    fn written(mut self) -> Result<Vec<u8>> {
        self.manifest.program_bytes = self.body.len() as u64;
        self.manifest.program_digest = Digest::of_bytes(&self.body).0;
        let manifest = postcard::to_stdvec(&self.manifest)?;
        let length = (manifest.len() as u64).to_le_bytes();
        let digest = Digest::of_bytes(&manifest).0;
        let mut bytes = [&MAGIC[..], &FORMAT.to_le_bytes(), &length, &digest, &manifest, &[0], &self.body].concat();
        bytes.extend(Digest::of_bytes(&bytes).0);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_artifact_that_is_taken_apart_and_put_together_is_the_same() {
        let cache = CacheFiles::new().unwrap();
        for (path, bytes) in cache.files.iter().filter(|(path, _)| kind(path) == PROGRAM_ENDING) {
            assert_eq!(Artifact::read(bytes).unwrap().written().unwrap(), *bytes, "{}", path.display());
        }
    }

    /// A cache that is refused is compiled again and answers as before; one that is accepted answers as before too.
    #[test]
    fn changed_caches_are_refused_or_right() {
        let cache = CacheFiles::new().unwrap();
        let (mut accepted, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for seed in 0..60 {
            let outcome = cache.run(&mut Random::new(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
            let seen = if outcome.is_accepted { &mut accepted } else { &mut refused };
            seen.insert(outcome.note);
        }
        assert!(accepted.contains("Damaged: accepted"), "{accepted:?}");
        for change in ["Damaged", "Swapped", "Stale", "Rekeyed", "Misdescribed", "Reshaped"] {
            assert!(refused.contains(&format!("{change}: corrupt")), "{change} is not among {refused:?}");
        }
    }
}
