//! Wrong calls, made without the driver room, which would not make them: each is told in a sentence with its rule.
#![allow(unsafe_code, clippy::unwrap_used, reason = "the whole file is a test")]

use libloading::Library;
use precast_fake_driver::Fake;
use std::ptr::from_mut;

/// The functions under test, by what they do.
struct Names {
    initialise: &'static str,
    allocate: &'static str,
    free: &'static str,
    pin: &'static str,
    unpin: &'static str,
    copy_in: &'static str,
    fill: &'static str,
    stream: &'static str,
    destroy: &'static str,
    wait: &'static str,
    begin: &'static str,
    end: &'static str,
}

const CUDA: Names = Names {
    initialise: "cuInit",
    allocate: "cuMemAlloc_v2",
    free: "cuMemFree_v2",
    pin: "cuMemHostAlloc",
    unpin: "cuMemFreeHost",
    copy_in: "cuMemcpyHtoDAsync_v2",
    fill: "cuMemsetD8Async",
    stream: "cuStreamCreate",
    destroy: "cuStreamDestroy_v2",
    wait: "cuStreamSynchronize",
    begin: "cuStreamBeginCapture_v2",
    end: "cuStreamEndCapture",
};

const HIP: Names = Names {
    initialise: "hipInit",
    allocate: "hipMalloc",
    free: "hipFree",
    pin: "hipHostMalloc",
    unpin: "hipHostFree",
    copy_in: "hipMemcpyHtoDAsync",
    fill: "hipMemsetD8Async",
    stream: "hipStreamCreateWithFlags",
    destroy: "hipStreamDestroy",
    wait: "hipStreamSynchronize",
    begin: "hipStreamBeginCapture",
    end: "hipStreamEndCapture",
};

/// A fake driver of two devices, called by name.
struct Raw {
    fake: Fake,
    library: Library,
    names: &'static Names,
}

impl Raw {
    fn new(names: &'static Names) -> Raw {
        let fake = Fake::new(2);
        // SAFETY: the library is our own.
        let library = unsafe { Library::new(fake.path()) }.unwrap();
        let raw = Raw { fake, library, names };
        assert_eq!(raw.call(names.initialise, &[0]), 0);
        raw
    }

    /// Calls a function with words; those that it does not take are not looked at.
    fn call(&self, name: &str, words: &[usize]) -> i32 {
        type Words = unsafe extern "C" fn(usize, usize, usize, usize) -> i32;
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        // SAFETY: all functions of this file take at most four words.
        let function = unsafe { self.library.get::<Words>(name.as_bytes()) }.unwrap();
        // SAFETY: the tests pass what the function takes, or what it must refuse.
        unsafe { function(word(0), word(1), word(2), word(3)) }
    }

    /// Calls a function that gives a word through its first argument.
    fn make(&self, name: &str, words: &[usize]) -> usize {
        let mut made = 0usize;
        let words = [&[from_mut(&mut made) as usize], words].concat();
        assert_eq!(self.call(name, &words), 0, "{name}");
        made
    }

    fn choose(&self, device: usize) {
        if self.names.initialise == "hipInit" {
            assert_eq!(self.call("hipSetDevice", &[device]), 0);
            return;
        }
        let context = self.make("cuDevicePrimaryCtxRetain", &[device]);
        assert_eq!(self.call("cuCtxSetCurrent", &[context]), 0);
    }

    fn stream(&self) -> usize {
        self.make(self.names.stream, &[1])
    }

    /// Requires that a call fails and breaks exactly this rule.
    fn breaks(&self, name: &str, words: &[usize], sentence: &str) {
        assert_ne!(self.call(name, words), 0, "{name}");
        self.expect(sentence);
    }

    fn expect(&self, sentence: &str) {
        let violations = self.fake.violations();
        assert!(violations.len() == 1 && violations[0].contains(sentence), "{violations:?}");
    }
}

fn on_both(test: impl Fn(&Raw) + Sync) {
    for names in [&CUDA, &HIP] {
        // A thread of its own, which has not chosen a device.
        std::thread::scope(|scope| scope.spawn(|| test(&Raw::new(names))).join().unwrap());
    }
}

#[test]
fn r1_a_thread_chooses_the_device_of_its_objects() {
    on_both(|raw| {
        let mut address = 0usize;
        let words = [from_mut(&mut address) as usize, 8];
        raw.breaks(raw.names.allocate, &words, "this thread has not chosen a device");
        raw.choose(0);
        let (stream, buffer) = (raw.stream(), raw.make(raw.names.allocate, &[8]));
        raw.choose(1);
        raw.breaks(raw.names.wait, &[stream], "the stream is of device 0, the current device is 1");
        raw.breaks(raw.names.free, &[buffer], "the memory is of device 0, the current device is 1");
        let near = raw.stream();
        raw.breaks(raw.names.fill, &[buffer, 0, 8, near], "the memory is of device 0, the current device is 1");
    });
}

