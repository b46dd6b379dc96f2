//! Modules, kernels, streams and events.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::{DriverError, Stream, Vendor};
use rig::{arch, on_both, on_vendors, push_digit, read_cell};

#[test]
fn a_kernel_runs_with_the_values_it_was_launched_with() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let module = rig.module().unwrap();
        let add = module.function("add").unwrap();
        // The function keeps its module.
        drop(module);
        let left = rig.buffer(&stream, &[1.0f32, 2.0, 3.0]).unwrap();
        let right = rig.buffer(&stream, &[10.0f32, 20.0, 30.0]).unwrap();
        let out = rig.device.allocate(12).unwrap();
        let mut words = [out.address(), left.address(), right.address(), 3];
        // SAFETY: the kernel takes three addresses of as many floats as the last word says; all live to the end.
        unsafe { stream.launch(&add, [1, 1, 1], [32, 1, 1], 0, &words) }.unwrap();
        words.fill(0);
        let mut bytes = [0; 12];
        stream.download(&out, 0, &mut bytes).unwrap();
        let sums: Vec<f32> = bytes.chunks(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect();
        assert_eq!(sums, [11.0, 22.0, 33.0]);
    });
}

#[test]
fn a_kernel_may_follow_addresses_in_memory() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let chain = rig.module().unwrap().function("chain").unwrap();
        let cell = rig.buffer(&stream, &[0i64]).unwrap();
        let table = rig.buffer(&stream, &[cell.address() as i64]).unwrap();
        // SAFETY: the kernel takes the address of an address, and both live to the end.
        unsafe { stream.launch(&chain, [1; 3], [1; 3], 0, &[table.address()]) }.unwrap();
        assert_eq!(read_cell(&stream, &cell).unwrap(), 42);
    });
}

#[test]
fn a_kernel_that_writes_a_little_beside_a_buffer_is_named() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let add = rig.module().unwrap().function("add").unwrap();
        let buffer = rig.device.allocate(12).unwrap();
        let address = buffer.address();
        // SAFETY: one float too many stays on the pages of the buffer.
        unsafe { stream.launch(&add, [1, 1, 1], [4, 1, 1], 0, &[address, address, address, 4]) }.unwrap();
        stream.synchronize().unwrap();
        let violations = fake.violations();
        assert!(violations.len() == 1 && violations[0].contains("kernel add wrote beside"), "{violations:?}");
    });
}

#[test]
fn work_runs_only_when_something_waits() {
    on_both(|_, rig| {
        let (first, second) = (rig.device.stream().unwrap(), rig.device.stream().unwrap());
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&first, &[0i64]).unwrap();
        for value in [1, 2, 3] {
            push_digit(&first, &digit, &cell, value).unwrap();
        }
        assert!(!first.query().unwrap() && second.query().unwrap());
        let mut rounds = 0;
        while !first.query().unwrap() {
            rounds += 1;
            assert!(rounds < 10);
        }
        assert_eq!(read_cell(&second, &cell).unwrap(), 123);
    });
}

#[test]
fn events_order_streams_whichever_is_waited_for() {
    on_both(|_, rig| {
        let (first, second) = (rig.device.stream().unwrap(), rig.device.stream().unwrap());
        let digit = rig.module().unwrap().function("digit").unwrap();
        for waited in [&first, &second] {
            let cell = rig.buffer(&first, &[0i64]).unwrap();
            let (there, back) = (rig.device.event(false).unwrap(), rig.device.event(false).unwrap());
            assert!(there.query().unwrap(), "an event that was never recorded is passed");
            push_digit(&first, &digit, &cell, 1).unwrap();
            first.record(&there).unwrap();
            second.wait(&there).unwrap();
            push_digit(&second, &digit, &cell, 2).unwrap();
            second.record(&back).unwrap();
            first.wait(&back).unwrap();
            push_digit(&first, &digit, &cell, 3).unwrap();
            assert!(!back.query().unwrap());
            waited.synchronize().unwrap();
            back.synchronize().unwrap();
            assert_eq!(read_cell(&first, &cell).unwrap(), 123);
        }
    });
}

