//! Runs whose buffers lie in both memories, on the fake driver: caches are changed where they lie, few numbers travel, and what
//! cannot be changed in place is refused by name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rig;

use precast_driver::Vendor;
use precast_gpu::{GpuContext, GpuMemory};
use precast_ir::Graph;
use precast_program::{
    CallInputs, CallOutputs, DeviceContext, DeviceMemory, DeviceSlice, IoPath, LaunchPath, LoadedProgram, PlacedInput,
    PlacedOutput, RunError,
};
use rig::{Rig, graph};

/// The sum of what is cached, and the cache with a new token behind it.
const STEP: &str = r#"graph "step"(%0 "cached": i32[1], %1 "added": i32[1], %2 "new": f32[1,1,1,4], %3 "past": f32[1,1,8,4]) {
  %4 = reduce.sum(%3) {axes=[0,1,2,3], keep_dims=false} : f32[]
  %5 = append_to_cache(%0, %1, %3, %2) {paged=false} : f32[1,1,8,4]
  return "sum" %4, "present" %5
}
"#;

/// The sum of what two rows see behind their pages of two tokens, and the pages with a new token of each.
const PAGED_STEP: &str = r#"graph "step"(%0 "cached": i32[2], %1 "added": i32[2], %2 "pages": i32[2,3], %3 "joint": f32[2,1,12], %4 "keys": f32[5,1,2,4], %5 "values": f32[5,1,2,4]) {
  %6, %7, %8 = cached_attention(%3, %4, %5, %0, %2) {heads=1, kv_heads=1, scale=1.0, softcap=0.0, window=0, rotary=none, positions=false, sinks=false, paged=true} : f32[2,1,4], f32[2,1,1,4], f32[2,1,1,4]
  %9, %10 = append_to_cache(%0, %1, %2, %4, %7, %5, %8) {paged=true} : f32[5,1,2,4], f32[5,1,2,4]
  return "y" %6, "new_keys" %9, "new_values" %10
}
"#;

/// Bytes of all pages.
const PAGES_BYTES: usize = 5 * 2 * 4 * 4;

/// Bytes of the cache.
const CACHE_BYTES: usize = 8 * 4 * 4;

struct Step {
    rig: Rig,
    loaded: std::sync::Arc<dyn LoadedProgram>,
    context: GpuContext,
}

impl Step {
    fn new(text: &str) -> Step {
        let rig = Rig::new(Vendor::Cuda);
        let graph: Graph = graph(text);
        let (loaded, context) = (rig.load(&graph), rig.device().gpu_context());
        Step { rig, loaded, context }
    }

    fn memory(&self, bytes: usize) -> GpuMemory {
        let memory: GpuMemory = self.rig.device().driver().allocate(bytes).unwrap().into();
        memory.write(0, &vec![0; bytes]).unwrap();
        memory
    }

    /// Puts four times `value` behind so many tokens; the sum of what was there, and how it ran.
    fn run(
        &mut self,
        cached: i32,
        value: f32,
        past: DeviceSlice<'_>,
        present: DeviceSlice<'_>,
    ) -> Result<(f32, LaunchPath), RunError> {
        let token: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), 4).flatten().collect();
        let (cached, added, mut sum) = (cached.to_le_bytes(), 1i32.to_le_bytes(), [0xff; 4]);
        let inputs = [
            PlacedInput::Host(&cached),
            PlacedInput::Host(&added),
            PlacedInput::Host(&token),
            PlacedInput::Device(past),
        ];
        let mut outputs = [PlacedOutput::Host(&mut sum), PlacedOutput::Device(present)];
        let (inputs, outputs) = (CallInputs::Placed(&inputs), CallOutputs::Placed(&mut outputs));
        let run = self.context.call(&*self.loaded, inputs, outputs, None)?;
        assert_eq!((run.inputs, run.outputs), (IoPath::Host, IoPath::Host));
        Ok((f32::from_le_bytes(sum), run.launch))
    }
}

