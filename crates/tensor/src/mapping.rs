//! Bytes of a file, mapped where nobody else can change them and read into memory otherwise.
//!
//! A mapping is only as immutable as its file, so a file that another user may write to is read instead. This
//! is the one file of the room with unsafe code.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

/// The bytes of a file: mapped if it is a regular file of this user or root that only its owner may write to,
/// read into memory otherwise.
pub fn map_file(path: impl AsRef<Path>) -> io::Result<Bytes> {
    let path = path.as_ref();
    let in_file = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut file = File::open(path).map_err(in_file)?;
    let metadata = file.metadata().map_err(in_file)?;
    if metadata.is_file() && metadata.len() > 0 && is_ours_alone(&metadata) {
        return map(&file).map_err(in_file);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(in_file)?;
    Ok(Bytes::from(bytes))
}

fn map(file: &File) -> io::Result<Bytes> {
    // SAFETY: `map_file` has checked on this open file that it is regular, belongs to this user or root, and that
    // neither group nor others may write to it, so only a process with the rights of this one could change or
    // truncate it. The mapping is read-only and lives as long as the Bytes that own it.
    let mapping = unsafe { Mmap::map(file) }?;
    Ok(Bytes::from_owner(mapping))
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
        let bytes = map_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(&bytes[..], b"abc");
    }

    #[test]
    fn an_empty_file_gives_no_bytes() {
        let path = scratch_file("empty", b"");
        assert_eq!(map_file(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_file_others_may_write_is_read_instead() {
        use std::os::unix::fs::PermissionsExt;
        let path = scratch_file("shared", b"abc");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!is_ours_alone(&std::fs::metadata(&path).unwrap()));
        let bytes = map_file(&path).unwrap();
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
