//! Sessions on GPUs, on the fake driver: padded, split and exact requests from the host and on the device, on one device and on
//! several, with threads of their own and with devices that fail.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../gpu/tests/rig/mod.rs"]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use precast::device_name::{DeviceKind, DeviceName};
use precast::{Gpu, GpuInput, InputMemory, OutputMemory, run_on_gpu};
use precast_cache::{CacheOptions, ProgramCache};
use precast_driver::{Library, Vendor};
use precast_gpu::{CaptureLimits, GpuStream};
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_passes::FloatPrecision;
use precast_program::{Device, DeviceMemory, Target};
use precast_session::{
    Argument, BucketPolicy, DeviceArgument, DevicePlace, DimOptions, IoPath, LaunchPath, OutputBuffer, RunReport,
    Session, SessionError, SessionOptions, Startup, StepsReason, Tier, check_replay,
};
use precast_tensor::{DType, Tensor};
use rig::{Rig, assert_near, graph};

/// One output has rows, one a number a row, and one input is of the whole request.
const ROWS: &str = r#"graph "rows"(%0 "x": f32[n,6], %1 "s": f32[1]) {
  %2 = binary.mul(%0, %1) : f32[n,6]
  %3 = unary.tanh(%2) {alpha=0.0, beta=0.0} : f32[n,6]
  %4 = reduce.sum(%3) {axes=[1], keep_dims=false} : f32[n]
  return "y" %3, "t" %4
}
"#;

/// What the fake driver's kernels may differ by from reference evaluation.
const TOLERANCE: f64 = 1e-5;
/// A fault after which every call on a device fails.
const ILLEGAL_ADDRESS: i32 = 700;

/// A Session and all that it lies on.
struct Opened {
    session: Session,
    rig: RigParts,
    graph: Graph,
}

/// The fake driver under a Session, to be looked at when the Session is gone.
struct RigParts {
    fake: precast_fake_driver::Fake,
    library: Library,
}

impl Opened {
    fn new(vendor: Vendor, devices: u32, max: i64, contexts: usize) -> Opened {
        Opened::on(vendor, devices, max, contexts, CacheOptions::memory())
    }

    fn on(vendor: Vendor, devices: u32, max: i64, contexts: usize, cache: CacheOptions) -> Opened {
        let cache = Arc::new(ProgramCache::open(cache).unwrap());
        let Rig { devices, target, fake, library, .. } =
            Rig::with(vendor, devices, FloatPrecision::F32, CaptureLimits { max_graphs: 1000, ..Default::default() });
        let devices: Vec<Arc<dyn Device>> =
            devices.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
        let mut options = SessionOptions { measures: false, startup: Startup::All, contexts, ..Default::default() };
        options.dims.insert("n".to_string(), DimOptions { buckets: BucketPolicy::PowersOfTwo { max } });
        let target: Arc<dyn Target> = Arc::new(target);
        let graph = graph(ROWS);
        let session = Session::open_graph_on(&graph, options, target, devices, cache).unwrap();
        Opened { session, rig: RigParts { fake, library }, graph }
    }

    /// Runs a request from the host and compares the answer with reference evaluation.
    fn run_host(&self, rows: usize, seed: u64) -> Result<RunReport, SessionError> {
        let request = Request::new(rows, seed);
        let (mut y, mut t) = (OutputBuffer::new(rows * 24), OutputBuffer::new(rows * 4));
        y.as_bytes_mut().fill(0xa5);
        t.as_bytes_mut().fill(0xa5);
        let arguments = [Argument::from(&request.x), Argument::from(&request.s)];
        let report = self.session.run_into(&arguments, &mut [y.as_bytes_mut(), t.as_bytes_mut()])?;
        request.assert_answered(&self.graph, y.as_ref(), t.as_ref());
        Ok(report)
    }

