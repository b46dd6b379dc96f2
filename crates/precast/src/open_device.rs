//! A target and the device that runs its Programs, by the device's name.

use std::sync::Arc;

use precast_cache::ProgramCache;
use precast_cpu::{CpuDevice, CpuTarget};
use precast_driver::{DriverError, Library, Vendor};
use precast_gpu::{GpuDevice, GpuTarget, KernelStore, RuntimeCompiler};
use precast_program::{Device, Target};
use precast_tensor::Digest;

use crate::device_name::{DeviceKind, DeviceName};
use crate::error::Error;
use crate::runner::{Captures, RunnerOptions};

/// Kind of the notes that hold machine code.
const KIND: &str = "kernel";

/// A target and the device that runs its Programs.
pub(crate) struct OpenDevice {
    pub(crate) target: Arc<dyn Target>,
    pub(crate) device: Arc<dyn Device>,
    /// Further devices that the target compiles for.
    pub(crate) more: Vec<Arc<dyn Device>>,
    /// The same two where they are the CPU's, whose tactics can be measured.
    pub(crate) cpu: Option<(Arc<CpuTarget>, Arc<CpuDevice>)>,
    /// The kind of machine that measured costs hold for.
    pub(crate) label: String,
}

impl OpenDevice {
    /// The same target and device, for another model.
    pub(crate) fn share(&self) -> OpenDevice {
        let (target, device, more) = (self.target.clone(), self.device.clone(), self.more.clone());
        OpenDevice { target, device, more, cpu: self.cpu.clone(), label: self.label.clone() }
    }
}

/// Opens the devices that the options name.
pub(crate) fn open_device(options: &RunnerOptions, cache: &Arc<ProgramCache>) -> Result<OpenDevice, Error> {
    if let Some(other) = options.more_devices.iter().find(|other| other.kind != options.device.kind) {
        let device = options.device;
        return Err(Error::Device(format!("'{device}' and '{other}' are devices of different kinds")));
    }
    match options.device.kind {
        DeviceKind::Cpu if !options.more_devices.is_empty() => {
            Err(Error::Device("there is only one CPU; its threads are what can be more".to_string()))
        }
        DeviceKind::Cpu => Ok(open_cpu(options, cache)),
        DeviceKind::Cuda => open_gpu(Vendor::Cuda, options, cache),
        DeviceKind::Hip => open_gpu(Vendor::Hip, options, cache),
    }
}

fn open_cpu(options: &RunnerOptions, cache: &ProgramCache) -> OpenDevice {
    let target = CpuTarget::new(options.isa, options.threads, options.passes.clone()).with_tuning(cache.tuning());
    let (target, device) = (Arc::new(target), Arc::new(CpuDevice::new(options.threads)));
    let label = cpu_label(options.threads);
    OpenDevice { target: target.clone(), device: device.clone(), more: Vec::new(), cpu: Some((target, device)), label }
}

fn open_gpu(vendor: Vendor, options: &RunnerOptions, cache: &Arc<ProgramCache>) -> Result<OpenDevice, Error> {
    let device = open_gpu_device(vendor, options.device, options.captures)?;
    let mut more: Vec<Arc<dyn Device>> = Vec::new();
    for &name in &options.more_devices {
        let other = open_gpu_device(vendor, name, options.captures)?;
        check_alike((options.device, &device), (name, &other))?;
        more.push(Arc::new(other));
    }
    let compiler = Arc::new(RuntimeCompiler::open(vendor).map_err(refused)?);
    let label = format!("{} ({})", device.driver().info().name, device.arch().name);
    let kernels = Arc::new(CachedKernels(cache.clone()));
    let target = GpuTarget::new(device.arch().clone(), options.passes.clone(), compiler, kernels);
    let target = if options.is_device_strict { target.strict() } else { target };
    Ok(OpenDevice { target: Arc::new(target), device: Arc::new(device), more, cpu: None, label })
}

/// Code for one device must be code for the other.
fn check_alike(first: (DeviceName, &GpuDevice), other: (DeviceName, &GpuDevice)) -> Result<(), Error> {
    let (arch, other_arch) = (first.1.arch(), other.1.arch());
    if arch == other_arch {
        return Ok(());
    }
    Err(Error::Device(format!(
        "'{}' is a {} with {} multiprocessors, '{}' a {} with {}; one model runs on devices that are alike",
        first.0, arch.name, arch.multiprocessors, other.0, other_arch.name, other_arch.multiprocessors
    )))
}

/// Opens a GPU by its name, to run Programs that are compiled already.
pub(crate) fn open_gpu_device(vendor: Vendor, name: DeviceName, captures: Captures) -> Result<GpuDevice, Error> {
    let device = GpuDevice::new(open_driver(vendor, name)?).map_err(refused)?;
    Ok(device.with_captures(captures.options()))
}

/// A driver's device by its name.
pub(crate) fn open_driver(vendor: Vendor, name: DeviceName) -> Result<precast_driver::Device, Error> {
    let library = Library::open(vendor).map_err(refused)?;
    let count = library.device_count().map_err(refused)?;
    if name.number >= count {
        return Err(Error::Device(format!("there is no device '{name}'; the driver has {count} of its kind")));
    }
    library.device(name.number).map_err(refused)
}

/// Machine code as notes of a cache.
struct CachedKernels(Arc<ProgramCache>);

impl KernelStore for CachedKernels {
    fn find(&self, key: &Digest) -> Option<Vec<u8>> {
        self.0.note(KIND, key)
    }

    fn keep(&self, key: &Digest, code: &[u8]) {
        self.0.keep_note(KIND, key, code);
    }
}

/// The kind of machine that measured costs hold for.
fn cpu_label(threads: usize) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!("{} with {threads} threads", name.map_or("unknown CPU", |(_, name)| name.trim()))
}

/// An error of a driver as an error of a device.
pub(crate) fn refused(error: DriverError) -> Error {
    Error::Device(error.to_string())
}
