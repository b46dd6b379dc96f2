//! A GPU that loads Programs: machine code and constants are on it once, however many Programs name them.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use precast_driver::{DeviceBuffer, DriverError, Function, LaunchShape, Module, Stream};
use precast_ir::Graph;
use precast_program::program::BUILD;
use precast_program::{
    ArtifactStore, ConstantRef, Device, DeviceContext, DeviceMemory, LoadError, LoadedProgram, Place, Program,
    RunError, Slot, Step,
};
use precast_tensor::Digest;

use crate::context::{CaptureOptions, Captures, GpuContext, refused as run_refused};
use crate::kernel::{Arch, Vendor};
use crate::memory::GpuMemory;
use crate::rows;
use crate::step::{StepCode, StepLaunch};
use crate::target::{kind_of, slot_of};

/// A GPU.
pub struct GpuDevice {
    device: precast_driver::Device,
    arch: Arch,
    constants: Mutex<HashMap<Digest, Weak<DeviceBuffer>>>,
    modules: Mutex<HashMap<Digest, Weak<Module>>>,
    /// For uploads of constants, one at a time.
    uploads: Mutex<Stream>,
    captures: Arc<Captures>,
    loaded: AtomicU64,
}

impl GpuDevice {
    /// A device of a driver.
    pub fn new(device: precast_driver::Device) -> Result<GpuDevice, DriverError> {
        let uploads = Mutex::new(device.stream()?);
        let (constants, modules) = (Mutex::default(), Mutex::default());
        let arch = arch_of(&device);
        let captures = Captures::new(CaptureOptions::default());
        Ok(GpuDevice { device, arch, constants, modules, uploads, captures, loaded: AtomicU64::new(0) })
    }

    /// The same device, whose contexts capture as told.
    pub fn with_captures(self, options: CaptureOptions) -> GpuDevice {
        GpuDevice { captures: Captures::new(options), ..self }
    }

    /// Bytes and graphs of all its captures.
    pub fn captures_used(&self) -> (u64, usize) {
        self.captures.budget.used()
    }

    /// Captures that were dropped to make room for others.
    pub fn captures_evicted(&self) -> u64 {
        self.captures.budget.evicted()
    }

    /// What kernels for it are compiled for.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// The driver's device.
    pub fn driver(&self) -> &precast_driver::Device {
        &self.device
    }

    /// A context with what only a GPU has: runs on memory of the device.
    pub fn gpu_context(&self) -> GpuContext {
        GpuContext::new(&self.device, &self.captures, 0)
    }

    fn constant(&self, constant: &ConstantRef, store: &dyn ArtifactStore) -> Result<Arc<DeviceBuffer>, LoadError> {
        shared(&self.constants, digest_of(constant)?, |digest| {
            let tensor = store.get(digest)?;
            check_bytes(constant, tensor.as_bytes())?;
            let buffer = self.device.allocate(tensor.as_bytes().len()).map_err(refused)?;
            let uploads = self.uploads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            uploads.upload(&buffer, 0, tensor.as_bytes()).map_err(refused)?;
            tensor.release_pages();
            Ok(buffer)
        })
    }

    fn module(&self, constant: &ConstantRef, store: &dyn ArtifactStore) -> Result<Arc<Module>, LoadError> {
        shared(&self.modules, digest_of(constant)?, |digest| {
            let tensor = store.get(digest)?;
            check_bytes(constant, tensor.as_bytes())?;
            self.device.load_module(tensor.as_bytes()).map_err(refused)
        })
    }

    fn load_row_kernels(&self, program: &Program, store: &dyn ArtifactStore) -> Result<RowKernels, LoadError> {
        let missing = || LoadError::Malformed("it has no machine code to move rows with".to_string());
        let module = self.module(rows::code_of(program).ok_or_else(missing)?, store)?;
        let move_rows = module.function(rows::ENTRY).map_err(refused)?;
        let copy_units = module.function(rows::COPY_ENTRY).map_err(refused)?;
        Ok(RowKernels { _module: module, move_rows, copy_units })
    }

    fn check_target(&self, program: &Program) -> Result<(), LoadError> {
        if program.build != BUILD {
            return Err(LoadError::Build { found: program.build.clone(), expected: BUILD.to_string() });
        }
        let prefix = format!("{}:{}-", kind_of(self.arch.vendor), self.arch.name);
        if !program.target.starts_with(&prefix) {
            let reason = format!("this device is {}", prefix.trim_end_matches('-'));
            return Err(LoadError::Target { found: program.target.clone(), reason });
        }
        program.verify().map_err(LoadError::Malformed)
    }