    /// The same with buffers on a device.
    fn run_on(&self, device: usize, rows: usize, seed: u64) -> Result<RunReport, SessionError> {
        let request = Request::new(rows, seed);
        let mut buffers = Vec::new();
        for bytes in [rows * 24, 4, rows * 24, rows * 4] {
            buffers.push(self.session.devices()[device].allocate(bytes)?);
        }
        let [x, s, y, t] = [0, 1, 2, 3].map(|at| &*buffers[at]);
        x.write(0, request.x.as_bytes())?;
        s.write(0, request.s.as_bytes())?;
        y.write(0, &vec![0xa5; rows * 24])?;
        let (report, end) = self.session.submit_on_device(&request.arguments(x, s), &[place(y), place(t)], None)?;
        end.wait()?;
        // A request of another thread on the same context may have moved the mark since.
        while !end.is_done()? {
            end.wait()?;
        }
        let (mut found_y, mut found_t) = (vec![0; rows * 24], vec![0; rows * 4]);
        y.read(0, &mut found_y)?;
        t.read(0, &mut found_t)?;
        request.assert_answered(&self.graph, &found_y, &found_t);
        Ok(report)
    }

    fn close(self) {
        let Opened { session, rig: RigParts { fake, library }, .. } = self;
        drop((session, library));
        // A thread that has brought a Program may hold it a little longer than the Session.
        for _ in 0..1000 {
            if fake.live().is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        fake.assert_clean();
    }
}

/// Inputs of a request.
struct Request {
    x: Tensor,
    s: Tensor,
    shape: [usize; 2],
}

impl Request {
    fn new(rows: usize, seed: u64) -> Request {
        let number = |at: usize| ((at as u64 * 37 + seed * 11) % 101) as f32 / 50.0 + 0.1;
        let x = Tensor::from_vec([rows, 6], (0..rows * 6).map(number).collect()).unwrap();
        let s = Tensor::from_vec([1], vec![0.5 + seed as f32 / 100.0]).unwrap();
        Request { x, s, shape: [rows, 6] }
    }

    fn arguments<'a>(&'a self, x: &'a dyn DeviceMemory, s: &'a dyn DeviceMemory) -> [DeviceArgument<'a>; 2] {
        [
            DeviceArgument { dtype: DType::F32, shape: &self.shape, memory: x, start: 0 },
            DeviceArgument { dtype: DType::F32, shape: &[1], memory: s, start: 0 },
        ]
    }

    fn assert_answered(&self, graph: &Graph, y: &[u8], t: &[u8]) {
        let bindings = [("n", self.shape[0] as i64)].into_iter().collect();
        let bound = graph.bind(&bindings, &Default::default()).unwrap();
        let expected = eval_graph(&bound, &[self.x.clone(), self.s.clone()]).unwrap();
        assert_near(y, &expected[0], TOLERANCE);
        assert_near(t, &expected[1], TOLERANCE);
    }
}

fn place(memory: &dyn DeviceMemory) -> DevicePlace<'_> {
    DevicePlace { memory, start: 0 }
}

fn symbol(vendor: Vendor, part: &str) -> &'static str {
    Library::symbols(vendor).into_iter().find(|symbol| symbol.contains(part)).unwrap()
}

#[test]
fn requests_from_the_host_are_padded_split_and_replayed() {
    for vendor in Vendor::ALL {
        let opened = Opened::new(vendor, 1, 8, 1);
        for round in 0..5 {
            for rows in [1, 3, 4, 7, 8, 11] {
                let report = opened.run_host(rows, round).unwrap();
                // Split requests have warmed the Buckets of others meanwhile.
                let is_launched = round < 3 || report.device.launch == LaunchPath::Replayed;
                assert!(is_launched, "{rows} rows, round {round}: {}", report.device);
                assert_eq!((report.device.inputs, report.device.outputs), (IoPath::Host, IoPath::Host));
            }
        }
        let (replayed, captured) = opened.session.counters().captures();
        assert!(replayed > captured && captured > 0, "{replayed} {captured}");
        opened.close();
    }
}

#[test]
fn requests_on_the_device_are_padded_and_sliced_there() {
    for vendor in Vendor::ALL {
        let opened = Opened::new(vendor, 1, 8, 1);
        for round in 0..5 {
            for rows in [3, 4, 1, 2, 3, 7, 8, 11, 20] {
                let report = opened.run_on(0, rows, round).unwrap();
                assert_eq!(report.device.inputs, IoPath::Direct, "{rows} rows: {}", report.device);
                assert!(round < 3 || report.device.launch == LaunchPath::Replayed, "{rows} rows: {}", report.device);
            }
        }
        // Both kinds of requests on one context, in turns.
        for seed in 0..20 {
            opened.run_host(seed % 9 + 1, seed as u64).unwrap();
            opened.run_on(0, (seed * 5) % 9 + 1, seed as u64).unwrap();
        }
        let tiers = [0, 1].map(|seed| opened.run_on(0, 3, seed).unwrap().tier);
        assert_eq!(tiers[1], Tier::UltraFast);
        opened.close();
    }
}

