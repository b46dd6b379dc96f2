//! Names of devices. Each device has one name; what people call it elsewhere is turned into that name here and nowhere
//! else. An unknown name is an error with a suggestion.

use std::fmt;

use precast_driver::{Library, Vendor};

use crate::error::Error;
use crate::suggestion::nearest;

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// A GPU of NVIDIA.
    Cuda,
    /// A GPU of AMD.
    Hip,
}

impl DeviceKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Hip => "hip",
        }
    }
}

/// One device: `cpu`, `cuda:0`, `hip:1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// What it is.
    pub kind: DeviceKind,
    /// Which of its kind.
    pub number: usize,
}

impl DeviceName {
    /// The CPU.
    pub const CPU: DeviceName = DeviceName { kind: DeviceKind::Cpu, number: 0 };
}

impl Default for DeviceName {
    fn default() -> DeviceName {
        DeviceName::CPU
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            kind => write!(f, "{}:{}", kind.name(), self.number),
        }
    }
}

/// What errors say that there is.
const DEVICES: &str = "cpu, cuda:N, hip:N";

/// What a word for a device means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A kind of device.
    Kind(DeviceKind),
    /// A kind of device, though what is meant is one of several ways to use it.
    KindOf(DeviceKind),
    /// The one kind of GPU that this machine has.
    OnlyGpu,
    /// Known elsewhere and not supported here.
    NotSupported,
}

/// What others call a device, in lower case and without `executionprovider` at its end.
const ALIASES: &[(&str, Meaning)] = &[
    ("cpu", Meaning::Kind(DeviceKind::Cpu)),
    ("gpu", Meaning::OnlyGpu),
    ("cuda", Meaning::Kind(DeviceKind::Cuda)),
    ("nvidia", Meaning::Kind(DeviceKind::Cuda)),
    ("tensorrt", Meaning::KindOf(DeviceKind::Cuda)),
    ("nvtensorrtrtx", Meaning::KindOf(DeviceKind::Cuda)),
    ("hip", Meaning::Kind(DeviceKind::Hip)),
    ("rocm", Meaning::Kind(DeviceKind::Hip)),
    ("amdgpu", Meaning::Kind(DeviceKind::Hip)),
    ("amd", Meaning::Kind(DeviceKind::Hip)),
    ("migraphx", Meaning::Kind(DeviceKind::Hip)),
    ("dml", Meaning::NotSupported),
    ("webgpu", Meaning::NotSupported),
    ("openvino", Meaning::NotSupported),
    ("qnn", Meaning::NotSupported),
    ("vitisai", Meaning::NotSupported),
    ("ryzenai", Meaning::NotSupported),
    ("coreml", Meaning::NotSupported),
    ("xnnpack", Meaning::NotSupported),
    ("js", Meaning::NotSupported),
];

/// Kinds of GPUs among devices.
fn gpus_among(devices: Vec<DeviceName>) -> Vec<DeviceKind> {
    let mut kinds: Vec<DeviceKind> = devices.iter().map(|device| device.kind).collect();
    kinds.dedup();
    kinds.retain(|&kind| kind != DeviceKind::Cpu);
    kinds
}

/// Every device of this machine that a driver was found for, GPUs first.
pub fn devices_present() -> Vec<DeviceName> {
    let kinds = [(Vendor::Cuda, DeviceKind::Cuda), (Vendor::Hip, DeviceKind::Hip)];
    let count = |vendor| Library::open(vendor).and_then(|library| library.device_count()).unwrap_or(0);
    let gpus =
        kinds.into_iter().flat_map(|(vendor, kind)| (0..count(vendor)).map(move |number| DeviceName { kind, number }));
    gpus.chain([DeviceName::CPU]).collect()
}

/// A device and how its name was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedDevice {
    /// The device.
    pub name: DeviceName,
    /// What a person should know, if they wrote another name.
    pub notice: Option<String>,
}

