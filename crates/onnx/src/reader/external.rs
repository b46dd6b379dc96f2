//! Tensor data in files beside the model.
//!
//! A model names such a file, an offset and a length; all three are chosen by whoever wrote the model. Keys are
//! matched against a closed list, the path is checked by component and opened beneath the model's folder without
//! following links, and the range is held against the file's real size. Each file is opened once and shared.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use precast_tensor::FilePages;
use sha1::{Digest as _, Sha1};

use super::beneath::{Folder, is_escape};
use super::error::{Quoted, ReadError};
use super::hold::{hold_file, is_mappable, read_range};
use super::limits::{Budget, Limits};
use crate::proto::TensorProto;

/// The external data files of one model, opened as tensors ask for them.
#[derive(Debug)]
pub(super) struct ExternalFiles {
    /// `None` for a model given as bytes, which has no folder.
    folder: Option<Folder>,
    open: Mutex<BTreeMap<PathBuf, OpenFile>>,
}

#[derive(Debug)]
struct OpenFile {
    content: Content,
    size: u64,
    /// SHA-1 of the content, once a tensor asked for it.
    sha1: Option<[u8; 20]>,
}

#[derive(Debug)]
enum Content {
    /// All bytes, mapped or read, and the pages they take.
    Held(Bytes, FilePages),
    /// A file that others can change: ranges are read as needed, into memory of our own.
    Unmapped(File),
}

impl ExternalFiles {
    pub(super) fn new(folder: Option<Folder>) -> ExternalFiles {
        ExternalFiles { folder, open: Mutex::new(BTreeMap::new()) }
    }

    /// The pages of the file that these bytes are mapped from.
    pub(super) fn pages_of(&self, bytes: &[u8]) -> Option<FilePages> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().find_map(|file| match &file.content {
            Content::Held(_, pages) => pages.hold(bytes).then(|| pages.clone()),
            Content::Unmapped(_) => None,
        })
    }

    /// The `expected_bytes` bytes that the external data of `proto` must be.
    pub(super) fn read(&self, proto: &TensorProto, expected_bytes: usize, limits: &Limits) -> Result<Bytes, ReadError> {
        let place = ExternalPlace::parse(proto)?;
        let Some(folder) = &self.folder else {
            return Err(place.fault("refused, because a model given as bytes has no folder"));
        };
        // Entries are whole when inserted, so a panic elsewhere cannot have left half of one.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if !open.contains_key(&place.path) {
            let sum = open.values().fold(0u64, |sum, file| sum.saturating_add(file.size));
            let file = place.open(folder, sum, limits)?;
            open.insert(place.path.clone(), file);
        }
        let file = open.get_mut(&place.path).expect("inserted above when absent");
        place.check_sha1(folder, file)?;
        let (start, end) = place.range(file.size, expected_bytes)?;
        match &file.content {
            Content::Held(bytes, _) => Ok(bytes.slice(start..end)),
            Content::Unmapped(file) => {
                read_range(file, place.offset, expected_bytes).map_err(|source| place.io("read", folder, source))
            }
        }
    }
}

/// Where a tensor says its data is.
#[derive(Debug)]
struct ExternalPlace<'a> {
    tensor: &'a str,
    location: &'a str,
    /// `location` with its `.` components dropped.
    path: PathBuf,
    offset: u64,
    length: Option<u64>,
    sha1: Option<[u8; 20]>,
}