    fn load_launch(
        &self,
        program: &Program,
        step: &Step,
        launch: StepLaunch,
        store: &dyn ArtifactStore,
    ) -> Result<LoadedLaunch, LoadError> {
        let malformed = |reason: String| LoadError::Malformed(format!("kernel {}: {reason}", step.kernel));
        let StepLaunch { code, entry, grid, block, shared_bytes, operands, scalars, .. } = launch;
        let (is_overlapping, is_clustered) = (launch.is_overlapping, launch.is_clustered);
        let code = program.constants.get(code as usize);
        let code = code.ok_or_else(|| malformed("its machine code is no constant of the Program".to_string()))?;
        let module = self.module(code, store)?;
        let function = module.function(&entry).map_err(refused)?;
        function.set_shared_bytes_max(shared_bytes).map_err(refused)?;
        let mut words = Vec::new();
        for operand in operands {
            let slot = slot_of(step, operand).ok_or_else(|| malformed(format!("{operand:?} does not exist")))?;
            words.push(Word::Buffer(slot));
        }
        words.extend(scalars.into_iter().map(Word::Scalar));
        let shape = LaunchShape { grid, block, shared_bytes, is_overlapping, is_clustered };
        Ok(LoadedLaunch { _module: module, function, shape, words })
    }
}

/// The architecture with instructions that no later one has: on sm_90, products of four warps together.
fn own_instructions(arch: &str) -> String {
    if arch == "sm_90" { "sm_90a".to_string() } else { arch.to_string() }
}

/// What a driver's device is to the compiler.
pub fn arch_of(device: &precast_driver::Device) -> Arch {
    let info = device.info();
    let vendor = match device.library().vendor() {
        precast_driver::Vendor::Cuda => Vendor::Cuda,
        precast_driver::Vendor::Hip => Vendor::Hip,
    };
    Arch {
        vendor,
        name: own_instructions(&info.arch),
        warp: info.warp,
        shared_bytes_max: info.shared_bytes_max,
        multiprocessors: info.multiprocessors,
    }
}

impl Device for GpuDevice {
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError> {
        self.check_target(program)?;
        let mut steps = Vec::new();
        let mut rows = PortRows::new(program);
        for (position, step) in program.steps.iter().enumerate() {
            let malformed =
                |reason: String| LoadError::Malformed(format!("step {position} ({}): {reason}", step.kernel));
            steps.push(match StepCode::decode(&step.parameters).map_err(malformed)? {
                StepCode::Launches(launches) => {
                    launches.iter().for_each(|launch| rows.add_launch(step, launch));
                    let load = |launch| self.load_launch(program, step, launch, store);
                    LoadedStep::Launches(launches.into_iter().map(load).collect::<Result<_, _>>()?)
                }
                // Steps of the host have buffers of their own.
                StepCode::Host(text) => LoadedStep::Host(StepCode::host_graph(&text).map_err(malformed)?),
            });
        }
        let mut constants = vec![None; program.constants.len()];
        for slot in program.steps.iter().flat_map(|step| step.reads.iter()) {
            if let Place::Constant(position) = slot.place
                && constants[position as usize].is_none()
            {
                constants[position as usize] = Some(self.constant(&program.constants[position as usize], store)?);
            }
        }
        let id = self.loaded.fetch_add(1, Ordering::Relaxed);
        let segments = segments(&steps);
        let row_kernels = self.load_row_kernels(program, store)?;
        let (program, row_bytes) = (program.clone(), rows.row_bytes);
        Ok(Arc::new_cyclic(|me| Loaded {
            id,
            me: me.clone(),
            program,
            constants,
            steps,
            segments,
            row_kernels,
            row_bytes,
        }))
    }

    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext> {
        Box::new(GpuContext::new(&self.device, &self.captures, workspace_bytes))
    }

    fn owns(&self, memory: &dyn DeviceMemory) -> bool {
        let own = |device: &precast_driver::Device| (device.library().vendor(), device.info().ordinal);
        GpuMemory::of(memory).is_some_and(|memory| own(memory.buffer().device()) == own(&self.device))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.device.memory_free_total().ok().map(|memory| memory.free_bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, RunError> {
        Ok(Arc::new(GpuMemory::allocate(&self.device, bytes).map_err(run_refused)?))
    }
}

/// A Program whose code and constants are on the device.
pub(crate) struct Loaded {
    /// Different for every load on a device.
    pub(crate) id: u64,
    me: Weak<Loaded>,
    pub(crate) program: Arc<Program>,
    /// By position; machine code is no buffer.
    pub(crate) constants: Vec<Option<Arc<DeviceBuffer>>>,
    pub(crate) steps: Vec<LoadedStep>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) row_kernels: RowKernels,
    /// By Port, inputs first: of how many bytes the rows of a buffer with fewer of them must be multiples; 0 where kernels take
    /// only whole ones.
    pub(crate) row_bytes: Vec<u64>,
}

/// Which Ports all kernels take with fewer rows.
struct PortRows {
    inputs: usize,
    row_bytes: Vec<u64>,
}

impl PortRows {
    fn new(program: &Program) -> PortRows {
        let inputs = program.inputs.len();
        PortRows { inputs, row_bytes: vec![1; inputs + program.outputs.len()] }
    }

