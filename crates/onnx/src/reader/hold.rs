//! File bytes in memory: mapped where no other user can change them under us, read otherwise.
//!
//! A mapped file that another user may write can change after it was checked, or shrink and fault the process.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use bytes::Bytes;
use precast_tensor::FilePages;
#[cfg(unix)]
use precast_tensor::map_file;

use super::error::ReadError;
use super::limits::{Budget, Limits};

/// The bytes of the model at `path`, if it is a regular file within the limits, and the pages they take.
pub(super) fn open_model(path: &Path, limits: &Limits) -> Result<(Bytes, FilePages), ReadError> {
    let (file, metadata) = open_regular(path, limits)?;
    let fault = |source| ReadError::Io { action: "read".into(), path: path.into(), source };
    hold_file(&file, &metadata).map_err(fault)
}

/// The bytes of the file at `path` in memory of our own, whoever writes to the file later.
pub(super) fn read_whole(path: &Path, limits: &Limits) -> Result<Bytes, ReadError> {
    let (file, metadata) = open_regular(path, limits)?;
    let size = usize::try_from(metadata.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
    let fault = |source| ReadError::Io { action: "read".into(), path: path.into(), source };
    size.and_then(|size| read_range(&file, 0, size)).map_err(fault)
}

/// The file at `path`, if it is a regular one within the limits.
fn open_regular(path: &Path, limits: &Limits) -> Result<(File, Metadata), ReadError> {
    let fault = |action: &str, source| ReadError::Io { action: action.into(), path: path.into(), source };
    // Asked before opening, because opening a pipe waits for its other end.
    let is_file = std::fs::metadata(path).map_err(|source| fault("open", source))?.is_file();
    let file = is_file.then(|| File::open(path)).transpose().map_err(|source| fault("open", source))?;
    let Some(file) = file else {
        return Err(fault("open", io::Error::new(io::ErrorKind::InvalidInput, "expected a regular file")));
    };
    let metadata = file.metadata().map_err(|source| fault("read the size of", source))?;
    if metadata.len() > limits.model_bytes {
        let place = format!("'{}'", path.display());
        let (budget, limit) = (Budget::ModelBytes, limits.model_bytes);
        return Err(ReadError::OverLimit { place, budget, value: metadata.len(), limit });
    }
    Ok((file, metadata))
}

/// All bytes of an open file, and the pages they take.
pub(super) fn hold_file(file: &File, metadata: &Metadata) -> io::Result<(Bytes, FilePages)> {
    let size = usize::try_from(metadata.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let read = || Ok((read_range(file, 0, size)?, FilePages::default()));
    match size {
        // An empty range cannot be mapped.
        0 => Ok((Bytes::new(), FilePages::default())),
        _ if is_mappable(metadata) => map_open_file(file).or_else(|_| read()),
        _ => read(),
    }
}

/// Maps the file behind an open descriptor. Its own path is not used again: it may lead elsewhere by now, while
/// the descriptor's entry in /proc leads to the file that was checked.
#[cfg(unix)]
fn map_open_file(file: &File) -> io::Result<(Bytes, FilePages)> {
    use std::os::fd::AsRawFd;
    map_file(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(not(unix))]
fn map_open_file(_file: &File) -> io::Result<(Bytes, FilePages)> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Whether only we and root can change the file.
#[cfg(unix)]
pub(super) fn is_mappable(metadata: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let is_ours = metadata.uid() == 0 || metadata.uid() == rustix::process::geteuid().as_raw();
    is_ours && metadata.mode() & WRITABLE_BY_OTHERS == 0
}

/// Who else can change the file is not known here.
#[cfg(not(unix))]
pub(super) fn is_mappable(_metadata: &Metadata) -> bool {
    false
}

/// Exactly `length` bytes from `offset` in memory of our own.
pub(super) fn read_range(mut file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.seek(SeekFrom::Start(offset))?;
    let length_u64 = u64::try_from(length).unwrap_or(u64::MAX);
    file.take(length_u64).read_to_end(&mut bytes)?;
    if bytes.len() != length {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
    }
    Ok(Bytes::from(bytes))
}
