//! Where the time of a decode step goes: a device that remembers the Programs of such steps which a text model loads on it, and
//! runs one of them again with a mark between its steps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use precast_gpu::GpuDevice;
use precast_program::{
    ArtifactStore, Device, DeviceContext, DeviceMemory, LoadError, LoadedProgram, Port, Program, RunError,
};

/// Runs of a Program; the least time of each step counts.
const RUNS: usize = 6;
/// New tokens.
const IDS_INPUT: &str = "input_ids";
/// Pages of each row, by number.
const PAGES_INPUT: &str = "precast.pages";
/// Tokens that each row has cached, and new ones.
const CACHED_INPUT: &str = "precast.cached_lengths";
const NEW_INPUT: &str = "precast.new_tokens";
/// Steps that copy all pages where these lie with the host, and a few tokens where they lie with the device.
const APPENDING: &str = "append_to_pages";

/// A device that remembers the decode steps that were loaded on it, as Programs that change nothing in place: those can be run
/// on buffers of the host.
pub struct NotingDevice {
    device: GpuDevice,
    noted: Mutex<Vec<Arc<dyn LoadedProgram>>>,
}

impl NotingDevice {
    /// A device that has loaded nothing yet.
    pub fn new(device: GpuDevice) -> NotingDevice {
        NotingDevice { device, noted: Mutex::default() }
    }

    /// Times of the kernels of the step by which so many rows decode behind `cached` tokens, as lines of text.
    pub fn decode_step(&self, rows: usize, cached: usize) -> Result<String> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_step = |noted: &&Arc<dyn LoadedProgram>| decoding_rows(noted.program()) == Some(rows as u64);
        let found = noted.iter().rev().find(is_step).with_context(|| format!("no step of {rows} rows was loaded"))?;
        let program = found.program();
        let pages = program.inputs.iter().find(|port| port.shape.len() == 4).map_or(0, |port| port.shape[0]);
        let inputs = program.inputs.iter().map(|port| content(port, cached as i64, pages / rows as u64));
        let inputs: Vec<Vec<u8>> = inputs.collect::<Result<_>>()?;
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<Vec<u8>> = program.outputs.iter().map(|port| vec![0; port.bytes as usize]).collect();
        let mut context = self.device.context(program.arena_bytes);
        let mut least = vec![f64::INFINITY; program.steps.len()];
        for _ in 0..RUNS {
            let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            for (least, time) in least.iter_mut().zip(context.run_timed(&**found, &inputs, &mut slices)?) {
                *least = least.min(time.as_secs_f64() * 1e6);
            }
        }
        Ok(table(program, &least))
    }
}

/// Rows of a Program that have one new token each, on pages, and the best of whose scores is found; none of other Programs.
fn decoding_rows(program: &Program) -> Option<u64> {
    let shape_of = |name: &str| program.inputs.iter().find(|port| port.name == name).map(|port| &port.shape[..]);
    let [rows] = *shape_of(NEW_INPUT)? else { return None };
    let has = |kernel: &str| program.steps.iter().any(|step| step.kernel.starts_with(kernel));
    (shape_of(IDS_INPUT)? == [rows, 1] && has("arg_reduce") && has(APPENDING)).then_some(rows)
}

/// What an input of such a step may hold: the first `row_pages` pages of a row are its own.
fn content(port: &Port, cached: i64, row_pages: u64) -> Result<Vec<u8>> {
    let count = port.shape.iter().product::<u64>();
    let width = port.shape.last().copied().unwrap_or(1).max(1);
    let number = |at: u64| match port.name.as_str() {
        PAGES_INPUT if at % width < row_pages => (at / width * row_pages + at % width) as i64,
        PAGES_INPUT => -1,
        CACHED_INPUT => cached,
        NEW_INPUT => 1,
        _ => 0,
    };
    // Halves of different sizes and signs, none of which is large: zeros are multiplied with less power.
    let noise = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u16 & 0x807f | 0x3e00;
    let bytes: Vec<u8> = match port.dtype.as_str() {
        "i32" => (0..count).flat_map(|at| (number(at) as i32).to_le_bytes()).collect(),
        "i64" => (0..count).flat_map(|at| number(at).to_le_bytes()).collect(),
        "bf16" | "f16" => (0..count).flat_map(|at| noise(at).to_le_bytes()).collect(),
        "f32" => (0..count).flat_map(|at| (u32::from(noise(at)) << 16).to_le_bytes()).collect(),
        other => bail!("'{}' is of {other}", port.name),
    };
    Ok(bytes)
}

