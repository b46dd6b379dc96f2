//! Names of devices. Each device has one name; what people call it elsewhere is turned into that name here and nowhere
//! else. An unknown name is an error with a suggestion.

use crate::error::Error;
use crate::suggestion::nearest;

/// The CPU.
pub const CPU: &str = "cpu";

/// Kinds of devices that this build can open.
pub const DEVICES: &[&str] = &[CPU];

/// What others call a kind of device, in lower case, and our name of the kind.
const ALIASES: &[(&str, &str)] = &[
    ("cpu", CPU),
    ("cpuexecutionprovider", CPU),
    ("cuda", "cuda"),
    ("gpu", "cuda"),
    ("nvidia", "cuda"),
    ("cudaexecutionprovider", "cuda"),
    ("tensorrt", "cuda"),
    ("tensorrtexecutionprovider", "cuda"),
    ("hip", "hip"),
    ("rocm", "hip"),
    ("amdgpu", "hip"),
    ("migraphx", "hip"),
    ("rocmexecutionprovider", "hip"),
    ("amdgpuexecutionprovider", "hip"),
    ("migraphxexecutionprovider", "hip"),
];

/// Our name of the device that a person asks for. It differs from what was asked where that is an alias.
pub fn resolve_device(asked: &str) -> Result<&'static str, Error> {
    let lower = asked.to_ascii_lowercase();
    let (kind, number) = lower.split_once(':').map_or((lower.as_str(), None), |(kind, number)| (kind, Some(number)));
    let devices = DEVICES.join(", ");
    let Some(&(_, name)) = ALIASES.iter().find(|(alias, _)| *alias == kind) else {
        let near = nearest(kind, ALIASES.iter().map(|(alias, _)| *alias));
        let hint = near.map_or(String::new(), |near| format!(" Did you mean '{near}'?"));
        return Err(Error::Request(format!("there is no device '{asked}'; this build has: {devices}.{hint}")));
    };
    if !DEVICES.contains(&name) {
        return Err(Error::Request(format!(
            "'{asked}' needs {name} devices, which this build has not; it has: {devices}"
        )));
    }
    if number.is_some_and(|number| number != "0") {
        return Err(Error::Request(format!("there is no device '{asked}'; this build has: {devices}")));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_become_the_one_name() {
        for asked in ["cpu", "CPU", "cpu:0", "CPUExecutionProvider"] {
            assert_eq!(resolve_device(asked).unwrap(), "cpu");
        }
    }

    #[test]
    fn names_that_cannot_be_opened_say_what_can() {
        let message = |asked: &str| resolve_device(asked).unwrap_err().to_string();
        assert_eq!(message("cuda:0"), "'cuda:0' needs cuda devices, which this build has not; it has: cpu");
        assert_eq!(message("MIGraphX"), "'MIGraphX' needs hip devices, which this build has not; it has: cpu");
        assert_eq!(message("cpi"), "there is no device 'cpi'; this build has: cpu. Did you mean 'cpu'?");
        assert_eq!(message("typewriter"), "there is no device 'typewriter'; this build has: cpu.");
        assert_eq!(message("cpu:1"), "there is no device 'cpu:1'; this build has: cpu");
    }
}
