//! One ONNX backend case: a folder with a model and sets of inputs and expected outputs, run on one target.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use precast::device_name::{DeviceName, resolve_device};
use precast::{CacheOptions, DType, Model, ProgramCache, Runner, RunnerOptions, Tensor, Value};
use precast_cpu::lower::REFERENCE;
use precast_driver::{Device, Library, Vendor};
use precast_onnx::proto::{
    GraphProto, ModelProto, OptionalProto, SequenceProto, TensorProto, TypeValue, ValueInfoProto,
};
use precast_onnx::{
    ElementType, Limits, decode_optional, decode_sequence, decode_tensor, strings_without_model, tensor_without_model,
};
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::inputs::Named;

/// What a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TargetName {
    /// The meaning of the ops.
    Reference,
    /// The CPU target.
    Cpu,
    /// The first GPU of NVIDIA, on machines that have one.
    Cuda,
}

impl TargetName {
    /// Every target that runs on every machine, in the order of reports.
    pub const ALL: [TargetName; 2] = [TargetName::Reference, TargetName::Cpu];

    /// Its name in lists and reports.
    pub fn name(self) -> &'static str {
        match self {
            TargetName::Reference => "reference",
            TargetName::Cpu => "cpu",
            TargetName::Cuda => "cuda",
        }
    }

    fn device(self) -> Result<DeviceName> {
        Ok(match self {
            TargetName::Reference | TargetName::Cpu => DeviceName::CPU,
            TargetName::Cuda => resolve_device("cuda")?,
        })
    }
}

/// What a case that passed says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseReport {
    /// The ai.onnx operators that the case has among its nodes.
    pub operators: Vec<String>,
    /// On a device: some step ran by reference evaluation, or on the host.
    pub by_reference: bool,
}

/// How kernels of a GPU's steps begin that run on the host.
const HOST_STEP: &str = "host.";

/// How close a result must come: |found − expected| ≤ atol + rtol |expected|.
#[derive(Clone, Copy, Deserialize)]
struct Tolerance {
    rtol: f64,
    atol: f64,
}

/// What cases share: making a GPU ready takes far longer than most of them, and all have some kernel in common.
#[derive(Default)]
pub struct CaseRunner {
    /// Held so that the driver keeps what it has set up on the device.
    cuda: Option<Device>,
    cache: Option<Arc<ProgramCache>>,
}

impl CaseRunner {
    /// Runs a case; an error is why it does not pass.
    pub fn run(&mut self, folder: &Path, target: TargetName) -> Result<CaseReport> {
        if target == TargetName::Cuda && self.cuda.is_none() {
            self.cuda = Some(Library::open(Vendor::Cuda)?.device(0)?);
        }
        let cache = match &self.cache {
            Some(cache) => cache,
            None => self.cache.insert(Arc::new(ProgramCache::open(CacheOptions::memory())?)),
        };
        run(folder, target, cache.clone())
    }
}

fn run(folder: &Path, target: TargetName, cache: Arc<ProgramCache>) -> Result<CaseReport> {
    let bytes = Bytes::from(fs::read(folder.join("model.onnx"))?);
    let proto = ModelProto::decode(bytes.clone())?;
    let graph = proto.graph.context("the model has no graph")?;
    let tolerance: Tolerance = serde_json::from_slice(&fs::read(folder.join("tolerance.json"))?)?;
    let options = RunnerOptions { device: target.device()?, ..RunnerOptions::default() };
    let runner = Runner::with_tuning_of(Model::from_bytes(bytes)?, options, cache)?;
    let mut report = CaseReport { operators: operators_of(&graph), by_reference: false };
    for set in 0.. {
        let data_set = folder.join(format!("test_data_set_{set}"));
        if !data_set.exists() {
            ensure!(set > 0, "the case has no data");
            break;
        }
        let inputs = read_inputs(&graph, &data_set)?;
        let expected = read_values(&graph.output, &data_set, "output")?;
        let found = match target {
            TargetName::Reference => runner.run_reference_values(&inputs)?,
            TargetName::Cpu | TargetName::Cuda => runner.run_values(&inputs)?,
        };
        ensure!(found.len() == expected.len(), "{} outputs where {} are expected", found.len(), expected.len());
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            check_value(found, expected, tolerance).with_context(|| format!("output '{name}'"))?;
        }
        report.by_reference |= target != TargetName::Reference && uses_reference(&runner, &inputs)?;
    }
    Ok(report)
}

