//! Program files on disk: the Program itself, and beside it a folder with the constants it names.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use precast_program::file::MAGIC;
use precast_program::{ArtifactStore, Device, LoadedProgram, Program, decode, encode};
use precast_tensor::Digest;

use crate::error::Error;
use crate::folder_store::FolderStore;

/// The folder with the constants of a Program file.
fn constants_folder(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".constants");
    path.with_file_name(name)
}

/// Writes a Program and its constants. Readers see the old file or the new one, never a part.
pub fn save_program(path: &Path, program: &Program, store: &dyn ArtifactStore) -> Result<(), Error> {
    refuse_special_file(path)?;
    let folder = constants_folder(path);
    std::fs::create_dir_all(&folder).map_err(io("create", &folder))?;
    let target = FolderStore::new(&folder);
    for constant in &program.constants {
        let digest: Digest = constant
            .digest
            .parse()
            .map_err(|_| Error::Request(format!("the Program names the digest '{}'", constant.digest)))?;
        target.put(&store.get(&digest)?)?;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(io("write", path))?;
    file.write_all(&encode(program)).map_err(io("write", path))?;
    file.as_file().sync_all().map_err(io("write", path))?;
    file.persist(path).map_err(|error| io("write", path)(error.error))?;
    Ok(())
}

/// Moves a Program file and its constants to another place of the same file system. The Program appears last, so
/// readers of the new place see all of it or nothing.
pub fn move_program(from: &Path, to: &Path) -> Result<(), Error> {
    refuse_special_file(to)?;
    let (source_folder, folder) = (constants_folder(from), constants_folder(to));
    std::fs::create_dir_all(&folder).map_err(io("create", &folder))?;
    for entry in std::fs::read_dir(&source_folder).map_err(io("read", &source_folder))? {
        let entry = entry.map_err(io("read", &source_folder))?;
        let target = folder.join(entry.file_name());
        std::fs::rename(entry.path(), &target).map_err(io("write", &target))?;
    }
    std::fs::rename(from, to).map_err(io("write", to))
}

/// Renaming over a device or a pipe would put a plain file in its place.
fn refuse_special_file(path: &Path) -> Result<(), Error> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let source = std::io::Error::other("it exists and is not a plain file");
            Err(io("write", path)(source))
        }
        _ => Ok(()),
    }
}

/// Whether a file starts as Program files do.
pub fn is_program_file(path: &Path) -> Result<bool, Error> {
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(io("read", path))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(io("read", path))?;
    Ok(start == MAGIC)
}

/// Reads a Program without its constants.
pub fn read_program(path: &Path) -> Result<Program, Error> {
    let bytes = std::fs::read(path).map_err(io("read", path))?;
    decode(&bytes).map_err(|source| Error::ProgramFile { path: path.display().to_string(), source })
}

/// Reads a Program and loads it on a device.
pub fn load_program(path: &Path, device: &dyn Device) -> Result<Arc<dyn LoadedProgram>, Error> {
    Ok(device.load(&Arc::new(read_program(path)?), &FolderStore::new(&constants_folder(path)))?)
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |source| Error::Io { action, path, source }
}