#[test]
fn r2_a_capture_stays_on_its_thread_and_out_of_the_way_of_others() {
    on_both(|raw| {
        raw.choose(0);
        let stream = raw.stream();
        assert_eq!(raw.call(raw.names.begin, &[stream, 0]), 0);
        raw.expect("which forbids calls of other threads");
        let mut graph = 0usize;
        let words = [stream, from_mut(&mut graph) as usize];
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                raw.choose(0);
                raw.breaks(raw.names.end, &words, "the capture was begun on another thread");
                raw.breaks(raw.names.wait, &[stream], "the stream is being captured");
            });
            other.join().unwrap();
        });
        assert_eq!(raw.call(raw.names.end, &words), 901);
        raw.breaks(raw.names.end, &words, "the stream is not being captured");
    });
}

#[test]
fn r3_what_was_given_up_is_gone() {
    on_both(|raw| {
        raw.choose(0);
        let (stream, buffer) = (raw.stream(), raw.make(raw.names.allocate, &[8]));
        let pinned = raw.make(raw.names.pin, &[8, 0]);
        assert!(raw.fake.live().contains("buffers=1 pinned=1 streams=1"), "{}", raw.fake.live());
        assert_eq!(raw.call(raw.names.free, &[buffer]), 0);
        raw.breaks(raw.names.free, &[buffer], "was freed before");
        raw.breaks(raw.names.free, &[buffer + 1], "is not the start of an allocation");
        raw.breaks(raw.names.fill, &[buffer, 0, 8, stream], "was freed");
        assert_eq!(raw.call(raw.names.unpin, &[pinned]), 0);
        raw.breaks(raw.names.unpin, &[pinned], "is not pinned memory, or was freed before");
        assert_eq!(raw.call(raw.names.destroy, &[stream]), 0);
        raw.breaks(raw.names.wait, &[stream], "was destroyed");
        raw.breaks(raw.names.destroy, &[12345], "was never given");
    });
}

#[test]
fn r5_copies_stay_inside_pinned_and_device_memory() {
    on_both(|raw| {
        raw.choose(0);
        let (stream, buffer) = (raw.stream(), raw.make(raw.names.allocate, &[8]));
        let ordinary = [0u8; 8];
        let words = [buffer, ordinary.as_ptr() as usize, 8, stream];
        raw.breaks(raw.names.copy_in, &words, "the 8 host bytes of an asynchronous copy are not pinned");
        let pinned = raw.make(raw.names.pin, &[8, 0]);
        raw.breaks(raw.names.copy_in, &[buffer, pinned + 1, 8, stream], "are not pinned");
        raw.breaks(raw.names.copy_in, &[buffer + 1, pinned, 8, stream], "leave the allocation of 8 bytes");
        raw.breaks(raw.names.copy_in, &[pinned, pinned, 8, stream], "is not in an allocation");
        assert_eq!(raw.call(raw.names.copy_in, &[buffer, pinned, 8, stream]), 0);
        assert_eq!(raw.call(raw.names.wait, &[stream]), 0);
        assert_eq!(raw.fake.violations(), Vec::<String>::new());
    });
}

#[test]
fn r7_the_default_stream_is_not_used() {
    on_both(|raw| {
        raw.choose(0);
        let buffer = raw.make(raw.names.allocate, &[8]);
        raw.breaks(raw.names.fill, &[buffer, 0, 8, 0], "the default stream is used");
        raw.breaks(raw.names.wait, &[0], "the default stream is used");
        raw.make(raw.names.stream, &[0]);
        raw.expect("the stream waits for the default stream");
    });
}

#[test]
fn faults_come_when_they_were_asked_for() {
    on_both(|raw| {
        raw.choose(0);
        let stream = raw.stream();
        raw.fake.inject(raw.names.wait, 2, 719);
        let statuses: Vec<i32> = (0..4).map(|_| raw.call(raw.names.wait, &[stream])).collect();
        assert_eq!(statuses, [0, 719, 0, 0]);
        raw.fake.inject_after(raw.names.wait, 2, 700);
        let statuses: Vec<i32> = (0..4).map(|_| raw.call(raw.names.wait, &[stream])).collect();
        assert_eq!(statuses, [0, 700, 700, 700]);
        assert_eq!(raw.fake.calls(raw.names.wait), 8);
        raw.fake.inject(raw.names.stream, 1, -1);
        assert_eq!(raw.make(raw.names.stream, &[1]), 0);
        raw.fake.reset(1);
        assert_eq!((raw.fake.live().as_str(), raw.fake.calls(raw.names.wait)), ("", 0));
    });
}
