//! A fake device of either vendor with a few kernels, for the tests of this folder.
#![allow(dead_code, reason = "each test file uses a part of it")]

use precast_driver::{Compiler, Device, DeviceBuffer, DriverError, Function, Library, Module, Stream, Vendor};
use precast_fake_driver::{Fake, HipOnCuda};
use std::path::Path;

/// Kernels as the fake driver wants them: a host function and the number of its parameters each.
///
/// `add` sums two arrays, `digit` appends a digit to a number, so that the order of launches can be read off it, and
/// `chain` follows an address that it finds in memory.
pub const TEXT: &str = r#"
extern "C" const unsigned add_params = 4;
extern "C" void add_host(unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, void** args) {
    float* out = *(float**)args[0];
    const float* a = *(const float**)args[1];
    const float* b = *(const float**)args[2];
    long long count = *(long long*)args[3];
    for (long long i = 0; i < (long long)gx * bx && i < count; i++) out[i] = a[i] + b[i];
}
extern "C" const unsigned digit_params = 2;
extern "C" void digit_host(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void** args) {
    long long* cell = *(long long**)args[0];
    *cell = *cell * 10 + *(long long*)args[1];
}
extern "C" const unsigned chain_params = 1;
extern "C" void chain_host(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void** args) {
    long long** table = *(long long***)args[0];
    *table[0] = 42;
}
"#;

/// A fake driver, opened.
pub struct Rig {
    pub vendor: Vendor,
    pub library: Library,
    pub compiler: Compiler,
    pub device: Device,
}

impl Rig {
    /// Opens device 0 of a fake driver.
    pub fn open(fake: &Fake, vendor: Vendor) -> Result<Rig, DriverError> {
        Rig::open_path(fake.path(), vendor)
    }

    /// Opens device 0 of a driver that is its own compiler.
    pub fn open_path(path: &Path, vendor: Vendor) -> Result<Rig, DriverError> {
        let library = Library::open_path(vendor, path)?;
        let compiler = Compiler::open_path(vendor, path)?;
        let device = library.device(0)?;
        Ok(Rig { vendor, library, compiler, device })
    }

    /// The test kernels, compiled and loaded.
    pub fn module(&self) -> Result<Module, DriverError> {
        let image = self.compiler.compile(TEXT, "test.cu", arch(self.vendor), &[])?;
        self.device.load_module(&image)
    }

    /// A buffer with these numbers.
    pub fn buffer<T: Number>(&self, stream: &Stream, numbers: &[T]) -> Result<DeviceBuffer, DriverError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.bytes()).collect();
        let buffer = self.device.allocate(bytes.len())?;
        stream.upload(&buffer, 0, &bytes)?;
        Ok(buffer)
    }
}

/// Runs a test on a fresh fake driver of each vendor, and on HIP that is forwarded to CUDA, and requires that nothing is left
/// and no rule was violated.
pub fn on_both(test: impl Fn(&Fake, &Rig)) {
    on_vendors(&test);
    let fake = Fake::new(1);
    let forwarder = HipOnCuda::new(fake.path(), fake.path());
    let rig = Rig::open_path(forwarder.path(), Vendor::Hip).unwrap();
    test(&fake, &rig);
    drop(rig);
    drop(forwarder);
    fake.assert_clean();
}

/// The same without HIP that is forwarded, for what a vendor's driver says of itself.
pub fn on_vendors(test: impl Fn(&Fake, &Rig)) {
    for vendor in Vendor::ALL {
        let fake = Fake::new(1);
        let rig = Rig::open(&fake, vendor).unwrap();
        test(&fake, &rig);
        drop(rig);
        fake.assert_clean();
    }
}

/// The architecture of the fake devices.
pub fn arch(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Cuda => "sm_90",
        Vendor::Hip => "gfx90a",
    }
}

/// Queues `digit` on a cell.
pub fn push_digit(stream: &Stream, digit: &Function, cell: &DeviceBuffer, value: u64) -> Result<(), DriverError> {
    // SAFETY: the kernel takes an address of eight bytes and a number; tests keep the cell until they have waited.
    unsafe { stream.launch(digit, [1; 3], [1; 3], 0, &[cell.address(), value]) }
}

/// The number in a cell, after all that is queued.
pub fn read_cell(stream: &Stream, cell: &DeviceBuffer) -> Result<i64, DriverError> {
    let mut bytes = [0; 8];
    stream.download(cell, 0, &mut bytes)?;
    Ok(i64::from_le_bytes(bytes))
}

/// A number with bytes.
pub trait Number: Copy {
    /// Its bytes in memory.
    fn bytes(self) -> Vec<u8>;
}

impl Number for f32 {
    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl Number for i64 {
    fn bytes(self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}
