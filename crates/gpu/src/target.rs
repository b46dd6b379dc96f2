//! Compiling for a GPU: passes, one or a few kernels a node, one arena, machine code by content. Needs no GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use precast_ir::graph::GraphError;
use precast_ir::{Graph, Node};
use precast_passes::{
    ActivationPrecision, CANONICAL, FUSED, FloatPrecision, Numerics, PassError, PassOptions, PassReport, StepCosts,
    narrow_floats, run_passes, run_passes_with,
};
use precast_program::{
    ArtifactStore, Bucket, CompileError, ConstantRef, Place, Program, ProgramBuilder, Slot, Step, StepDraft, StepRead,
    Target, TargetDescription, TuningTable,
};
use precast_tensor::{DType, Tensor, Type};

use crate::compile::{KernelCompiler, KernelStore, KernelsInWork, compile_all, whole_text};
use crate::kernel::{Arch, Launch, Lowered, Vendor};
use crate::layout::choose_layouts;
use crate::lower::lower;
use crate::ops::append_to_cache;
use crate::ops::stream_mma::MMA_ROWS_MAX;
use crate::ops::tiles::GEMV_ROWS_MAX;
use crate::rows;
use crate::site::{Layouts, Site};
use crate::step::{HOST, StepCode, StepLaunch, StepOperand};
use crate::tactics::{candidates, lower_with};
use crate::tune::problem_of;

/// A kernel whose text has this waits itself for the launch before it.
const WAIT: &str = "wait_for_last();";

/// Launches of more blocks for each multiprocessor begin in order: their start is a small part of them, and blocks that wait
/// would take the places of blocks that work.
const OVERLAPPING_WAVES: u64 = 4;

/// Passes whose results only another target has kernels for, or is faster at.
const FOREIGN_PASSES: [&str; 2] = ["quantise_weights", "hoist_softmax"];

/// What steps cost on a data-centre GPU of the last years, by how values lie: dense products at the rate that large
/// convolutions reach, feature maps between main memory and the second cache, and what a launch takes within a capture.
fn step_costs(vendor: Vendor, floats: FloatPrecision) -> StepCosts {
    let (dense_per_ns, element_bytes) = match floats {
        FloatPrecision::F32 => (15_000, None),
        FloatPrecision::F16 => (100_000, Some(2)),
    };
    StepCosts {
        dense_per_ns,
        depthwise_per_ns: 10_000,
        bytes_per_ns: 4_000,
        element_bytes,
        step_ns: 2_000,
        multiplies_blocks: false,
        streamed_rows: GEMV_ROWS_MAX as u32,
        streamed_short_rows: match vendor {
            Vendor::Cuda => MMA_ROWS_MAX as u32,
            Vendor::Hip => GEMV_ROWS_MAX as u32,
        },
        joins_depthwise: false,
    }
}

/// Compiles for one architecture.
pub struct GpuTarget {
    arch: Arch,
    description: TargetDescription,
    options: PassOptions,
    compiler: Arc<dyn KernelCompiler>,
    kernels: Arc<dyn KernelStore>,
    /// Refuse a node that the GPU has no kernel for, instead of giving it to the host.
    is_strict: bool,
    /// Measured tactics, which decide where they have an answer.
    tuning: TuningTable,
    in_work: KernelsInWork,
}

/// What a step will be, beside what the Program says of it.
enum Draft {
    Kernels(Lowered, usize, usize),
    Host(StepCode),
}

impl GpuTarget {
    /// A target for an architecture.
    pub fn new(
        arch: Arch,
        options: PassOptions,
        compiler: Arc<dyn KernelCompiler>,
        kernels: Arc<dyn KernelStore>,
    ) -> GpuTarget {
        let options = PassOptions { costs: step_costs(arch.vendor, options.numerics.floats), ..options };
        let kind = kind_of(arch.vendor).to_string();
        let features = format!("{}-{}mp-{}", arch.name, arch.multiprocessors, compiler.version());
        let description = TargetDescription { kind, features, threads: 1, numerics: options.numerics.clone() };
        let (tuning, in_work) = (TuningTable::default(), KernelsInWork::default());
        GpuTarget { arch, description, options, compiler, kernels, is_strict: false, tuning, in_work }
    }

    /// The same target, which refuses nodes that the GPU has no kernel for.
    pub fn strict(self) -> GpuTarget {
        GpuTarget { is_strict: true, ..self }
    }

    /// The same target with measured tactics.
    pub fn with_tuning(self, tuning: TuningTable) -> GpuTarget {
        GpuTarget { tuning, ..self }
    }

    /// What it compiles for.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// The Graph in fused form, with values as wide as the model has them.
    pub fn fuse(&self, graph: &Graph) -> Result<Graph, PassError> {
        let numerics = Numerics { floats: FloatPrecision::F32, ..self.options.numerics.clone() };
        let mut options = PassOptions { numerics, ..self.options.clone() };
        options.disabled.extend(FOREIGN_PASSES.map(str::to_string));
        run_passes(&run_passes(graph, CANONICAL, &options)?, FUSED, &options)
    }

