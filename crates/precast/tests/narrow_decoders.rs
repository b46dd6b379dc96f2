//! Decoders of 16 bits on the CPU: scores near those of the same weights in f32, by kernels and not by reference evaluation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use precast::device_name::{DeviceKind, DeviceName};
use precast::generate::{Generator, GeneratorParams};
use precast::{
    GivenDevice, RunnerOptions, TextFolder, TextOptions, is_by_reference, open_text_model, open_text_model_on,
};
use precast_cpu::{CpuDevice, CpuTarget};
use precast_ir::Graph;
use precast_passes::{PassError, PassReport};
use precast_program::{ArtifactStore, Bucket, CompileError, Program, Target, TargetDescription};

/// How far scores of 16-bit weights may be from those of f32 ones.
const TOLERANCE: f32 = 5e-2;
/// Folders of 16 bits, and those that have the same weights in f32.
const TWINS: [(&str, &str); 4] = [
    ("llama-fp16", "llama_unfused-fp32"),
    ("llama-bf16", "llama_unfused-fp32"),
    ("qwen3_tiny-fp16", "qwen3_tiny-fp32"),
    ("gemma3-bf16", "gemma3-fp32"),
];
/// Longer than the windows.
const TOKENS: [u32; 24] = [5, 60, 7, 8, 93, 23, 41, 5, 60, 88, 12, 77, 3, 30, 91, 64, 9, 17, 52, 70, 33, 46, 11, 4];
/// Of which so many are a prompt; the others follow one by one.
const PROMPT: usize = 14;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data").join(name)
}

/// The CPU's target, and the kernels of all that it compiled.
struct Recording {
    target: CpuTarget,
    kernels: Arc<Mutex<BTreeSet<String>>>,
}

impl Target for Recording {
    fn description(&self) -> &TargetDescription {
        self.target.description()
    }

    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError> {
        self.target.optimise_with(graph, report)
    }

    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError> {
        let program = self.target.compile_optimised(graph, bucket, store)?;
        self.kernels.lock().unwrap().extend(program.steps.iter().map(|step| step.kernel.clone()));
        Ok(program)
    }
}

/// A folder on the CPU, and the kernels that its steps will have.
fn open_recorded(name: &str) -> (TextFolder, Arc<Mutex<BTreeSet<String>>>) {
    let RunnerOptions { isa, threads, passes, .. } = RunnerOptions::default();
    let kernels = Arc::new(Mutex::default());
    let target = Recording { target: CpuTarget::new(isa, threads, passes), kernels: Arc::clone(&kernels) };
    let device = GivenDevice {
        name: DeviceName { kind: DeviceKind::Cpu, number: 0 },
        target: Arc::new(target),
        device: Arc::new(CpuDevice::new(threads)),
    };
    (open_text_model_on(&data(name), &TextOptions::default(), device).unwrap(), kernels)
}

/// Scores behind a prompt and behind each token that follows it.
fn scores(folder: &TextFolder) -> Vec<Vec<f32>> {
    let params = GeneratorParams::new(folder.model.config().search.clone());
    let mut generator = Generator::new(&folder.model, params).unwrap();
    generator.append(&[&TOKENS[..PROMPT]]).unwrap();
    let mut scores = vec![generator.logits(0).unwrap().to_vec()];
    for token in &TOKENS[PROMPT..] {
        generator.append(&[&[*token]]).unwrap();
        scores.push(generator.logits(0).unwrap().to_vec());
    }
    scores
}

#[test]
fn scores_are_near_those_of_f32() {
    for (narrow, wide) in TWINS {
        let (narrow_scores, wide_scores) = (
            scores(&open_text_model(&data(narrow), &TextOptions::default()).unwrap()),
            scores(&open_text_model(&data(wide), &TextOptions::default()).unwrap()),
        );
        for (step, (found, expected)) in narrow_scores.iter().zip(&wide_scores).enumerate() {
            let largest = expected.iter().fold(1.0f32, |largest, score| largest.max(score.abs()));
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs() / largest;
                assert!(error <= TOLERANCE, "{narrow}, step {step}: {found} is not {expected}");
            }
        }
    }
}

#[test]
fn no_step_runs_by_reference_evaluation() {
    for (narrow, _) in TWINS {
        let (folder, kernels) = open_recorded(narrow);
        scores(&folder);
        let kernels = kernels.lock().unwrap();
        assert!(kernels.iter().any(|kernel| kernel.starts_with("gemm")), "{narrow}: {kernels:?}");
        assert!(kernels.iter().any(|kernel| kernel.contains("attention")), "{narrow}: {kernels:?}");
        assert!(!kernels.iter().any(|kernel| is_by_reference(kernel)), "{narrow}: {kernels:?}");
    }
}

#[test]
fn caches_are_f32_where_kernels_are() {
    let folder = open_text_model(&data("llama-bf16"), &TextOptions::default()).unwrap();
    let twin = open_text_model(&data("llama_unfused-fp32"), &TextOptions::default()).unwrap();
    assert_eq!(folder.model.kv_bytes_per_token(), twin.model.kv_bytes_per_token());
}
