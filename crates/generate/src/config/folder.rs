//! A model folder. Every file that a configuration names lies inside it: names are relative, never go up, and a link that
//! leads out is refused.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes that a text file of a folder may have; tokenizers of large vocabularies take tens of megabytes.
const TEXT_BYTES_MAX: u64 = 256 << 20;
/// Files of one beginning that a folder may collect.
const NUMBERED_MAX: usize = 10_000;

/// A model folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// Why a file of a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It cannot be read.
    #[error("cannot read '{path}': {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It cannot be written.
    #[error("cannot write '{path}': {source}")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its name is not one of a file inside the folder.
    #[error("'{path}' {reason}; files of a model folder are named relative to it and lie inside it")]
    Outside {
        /// The name.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no configuration, and not one model that could do without.
    #[error("'{root}' has no genai_config.json, and {} ONNX files instead of one: {}", .models.len(), .models.join(", "))]
    NoConfig {
        /// The folder.
        root: String,
        /// ONNX files in it.
        models: Vec<String>,
    },
    /// It is larger than any of its kind.
    #[error("'{path}' has {bytes} bytes; at most {TEXT_BYTES_MAX} are read")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
    },
}

impl Folder {
    /// A folder that exists.
    pub fn open(root: &Path) -> Result<Folder, FolderError> {
        let io = |source| FolderError::Io { path: root.display().to_string(), source };
        let canonical = root.canonicalize().map_err(io)?;
        if !canonical.is_dir() {
            return Err(io(std::io::ErrorKind::NotADirectory.into()));
        }
        Ok(Folder { root: canonical })
    }

    /// Where it lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether there is something of this name inside the folder. A link that leads out or nowhere is refused, not missing.
    pub fn has(&self, name: &str) -> Result<bool, FolderError> {
        match fs::symlink_metadata(self.root.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            _ => self.path(name).map(|_| true),
        }
    }

    /// A new file inside the folder: the first of `beginning_0.json`, `beginning_1.json` and so on that is not there.
    pub fn create_numbered(&self, beginning: &str) -> Result<(PathBuf, fs::File), FolderError> {
        let path = Path::new(beginning);
        let stem = path.file_name().and_then(|name| name.to_str());
        let parent = path.parent().and_then(Path::to_str).filter(|parent| !parent.is_empty()).unwrap_or(".");
        let (Some(stem), true) = (stem, path.is_relative()) else {
            return Err(FolderError::Outside { path: beginning.to_string(), reason: "is no name of a file" });
        };
        let parent = self.path(parent)?;
        for number in 0..NUMBERED_MAX {
            let path = parent.join(format!("{stem}_{number}.json"));
            // Never opens what is there, so that no link is followed.
            match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(FolderError::Write { path: path.display().to_string(), source }),
            }
        }
        let source = std::io::ErrorKind::AlreadyExists.into();
        Err(FolderError::Write { path: parent.join(stem).display().to_string(), source })
    }

    /// The path of a file or folder inside this one.
    pub fn path(&self, name: &str) -> Result<PathBuf, FolderError> {
        let outside = |reason| FolderError::Outside { path: name.to_string(), reason };
        let path = Path::new(name);
        for component in path.components() {
            match component {
                Component::Normal(_) | Component::CurDir => {}
                Component::ParentDir => return Err(outside("contains '..'")),
                Component::RootDir | Component::Prefix(_) => return Err(outside("is absolute")),
            }
        }
        if name.is_empty() {
            return Err(outside("is empty"));
        }
        let io = |source| FolderError::Io { path: self.root.join(name).display().to_string(), source };
        let found = self.root.join(path).canonicalize().map_err(io)?;
        if !found.starts_with(&self.root) {
            return Err(outside("is a link that leads out of the folder"));
        }
        Ok(found)
    }

    /// The folder of this name inside this one.
    pub fn inside(&self, name: &str) -> Result<Folder, FolderError> {
        Folder::open(&self.path(name)?)
    }

    /// The text of a file.
    pub fn read_text(&self, name: &str) -> Result<String, FolderError> {
        let path = self.path(name)?;
        let io = |source| FolderError::Io { path: path.display().to_string(), source };
        let bytes = fs::metadata(&path).map_err(io)?.len();
        if bytes > TEXT_BYTES_MAX {
            return Err(FolderError::TooLarge { path: path.display().to_string(), bytes });
        }
        fs::read_to_string(&path).map_err(io)
    }
}
