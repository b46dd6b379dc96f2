//! Constants as files of a folder, named by digest. A file appears whole or not at all: it is written beside its place
//! and renamed into it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use precast_program::ArtifactStore;
use precast_program::store::StoreError;
use precast_tensor::{DType, Digest, Tensor, map_file};

/// First bytes of a constant file: element type and shape follow as text up to a newline, then the bytes.
const MAGIC: &str = "precast-constant";

/// A store in a folder.
pub struct FolderStore {
    folder: PathBuf,
}

impl FolderStore {
    /// A store in a folder, which must exist.
    pub fn new(folder: &Path) -> FolderStore {
        FolderStore { folder: folder.to_path_buf() }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.to_string())
    }
}

impl ArtifactStore for FolderStore {
    fn put(&self, tensor: &Tensor) -> Result<Digest, StoreError> {
        let digest = tensor.digest();
        let path = self.path(&digest);
        if path.exists() {
            return Ok(digest);
        }
        let shape: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
        let header = format!("{MAGIC} {} {}\n", tensor.dtype().name(), shape.join(","));
        let io = |source: std::io::Error| StoreError::Io { digest: digest.to_string(), source };
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(io)?;
        std::io::Write::write_all(&mut file, header.as_bytes()).map_err(io)?;
        std::io::Write::write_all(&mut file, tensor.as_bytes()).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        file.persist(&path).map_err(|error| io(error.error))?;
        Ok(digest)
    }

    fn get(&self, digest: &Digest) -> Result<Tensor, StoreError> {
        let name = digest.to_string();
        let (bytes, pages) = map_file(self.path(digest)).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => StoreError::Missing(name.clone()),
            _ => StoreError::Io { digest: name.clone(), source },
        })?;
        let tensor = decode(&bytes).ok_or_else(|| StoreError::Corrupt(name.clone()))?;
        let tensor = tensor.in_pages(&pages);
        if tensor.digest() != *digest {
            return Err(StoreError::Corrupt(name));
        }
        Ok(tensor)
    }
}

fn decode(bytes: &Bytes) -> Option<Tensor> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let header = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut words = header.split(' ');
    if words.next()? != MAGIC {
        return None;
    }
    let dtype = DType::from_name(words.next()?)?;
    let shape = words.next()?;
    let shape: Vec<usize> = if shape.is_empty() {
        Vec::new()
    } else {
        shape.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?
    };
    Tensor::new(dtype, shape, bytes.slice(end + 1..)).ok()
}
