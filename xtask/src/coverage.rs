//! What becomes of each ONNX operator on each target, found by compiling examples of the graph generator: nothing runs, and
//! a GPU is not needed. For docs/operators.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use precast::{Model, Numerics, PassOptions, Runner, RunnerOptions};
use precast_cpu::lower::REFERENCE;
use precast_gpu::{Arch, GpuTarget, MemoryKernels, Vendor};
use precast_ir::Graph;
use precast_program::{Bucket, Program, Target};
use prost::Message;

use crate::fuzz::{Generated, example, makers};
use crate::kernel_texts::{Digests, TextCollector};

/// Examples of each operator.
const EXAMPLES: usize = 6;
/// Seeds that are tried for them.
const SEEDS: u64 = 40;

/// How the steps of an operator's examples are computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// Examples that were compiled.
    pub examples: usize,
    /// Of these, how many have kernels of the CPU alone.
    pub cpu: usize,
    /// And of the GPU.
    pub gpu: usize,
}

impl Coverage {
    /// A cell of the table for a target whose fallback has a name.
    pub fn cell(&self, covered: usize, fallback: &str) -> String {
        match covered {
            _ if self.examples == 0 => "–".to_string(),
            0 => fallback.to_string(),
            all if all == self.examples => "kernels".to_string(),
            _ => format!("kernels, rare forms {fallback}"),
        }
    }
}

/// Coverage by domain and operator.
pub fn coverage() -> BTreeMap<(&'static str, &'static str), Coverage> {
    let mut coverage = BTreeMap::new();
    for maker in makers::all() {
        let mut own = Coverage::default();
        for generated in (0..SEEDS).filter_map(|seed| example(maker, seed)).take(EXAMPLES) {
            add_example(&mut own, &generated);
        }
        coverage.insert((maker.domain, maker.operator), own);
    }
    coverage
}

fn add_example(coverage: &mut Coverage, generated: &Generated) {
    let Ok(model) = Model::from_bytes(generated.model.encode_to_vec().into()) else { return };
    let Ok(runner) = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() }) else { return };
    let Ok((graph, _)) = runner.graph(&generated.inputs) else { return };
    coverage.examples += 1;
    let cpu = runner.compile(&generated.inputs, &Bucket::default()).ok().flatten();
    coverage.cpu += usize::from(cpu.is_some_and(|program| is_without(&program, REFERENCE)));
    coverage.gpu += usize::from(compile_for_gpu(&graph).is_some_and(|program| is_without(&program, HOST)));
}

/// First word of the kernels that a GPU leaves to the host.
const HOST: &str = "host";

fn is_without(program: &Program, fallback: &str) -> bool {
    program.steps.iter().all(|step| step.kernel.split('.').next() != Some(fallback))
}

fn compile_for_gpu(graph: &Graph) -> Option<Program> {
    let name = "sm_90".to_string();
    let arch = Arch { vendor: Vendor::Cuda, name, warp: 32, shared_bytes_max: 64 << 10, multiprocessors: 132 };
    let options = PassOptions { numerics: Numerics::default(), ..PassOptions::default() };
    let target = GpuTarget::new(arch, options, Arc::new(TextCollector::default()), Arc::new(MemoryKernels::default()));
    target.compile_optimised(&target.optimise(graph).ok()?, &Bucket::default(), &Digests).ok()
}
