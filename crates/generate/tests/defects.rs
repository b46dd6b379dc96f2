//! Defects of other runtimes, as tests of this one. Numbers are those of the specification's list.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use precast::generate::{FinishReason, GenerateError, Generator, GeneratorParams, RowSeed, TextModel, generate};
use precast::{TextOptions, open_text_model};
use precast_onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use proptest::prelude::*;
use prost::Message;
use support::{cases, check, data, model, model_with, name, overlay, params};

/// Greedy options of a model, without an end.
fn endless(model: &TextModel, count: usize) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(count);
    params.ignore_eos = true;
    params
}

/// Generated tokens of each prompt.
fn answers(model: &TextModel, params: &GeneratorParams, prompts: &[&[u32]]) -> Vec<Vec<u32>> {
    let completions = generate(model, None, params, prompts, &mut |_| (), None).unwrap();
    completions.answers.into_iter().map(|answer| answer.tokens).collect()
}

fn solo(model: &TextModel, params: &GeneratorParams, prompts: &[&[u32]]) -> Vec<Vec<u32>> {
    prompts.iter().flat_map(|prompt| answers(model, params, &[prompt])).collect()
}

const RAGGED: [&[u32]; 3] = [&[52], &[5, 6, 7, 8], &[100, 7, 33, 250, 12, 9, 77, 31, 64, 5]];

/// Ladders in which nearly every step has filler rows and filler tokens.
const WASTEFUL: &str = r#"{"length_buckets":[7,16],"chunk":16,"row_buckets":[5],"kv_capacity_buckets":[30,64]}"#;

/// Holds an edge case to its tokens, in wasteful Programs and in chunks too.
fn check_edge_case(id: &str) {
    let case = cases("edge_cases.json").into_iter().find(|case| case.id == id).unwrap();
    for tuning in ["{}", WASTEFUL] {
        let model = model_with(name(&case), tuning);
        for chunk in [None, Some(1), Some(3)] {
            let mut params = params(&model, &case);
            params.search.chunk_size = chunk;
            check(&model, &params, &case, &format!("{tuning} in chunks of {chunk:?}"));
        }
    }
}

#[test]
fn defect_01_a_prompt_that_ends_with_the_pad_or_end_token_is_read_to_its_end() {
    check_edge_case("edge/llama-pad-last");
    check_edge_case("edge/llama-eos-in-prompt");
}

#[test]
fn defect_02_a_prompt_of_pads_alone_is_content() {
    check_edge_case("edge/llama-pad-all");
}

#[test]
fn defect_03_rows_are_never_padded() {
    check_edge_case("edge/qwen3-ragged-batch");
    check_edge_case("edge/phi3-ragged-pad-content");
}

#[test]
fn defect_04_rewinding_one_row_of_a_ragged_batch_touches_no_other() {
    let model = model("qwen3-fp32");
    let expected = solo(&model, &endless(&model, 8), &RAGGED);
    let mut generator = Generator::new(&model, endless(&model, 8)).unwrap();
    generator.append(&RAGGED).unwrap();
    for _ in 0..5 {
        generator.next().unwrap();
    }
    generator.rewind(1, 6).unwrap();
    assert_eq!(generator.len(1), 6);
    let next = generator.next().unwrap();
    assert_eq!(next.iter().map(|token| token.id).collect::<Vec<_>>(), [expected[0][5], expected[1][2], expected[2][5]]);
    while !generator.is_done() {
        generator.next().unwrap();
    }
    for (row, prompt) in RAGGED.iter().enumerate() {
        assert_eq!(generator.sequence(row)[prompt.len()..], expected[row]);
    }
}

#[test]
fn defect_05_chunks_work_for_any_batch() {
    let model = model("phi3-fp32");
    let expected = solo(&model, &endless(&model, 6), &RAGGED);
    for chunk in [1, 2, 3, 4, 9, 10, 64] {
        let mut params = endless(&model, 6);
        params.search.chunk_size = Some(chunk);
        assert_eq!(answers(&model, &params, &RAGGED), expected, "in chunks of {chunk}");
    }
}