/// The device that a person asks for; a GPU without a number is the first of its kind.
pub fn resolve_device(asked: &str) -> Result<DeviceName, Error> {
    Ok(resolve_device_among(asked, &devices_present)?.name)
}

/// The device that a person asks for, and what to tell them about it.
pub fn resolve_device_with_notice(asked: &str) -> Result<ResolvedDevice, Error> {
    resolve_device_among(asked, &devices_present)
}

fn resolve_device_among(asked: &str, present: &dyn Fn() -> Vec<DeviceName>) -> Result<ResolvedDevice, Error> {
    let here = || present().iter().map(ToString::to_string).collect::<Vec<String>>().join(", ");
    let lower = asked.trim().to_ascii_lowercase();
    let (word, number) = lower.split_once(':').map_or((lower.as_str(), None), |(word, number)| (word, Some(number)));
    let word = word.strip_suffix("executionprovider").unwrap_or(word);
    let Some(&(_, meaning)) = ALIASES.iter().find(|(alias, _)| *alias == word) else {
        let near = nearest(word, ALIASES.iter().map(|(alias, _)| *alias));
        let hint = near.map_or(String::new(), |near| format!(" Did you mean '{near}'?"));
        let here = here();
        return Err(Error::Request(format!(
            "there is no device '{asked}'; devices are: {DEVICES}; here: {here}.{hint}"
        )));
    };
    let kind = match meaning {
        Meaning::Kind(kind) | Meaning::KindOf(kind) => kind,
        Meaning::OnlyGpu => only_gpu(asked, &gpus_among(present()))?,
        Meaning::NotSupported => {
            return Err(Error::Request(format!(
                "'{asked}' is not supported; devices are: {DEVICES}; here: {}",
                here()
            )));
        }
    };
    let number = match (kind, number.map_or(Some(0), |number| number.parse().ok())) {
        (DeviceKind::Cpu, Some(1..)) | (_, None) => {
            let here = here();
            return Err(Error::Request(format!("there is no device '{asked}'; devices are: {DEVICES}; here: {here}")));
        }
        (_, Some(number)) => number,
    };
    let name = DeviceName { kind, number };
    let notice = match meaning {
        _ if name.to_string() == asked => None,
        Meaning::KindOf(_) => Some(format!("'{asked}' is read as '{name}', which runs kernels of precast's own")),
        Meaning::Kind(_) | Meaning::OnlyGpu | Meaning::NotSupported => Some(format!("'{asked}' is read as '{name}'")),
    };
    Ok(ResolvedDevice { name, notice })
}

/// The one kind of GPU that there is.
fn only_gpu(asked: &str, gpus: &[DeviceKind]) -> Result<DeviceKind, Error> {
    match gpus {
        [kind] => Ok(*kind),
        [] => Err(Error::Device(format!("'{asked}': this machine has no GPU that a driver was found for"))),
        kinds => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            Err(Error::Request(format!("'{asked}' may be any of {}; name the one you mean", names.join(" and "))))
        }
    }
}

