//! Constants by digest: mapped from files of their own or from packs (`shelf.rs`), verified when first loaded, and in
//! memory once however many Programs name them. What a compile puts stays in memory until a Program that names it is
//! published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use precast_program::ArtifactStore;
use precast_program::store::StoreError;
use precast_tensor::{DType, Digest, FilePages, Tensor};

use crate::disk::{self, Answer, Call, Disk, DiskError};
use crate::layout::Layout;
use crate::miss::{Event, Miss};
use crate::options::EventSink;
use crate::publish::{self, Existing};

/// First bytes of a constant's file.
pub const MAGIC: [u8; 8] = *b"PRECASTW";
const FORMAT: u32 = 1;
/// The header is a page, so that mapped elements are aligned for every type and instruction.
const HEADER_BYTES: usize = 4096;
const DIGEST_BYTES: usize = 32;
/// Magic, format and length of the description.
const DESCRIPTION_AT: usize = 8 + 4 + 4;

/// Constants on disk and in memory. Clones share both.
#[derive(Clone)]
pub struct WeightStore(Arc<Inner>);

struct Inner {
    files: Option<Files>,
    residents: Mutex<BTreeMap<Digest, Resident>>,
    /// Held while constants are written.
    writing: Mutex<()>,
    events: EventSink,
}

/// Where constants lie on disk, and what may be done there.
pub(crate) struct Files {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) layout: Layout,
    /// On network file systems a file may change under a mapping, so it is read.
    pub(crate) is_network: bool,
    pub(crate) is_writable: bool,
}

impl Files {
    /// The bytes of a file and the pages they take, none where they were read into memory.
    pub(crate) fn open(&self, path: &Path) -> Answer<(Bytes, FilePages)> {
        disk::open_fresh(|| match self.is_network {
            true => self.disk.read(path).map(|bytes| (bytes, FilePages::default())),
            false => self.disk.map(path),
        })
    }
}

/// Which constants that no Program in memory names are let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// All.
    AllGo,
    /// Those that can be read from their files again.
    MappedGo,
}

/// What becomes of the pages of a mapped file that verifying it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// They stay: somebody is about to read them.
    Stay,
    /// They go while the rest is verified.
    Go,
}

#[derive(Clone)]
struct Resident {
    tensor: Tensor,
    /// Whether the bytes are those of the file, so that keeping them costs no memory of our own.
    is_from_file: bool,
}

impl WeightStore {
    pub(crate) fn new(files: Option<Files>, events: EventSink) -> WeightStore {
        WeightStore(Arc::new(Inner { files, residents: Mutex::default(), writing: Mutex::default(), events }))
    }

    /// Constants in memory or mapped, and their bytes.
    pub fn resident(&self) -> (usize, u64) {
        let residents = self.residents();
        let bytes = residents.values().map(|resident| resident.tensor.as_bytes().len() as u64).sum();
        (residents.len(), bytes)
    }

    /// The constant, from memory or from a file of its own, verified.
    pub(crate) fn load(&self, digest: &Digest) -> Result<Tensor, Miss> {
        if let Some(resident) = self.residents().get(digest) {
            return Ok(resident.tensor.clone());
        }
        let tensor = self.read(digest, Pages::Stay)?;
        Ok(self.keep(*digest, Resident { tensor, is_from_file: true }))
    }

    /// Takes the bytes of a constant's file that came from elsewhere, verified.
    pub(crate) fn adopt(&self, digest: &Digest, file: Bytes) -> Result<Tensor, Miss> {
        let tensor = parse(digest, file, &FilePages::default())?;
        Ok(self.keep(*digest, Resident { tensor, is_from_file: false }))
    }