    /// A Graph in fused form with values as wide as the options say.
    pub fn narrow(&self, fused: &Graph) -> Result<Graph, PassError> {
        let failed = |error: GraphError| PassError { pass: "narrow_floats", reason: error.to_string() };
        match self.options.numerics.floats {
            FloatPrecision::F32 => Ok(fused.clone()),
            FloatPrecision::F16 => narrow_floats(fused, DType::F16).map_err(failed),
        }
    }

    /// Compiles a Graph as it is, with values that lie as told and tactics of a table.
    pub(crate) fn compile_with(
        &self,
        graph: &Graph,
        layouts: &Layouts,
        tuning: &TuningTable,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        let mut builder = ProgramBuilder::new(graph, store)?;
        let mut drafts = Vec::new();
        for node in graph.nodes() {
            if ProgramBuilder::is_view(&node.op) {
                builder.add_view(node);
                continue;
            }
            let (step, draft) = self.draft(graph, node, layouts, tuning)?;
            builder.add_step(node, step)?;
            drafts.push(draft);
        }
        builder.add_outputs(|ty| {
            let (step, draft) = self.draft_copy(ty)?;
            drafts.push(draft);
            Ok(step)
        })?;
        let mut program = builder.finish(self.description.to_string(), bucket)?;
        mark_ports_in_place(&mut program);
        self.add_code(&mut program, drafts, store)?;
        Ok(program)
    }

    /// The kernels of a node: by the measured tactic where there is one, else by the cost model's.
    fn lower(&self, site: &Site, tuning: &TuningTable) -> Result<Option<Lowered>, String> {
        if !tuning.is_empty() {
            let problem = problem_of(site).map_err(|error| error.to_string())?;
            if let Some(record) = tuning.get(&problem) {
                let tactic = candidates(site).into_iter().find(|tactic| tactic.name() == record.tactic);
                if let Some(lowered) = tactic.and_then(|tactic| lower_with(site, &tactic)) {
                    return Ok(Some(lowered));
                }
            }
        }
        lower(site)
    }

    fn draft(
        &self,
        graph: &Graph,
        node: &Node,
        layouts: &Layouts,
        tuning: &TuningTable,
    ) -> Result<(StepDraft, Draft), CompileError> {
        let refuse =
            |reason: String| CompileError::Node { node: node.provenance.to_string(), op: node.op.name(), reason };
        let site = Site { graph, node, arch: &self.arch, layouts };
        let operands = (0..node.inputs.len()).map(StepRead::Operand);
        let Some(lowered) = self.lower(&site, tuning).map_err(refuse)? else {
            if self.is_strict {
                return Err(refuse(
                    "the GPU has no kernel for it, and a strict compile leaves nothing to the host".into(),
                ));
            }
            let kernel = format!("{HOST}.{}", node.op.name());
            let step =
                StepDraft { kernel, parameters: Vec::new(), reads: operands.collect(), scratch_bytes: Vec::new() };
            return Ok((step, Draft::Host(StepCode::host(graph, node, layouts)?)));
        };
        let packed = lowered.packed.iter().cloned().map(StepRead::Stored);
        let step = StepDraft {
            kernel: lowered.name.clone(),
            parameters: Vec::new(),
            reads: operands.chain(packed).collect(),
            scratch_bytes: lowered.scratch_bytes.clone(),
        };
        Ok((step, Draft::Kernels(lowered, node.inputs.len(), node.outputs.len())))
    }

    /// A step that copies a value of this Type as it is.
    fn draft_copy(&self, ty: &Type) -> Result<(StepDraft, Draft), CompileError> {
        let mut graph = Graph::new("");
        let x = graph.add_input("x0", ty.clone());
        let rank = ty.dims.len();
        let copy = precast_ir::op::Slice { start: vec![0.into(); rank], step: vec![1; rank], size: ty.dims.clone() };
        graph.add(copy, &[x], &Default::default())?;
        self.draft(&graph, &graph.nodes()[0], &Layouts::default(), &TuningTable::default())
    }

