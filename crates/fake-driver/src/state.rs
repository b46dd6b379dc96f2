//! All that the fake driver knows, the calls made on it, and the faults it was told to inject.

use crate::capture::Capture;
use crate::compiler::Program;
use crate::graph::{Exec, Graph};
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::objects::{Event, Stream};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, PoisonError};

/// A handle that a caller holds. Never used twice, so that use after destruction is always seen.
pub(crate) type Handle = usize;

/// What a call gives: nothing, or a status other than success.
pub(crate) type Status = Result<(), i32>;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALISED: i32 = 3;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const NO_BINARY: i32 = 209;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
pub(crate) const CAPTURE_INVALIDATED: i32 = 901;
pub(crate) const CAPTURE_UNMATCHED: i32 = 903;
pub(crate) const CAPTURE_UNJOINED: i32 = 904;
pub(crate) const CAPTURE_ISOLATION: i32 = 905;
pub(crate) const CAPTURE_WRONG_THREAD: i32 = 908;
pub(crate) const INVALID_CLUSTER_SIZE: i32 = 912;

/// An injected code that stands for success without a handle.
pub(crate) const NULL_HANDLE: i32 = -1;

/// First handle; a value that no pointer of the host has.
const HANDLE_BASE: usize = 0x0010_0000_0000_0000;
const HANDLE_STEP: usize = 64;

/// Whose name a function was called by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Cuda,
    Hip,
}

/// The call that is being answered.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) vendor: Vendor,
    /// What the call will return, whatever it does.
    pub(crate) injected: Option<i32>,
}

impl Call {
    /// Gives a new handle to the caller, or none if that was asked for.
    pub(crate) fn gives_null(&self) -> bool {
        self.injected == Some(NULL_HANDLE)
    }
}

struct Injection {
    symbol: String,
    /// Calls until it strikes.
    remaining: u32,
    code: i32,
    every: bool,
}

/// The whole driver.
pub(crate) struct State {
    pub(crate) device_count: usize,
    pub(crate) is_initialised: bool,
    /// How often each device's context is retained.
    pub(crate) retained: BTreeMap<usize, u32>,
    pub(crate) memory: Memory,
    pub(crate) streams: BTreeMap<Handle, Stream>,
    pub(crate) events: BTreeMap<Handle, Event>,
    pub(crate) modules: BTreeMap<Handle, Module>,
    pub(crate) functions: BTreeMap<Handle, Function>,
    pub(crate) graphs: BTreeMap<Handle, Graph>,
    pub(crate) execs: BTreeMap<Handle, Exec>,
    pub(crate) programs: BTreeMap<Handle, Program>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    /// Records of events that have been passed.
    pub(crate) passed: BTreeSet<u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) calls: BTreeMap<&'static str, u32>,
    injections: Vec<Injection>,
    next: usize,
    random: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::new(1)));

