//! The vendors' run-time compilers on a machine without a GPU: NVRTC from its wheel, in an environment of our own; HIPRTC from
//! the system's packages. Tests find them as they find installed ones, and leave out what is not there.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use precast_driver::{Compiler, Vendor};

use crate::venv;

/// The wheel with NVRTC.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.4.92\n";
/// Where it lies among the packages of an environment, and what the loader finds it by.
const NVRTC_FOLDER: &str = "nvidia/cu13/lib";
const NVRTC_LIBRARY: &str = "libnvrtc.so.13";
/// Debian's packages with HIPRTC and the device libraries that it links kernels with.
const HIP_PACKAGES: [&str; 1] = ["libamdhip64-dev"];

/// The folder of NVRTC, where the system has none of its own; fetched when it is first needed.
pub fn nvrtc_folder() -> Result<Option<PathBuf>> {
    if Compiler::open(Vendor::Cuda).is_ok() {
        return Ok(None);
    }
    let python = venv::python_with("venv-nvrtc", NVRTC)?;
    let packages =
        Command::new(python).args(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).output()?;
    let folder = PathBuf::from(String::from_utf8_lossy(&packages.stdout).trim()).join(NVRTC_FOLDER);
    ensure!(folder.join(NVRTC_LIBRARY).exists(), "no {NVRTC_LIBRARY} in '{}'", folder.display());
    Ok(Some(folder))
}

/// Installs HIPRTC by the system's package manager, unless it is there.
pub fn install_hiprtc() -> Result<()> {
    if Compiler::open(Vendor::Hip).is_ok() {
        return Ok(());
    }
    eprintln!("installing {}", HIP_PACKAGES.join(" "));
    venv::call(Command::new("apt-get").args(["update", "--quiet"]))?;
    let install = ["install", "--yes", "--quiet", "--no-install-recommends"];
    venv::call(Command::new("apt-get").args(install).args(HIP_PACKAGES).env("DEBIAN_FRONTEND", "noninteractive"))
}
