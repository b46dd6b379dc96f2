//! Several devices, used from fresh threads.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

mod rig;

use precast_driver::{DriverError, Vendor};
use precast_fake_driver::Fake;
use rig::{Rig, push_digit, read_cell};

#[test]
fn every_call_is_made_on_its_own_device() {
    for vendor in Vendor::ALL {
        for count in [1, 2, 4, 8] {
            let fake = Fake::new(count);
            let library = Rig::open(&fake, vendor).unwrap().library;
            assert_eq!(library.device_count().unwrap(), count as usize);
            let rigs: Vec<Rig> = (0..count as usize)
                .map(|ordinal| {
                    let rig = Rig::open(&fake, vendor).unwrap();
                    Rig { device: rig.library.device(ordinal).unwrap(), ..rig }
                })
                .collect();
            // Objects are made here, in turns, and used and dropped on threads that never chose a device.
            std::thread::scope(|scope| {
                for rig in rigs {
                    let stream = rig.device.stream().unwrap();
                    let digit = rig.module().unwrap().function("digit").unwrap();
                    let cell = rig.buffer(&stream, &[0i64]).unwrap();
                    let event = rig.device.event(false).unwrap();
                    scope.spawn(move || {
                        let capture = stream.begin_capture().unwrap();
                        push_digit(&stream, &digit, &cell, 4).unwrap();
                        let exec = capture.end().unwrap().instantiate().unwrap();
                        exec.launch(&stream).unwrap();
                        push_digit(&stream, &digit, &cell, 2).unwrap();
                        stream.record(&event).unwrap();
                        event.synchronize().unwrap();
                        assert_eq!(read_cell(&stream, &cell).unwrap(), 42);
                        drop(exec);
                    });
                }
            });
            drop(library);
            fake.assert_clean();
        }
    }
}

#[test]
fn threads_share_a_device() {
    for vendor in Vendor::ALL {
        let fake = Fake::new(1);
        let rig = Rig::open(&fake, vendor).unwrap();
        std::thread::scope(|scope| {
            for value in 0..4u8 {
                let rig = &rig;
                scope.spawn(move || {
                    let stream = rig.device.stream().unwrap();
                    let bytes = vec![value; 3 << 20];
                    let buffer = rig.device.allocate(bytes.len()).unwrap();
                    let mut back = vec![0xEE; bytes.len()];
                    for _ in 0..4 {
                        stream.upload(&buffer, 0, &bytes).unwrap();
                        stream.download(&buffer, 0, &mut back).unwrap();
                        assert!(back == bytes);
                    }
                });
            }
        });
        drop(rig);
        fake.assert_clean();
    }
}

#[test]
fn objects_of_another_device_are_refused_with_a_sentence() {
    for vendor in Vendor::ALL {
        let fake = Fake::new(2);
        let rig = Rig::open(&fake, vendor).unwrap();
        let other = rig.library.device(1).unwrap();
        let (stream, far_stream) = (rig.device.stream().unwrap(), other.stream().unwrap());
        let (event, far_event) = (rig.device.event(false).unwrap(), other.event(false).unwrap());
        let far_buffer = other.allocate(8).unwrap();
        let error = stream.upload(&far_buffer, 0, &[1]).unwrap_err();
        assert_eq!(error.to_string(), "upload: the destination belongs to device 1, the call is for device 0");
        assert!(matches!(stream.record(&far_event), Err(DriverError::WrongDevice { found: 1, expected: 0, .. })));
        // Waiting across devices is what events are for.
        far_stream.record(&far_event).unwrap();
        stream.wait(&far_event).unwrap();
        stream.record(&event).unwrap();
        event.synchronize().unwrap();
        drop((stream, far_stream, event, far_event, far_buffer, other, rig));
        fake.assert_clean();
    }
}
