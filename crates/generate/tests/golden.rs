//! Tokens of the shipped models against those of other implementations: exactly equal, whatever the ladders and chunks.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use precast::generate::{Generator, TextModel};
use serde_json::Value;
use support::{cases, check, check_script, model, model_with, params, rows, scripts};

/// Scores may differ from those of other implementations by this much.
const LOGITS_TOLERANCE: f32 = 1e-4;

/// Cases of hard inputs: those that were shipped, our own for int32 ids and caches in one tensor, and those of the families
/// that the public builder exports.
fn edge_cases() -> Vec<Value> {
    let has_prompts = |case: &Value| case.get("prompts").is_some();
    let shipped = cases("edge_cases.json").into_iter().filter(has_prompts);
    shipped.chain(cases("own_cases.json")).chain(cases("family_cases.json")).collect()
}

fn check_logits(model: &TextModel, case: &Value, heads: &[Vec<f32>]) {
    let mut params = params(model, case);
    params.search.num_beams = 1;
    let mut generator = Generator::new(model, params).unwrap();
    let prompts = rows(&case["prompts"]);
    generator.append(&prompts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    for (row, head) in heads.iter().enumerate() {
        let logits = generator.logits(row).unwrap();
        for (found, expected) in logits.iter().zip(head) {
            assert!((found - expected).abs() <= LOGITS_TOLERANCE, "{}: {found} is not {expected}", case["id"]);
        }
    }
}

#[test]
fn golden_tokens_are_those_of_other_implementations() {
    for case in cases("golden.json") {
        let model = model(case["model"].as_str().unwrap());
        check(&model, &params(&model, &case), &case, "");
        if let Some(head) = case.get("first_logits_row0_head") {
            check_logits(&model, &case, &[serde_json::from_value(head.clone()).unwrap()]);
        }
    }
}

#[test]
fn golden_edge_cases_give_their_tokens_and_scores() {
    for case in &edge_cases() {
        let model = model(case["model"].as_str().unwrap());
        check(&model, &params(&model, case), case, "");
        check_logits(
            &model,
            case,
            &serde_json::from_value::<Vec<Vec<f32>>>(case["first_logits_head"].clone()).unwrap(),
        );
    }
}

#[test]
fn golden_scripts_of_calls_give_their_tokens() {
    for case in &scripts() {
        let model = model(case["model"].as_str().unwrap());
        check_script(&model, params(&model, case), case, "");
    }
}

#[test]
fn golden_tokens_do_not_depend_on_chunks() {
    for case in &edge_cases() {
        let model = model(case["model"].as_str().unwrap());
        for chunk in [1, 3, 8, 25] {
            let mut params = params(&model, case);
            params.search.chunk_size = Some(chunk);
            check(&model, &params, case, &format!("in chunks of {chunk}"));
        }
    }
}

#[test]
fn golden_tokens_do_not_depend_on_ladders() {
    let ladders = [
        r#"{"length_buckets":[128],"kv_capacity_buckets":[512],"row_buckets":[4]}"#,
        r#"{"length_buckets":[5,7,11],"chunk":11,"kv_capacity_buckets":[20,33,50,140],"row_buckets":[2]}"#,
    ];
    for ladders in ladders {
        for case in edge_cases().iter().chain(&cases("golden.json")) {
            let model = model_with(case["model"].as_str().unwrap(), ladders);
            check(&model, &params(&model, case), case, ladders);
        }
    }
}
