//! Notes: small facts that are cheap to keep and dear to find again, by kind and digest, such as what a Bucket costs on
//! this kind of machine. Advisory: a note that is missing, damaged or old costs time, never a wrong answer, so every
//! failure reads as "no note". Each carries a digest of its bytes.

use std::path::PathBuf;

use precast_tensor::Digest;

use crate::cache::ProgramCache;
use crate::miss::Event;
use crate::options::Mode;
use crate::publish;

/// Notes that are larger are not kept: they are meant to be small.
const NOTE_BYTES_MAX: usize = 16 << 20;

impl ProgramCache {
    /// The note of this kind about `subject`, if there is a sound one.
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
        let (digest, text) = bytes.split_at_checked(size_of::<Digest>())?;
        (Digest::of_bytes(text).0 == digest).then(|| text.to_vec())
    }

    /// Keeps a note in place of any other of this kind about `subject`.
    pub fn keep_note(&self, kind: &'static str, subject: &Digest, text: &[u8]) {
        if !self.mode.writes() || text.len() > NOTE_BYTES_MAX {
            return;
        }
        let bytes = [&Digest::of_bytes(text).0[..], text].concat();
        let path = self.note_path(kind, subject);
        let dir = path.parent().map_or(Ok(()), |dir| self.options.disk.make_dir(dir));
        let written = dir.and_then(|()| publish::write_advisory(&*self.options.disk, &self.layout, &path, &bytes));
        written.unwrap_or_else(|error| self.event(Event::unavailable("keeping a note", &error)));
    }

    fn note_path(&self, kind: &str, subject: &Digest) -> PathBuf {
        self.layout.dir("notes").join(kind).join(subject.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CacheOptions;

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
}
