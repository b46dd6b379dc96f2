//! `cargo xtask python` and `cargo xtask ray`: the Python package, built as a wheel, installed where a user would install
//! it, and tested there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::built::{built_library, cargo_build};
use crate::older_systems::{OLDEST, name_zig, python_with_zig};
use crate::paths;
use crate::venv::{call, python_with};

/// Everything that the tests of the package use.
const REQUIREMENTS: &str = include_str!("../python/requirements_python.txt");
/// What the tests on a cluster use.
const RAY_REQUIREMENTS: &str = include_str!("../python/requirements_ray.txt");
/// A first script, as somebody who comes from onnxruntime writes it.
const TUTORIAL: &str = include_str!("../python/tutorial.py");

/// Arguments of `cargo xtask python`.
#[derive(Args)]
pub struct PythonArguments {
    /// Build the wheel as it is given to others, for systems with an older C library than this one.
    #[arg(long)]
    manylinux: bool,
    /// Leave out what is not about the wheel itself: types and the clean environment.
    #[arg(long)]
    quick: bool,
    /// Arguments of pytest.
    #[arg(last = true)]
    pytest: Vec<String>,
}

/// Arguments of `cargo xtask ray`.
#[derive(Args)]
pub struct RayArguments {
    /// Arguments of pytest.
    #[arg(last = true)]
    pytest: Vec<String>,
}

/// Builds the wheel and runs the tests of the package.
pub fn run(arguments: &PythonArguments) -> Result<()> {
    let wheel = if arguments.manylinux { build_wheel_for_older_systems()? } else { build_wheel()? };
    if !arguments.quick {
        run_tutorial(&wheel)?;
    }
    let python = installed(&wheel)?;
    let package = package();
    if !arguments.quick {
        check_types(&python, &package)?;
    }
    show(Command::new(&python).args(["-m", "pytest", "-q", "tests"]).args(&arguments.pytest).current_dir(&package))?;
    test_on_fake_gpu(&python, &package)
}

/// The tests of memory on a GPU, on a driver that needs none.
fn test_on_fake_gpu(python: &Path, package: &Path) -> Result<()> {
    eprintln!("tensors on a GPU, with the fake driver");
    let mut build = cargo_build(&["--package", "precast-fake-driver"]);
    let library = built_library(&mut build, "libprecast_fake_driver.so")?;
    let folder = paths::cache().join("fake-driver");
    fs::create_dir_all(&folder)?;
    // One file under both names, so that the loader opens one library, which is its own compiler.
    for name in ["libcuda.so.1", "libnvrtc.so.13"] {
        let link = folder.join(name);
        if link.symlink_metadata().is_ok() {
            fs::remove_file(&link)?;
        }
        std::os::unix::fs::symlink(&library, &link)?;
    }
    let tests = ["-m", "pytest", "-q", "tests/test_gpu_memory.py"];
    // The fake driver has the host's compiler build kernels, whose texts name one header.
    let headers = paths::root().join("crates").join("gpu").join("src").join("text");
    let mut command = Command::new(python);
    show(command.args(tests).env("LD_LIBRARY_PATH", &folder).env("CPATH", headers).current_dir(package))
}

/// Runs the tests on a cluster of one machine.
pub fn run_ray(arguments: &RayArguments) -> Result<()> {
    let python = python_with("venv-ray", RAY_REQUIREMENTS)?;
    install(&python, &build_wheel()?)?;
    let tests = ["-m", "pytest", "-q", "-p", "no:warnings", "tests_ray"];
    let mut command = Command::new(&python);
    command.args(tests).args(&arguments.pytest).current_dir(package());
    // Ray would tell its makers that it was used.
    show(command.env("RAY_USAGE_STATS_ENABLED", "0"))
}

/// The Python of the tests' environment, with the package built and installed.
pub fn python_with_package() -> Result<PathBuf> {
    installed(&build_wheel()?)
}

/// The folder of the package.
fn package() -> PathBuf {
    paths::root().join("crates").join("python")
}

/// Builds the wheel in the profile that examples and the README's first command are built in.
fn build_wheel() -> Result<PathBuf> {
    let python = python_with("venv-python", REQUIREMENTS)?;
    build_wheel_with(&python, &[], "wheels")
}

/// Builds the wheel against the C library of older systems; maturin looks for symbols that they have not.
fn build_wheel_for_older_systems() -> Result<PathBuf> {
    let python = python_with_zig()?;
    let wheel = build_wheel_with(&python, &["--zig", "--compatibility", OLDEST], "wheels-manylinux")?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    ensure!(name.contains(OLDEST), "the wheel is '{name}'; one for {OLDEST} was expected");
    Ok(wheel)
}

/// Has a Python's maturin build the wheel into a folder that has nothing else.
fn build_wheel_with(python: &Path, more: &[&str], folder: &str) -> Result<PathBuf> {
    let folder = paths::cache().join(folder);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    eprintln!("building the wheel");
    let build = ["-m", "maturin", "build", "--quiet", "--release", "--out"];
    let manifest = package().join("Cargo.toml");
    let mut command = Command::new(python);
    command.args(build).arg(&folder).args(more).arg("--manifest-path").arg(manifest);
    // Used where zig is asked for.
    call(name_zig(&mut command, python))?;
    let mut wheels = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    wheels.retain(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.pop().with_context(|| format!("maturin left no wheel in '{}'", folder.display()))
}

fn installed(wheel: &Path) -> Result<PathBuf> {
    let python = python_with("venv-python", REQUIREMENTS)?;
    install(&python, wheel)?;
    Ok(python)
}

fn install(python: &Path, wheel: &Path) -> Result<()> {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"];
    call(Command::new(python).args(install).arg(wheel))
}

/// A new environment, the wheel and numpy, and the script.
fn run_tutorial(wheel: &Path) -> Result<()> {
    let folder = paths::cache().join("venv-clean");
    eprintln!("a clean environment: pip install {}, then a script", wheel.display());
    call(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = folder.join("bin").join("python");
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    call(Command::new(&python).args(install).arg(wheel).arg("numpy"))?;
    let model = paths::models().join("recsys190").join("recsys190.onnx");
    show(Command::new(&python).args(["-c", TUTORIAL]).arg(model))
}

/// The stubs against the built module, and the package against itself.
fn check_types(python: &Path, package: &Path) -> Result<()> {
    let stubtest = ["-m", "mypy.stubtest", "precast._precast", "--ignore-missing-stub", "--concise"];
    // Not in the folder of the package, whose sources have no native module beside them.
    let tests = package.join("tests");
    show(Command::new(python).args(stubtest).current_dir(&tests))?;
    let mypy = ["-m", "mypy", "--package", "precast", "--config-file"];
    show(Command::new(python).args(mypy).arg(package.join("pyproject.toml")).current_dir(&tests))
}

/// Runs a child process to its end and shows what it says.
fn show(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
