//! Buffers and copies.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::{DeviceBuffer, DriverError, Stream};
use rig::on_both;
use std::sync::Arc;

#[test]
fn ordinary_memory_goes_there_and_back_in_pieces() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        // More than two halves of the staging memory, and a rest.
        let bytes: Vec<u8> = (0..5_000_003u32).map(|index| (index % 251) as u8).collect();
        let buffer = rig.device.allocate(bytes.len() + 7).unwrap();
        stream.upload(&buffer, 7, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        stream.download(&buffer, 7, &mut back).unwrap();
        assert!(back == bytes);
        let mut part = [0; 3];
        stream.download(&buffer, 7 + 4_999_999, &mut part).unwrap();
        assert_eq!(part, bytes[4_999_999..5_000_002]);
    });
}

#[test]
fn pinned_memory_is_copied_when_the_stream_gets_there() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let buffer = rig.device.allocate(16).unwrap();
        let mut source = rig.device.allocate_pinned(8).unwrap();
        let target = rig.device.allocate_pinned(16).unwrap();
        assert_eq!(source.as_slice(), [0; 8]);
        source.as_mut_slice().copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        stream.fill(&buffer, 0, 16, 9).unwrap();
        // SAFETY: the buffers live until the stream was waited for, and nobody touches them meanwhile.
        unsafe { stream.copy_to_device(&buffer, 4, &source, 2..6) }.unwrap();
        stream.copy_device(&buffer, 10, &buffer, 5, 2).unwrap();
        // SAFETY: as above.
        unsafe { stream.copy_from_device(&target, 0..16, &buffer, 0) }.unwrap();
        assert!(!stream.query().unwrap());
        stream.synchronize().unwrap();
        assert_eq!(target.as_slice(), [9, 9, 9, 9, 3, 4, 5, 6, 9, 9, 4, 5, 9, 9, 9, 9]);
        assert!(stream.query().unwrap());
    });
}

#[test]
fn empty_buffers_need_no_driver() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let (buffer, pinned) = (rig.device.allocate(0).unwrap(), rig.device.allocate_pinned(0).unwrap());
        assert_eq!((buffer.address(), buffer.len(), buffer.is_empty()), (0, 0, true));
        stream.upload(&buffer, 0, &[]).unwrap();
        stream.download(&buffer, 0, &mut []).unwrap();
        stream.fill(&buffer, 0, 0, 1).unwrap();
        // SAFETY: no byte is copied.
        unsafe { stream.copy_to_device(&buffer, 0, &pinned, 0..0) }.unwrap();
        assert!(!fake.live().contains("buffers") && !fake.live().contains("pinned"));
    });
}

#[test]
fn ranges_outside_a_buffer_are_refused() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let buffer = rig.device.allocate(8).unwrap();
        let error = stream.upload(&buffer, 6, &[1, 2, 3]).unwrap_err();
        assert_eq!(error, DriverError::OutOfRange { call: "upload", start: 6, end: 9, len: 8 });
        let error = stream.copy_device(&buffer, usize::MAX, &buffer, 0, 2).unwrap_err();
        let sentence = format!("copy_device: bytes {0} to {0} do not lie inside a buffer of 8 bytes", usize::MAX);
        assert_eq!(error.to_string(), sentence);
    });
}

#[test]
fn fresh_memory_is_not_a_number() {
    on_both(|_, rig| {
        let stream = rig.device.stream().unwrap();
        let buffer = rig.device.allocate(4).unwrap();
        let mut bytes = [0; 4];
        stream.download(&buffer, 0, &mut bytes).unwrap();
        assert!(f32::from_le_bytes(bytes).is_nan());
    });
}

#[test]
fn memory_that_does_not_fit_is_an_error_of_its_kind() {
    on_both(|_, rig| {
        let before = rig.device.memory_free_total().unwrap();
        let error = rig.device.allocate(1 << 40).unwrap_err();
        assert!(error.is_out_of_memory() && !error.is_sticky(), "{error}");
        let buffer = rig.device.allocate(1000).unwrap();
        let after = rig.device.memory_free_total().unwrap();
        assert_eq!(before.free_bytes - after.free_bytes, 1000);
        assert_eq!(after.total_bytes, rig.device.info().memory_bytes);
        drop(buffer);
        assert_eq!(rig.device.memory_free_total().unwrap(), before);
    });
}

#[test]
fn memory_of_others_is_used_and_never_freed() {
    on_both(|fake, rig| {
        let stream = rig.device.stream().unwrap();
        let others = rig.device.allocate(64).unwrap();
        let owner = Arc::new(());
        // SAFETY: the memory outlives what adopts it.
        let adopted = unsafe { DeviceBuffer::adopt(&rig.device, others.address() + 16, 32, Box::new(owner.clone())) };
        let adopted = adopted.unwrap();
        assert_eq!((adopted.address(), adopted.len()), (others.address() + 16, 32));
        stream.upload(&adopted, 8, &[1, 2, 3]).unwrap();
        let mut back = [0; 3];
        stream.download(&others, 24, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(adopted);
        assert_eq!(Arc::strong_count(&owner), 1);
        stream.upload(&others, 0, &[4]).unwrap();
        assert!(fake.live().contains("buffers"), "{}", fake.live());
    });
}

#[test]
fn addresses_that_are_no_memory_of_the_device_are_refused() {
    on_both(|_, rig| {
        let host = [0_u8; 8];
        let address = host.as_ptr().addr() as u64;
        // SAFETY: the address is refused.
        let error = unsafe { DeviceBuffer::adopt(&rig.device, address, 8, Box::new(())) }.unwrap_err();
        assert_eq!(error.to_string(), format!("adopt: {address:#x} is no memory of device 0"));
        // SAFETY: nothing is touched.
        let empty = unsafe { DeviceBuffer::adopt(&rig.device, 0, 0, Box::new(())) }.unwrap();
        assert!(empty.is_empty());
    });
}

#[test]
fn a_device_that_is_open_is_shared() {
    on_both(|_, rig| {
        let again = rig.library.device(0).unwrap();
        let buffer = again.allocate(8).unwrap();
        // Objects of one are objects of the other.
        rig.device.stream().unwrap().upload(&buffer, 0, &[1; 8]).unwrap();
    });
}

#[test]
fn work_waits_for_the_default_stream_and_it_for_work() {
    on_both(|_, rig| {
        let (stream, others) = (rig.device.stream().unwrap(), Stream::legacy(&rig.device));
        let buffer = rig.device.allocate(8).unwrap();
        let (before, after) = (rig.device.event(false).unwrap(), rig.device.event(false).unwrap());
        others.record(&before).unwrap();
        stream.wait(&before).unwrap();
        stream.fill(&buffer, 0, 8, 7).unwrap();
        stream.record(&after).unwrap();
        others.wait(&after).unwrap();
        after.synchronize().unwrap();
        let mut back = [0; 8];
        stream.download(&buffer, 0, &mut back).unwrap();
        assert_eq!(back, [7; 8]);
    });
}
