//! Model folders and cases of the tests.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use precast::generate::config::Source;
use precast::generate::{FinishReason, Generator, GeneratorParams, TextModel, generate};
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

/// All cases that have prompts: those that were shipped, our own for int32 ids and caches in one tensor, and those of families.
pub fn prompt_cases() -> Vec<Value> {
    let files = ["golden.json", "edge_cases.json", "own_cases.json", "family_cases.json"];
    files.into_iter().flat_map(cases).filter(|case| case.get("prompts").is_some()).collect()
}

/// What a case gives with these options on this model.
fn run(model: &TextModel, params: &GeneratorParams, case: &Value) -> (Vec<Vec<u32>>, Vec<&'static str>) {
    let prompts = rows(&case["prompts"]);
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let completions = generate(model, None, params, &prompts, &mut |_| (), None).unwrap();
    let finish = |reason: FinishReason| if reason == FinishReason::Eos { "eos" } else { "length" };
    let answers = completions.answers.into_iter();
    answers.map(|answer| (answer.tokens, finish(answer.finish))).unzip()
}

/// Holds a case to its tokens and to why they end.
pub fn check(model: &TextModel, params: &GeneratorParams, case: &Value, how: &str) {
    let (tokens, finish) = run(model, params, case);
    assert_eq!(tokens, rows(&case["generated"]), "{} {how}", case["id"]);
    let expected: Vec<String> = serde_json::from_value(case["finish"].clone()).unwrap();
    assert_eq!(finish, expected, "{} {how}", case["id"]);
}

/// Holds the calls of a case to what they give.
pub fn check_script(model: &TextModel, params: GeneratorParams, case: &Value, how: &str) {
    let mut generator = Generator::new(model, params).unwrap();
    for call in case["script"].as_array().unwrap() {
        let number = || call[1].as_u64().unwrap() as usize;
        match call[0].as_str().unwrap() {
            "append" => generator.append(&[&serde_json::from_value::<Vec<u32>>(call[1].clone()).unwrap()]).unwrap(),
            "rewind" => generator.rewind(0, number()).unwrap(),
            "expect_len" => assert_eq!(generator.len(0), number(), "{} {how}", case["id"]),
            "next" => {
                let tokens: Vec<u32> = (0..number()).map(|_| generator.next().unwrap()[0].id).collect();
                assert_eq!(Value::from(tokens), call[2], "{} {how}", case["id"]);
            }
            other => panic!("there is no call {other}"),
        }
    }
}

/// Cases that are lists of calls.
pub fn scripts() -> Vec<Value> {
    cases("edge_cases.json").into_iter().filter(|case| case.get("script").is_some()).collect()
}
