//! Every function fails once: an error comes back, nothing leaks and no rule is violated.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::{Compiler, DeviceBuffer, DriverError, Graph, LaunchShape, Library, Vendor};
use precast_fake_driver::Fake;
use rig::{Rig, push_digit, read_cell};

const OUT_OF_MEMORY: i32 = 2;
const NULL_HANDLE: i32 = -1;

/// Uses every function at least twice. Buffers come first, so that they go last on every way out.
fn scenario(fake: &Fake, vendor: Vendor) -> Result<(), DriverError> {
    for _ in 0..2 {
        let rig = Rig::open(fake, vendor)?;
        rig.library.driver_version()?;
        rig.library.device_count()?;
        rig.compiler.version()?;
        rig.device.memory_free_total()?;
        let cell = rig.device.allocate(8)?;
        let other = rig.device.allocate(8)?;
        let pinned = rig.device.allocate_pinned(8)?;
        let (stream, second) = (rig.device.stream()?, rig.device.stream()?);
        let module = rig.module()?;
        let digit = module.function("digit")?;
        digit.set_shared_bytes_max(1024)?;
        let (start, end) = (rig.device.event(true)?, rig.device.event(true)?);
        stream.upload(&cell, 0, &0i64.to_le_bytes())?;
        stream.record(&start)?;
        stream.fill(&other, 0, 8, 0)?;
        stream.record(&end)?;
        second.wait(&end)?;
        second.copy_device(&other, 0, &cell, 0, 8)?;
        second.synchronize()?;
        end.synchronize()?;
        end.elapsed_ms_since(&start)?;
        end.query()?;
        stream.query()?;
        for value in [1, 2] {
            let capture = stream.begin_capture()?;
            push_digit(&stream, &digit, &cell, value)?;
            let graph = capture.end()?;
            graph.node_count()?;
            let exec = graph.instantiate()?;
            exec.upload(&stream)?;
            exec.launch(&stream)?;
            stream.synchronize()?;
        }
        let mut graph = Graph::new(&rig.device)?;
        // SAFETY: the buffers outlive the graph and its exec; pinned memory is not touched; the kernel takes an address
        // of eight bytes and a number.
        let (append, copy) = unsafe {
            let enter = graph.add_copy_to_device(&[], &other, 0, &pinned, 0..8)?;
            let clear = graph.add_fill(&[enter], &other, 0, 8, 0)?;
            let append = graph.add_kernel(&[clear], &digit, [1; 3], [1; 3], 0, &[cell.address(), 3])?;
            let copy = graph.add_copy_device(&[append], &other, 0, &cell, 0, 8)?;
            graph.add_copy_from_device(&[copy], &pinned, 0..8, &other, 0)?;
            (append, copy)
        };
        let exec = graph.instantiate()?;
        for value in [4, 5] {
            // SAFETY: as above.
            unsafe { exec.set_kernel(append, &digit, [1; 3], [1; 3], 0, &[cell.address(), value]) }?;
            exec.set_copy_device(copy, &other, 0, &cell, 0, 8)?;
        }
        exec.launch(&stream)?;
        rig.device.synchronize()?;
        // SAFETY: the cell outlives what adopts it.
        let adopted = unsafe { DeviceBuffer::adopt(&rig.device, cell.address(), 8, Box::new(())) }?;
        assert_eq!(read_cell(&stream, &adopted)?, 125);
        // SAFETY: the buffers live until the stream was waited for.
        unsafe { stream.copy_from_device(&pinned, 0..8, &cell, 0) }?;
        stream.synchronize()?;
        for (value, is_clustered) in [(6, false), (7, true)] {
            let (grid, block) = ([1; 3], [1; 3]);
            let shape = LaunchShape { grid, block, shared_bytes: 0, is_overlapping: true, is_clustered };
            // SAFETY: the buffer lives until the stream was waited for, and kernels of one stream run in order here.
            unsafe { stream.launch_shaped(&digit, shape, &[cell.address(), value]) }?;
        }
        assert_eq!(read_cell(&stream, &cell)?, 12567);
    }
    Ok(())
}

/// Whether a function only gives something up or only names errors: its failure cannot be returned.
fn is_silent(symbol: &str) -> bool {
    ["Destroy", "Free", "Release", "Unload", "Error", "Log"].iter().any(|word| symbol.contains(word))
}

/// Whether a function gives a handle, an address or a text that must not be missing.
fn gives_handle(symbol: &str) -> bool {
    let creates = ["Create", "Alloc", "Malloc", "Retain", "ModuleLoad", "GetFunction", "EndCapture", "Instantiate"];
    let is_node = symbol.contains("GraphAdd");
    is_node || creates.iter().any(|word| symbol.contains(word))
}

fn sweep(vendor: Vendor) {
    let fake = Fake::new(1);
    scenario(&fake, vendor).unwrap();
    fake.assert_clean();
    let symbols = [Library::symbols(vendor), Compiler::symbols(vendor)].concat();
    for symbol in &symbols {
        let is_status = !symbol.contains("Error") && !symbol.contains("Log") && *symbol != "hipGetDeviceProperties";
        assert!(!is_status || fake.calls(symbol) >= 2, "the scenario does not call {symbol} twice");
    }
    for symbol in symbols {
        let codes = if gives_handle(symbol) && !is_silent(symbol) {
            vec![OUT_OF_MEMORY, NULL_HANDLE]
        } else {
            vec![OUT_OF_MEMORY]
        };
        for code in codes {
            for nth in [1, 2] {
                let before = fake.calls(symbol);
                fake.inject(symbol, nth, code);
                let result = scenario(&fake, vendor);
                let case = format!("{symbol}, call {nth}, code {code}");
                if fake.calls(symbol) - before < nth {
                    fake.reset(1);
                    continue;
                }
                match result {
                    Ok(()) => assert!(is_silent(symbol), "{case} was not noticed"),
                    Err(DriverError::NullHandle { call }) => {
                        assert!(call == symbol && code == NULL_HANDLE, "{case}: {call}")
                    }
                    Err(error) => {
                        assert!(error.is_out_of_memory() && error.to_string().starts_with(symbol), "{case}: {error}");
                    }
                }
                let (live, violations) = (fake.live(), fake.violations());
                assert!(live.is_empty() && violations.is_empty(), "{case}: alive [{live}], {violations:#?}");
            }
        }
    }
}

#[test]
fn every_function_of_cuda_may_fail() {
    sweep(Vendor::Cuda);
}

#[test]
fn every_function_of_hip_may_fail() {
    sweep(Vendor::Hip);
}

#[test]
fn a_lost_device_stays_lost() {
    for vendor in Vendor::ALL {
        let fake = Fake::new(1);
        let rig = Rig::open(&fake, vendor).unwrap();
        let stream = rig.device.stream().unwrap();
        let symbol = if vendor == Vendor::Cuda { "cuStreamSynchronize" } else { "hipStreamSynchronize" };
        fake.inject_after(symbol, 1, 700);
        for _ in 0..2 {
            let error = stream.synchronize().unwrap_err();
            assert!(error.is_sticky(), "{error}");
            assert_eq!(error.to_string(), format!("{symbol} failed with 700 (FAKE_ILLEGAL_ADDRESS)"));
        }
        drop((stream, rig));
        fake.assert_clean();
    }
}

#[test]
fn the_fake_driver_exports_every_function() {
    let fake = Fake::new(1);
    for vendor in Vendor::ALL {
        let symbols = [Library::symbols(vendor), Compiler::symbols(vendor)].concat();
        let missing: Vec<&str> = symbols.into_iter().filter(|symbol| !fake.has_symbol(symbol)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