impl<'a> ExternalPlace<'a> {
    fn parse(proto: &'a TensorProto) -> Result<ExternalPlace<'a>, ReadError> {
        let (mut location, mut offset, mut length, mut checksum) = (None, None, None, None);
        let fault = |location: Option<&str>, problem: String| ReadError::External {
            tensor: Quoted::new(&proto.name),
            location: Quoted::new(location.unwrap_or_default()),
            problem,
        };
        for entry in &proto.external_data {
            let slot = match entry.key.as_str() {
                "location" => &mut location,
                "offset" => &mut offset,
                "length" => &mut length,
                "checksum" => &mut checksum,
                key => {
                    let expected = "expected location, offset, length or checksum";
                    return Err(fault(location, format!("unknown key {}, {expected}", Quoted::new(key))));
                }
            };
            if slot.replace(entry.value.as_str()).is_some() {
                return Err(fault(location, format!("key '{}' is given twice", entry.key)));
            }
        }
        let number = |key: &str, text: Option<&str>| match text.map(parse_decimal) {
            None => Ok(None),
            Some(Some(number)) => Ok(Some(number)),
            Some(None) => {
                let text = Quoted::new(text.unwrap_or_default());
                Err(fault(location, format!("{key} is {text}, expected a decimal number below 2^64")))
            }
        };
        let sha1 = match checksum.map(parse_sha1) {
            None => None,
            Some(Some(sha1)) => Some(sha1),
            Some(None) => return Err(fault(location, "checksum is not 40 hexadecimal digits of SHA-1".into())),
        };
        Ok(ExternalPlace {
            tensor: &proto.name,
            location: location.unwrap_or_default(),
            path: checked_path(location.unwrap_or_default()).map_err(|problem| fault(location, problem.into()))?,
            offset: number("offset", offset)?.unwrap_or(0),
            length: number("length", length)?,
            sha1,
        })
    }

    fn open(&self, folder: &Folder, bytes_before: u64, limits: &Limits) -> Result<OpenFile, ReadError> {
        let file = folder.open_file(&self.path).map_err(|source| {
            if is_escape(&source) {
                return self.fault(if folder.refuses_links() {
                    "a link, or a path through one; --model-root DIR allows links that stay beneath DIR"
                } else {
                    "a link that leaves the model root"
                });
            }
            self.io("open", folder, source)
        })?;
        let metadata = file.metadata().map_err(|source| self.io("read the size of", folder, source))?;
        if !metadata.is_file() {
            return Err(self.fault("not a regular file"));
        }
        if folder.refuses_links() && link_count(&metadata) != 1 {
            return Err(self.fault("a file with several hard links; --model-root DIR allows them beneath DIR"));
        }
        let sum = bytes_before.saturating_add(metadata.len());
        if sum > limits.external_bytes {
            let place = format!("tensor {}", Quoted::new(self.tensor));
            let (budget, limit) = (Budget::ExternalBytes, limits.external_bytes);
            return Err(ReadError::OverLimit { place, budget, value: sum, limit });
        }
        let content = if is_mappable(&metadata) {
            let (bytes, pages) = hold_file(&file, &metadata).map_err(|source| self.io("map", folder, source))?;
            Content::Held(bytes, pages)
        } else {
            Content::Unmapped(file)
        };
        Ok(OpenFile { content, size: metadata.len(), sha1: None })
    }

    /// Compares the file with the checksum. An unmapped file is read whole first, so that the bytes that were
    /// checked are the bytes that are used.
    fn check_sha1(&self, folder: &Folder, file: &mut OpenFile) -> Result<(), ReadError> {
        let Some(expected) = self.sha1 else { return Ok(()) };
        if let Content::Unmapped(unmapped) = &file.content {
            let size = usize::try_from(file.size).unwrap_or(usize::MAX);
            let bytes = read_range(unmapped, 0, size).map_err(|source| self.io("read", folder, source))?;
            file.content = Content::Held(bytes, FilePages::default());
        }
        let Content::Held(bytes, pages) = &file.content else {
            return Ok(());
        };
        let hash = || {
            let sha1 = Sha1::digest(bytes).into();
            pages.release(bytes);
            sha1
        };
        let actual = *file.sha1.get_or_insert_with(hash);
        if actual != expected {
            return Err(self.fault("its SHA-1 differs from the checksum in the model"));
        }
        Ok(())
    }

    /// The range of the file that is the tensor, as `start..end`.
    fn range(&self, file_bytes: u64, expected_bytes: usize) -> Result<(usize, usize), ReadError> {
        let length = match self.length {
            Some(length) => length,
            None => file_bytes.saturating_sub(self.offset),
        };
        let end = self.offset.checked_add(length).filter(|&end| end <= file_bytes);
        let bounds = end.and_then(|end| Some((usize::try_from(self.offset).ok()?, usize::try_from(end).ok()?)));
        let Some((start, end)) = bounds else {
            let offset = self.offset;
            return Err(self.fault(format!("{length} bytes at offset {offset}, but the file has {file_bytes} bytes")));
        };
        if end.saturating_sub(start) != expected_bytes {
            return Err(self.fault(format!("{length} bytes, expected {expected_bytes} for the tensor's type and dims")));
        }
        Ok((start, end))
    }

    fn fault(&self, problem: impl Into<String>) -> ReadError {
        let (tensor, location) = (Quoted::new(self.tensor), Quoted::new(self.location));
        ReadError::External { tensor, location, problem: problem.into() }
    }

    fn io(&self, action: &str, folder: &Folder, source: io::Error) -> ReadError {
        let action = format!("{action} the data of tensor {} in", Quoted::new(self.tensor));
        ReadError::Io { action, path: folder.display_path(&self.path), source }
    }
}

/// A relative path made of plain names only, or what is wrong with it.
fn checked_path(location: &str) -> Result<PathBuf, &'static str> {
    if location.is_empty() {
        return Err("location is missing");
    }
    if location.contains(['\0', '\\']) {
        return Err("location holds a NUL or a backslash, expected names separated by '/'");
    }
    if location.starts_with('/') {
        return Err("location is absolute, expected a path relative to the model's folder");
    }
    let head = location.split('/').next().unwrap_or_default();
    if head.contains(':') {
        return Err("location starts with a drive or scheme, expected a path relative to the model's folder");
    }
    let mut path = PathBuf::new();
    for component in location.split('/') {
        match component {
            "" => return Err("location has an empty component"),
            ".." => return Err("location has a '..' component, expected a path inside the model's folder"),
            "." => {}
            name => path.push(Path::new(name)),
        }
    }
    if path.as_os_str().is_empty() {
        return Err("location names a folder, expected a file");
    }
    Ok(path)
}

/// Digits only: `str::parse` alone would take a leading plus sign.
fn parse_decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn parse_sha1(text: &str) -> Option<[u8; 20]> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect();
    (digits.len() == 40).then(|| bytes.try_into().ok()).flatten()
}

#[cfg(unix)]
fn link_count(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

#[cfg(not(unix))]
fn link_count(_metadata: &Metadata) -> u64 {
    1
}