/// Ladders under which nearly every input is padded.
const PADDED: [&str; 3] = ["{}", WASTEFUL, r#"{"length_buckets":[12],"chunk":12,"row_buckets":[8]}"#];

#[test]
fn defect_06_padded_rows_are_read_row_by_row() {
    for ladders in PADDED {
        let model = model_with("qwen2-fp32", ladders);
        assert_eq!(
            answers(&model, &endless(&model, 6), &RAGGED),
            solo(&model, &endless(&model, 6), &RAGGED),
            "{ladders}"
        );
    }
}

/// Decoders that are given positions, i64 and i32. What lies behind the numbers of an input is no position, so a step that read
/// past the end would fail; `cargo xtask sanitize` has this test under AddressSanitizer, where any such read ends it.
#[test]
fn defect_07_positions_are_not_read_past_their_end() {
    let prompts: [&[u32]; 3] = [&[52], &[5, 6, 7, 8], &[10, 7, 33, 50, 12, 9, 77, 31, 64, 5]];
    for name in ["hunyuan-fp32", "gpt2_like-fp32"] {
        let plain = model(name);
        assert!(plain.roles().position_ids.is_some(), "{name}");
        let expected = solo(&plain, &endless(&plain, 6), &prompts);
        for ladders in PADDED {
            let model = model_with(name, ladders);
            assert_eq!(answers(&model, &endless(&model, 6), &prompts), expected, "{name} {ladders}");
        }
    }
}

#[test]
fn defect_09_a_prompt_of_one_token_goes_on_for_long() {
    let model = model("llama-fp32");
    let mut params = endless(&model, 64);
    let expected = answers(&model, &params, &[&[52]]);
    params.search.chunk_size = Some(3);
    assert_eq!(answers(&model, &params, &[&[52]]), expected);
    assert_eq!(expected[0].len(), 64);
}

#[test]
fn defect_10_26_prompts_and_batches_of_changing_sizes_do_not_meet() {
    let model = model("llama-fp32");
    let long: Vec<u32> = (0..64).map(|position| 3 + 7 * position % 300).collect();
    let prompts: [&[u32]; 5] = [&long[..1], &long[..7], &long, &long[..7], &long[..1]];
    let expected = solo(&model, &endless(&model, 4), &prompts);
    assert_eq!(solo(&model, &endless(&model, 4), &prompts), expected);
    for rows in [4, 3, 4, 1] {
        assert_eq!(answers(&model, &endless(&model, 4), &prompts[..rows]), expected[..rows]);
    }
}

#[test]
fn defect_11_rows_are_filled_to_their_longest_and_not_beyond() {
    let model = model("llama-fp32");
    let mut params = endless(&model, 4);
    params.search.max_length = 40;
    let mut generator = Generator::new(&model, params).unwrap();
    assert!(generator.append(&[&[5; 40]]).unwrap_err().to_string().contains("max_length is 40"));
    generator.append(&[&[5; 30]]).unwrap();
    generator.append(&[&[6; 9]]).unwrap();
    let error = generator.append(&[&[7; 2]]).unwrap_err().to_string();
    assert_eq!(error, "row 0 would have 41 tokens; max_length is 40");
    assert_eq!(generator.len(0), 39);
    generator.append(&[&[7]]).unwrap();
    assert_eq!((generator.len(0), generator.finish_reason(0)), (40, Some(FinishReason::MaxLength)));
    assert!(generator.append(&[&[8; 600]]).unwrap_err().to_string().contains("context_length is 512"));
    // Keeping all of a full row leaves it full.
    generator.rewind(0, 40).unwrap();
    assert_eq!((generator.next().unwrap(), generator.finish_reason(0)), (vec![], Some(FinishReason::MaxLength)));
    generator.rewind(0, 39).unwrap();
    assert_eq!((generator.next().unwrap().len(), generator.len(0)), (1, 40));
}

#[test]
fn rows_between_ended_ones_run_in_one_step() {
    for name in ["llama-fp32", "gemma2-fp32", "qwen3-fp32"] {
        let model = model(name);
        let mut params = endless(&model, 100);
        params.search.max_length = 30;
        // Every second row is full four tokens behind its prompt.
        let prompts: Vec<Vec<u32>> = (0..8u32).map(|row| vec![5 + row; if row % 2 == 0 { 10 } else { 26 }]).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let completions = generate(&model, None, &params, &prompts, &mut |_| (), None).unwrap();
        let tokens: Vec<Vec<u32>> = completions.answers.into_iter().map(|answer| answer.tokens).collect();
        assert_eq!(tokens, solo(&model, &params, &prompts), "{name}");
        let prompt_steps = 8;
        assert_eq!(completions.stats.steps, prompt_steps + 19, "{name}");
    }
}

#[test]
fn no_more_tokens_are_generated_than_asked_for_even_after_a_rewind() {
    let model = model("llama-fp32");
    for count in [0, 3] {
        let mut generator = Generator::new(&model, endless(&model, count)).unwrap();
        generator.append(&[&[5, 6, 7]]).unwrap();
        while !generator.is_done() {
            generator.next().unwrap();
        }
        assert_eq!((generator.len(0), generator.finish_reason(0)), (3 + count, Some(FinishReason::MaxNewTokens)));
        generator.rewind(0, 3 + count).unwrap();
        assert_eq!((generator.next().unwrap(), generator.len(0)), (vec![], 3 + count));
    }
}

#[test]
fn defect_15_scores_are_those_of_one_row_a_sequence() {
    let model = model("llama-fp32");
    let logits = model.session().interface().outputs.iter().find(|output| output.name == "logits").unwrap();
    assert_eq!(logits.ty.to_string(), "f32[rows,scored,320]");
    let mut generator = Generator::new(&model, endless(&model, 2)).unwrap();
    let scored = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = scored.clone();
    generator.observe(Box::new(move |plan, _| seen.lock().unwrap().push(plan.scored())));
    generator.append(&[&[5; 20], &[6; 3]]).unwrap();
    generator.next().unwrap();
    generator.next().unwrap();
    assert!(!scored.lock().unwrap().is_empty() && scored.lock().unwrap().iter().all(|&scored| scored == 1));
}

#[test]
fn defect_16_a_generator_has_its_own_longest_length() {
    let model = model("llama-fp32");
    for max_length in [12, 500] {
        let mut params = endless(&model, 1000);
        params.search.max_length = max_length;
        params.max_new_tokens = Some(20);
        let tokens = answers(&model, &params, &[&[5, 6, 7, 8]]);
        assert_eq!(tokens[0].len(), 20.min(max_length - 4));
    }
}

#[test]
fn defect_19_beams_of_a_batch_are_those_of_each_prompt_alone() {
    let model = model("llama-fp32");
    let prompts: [&[u32]; 3] = [&[5, 6, 7, 8], &[309, 306], &[100, 7, 33, 250, 12, 9, 77, 31, 64, 5]];
    for early_stopping in [true, false] {
        for length_penalty in [0.0, 0.5, 1.0, 2.0] {
            let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(10);
            (params.search.num_beams, params.search.num_return_sequences) = (4, 2);
            (params.search.early_stopping, params.search.length_penalty) = (early_stopping, length_penalty);
            assert_eq!(answers(&model, &params, &prompts), solo(&model, &params, &prompts));
        }
    }
}

#[test]
fn defect_13_beams_times_rows_with_every_ladder() {
    let prompts: [&[u32]; 3] = [&[5, 6, 7, 8], &[309, 306], &[100, 7, 33, 250, 12, 9, 77, 31, 64, 5]];
    let beams = |ladders: &str| {
        let model = model_with("llama-fp32", ladders);
        let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(8);
        params.search.num_beams = 4;
        answers(&model, &params, &prompts)
    };
    assert_eq!(beams(WASTEFUL), beams("{}"));
    assert_eq!(beams(r#"{"row_buckets":[1]}"#), beams("{}"));
}

#[test]
fn defect_21_an_end_is_reported_and_never_stored() {
    let model = model("gemma2-fp32");
    let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(40);
    let ends: &[u32] = &[309, 306];
    let alone = answers(&model, &params, &[ends]);
    assert_eq!(alone[0].len(), 31);
    let beside = answers(&model, &params, &[ends, &[5, 6, 7, 8]]);
    assert_eq!(beside[0], alone[0]);
    let mut kept = params.clone();
    kept.include_stop_token = true;
    assert_eq!(answers(&model, &kept, &[ends])[0][31..], [1]);
}

#[test]
fn defect_24_31_caches_have_the_bytes_that_are_said() {
    let model = model("llama-fp32");
    assert_eq!(model.kv_bytes_per_token(), 2 * 2 * 2 * 16 * 4);
    let mut generator = Generator::new(&model, endless(&model, 16)).unwrap();
    generator.append(&[&[5, 6, 7, 8]]).unwrap();
    for _ in 0..16 {
        generator.next().unwrap();
    }
    assert_eq!(generator.cache_bytes(), 256 * model.kv_bytes_per_token());
}

#[test]
fn forks_scores_and_draws_belong_to_their_row() {
    let model = model("llama-fp32");
    let mut params = endless(&model, 8).temperature(1.5).top_k(0).seed(7);
    params.search.num_return_sequences = 3;
    let drawn = answers(&model, &params, &[&[5, 6, 7, 8], &[9, 10]]);
    assert_eq!(drawn, answers(&model, &params, &[&[5, 6, 7, 8], &[9, 10]]));
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2], "samples of one prompt differ");
    assert_eq!(drawn[..3], answers(&model, &params, &[&[5, 6, 7, 8]]));

    let mut generator = Generator::new(&model, endless(&model, 8)).unwrap();
    generator.append(&[&[5, 6, 7, 8]]).unwrap();
    let mut given = vec![0.0; 320];
    given[77] = 1.0;
    generator.set_logits(0, &given).unwrap();
    let fork = generator.fork(0).unwrap();
    assert_eq!(generator.next().unwrap().iter().map(|token| token.id).collect::<Vec<_>>(), [77, 77]);
    generator.rewind(fork, 4).unwrap();
    let next: Vec<u32> = generator.next().unwrap().iter().map(|token| token.id).collect();
    assert_eq!(next[1], 86, "the fork goes on as the golden case does");
    assert!(generator.set_logits(0, &[0.0]).is_err() && generator.logits(9).is_err());
}

#[test]
fn a_row_with_its_own_seed_draws_as_it_does_alone() {
    let model = model("llama-fp32");
    let drawing = || endless(&model, 8).temperature(1.5).top_k(0);
    let prompts: [&[u32]; 4] = [&[5, 6, 7, 8], &[9, 10], &[9, 10], &[11]];
    let seeds = [RowSeed::Shared, RowSeed::Own(7), RowSeed::Own(8), RowSeed::FromSystem];
    let mut params = drawing().seed(3).row_seeds(seeds);
    params.search.num_return_sequences = 2;
    let batch = generate(&model, None, &params, &prompts, &mut |_| (), None).unwrap().answers;
    let told: Vec<u64> = batch.iter().step_by(2).map(|answer| answer.seed.unwrap()).collect();
    assert_eq!(told[..3], [3, 7, 8]);
    for (row, seed) in told.into_iter().enumerate() {
        let mut alone = drawing().seed(seed);
        alone.search.num_return_sequences = 2;
        let expected = answers(&model, &alone, &[prompts[row]]);
        assert_eq!([&batch[2 * row].tokens, &batch[2 * row + 1].tokens], [&expected[0], &expected[1]], "row {row}");
    }
    // A row that shares the seed draws what it did without the others' own.
    let shared = answers(&model, &drawing().seed(3), &prompts);
    let own_first = [RowSeed::Own(7), RowSeed::Shared, RowSeed::Shared, RowSeed::Shared];
    assert_eq!(answers(&model, &drawing().seed(3).row_seeds(own_first), &prompts)[1..], shared[1..]);
    let error = Generator::new(&model, drawing().row_seeds(seeds)).unwrap().append(&prompts[..2]).unwrap_err();
    assert_eq!(error.to_string(), "row_seeds has 4 seeds and 2 rows were given");
}

#[test]
fn errors_leave_the_state_as_it_was() {
    let model = model("llama-fp32");
    let mut generator = Generator::new(&model, endless(&model, 8)).unwrap();
    assert_eq!(
        generator.append(&[&[5, 320]]).unwrap_err().to_string(),
        "token 1 of row 0 is 320; the vocabulary has 320"
    );
    generator.append(&[&[5, 6, 7, 8]]).unwrap();
    generator.set_logits(0, &[f32::NAN; 320]).unwrap();
    let error = generator.next().unwrap_err().to_string();
    assert_eq!(error, "row 0: the score of token 0 at position 4 is NaN; a finite number was expected");
    generator.rewind(0, 4).unwrap();
    assert_eq!(generator.next().unwrap()[0].id, 86);
}

#[test]
fn a_prompt_is_cancelled_between_steps_and_leaves_no_trace() {
    let model = model("llama-fp32");
    let mut params = endless(&model, 8);
    params.search.chunk_size = Some(1);
    let mut generator = Generator::new(&model, params).unwrap();
    let asked = std::cell::Cell::new(0);
    let third = || asked.replace(asked.get() + 1) == 2;
    let error = generator.append_unless(&[&[5, 6, 7, 8]], &third).unwrap_err();
    assert!(matches!(error, GenerateError::Cancelled) && generator.row_count() == 0);
    generator.append(&[&[5, 6]]).unwrap();
    asked.set(2);
    assert!(generator.append_unless(&[&[9]], &third).is_err());
    assert_eq!(generator.sequence(0), [5, 6]);
    generator.append(&[&[7, 8]]).unwrap();
    assert_eq!(generator.next().unwrap()[0].id, 86, "the golden case's first token");
}

#[test]
fn scores_that_were_given_do_not_outlive_an_append() {
    let model = model("llama-fp32");
    let mut generator = Generator::new(&model, endless(&model, 8)).unwrap();
    generator.append(&[&[5, 6]]).unwrap();
    let mut given = vec![0.0; 320];
    given[77] = 1.0;
    generator.set_logits(0, &given).unwrap();
    generator.append(&[&[7, 8]]).unwrap();
    assert_eq!(generator.next().unwrap()[0].id, 86, "the golden case's first token");
}

/// A folder of the data that may be written to, and how it opens with an overlay.
fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn settings_of_a_session_do_what_they_say() {
    let folder = copied("llama-fp32");
    let open = |options: &str, threads: Option<usize>| {
        let patch = format!(r#"{{"model":{{"decoder":{{"session_options":{options}}}}}}}"#);
        let options = TextOptions { overlays: vec![overlay(&patch)], threads, ..TextOptions::default() };
        open_text_model(folder.path(), &options).unwrap()
    };
    let quiet = open(r#"{"log_severity_level":3}"#, None);
    assert!(quiet.notices.is_empty(), "{:?}", quiet.notices);
    assert!(!open(r#"{"log_severity_level":2}"#, None).notices.is_empty());
    let target = |folder: &precast::TextFolder| folder.model.session().target().to_string();
    let (file, caller) = (open(r#"{"intra_op_num_threads":3}"#, None), open(r#"{"intra_op_num_threads":3}"#, Some(2)));
    assert!(target(&file).contains("threads=3") && target(&caller).contains("threads=2"));
    let strict = open(r#"{"graph_optimization_level":"ORT_DISABLE_ALL"}"#, None);
    let all = open(r#"{"graph_optimization_level":"ORT_ENABLE_ALL"}"#, None);
    assert!(target(&strict) != target(&all) && target(&all) == target(&open("{}", None)));
    let prompt: &[u32] = &[5, 6, 7, 8];
    assert_eq!(answers(&strict.model, &endless(&strict.model, 3), &[prompt]), [[86, 282, 221]]);
}

#[test]
fn a_step_takes_a_larger_program_that_is_there() {
    let on_miss = Some("pad-to-larger,wait".parse().unwrap());
    let options = TextOptions { on_miss, ..TextOptions::default() };
    let model = open_text_model(&data().join("llama-fp32"), &options).unwrap().model;
    let shapes = Arc::new(Mutex::new(Vec::new()));
    let seen = shapes.clone();
    let watched = model.watched(Arc::new(move |plan, _, _| seen.lock().unwrap().push(plan.shape.length)));
    let expected = answers(&support::model("llama-fp32"), &endless(&watched, 3), &[&[5, 6, 7, 8]]);
    answers(&watched, &endless(&watched, 1), &[&[9; 12]]);
    assert_eq!(answers(&watched, &endless(&watched, 3), &[&[5, 6, 7, 8]]), expected);
    assert_eq!(*shapes.lock().unwrap(), [12, 12, 1, 1], "what was there for 12 tokens serves 4");
}

#[test]
fn steps_are_traced_to_a_file_in_the_folder() {
    let folder = copied("llama-fp32");
    let patch = r#"{"model":{"decoder":{"session_options":{"enable_profiling":"steps"}}}}"#;
    let options = TextOptions { overlays: vec![overlay(patch)], ..TextOptions::default() };
    let model = open_text_model(folder.path(), &options).unwrap().model;
    let read = || -> Vec<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("steps_0.json")).unwrap()).unwrap()
    };
    assert!(read().is_empty());
    answers(&model, &endless(&model, 3), &[&[5, 6, 7, 8, 9]]);
    let names: Vec<String> = read().iter().map(|event| event["name"].as_str().unwrap().to_string()).collect();
    assert_eq!(
        names,
        [
            "prefill rows=1 length=6 capacity=256",
            "decode rows=1 length=1 capacity=256",
            "decode rows=1 length=1 capacity=256",
        ]
    );
    let out = r#"{"model":{"decoder":{"session_options":{"enable_profiling":"../steps"}}}}"#;
    let options = TextOptions { overlays: vec![overlay(out)], ..TextOptions::default() };
    assert!(open_text_model(folder.path(), &options).map(drop).unwrap_err().to_string().contains("contains '..'"));
}

#[test]
fn sizes_that_contradict_the_graph_are_all_told() {
    let patch = r#"{"model":{"decoder":{"num_attention_heads":8,"hidden_size":128,"sliding_window":{"window_size":16,
        "layers":[1,9],"slide_inputs":false,"slide_key_value_cache":false}}}}"#;
    let options = TextOptions { overlays: vec![overlay(patch)], ..TextOptions::default() };
    let error = open_text_model(&data().join("gemma2-fp32"), &options).map(drop).unwrap_err().to_string();
    let (_, faults) = error.split_once(": ").unwrap();
    assert_eq!(
        faults.split("; ").collect::<Vec<_>>(),
        [
            "sliding_window.layers does not name layer 0, whose node of attention has a window of 16",
            "layer 0 has 4 heads of queries",
            "num_attention_heads is 8",
            "sliding_window says that layer 1 has a window of 16",
            "its node of attention has none",
            "layer 1 has 4 heads of queries",
            "num_attention_heads is 8",
            "sliding_window.layers names 9",
            "the graph has layers 0 to 1",
            "hidden_size is 128",
            "the graph's norms are 64 wide",
        ]
    );
}

#[test]
fn defect_12_names_of_inputs_come_from_the_configuration() {
    let names = r#"{"model":{"decoder":{"inputs":{"input_ids":"ids"}}}}"#;
    let options = TextOptions { overlays: vec![overlay(names)], ..TextOptions::default() };
    let error = open_text_model(&data().join("llama-fp32"), &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("input_ids is mapped to 'ids', which the graph does not have"), "{error}");
    assert!(error.contains("no role covers the inputs input_ids"), "{error}");
}

#[test]
fn configurations_that_contradict_the_graph_are_refused() {
    let refused = |folder: &str, patch: &str| {
        let options = TextOptions { overlays: vec![overlay(patch)], ..TextOptions::default() };
        open_text_model(&data().join(folder), &options).map(drop).unwrap_err().to_string()
    };
    assert!(refused("llama-fp32", r#"{"model":{"vocab_size":321}}"#).contains("320 scores; vocab_size is 321"));
    let heads = refused("llama-fp32", r#"{"model":{"decoder":{"num_key_value_heads":4}}}"#);
    assert!(heads.contains("a number of heads of 2; the configuration says 4"), "{heads}");
    let window = refused("gemma2-fp32", r#"{"model":{"decoder":{"sliding_window":{"window_size":8}}}}"#);
    assert!(window.contains("layer 0 has a window of 8; its node of attention has 16"), "{window}");
}

#[test]
fn a_window_that_was_passed_is_run_again() {
    let model = model("gemma2-fp32");
    let prompt: Vec<u32> = (0..40).map(|position| 3 + 7 * position).collect();
    let mut generator = Generator::new(&model, endless(&model, 12)).unwrap();
    generator.append(&[&prompt]).unwrap();
    let first: Vec<u32> = (0..8).map(|_| generator.next().unwrap()[0].id).collect();
    generator.rewind(0, 20).unwrap();
    assert_eq!(generator.stats().reruns, 1);
    generator.append(&[&prompt[20..]]).unwrap();
    let again: Vec<u32> = (0..8).map(|_| generator.next().unwrap()[0].id).collect();
    assert_eq!(again, first);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any script of appends, steps and rewinds gives what running the whole context again gives.
    #[test]
    fn scripts_equal_running_the_whole_context_again(
        script in prop::collection::vec((0usize..3, prop::collection::vec(0u32..320, 1..30), 1usize..5, 0usize..20), 1..6),
        chunk in 1usize..20, is_windowed: bool, is_wasteful: bool,
    ) {
        let model = model_with(if is_windowed { "gemma2-fp32" } else { "llama-fp32" }, if is_wasteful { WASTEFUL } else { "{}" });
        let mut params = endless(&model, 400);
        params.search.chunk_size = Some(chunk);
        let mut generator = Generator::new(&model, params).unwrap();
        generator.append(&[&script[0].1]).unwrap();
        for (call, tokens, count, back) in &script {
            match call {
                0 => generator.append(&[tokens]).unwrap(),
                1 => for _ in 0..*count { generator.next().unwrap(); },
                _ => {
                    let kept = generator.len(0).saturating_sub(*back).max(1);
                    generator.rewind(0, kept).unwrap();
                }
            }
            let mut whole = Generator::new(&model, endless(&model, 400)).unwrap();
            whole.append(&[generator.sequence(0)]).unwrap();
            let (found, expected) = (generator.logits(0).unwrap().to_vec(), whole.logits(0).unwrap());
            let most = expected.iter().fold(1.0_f32, |most, score| most.max(score.abs()));
            for (found, expected) in found.iter().zip(expected) {
                prop_assert!((found - expected).abs() <= 1e-4 * most, "{} is not {}", found, expected);
            }
        }
    }
}

/// A folder of the data whose model was rewritten, with a patch on its configuration.
fn rewritten(name: &str, patch: &str, rewrite: impl Fn(&mut GraphProto)) -> TextModel {
    let folder = tempfile::tempdir().unwrap();
    for file in ["genai_config.json", "model.onnx.data"] {
        let from = data().join(name).join(file);
        if from.exists() {
            std::fs::copy(from, folder.path().join(file)).unwrap();
        }
    }
    let bytes = std::fs::read(data().join(name).join("model.onnx")).unwrap();
    let mut proto = ModelProto::decode(bytes.as_slice()).unwrap();
    rewrite(proto.graph.as_mut().unwrap());
    std::fs::write(folder.path().join("model.onnx"), proto.encode_to_vec()).unwrap();
    let options = TextOptions { overlays: vec![overlay(patch)], ..TextOptions::default() };
    open_text_model(folder.path(), &options).unwrap().model
}

#[test]
fn defect_08_ids_may_have_either_integer_type() {
    let with_i32 = |graph: &mut GraphProto| {
        let ids = graph.input.iter_mut().find(|input| input.name == "input_ids").unwrap();
        let Some(TypeValue::TensorType(ty)) = ids.r#type.as_mut().and_then(|ty| ty.value.as_mut()) else { panic!() };
        ty.elem_type = 6;
    };
    let (narrow, wide) = (rewritten("llama-fp32", "{}", with_i32), model("llama-fp32"));
    assert_eq!(answers(&narrow, &endless(&narrow, 8), &RAGGED), answers(&wide, &endless(&wide, 8), &RAGGED));
}

/// A decoder that is told its numbers of tokens, and whose positions are right only if those are.
fn told_its_lengths(graph: &mut GraphProto) {
    let port = |name: &str, elem_type: i32, dims: Vec<DimensionValue>| {
        let dim = dims.into_iter().map(|value| DimensionProto { value: Some(value), ..Default::default() }).collect();
        let ty = TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim }) };
        let ty = TypeProto { value: Some(TypeValue::TensorType(ty)), ..Default::default() };
        ValueInfoProto { name: name.to_string(), r#type: Some(ty), ..Default::default() }
    };
    graph.input.extend([
        port("past_sequence_length", 7, vec![]),
        port("now", 7, vec![DimensionValue::DimValue(1)]),
        port("total_sequence_length", 6, vec![DimensionValue::DimValue(1)]),
        port("past_key_values_length", 7, vec![DimensionValue::DimParam("rows".to_string())]),
    ]);
    let axes =
        TensorProto { name: "one".to_string(), data_type: 7, dims: vec![1], int64_data: vec![1], ..Default::default() };
    graph.initializer.push(axes);
    for name in graph.node.iter_mut().flat_map(|node| node.input.iter_mut()).filter(|name| *name == "position_ids") {
        *name = "moved".to_string();
    }
    let node = |op_type: &str, inputs: &[&str], output: &str| NodeProto {
        op_type: op_type.to_string(),
        input: inputs.iter().map(ToString::to_string).collect(),
        output: vec![output.to_string()],
        ..Default::default()
    };
    let to = AttributeProto { name: "to".to_string(), i: Some(7), r#type: Some(2), ..Default::default() };
    let types: BTreeMap<String, i32> = graph
        .input
        .iter()
        .filter_map(|input| match input.r#type.as_ref()?.value.as_ref()? {
            TypeValue::TensorType(ty) => Some((input.name.clone(), ty.elem_type)),
            _ => None,
        })
        .collect();
    let back = AttributeProto { i: Some(i64::from(types["position_ids"])), ..to.clone() };
    let cast = |input: &str, output: &str, to: &AttributeProto| NodeProto {
        attribute: vec![to.clone()],
        ..node("Cast", &[input], output)
    };
    let first = vec![
        cast("total_sequence_length", "total", &to),
        node("Add", &["past_sequence_length", "now"], "both"),
        node("Sub", &["both", "total"], "none"),
        node("Sub", &["past_key_values_length", "past_sequence_length"], "none_a_row"),
        node("Unsqueeze", &["none_a_row", "one"], "none_a_row_and_token"),
        cast("position_ids", "given", &to),
        node("Add", &["given", "none"], "given_still"),
        node("Add", &["given_still", "none_a_row_and_token"], "moved_wide"),
        cast("moved_wide", "moved", &back),
    ];
    graph.node.splice(0..0, first);
}

#[test]
fn numbers_of_tokens_come_from_the_plan() {
    let names = r#"{"model":{"decoder":{"inputs":{"current_sequence_length":"now"}}}}"#;
    let (told, plain) = (rewritten("gpt2_like-fp32", names, told_its_lengths), model("gpt2_like-fp32"));
    let prompts: [&[u32]; 3] = [&[52], &[5, 6, 7, 8], &[10, 7, 33, 50, 12, 9, 77, 31, 64, 5]];
    assert_eq!(answers(&told, &endless(&told, 8), &prompts), answers(&plain, &endless(&plain, 8), &prompts));
    assert_eq!(told.ladders().rows.sizes(), [1], "one length for all rows");
}

#[test]
fn outputs_that_are_no_scores_or_caches_are_left_out() {
    let with_hidden_states = |graph: &mut GraphProto| {
        let is_scores = |output: &String| output == "logits";
        let last = graph.node.iter().find(|node| node.output.iter().any(is_scores)).unwrap();
        let mut port = graph.output.iter().find(|port| port.name == "logits").unwrap().clone();
        port.name = last.input[0].clone();
        if let Some(TypeValue::TensorType(ty)) = port.r#type.as_mut().and_then(|ty| ty.value.as_mut()) {
            ty.shape = None;
        }
        graph.output.push(port);
    };
    let (more, plain) = (rewritten("llama-fp32", "{}", with_hidden_states), model("llama-fp32"));
    assert_eq!(answers(&more, &endless(&more, 8), &RAGGED), answers(&plain, &endless(&plain, 8), &RAGGED));
}

#[test]
fn defect_12_every_input_and_output_may_have_another_name() {
    let rename = |graph: &mut GraphProto| {
        let new =
            |name: &String| format!("renamed/{}", name.replace("past_key_values", "old").replace("present", "new"));
        let inputs = graph.input.iter_mut().map(|port| &mut port.name);
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for name in inputs.chain(graph.output.iter_mut().map(|port| &mut port.name)) {
            names.insert(name.clone(), new(name));
            *name = new(name);
        }
        for name in graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(node.output.iter_mut())) {
            if let Some(new) = names.get(name) {
                *name = new.clone();
            }
        }
    };
    let patch = r#"{"model":{"decoder":{"inputs":{"input_ids":"renamed/input_ids","attention_mask":"renamed/attention_mask",
        "past_key_names":"renamed/old.%d.key","past_value_names":"renamed/old.%d.value"},
        "outputs":{"logits":"renamed/logits","present_key_names":"renamed/new.%d.key","present_value_names":"renamed/new.%d.value"}}}}"#;
    let (renamed, plain) = (rewritten("gemma2-fp32", patch, rename), model("gemma2-fp32"));
    assert_eq!(answers(&renamed, &endless(&renamed, 8), &RAGGED), answers(&plain, &endless(&plain, 8), &RAGGED));
}

#[test]
fn a_step_that_is_refused_leaves_no_trace() {
    // Nothing is compiled ahead, and nothing may be compiled for a request.
    let model = model_with("qwen2-fp32", r#"{"on_miss":"reject"}"#);
    let mut generator = Generator::new(&model, endless(&model, 4)).unwrap();
    assert!(generator.append(&[&[5, 6, 7]]).is_err());
    assert_eq!((generator.row_count(), generator.len(0)), (0, 0));
    assert!(generator.append(&[&[5], &[6]]).is_err());
}