impl Step {
    /// Has two rows say tokens of values 10 and 20 times `number`, with keys of which all are equal, behind so many tokens. Gives
    /// the mean of all values that each row has seen.
    fn run_paged(
        &mut self,
        number: f32,
        (cached, added): ([i32; 2], [i32; 2]),
        pages: [[i32; 3]; 2],
        [keys, values]: [&GpuMemory; 2],
    ) -> ([f32; 2], LaunchPath) {
        let bytes = |numbers: &[i32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let joint = |value: f32| [[0.0; 4], [1.0; 4], [value; 4]].concat();
        let joint: Vec<u8> =
            [10.0, 20.0].into_iter().flat_map(|value| joint(value * number)).flat_map(f32::to_le_bytes).collect();
        let (cached, added, pages) = (bytes(&cached), bytes(&added), bytes(pages.as_flattened()));
        let [keys, values] = [keys, values].map(|memory| DeviceSlice::exact(memory, 0, PAGES_BYTES));
        let hosts = [&cached, &added, &pages, &joint].map(|bytes| PlacedInput::Host(bytes));
        let inputs: Vec<PlacedInput<'_>> = hosts.into_iter().chain([keys, values].map(PlacedInput::Device)).collect();
        let mut y = [0xff; 2 * 4 * 4];
        let mut outputs = [PlacedOutput::Host(&mut y), PlacedOutput::Device(keys), PlacedOutput::Device(values)];
        let (inputs, outputs) = (CallInputs::Placed(&inputs), CallOutputs::Placed(&mut outputs));
        let run = self.context.call(&*self.loaded, inputs, outputs, None).unwrap();
        let y: Vec<f32> = y.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        ([y[0], y[4]], run.launch)
    }
}

#[test]
fn a_capture_reads_the_pages_of_each_run_and_writes_no_other() {
    let mut step = Step::new(PAGED_STEP);
    let memory = [step.memory(PAGES_BYTES), step.memory(PAGES_BYTES)];
    // What nobody wrote is no number, so that whoever sees it shows.
    memory.iter().for_each(|memory| memory.write(0, &[0xff; PAGES_BYTES]).unwrap());
    let mut expected = [f32::NAN; 10];
    let mut launches = Vec::new();
    // Page 3 has two tokens that both rows share. Each run has other pages behind it, and every other run a row of filler, which
    // repeats the first row and keeps nothing.
    let (means, _) = step.run_paged(1.0, ([0, 1], [1, 1]), [[3, -1, -1], [3, -1, -1]], memory.each_ref());
    expected[6..8].copy_from_slice(&[10.0, 20.0]);
    assert_eq!(means[0], 10.0);
    for run in 0..8 {
        let (number, is_filler) = ((run + 2) as f32, run % 2 == 1);
        let (own, other) = ([0, 1, 2, 4][run % 4], [2, 4, 0, 1][run % 4]);
        let pages = if is_filler { [[3, own, -1]; 2] } else { [[3, own, -1], [3, other, -1]] };
        let added = [1, i32::from(!is_filler)];
        let (means, launch) = step.run_paged(number, ([2, 2], added), pages, memory.each_ref());
        assert_eq!(means, [(30.0 + 10.0 * number) / 3.0, (30.0 + 20.0 * number) / 3.0]);
        expected[2 * own as usize] = 10.0 * number;
        if !is_filler {
            expected[2 * other as usize] = 20.0 * number;
        }
        let found: Vec<f32> = floats(&memory[1]).into_iter().step_by(4).collect();
        let is_equal = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
        assert!(found.iter().zip(&expected).all(is_equal), "run {run}: {found:?}, {expected:?}");
        launches.push(launch);
    }
    assert_eq!(launches[7], LaunchPath::Replayed, "{launches:?}");
}

fn floats(memory: &GpuMemory) -> Vec<f32> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn a_cache_grows_where_it_lies_before_and_after_captures() {
    let mut step = Step::new(STEP);
    let cache = step.memory(CACHE_BYTES);
    let slice = DeviceSlice::exact(&cache, 0, CACHE_BYTES);
    let mut expected = vec![0.0; 32];
    let mut launches = Vec::new();
    for token in 0..8 {
        let value = token as f32 + 1.0;
        let (sum, launch) = step.run(token, value, slice, slice).unwrap();
        assert_eq!(sum, expected.iter().sum::<f32>());
        expected[token as usize * 4..][..4].fill(value);
        assert_eq!(floats(&cache), expected);
        launches.push(launch);
    }
    assert!(matches!(launches[0], LaunchPath::Steps(_)), "{launches:?}");
    assert_eq!(launches[7], LaunchPath::Replayed, "{launches:?}");
}

#[test]
fn a_cache_that_goes_elsewhere_is_copied() {
    let mut step = Step::new(STEP);
    let (past, present) = (step.memory(CACHE_BYTES), step.memory(CACHE_BYTES));
    past.write(0, &[0x3f; 16]).unwrap();
    let (from, to) = (DeviceSlice::exact(&past, 0, CACHE_BYTES), DeviceSlice::exact(&present, 0, CACHE_BYTES));
    step.run(2, 5.0, from, to).unwrap();
    let (past, present) = (floats(&past), floats(&present));
    assert_eq!(past[..8], present[..8]);
    assert_eq!((past[8], present[8]), (0.0, 5.0));
}

#[test]
fn what_cannot_be_changed_in_place_is_refused_by_name() {
    let mut step = Step::new(STEP);
    let cache = step.memory(2 * CACHE_BYTES);
    let at = |start: usize| DeviceSlice::exact(&cache, start, CACHE_BYTES);
    for (past, present) in [(at(0), at(16)), (at(4), at(4))] {
        let error = step.run(0, 1.0, past, present).unwrap_err().to_string();
        assert!(error.contains("changed in place"), "{error}");
    }
    let (numbers, cached) = ([0; 4], vec![0; CACHE_BYTES]);
    let (mut sum, mut present) = ([0; 4], vec![0; CACHE_BYTES]);
    let inputs: [&[u8]; 4] = [&numbers, &numbers, &[0; 16], &cached];
    let error = step.context.run(&*step.loaded, &inputs, &mut [&mut sum, &mut present]).unwrap_err().to_string();
    assert_eq!(
        error,
        "'past': it is changed in place and must be whole memory of the device, aligned and apart from other buffers"
    );
}
