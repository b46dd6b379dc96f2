//! Tokens of the shipped models against those of other implementations: exactly equal, whatever the ladders and chunks.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use precast::generate::golden::GoldenCase;
use support::{cases, check, check_logits, check_script, model, model_with, name, params, scripts};

/// Cases of hard inputs: those that were shipped, our own for int32 ids and caches in one tensor, and those of the families
/// that the public builder exports.
fn edge_cases() -> Vec<GoldenCase> {
    let shipped = cases("edge_cases.json").into_iter().filter(|case| !case.prompts.is_empty());
    shipped.chain(cases("own_cases.json")).chain(cases("family_cases.json")).collect()
}

#[test]
fn golden_tokens_are_those_of_other_implementations() {
    for case in &cases("golden.json") {
        let model = model(name(case));
        let params = params(&model, case);
        check(&model, &params, case, "");
        check_logits(&model, &params, case);
    }
}

#[test]
fn golden_edge_cases_give_their_tokens_and_scores() {
    for case in &edge_cases() {
        let model = model(name(case));
        let params = params(&model, case);
        check(&model, &params, case, "");
        assert!(case.first_logits_head.is_some(), "{}", case.id);
        check_logits(&model, &params, case);
    }
}

#[test]
fn golden_scripts_of_calls_give_their_tokens() {
    for case in &scripts() {
        let model = model(name(case));
        check_script(&model, &params(&model, case), case, "");
    }
}

#[test]
fn golden_tokens_do_not_depend_on_chunks() {
    for case in &edge_cases() {
        let model = model(name(case));
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
            let model = model_with(name(case), ladders);
            check(&model, &params(&model, case), case, ladders);
        }
    }
}