/// All kernels, the one that takes longest in all first.
fn table(program: &Program, times_us: &[f64]) -> String {
    let mut kernels: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (step, time_us) in program.steps.iter().zip(times_us) {
        let (count, sum_us) = kernels.entry(&step.kernel).or_default();
        (*count, *sum_us) = (*count + 1, *sum_us + time_us);
    }
    let mut kernels: Vec<(&str, (usize, f64))> = kernels.into_iter().collect();
    kernels.sort_by(|(_, (_, a)), (_, (_, b))| b.total_cmp(a));
    let all_us: f64 = kernels.iter().filter(|(kernel, _)| *kernel != APPENDING).map(|(_, (_, sum_us))| sum_us).sum();
    let mut text = format!("{} steps, {all_us:.0} µs without {APPENDING}, each by itself\n", program.steps.len());
    for (kernel, (count, sum_us)) in kernels {
        let _ = writeln!(text, "{sum_us:>9.1} µs {count:>4} × {:>7.1} µs  {kernel}", sum_us / count as f64);
    }
    text
}

impl Device for NotingDevice {
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError> {
        if decoding_rows(program).is_some() {
            let mut apart = Program::clone(program);
            apart.outputs.iter_mut().for_each(|output| output.in_place_of = None);
            let noted = self.device.load(&Arc::new(apart), store)?;
            self.noted.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
        }
        self.device.load(program, store)
    }

    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext> {
        self.device.context(workspace_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        self.device.allocate(bytes)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.device.free_bytes()
    }

    fn owns(&self, memory: &dyn DeviceMemory) -> bool {
        self.device.owns(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama_folder::{self, LlamaSize, ProductWeights};
    use precast::device_name::resolve_device;
    use precast::generate::engine::{Event, Request};
    use precast::generate::{Engine, GeneratorParams};
    use precast::{EngineOptions, GivenDevice, PassOptions, TextOptions, open_text_model_on};
    use precast_driver::{Compiler, Library, Vendor};
    use precast_fake_driver::Fake;
    use precast_gpu::kernel::HOST;
    use precast_gpu::{GpuTarget, KernelCompiler, MemoryKernels};

    /// The fake driver's compiler.
    struct HostCompiler(Compiler);

    impl KernelCompiler for HostCompiler {
        fn version(&self) -> String {
            "fake".to_string()
        }

        fn compile(&self, text: &str, arch: &str) -> Result<Vec<u8>, String> {
            let text = text.replace("#include \"host.h\"", HOST);
            self.0.compile(&text, "kernel", arch, &[]).map_err(|error| error.to_string())
        }
    }

    /// The table of a small decoder's step of so many rows.
    fn table_of(weights: ProductWeights, rows: usize) -> String {
        let size = LlamaSize {
            layers: 1,
            hidden: 128,
            heads: 4,
            kv_heads: 2,
            head_size: 32,
            mlp: 96,
            // Enough for weights of 4 bits to stay so.
            vocabulary: 1024,
            context: 64,
            weights,
        };
        let folder = tempfile::tempdir().unwrap();
        llama_folder::write(folder.path(), size).unwrap();
        let fake = Fake::new(1);
        let library = Library::open_path(Vendor::Cuda, fake.path()).unwrap();
        let device = GpuDevice::new(library.device(0).unwrap()).unwrap();
        let compiler = Arc::new(HostCompiler(Compiler::open_path(Vendor::Cuda, fake.path()).unwrap()));
        let target =
            GpuTarget::new(device.arch().clone(), PassOptions::default(), compiler, Arc::<MemoryKernels>::default());
        let device = Arc::new(NotingDevice::new(device));
        let name = resolve_device("cuda").unwrap();
        let given = GivenDevice { name, target: Arc::new(target), device: device.clone() };
        let opened = open_text_model_on(folder.path(), &TextOptions::default(), given).unwrap();
        let options = EngineOptions { rows_max: rows, pages: Some(rows * 2), ..opened.engine_options() };
        let engine = Engine::new(&opened.model, None, options).unwrap();
        let mut params = GeneratorParams::new(opened.model.config().search.clone()).max_new_tokens(rows + 3);
        params.ignore_eos = true;
        let submit = |row: usize| engine.submit(Request::new(vec![5, row as u32], params.clone())).unwrap();
        let handles: Vec<_> = (0..rows).map(submit).collect();
        for event in handles.iter().flat_map(|handle| handle.events()) {
            assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
        }
        device.decode_step(rows, 4).unwrap()
    }

    #[test]
    fn a_step_of_several_rows_is_told_by_its_kernels() {
        let table = table_of(ProductWeights::Bf16, 2);
        for kernel in [
            "stream.norm+mma.8x16x1",
            "stream.norm+mma.8x16x2",
            "stream.mma.8x16x1k16+add",
            "cached_attention",
            APPENDING,
        ] {
            assert!(table.contains(kernel), "{kernel} is not in\n{table}");
        }
        let table = table_of(ProductWeights::Int4, 3);
        assert!(table.lines().any(|line| line.contains("stream.norm+mma.8x") && line.contains("4bit")), "{table}");
    }
}