    /// Compiles the kernels, now that it is known which buffers are the caller's, and writes them into the steps.
    fn add_code(
        &self,
        program: &mut Program,
        drafts: Vec<Draft>,
        store: &dyn ArtifactStore,
    ) -> Result<(), CompileError> {
        let mut texts: Vec<String> = Vec::new();
        let mut positions: BTreeMap<String, u32> = BTreeMap::new();
        let mut codes = Vec::new();
        for (step, draft) in program.steps.iter().zip(drafts) {
            codes.push(match draft {
                Draft::Host(code) => code,
                Draft::Kernels(lowered, inputs, outputs) => {
                    let mut launches = Vec::new();
                    for launch in lowered.launches {
                        let operands: Vec<StepOperand> =
                            launch.operands.iter().map(|&operand| StepOperand::of(operand, inputs, outputs)).collect();
                        let text = whole_text(&launch.text, &self.arch, &indirect_of(step, &operands));
                        let code = *positions.entry(text.clone()).or_insert_with(|| {
                            texts.push(text);
                            texts.len() as u32 - 1
                        });
                        launches.push(finish_launch(launch, code, operands, self.arch.multiprocessors));
                    }
                    StepCode::Launches(launches)
                }
            });
        }
        // Last, where `rows::code_of` looks for it.
        texts.push(whole_text(&rows::text(), &self.arch, &[]));
        let failed = |reason: String| CompileError::Pass(PassError { pass: "compile_kernels", reason });
        let compiled =
            compile_all(&texts, &self.arch, &*self.compiler, &*self.kernels, &self.in_work).map_err(failed)?;
        let mut constants = Vec::new();
        for code in compiled {
            let bytes = code.len();
            let tensor =
                Tensor::new(DType::U8, vec![bytes], Bytes::from(code)).map_err(|error| failed(error.to_string()))?;
            let digest = store.put(&tensor)?.to_string();
            program.constants.push(ConstantRef { digest, bytes: bytes as u64 });
            constants.push(program.constants.len() as u32 - 1);
        }
        for (step, mut code) in program.steps.iter_mut().zip(codes) {
            if let StepCode::Launches(launches) = &mut code {
                launches.iter_mut().for_each(|launch| launch.code = constants[launch.code as usize]);
            }
            step.parameters = code.encode().map_err(failed)?;
        }
        Ok(())
    }
}

/// Says of caches that are a Program's outputs which inputs they may be: those that no step reads once they are written.
fn mark_ports_in_place(program: &mut Program) {
    for (position, step) in program.steps.iter().enumerate() {
        let Some(first) = append_to_cache::inputs_before_caches(&step.kernel) else { continue };
        for (output, write) in step.writes.iter().enumerate() {
            let read = step.reads.get(first + 2 * output).map(|slot| slot.place);
            let (Place::Output(output), Some(Place::Input(input))) = (write.place, read) else { continue };
            let is_read = |step: &Step| step.reads.iter().any(|slot| slot.place == Place::Input(input));
            if !program.steps[position + 1..].iter().any(is_read) {
                program.outputs[output as usize].in_place_of = Some(input);
            }
        }
    }
}

/// Kind of the target in descriptions and names of devices.
pub fn kind_of(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Cuda => "cuda",
        Vendor::Hip => "hip",
    }
}

/// The slot of an operand.
pub(crate) fn slot_of(step: &Step, operand: StepOperand) -> Option<Slot> {
    match operand {
        StepOperand::Read(position) => step.reads.get(position as usize).copied(),
        StepOperand::Write(position) => step.writes.get(position as usize).copied(),
    }
}

/// Whether a slot is the caller's buffer, whose address kernels read from a table.
pub(crate) fn is_callers(slot: &Slot) -> bool {
    matches!(slot.place, Place::Input(_) | Place::Output(_))
}

/// Which operands are the caller's buffers.
fn indirect_of(step: &Step, operands: &[StepOperand]) -> Vec<bool> {
    operands.iter().map(|operand| slot_of(step, *operand).is_some_and(|slot| is_callers(&slot))).collect()
}

fn finish_launch(launch: Launch, code: u32, operands: Vec<StepOperand>, multiprocessors: u32) -> StepLaunch {
    let blocks = launch.grid.iter().map(|&blocks| u64::from(blocks)).product::<u64>();
    let is_overlapping = launch.text.contains(WAIT) && blocks <= OVERLAPPING_WAVES * u64::from(multiprocessors);
    let is_clustered = launch.is_clustered();
    let Launch { entry, grid, block, shared_bytes, scalars, row_bytes, .. } = launch;
    StepLaunch { code, entry, grid, block, shared_bytes, operands, scalars, row_bytes, is_overlapping, is_clustered }
}

impl Target for GpuTarget {
    fn description(&self) -> &TargetDescription {
        &self.description
    }

    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        let mut options = self.options.clone();
        options.disabled.extend(FOREIGN_PASSES.map(str::to_string));
        let canonical = run_passes_with(graph, CANONICAL, &options, report)?;
        self.narrow(&run_passes_with(&canonical, FUSED, &options, report)?)
    }

    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        if self.options.numerics.activations != ActivationPrecision::F32 {
            let activations = self.options.numerics.activations.name();
            return Err(CompileError::Numerics(format!(
                "GPUs have no kernels for {activations} activations; the CPU has"
            )));
        }
        let layouts = choose_layouts(graph, &self.arch);
        self.compile_with(graph, &layouts, &self.tuning, bucket, store)
    }
}
