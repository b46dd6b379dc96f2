//! Decoders that compute rows in another way from some length on, as those with two rotary tables do: every token is what the
//! whole row gives that is run at once, whichever way it became so long.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use precast::generate::engine::{Event, Request};
use precast::generate::{Engine, EngineOptions, Generator, GeneratorParams, TextModel, generate};
use precast::{TextOptions, open_text_model};
use precast_onnx::proto::{AttributeProto, ModelProto, NodeProto};
use prost::Message;
use support::{data, model, model_with};

const FOLDER: &str = "phi3_long-fp32";
/// Most tokens of a row that is short, in this folder.
const LIMIT: usize = 32;
/// Rows that become long at different steps, one that is long from the first, and one that never is.
const LENGTHS: [usize; 5] = [20, 31, 3, 40, 32];
const NEW_TOKENS: usize = 18;

fn prompt(length: usize) -> Vec<u32> {
    (0..length as u32).map(|position| 3 + (position * 31 + length as u32 * 7) % 90).collect()
}

fn params(model: &TextModel, new_tokens: usize) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(new_tokens);
    params.ignore_eos = true;
    params
}

/// Greedy tokens behind a prompt, each from the whole row run anew.
fn by_whole_rows(model: &TextModel, prompt: &[u32], new_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..new_tokens {
        let mut generator = Generator::new(model, params(model, 1)).unwrap();
        generator.append(&[&tokens]).unwrap();
        tokens.push(generator.next().unwrap()[0].id);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn rows_become_long_alone_together_and_in_chunks() {
    let model = model(FOLDER);
    assert_eq!(model.length_switch(), Some(LIMIT));
    let prompts = LENGTHS.map(prompt);
    let expected: Vec<Vec<u32>> = prompts.iter().map(|prompt| by_whole_rows(&model, prompt, NEW_TOKENS)).collect();
    let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    for tuning in ["{}", r#"{"length_buckets":[7],"chunk":7,"row_buckets":[2]}"#] {
        let model = model_with(FOLDER, tuning);
        let answers = generate(&model, None, &params(&model, NEW_TOKENS), &slices, &mut |_| (), None).unwrap().answers;
        let tokens: Vec<Vec<u32>> = answers.into_iter().map(|answer| answer.tokens).collect();
        assert_eq!(tokens, expected, "{tuning}");
    }
}

#[test]
fn a_long_row_that_is_rewound_is_short_again() {
    let model = model(FOLDER);
    let prompt = prompt(25);
    let mut generator = Generator::new(&model, params(&model, 40)).unwrap();
    generator.append(&[&prompt]).unwrap();
    let tokens: Vec<u32> = (0..12).map(|_| generator.next().unwrap()[0].id).collect();
    assert_eq!(generator.stats().reruns, 1);
    generator.rewind(0, prompt.len() + 2).unwrap();
    let again: Vec<u32> = (0..10).map(|_| generator.next().unwrap()[0].id).collect();
    assert_eq!(again, tokens[2..]);
    assert_eq!(generator.stats().reruns, 3);
}

#[test]
fn an_engine_gives_long_rows_the_same_tokens() {
    let model = model(FOLDER);
    for prefix_caching in [false, true] {
        let options =
            EngineOptions { page_tokens: 4, prefix_caching, ..EngineOptions::from_config(model.config(), None) };
        let engine = Engine::new(&model, None, options).unwrap();
        let prompts = LENGTHS.map(prompt);
        let submit =
            |prompt: &Vec<u32>| engine.submit(Request::new(prompt.clone(), params(&model, NEW_TOKENS))).unwrap();
        // Twice, so that the second ones find pages of the first.
        for _ in 0..2 {
            let handles: Vec<_> = prompts.iter().map(submit).collect();
            for (handle, prompt) in handles.iter().zip(&prompts) {
                let mut tokens = Vec::new();
                while let Some(event) = handle.next_event() {
                    match event {
                        Event::Token(token) => tokens.push(token.id),
                        Event::Failed { message, .. } => panic!("{message}"),
                        Event::Finished { .. } => break,
                        Event::Blocked => {}
                    }
                }
                assert_eq!(tokens, by_whole_rows(&model, prompt, NEW_TOKENS), "{} tokens", prompt.len());
            }
        }
    }
}

/// A folder whose scores are multiplied by the length of the mask.
fn folder_that_reads_the_length() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data().join("llama-fp32")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("model.onnx");
    let mut proto = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap();
    let graph = proto.graph.as_mut().unwrap();
    let outputs = graph.node.iter_mut().flat_map(|node| &mut node.output);
    outputs.filter(|output| *output == "logits").for_each(|output| *output = "scores".to_string());
    let length = graph.node.iter().find(|node| node.op_type == "Gather" && node.input[0].contains("Shape")).unwrap();
    let length = length.output[0].clone();
    let node = |op: &str, input: &[&str], output: &str, attribute| NodeProto {
        op_type: op.to_string(),
        name: format!("{op} of the length"),
        input: input.iter().map(ToString::to_string).collect(),
        output: vec![output.to_string()],
        attribute,
        ..NodeProto::default()
    };
    let to = AttributeProto { name: "to".to_string(), i: Some(1), r#type: Some(2), ..AttributeProto::default() };
    graph.node.push(node("Cast", &[&length], "length", vec![to]));
    graph.node.push(node("Mul", &["scores", "length"], "logits", Vec::new()));
    std::fs::write(&path, proto.encode_to_vec()).unwrap();
    folder
}

#[test]
fn nodes_that_compute_with_the_length_of_the_mask_are_refused() {
    let folder = folder_that_reads_the_length();
    let error = open_text_model(folder.path(), &TextOptions::default()).err().unwrap().to_string();
    assert!(error.contains("computes with the length of the attention mask"), "{error}");
    assert!(error.contains("'Mul of the length'"), "{error}");
}
