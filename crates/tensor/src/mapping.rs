//! Bytes of a file, mapped where nobody else can change them and read into memory otherwise.
//!
//! A mapping is only as immutable as its file, so a file that another user may write to is read instead. Pages of a
//! mapping that were read stay resident until somebody lets them go: `FilePages` does. This is the one file of the room
//! with unsafe code.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

/// The bytes of a file: mapped if it is a regular file of this user or root that only its owner may write to, read into
/// memory otherwise. With them the pages that they take while they are read.
pub fn map_file(path: impl AsRef<Path>) -> io::Result<(Bytes, FilePages)> {
    let path = path.as_ref();
    let in_file = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut file = File::open(path).map_err(in_file)?;
    let metadata = file.metadata().map_err(in_file)?;
    if metadata.is_file() && metadata.len() > 0 && is_ours_alone(&metadata) {
        return map(&file).map_err(in_file);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(in_file)?;
    Ok((Bytes::from(bytes), FilePages::default()))
}

/// The resident pages of a mapped file; none where it was read into memory. Clones are of the same pages.
#[derive(Clone, Debug, Default)]
pub struct FilePages(Option<Arc<Mmap>>);

impl FilePages {
    /// Whether these bytes lie in the mapping.
    pub fn hold(&self, bytes: &[u8]) -> bool {
        self.offset_of(bytes).is_some()
    }

    /// Lets the pages go that reading these bytes of the mapping took, and what the system brought with them. The bytes stay
    /// as they are: reading them again brings pages back from the system's cache of the file.
    pub fn release(&self, bytes: &[u8]) {
        #[cfg(unix)]
        if let (Some(mapping), Some(offset)) = (&self.0, self.offset_of(bytes))
            && bytes.len() >= RELEASED_BYTES_MIN
        {
            let (start, len) = windows(mapping, offset, bytes.len());
            // SAFETY: `map` made this mapping of a file, shared and read-only, so a page that is dropped has no bytes of
            // its own to lose: the next read finds those of the file again. The range was found in the mapping.
            let advised = unsafe { mapping.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len) };
            // Advice that is refused costs memory and nothing else.
            drop(advised);
        }
    }

    fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let mapping = self.0.as_ref()?;
        let offset = bytes.as_ptr().addr().checked_sub(mapping.as_ptr().addr())?;
        (offset.checked_add(bytes.len())? <= mapping.len()).then_some(offset)
    }
}

/// Fewer bytes than this are not worth a system call: others lie beside them.
const RELEASED_BYTES_MIN: usize = 256;
/// The system maps the pages around one that is read, as far as it has them: so many bytes, at a multiple of as many.
#[cfg(unix)]
const WINDOW_BYTES: usize = 64 << 10;

/// Start and length of the windows of a mapping that these bytes lie in.
#[cfg(unix)]
fn windows(mapping: &Mmap, offset: usize, len: usize) -> (usize, usize) {
    let base = mapping.as_ptr().addr();
    let start = ((base + offset) / WINDOW_BYTES * WINDOW_BYTES).saturating_sub(base);
    let end = (base + offset + len).next_multiple_of(WINDOW_BYTES) - base;
    (start, end.min(mapping.len()) - start)
}

/// A mapping that keeps itself alive behind `Bytes`.
struct MappingOwner(Arc<Mmap>);

impl AsRef<[u8]> for MappingOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn map(file: &File) -> io::Result<(Bytes, FilePages)> {
    // SAFETY: `map_file` has checked on this open file that it is regular, belongs to this user or root, and that
    // neither group nor others may write to it, so only a process with the rights of this one could change or
    // truncate it. The mapping is read-only and lives as long as the Bytes that own it.
    let mapping = Arc::new(unsafe { Mmap::map(file) }?);
    Ok((Bytes::from_owner(MappingOwner(mapping.clone())), FilePages(Some(mapping))))
}

#[cfg(unix)]
fn is_ours_alone(metadata: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    const WRITABLE_BY_GROUP_OR_OTHERS: u32 = 0o022;
    const ROOT: u32 = 0;
    // `/proc/self` belongs to the effective user. Where there is no /proc only files of root are mapped.
    let user = std::fs::metadata("/proc/self").map_or(ROOT, |process| process.uid());
    let is_trusted_owner = metadata.uid() == ROOT || metadata.uid() == user;
    is_trusted_owner && metadata.mode() & WRITABLE_BY_GROUP_OR_OTHERS == 0
}

#[cfg(not(unix))]
fn is_ours_alone(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch_file(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("precast-tensor-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_file_of_ours_maps_and_outlives_its_name() {
        let path = scratch_file("ours", b"abc");
        let (bytes, _) = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&bytes[..], b"abc");
    }

    #[test]
    fn released_pages_come_back() {
        let path = scratch_file("released", &[7; 3 << 16]);
        let (bytes, pages) = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let sum = || bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let before = sum();
        pages.release(&bytes[1..]);
        assert_eq!(sum(), before);
        assert!(pages.hold(&bytes) && pages.hold(&bytes[5..9]));
        let others = vec![7; bytes.len()];
        assert!(!pages.hold(&others) && !FilePages::default().hold(&bytes));
        pages.release(&others);
        assert_eq!(others, &bytes[..]);
    }

    #[test]
    fn an_empty_file_gives_no_bytes() {
        let path = scratch_file("empty", b"");
        assert_eq!(map_file(&path).unwrap().0.len(), 0);
        std::fs::remove_file(&path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_file_others_may_write_is_read_instead() {
        use std::os::unix::fs::PermissionsExt;
        let path = scratch_file("shared", b"abc");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!is_ours_alone(&std::fs::metadata(&path).unwrap()));
        let (bytes, _) = map_file(&path).unwrap();
        std::fs::write(&path, b"xyz").unwrap();
        assert_eq!(&bytes[..], b"abc");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(is_ours_alone(&std::fs::metadata(&path).unwrap()));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = map_file("/nonexistent/weights.bin").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/nonexistent/weights.bin: "));
    }
}
