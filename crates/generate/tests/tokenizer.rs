//! Tokenizers and chat templates against what tokenizers and transformers gave.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use std::path::{Path, PathBuf};

use precast_generate::chat_template::{ChatOptions, ChatTemplate, ChatValue};
use precast_generate::config::Folder;
use precast_generate::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn cases() -> Value {
    serde_json::from_str(&std::fs::read_to_string(data().join("tokenizer_cases.json")).unwrap()).unwrap()
}

fn tokenizer(case: &Value) -> Tokenizer {
    Tokenizer::open(&Folder::open(&data().join(case["tokenizer"].as_str().unwrap())).unwrap()).unwrap()
}

fn ids(case: &Value) -> Vec<u32> {
    serde_json::from_value(case["ids"].clone()).unwrap()
}

#[test]
fn golden_texts_become_ids_and_back() {
    for case in cases()["encode"].as_array().unwrap() {
        let tokenizer = tokenizer(case);
        assert_eq!(tokenizer.encode(case["text"].as_str().unwrap()).unwrap(), ids(case), "{case}");
        assert_eq!(tokenizer.decode(&ids(case)), case["decoded_skip_special"].as_str().unwrap(), "{case}");
        assert_eq!(tokenizer.decode_with_special_tokens(&ids(case)), case["decoded_keep_special"].as_str().unwrap());
    }
}

#[test]
fn golden_texts_stream_piece_by_piece() {
    for case in cases()["encode"].as_array().unwrap() {
        let mut stream = tokenizer(case).stream();
        let pieces: Vec<String> = ids(case).iter().map(|&id| stream.push(id).to_string()).collect();
        let expected: Vec<String> = serde_json::from_value(case["stream_pieces"].clone()).unwrap();
        assert_eq!(pieces, expected, "{case}");
        assert_eq!(stream.finish(), "");
    }
}

#[test]
fn golden_conversations_become_texts() {
    for case in cases()["chat"].as_array().unwrap() {
        let is_prompt = case["add_generation_prompt"].as_bool().unwrap();
        let options = ChatOptions { add_generation_prompt: is_prompt, ..ChatOptions::default() };
        let messages = ChatValue::from_json(&case["messages"].to_string()).unwrap();
        let text = tokenizer(case).apply_chat_template(&messages, &options).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap());
    }
}

#[test]
fn ids_without_a_text_are_empty_and_broken_characters_show() {
    let folder = Folder::open(&data().join("llama-fp32")).unwrap();
    let tokenizer = Tokenizer::open(&folder).unwrap();
    assert_eq!(tokenizer.decode(&[319, 309, 4_000_000]), "hello");
    let half = tokenizer.encode("日").unwrap()[..2].to_vec();
    assert_eq!(tokenizer.decode(&half), "\u{fffd}");
    let mut stream = tokenizer.stream();
    assert_eq!(stream.push(half[0]), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

/// Tokens with a mark for a space, and tokens of bytes for what is not in the vocabulary.
const BYTE_FALLBACK: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
    "pre_tokenizer":null,"post_processor":null,
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
    "model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,
        "end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":true,"merges":[],
        "vocab":{"<unk>":0,"▁a":1,"▁b":2,"<0xE6>":3,"<0x97>":4,"<0xA5>":5,"▁":6,"c":7,"<0x20>":8,"<0x41>":9}}}"#;

#[test]
fn tokens_of_bytes_and_leading_spaces_stream_as_they_decode() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), BYTE_FALLBACK).unwrap();
    let tokenizer = Tokenizer::open(&Folder::open(folder.path()).unwrap()).unwrap();
    let pieces = |ids: &[u32]| {
        let mut stream = tokenizer.stream();
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).to_string()).collect();
        pieces.push(stream.finish());
        pieces
    };
    assert_eq!(pieces(&[1, 2]), ["a", " b", ""]);
    assert_eq!(pieces(&[3, 4, 5, 2, 1]), ["", "", "日", " b", " a", ""]);
    assert_eq!(pieces(&[1, 3, 2]), ["a", "", "\u{fffd} b", ""]);
    assert_eq!(pieces(&[3, 2]), ["", "\u{fffd} b", ""]);
    assert_eq!(pieces(&[8, 2]), ["", " b", ""]);
    assert_eq!(tokenizer.decode(&[1, 3, 4]), "a\u{fffd}");
}

