//! Loading and running Programs on the CPU.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use precast_kernels::arena::{self, AlignedBytes, Arena, Bound, Requirement, Requirements, StepSlots};
use precast_kernels::isa::{Exec, Isa};
use precast_kernels::pool::ThreadPool;
use precast_program::program::BUILD;
use precast_program::{
    ArtifactStore, ConstantRef, Device, DeviceContext, DeviceRun, LoadError, LoadedProgram, Place, Port, Program,
    RunError, Slot, Step, TargetDescription,
};
use precast_tensor::{DType, Digest, Tensor, Type};

use crate::lower::lower;
use crate::step::{Lowered, Machine, Read, Run, StepNode};
use crate::target::KIND;

/// The CPU with a pool of threads that all Programs loaded on it share.
pub struct CpuDevice {
    isa: Isa,
    pool: Arc<ThreadPool>,
    /// Constants of loaded Programs: each is in memory once, however many Programs name it.
    constants: Mutex<HashMap<Digest, AlignedBytes>>,
}

impl CpuDevice {
    /// A device that runs on `threads` threads, the caller's among them.
    pub fn new(threads: usize) -> CpuDevice {
        let pool = Arc::new(ThreadPool::new(threads));
        CpuDevice { isa: Isa::detect(), pool, constants: Mutex::default() }
    }

    /// This device as code for a machine runs on it; none if it has other threads or lacks the instructions.
    pub(crate) fn exec_for(&self, machine: Machine) -> Option<Exec<'_>> {
        Exec::new(machine.isa, &self.pool).filter(|exec| exec.threads() == machine.threads.max(1))
    }

    /// A constant, from the Programs that are loaded already or from the store.
    fn constant(&self, constant: &ConstantRef, store: &dyn ArtifactStore) -> Result<AlignedBytes, LoadError> {
        let digest: Digest =
            constant.digest.parse().map_err(|_| LoadError::Malformed(format!("digest '{}'", constant.digest)))?;
        let mut constants = self.constants.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let bytes = match constants.get(&digest) {
            Some(bytes) => bytes.clone(),
            None => {
                let bytes = aligned(&store.get(&digest)?);
                constants.insert(digest, bytes.clone());
                bytes
            }
        };
        if bytes.as_bytes().len() as u64 != constant.bytes {
            return Err(LoadError::Malformed(format!("constant {digest} has another size than the Program says")));
        }
        Ok(bytes)
    }

    /// Lets go of constants that no loaded Program has any more.
    fn drop_unused_constants(&self) {
        let mut constants = self.constants.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        constants.retain(|_, bytes| bytes.is_shared());
    }
}

/// The bytes of a constant: where they are if that is aligned, else a copy, of which the source need not stay in memory.
fn aligned(tensor: &Tensor) -> AlignedBytes {
    const COPIED_BYTES: usize = 1 << 20;
    AlignedBytes::try_from_bytes(tensor.bytes()).unwrap_or_else(|| {
        let copy = AlignedBytes::from_parts(tensor.as_bytes().len(), tensor.read_parts(COPIED_BYTES));
        tensor.release_pages();
        copy
    })
}

impl Device for CpuDevice {
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError> {
        if program.build != BUILD {
            return Err(LoadError::Build { found: program.build.clone(), expected: BUILD.to_string() });
        }
        let machine = self.machine_of(program)?;
        program.verify().map_err(LoadError::Malformed)?;
        self.drop_unused_constants();
        let constants = program.constants.iter().map(|constant| self.constant(constant, store));
        let constants: Vec<AlignedBytes> = constants.collect::<Result<_, LoadError>>()?;
        let requirements = requirements(program)?;
        let mut steps = Vec::new();
        for (position, step) in program.steps.iter().enumerate() {
            let malformed =
                |reason: String| LoadError::Malformed(format!("step {position} ({}): {reason}", step.kernel));
            let text = std::str::from_utf8(&step.parameters).map_err(|error| malformed(error.to_string()))?;
            let node = StepNode::parse(text).map_err(malformed)?;
            let lowered = lower(&node, machine).map_err(malformed)?;
            if lowered.kernel != step.kernel || lowered.reads.len() != step.reads.len() {
                return Err(malformed(format!("this build makes the kernel {} of it", lowered.kernel)));
            }
            check_slots(&node, &lowered, step).map_err(malformed)?;
            let reads = step.reads.iter().map(arena_slot).collect();
            let writes = step.writes.iter().map(arena_slot).collect();
            let slots = StepSlots::new(reads, writes, program.arena_bytes as usize);
            let slots = slots.map_err(|error| malformed(error.to_string()))?;
            requirements.admit(&slots).map_err(|error| malformed(error.to_string()))?;
            steps.push(LoadedStep { slots, run: lowered.run });
        }
        let isa = machine.isa;
        Ok(Arc::new(Loaded { program: program.clone(), isa, constants, requirements, steps }))
    }

    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext> {
        Box::new(CpuContext { pool: self.pool.clone(), arena: Arena::new(workspace_bytes as usize) })
    }

    fn leave_core(&self) {
        self.pool.leave_core();
    }