#[test]
fn a_repeated_request_on_a_gpu_allocates_nothing() {
    let opened = Opened::new(Vendor::Cuda, 1, 8, 1);
    for rows in [1, 3, 8, 11] {
        let request = Request::new(rows, 1);
        let (mut y, mut t) = (OutputBuffer::new(rows * 24), OutputBuffer::new(rows * 4));
        let arguments = [Argument::from(&request.x), Argument::from(&request.s)];
        let mut outputs = [y.as_bytes_mut(), t.as_bytes_mut()];
        let device = &opened.session.devices()[0];
        // Two sets, so that every request finds its buffers moved.
        let sets = [(); 2].map(|()| [rows * 24, 4, rows * 24, rows * 4].map(|bytes| device.allocate(bytes).unwrap()));
        for [x, s, ..] in &sets {
            x.write(0, request.x.as_bytes()).unwrap();
            s.write(0, request.s.as_bytes()).unwrap();
        }
        let mut run = || {
            let mut reports = [opened.session.run_into(&arguments, &mut outputs).unwrap(); 3];
            for (report, [x, s, y, t]) in reports[1..].iter_mut().zip(&sets) {
                let (inputs, places) = (request.arguments(&**x, &**s), [place(&**y), place(&**t)]);
                let (found, end) = opened.session.submit_on_device(&inputs, &places, None).unwrap();
                end.wait().unwrap();
                *report = found;
            }
            reports
        };
        for _ in 0..4 {
            run();
        }
        let mut reports = None;
        let counted = allocation_counter::measure(|| {
            for _ in 0..50 {
                reports = Some(run());
            }
        });
        for report in reports.unwrap() {
            assert_eq!((report.tier, report.device.launch), (Tier::UltraFast, LaunchPath::Replayed), "{rows} rows");
        }
        assert_eq!(counted.count_total, 0, "{rows} rows");
    }
    opened.close();
}

#[test]
fn a_stream_of_the_callers_is_joined() {
    for vendor in Vendor::ALL {
        let opened = Opened::new(vendor, 1, 4, 2);
        let driver = opened.rig.library.device(0).unwrap();
        let stream = GpuStream::from(driver.stream().unwrap());
        let device = &opened.session.devices()[0];
        for seed in 0..12 {
            let rows = seed as usize % 7 + 1;
            let request = Request::new(rows, seed);
            let [x, s, y, t] = [rows * 24, 4, rows * 24, rows * 4].map(|bytes| device.allocate(bytes).unwrap());
            let (from_x, from_s) = (device.allocate(rows * 24).unwrap(), device.allocate(4).unwrap());
            from_x.write(0, request.x.as_bytes()).unwrap();
            from_s.write(0, request.s.as_bytes()).unwrap();
            // From here on nothing is waited for but the last copy.
            copy(&stream, &*x, &*from_x);
            copy(&stream, &*s, &*from_s);
            let (inputs, outputs) = (request.arguments(&*x, &*s), [place(&*y), place(&*t)]);
            opened.session.submit_on_device(&inputs, &outputs, Some(&stream)).unwrap();
            let (mut found_y, mut found_t) = (vec![0; rows * 24], vec![0; rows * 4]);
            stream.stream().download(buffer(&*y), 0, &mut found_y).unwrap();
            stream.stream().download(buffer(&*t), 0, &mut found_t).unwrap();
            request.assert_answered(&opened.graph, &found_y, &found_t);
        }
        drop((stream, driver));
        opened.close();
    }
}