    fn add_launch(&mut self, step: &Step, launch: &StepLaunch) {
        for (at, &operand) in launch.operands.iter().enumerate() {
            let port = match slot_of(step, operand).map(|slot| slot.place) {
                Some(Place::Input(position)) => position as usize,
                Some(Place::Output(position)) => self.inputs + position as usize,
                Some(Place::Arena(_) | Place::Constant(_)) | None => continue,
            };
            let Some(row_bytes) = self.row_bytes.get_mut(port) else { continue };
            *row_bytes = common_multiple(*row_bytes, launch.row_bytes.get(at).copied().unwrap_or(0));
        }
    }
}

/// The least common multiple; 0 where a number is 0, or where there is none of 64 bits.
fn common_multiple(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.checked_div(divisor).and_then(|a| a.checked_mul(b)).unwrap_or(0)
}

/// The kernels that move rows between the caller's buffers and the Program's, and few bytes from and to pinned memory.
pub(crate) struct RowKernels {
    /// On the device as long as the functions may be launched.
    _module: Arc<Module>,
    pub(crate) move_rows: Function,
    pub(crate) copy_units: Function,
}

/// Steps that are launched, and recorded, together; or one of the host.
pub(crate) enum Segment {
    Device(Range<usize>),
    Host(usize),
}

/// The steps between two steps of the host. Every Program begins and ends with such a segment, maybe with no steps.
fn segments(steps: &[LoadedStep]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut start = 0;
    for (position, step) in steps.iter().enumerate() {
        if let LoadedStep::Host(_) = step {
            segments.push(Segment::Device(start..position));
            segments.push(Segment::Host(position));
            start = position + 1;
        }
    }
    segments.push(Segment::Device(start..steps.len()));
    segments
}

pub(crate) enum LoadedStep {
    Launches(Vec<LoadedLaunch>),
    /// A graph of one node that the host evaluates.
    Host(Graph),
}

pub(crate) struct LoadedLaunch {
    /// On the device as long as the function may be launched.
    _module: Arc<Module>,
    pub(crate) function: Function,
    pub(crate) shape: LaunchShape,
    pub(crate) words: Vec<Word>,
}

/// A parameter of a kernel.
pub(crate) enum Word {
    Buffer(Slot),
    Scalar(i64),
}

impl LoadedProgram for Loaded {
    fn program(&self) -> &Program {
        &self.program
    }
}

impl Loaded {
    /// The same, for whoever keeps it.
    pub(crate) fn shared(&self) -> Arc<Loaded> {
        self.me.upgrade().expect("a loaded Program is only ever seen in its Arc")
    }

    /// A loaded Program that is this room's.
    pub(crate) fn of(program: &dyn LoadedProgram) -> Option<&Loaded> {
        (program as &dyn Any).downcast_ref()
    }
}

/// The value under a key that somebody still holds, or a new one.
fn shared<K: Copy + Eq + Hash, V>(
    map: &Mutex<HashMap<K, Weak<V>>>,
    key: K,
    make: impl FnOnce(&K) -> Result<V, LoadError>,
) -> Result<Arc<V>, LoadError> {
    let mut map = map.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(value) = map.get(&key).and_then(Weak::upgrade) {
        return Ok(value);
    }
    map.retain(|_, value| value.strong_count() > 0);
    let value = Arc::new(make(&key)?);
    map.insert(key, Arc::downgrade(&value));
    Ok(value)
}

fn digest_of(constant: &ConstantRef) -> Result<Digest, LoadError> {
    constant.digest.parse().map_err(|_| LoadError::Malformed(format!("digest '{}'", constant.digest)))
}

fn check_bytes(constant: &ConstantRef, bytes: &[u8]) -> Result<(), LoadError> {
    let is_equal = bytes.len() as u64 == constant.bytes;
    let malformed = || format!("constant {} has another size than the Program says", constant.digest);
    if is_equal { Ok(()) } else { Err(LoadError::Malformed(malformed())) }
}

fn refused(error: DriverError) -> LoadError {
    LoadError::Device(error.to_string())
}