/// The devices that a person asks for, as in `cuda:0,cuda:1`: GPUs of one kind, each once, or a single device.
pub fn resolve_devices(asked: &str) -> Result<Vec<DeviceName>, Error> {
    let devices = asked.split(',').map(|asked| resolve_device(asked.trim())).collect::<Result<Vec<_>, Error>>()?;
    for (position, device) in devices.iter().enumerate() {
        if devices[..position].contains(device) {
            return Err(Error::Request(format!("device '{device}' is named twice in '{asked}'")));
        }
        if device.kind != devices[0].kind {
            let first = devices[0];
            return Err(Error::Request(format!(
                "'{first}' and '{device}' are of different kinds; one model runs on devices of one kind"
            )));
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(asked: &str) -> Result<ResolvedDevice, Error> {
        resolve_device_among(asked, &|| vec![DeviceName::CPU])
    }

    #[test]
    fn several_devices_are_of_one_kind_and_each_is_named_once() {
        let names = |asked: &str| {
            let devices = resolve_devices(asked).unwrap();
            devices.iter().map(ToString::to_string).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(names("cuda:0, nvidia:3"), "cuda:0 cuda:3");
        assert_eq!(names("cpu"), "cpu");
        let message = |asked: &str| resolve_devices(asked).unwrap_err().to_string();
        assert_eq!(message("cuda,cuda:0"), "device 'cuda:0' is named twice in 'cuda,cuda:0'");
        let kinds = "'cuda:0' and 'hip:1' are of different kinds; one model runs on devices of one kind";
        assert_eq!(message("cuda:0,hip:1"), kinds);
        assert!(message("cuda:0,").starts_with("there is no device ''"));
    }

    #[test]
    fn defect_17_aliases_become_the_one_name() {
        let cpu = ["cpu", "CPU", " cpu:0 ", "CPUExecutionProvider"];
        let cuda = ["cuda", "nvidia", "CUDAExecutionProvider", "tensorrt", "TensorrtExecutionProvider"];
        let cuda = cuda.into_iter().chain(["NvTensorRtRtx", "NvTensorRTRTXExecutionProvider", "cuda:0"]);
        let hip = ["hip", "rocm", "ROCMExecutionProvider", "amdgpu", "AMDGPU", "AMDGPUExecutionProvider", "amd"];
        let hip = hip.into_iter().chain(["MIGraphX", "MIGraphXExecutionProvider", "hip:0"]);
        let names = cpu.into_iter().map(|asked| (asked, "cpu")).chain(cuda.map(|asked| (asked, "cuda:0")));
        for (asked, name) in names.chain(hip.map(|asked| (asked, "hip:0"))) {
            let resolved = resolve(asked).unwrap();
            assert_eq!(resolved.name.to_string(), name);
            assert_eq!(resolved.notice.is_none(), asked == name, "{asked}");
        }
        assert_eq!(resolve("rocm:7").unwrap().name.to_string(), "hip:7");
    }

    #[test]
    fn a_gpu_is_the_one_that_there_is() {
        let among = |gpus: &[DeviceKind]| {
            let device = |&kind: &DeviceKind| DeviceName { kind, number: 0 };
            let resolved =
                resolve_device_among("GPU:1", &|| gpus.iter().map(device).chain([DeviceName::CPU]).collect());
            resolved.map(|resolved| resolved.name.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(among(&[DeviceKind::Hip]), Ok("hip:1".to_string()));
        assert_eq!(among(&[DeviceKind::Cuda]), Ok("cuda:1".to_string()));
        let both = "'GPU:1' may be any of cuda and hip; name the one you mean".to_string();
        assert_eq!(among(&[DeviceKind::Cuda, DeviceKind::Hip]), Err(both));
        assert!(among(&[]).unwrap_err().contains("no GPU"));
    }

    #[test]
    fn defect_17_names_that_cannot_be_opened_say_what_can() {
        let message = |asked: &str| resolve(asked).unwrap_err().to_string();
        let devices = "devices are: cpu, cuda:N, hip:N; here: cpu";
        assert_eq!(message("cpi"), format!("there is no device 'cpi'; {devices}. Did you mean 'cpu'?"));
        assert_eq!(message("typewriter"), format!("there is no device 'typewriter'; {devices}."));
        assert_eq!(message("cpu:1"), format!("there is no device 'cpu:1'; {devices}"));
        assert_eq!(message("cuda:x"), format!("there is no device 'cuda:x'; {devices}"));
        for asked in
            ["dml", "WebGPU", "OpenVINOExecutionProvider", "qnn", "coreml", "xnnpack", "js", "VitisAI", "ryzenai"]
        {
            assert_eq!(message(asked), format!("'{asked}' is not supported; {devices}"));
        }
    }
}
