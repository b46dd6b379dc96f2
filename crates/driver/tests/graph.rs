//! Capture, and graphs built by hand.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::{DriverError, Graph};
use rig::{on_both, push_digit, read_cell};

#[test]
fn a_capture_records_and_a_launch_runs() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&stream, &[0i64]).unwrap();
        let capture = stream.begin_capture().unwrap();
        for value in [1, 2] {
            push_digit(&stream, &digit, &cell, value).unwrap();
        }
        let graph = capture.end().unwrap();
        assert_eq!(graph.node_count().unwrap(), 2);
        assert_eq!(read_cell(&stream, &cell).unwrap(), 0);
        let exec = graph.instantiate().unwrap();
        drop(graph);
        exec.upload(&stream).unwrap();
        exec.launch(&stream).unwrap();
        exec.launch(&stream).unwrap();
        assert_eq!(read_cell(&stream, &cell).unwrap(), 1212);
    });
}

#[test]
fn a_dropped_guard_aborts_and_the_stream_works() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&stream, &[0i64]).unwrap();
        let capture = stream.begin_capture().unwrap();
        push_digit(&stream, &digit, &cell, 1).unwrap();
        drop(capture);
        assert!(!fake.live().contains("graphs") && !fake.live().contains("captures"));
        push_digit(&stream, &digit, &cell, 2).unwrap();
        assert_eq!(read_cell(&stream, &cell).unwrap(), 2);
    });
}

#[test]
fn a_panic_inside_a_capture_leaves_the_stream_usable() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let cell = rig.buffer(&stream, &[3i64]).unwrap();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _capture = stream.begin_capture().unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(unwound.is_err());
        assert_eq!(read_cell(&stream, &cell).unwrap(), 3);
    });
}

#[test]
fn streams_fork_and_join_inside_a_capture() {
    on_both(|fake, rig| {
        let (first, second) = (rig.device.stream().unwrap(), rig.device.stream().unwrap());
        let digit = rig.module().unwrap().function("digit").unwrap();
        let (cell, other) = (rig.buffer(&first, &[0i64]).unwrap(), rig.buffer(&first, &[0i64]).unwrap());
        let (fork, join) = (rig.device.event(false).unwrap(), rig.device.event(false).unwrap());
        let capture = first.begin_capture().unwrap();
        push_digit(&first, &digit, &cell, 1).unwrap();
        first.record(&fork).unwrap();
        second.wait(&fork).unwrap();
        push_digit(&second, &digit, &other, 5).unwrap();
        push_digit(&first, &digit, &cell, 2).unwrap();
        second.record(&join).unwrap();
        first.wait(&join).unwrap();
        push_digit(&first, &digit, &other, 6).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        exec.launch(&first).unwrap();
        assert_eq!((read_cell(&first, &cell).unwrap(), read_cell(&first, &other).unwrap()), (12, 56));

        let capture = first.begin_capture().unwrap();
        first.record(&fork).unwrap();
        second.wait(&fork).unwrap();
        push_digit(&second, &digit, &other, 7).unwrap();
        let error = capture.end().unwrap_err();
        assert!(error.is_capture(), "{error}");
        let violations = fake.violations();
        assert!(violations.len() == 1 && violations[0].contains("was not joined back"), "{violations:?}");
        push_digit(&second, &digit, &other, 8).unwrap();
        assert_eq!(read_cell(&second, &other).unwrap(), 568);
    });
}

#[test]
fn calls_that_a_capture_forbids_break_it_with_a_sentence() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let outside = rig.device.event(false).unwrap();
        let image = rig.compiler.compile(rig::TEXT, "test.cu", rig::arch(rig.vendor), &[]).unwrap();
        stream.record(&outside).unwrap();
        let forbidden: [&dyn Fn() -> Result<(), DriverError>; 9] = [
            &|| rig.device.allocate(8).map(drop),
            &|| rig.device.allocate_pinned(8).map(drop),
            &|| rig.device.synchronize(),
            &|| stream.synchronize(),
            &|| stream.query().map(drop),
            &|| outside.synchronize(),
            &|| rig.device.load_module(&image).map(drop),
            &|| stream.wait(&outside),
            &|| stream.begin_capture().map(|_| ()),
        ];
        for call in forbidden {
            let capture = stream.begin_capture().unwrap();
            let error = call().unwrap_err();
            assert!(error.is_capture(), "{error}");
            assert!(capture.end().unwrap_err().is_capture());
            let violations = fake.violations();
            assert!(violations.len() == 1 && violations[0].starts_with("R2 "), "{violations:?}");
            stream.synchronize().unwrap();
        }
    });
}

#[test]
fn a_graph_is_built_by_hand_and_its_parameters_change() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let module = rig.module().unwrap();
        let digit = module.function("digit").unwrap();
        let (cell, other) = (rig.device.allocate(8).unwrap(), rig.device.allocate(8).unwrap());
        let (mut source, target) = (rig.device.allocate_pinned(8).unwrap(), rig.device.allocate_pinned(8).unwrap());
        source.as_mut_slice()[0] = 9;
        let mut graph = Graph::new(&rig.device).unwrap();
        // SAFETY: for all four nodes: the buffers outlive the exec, pinned memory is only touched between launches,
        // and the kernel takes an address of eight bytes and a number.
        let (copy, append) = unsafe {
            let clear = graph.add_fill(&[], &other, 0, 8, 0).unwrap();
            let enter = graph.add_copy_to_device(&[], &cell, 0, &source, 0..8).unwrap();
            let append = graph.add_kernel(&[enter], &digit, [1; 3], [1; 3], 0, &[cell.address(), 1]).unwrap();
            let copy = graph.add_copy_device(&[append, clear], &other, 0, &cell, 0, 8).unwrap();
            graph.add_copy_from_device(&[copy], &target, 0..8, &other, 0).unwrap();
            (copy, append)
        };
        assert_eq!(graph.node_count().unwrap(), 5);
        let exec = graph.instantiate().unwrap();
        drop((graph, module));
        let read = || i64::from_le_bytes(target.as_slice().try_into().unwrap());
        exec.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(read(), 91);
        // SAFETY: as above.
        unsafe { exec.set_kernel(append, &digit, [1; 3], [1; 3], 0, &[cell.address(), 4]) }.unwrap();
        drop(digit);
        exec.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(read(), 94);
        let third = rig.buffer(&stream, &[77i64]).unwrap();
        exec.set_copy_device(copy, &other, 0, &third, 0, 8).unwrap();
        exec.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(read(), 77);
        let mut graph = Graph::new(&rig.device).unwrap();
        assert!(matches!(graph.add_fill(&[], &other, 8, 0, 0), Err(DriverError::Invalid { .. })));
        drop(exec);
    });
}

#[test]
fn memory_that_an_exec_refers_to_must_live() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let digit = rig.module().unwrap().function("digit").unwrap();
        let cell = rig.buffer(&stream, &[0i64]).unwrap();
        let capture = stream.begin_capture().unwrap();
        push_digit(&stream, &digit, &cell, 1).unwrap();
        let exec = capture.end().unwrap().instantiate().unwrap();
        drop(cell);
        let violations = fake.violations();
        assert!(violations.len() == 1 && violations[0].contains("a live graph exec refers to"), "{violations:?}");
        assert!(exec.launch(&stream).unwrap_err().is_sticky());
        let violations = fake.violations();
        assert!(violations.len() == 2 && violations[1].starts_with("R6 "), "{violations:?}");
    });
}
