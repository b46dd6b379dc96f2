//! Tokenizers and chat templates against what tokenizers and transformers gave.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use std::path::{Path, PathBuf};

use precast_generate::chat_template::{ChatOptions, ChatValue};
use precast_generate::config::Folder;
use precast_generate::tokenizer::Tokenizer;
use serde_json::Value;

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
        "vocab":{"<unk>":0,"▁a":1,"▁b":2,"<0xE6>":3,"<0x97>":4,"<0xA5>":5}}}"#;

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
    assert_eq!(tokenizer.decode(&[1, 3, 4]), "a\u{fffd}");
}