#[test]
fn requests_may_lie_on_the_gpu_and_on_the_host() {
    for vendor in Vendor::ALL {
        let opened = Opened::new(vendor, 1, 4, 2);
        let kind = if vendor == Vendor::Cuda { DeviceKind::Cuda } else { DeviceKind::Hip };
        let gpu = Gpu::on(DeviceName { kind, number: 0 }, opened.rig.library.device(0).unwrap());
        let gpu = Arc::new(gpu);
        // Which of x, s, y and t lie on the GPU, with exact, padded and split requests.
        for seed in 0..64_u64 {
            let is_on_gpu = [0, 1, 2, 3].map(|at| seed >> at & 1 == 1);
            let (rows, waits) = ((seed as usize / 16) + 3, seed % 3 != 0);
            let request = Request::new(rows, seed);
            let on_gpu = [rows * 24, 4, rows * 24, rows * 4].map(|bytes| gpu.allocate(bytes).unwrap());
            on_gpu[0].write(request.x.as_bytes()).unwrap();
            on_gpu[1].write(request.s.as_bytes()).unwrap();
            let inputs: Vec<GpuInput<'_>> = [&request.x, &request.s]
                .into_iter()
                .enumerate()
                .map(|(at, tensor)| {
                    let memory = match is_on_gpu[at] {
                        true => InputMemory::Gpu(&on_gpu[at]),
                        false => InputMemory::Host(tensor.as_bytes()),
                    };
                    GpuInput { dtype: tensor.dtype(), shape: tensor.shape(), memory }
                })
                .collect();
            let (mut y, mut t) = (vec![0xa5; rows * 24], vec![0xa5; rows * 4]);
            let mut outputs = [
                if is_on_gpu[2] { OutputMemory::Gpu(&on_gpu[2]) } else { OutputMemory::Host(&mut y) },
                if is_on_gpu[3] { OutputMemory::Gpu(&on_gpu[3]) } else { OutputMemory::Host(&mut t) },
            ];
            run_on_gpu(&opened.session, &gpu, &inputs, &mut outputs, waits).unwrap();
            if is_on_gpu[2] {
                on_gpu[2].read(&mut y).unwrap();
            }
            if is_on_gpu[3] {
                on_gpu[3].read(&mut t).unwrap();
            }
            request.assert_answered(&opened.graph, &y, &t);
        }
        drop(gpu);
        opened.close();
    }
}

#[test]
fn memory_that_nobody_holds_serves_the_next_caller_unless_others_know_it() {
    let opened = Opened::new(Vendor::Cuda, 1, 4, 1);
    let name = DeviceName { kind: DeviceKind::Cuda, number: 0 };
    let gpu = Arc::new(Gpu::on(name, opened.rig.library.device(0).unwrap()));
    let first = gpu.allocate(600).unwrap();
    let address = first.address();
    drop(first);
    let again = gpu.allocate(1024).unwrap();
    assert_eq!(again.address(), address);
    again.share();
    drop(again);
    let other = gpu.allocate(1024).unwrap();
    assert_ne!(other.address(), address);
    drop((other, gpu));
    opened.close();
}

fn buffer(memory: &dyn DeviceMemory) -> &precast_driver::DeviceBuffer {
    (memory as &dyn std::any::Any).downcast_ref::<precast_gpu::GpuMemory>().unwrap().buffer()
}

fn copy(stream: &GpuStream, to: &dyn DeviceMemory, from: &dyn DeviceMemory) {
    stream.stream().copy_device(buffer(to), 0, buffer(from), 0, from.bytes()).unwrap();
}

#[test]
fn buffers_that_do_not_hold_the_request_are_refused() {
    let opened = Opened::new(Vendor::Cuda, 2, 4, 2);
    let request = Request::new(3, 0);
    let [first, second] = [0, 1].map(|device| opened.session.devices()[device].allocate(72).unwrap());
    let message = |inputs: &[DeviceArgument<'_>], outputs: &[DevicePlace<'_>]| {
        opened.session.submit_on_device(inputs, outputs, None).map(drop).unwrap_err().to_string()
    };
    let inputs = request.arguments(&*first, &*first);
    assert_eq!(
        message(&inputs, &[place(&*second), place(&*second)]),
        "the buffers do not all lie on one of the Session's 2 devices"
    );
    assert_eq!(message(&inputs, &[place(&*first)]), "1 outputs are given where 2 are expected");
    let late = DevicePlace { memory: &*first, start: 64 };
    assert_eq!(message(&inputs, &[place(&*first), late]), "output 1 needs 12 bytes from 64 on; its memory has 72");
    drop((first, second));
    opened.close();
}

