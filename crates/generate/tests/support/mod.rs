//! Model folders and cases of the tests.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use precast::generate::config::Source;
use precast::generate::{GeneratorParams, TextModel};
use precast::{TextOptions, open_text_model};
use serde_json::Value;

/// The folder of the data.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Cases of a file.
pub fn cases(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(data().join(file)).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    cases["cases"].as_array().unwrap().clone()
}

static OPEN: LazyLock<Mutex<BTreeMap<(String, String), TextModel>>> = LazyLock::new(Mutex::default);

/// A model of the data, opened once in a process; `tuning` is what its `precast.json` would say.
pub fn model_with(name: &str, tuning: &str) -> TextModel {
    let key = (name.to_string(), tuning.to_string());
    if let Some(model) = OPEN.lock().unwrap().get(&key) {
        return model.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("precast.json"), tuning).unwrap();
    let model = open_text_model(folder.path(), &TextOptions::default()).unwrap().model;
    OPEN.lock().unwrap().entry(key).or_insert(model).clone()
}

/// A model of the data with its default ladders.
pub fn model(name: &str) -> TextModel {
    model_with(name, "{}")
}

/// An overlay on a configuration.
pub fn overlay(text: &str) -> Source {
    Source { name: "overlay".to_string(), text: text.to_string() }
}

/// Rows of tokens in a case.
pub fn rows(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The options of a case on top of the model's own.
pub fn params(model: &TextModel, case: &Value) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone());
    for (name, value) in case["search"].as_object().into_iter().flatten() {
        params.set(name, &value.to_string()).unwrap();
    }
    if let Some(count) = case["max_new_tokens"].as_u64() {
        params.max_new_tokens = Some(count as usize);
    }
    params
}
