//! How a device carried out a run: step by step, recorded, or replayed; on the caller's memory or on copies; and why.

use std::fmt;

/// How one run was carried out. Of fixed size: making one allocates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRun {
    /// How its steps were launched.
    pub launch: LaunchPath,
    /// How it came to its inputs.
    pub inputs: IoPath,
    /// How it came to its outputs.
    pub outputs: IoPath,
}

/// How the steps of a run were launched, the least costly first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchPath {
    /// All at once, from an earlier recording.
    Replayed,
    /// They were recorded, and the recording launched.
    Captured,
    /// One by one.
    Steps(StepsReason),
}

impl Default for LaunchPath {
    fn default() -> LaunchPath {
        LaunchPath::Steps(StepsReason::NoCaptures)
    }
}

/// Why a run was not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepsReason {
    /// The device has no captures.
    NoCaptures,
    /// Captures are turned off.
    Off,
    /// It has run too rarely in this context.
    Cold,
    /// Its capture was rebuilt or diverted too often lately.
    Resting,
    /// Capturing failed a while ago.
    Poisoned(PoisonReason),
    /// Every step is timed.
    Tracing,
}

/// What failed when a Program was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoisonReason {
    /// Recording its launches.
    Record,
    /// Making the recording ready to run.
    Instantiate,
    /// Launching the recording.
    Launch,
    /// It found no room beside other captures.
    Budget,
}

/// How a run came to the caller's buffers of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoPath {
    /// Kernels read or write the caller's memory on the device.
    Direct,
    /// They are host memory.
    #[default]
    Host,
    /// Rows were moved on the device between the caller's memory and the context's.
    Rows,
}

impl DeviceRun {
    /// Two runs that answer one request together, as one: of everything the more costly.
    pub fn joined(self, other: DeviceRun) -> DeviceRun {
        let launch = if self.launch.rank() >= other.launch.rank() { self.launch } else { other.launch };
        DeviceRun { launch, inputs: self.inputs.max(other.inputs), outputs: self.outputs.max(other.outputs) }
    }
}

impl LaunchPath {
    /// The word in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            LaunchPath::Replayed => "replayed",
            LaunchPath::Captured => "captured",
            LaunchPath::Steps(_) => "eager",
        }
    }

    /// Why it was not replayed.
    pub fn reason(self) -> &'static str {
        match self {
            LaunchPath::Replayed | LaunchPath::Captured => "none",
            LaunchPath::Steps(reason) => reason.name(),
        }
    }

    fn rank(self) -> u8 {
        match self {
            LaunchPath::Replayed => 0,
            LaunchPath::Captured => 1,
            LaunchPath::Steps(_) => 2,
        }
    }
}

impl StepsReason {
    /// The word in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            StepsReason::NoCaptures => "no-captures",
            StepsReason::Off => "off",
            StepsReason::Cold => "cold",
            StepsReason::Resting => "resting",
            StepsReason::Poisoned(PoisonReason::Record) => "poisoned-record",
            StepsReason::Poisoned(PoisonReason::Instantiate) => "poisoned-instantiate",
            StepsReason::Poisoned(PoisonReason::Launch) => "poisoned-launch",
            StepsReason::Poisoned(PoisonReason::Budget) => "poisoned-budget",
            StepsReason::Tracing => "tracing",
        }
    }
}

impl IoPath {
    /// The word in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            IoPath::Host => "host",
            IoPath::Direct => "direct",
            IoPath::Rows => "rows",
        }
    }
}

impl fmt::Display for DeviceRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceRun { launch, inputs, outputs } = self;
        let (name, reason) = (launch.name(), launch.reason());
        let why = if reason == "none" { String::new() } else { format!(" ({reason})") };
        write!(f, "{name}{why}, inputs {}, outputs {}", inputs.name(), outputs.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_costly_as_its_most_costly_run() {
        let replayed = DeviceRun { launch: LaunchPath::Replayed, inputs: IoPath::Direct, outputs: IoPath::Rows };
        let cold = LaunchPath::Steps(StepsReason::Cold);
        let eager = DeviceRun { launch: cold, inputs: IoPath::Direct, outputs: IoPath::Direct };
        let joined = DeviceRun { launch: cold, inputs: IoPath::Direct, outputs: IoPath::Rows };
        assert_eq!((replayed.joined(eager), eager.joined(replayed)), (joined, joined));
        assert_eq!(joined.to_string(), "eager (cold), inputs direct, outputs rows");
    }
}