    /// Makes sure that the constant is on disk in a file of its own; gives the bytes that this added. The caller holds
    /// the lock of writers.
    pub(crate) fn publish_file(&self, digest: &Digest) -> Answer<u64> {
        let Some(files) = &self.0.files else { return Ok(0) };
        let path = files.layout.weight(digest);
        let resident = self.residents().get(digest).cloned();
        let mut added = 0;
        // Twice: a file that turns out to be damaged is moved away and written again.
        for _ in 0..2 {
            if files.disk.stat(&path).is_err() {
                let Some(resident) = &resident else {
                    return Err(DiskError::new(Call::Stat, &path, std::io::ErrorKind::NotFound.into()));
                };
                let header = header(&resident.tensor, &path)?;
                let parts = std::iter::once(&header[..]).chain(resident.tensor.read_parts(publish::PART_BYTES));
                publish::publish(&*files.disk, &files.layout, &path, parts, Existing::Keeps)?;
                added += (header.len() + resident.tensor.as_bytes().len()) as u64;
            }
            let is_done = resident.as_ref().is_none_or(|resident| resident.is_from_file) || files.is_network;
            if is_done {
                break;
            }
            // From here on the mapped file takes the place of the copy in memory.
            match self.read(digest, Pages::Go) {
                Ok(tensor) => {
                    self.replace_by_mapped(*digest, tensor);
                    break;
                }
                Err(Miss::Corrupt { .. } | Miss::Absent { .. }) => {}
                // The copy in memory serves as well.
                Err(Miss::Unavailable { call, errno, message }) => {
                    let doing = "mapping a constant";
                    self.tell(&Event::Unavailable { doing, call, errno, message });
                    break;
                }
                Err(Miss::Incompatible { .. }) => break,
            }
        }
        Ok(added)
    }

    /// Lets go of constants that are not among these.
    pub(crate) fn retain(&self, named: &BTreeSet<Digest>, unnamed: Unnamed) {
        let stays = |resident: &Resident| unnamed == Unnamed::MappedGo && !resident.is_from_file;
        self.residents().retain(|digest, resident| named.contains(digest) || stays(resident));
    }

    /// Reads and verifies the file, whether or not the constant is in memory. A damaged one is moved away.
    pub(crate) fn read(&self, digest: &Digest, read_pages: Pages) -> Result<Tensor, Miss> {
        let Some(files) = &self.0.files else { return Err(Miss::absent()) };
        let path = files.layout.weight(digest);
        let (bytes, pages) = files.open(&path)?;
        let parsed = match read_pages {
            Pages::Stay => parse(digest, bytes, &FilePages::default()).map(|tensor| tensor.in_pages(&pages)),
            Pages::Go => parse(digest, bytes, &pages),
        };
        let miss = match parsed {
            Ok(tensor) => return Ok(tensor),
            Err(miss) => miss,
        };
        self.quarantine(&path, &miss);
        Err(miss)
    }

    /// Moves a damaged file away, if that is what the miss says and the mode allows it.
    pub(crate) fn quarantine(&self, path: &Path, miss: &Miss) {
        let Some(files) = self.0.files.as_ref().filter(|files| files.is_writable) else { return };
        if !matches!(miss, Miss::Corrupt { .. }) {
            return;
        }
        match publish::quarantine(&*files.disk, &files.layout, path, miss) {
            Ok(()) => {
                let name = path.strip_prefix(files.layout.root()).unwrap_or(path).display().to_string();
                self.tell(&Event::Quarantined { name, miss: miss.clone() });
            }
            Err(error) => self.tell(&Event::unavailable("quarantining a constant", &error)),
        }
    }

    /// Where constants lie on disk; nowhere if the cache is in memory only.
    pub(crate) fn files(&self) -> Option<&Files> {
        self.0.files.as_ref()
    }

    /// Held by whoever writes constants.
    pub(crate) fn lock_writing(&self) -> MutexGuard<'_, ()> {
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The constant if it is in memory or mapped.
    pub(crate) fn resident_tensor(&self, digest: &Digest) -> Option<Tensor> {
        self.residents().get(digest).map(|resident| resident.tensor.clone())
    }

    /// Whether the constant's bytes are those of a file, or it is not here at all.
    pub(crate) fn is_mapped(&self, digest: &Digest) -> bool {
        self.residents().get(digest).is_none_or(|resident| resident.is_from_file)
    }

    /// Keeps a constant that was mapped from a file; the first of two equal ones stays.
    pub(crate) fn keep_mapped(&self, digest: Digest, tensor: Tensor) -> Tensor {
        self.keep(digest, Resident { tensor, is_from_file: true })
    }

    /// Lets a mapped constant take the place of its copy in memory. Whoever holds the copy goes on with it, so the mapped one is
    /// in memory only once somebody else reads it.
    pub(crate) fn replace_by_mapped(&self, digest: Digest, tensor: Tensor) {
        tensor.release_pages();
        self.residents().insert(digest, Resident { tensor, is_from_file: true });
    }

    pub(crate) fn tell(&self, event: &Event) {
        (self.0.events)(event);
    }

