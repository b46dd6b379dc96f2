//! A device of this machine, if there is one: the same calls as on the fake driver. Without one, a line is printed.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

use precast_driver::{Compiler, Device, DriverError, Function, Graph, Library, Stream, Vendor};

const TEXT: &str = r#"
extern "C" __global__ void digit(long long* cell, long long value) { *cell = *cell * 10 + value; }
extern "C" __global__ void reverse(float* values, long long count) {
    extern __shared__ float row[];
    for (long long i = threadIdx.x; i < count; i += blockDim.x) row[i] = values[i];
    __syncthreads();
    for (long long i = threadIdx.x; i < count; i += blockDim.x) values[i] = row[count - 1 - i];
}
"#;

/// Runs a test on the first device of each vendor that this machine has with its compiler.
fn on_devices(test: impl Fn(&Device, &dyn Fn(&str) -> Function)) {
    for vendor in Vendor::ALL {
        let opened = Library::open(vendor).and_then(|library| Ok((library.device(0)?, Compiler::open(vendor)?)));
        let (device, compiler) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                println!("skipped for {}: {error}", vendor.name());
                continue;
            }
        };
        println!("{:?}, driver {}", device.info(), device.library().driver_version().unwrap());
        let image = compiler.compile(TEXT, "test.cu", &device.info().arch, &[]).unwrap();
        let module = device.load_module(&image).unwrap();
        test(&device, &|name| module.function(name).unwrap());
    }
}

fn push_digit(stream: &Stream, digit: &Function, address: u64, value: u64) -> Result<(), DriverError> {
    // SAFETY: the kernel takes an address of eight bytes and a number; tests keep the cell until they have waited.
    unsafe { stream.launch(digit, [1; 3], [1; 3], 0, &[address, value]) }
}

#[test]
fn copies_and_kernels() {
    on_devices(|device, function| {
        let stream = device.stream().unwrap();
        let bytes: Vec<u8> = (0..5_000_003u32).map(|index| (index % 251) as u8).collect();
        let (buffer, twin) = (device.allocate(bytes.len()).unwrap(), device.allocate(bytes.len()).unwrap());
        stream.upload(&buffer, 0, &bytes).unwrap();
        stream.fill(&twin, 0, bytes.len(), 7).unwrap();
        stream.copy_device(&twin, 1, &buffer, 0, bytes.len() - 1).unwrap();
        let mut back = vec![0; bytes.len()];
        stream.download(&twin, 0, &mut back).unwrap();
        assert!(back[0] == 7 && back[1..] == bytes[..bytes.len() - 1]);

        let reverse = function("reverse");
        let count = device.info().shared_bytes_max as usize / 4;
        let numbers: Vec<u8> = (0..count).flat_map(|index| (index as f32).to_le_bytes()).collect();
        stream.upload(&buffer, 0, &numbers).unwrap();
        reverse.set_shared_bytes_max(count as u32 * 4).unwrap();
        // SAFETY: the kernel takes the address of as many floats as the second word says.
        unsafe { stream.launch(&reverse, [1; 3], [256, 1, 1], count as u32 * 4, &[buffer.address(), count as u64]) }
            .unwrap();
        let mut first = [0; 4];
        stream.download(&buffer, 0, &mut first).unwrap();
        assert_eq!(f32::from_le_bytes(first), (count - 1) as f32);
        let memory = device.memory_free_total().unwrap();
        assert!(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes);
    });
}

#[test]
fn events_and_capture() {
    on_devices(|device, function| {
        let (stream, second) = (device.stream().unwrap(), device.stream().unwrap());
        let digit = function("digit");
        let cell = device.allocate(8).unwrap();
        let (start, end) = (device.event(true).unwrap(), device.event(true).unwrap());
        stream.fill(&cell, 0, 8, 0).unwrap();
        stream.record(&start).unwrap();
        push_digit(&stream, &digit, cell.address(), 1).unwrap();
        stream.record(&end).unwrap();
        second.wait(&end).unwrap();
        push_digit(&second, &digit, cell.address(), 2).unwrap();
        second.synchronize().unwrap();
        assert!(end.query().unwrap() && end.elapsed_ms_since(&start).unwrap() >= 0.0);

        drop(stream.begin_capture().unwrap());
        let capture = stream.begin_capture().unwrap();
        push_digit(&stream, &digit, cell.address(), 3).unwrap();
        assert!(stream.synchronize().unwrap_err().is_capture());
        assert!(capture.end().unwrap_err().is_capture());
        let capture = stream.begin_capture().unwrap();
        push_digit(&stream, &digit, cell.address(), 3).unwrap();
        push_digit(&stream, &digit, cell.address(), 4).unwrap();
        let graph = capture.end().unwrap();
        assert_eq!(graph.node_count().unwrap(), 2);
        let exec = graph.instantiate().unwrap();
        exec.upload(&stream).unwrap();
        exec.launch(&stream).unwrap();
        exec.launch(&stream).unwrap();
        let mut bytes = [0; 8];
        stream.download(&cell, 0, &mut bytes).unwrap();
        assert_eq!(i64::from_le_bytes(bytes), 123_434);
    });
}

#[test]
fn graphs_by_hand() {
    on_devices(|device, function| {
        let stream = device.stream().unwrap();
        let digit = function("digit");
        let (cell, other) = (device.allocate(8).unwrap(), device.allocate(8).unwrap());
        let (mut source, target) = (device.allocate_pinned(8).unwrap(), device.allocate_pinned(8).unwrap());
        source.as_mut_slice()[0] = 9;
        let mut graph = Graph::new(device).unwrap();
        // SAFETY: the buffers outlive the exec, pinned memory is only touched between launches, and the kernel takes an
        // address of eight bytes and a number.
        let (append, copy) = unsafe {
            let clear = graph.add_fill(&[], &other, 0, 8, 0).unwrap();
            let enter = graph.add_copy_to_device(&[], &cell, 0, &source, 0..8).unwrap();
            let append = graph.add_kernel(&[enter], &digit, [1; 3], [1; 3], 0, &[cell.address(), 1]).unwrap();
            let copy = graph.add_copy_device(&[append, clear], &other, 0, &cell, 0, 8).unwrap();
            graph.add_copy_from_device(&[copy], &target, 0..8, &other, 0).unwrap();
            (append, copy)
        };
        let exec = graph.instantiate().unwrap();
        let run = || {
            exec.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            i64::from_le_bytes(target.as_slice().try_into().unwrap())
        };
        assert_eq!(run(), 91);
        // SAFETY: as above.
        unsafe { exec.set_kernel(append, &digit, [1; 3], [1; 3], 0, &[cell.address(), 4]) }.unwrap();
        assert_eq!(run(), 94);
        stream.fill(&other, 0, 8, 0).unwrap();
        let third = device.allocate(8).unwrap();
        stream.upload(&third, 0, &77i64.to_le_bytes()).unwrap();
        exec.set_copy_device(copy, &other, 0, &third, 0, 8).unwrap();
        assert_eq!(run(), 77);
        drop(exec);
    });
}
