//! Faults that end a process, each in a process of its own: the fake driver names what was touched before it dies.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::Vendor;
use precast_fake_driver::Fake;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const SEGMENTATION_FAULT: i32 = 11;

/// Name, what the dying process does, and what it must have said.
type Fault = (&'static str, fn(), &'static str);

const FAULTS: [Fault; 2] = [
    ("leave-the-buffers", leave_the_buffers, "fake driver: kernel add touched device memory outside its buffers"),
    ("touch-device-memory", touch_device_memory, "fake driver: the host touched device memory"),
];

/// With the name of a fault, does it; with anything else, does each in a process of its own and looks at how it died.
fn main() {
    let asked = std::env::args().nth(1);
    if let Some((_, fault, _)) = FAULTS.iter().find(|(name, ..)| asked.as_deref() == Some(name)) {
        return fault();
    }
    for (name, _, expected) in FAULTS {
        let output = Command::new(std::env::current_exe().unwrap()).arg(name).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains(expected), "{name}: {words}");
        assert_eq!(output.status.signal(), Some(SEGMENTATION_FAULT), "{name}");
        println!("test {name} ... ok");
    }
}

fn leave_the_buffers() {
    let fake = Fake::new(1);
    let rig = rig::Rig::open(&fake, Vendor::Cuda).unwrap();
    let stream = rig.device.stream().unwrap();
    let add = rig.module().unwrap().function("add").unwrap();
    let buffer = rig.device.allocate(256).unwrap();
    let address = buffer.address();
    // SAFETY: none; the fault is the point.
    unsafe { stream.launch(&add, [1, 1, 1], [128, 1, 1], 0, &[address, address, address, 128]) }.unwrap();
    stream.synchronize().unwrap();
}

fn touch_device_memory() {
    let fake = Fake::new(1);
    let rig = rig::Rig::open(&fake, Vendor::Cuda).unwrap();
    let buffer = rig.device.allocate(8).unwrap();
    // SAFETY: none; the fault is the point.
    let byte = unsafe { std::ptr::read_volatile(buffer.address() as *const u8) };
    println!("read {byte}");
}