    /// Keeps the first of two equal constants, so that there is one in memory.
    fn keep(&self, digest: Digest, resident: Resident) -> Tensor {
        self.residents().entry(digest).or_insert(resident).tensor.clone()
    }

    fn residents(&self) -> MutexGuard<'_, BTreeMap<Digest, Resident>> {
        self.0.residents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArtifactStore for WeightStore {
    fn put(&self, tensor: &Tensor) -> Result<Digest, StoreError> {
        let digest = tensor.digest();
        self.keep(digest, Resident { tensor: tensor.clone(), is_from_file: false });
        Ok(digest)
    }

    fn get(&self, digest: &Digest) -> Result<Tensor, StoreError> {
        let name = digest.to_string();
        self.load(digest).map_err(|miss| match miss {
            Miss::Absent { .. } => StoreError::Missing(name),
            Miss::Corrupt { .. } | Miss::Incompatible { .. } => StoreError::Corrupt(name),
            Miss::Unavailable { message, .. } => {
                StoreError::Io { digest: name, source: std::io::Error::other(message) }
            }
        })
    }
}

/// The bytes of a constant's file as a header and the elements, without copying the elements.
pub(crate) fn file_parts(digest: &Digest, tensor: &Tensor) -> Result<[Bytes; 2], Miss> {
    let header = header(tensor, Path::new(&Layout::weight_name(digest)))?;
    Ok([Bytes::from(header), tensor.bytes().clone()])
}

/// The page before the elements: what type and shape they have.
fn header(tensor: &Tensor, path: &Path) -> Answer<Vec<u8>> {
    let shape: Vec<u64> = tensor.shape().iter().map(|&size| size as u64).collect();
    let too_long = || DiskError::new(Call::Write, path, std::io::ErrorKind::InvalidInput.into());
    let description = postcard::to_stdvec(&(tensor.dtype().name(), shape)).map_err(|_| too_long())?;
    let digest_at = HEADER_BYTES - DIGEST_BYTES;
    if DESCRIPTION_AT + description.len() > digest_at {
        return Err(too_long());
    }
    let mut page = vec![0; HEADER_BYTES];
    page[..8].copy_from_slice(&MAGIC);
    page[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    page[12..16].copy_from_slice(&(description.len() as u32).to_le_bytes());
    page[DESCRIPTION_AT..DESCRIPTION_AT + description.len()].copy_from_slice(&description);
    let digest = blake3::hash(&page[..digest_at]);
    page[digest_at..].copy_from_slice(digest.as_bytes());
    Ok(page)
}

/// The constant in the bytes of its file. The digest covers type, shape and elements; the header's own digest covers
/// the rest of the page, so every bit counts.
/// The constant that a file holds, verified. Of the file's pages those go that verifying took.
fn parse(digest: &Digest, bytes: Bytes, pages: &FilePages) -> Result<Tensor, Miss> {
    let section = format!("constant {digest}");
    let damaged = |expected: &str, got: String| Miss::corrupt(section.clone(), expected, got);
    if bytes.len() < HEADER_BYTES {
        return Err(damaged("a header", format!("{} bytes", bytes.len())));
    }
    let page = &bytes[..HEADER_BYTES];
    let digest_at = HEADER_BYTES - DIGEST_BYTES;
    if page[..8] != MAGIC
        || page[8..12] != FORMAT.to_le_bytes()
        || blake3::hash(&page[..digest_at]).as_bytes() != &page[digest_at..]
    {
        return Err(damaged("a header that agrees with its digest", "another".to_string()));
    }
    let (dtype, shape): (String, Vec<u64>) =
        postcard::from_bytes(&page[DESCRIPTION_AT..digest_at]).map_err(|error| damaged("a Type", error.to_string()))?;
    let dtype = DType::from_name(&dtype).ok_or_else(|| damaged("an element type", dtype.clone()))?;
    let shape: Result<Vec<usize>, _> = shape.into_iter().map(usize::try_from).collect();
    let shape = shape.map_err(|error| damaged("a shape", error.to_string()))?;
    let elements = bytes.slice(HEADER_BYTES..);
    let tensor = Tensor::new(dtype, shape, elements).map_err(|error| damaged("elements", error.to_string()))?;
    let tensor = tensor.in_pages(pages);
    let got = tensor.digest();
    if got == *digest { Ok(tensor) } else { Err(damaged(&digest.to_string(), got.to_string())) }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
