//! Kernels that take a caller's buffers with fewer rows than their Program's, on the fake driver: what they answer, that they
//! neither read nor write behind the rows, and that nothing is moved for them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use precast_driver::Vendor;
use precast_gpu::{CaptureLimits, GpuMemory};
use precast_passes::FloatPrecision;
use precast_program::{
    AxisSpan, BoxCopy, CallInputs, CallOutputs, DeviceContext, DeviceMemory, DeviceSlice, IoPath, LaunchPath,
    LoadedProgram,
};
use precast_tensor::Tensor;
use rig::{Rig, assert_answers, graph, inputs};

/// Rows of the Programs; every graph has them in axis 0 of its inputs `x…` and of all outputs.
const ROWS: usize = 8;
/// Bytes behind the rows of every buffer: not a number in any float type, and no index.
const BEHIND: usize = 4096;
const CANARY: u8 = 0xff;

/// Windows as rows of a product, and a result by columns.
const CONV: &str = r#"graph "conv"(%0 "x": f32[8,3,10,10], %1 "w": f32[16,3,3,3]) {
  %2 = conv(%0, %1) {stride=[2,2], pad_lo=[1,1], pad_hi=[1,1], dilation=[1,1], groups=1} : f32[8,16,5,5]
  %3 = unary.relu(%2) {alpha=0.0, beta=0.0} : f32[8,16,5,5]
  return "y" %3
}
"#;

/// Rows of a matrix, few of them and many, and the softmax of what follows.
const PRODUCTS: &str = r#"graph "products"(%0 "x": f32[8,24], %1 "x1": f32[8,40,16], %2 "w": f32[24,10], %3 "v": f32[16,32]) {
  %4 = matmul(%0, %2) {transpose_a=false, transpose_b=false} : f32[8,10]
  %5 = softmax(%4) {axis=1, log=false} : f32[8,10]
  %6 = matmul(%1, %3) {transpose_a=false, transpose_b=false} : f32[8,40,32]
  return "y" %5, "z" %6, "p" %4
}
"#;

/// Elements that move, rows of three words, and an output that is also read.
const MOVES: &str = r#"graph "moves"(%0 "x": f32[8,3,16], %1 "x1": f32[8,3]) {
  %2 = transpose(%0) {perm=[0,2,1]} : f32[8,16,3]
  %3 = slice(%0) {start=[0,1,4], step=[1,1,2], size=[8,2,6]} : f32[8,2,6]
  %4 = binary.add(%1, %1) : f32[8,3]
  %5 = concat(%1, %4) {axis=1} : f32[8,6]
  %6 = reduce.sum(%5) {axes=[1], keep_dims=false} : f32[8]
  return "t" %2, "s" %3, "d" %4, "c" %5, "r" %6
}
"#;

/// Rows of tables beside rows of the request.
const LOOKUPS: &str = r#"graph "lookups"(%0 "x": i64[8], %1 "x1": f32[8,1], %2 "x2": i64[8], %3 "w": f32[9,4], %4 "v": f32[7,3]) {
  %5 = gather(%3, %0) {axis=0} : f32[8,4]
  %6 = gather(%4, %2) {axis=0} : f32[8,3]
  %7 = concat(%5, %1, %6) {axis=1} : f32[8,8]
  %8 = gather(%4, %0) {axis=0} : f32[8,3]
  return "y" %7, "z" %8
}
"#;

/// A request of some rows in buffers with more bytes behind them.
struct Request {
    memories: Vec<GpuMemory>,
    copies: Vec<Option<BoxCopy>>,
    bytes: Vec<usize>,
}