/// The ai.onnx operators of a graph, each once.
fn operators_of(graph: &GraphProto) -> Vec<String> {
    let nodes = graph.node.iter().filter(|node| matches!(node.domain.as_str(), "" | "ai.onnx"));
    let names: BTreeSet<String> = nodes.map(|node| node.op_type.clone()).collect();
    names.into_iter().collect()
}

/// Whether some step, or the host between Programs, evaluates a node by its meaning. A model of more than tensors counts
/// as one that does.
fn uses_reference(runner: &Runner, inputs: &[(String, Value)]) -> Result<bool> {
    let tensors: Option<Named> = inputs
        .iter()
        .map(|(name, value)| match value {
            Value::Tensor(tensor) => Some((name.clone(), tensor.clone())),
            Value::Strings(_) | Value::Sequence(_) | Value::Nothing => None,
        })
        .collect();
    let Some(tensors) = tensors else { return Ok(true) };
    let Ok(Some(ready)) = runner.ready(&tensors) else {
        return Ok(true);
    };
    let is_foreign = |kernel: &str| kernel.starts_with(REFERENCE) || kernel.starts_with(HOST_STEP);
    Ok(ready.program().steps.iter().any(|step| is_foreign(&step.kernel)))
}

/// The inputs of a data set. Old models list initializers among their inputs; the data does not give those.
fn read_inputs(graph: &GraphProto, folder: &Path) -> Result<Vec<(String, Value)>> {
    let is_initializer = |name: &str| graph.initializer.iter().any(|initializer| initializer.name == name);
    let required: Vec<ValueInfoProto> =
        graph.input.iter().filter(|input| !is_initializer(&input.name)).cloned().collect();
    read_values(&required, folder, "input")
}

fn read_values(infos: &[ValueInfoProto], folder: &Path, kind: &str) -> Result<Vec<(String, Value)>> {
    let values = infos.iter().enumerate().map(|(index, info)| {
        let value = read_value(info, &folder.join(format!("{kind}_{index}.pb")));
        Ok((info.name.clone(), value.with_context(|| format!("{kind} '{}'", info.name))?))
    });
    values.collect()
}

fn read_value(info: &ValueInfoProto, path: &Path) -> Result<Value> {
    let limits = Limits::default();
    ensure!(path.exists(), "the case gives no value");
    let bytes = Bytes::from(fs::read(path)?);
    match info.r#type.as_ref().and_then(|declared| declared.value.as_ref()) {
        Some(TypeValue::TensorType(_)) => tensor_value(&decode_tensor(&bytes, &limits)?, &limits),
        Some(TypeValue::SequenceType(_)) => sequence_value(&decode_sequence(&bytes, &limits)?, &limits),
        Some(TypeValue::OptionalType(_)) => optional_value(&decode_optional(&bytes, &limits)?, &limits),
        Some(TypeValue::MapType(_)) => bail!("is a map, which no operator takes"),
        Some(TypeValue::SparseTensorType(_)) => bail!("is a sparse tensor, and only dense ones can be given or taken"),
        Some(TypeValue::OpaqueType(_)) | None => bail!("has no type that is known"),
    }
}

fn tensor_value(proto: &TensorProto, limits: &Limits) -> Result<Value> {
    match ElementType::from_onnx(proto.data_type) {
        Ok(ElementType::String) => Ok(Value::Strings(strings_without_model(proto, limits)?)),
        _ => Ok(Value::Tensor(tensor_without_model(proto, limits)?)),
    }
}

