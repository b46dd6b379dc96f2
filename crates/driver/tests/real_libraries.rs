//! The vendors' own libraries, where they are installed: every name resolves, and small kernels compile.
//! Without them a test prints a line and passes.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use precast_driver::{Compiler, DriverError, Library, Vendor};

/// A kernel that both vendors' compilers take.
const SOURCE: &str = r#"
extern "C" __global__ void add_one(float* values, long long count) {
    long long index = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (index < count) values[index] += 1.0f;
}
"#;

#[test]
fn every_function_of_an_installed_driver_resolves() {
    for vendor in Vendor::ALL {
        match Library::open(vendor) {
            Ok(library) => println!("{library:?} has {} devices", library.device_count().unwrap()),
            // A driver without a device may refuse to initialise, which comes after resolving.
            Err(error @ DriverError::Call { .. }) => println!("all functions found: {error}"),
            Err(error @ DriverError::MissingLibrary { .. }) => println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_installed_compiler_makes_machine_code() {
    for (vendor, archs) in [(Vendor::Cuda, ["sm_80", "sm_90"]), (Vendor::Hip, ["gfx90a", "gfx1030"])] {
        let compiler = match Compiler::open(vendor) {
            Ok(compiler) => compiler,
            Err(error @ DriverError::MissingLibrary { .. }) => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        println!("{compiler:?} is version {:?}", compiler.version().unwrap());
        for arch in archs {
            let code = compiler.compile(SOURCE, "add_one.cu", arch, &[]).unwrap();
            assert!(!code.is_empty());
            println!("{} bytes for {arch}, which start with {:?}", code.len(), &code[..4]);
        }
        let wrong = SOURCE.replace("values[index]", "valeus[index]");
        let error = compiler.compile(&wrong, "add_one.cu", archs[0], &[]).unwrap_err();
        let DriverError::Compile { name, arch, log } = error else { panic!("{error}") };
        assert_eq!((name.as_str(), arch.as_str()), ("add_one.cu", archs[0]));
        assert!(log.contains("valeus"), "{log}");
    }
}
