//! Compiling for the CPU: the target's passes, one kernel a node, one arena.

use precast_ir::Graph;
use precast_ir::verify::verify;
use precast_kernels::isa::Isa;
use precast_passes::{CANONICAL, FUSED, FloatPrecision, PassError, PassOptions, PassReport, run_passes_with};
use precast_program::{
    ArtifactStore, Bucket, CompileError, Program, ProgramBuilder, Reuse, StepDraft, StepRead, Target,
    TargetDescription, TuningTable,
};
use precast_tensor::Type;

use crate::lower::lower;
use crate::packings::Packings;
use crate::step::{Machine, Packing, Read, StepNode};
use crate::tactics::Tactics;

/// Kind of this target in descriptions.
pub const KIND: &str = "cpu";

/// Compiles for one instruction set and number of threads.
pub struct CpuTarget {
    machine: Machine,
    description: TargetDescription,
    options: PassOptions,
    tactics: Tactics,
    packings: Packings,
}

impl CpuTarget {
    /// A target for an instruction set and a number of threads.
    pub fn new(isa: Isa, threads: usize, mut options: PassOptions) -> CpuTarget {
        let (kind, features) = (KIND.to_string(), isa.name().to_string());
        let description = TargetDescription { kind, features, threads, numerics: options.numerics.clone() };
        let machine = Machine::new(isa, threads, &options.numerics);
        // The kernel of a pair multiplies in f32.
        options.costs.joins_depthwise &= !machine.is_bf16;
        CpuTarget {
            tactics: Tactics::new(machine, &description, TuningTable::default()),
            machine,
            description,
            options,
            packings: Packings::default(),
        }
    }

    /// The same target with measured choices of tactics, which decide where they have an answer.
    pub fn with_tuning(self, table: TuningTable) -> CpuTarget {
        CpuTarget { tactics: Tactics::new(self.machine, &self.description, table), ..self }
    }

    /// How the tactics of steps are chosen.
    pub fn tactics(&self) -> &Tactics {
        &self.tactics
    }

    fn draft(&self, step: &StepNode, node: &str, store: &dyn ArtifactStore) -> Result<StepDraft, CompileError> {
        let refuse = |reason: String| CompileError::Node { node: node.to_string(), op: step.op().name(), reason };
        let lowered = lower(step, self.machine).map_err(refuse)?;
        let read = |read: Read| match read {
            Read::Input(position) => Ok(StepRead::Operand(position)),
            Read::Packed { value: Some(Packing::Made(tensor)), .. } => Ok(StepRead::Stored(tensor)),
            Read::Packed { value: Some(Packing::Form(form)), .. } => {
                self.packings.tensor(form, store).map(StepRead::Stored).map_err(refuse)
            }
            Read::Packed { value: None, .. } => Err(refuse("a packed constant has no value".to_string())),
        };
        Ok(StepDraft {
            kernel: lowered.kernel,
            parameters: step.print().into_bytes(),
            reads: lowered.reads.into_iter().map(read).collect::<Result<_, _>>()?,
            scratch_bytes: Vec::from_iter((lowered.scratch_bytes > 0).then_some(lowered.scratch_bytes as u64)),
        })
    }
}

impl Target for CpuTarget {
    fn description(&self) -> &TargetDescription {
        &self.description
    }

    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        let canonical = run_passes_with(graph, CANONICAL, &self.options, report)?;
        run_passes_with(&canonical, FUSED, &self.options, report)
    }

    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        self.options.numerics.check().map_err(CompileError::Numerics)?;
        if self.options.numerics.floats != FloatPrecision::F32 {
            let floats = self.options.numerics.floats.name();
            return Err(CompileError::Numerics(format!("the CPU has no kernels on {floats} values; a GPU has")));
        }
        verify(graph).map_err(|error| PassError { pass: "verify", reason: error.to_string() })?;
        let reuse = if self.machine.threads > 1 { Reuse::Steady } else { Reuse::Tight };
        let mut builder = ProgramBuilder::new(graph, store)?.with_reuse(reuse);
        for node in graph.nodes() {
            if ProgramBuilder::is_view(&node.op) {
                builder.add_view(node);
                continue;
            }
            let copy = |ty: &Type| self.draft(&copy_step(ty)?, &node.provenance.to_string(), store);
            if builder.add_slice_view(node) || builder.add_concat_in_place(node, copy)? {
                continue;
            }
            let mut step = StepNode::new(graph, node)?;
            step.tactic = self.tactics.choose(&step);
            builder.add_step(node, self.draft(&step, &node.provenance.to_string(), store)?)?;
        }
        builder.add_outputs(|ty| self.draft(&copy_step(ty)?, "output", store))?;
        builder.finish(self.description.to_string(), bucket)
    }
}

/// A step that copies a value of this Type as it is.
fn copy_step(ty: &Type) -> Result<StepNode, CompileError> {
    let mut graph = Graph::new("");
    let x = graph.add_input("x0", ty.clone());
    let rank = ty.dims.len();
    let copy = precast_ir::op::Slice { start: vec![0.into(); rank], step: vec![1; rank], size: ty.dims.clone() };
    graph.add(copy, &[x], &Default::default())?;
    Ok(StepNode::new(&graph, &graph.nodes()[0])?)
}
