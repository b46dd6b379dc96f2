//! The identity of the compiler: a digest of the sources of every room that decides what code a Program has. Two builds of
//! the same sources are the same compiler on every machine; one changed line is another, and its cache entries are not
//! those of the old one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Rooms whose sources decide a Program. Doors, sessions and the cache only carry it.
const ROOMS: &[&str] = &["tensor", "ir", "onnx", "passes", "program", "kernels", "cpu", "gpu"];

fn main() -> io::Result<()> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for room in ROOMS {
        let sources = crates.join(room).join("src");
        println!("cargo::rerun-if-changed={}", sources.display());
        for file in files_below(&sources)? {
            // Names and lengths too, so that text cannot move from one file to the next unseen.
            let name = file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().replace('\\', "/");
            let text = fs::read(&file)?;
            hasher.update(format!("{name} {}\n", text.len()).as_bytes());
            hasher.update(&text);
        }
    }
    let digest = hasher.finalize().to_hex();
    println!("cargo::rustc-env=PRECAST_SOURCES={}", &digest[..16]);
    Ok(())
}

/// Every file below a folder, in order of its path; none where the folder is not there.
fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}
