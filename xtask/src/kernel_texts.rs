//! The kernel texts that the models of this project become on a GPU. None is compiled here, and no constant is kept: what
//! compilers make of the texts is another question.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use precast::{FloatPrecision, Graph, Model, Numerics, PassOptions, Runner, RunnerOptions, Tensor};
use precast_gpu::{Arch, GpuTarget, KernelCompiler, MemoryKernels, Vendor};
use precast_program::store::StoreError;
use precast_program::{ArtifactStore, Bucket, Target};
use precast_tensor::Digest;

use crate::manifest::ModelEntry;
use crate::{fetch, inputs};

/// A compiler that notes what it is asked for.
#[derive(Default)]
pub struct TextCollector {
    texts: Mutex<BTreeSet<String>>,
}

impl TextCollector {
    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.texts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

impl KernelCompiler for TextCollector {
    fn version(&self) -> String {
        "none".to_string()
    }

    fn compile(&self, text: &str, _: &str) -> Result<Vec<u8>, String> {
        self.texts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(text.to_string());
        // A Program has no room for a kernel without code.
        Ok(vec![0])
    }
}

/// A store that gives digests and keeps nothing.
pub struct Digests;

impl ArtifactStore for Digests {
    fn put(&self, tensor: &Tensor) -> Result<Digest, StoreError> {
        Ok(tensor.digest())
    }

    fn get(&self, digest: &Digest) -> Result<Tensor, StoreError> {
        Err(StoreError::Missing(digest.to_string()))
    }
}

/// The target that writes a model's kernels for an architecture.
fn target(arch: &Arch, floats: FloatPrecision, collector: Arc<TextCollector>) -> GpuTarget {
    let numerics = Numerics { floats, ..Numerics::default() };
    let options = PassOptions { numerics, ..PassOptions::default() };
    GpuTarget::new(arch.clone(), options, collector, Arc::new(MemoryKernels::default()))
}

/// The texts of a model at a batch, by the name of the architecture. Each is whole, as a compiler takes it.
pub fn of_model(
    model: &ModelEntry,
    batch: usize,
    floats: FloatPrecision,
    archs: &[Arch],
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let runner = Runner::new(Model::open(&fetch::model_file(model)?)?, RunnerOptions::default())?;
    let (graph, _) = runner.graph(&inputs::make(model, batch)?)?;
    let collector = Arc::new(TextCollector::default());
    let mut texts = BTreeMap::new();
    let mut optimised: Option<(Vendor, Graph)> = None;
    for arch in archs {
        let target = target(arch, floats, collector.clone());
        // Passes look at nothing of an architecture but whose it is.
        if optimised.as_ref().is_none_or(|(vendor, _)| *vendor != arch.vendor) {
            optimised = Some((arch.vendor, target.optimise(&graph)?));
        }
        let (_, optimised) = optimised.as_ref().context("made above")?;
        target
            .compile_optimised(optimised, &Bucket::default(), &Digests)
            .with_context(|| format!("for {}", arch.name))?;
        texts.insert(arch.name.clone(), collector.take());
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Convolutions of yolov10n that the 1×1 fold replaces.
    fn folds(batch: usize, floats: FloatPrecision) -> usize {
        let arch = Arch {
            vendor: Vendor::Cuda,
            name: "sm_90".to_string(),
            warp: 32,
            shared_bytes_max: 64 << 10,
            multiprocessors: 132,
        };
        let models = crate::manifest::read().unwrap();
        let model = models.iter().find(|model| model.name == "yolov10n").unwrap();
        let skeleton = std::fs::read(crate::paths::models().join("skeletons/yolov10n.onnx")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("yolov10n.onnx");
        std::fs::write(&file, crate::fill::fill(skeleton.into()).unwrap().model).unwrap();
        let runner = Runner::new(Model::open(&file).unwrap(), RunnerOptions::default()).unwrap();
        let (graph, _) = runner.graph(&inputs::make(model, batch).unwrap()).unwrap();
        let mut fired = 0;
        let mut count = |report: precast::PassReport| {
            fired += if report.pass == "fold_conv_1x1" { report.fired.len() } else { 0 };
        };
        target(&arch, floats, Arc::default()).optimise_with(&graph, &mut count).unwrap();
        fired
    }

    #[test]
    fn a_gpu_folds_the_down_sampling_of_yolov10n_only_where_steps_cost_more_than_products() {
        assert_eq!(folds(1, FloatPrecision::F16), 2);
        assert_eq!(folds(8, FloatPrecision::F16), 0);
        assert_eq!(folds(1, FloatPrecision::F32), 0);
    }
}
