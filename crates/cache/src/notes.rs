//! Notes: small facts that are cheap to keep and dear to find again, by kind and digest, such as what a Bucket costs on
//! this kind of machine. Advisory: a note that is missing, damaged or old costs time, never a wrong answer, so every
//! failure reads as "no note". Each carries a digest of its kind, its subject and its bytes, so that a note in the place of
//! another is none. Some lead to code or are code, so where signatures are required a note needs one like a Program.
//!
//! A file: the digest, the length of the signature (0 or 64), the signature, the text.

use std::path::PathBuf;

use precast_tensor::Digest;

use crate::cache::ProgramCache;
use crate::miss::Event;
use crate::options::Mode;
use crate::publish;
use crate::sign::{SIGNATURE_BYTES, Signed};

/// Notes that are larger are not kept: they are meant to be small.
const NOTE_BYTES_MAX: usize = 16 << 20;

impl ProgramCache {
    /// The note of this kind about `subject`, if there is a sound one, signed where that is required.
    pub fn note(&self, kind: &'static str, subject: &Digest) -> Option<Vec<u8>> {
        if matches!(self.mode, Mode::Off | Mode::Refresh) {
            return None;
        }
        let bytes = match self.options.disk.read(&self.note_path(kind, subject)) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                self.event(Event::unavailable("reading a note", &error));
                return None;
            }
        };
        let (digest, rest) = bytes.split_at_checked(size_of::<Digest>())?;
        let (signature, text) = split_signature(rest)?;
        let statement = statement(kind, subject, text);
        if Digest::of_bytes(&statement).0 != digest {
            return None;
        }
        self.options.sign.check(Signed::Note, &statement, signature).is_ok().then(|| text.to_vec())
    }

    /// Keeps a note in place of any other of this kind about `subject`.
    pub fn keep_note(&self, kind: &'static str, subject: &Digest, text: &[u8]) {
        if !self.mode.writes() || text.len() > NOTE_BYTES_MAX || !self.options.sign.accepts_own() {
            return;
        }
        let statement = statement(kind, subject, text);
        let signature = self.options.sign.sign(Signed::Note, &statement);
        let signature = signature.as_ref().map_or(&[][..], |signature| &signature[..]);
        let bytes = [&Digest::of_bytes(&statement).0[..], &[signature.len() as u8], signature, text].concat();
        let path = self.note_path(kind, subject);
        let dir = path.parent().map_or(Ok(()), |dir| self.options.disk.make_dir(dir));
        let written = dir.and_then(|()| publish::write_advisory(&*self.options.disk, &self.layout, &path, &bytes));
        written.unwrap_or_else(|error| self.event(Event::unavailable("keeping a note", &error)));
    }

    fn note_path(&self, kind: &str, subject: &Digest) -> PathBuf {
        self.layout.dir("notes").join(kind).join(subject.to_string())
    }
}

/// What a note says as a whole: its kind, what it is about, and its text.
fn statement(kind: &str, subject: &Digest, text: &[u8]) -> Vec<u8> {
    [kind.as_bytes(), &[0], &subject.0, text].concat()
}

/// The signature, if there is one, and the text behind it.
fn split_signature(bytes: &[u8]) -> Option<(Option<&[u8; SIGNATURE_BYTES]>, &[u8])> {
    match bytes.split_first()? {
        (0, text) => Some((None, text)),
        (length, rest) if usize::from(*length) == SIGNATURE_BYTES => {
            rest.split_first_chunk().map(|(signature, text)| (Some(signature), text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::options::CacheOptions;
    use crate::sign::{SignKey, Signing};

    #[test]
    fn a_note_is_read_back_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cache");
        let cache = ProgramCache::open(CacheOptions::new(&root)).unwrap();
        let subject = Digest::of_bytes(b"subject");
        assert_eq!(cache.note("cost", &subject), None);
        cache.keep_note("cost", &subject, b"12");
        cache.keep_note("cost", &subject, b"13");
        assert_eq!(cache.note("cost", &subject), Some(b"13".to_vec()));
        assert_eq!(cache.note("traffic", &subject), None);
        std::fs::write(cache.note_path("cost", &subject), b"13").unwrap();
        assert_eq!(cache.note("cost", &subject), None);
        let read_only = ProgramCache::open(CacheOptions { mode: Mode::ReadOnly, ..CacheOptions::new(&root) }).unwrap();
        read_only.keep_note("traffic", &subject, b"1");
        assert_eq!(read_only.note("traffic", &subject), None);
    }
    #[test]
    fn a_note_in_the_place_of_another_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ProgramCache::open(CacheOptions::new(folder.path().join("cache"))).unwrap();
        let [one, other] = [b"one", b"two"].map(|name| Digest::of_bytes(name));
        cache.keep_note("cost", &one, b"12");
        cache.keep_note("traffic", &one, b"7");
        fs::copy(cache.note_path("cost", &one), cache.note_path("cost", &other)).unwrap();
        fs::copy(cache.note_path("cost", &one), cache.note_path("traffic", &one)).unwrap();
        assert_eq!(cache.note("cost", &one), Some(b"12".to_vec()));
        assert_eq!(cache.note("cost", &other), None);
        assert_eq!(cache.note("traffic", &one), None);
    }

    /// Notes hold machine code of kernels and the digests that keys are made of, so whoever could write one without a key
    /// could run code in those who require signatures.
    #[test]
    fn where_signatures_are_required_a_note_needs_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cache");
        let open = |sign: Signing| ProgramCache::open(CacheOptions { sign, ..CacheOptions::new(&root) }).unwrap();
        let (key, subject) = (SignKey::of_seed(1), Digest::of_bytes(b"subject"));
        let requires = |seed: u8| Signing { key: None, require: Some(vec![SignKey::of_seed(seed).public()]) };

        open(Signing::default()).keep_note("kernels", &subject, b"code of anybody");
        assert_eq!(open(requires(1)).note("kernels", &subject), None);
        open(requires(1)).keep_note("kernels", &subject, b"what nobody could trust is not written");
        assert_eq!(open(Signing::default()).note("kernels", &subject), Some(b"code of anybody".to_vec()));

        open(Signing { key: Some(key), require: None }).keep_note("kernels", &subject, b"code");
        assert_eq!(open(requires(1)).note("kernels", &subject), Some(b"code".to_vec()));
        assert_eq!(open(requires(2)).note("kernels", &subject), None);
        let path = open(requires(1)).note_path("kernels", &subject);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert_eq!(open(requires(1)).note("kernels", &subject), None, "byte {at}");
        }
    }
}