#[test]
fn templates_in_the_manner_of_the_large_families_render_as_in_transformers() {
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(data().join("chat_cases.json")).unwrap()).unwrap();
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let special = special.map(|(name, token)| (name.to_string(), token.to_string()));
    // As it is written in the file: the order of keys is part of what templates print.
    let text = std::fs::read_to_string(data().join("chat_cases.json")).unwrap();
    let ordered: Vec<&RawValue> = serde_json::from_str::<RawCases<'_>>(&text).unwrap().cases;
    for (case, raw) in cases["cases"].as_array().unwrap().iter().zip(ordered) {
        let raw: RawCase<'_> = serde_json::from_str(raw.get()).unwrap();
        let source = cases["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
        let template = ChatTemplate::new(source, special.clone().into()).unwrap();
        let read = |raw: &RawValue| ChatValue::from_json(raw.get()).unwrap();
        let mut options = ChatOptions::default();
        for (name, value) in &raw.options {
            match *name {
                "tools" => options.tools = Some(read(value)),
                "documents" => options.documents = Some(read(value)),
                "add_generation_prompt" => options.add_generation_prompt = value.get() == "true",
                name => drop(options.variables.insert(name.to_string(), read(value))),
            }
        }
        assert_eq!(template.render(&read(raw.messages), &options).unwrap(), case["text"].as_str().unwrap(), "{case}");
    }
}

#[derive(serde::Deserialize)]
struct RawCases<'t> {
    #[serde(borrow)]
    cases: Vec<&'t RawValue>,
}

#[derive(serde::Deserialize)]
struct RawCase<'t> {
    #[serde(borrow)]
    messages: &'t RawValue,
    #[serde(borrow)]
    options: std::collections::BTreeMap<&'t str, &'t RawValue>,
}

/// A tokenizer of this file, and settings beside it.
fn tokenizer_of(file: &str, settings: &str) -> (tempfile::TempDir, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file).unwrap();
    std::fs::write(folder.path().join("tokenizer_config.json"), settings).unwrap();
    let tokenizer = Tokenizer::open(&Folder::open(folder.path()).unwrap()).unwrap();
    (folder, tokenizer)
}

#[test]
fn of_several_templates_the_one_for_tools_serves_tools() {
    let render = |list: &str, has_tools: bool| {
        let (_folder, tokenizer) = tokenizer_of(BYTE_FALLBACK, &format!(r#"{{"chat_template":{list}}}"#));
        let tools = has_tools.then(|| ChatValue::from_json("[]").unwrap());
        let options = ChatOptions { tools, ..ChatOptions::default() };
        tokenizer.apply_chat_template(&ChatValue::of_messages([]), &options).map_err(|error| error.to_string())
    };
    let both = r#"[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"}]"#;
    assert_eq!((render(both, false), render(both, true)), (Ok("plain".into()), Ok("tools".into())));
    assert_eq!(render(r#"[{"name":"rag","template":"only"}]"#, true), Ok("only".into()));
    let neither = r#"[{"name":"rag","template":"a"},{"name":"tool_use","template":"tools"}]"#;
    assert_eq!(render(neither, true), Ok("tools".into()));
    assert_eq!(
        render(neither, false),
        Err("the folder has the chat templates rag, tool_use; one called 'default' was expected".into())
    );
}

/// Ids of the vocabulary above: words, whole characters of bytes, and the beginning of one between words.
fn fallback_ids() -> impl Strategy<Value = Vec<u32>> {
    let piece = prop_oneof![
        prop::sample::select(vec![vec![1], vec![2], vec![6], vec![7]]),
        prop::sample::select(vec![vec![3, 4, 5], vec![8], vec![9]]),
        prop::sample::select(vec![vec![1, 3, 2], vec![2, 3, 4, 7]]),
    ];
    let begin = prop::sample::select(vec![vec![], vec![3, 2], vec![3, 4, 7], vec![8], vec![8, 9]]);
    (begin, prop::collection::vec(piece, 0..8)).prop_map(|(begin, pieces)| [begin, pieces.concat()].concat())
}

/// The text with runs of U+FFFD as one: tokenizers writes one a byte, a stream one a broken character.
fn with_single_marks(text: &str) -> String {
    let mut marked = text.to_string();
    while marked.contains("\u{fffd}\u{fffd}") {
        marked = marked.replace("\u{fffd}\u{fffd}", "\u{fffd}");
    }
    marked
}

proptest! {
    #[test]
    fn pieces_of_byte_fallback_are_what_tokenizers_decodes(ids in fallback_ids()) {
        let (_folder, tokenizer) = tokenizer_of(BYTE_FALLBACK, "{}");
        let theirs = tokenizers::Tokenizer::from_bytes(BYTE_FALLBACK).unwrap().decode(&ids, true).unwrap();
        let mut stream = tokenizer.stream();
        let mut pieces = ids.iter().fold(String::new(), |text, &id| text + stream.push(id));
        pieces.push_str(&stream.finish());
        prop_assert_eq!(with_single_marks(&pieces), with_single_marks(&theirs), "{:?}", ids);
    }

    #[test]
    fn pieces_of_byte_level_are_what_tokenizers_decodes(ids in prop::collection::vec(0u32..330, 0..24)) {
        let folder = data().join("llama-fp32");
        let tokenizer = Tokenizer::open(&Folder::open(&folder).unwrap()).unwrap();
        let theirs = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
        let mut stream = tokenizer.stream();
        let mut pieces = ids.iter().fold(String::new(), |text, &id| text + stream.push(id));
        pieces.push_str(&stream.finish());
        prop_assert_eq!(pieces, theirs.decode(&ids, true).unwrap());
    }
}
