//! Folders of the tests with other sizes, opened on the fake GPU and on the CPU.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use precast::device_name::{DeviceKind, DeviceName};
use precast::{GivenDevice, TextFolder, TextOptions, open_text_model, open_text_model_on};
use precast_driver::Vendor;
use precast_gpu::{CaptureLimits, GpuDevice, GpuTarget};
use precast_passes::FloatPrecision;

use crate::rig::Rig;

/// The folder of a decoder of the tests.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data").join(name)
}

/// A folder with other sizes: few of them, so that there are few kernels to compile for the host.
pub fn folder_with(data: &Path, tuning: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("precast.json"), tuning).unwrap();
    folder
}

/// Names of the folders of all decoders of the tests, in order.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(data("")).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().join("genai_config.json").exists());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Opens a folder on a device, for steps of so many rows.
pub fn open(target: GpuTarget, device: GpuDevice, kind: DeviceKind, folder: &Path, rows_max: usize) -> TextFolder {
    let name = DeviceName { kind, number: 0 };
    let device = GivenDevice { name, target: Arc::new(target), device: Arc::new(device) };
    let options = TextOptions { rows_max, ..TextOptions::default() };
    open_text_model_on(folder, &options, device).unwrap()
}

/// A fake CUDA whose captures are not limited.
pub fn cuda() -> Rig {
    let limits = CaptureLimits { max_graphs: 100, ..Default::default() };
    Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, limits)
}

/// Opens a folder on the device of a rig.
pub fn open_on(rig: &mut Rig, folder: &Path, rows_max: usize) -> TextFolder {
    let Rig { target, .. } = cuda();
    let target = std::mem::replace(&mut rig.target, target);
    open(target, rig.devices.remove(0), DeviceKind::Cuda, folder, rows_max)
}

/// The folder on the CPU and on the fake GPU.
pub fn both(folder: &Path, rows_max: usize) -> [TextFolder; 2] {
    let Rig { mut devices, target, .. } = cuda();
    let on_cpu = open_text_model(folder, &TextOptions { rows_max, ..TextOptions::default() }).unwrap();
    [on_cpu, open(target, devices.remove(0), DeviceKind::Cuda, folder, rows_max)]
}
