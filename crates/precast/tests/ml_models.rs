//! Pipelines of scikit-learn as skl2onnx exports them (`xtask/python/make_ml_models.py`), held against what onnxruntime makes
//! of the same inputs, by reference and on the CPU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};

use precast::{DType, Model, Runner, RunnerOptions, StringTensor, Tensor, Value};
use serde_json::Value as Json;

/// Relative and absolute error of an element: scores of trees are sums of f32.
const TOLERANCE: f64 = 1e-5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ml")
}

fn pipelines() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let models = files.filter(|path| path.extension().is_some_and(|extension| extension == "onnx"));
    let mut names: Vec<String> = models.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    names.sort();
    names
}

fn name_of(json: &Json) -> String {
    json["name"].as_str().unwrap().to_string()
}

/// A value as the file of expectations has it; null stands for NaN.
fn value_of(json: &Json) -> Value {
    let shape: Vec<usize> =
        json["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect();
    let elements = json["elements"].as_array().unwrap();
    let floats = || elements.iter().map(|element| element.as_f64().unwrap_or(f64::NAN)).collect::<Vec<f64>>();
    match json["type"].as_str().unwrap() {
        "string" => {
            let texts = elements.iter().map(|element| element.as_str().unwrap().to_string()).collect();
            Value::Strings(StringTensor::new(shape, texts).unwrap())
        }
        "float32" => Tensor::from_f64(DType::F32, shape, &floats(), true).unwrap().into(),
        "int64" => Tensor::from_f64(DType::I64, shape, &floats(), true).unwrap().into(),
        other => panic!("the type {other} is not expected"),
    }
}

fn assert_near(name: &str, found: &Value, expected: &Value) {
    let (Value::Tensor(found), Value::Tensor(expected)) = (found, expected) else {
        assert_eq!(found, expected, "{name}");
        return;
    };
    assert_eq!(found.type_(), expected.type_(), "{name}");
    for (place, (a, b)) in found.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate() {
        let is_near = (a - b).abs() <= TOLERANCE * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
        assert!(is_near, "{name}: {a} where {b} is expected, at {place}");
    }
}

#[test]
fn exported_pipelines_give_what_onnxruntime_gives() {
    let names = pipelines();
    assert!(names.len() >= 30, "{names:?}");
    for name in names {
        let model = Model::open(&folder().join(format!("{name}.onnx"))).unwrap();
        let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
        let golden: Json = serde_json::from_str(&text).unwrap();
        let inputs: Vec<(String, Value)> =
            golden["inputs"].as_array().unwrap().iter().map(|json| (name_of(json), value_of(json))).collect();
        let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() }).unwrap();
        let reference = runner.run_reference_values(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let cpu = runner.run_values(&inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (at, expected) in golden["outputs"].as_array().unwrap().iter().enumerate() {
            for (way, outputs) in [("reference", &reference), ("cpu", &cpu)] {
                assert_eq!(outputs[at].0, name_of(expected), "{name}");
                assert_near(&format!("{name} by {way}, {}", outputs[at].0), &outputs[at].1, &value_of(expected));
            }
        }
    }
}
