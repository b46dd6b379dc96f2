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
  %5 = append_to_cache(%0, %1, %3, %2) : f32[1,1,8,4]
  return "sum" %4, "present" %5
}
"#;

/// Bytes of the cache.
const CACHE_BYTES: usize = 8 * 4 * 4;

struct Step {
    rig: Rig,
    loaded: std::sync::Arc<dyn LoadedProgram>,
    context: GpuContext,
}

impl Step {
    fn new() -> Step {
        let rig = Rig::new(Vendor::Cuda);
        let graph: Graph = graph(STEP);
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

fn floats(memory: &GpuMemory) -> Vec<f32> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn a_cache_grows_where_it_lies_before_and_after_captures() {
    let mut step = Step::new();
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
    let mut step = Step::new();
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
    let mut step = Step::new();
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