fn sequence_value(proto: &SequenceProto, limits: &Limits) -> Result<Value> {
    let tensors = proto.tensor_values.iter().map(|tensor| tensor_value(tensor, limits));
    let sequences = proto.sequence_values.iter().map(|sequence| sequence_value(sequence, limits));
    let optionals = proto.optional_values.iter().map(|optional| optional_value(optional, limits));
    Ok(Value::Sequence(tensors.chain(sequences).chain(optionals).collect::<Result<_>>()?))
}

fn optional_value(proto: &OptionalProto, limits: &Limits) -> Result<Value> {
    match (&proto.tensor_value, &proto.sequence_value) {
        (Some(tensor), None) => tensor_value(tensor, limits),
        (None, Some(sequence)) => sequence_value(sequence, limits),
        _ => Ok(Value::Nothing),
    }
}

/// Same structure, equal strings and close numbers.
fn check_value(found: &Value, expected: &Value, tolerance: Tolerance) -> Result<()> {
    match (found, expected) {
        (Value::Tensor(found), Value::Tensor(expected)) => check_close(found, expected, tolerance),
        (Value::Sequence(found), Value::Sequence(expected)) => {
            ensure!(
                found.len() == expected.len(),
                "has {} elements where {} are expected",
                found.len(),
                expected.len()
            );
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                check_value(found, expected, tolerance).with_context(|| format!("element {at}"))?;
            }
            Ok(())
        }
        (found, expected) => {
            ensure!(found == expected, "is {found:?} where {expected:?} is expected");
            Ok(())
        }
    }
}

/// Two roundings in bf16, which is coarser than the cases' own tolerance; the onnx package allows the same.
const RTOL_BF16: f64 = 1.0 / 64.0;

/// Same Type, same integers, floats within the tolerance; NaN equals NaN.
fn check_close(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<()> {
    let (found_type, expected_type) = (found.type_(), expected.type_());
    ensure!(found_type == expected_type, "is {found_type} where {expected_type} is expected");
    if !found.dtype().is_float() {
        let (found, expected) = (found.to_i128_vec()?, expected.to_i128_vec()?);
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        return wrong
            .map_or(Ok(()), |index| bail!("is {} where {} is expected, at {index}", found[index], expected[index]));
    }
    let rtol = if found.dtype() == DType::BF16 { tolerance.rtol.max(RTOL_BF16) } else { tolerance.rtol };
    for (index, (found, expected)) in found.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate() {
        let is_same = found == expected || (found.is_nan() && expected.is_nan());
        let is_close = (found - expected).abs() <= tolerance.atol + rtol * expected.abs() && expected.is_finite();
        ensure!(is_same || is_close, "is {found} where {expected} is expected, at {index}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERANCE: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-7 };

    fn is_close(found: f32, expected: f32) -> bool {
        check_close(&Tensor::scalar(found), &Tensor::scalar(expected), TOLERANCE).is_ok()
    }

    #[test]
    fn closeness_is_relative_to_what_is_expected() {
        assert!(is_close(1000.9, 1000.0));
        assert!(!is_close(1001.1, 1000.0));
        assert!(!is_close(1e-3, 0.0));
    }

    #[test]
    fn nan_equals_nan_and_infinity_itself_only() {
        assert!(is_close(f32::NAN, f32::NAN));
        assert!(!is_close(f32::NAN, 1.0));
        assert!(is_close(f32::INFINITY, f32::INFINITY));
        assert!(!is_close(1.0, f32::INFINITY));
        assert!(!is_close(f32::INFINITY, f32::NEG_INFINITY));
    }

    #[test]
    fn integers_and_types_must_be_equal() {
        assert!(check_close(&Tensor::scalar(10_001_i64), &Tensor::scalar(10_000_i64), TOLERANCE).is_err());
        assert!(check_close(&Tensor::scalar(1_i32), &Tensor::scalar(1_i64), TOLERANCE).is_err());
    }
}
