//! Model folders and cases of the tests.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use precast::generate::config::Source;
use precast::generate::golden::{Difference, Golden, GoldenCase};
use precast::generate::{GeneratorParams, TextModel};
use precast::{TextOptions, open_text_model};

/// The folder of the data.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Cases of a file. Each says something, and of every answer why it ends.
pub fn cases(file: &str) -> Vec<GoldenCase> {
    let text = std::fs::read_to_string(data().join(file)).unwrap();
    let cases = serde_json::from_str::<Golden>(&text).unwrap().cases;
    assert!(cases.iter().all(|case| case.says_something() && case.finish.len() == case.generated.len()));
    cases
}

/// Models by name, `precast.json` and whether the reference answers.
type OpenModels = BTreeMap<(String, String, bool), TextModel>;

static OPEN: LazyLock<Mutex<OpenModels>> = LazyLock::new(Mutex::default);

/// A model of the data, opened once in a process; `tuning` is what its `precast.json` would say.
pub fn model_with(name: &str, tuning: &str) -> TextModel {
    opened(name, tuning, false)
}

/// A model of the data whose steps are answered by reference evaluation.
pub fn reference_model(name: &str) -> TextModel {
    opened(name, "{}", true)
}

fn opened(name: &str, tuning: &str, is_reference: bool) -> TextModel {
    let key = (name.to_string(), tuning.to_string(), is_reference);
    if let Some(model) = OPEN.lock().unwrap().get(&key) {
        return model.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("precast.json"), tuning).unwrap();
    let options = TextOptions { is_reference, ..TextOptions::default() };
    let model = open_text_model(folder.path(), &options).unwrap().model;
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

/// The options of a case on top of the model's own.
pub fn params(model: &TextModel, case: &GoldenCase) -> GeneratorParams {
    case.params(model).unwrap()
}

/// The name of the model of a case.
pub fn name(case: &GoldenCase) -> &str {
    case.model.as_deref().unwrap()
}

/// All cases that have prompts: those that were shipped, our own for int32 ids and caches in one tensor, and those of families.
pub fn prompt_cases() -> Vec<GoldenCase> {
    let files = ["golden.json", "edge_cases.json", "own_cases.json", "family_cases.json"];
    files.into_iter().flat_map(cases).filter(|case| !case.prompts.is_empty()).collect()
}

/// Holds a case to its tokens and to why they end.
pub fn check(model: &TextModel, params: &GeneratorParams, case: &GoldenCase, how: &str) {
    hold(case, how, case.judge_generator(model, params).unwrap());
}

/// Holds the calls of a case to what they give.
pub fn check_script(model: &TextModel, params: &GeneratorParams, case: &GoldenCase, how: &str) {
    hold(case, how, case.judge_script(model, params).unwrap());
}

/// Holds a case to the first scores behind its prompts.
pub fn check_logits(model: &TextModel, params: &GeneratorParams, case: &GoldenCase) {
    hold(case, "", case.judge_logits(model, params).unwrap());
}

fn hold(case: &GoldenCase, how: &str, differences: impl IntoIterator<Item = Difference>) {
    let differences: Vec<String> = differences.into_iter().map(|difference| difference.text).collect();
    assert!(differences.is_empty(), "{} {how}: {}", case.id, differences.join("; "));
}

/// Cases that are lists of calls.
pub fn scripts() -> Vec<GoldenCase> {
    cases("edge_cases.json").into_iter().filter(|case| case.script.is_some()).collect()
}