    fn take_core_back(&self) {
        self.pool.take_core_back();
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn do_beside(&self, threads: usize, body: &(dyn Fn() + Sync)) {
        self.pool.do_beside(threads, body);
    }
}

/// Checks that the slots of a step have the sizes that its text says, on which the kernels rely.
fn check_slots(node: &StepNode, lowered: &Lowered, step: &Step) -> Result<(), String> {
    let bytes_of = |ty: &Type| ty.size_bytes().unwrap_or(usize::MAX);
    let reads = lowered.reads.iter().map(|read| match read {
        Read::Input(input) => bytes_of(node.ty(*input)),
        Read::Packed { bytes, .. } => *bytes,
    });
    let outputs = (0..node.output_count()).map(|output| bytes_of(node.output_ty(output)));
    let writes = outputs.chain((lowered.scratch_bytes > 0).then_some(lowered.scratch_bytes));
    for (kind, needed, slots) in
        [("reads", reads.collect::<Vec<usize>>(), &step.reads), ("writes", writes.collect(), &step.writes)]
    {
        if !needed.iter().map(|&bytes| bytes as u64).eq(slots.iter().map(|slot| slot.bytes)) {
            let found: Vec<u64> = slots.iter().map(|slot| slot.bytes).collect();
            return Err(format!("its {kind} have {found:?} bytes; its text says {needed:?}"));
        }
    }
    Ok(())
}

impl CpuDevice {
    /// What the Program was compiled for, if this device can run it.
    fn machine_of(&self, program: &Program) -> Result<Machine, LoadError> {
        let refuse = |reason: &str| LoadError::Target { found: program.target.clone(), reason: reason.to_string() };
        let description = TargetDescription::parse(&program.target).filter(|description| description.kind == KIND);
        let TargetDescription { features, threads, numerics, .. } =
            description.ok_or_else(|| refuse("it is not a CPU target of this build"))?;
        let isa = Isa::from_name(&features).ok_or_else(|| refuse("its instruction set is unknown here"))?;
        if !isa.is_supported() {
            return Err(refuse("this CPU does not have its instructions"));
        }
        if threads < self.pool.threads() {
            return Err(refuse("it was compiled for fewer threads than this device has"));
        }
        debug_assert!(isa <= self.isa);
        Ok(Machine::new(isa, threads, &numerics))
    }
}

struct LoadedStep {
    slots: StepSlots,
    run: Run,
}

struct Loaded {
    program: Arc<Program>,
    isa: Isa,
    constants: Vec<AlignedBytes>,
    requirements: Requirements,
    steps: Vec<LoadedStep>,
}

impl LoadedProgram for Loaded {
    fn program(&self) -> &Program {
        &self.program
    }
}

struct CpuContext {
    pool: Arc<ThreadPool>,
    arena: Arena,
}

impl DeviceContext for CpuContext {
    fn workspace_bytes(&self) -> u64 {
        self.arena.bytes() as u64
    }

    fn reserve(&mut self, workspace_bytes: u64) {
        if self.arena.bytes() < workspace_bytes as usize {
            self.arena = Arena::new(workspace_bytes as usize);
        }
    }

    fn run(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<DeviceRun, RunError> {
        self.run_steps(program, inputs, outputs, |_| {})?;
        Ok(DeviceRun::default())
    }

    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError> {
        let mut times = Vec::with_capacity(program.program().steps.len());
        let mut start = Instant::now();
        self.run_steps(program, inputs, outputs, |_| {
            let now = Instant::now();
            times.push(now - start);
            start = now;
        })?;
        Ok(times)
    }
}

impl CpuContext {
    fn run_steps(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        mut after: impl FnMut(usize),
    ) -> Result<(), RunError> {
        let loaded = (program as &dyn Any).downcast_ref::<Loaded>().ok_or(RunError::ForeignProgram)?;
        let exec = Exec::new(loaded.isa, &self.pool)
            .ok_or_else(|| RunError::Buffer("this CPU does not have the Program's instructions".to_string()))?;
        let mut bound = Bound::new(&loaded.requirements, &mut self.arena, &loaded.constants, inputs, outputs)
            .map_err(|error| RunError::Buffer(error.to_string()))?;
        for (position, step) in loaded.steps.iter().enumerate() {
            let mut args = bound.args(&step.slots);
            (step.run)(&mut args, exec).map_err(|reason| step_error(&loaded.program, position, reason))?;
            after(position);
        }
        Ok(())
    }
}

#[cold]
fn step_error(program: &Program, position: usize, reason: String) -> RunError {
    let step = &program.steps[position];
    RunError::Step { step: position, kernel: step.kernel.clone(), node: step.provenance.join(", "), reason }
}

fn requirements(program: &Program) -> Result<Requirements, LoadError> {
    let ports = |ports: &[Port]| {
        ports
            .iter()
            .map(|port| {
                let dtype = DType::from_name(&port.dtype)
                    .ok_or_else(|| LoadError::Malformed(format!("element type '{}' of '{}'", port.dtype, port.name)))?;
                Ok(Requirement { bytes: port.bytes as usize, align: dtype.size_bytes() })
            })
            .collect::<Result<Vec<Requirement>, LoadError>>()
    };
    Ok(Requirements {
        arena_bytes: program.arena_bytes as usize,
        constants: program
            .constants
            .iter()
            .map(|constant| Requirement { bytes: constant.bytes as usize, align: 1 })
            .collect(),
        inputs: ports(&program.inputs)?,
        outputs: ports(&program.outputs)?,
    })
}

fn arena_slot(slot: &Slot) -> arena::Slot {
    let place = match slot.place {
        Place::Arena(offset) => arena::Place::Arena { offset: offset as usize },
        Place::Input(position) => arena::Place::Input(position as usize),
        Place::Output(position) => arena::Place::Output(position as usize),
        Place::Constant(position) => arena::Place::Constant(position as usize),
    };
    arena::Slot { place, bytes: slot.bytes as usize }
}
