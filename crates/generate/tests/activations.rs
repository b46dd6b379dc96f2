//! 8-bit activations: where a folder asks for them, near the scores of f32 ones, and the same for a row in any company.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use precast::generate::engine::{Engine, EngineOptions, Event, Request};
use precast::generate::{Generator, GeneratorParams, TextModel};
use precast::{TextOptions, open_text_model};

use support::{data, model, model_with};

const FOLDER: &str = "llama-int4-acc1";
const INT8: &str = r#"{"activations":"int8"}"#;

fn prompt(number: u32) -> Vec<u32> {
    (0..5 + 9 * number).map(|position| 3 + (position * 31 + number * 7) % 300).collect()
}

fn params(model: &TextModel) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(12);
    params.ignore_eos = true;
    params
}

/// Scores behind a prompt.
fn scores(model: &TextModel, prompt: &[u32]) -> Vec<f32> {
    let mut generator = Generator::new(model, params(model)).unwrap();
    generator.append(&[prompt]).unwrap();
    generator.logits(0).unwrap().to_vec()
}

/// Tokens behind prompts that are run together.
fn tokens(model: &TextModel, prompts: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut generator = Generator::new(model, params(model)).unwrap();
    generator.append(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    while !generator.is_done() {
        generator.next().unwrap();
    }
    let new = |row: usize| generator.sequence(row)[prompts[row].len()..].to_vec();
    (0..prompts.len()).map(new).collect()
}

#[test]
fn scores_are_near_those_of_f32_and_not_the_same() {
    let (plain, bytes) = (scores(&model(FOLDER), &prompt(2)), scores(&model_with(FOLDER, INT8), &prompt(2)));
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let error = norm(&mut plain.iter().zip(&bytes).map(|(a, b)| a - b)) / norm(&mut plain.iter().copied());
    assert!(error > 0.0 && error < 0.05, "{error}");
    assert_eq!(scores(&model_with(FOLDER, r#"{"activations":"f32"}"#), &prompt(2)), plain);
}

#[test]
fn a_row_has_the_same_tokens_alone_together_and_in_an_engine() {
    let model = model_with(FOLDER, INT8);
    let prompts: Vec<Vec<u32>> = (0..5).map(prompt).collect();
    let alone: Vec<Vec<u32>> = prompts.iter().flat_map(|prompt| tokens(&model, std::slice::from_ref(prompt))).collect();
    assert_eq!(tokens(&model, &prompts), alone);
    let engine = Engine::new(&model, None, EngineOptions::from_config(model.config(), None)).unwrap();
    let submit = |prompt: &Vec<u32>| engine.submit(Request::new(prompt.clone(), params(&model))).unwrap();
    let handles: Vec<_> = prompts.iter().map(submit).collect();
    for (handle, expected) in handles.iter().zip(&alone) {
        let told = handle.events().filter_map(|event| match event {
            Event::Token(token) => Some(token.id),
            Event::Finished { .. } | Event::Blocked | Event::Failed { .. } => None,
        });
        assert_eq!(told.collect::<Vec<u32>>(), *expected);
    }
}

#[test]
fn a_word_that_is_no_precision_is_an_error_that_lists_them() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join(FOLDER)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join("precast.json"), r#"{"activations":"int7"}"#).unwrap();
    let error = open_text_model(folder.path(), &TextOptions::default()).map(drop).unwrap_err().to_string();
    assert_eq!(error, "precast.json: activations: 'int7' is no precision of activations; f32 or int8 is expected");
}