/// Programs of seven Buckets are compiled once and loaded on every device; threads work on all of them.
fn check_devices(vendor: Vendor, devices: u32) {
    let folder = tempfile::tempdir().unwrap();
    let open = || Opened::on(vendor, devices, 64, 2 * devices as usize, CacheOptions::new(folder.path()));
    let loads = 7 * u64::from(devices);
    let cold = open();
    assert_eq!((cold.session.counters().compiles(), cold.session.counters().device_loads()), (7, loads));
    cold.close();
    let opened = open();
    let counters = opened.session.counters();
    assert_eq!((counters.compiles(), counters.device_loads()), (0, loads));
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let opened = &opened;
            scope.spawn(move || {
                for run in 0..24 {
                    let rows = ((run * 7 + thread * 13) % 70) as usize + 1;
                    opened.run_host(rows, run).unwrap();
                    // The thread has last worked on another device.
                    opened.run_on(((run + thread) % u64::from(devices)) as usize, rows % 5 + 1, run).unwrap();
                }
            });
        }
    });
    assert_eq!((counters.requests(), counters.errors(), counters.compiles()), (8 * 48, 0, 0));
    opened.close();
}

#[test]
fn two_devices_share_one_compile() {
    check_devices(Vendor::Cuda, 2);
    check_devices(Vendor::Hip, 2);
}

#[test]
fn eight_devices_share_one_compile() {
    check_devices(Vendor::Cuda, 8);
    check_devices(Vendor::Hip, 8);
}

#[test]
fn a_device_that_fails_leaves_the_work_to_the_others() {
    let opened = Opened::new(Vendor::Cuda, 2, 4, 2);
    for seed in 0..4 {
        opened.run_host(3, seed).unwrap();
    }
    let wait = symbol(Vendor::Cuda, "StreamSynchronize");
    opened.rig.fake.inject(wait, 1, ILLEGAL_ADDRESS);
    let error = opened.run_host(3, 5).unwrap_err().to_string();
    assert!(error.starts_with("the device has failed and must be opened again: cuStreamSynchronize"), "{error}");
    // The first device is out; the second answers everything, and what lies on the first is refused.
    for seed in 0..4 {
        opened.run_host(3, seed).unwrap();
        opened.run_on(1, 3, seed).unwrap();
    }
    let error = opened.run_on(0, 3, 0).unwrap_err().to_string();
    assert_eq!(error, "device 0 of the Session has failed and must be opened again");
    opened.rig.fake.inject(wait, 1, ILLEGAL_ADDRESS);
    assert!(opened.run_host(3, 6).is_err());
    let error = opened.run_host(3, 7).unwrap_err().to_string();
    assert_eq!(error, "every device of the Session has failed and must be opened again");
    opened.close();
}

#[test]
fn a_context_that_fails_is_made_again() {
    for vendor in Vendor::ALL {
        let opened = Opened::new(vendor, 1, 4, 1);
        for part in ["GraphLaunch", "StreamSynchronize", "EventRecord", "EventSynchronize", "MemcpyHtoDAsync"] {
            let Some(symbol) = Library::symbols(vendor).into_iter().find(|symbol| symbol.contains(part)) else {
                continue;
            };
            for nth in 1..8 {
                opened.rig.fake.inject(symbol, nth, 2);
                for seed in 0..4 {
                    // Refused or right; `run_host` and `run_on` compare.
                    let _ = opened.run_host(3, seed);
                    let _ = opened.run_on(0, 3, seed);
                }
                assert!(opened.run_host(3, 9).is_ok(), "{symbol}");
            }
        }
        opened.close();
    }
}

#[test]
fn replays_give_the_bytes_of_ordinary_launches() {
    for vendor in Vendor::ALL {
        let rig = Rig::new(vendor);
        let fixed = graph(&ROWS.replace("[n", "[5"));
        let loaded = rig.load(&fixed);
        let mut context = rig.device().context(0);
        let inputs = rig::inputs(&fixed, 3);
        let bytes: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
        let check = check_replay(context.as_mut(), &*loaded, &bytes).unwrap();
        assert!(check.is_equal() && check.compared == 3, "{check:?}");
        assert_eq!(check.last.launch, LaunchPath::Replayed);
        let off = rig
            .devices
            .into_iter()
            .next()
            .unwrap()
            .with_captures(precast_gpu::CaptureOptions { is_on: false, ..Default::default() });
        let check = check_replay(off.context(0).as_mut(), &*loaded, &bytes).unwrap();
        assert_eq!((check.last.launch, check.compared), (LaunchPath::Steps(StepsReason::Off), 0));
    }
}
