//! Modes, moved buffers and padded rows on a real GPU, where there is one, compiled by the vendor's own compiler. Prints what a
//! padded request costs beside a full Bucket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Instant;

use precast_driver::{Library, Vendor};
use precast_gpu::{GpuContext, GpuDevice, GpuMemory, GpuTarget, MemoryKernels, RuntimeCompiler};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::PassOptions;
use precast_program::{
    AxisSpan, BoxCopy, Bucket, CallInputs, CallOutputs, Device, DeviceContext, DeviceMemory, DeviceSlice, IoPath,
    LaunchPath, LoadedProgram, MemoryStore, Target,
};
use precast_tensor::{DType, Tensor};

/// Images as a classifier takes them, and a number of each.
const IMAGES: &str = r#"graph "images"(%0 "x": f32[4,3,224,224], %1 "s": f32[1]) {
  %2 = binary.mul(%0, %1) : f32[4,3,224,224]
  %3 = unary.tanh(%2) {alpha=0.0, beta=0.0} : f32[4,3,224,224]
  %4 = reduce.mean(%3) {axes=[1,2,3], keep_dims=false} : f32[4]
  return "m" %4
}
"#;

const IMAGE_BYTES: usize = 3 * 224 * 224 * 4;
const TOLERANCE: f64 = 1e-4;
/// Timed calls, of which the median counts.
const CALLS: usize = 300;

fn graph(rows: usize) -> Graph {
    text::parse(&IMAGES.replace("[4", &format!("[{rows}")), &NoConstants).unwrap()
}

fn images(rows: usize, seed: usize) -> Vec<Tensor> {
    let elements: Vec<f64> = (0..rows * IMAGE_BYTES / 4).map(|at| ((at * 37 + seed) % 101) as f64 / 101.0).collect();
    let x = Tensor::from_f64(DType::F32, vec![rows, 3, 224, 224], &elements, false).unwrap();
    vec![x, Tensor::from_vec([1], vec![0.75_f32]).unwrap()]
}

/// Buffers of a request of so many images.
struct Buffers {
    rows: usize,
    x: GpuMemory,
    s: GpuMemory,
    m: GpuMemory,
    x_rows: BoxCopy,
    m_rows: BoxCopy,
}

impl Buffers {
    fn new(device: &GpuDevice, rows: usize) -> Buffers {
        let memory = |bytes: usize| GpuMemory::from(device.driver().allocate(bytes).unwrap());
        let span =
            |source, target, pad| AxisSpan { source, target, source_start: 0, target_start: 0, count: rows, pad };
        Buffers {
            rows,
            x: memory(rows * IMAGE_BYTES),
            s: memory(4),
            m: memory(rows * 4),
            x_rows: BoxCopy::new(&[span(rows, 4, 4 - rows), AxisSpan::whole(IMAGE_BYTES)], 1),
            m_rows: BoxCopy::new(&[span(4, rows, 0), AxisSpan::whole(4)], 1),
        }
    }

    /// Queues a run and says how it was launched and on which memory.
    fn submit(&self, context: &mut GpuContext, loaded: &dyn LoadedProgram) -> (LaunchPath, IoPath) {
        let whole = |memory| DeviceSlice::exact(memory, 0, DeviceMemory::bytes(memory));
        let rows = |memory, rows| DeviceSlice::rows(memory, 0, DeviceMemory::bytes(memory), rows);
        let (x, m) = match self.rows {
            4 => (whole(&self.x), whole(&self.m)),
            _ => (rows(&self.x, &self.x_rows), rows(&self.m, &self.m_rows)),
        };
        let inputs = [x, whole(&self.s)];
        let run = context.call(loaded, CallInputs::Device(&inputs), CallOutputs::Device(&[m]), None).unwrap();
        (run.launch, run.inputs)
    }

    /// Runs on images of this seed and compares with reference evaluation.
    fn check(&self, context: &mut GpuContext, loaded: &dyn LoadedProgram, seed: usize) -> (LaunchPath, IoPath) {
        let tensors = images(self.rows, seed);
        self.x.write(0, tensors[0].as_bytes()).unwrap();
        self.s.write(0, tensors[1].as_bytes()).unwrap();
        self.m.write(0, &vec![0xff; self.rows * 4]).unwrap();
        context.poison().unwrap();
        let run = self.submit(context, loaded);
        context.synchronize().unwrap();
        let mut found = vec![0; self.rows * 4];
        self.m.read(0, &mut found).unwrap();
        let expected = eval_graph(&graph(self.rows), &tensors).unwrap()[0].to_f64_vec();
        let found = found.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        for (found, expected) in found.zip(expected) {
            assert!((f64::from(found) - expected).abs() <= TOLERANCE * expected.abs(), "{found} for {expected}");
        }
        run
    }

    /// Median of calls with synchronise, in microseconds.
    fn median_us(&self, context: &mut GpuContext, loaded: &dyn LoadedProgram) -> f64 {
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let begun = Instant::now();
            self.submit(context, loaded);
            context.synchronize().unwrap();
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

#[test]
fn padded_rows_are_replayed_with_their_program() {
    for vendor in Vendor::ALL {
        let device = Library::open(vendor).and_then(|library| library.device(0)).and_then(GpuDevice::new);
        let (device, compiler) = match (device, RuntimeCompiler::open(vendor)) {
            (Ok(device), Ok(compiler)) => (device, Arc::new(compiler)),
            (Err(error), _) | (_, Err(error)) => {
                println!("left out: {error}");
                continue;
            }
        };
        let kernels = Arc::new(MemoryKernels::default());
        let target = GpuTarget::new(device.arch().clone(), PassOptions::default(), compiler, kernels);
        let store = MemoryStore::default();
        let program = Arc::new(target.compile(&graph(4), &Bucket::default(), &store).unwrap());
        let loaded = device.load(&program, &store).unwrap();
        let mut context = device.gpu_context();
        let full = [(); 2].map(|()| Buffers::new(&device, 4));
        let padded = [1, 2, 3, 3].map(|rows| Buffers::new(&device, rows));
        for run in 0..16 {
            let direct = full[run % 2].check(&mut context, &*loaded, run);
            let moved = padded[run % 4].check(&mut context, &*loaded, run);
            let path = if padded[run % 4].rows == 1 { IoPath::Rows } else { IoPath::Direct };
            assert_eq!((direct.1, moved.1), (IoPath::Direct, path));
            assert!(run <= 8 || (direct.0, moved.0) == (LaunchPath::Replayed, LaunchPath::Replayed), "run {run}");
        }
        let full_us = full[0].median_us(&mut context, &*loaded);
        let padded_us = padded[3].median_us(&mut context, &*loaded);
        println!(
            "{}: 4 images {full_us:.1} us, 3 images padded to 4 {padded_us:.1} us: {:+.1} us",
            device.driver().info().name,
            padded_us - full_us
        );
    }
}
