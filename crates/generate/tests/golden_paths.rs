//! Golden tokens on every way a step can take: by reference, on the Program of every prompt length, in chunks of any size,
//! alone and side by side.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use std::sync::{Arc, Mutex};

use precast::RunReport;
use precast::generate::golden::GoldenCase;
use precast::generate::{Generator, TextModel};
use support::{check, check_script, model, model_with, name, params, prompt_cases, reference_model, scripts};

/// Chunks that cut prompts in the middle, at their ends and not at all.
const CHUNKS: [usize; 6] = [1, 3, 4, 9, 10, 64];

/// Paths of all steps of one row.
fn paths_of(model: &TextModel, case: &GoldenCase) -> Vec<String> {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let seen = paths.clone();
    let mut params = params(model, case);
    params.search.num_beams = 1;
    params.search.num_return_sequences = 1;
    let mut generator = Generator::new(model, params).unwrap();
    generator.observe(Box::new(move |_: &_, report: &RunReport| {
        seen.lock().unwrap().push(format!("{:?}", report.path));
    }));
    generator.append(&[&case.prompts[0]]).unwrap();
    generator.next().unwrap();
    let paths = paths.lock().unwrap();
    paths.clone()
}

#[test]
fn golden_tokens_are_those_of_the_reference() {
    for case in &prompt_cases() {
        let model = reference_model(name(case));
        check(&model, &params(&model, case), case, "by reference");
    }
    for case in &scripts() {
        let model = reference_model(name(case));
        check_script(&model, &params(&model, case), case, "by reference");
    }
    let case = &prompt_cases()[0];
    assert!(paths_of(&reference_model(name(case)), case).iter().all(|path| path == "Reference"));
    assert!(paths_of(&model(name(case)), case).iter().all(|path| path == "Launch"));
}

#[test]
fn golden_tokens_are_the_same_on_every_prompt_bucket() {
    for bucket in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128] {
        let ladders = format!(r#"{{"length_buckets":[{bucket}],"chunk":{bucket}}}"#);
        for case in &prompt_cases() {
            let model = model_with(name(case), &ladders);
            check(&model, &params(&model, case), case, &ladders);
        }
        for case in &scripts() {
            let model = model_with(name(case), &ladders);
            check_script(&model, &params(&model, case), case, &ladders);
        }
    }
}

#[test]
fn golden_tokens_are_the_same_in_chunks_of_any_size() {
    for case in &prompt_cases() {
        let model = model(name(case));
        for chunk in CHUNKS {
            let mut params = params(&model, case);
            params.search.chunk_size = Some(chunk);
            check(&model, &params, case, &format!("in chunks of {chunk}"));
        }
    }
    for case in &scripts() {
        let model = model(name(case));
        for chunk in CHUNKS {
            let mut params = params(&model, case);
            params.search.chunk_size = Some(chunk);
            check_script(&model, &params, case, &format!("in chunks of {chunk}"));
        }
    }
}

#[test]
fn golden_rows_are_the_same_alone_and_beside_copies_of_themselves() {
    for case in &prompt_cases() {
        let model = model(name(case));
        let returned = case.generated.len() / case.prompts.len();
        for (row, prompt) in case.prompts.iter().enumerate() {
            let of_row = row * returned..(row + 1) * returned;
            for copies in [1, 3] {
                let alone = GoldenCase {
                    prompts: vec![prompt.clone(); copies],
                    generated: vec![&case.generated[of_row.clone()]; copies].concat(),
                    finish: vec![&case.finish[of_row.clone()]; copies].concat(),
                    ..case.clone()
                };
                check(&model, &params(&model, case), &alone, &format!("row {row}, {copies} times"));
            }
        }
    }
}