#[test]
fn time_passes_between_timed_events() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let (start, end, untimed) =
            (rig.device.event(true).unwrap(), rig.device.event(true).unwrap(), rig.device.event(false).unwrap());
        stream.record(&start).unwrap();
        stream.record(&end).unwrap();
        stream.record(&untimed).unwrap();
        stream.synchronize().unwrap();
        assert!(end.elapsed_ms_since(&start).unwrap() >= 0.0);
        assert!(untimed.elapsed_ms_since(&start).is_err());
    });
}

#[test]
fn a_caller_s_stream_is_used_and_left_alone() {
    on_both(|fake, rig| {
        let owner = rig.device.stream().unwrap();
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&owner, &[0i64]).unwrap();
        // SAFETY: the owner outlives the borrowed stream.
        let borrowed = unsafe { Stream::from_raw(&rig.device, owner.raw()) }.unwrap();
        push_digit(&borrowed, &digit, &cell, 7).unwrap();
        drop(borrowed);
        assert_eq!(read_cell(&owner, &cell).unwrap(), 7);
        // SAFETY: the default stream is refused before anything uses it.
        let error = unsafe { Stream::from_raw(&rig.device, 0) }.unwrap_err();
        assert!(error.to_string().contains("default stream"), "{error}");
        assert_eq!(fake.violations(), Vec::<String>::new());
    });
}

#[test]
fn images_and_names_that_do_not_fit_are_errors() {
    on_vendors(|_, rig| {
        let other = if rig.vendor == Vendor::Cuda { "sm_80" } else { "gfx1030" };
        let image = rig.compiler.compile(rig::TEXT, "test.cu", other, &[]).unwrap();
        assert_eq!(rig.device.load_module(&image).unwrap_err().code(), Some(209));
        assert_eq!(rig.device.load_module(&[0; 64]).unwrap_err().code(), Some(200));
        assert!(matches!(rig.device.load_module(&[]), Err(DriverError::Invalid { .. })));
        let module = rig.module().unwrap();
        assert_eq!(module.function("missing").unwrap_err().code(), Some(500));
        assert!(matches!(module.function("a\0b"), Err(DriverError::Invalid { .. })));
    });
}

#[test]
fn a_text_that_does_not_compile_gives_the_log() {
    on_vendors(|_, rig| {
        let error = rig.compiler.compile("int a;\n#error_for_test\n", "wrong.cu", arch(rig.vendor), &[]).unwrap_err();
        let (name, arch) = ("wrong.cu".to_string(), arch(rig.vendor).to_string());
        let log = "wrong.cu(2): error: this line does not compile".to_string();
        assert_eq!(error, DriverError::Compile { name, arch, log });
        let error = rig.compiler.compile("int a;", "a.cu", "x86", &[]).unwrap_err();
        assert!(error.to_string().contains("'x86' is not an architecture"), "{error}");
        assert_eq!(rig.compiler.version().unwrap(), (13, 0));
    });
}

#[test]
fn shared_memory_is_asked_for_up_to_the_device_s() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&stream, &[0i64]).unwrap();
        let most = rig.device.info().shared_bytes_max;
        digit.set_shared_bytes_max(most).unwrap();
        assert!(digit.set_shared_bytes_max(most + 1).is_err());
        // SAFETY: the kernel takes an address of eight bytes and a number.
        unsafe { stream.launch(&digit, [1; 3], [1; 3], most, &[cell.address(), 5]) }.unwrap();
        assert_eq!(read_cell(&stream, &cell).unwrap(), 5);
        // SAFETY: the launch is refused.
        let error = unsafe { stream.launch(&digit, [1; 3], [1; 3], most + 1, &[cell.address(), 5]) }.unwrap_err();
        assert_eq!(error.code(), Some(1));
    });
}

#[test]
fn a_device_says_what_it_is() {
    on_vendors(|_, rig| {
        let info = rig.device.info();
        let (name, warp) =
            if rig.vendor == Vendor::Cuda { ("Fake CUDA device 0", 32) } else { ("Fake HIP device 0", 64) };
        assert_eq!((info.name.as_str(), info.arch.as_str(), info.warp), (name, arch(rig.vendor), warp));
        assert!(info.multiprocessors > 0 && info.l2_bytes > 0 && info.shared_bytes_max >= 64 << 10);
        assert_eq!((info.ordinal, rig.library.device_count().unwrap()), (0, 1));
        assert_eq!(rig.library.driver_version().unwrap(), 13_000);
        assert_eq!(rig.library.device(1).unwrap_err().code(), Some(101));
        rig.device.synchronize().unwrap();
    });
}
