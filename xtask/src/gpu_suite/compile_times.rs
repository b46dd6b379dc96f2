//! What compiling and loading ResNet-50 takes: from nothing, with its kernels known, and for seven Buckets that share them and
//! are compiled side by side, as a Session does.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use precast::{FloatPrecision, Graph, Model, Numerics, PassOptions, Program, Runner, RunnerOptions};
use precast_gpu::{GpuTarget, MemoryKernels};
use precast_program::{Bucket, Device, MemoryStore, Target};

use super::{Bar, Part};
use crate::gpu::Rig;
use crate::{fetch, inputs, manifest};

const MODEL: &str = "resnet50";
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Bars in seconds, and how many times one Bucket all of them may take.
const COLD_S_MAX: f64 = 20.0;
const WARM_S_MAX: f64 = 2.0;
const LOAD_S_MAX: f64 = 0.3;
const BUCKETS_RATIO_MAX: f64 = 2.0;

/// Compiles and loads.
pub fn bars() -> Result<Vec<Bar>> {
    let rig = Rig::open(None)?;
    let models = manifest::read()?;
    let entry = models.iter().find(|model| model.name == MODEL).context("no ResNet-50 in the manifest")?;
    let runner = Runner::new(Model::open(&fetch::model_file(entry)?)?, RunnerOptions::default())?;
    let graph_at = |batch: usize| -> Result<Graph> { Ok(runner.graph(&inputs::make(entry, batch)?)?.0) };
    let store = MemoryStore::default();
    let kernels = Arc::new(MemoryKernels::default());
    let one = graph_at(1)?;
    let target = target(&rig, &kernels);
    let (cold_s, _) = compile(&target, &one, &store)?;
    let one_kernels = kernels.len();
    let (warm_s, program) = compile(&target, &one, &store)?;
    let program = Arc::new(program);
    let begun = Instant::now();
    let loaded = rig.device.load(&program, &store)?;
    let load_s = begun.elapsed().as_secs_f64();
    drop(loaded);
    let kernels = Arc::new(MemoryKernels::default());
    let all_s = compile_buckets(&self::target(&rig, &kernels), &BATCHES.map(graph_at), &store)?;
    let bar = |name: &str, figure: f64, limit: f64, unit: &str| Bar::most(Part::Compile, name, figure, limit, unit);
    let ratio = bar("seven Buckets of ResNet-50, in times of one", all_s / cold_s, BUCKETS_RATIO_MAX, "times");
    Ok(vec![
        bar("compiling ResNet-50 from nothing", cold_s, COLD_S_MAX, "s"),
        bar("compiling ResNet-50 with its kernels known", warm_s, WARM_S_MAX, "s"),
        bar("loading ResNet-50", load_s, LOAD_S_MAX, "s"),
        Bar { note: format!("{all_s:.2} s for {} kernels, one has {one_kernels}", kernels.len()), ..ratio },
    ])
}

/// The target of the device in fp16.
fn target(rig: &Rig, kernels: &Arc<MemoryKernels>) -> GpuTarget {
    let numerics = Numerics { floats: FloatPrecision::F16, ..Numerics::default() };
    let options = PassOptions { numerics, ..PassOptions::default() };
    GpuTarget::new(rig.device.arch().clone(), options, rig.compiler.clone(), kernels.clone())
}

/// Compiles Buckets side by side; seconds until all are there.
fn compile_buckets(target: &GpuTarget, graphs: &[Result<Graph>], store: &MemoryStore) -> Result<f64> {
    let graphs: Vec<&Graph> =
        graphs.iter().map(|graph| graph.as_ref().map_err(|error| anyhow!("{error:#}"))).collect::<Result<_>>()?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let compiling: Vec<_> = graphs.iter().map(|graph| scope.spawn(|| compile(target, graph, store))).collect();
        compiling
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(|_| ()))
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Compiles one Bucket; seconds and the Program.
fn compile(target: &GpuTarget, graph: &Graph, store: &MemoryStore) -> Result<(f64, Program)> {
    let begun = Instant::now();
    let program = target.compile(graph, &Bucket::default(), store)?;
    Ok((begun.elapsed().as_secs_f64(), program))
}
