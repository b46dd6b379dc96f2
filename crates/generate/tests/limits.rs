//! H15: counts that a client chooses, far beyond what anybody needs, are refused or bounded before memory is taken for them.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use precast::generate::engine::{Event, Request};
use precast::generate::plan::StepShape;
use precast::generate::{Engine, EngineOptions, GeneratorParams, TextModel, generate};
use support::{model, model_with};

/// Numbers that no request means.
const COUNTS: [u64; 5] = [1 << 31, (1 << 31) + 1, 1 << 32, i64::MAX as u64, u64::MAX];
/// Bytes that a refusal may take at once.
const REFUSAL_BYTES_MAX: u64 = 1 << 20;
/// Tokens that are left of the context behind the prompts here, so that an answer without an end of its own is short.
const ROOM: usize = 3;

fn params(model: &TextModel, options: &[(&str, String)]) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone());
    for (name, json) in options {
        params.set(name, json).unwrap();
    }
    params
}

/// A prompt that nearly fills the context.
fn prompt(model: &TextModel) -> Vec<u32> {
    vec![5; model.config().model.context_length - ROOM]
}

fn engine(model: &TextModel) -> Engine {
    Engine::new(model, None, EngineOptions { rows_max: 2, ..EngineOptions::from_config(model.config(), None) }).unwrap()
}

/// Options that ask for more than is given: more answers, beams, scores, rows and strings than there may be.
fn refused_options() -> Vec<Vec<(&'static str, String)>> {
    let sampled = || ("do_sample", "true".to_string());
    let mut refused = Vec::new();
    for count in COUNTS.map(|count| count.to_string()) {
        refused.push(vec![("num_return_sequences", count.clone())]);
        refused.push(vec![("num_return_sequences", count.clone()), sampled()]);
        refused.push(vec![("num_beams", count.clone())]);
        refused.push(vec![("num_beams", count.clone()), ("num_return_sequences", count.clone())]);
        refused.push(vec![("logprobs", count.clone())]);
    }
    refused.push(vec![("num_return_sequences", "1025".to_string()), sampled()]);
    refused.push(vec![("stop", serde_json::to_string(&vec!["a"; 1 << 12]).unwrap())]);
    refused.push(vec![("stop", serde_json::to_string(&["a".repeat(1 << 16)]).unwrap())]);
    refused
}

#[test]
fn counts_beyond_all_bounds_are_refused_without_memory_for_them() {
    let model = model("llama-fp32");
    let (prompt, engine) = (prompt(&model), engine(&model));
    for options in refused_options() {
        let params = params(&model, &options);
        let request = Request::new(prompt.clone(), params.clone());
        let mut outcomes = (None, None);
        let allocated = allocation_counter::measure(|| {
            outcomes.0 = generate(&model, None, &params, &[&prompt], &mut |_| (), None).err();
            outcomes.1 = engine.submit(request).err();
        });
        let name = options[0].0;
        assert!(outcomes.0.is_some() && outcomes.1.is_some(), "{options:?} was taken");
        let told = outcomes.0.unwrap().to_string();
        assert!(told.contains(name.trim_end_matches("_sequences")), "{name}: {told}");
        assert!(allocated.bytes_max < REFUSAL_BYTES_MAX, "{name}: {} bytes for a refusal", allocated.bytes_max);
    }
}

/// Lengths and places in a list have a meaning however large they are: all that there is.
#[test]
fn every_size_of_the_ladders_keeps_its_program() {
    let model = model_with("llama-fp32", r#"{"kv_capacity_buckets":[64,96,128,192,256,384,512],"chunk":32}"#);
    let ladders = model.ladders();
    let shapes: Vec<StepShape> = ladders
        .capacity
        .sizes()
        .iter()
        .flat_map(|&capacity| ladders.length.sizes().iter().map(move |&length| StepShape { rows: 1, length, capacity }))
        .collect();
    assert!(shapes.len() > 64);
    shapes.iter().for_each(|&shape| model.prepare(shape, true).unwrap());
    assert_eq!(model.session().loaded().len(), shapes.len());
}

#[test]
fn lengths_beyond_all_bounds_end_with_the_context() {
    let model = model("llama-fp32");
    let (prompt, engine) = (prompt(&model), engine(&model));
    for count in COUNTS.map(|count| count.to_string()) {
        for name in ["max_new_tokens", "max_length", "min_length", "top_k", "no_repeat_ngram_size", "chunk_size"] {
            let options = [(name, count.clone()), ("ignore_eos", "true".to_string())];
            let params = params(&model, &options);
            let completions = generate(&model, None, &params, &[&prompt], &mut |_| (), None);
            let answers = completions.unwrap_or_else(|error| panic!("{name} {count}: {error}")).answers;
            assert_eq!(answers[0].tokens.len(), ROOM, "{name} {count}");
            let handle = engine.submit(Request::new(prompt.clone(), params)).unwrap();
            let tokens = handle.events().filter(|event| matches!(event, Event::Token(_))).count();
            assert_eq!(tokens, ROOM, "{name} {count} in an engine");
        }
        for name in ["max_new_tokens", "max_length"] {
            let options = [(name, count.clone()), ("num_beams", "2".to_string())];
            let completions = generate(&model, None, &params(&model, &options), &[&prompt], &mut |_| (), None);
            assert!(completions.unwrap().answers[0].tokens.len() <= ROOM, "{name} {count} with beams");
        }
    }
}