thread_local! {
    /// The device that this thread chose.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

impl State {
    fn new(device_count: usize) -> State {
        State {
            device_count,
            is_initialised: false,
            retained: BTreeMap::new(),
            memory: Memory::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            programs: BTreeMap::new(),
            captures: BTreeMap::new(),
            passed: BTreeSet::new(),
            violations: Vec::new(),
            calls: BTreeMap::new(),
            injections: Vec::new(),
            next: 0,
            random: 1,
        }
    }

    /// Forgets everything and offers this many devices.
    pub(crate) fn reset(&mut self, device_count: usize) {
        *self = State::new(device_count);
    }

    /// A handle that was never given before.
    pub(crate) fn new_handle(&mut self) -> Handle {
        self.next += 1;
        HANDLE_BASE + self.next * HANDLE_STEP
    }

    /// A number that was never given before, for captures and records.
    pub(crate) fn new_ticket(&mut self) -> u64 {
        self.next += 1;
        self.next as u64
    }

    /// The next of a fixed sequence of numbers below `limit`.
    pub(crate) fn pick(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % limit.max(1)
    }

    /// Notes a violation of a rule, with the call that made it.
    pub(crate) fn violate(&mut self, call: &Call, rule: &str, sentence: impl AsRef<str>) {
        self.violations.push(format!("{rule} {}: {}", call.name, sentence.as_ref()));
    }

    pub(crate) fn inject(&mut self, symbol: &str, nth: u32, code: i32, every: bool) {
        self.injections.push(Injection { symbol: symbol.to_string(), remaining: nth.max(1), code, every });
    }

    /// What this call must return, if somebody asked for it.
    fn count_call(&mut self, name: &'static str) -> Option<i32> {
        *self.calls.entry(name).or_default() += 1;
        let mut code = None;
        for injection in self.injections.iter_mut().filter(|injection| injection.symbol == name) {
            injection.remaining = injection.remaining.saturating_sub(1);
            if injection.remaining == 0 {
                code = Some(injection.code);
            }
        }
        self.injections.retain(|injection| injection.every || injection.remaining > 0);
        code
    }

    /// The device of this thread, which must have chosen one.
    pub(crate) fn current(&mut self, call: &Call) -> Result<usize, i32> {
        match CURRENT.get() {
            Some(device) => Ok(device),
            None => {
                self.violate(call, "R1", "this thread has not chosen a device");
                Err(INVALID_CONTEXT)
            }
        }
    }

    /// Refuses an object of a device other than this thread's.
    pub(crate) fn check_device(&mut self, call: &Call, what: &str, owner: usize) -> Status {
        let current = self.current(call)?;
        if current == owner {
            return Ok(());
        }
        self.violate(call, "R1", format!("the {what} is of device {owner}, the current device is {current}"));
        Err(INVALID_HANDLE)
    }

    /// Notes the use of a handle that does not exist or no longer exists.
    pub(crate) fn dead_handle(&mut self, call: &Call, what: &str, handle: Handle) -> i32 {
        let was_given = handle > HANDLE_BASE && handle <= HANDLE_BASE + self.next * HANDLE_STEP;
        let why = if was_given { "was destroyed" } else { "was never given" };
        self.violate(call, "R3", format!("the {what} {handle:#x} {why}"));
        INVALID_HANDLE
    }

    /// How many objects of each kind are alive.
    pub(crate) fn live(&self) -> String {
        let contexts: u32 = self.retained.values().sum();
        let (buffers, pinned) = (self.memory.live_count(), self.memory.pinned_count());
        let counts = [
            ("contexts", contexts as usize),
            ("buffers", buffers),
            ("pinned", pinned),
            ("streams", self.own_streams()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
            ("graphs", self.graphs.len()),
            ("execs", self.execs.len()),
            ("captures", self.captures.len()),
            ("programs", self.programs.len()),
        ];
        let alive = counts.iter().filter(|(_, count)| *count > 0);
        alive.map(|(kind, count)| format!("{kind}={count}")).collect::<Vec<_>>().join(" ")
    }
}

/// Chooses the device of this thread.
pub(crate) fn set_current(device: Option<usize>) {
    CURRENT.set(device);
}

/// Runs something on the driver's state.
pub(crate) fn with_state<R>(body: impl FnOnce(&mut State) -> R) -> R {
    body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Answers a call: counts it, injects what was asked for, and runs it.
pub(crate) fn enter(name: &'static str, vendor: Vendor, body: impl FnOnce(&mut State, &Call) -> Status) -> i32 {
    with_state(|state| {
        let injected = state.count_call(name);
        let call = Call { name, vendor, injected };
        match injected {
            Some(code) if code != NULL_HANDLE && !gives_up(name) => code,
            _ => {
                let status = if state.is_initialised || is_before_initialisation(name) {
                    body(state, &call)
                } else {
                    state.violate(&call, "R1", "the driver was not initialised");
                    Err(NOT_INITIALISED)
                };
                match (injected, status) {
                    (Some(code), _) if code != NULL_HANDLE => code,
                    (_, Ok(())) => 0,
                    (_, Err(code)) => code,
                }
            }
        }
    })
}

/// Whether a call gives something up. It then does so even if it is told to fail: the caller cannot try again.
fn gives_up(name: &str) -> bool {
    ["Destroy", "Free", "Release", "Unload", "EndCapture"].iter().any(|word| name.contains(word))
}

fn is_before_initialisation(name: &str) -> bool {
    ["Init", "rtc", "Version", "ErrorName"].iter().any(|word| name.contains(word))
}
