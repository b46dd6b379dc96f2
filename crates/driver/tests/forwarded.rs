//! HIP that is forwarded to CUDA: every function that HIP's drivers and compilers must have is there. What the functions do is
//! tested by all tests that run on each driver.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use precast_driver::{Compiler, Library, Vendor};
use precast_fake_driver::{Fake, HipOnCuda};

#[test]
fn every_function_of_hip_is_forwarded() {
    let fake = Fake::new(1);
    let forwarder = HipOnCuda::new(fake.path(), fake.path());
    let symbols = [Library::symbols(Vendor::Hip), Compiler::symbols(Vendor::Hip)].concat();
    let missing: Vec<&str> = symbols.into_iter().filter(|symbol| !forwarder.has_symbol(symbol)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_device_is_one_of_amd_with_warps_of_cuda() {
    let fake = Fake::new(2);
    let forwarder = HipOnCuda::new(fake.path(), fake.path());
    let library = Library::open_path(Vendor::Hip, forwarder.path()).unwrap();
    assert_eq!(library.device_count().unwrap(), 2);
    let device = library.device(1).unwrap();
    let info = device.info();
    assert_eq!((info.arch.as_str(), info.warp, info.ordinal), ("gfx1030", 32, 1));
    assert_eq!(info.name, "Fake CUDA device 1");
    device.synchronize().unwrap();
    drop((device, library, forwarder));
    fake.assert_clean();
}

#[test]
fn an_error_has_the_name_that_cuda_gives_it() {
    let fake = Fake::new(1);
    let forwarder = HipOnCuda::new(fake.path(), fake.path());
    let library = Library::open_path(Vendor::Hip, forwarder.path()).unwrap();
    let device = library.device(0).unwrap();
    fake.inject("cuMemAlloc_v2", 1, 2);
    let error = device.allocate(8).unwrap_err().to_string();
    assert!(error.contains("hipMalloc") && error.contains("FAKE_OUT_OF_MEMORY"), "{error}");
}