impl Request {
    /// Buffers of the Ports, of which outputs and inputs `x…` have fewer rows.
    fn new(rig: &Rig, loaded: &dyn LoadedProgram, rows: usize) -> Request {
        let program = loaded.program();
        let inputs = program.inputs.iter().map(|port| (port, true, port.name.starts_with('x')));
        let outputs = program.outputs.iter().map(|port| (port, false, true));
        let (mut memories, mut copies, mut all_bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (port, is_input, has_rows) in inputs.chain(outputs) {
            let row_bytes = port.bytes as usize / ROWS;
            let bytes = if has_rows { rows * row_bytes } else { port.bytes as usize };
            let memory = GpuMemory::from(rig.device().driver().allocate(bytes + BEHIND).unwrap());
            memory.write(0, &vec![CANARY; bytes + BEHIND]).unwrap();
            let (source, target, pad) = if is_input { (rows, ROWS, ROWS - rows) } else { (ROWS, rows, 0) };
            let span = AxisSpan { source, target, source_start: 0, target_start: 0, count: rows, pad };
            memories.push(memory);
            copies.push(has_rows.then(|| BoxCopy::new(&[span, AxisSpan::whole(row_bytes)], 1)));
            all_bytes.push(bytes);
        }
        Request { memories, copies, bytes: all_bytes }
    }

    fn slices(&self) -> Vec<DeviceSlice<'_>> {
        let parts = self.memories.iter().zip(&self.copies).zip(&self.bytes);
        let slices = parts.map(|((memory, copy), &bytes)| match copy {
            Some(copy) => DeviceSlice::rows(memory, 0, bytes, copy),
            None => DeviceSlice::exact(memory, 0, bytes),
        });
        slices.collect()
    }
}

fn check(text: &str, vendor: Vendor, floats: FloatPrecision, tolerance: f64) {
    let rig = Rig::with(vendor, 1, floats, CaptureLimits::default());
    let loaded = rig.load(&graph(text));
    let input_count = loaded.program().inputs.len();
    let mut context = rig.device().gpu_context();
    for (run, rows) in [5, 8, 7, 4, 6, 5].into_iter().enumerate() {
        let part = graph(&text.replace("[8,", &format!("[{rows},")).replace("[8]", &format!("[{rows}]")));
        let tensors = inputs(&part, run as u64);
        let request = Request::new(&rig, &*loaded, rows);
        for (memory, tensor) in request.memories.iter().zip(&tensors) {
            memory.write(0, Tensor::as_bytes(tensor)).unwrap();
        }
        context.poison().unwrap();
        let slices = request.slices();
        let (from, to) = slices.split_at(input_count);
        let run_of = context.call(&*loaded, CallInputs::Device(from), CallOutputs::Device(to), None).unwrap();
        assert_eq!((run_of.inputs, run_of.outputs), (IoPath::Direct, IoPath::Direct), "{rows} rows");
        assert_eq!(run_of.launch == LaunchPath::Replayed, run > 2);
        context.synchronize().unwrap();
        let mut outputs = Vec::new();
        for (memory, &bytes) in request.memories.iter().zip(&request.bytes).skip(input_count) {
            let mut whole = vec![0; bytes + BEHIND];
            memory.read(0, &mut whole).unwrap();
            assert!(whole[bytes..].iter().all(|&byte| byte == CANARY), "{rows} rows: written behind the last");
            whole.truncate(bytes);
            outputs.push(whole);
        }
        assert_answers(&part, &tensors, &outputs, tolerance);
    }
    drop((context, loaded));
    rig.assert_clean();
}

#[test]
fn convolutions_read_and_write_the_rows_that_there_are() {
    check(CONV, Vendor::Cuda, FloatPrecision::F32, 1e-5);
    check(CONV, Vendor::Cuda, FloatPrecision::F16, 1e-2);
    check(CONV, Vendor::Hip, FloatPrecision::F32, 1e-5);
}

#[test]
fn products_read_and_write_the_rows_that_there_are() {
    check(PRODUCTS, Vendor::Cuda, FloatPrecision::F32, 1e-5);
    check(PRODUCTS, Vendor::Cuda, FloatPrecision::F16, 1e-2);
}

#[test]
fn lookups_read_the_indices_that_there_are() {
    check(LOOKUPS, Vendor::Cuda, FloatPrecision::F32, 1e-5);
    check(LOOKUPS, Vendor::Hip, FloatPrecision::F32, 1e-5);
}

#[test]
fn elements_that_move_are_those_of_the_rows_that_there_are() {
    check(MOVES, Vendor::Cuda, FloatPrecision::F32, 1e-5);
    check(MOVES, Vendor::Hip, FloatPrecision::F32, 1e-5);
}
