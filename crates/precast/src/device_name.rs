//! Names of devices. Each device has one name; what people call it elsewhere is turned into that name here and nowhere
//! else. An unknown name is an error with a suggestion.

use std::fmt;

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

/// What others call a kind of device, in lower case, and the kind.
const ALIASES: &[(&str, DeviceKind)] = &[
    ("cpu", DeviceKind::Cpu),
    ("cpuexecutionprovider", DeviceKind::Cpu),
    ("cuda", DeviceKind::Cuda),
    ("gpu", DeviceKind::Cuda),
    ("nvidia", DeviceKind::Cuda),
    ("cudaexecutionprovider", DeviceKind::Cuda),
    ("tensorrt", DeviceKind::Cuda),
    ("tensorrtexecutionprovider", DeviceKind::Cuda),
    ("hip", DeviceKind::Hip),
    ("rocm", DeviceKind::Hip),
    ("amdgpu", DeviceKind::Hip),
    ("migraphx", DeviceKind::Hip),
    ("rocmexecutionprovider", DeviceKind::Hip),
    ("amdgpuexecutionprovider", DeviceKind::Hip),
    ("migraphxexecutionprovider", DeviceKind::Hip),
];

/// The device that a person asks for; a GPU without a number is the first of its kind.
pub fn resolve_device(asked: &str) -> Result<DeviceName, Error> {
    let lower = asked.to_ascii_lowercase();
    let (kind, number) = lower.split_once(':').map_or((lower.as_str(), None), |(kind, number)| (kind, Some(number)));
    let Some(&(_, kind)) = ALIASES.iter().find(|(alias, _)| *alias == kind) else {
        let near = nearest(kind, ALIASES.iter().map(|(alias, _)| *alias));
        let hint = near.map_or(String::new(), |near| format!(" Did you mean '{near}'?"));
        return Err(Error::Request(format!("there is no device '{asked}'; devices are: {DEVICES}.{hint}")));
    };
    let number = number.map_or(Some(0), |number| number.parse().ok());
    match (kind, number) {
        (DeviceKind::Cpu, Some(1..)) | (_, None) => {
            Err(Error::Request(format!("there is no device '{asked}'; devices are: {DEVICES}")))
        }
        (kind, Some(number)) => Ok(DeviceName { kind, number }),
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

    #[test]
    fn aliases_become_the_one_name() {
        let cases = [("cpu", "cpu"), ("CPU", "cpu"), ("cpu:0", "cpu"), ("CPUExecutionProvider", "cpu")];
        let gpus = [("cuda", "cuda:0"), ("GPU:1", "cuda:1"), ("MIGraphX", "hip:0"), ("rocm:7", "hip:7")];
        for (asked, name) in cases.into_iter().chain(gpus) {
            assert_eq!(resolve_device(asked).unwrap().to_string(), name);
        }
    }

    #[test]
    fn several_devices_are_of_one_kind_and_each_is_named_once() {
        let names = |asked: &str| {
            let devices = resolve_devices(asked).unwrap();
            devices.iter().map(ToString::to_string).collect::<Vec<String>>().join(" ")
        };
        assert_eq!(names("cuda:0, gpu:3"), "cuda:0 cuda:3");
        assert_eq!(names("cpu"), "cpu");
        let message = |asked: &str| resolve_devices(asked).unwrap_err().to_string();
        assert_eq!(message("cuda,cuda:0"), "device 'cuda:0' is named twice in 'cuda,cuda:0'");
        let kinds = "'cuda:0' and 'hip:1' are of different kinds; one model runs on devices of one kind";
        assert_eq!(message("cuda:0,hip:1"), kinds);
        assert!(message("cuda:0,").starts_with("there is no device ''"));
    }

    #[test]
    fn names_that_cannot_be_opened_say_what_can() {
        let message = |asked: &str| resolve_device(asked).unwrap_err().to_string();
        let devices = "devices are: cpu, cuda:N, hip:N";
        assert_eq!(message("cpi"), format!("there is no device 'cpi'; {devices}. Did you mean 'cpu'?"));
        assert_eq!(message("typewriter"), format!("there is no device 'typewriter'; {devices}."));
        assert_eq!(message("cpu:1"), format!("there is no device 'cpu:1'; {devices}"));
        assert_eq!(message("cuda:x"), format!("there is no device 'cuda:x'; {devices}"));
    }
}
