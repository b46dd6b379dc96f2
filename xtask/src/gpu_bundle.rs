//! One archive with everything that a machine with a GPU needs to say whether the project works there: release binaries, the op
//! suite, skeletons, small models, ONNX cases, and one script. Nothing is built or fetched over there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::gpu_suite::SUITES;
use crate::manifest::{self, ModelEntry, Source};
use crate::{conformance, fetch, paths, venv};

/// Largest archive.
const BYTES_MAX: u64 = 60 << 20;
/// Trained models that go along: small ones of different kinds, and one with a bar of its own.
const MODELS: [&str; 5] = ["magika", "ppocr_cls", "silero_vad", "swift_f0", "yolov8n"];
/// Packages and the programs or libraries of them that go along.
const RELEASE: [(&str, &str); 3] =
    [("precast-cli", "precast"), ("xtask", "xtask"), ("precast-hip-on-cuda", "libprecast_hip_on_cuda.so")];
/// Name of the folder inside the archive.
const FOLDER: &str = "precast-gpu";
/// Models and golden cases of text generation.
const TEXT_DATA: &str = "crates/generate/tests/data";
/// What runs there.
const SCRIPT: &str = include_str!("../gpu_bundle/run.sh");

/// Arguments of `cargo xtask gpu-bundle`.
#[derive(Args)]
pub struct GpuBundleArguments {
    /// Where the archive goes.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Builds, gathers and packs.
pub fn run(arguments: &GpuBundleArguments) -> Result<()> {
    let out = arguments.out.clone().unwrap_or_else(|| paths::root().join("target").join("gpu-bundle.tar.gz"));
    let work = tempfile::tempdir_in(paths::root().join("target"))?;
    let folder = work.path().join(FOLDER);
    fs::create_dir(&folder)?;
    add_programs(&folder)?;
    add_models(&folder)?;
    let cases = conformance::cases_folder()?;
    let name = cases.file_name().context("the folder of the cases has a name")?;
    copy_tree(&cases, &folder.join("target/xtask").join(name))?;
    copy_tree(&paths::root().join(TEXT_DATA), &folder.join(TEXT_DATA))?;
    copy(&paths::root().join("xtask/conformance_known.txt"), &folder.join("xtask/conformance_known.txt"))?;
    fs::write(folder.join(paths::BUNDLE_MARK), commit()? + "\n")?;
    write_script(&folder.join("run.sh"))?;
    pack(&folder, &out)?;
    let bytes = fs::metadata(&out)?.len();
    eprintln!("{}: {:.1} MiB", out.display(), bytes as f64 / f64::from(1 << 20));
    ensure!(bytes <= BYTES_MAX, "the archive has {bytes} bytes, more than {BYTES_MAX}");
    Ok(())
}

/// Builds programs and libraries and puts them there without their symbols.
fn add_programs(folder: &Path) -> Result<()> {
    let mut build = vec!["build", "--release"];
    build.extend(RELEASE.iter().flat_map(|(package, _)| ["--package", package]));
    let built = cargo(&build)?;
    for (_, file) in RELEASE {
        strip(find(&built, file)?, &folder.join(paths::BUNDLE_PROGRAMS).join(file))?;
    }
    for (package, suite) in SUITES {
        let built = cargo(&["test", "--no-run", "--package", package, "--test", suite])?;
        let program = built.iter().find(|path| stem_of(path) == suite).with_context(|| format!("no '{suite}'"))?;
        strip(program, &folder.join("tests").join(suite))?;
    }
    Ok(())
}

/// The name of a program of the tests without the digest that Cargo adds.
fn stem_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.rsplit_once('-').map_or(name, |(stem, _)| stem)
}

fn find<'a>(built: &'a [PathBuf], name: &str) -> Result<&'a PathBuf> {
    let found = built.iter().find(|path| path.file_name().is_some_and(|file| file == name));
    found.with_context(|| format!("Cargo built no '{name}'"))
}

/// Runs Cargo; the files that it built or had.
fn cargo(arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("cargo");
    command.args(arguments).args(["--quiet", "--message-format=json"]).current_dir(paths::root());
    let output = command.stderr(std::process::Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| {
        let files = message["filenames"].as_array().cloned().unwrap_or_default();
        files.into_iter().chain([message["executable"].clone()])
    });
    Ok(files.filter_map(|file| file.as_str().map(PathBuf::from)).collect())
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    venv::call(Command::new("strip").arg("-o").arg(to).arg(from))
}

/// Manifests and skeletons as they are, and the trained models where fetched ones are kept.
fn add_models(folder: &Path) -> Result<()> {
    copy_tree(&paths::models(), &folder.join("models"))?;
    let models = manifest::read()?;
    for name in MODELS {
        let model: &ModelEntry = models.iter().find(|model| model.name == name).context("no model of this name")?;
        ensure!(matches!(model.source, Source::Package(_)), "'{name}' is part of models/ already");
        copy(&fetch::model_file(model)?, &folder.join("target/xtask/models").join(format!("{name}.onnx")))?;
    }
    Ok(())
}

/// The commit of the checkout; a bundle of something else says so.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").args(arguments).current_dir(paths::root()).output()?;
        ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(git(&["rev-parse", "HEAD"])? + if is_changed { " with changes" } else { "" })
}

fn write_script(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, SCRIPT)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

fn pack(folder: &Path, out: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(File::create(out)?, Compression::best()));
    archive.follow_symlinks(false);
    archive.append_dir_all(FOLDER, folder)?;
    archive.into_inner()?.finish()?;
    Ok(())
}

fn create_parent(path: &Path) -> Result<()> {
    Ok(fs::create_dir_all(path.parent().context("a file lies in a folder")?)?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy '{}'", from.display()))?;
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read '{}'", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { bail!("'{}' has no name", path.display()) };
        if path.is_dir() { copy_tree(&path, &to.join(name))? } else { copy(&path, &to.join(name))? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_its_name_without_the_digest() {
        assert_eq!(stem_of(Path::new("/target/debug/deps/real_device-0f3a")), "real_device");
        assert_eq!(stem_of(Path::new("/target/release/xtask")), "xtask");
    }
}
