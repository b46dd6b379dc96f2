//! `cache` lists, checks and trims what `perf --cache` left.

use serde_json::json;

use crate::{Bench, models};

fn filled() -> Bench {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("perf m.onnx --max-batch 4 --duration 0 --iterations 3 --cache programs");
    bench
}

#[test]
fn programs_are_listed_with_their_constants_counted_once() {
    let bench = filled();
    let json = bench.json("cache ls programs");
    let entries = json["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3);
    let key = entries[0]["key"].as_str().unwrap();
    let shown = bench.json(&format!("cache show programs {}", &key[..16]));
    assert_eq!(shown["key"], json!(key));
    assert!(shown["record"]["target"].as_str().unwrap().contains("cpu:"));
    assert_eq!(bench.run("cache show programs ffffffffff00").exit, 6);
}

#[test]
fn a_damaged_file_is_found() {
    let bench = filled();
    assert_eq!(bench.json("cache verify programs")["problems"], json!([]));
    let artifact = first_file(&bench.path("programs/programs"));
    let mut bytes = std::fs::read(&artifact).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&artifact, bytes).unwrap();
    assert_eq!(bench.run("cache verify programs").exit, 6);
}

#[test]
fn gc_says_what_would_go_and_goes_by_the_flag() {
    let bench = filled();
    let dry = bench.json("cache gc programs --max-bytes 0");
    assert_eq!(dry["applied"], json!(false));
    assert_eq!(bench.json("cache ls programs")["entries"].as_array().unwrap().len(), 3);
    bench.json("cache gc programs --max-bytes 0 --apply");
    assert_eq!(bench.json("cache ls programs")["entries"].as_array().unwrap().len(), 0);
    assert_eq!(bench.run("cache ls nowhere").exit, 2);
}

fn first_file(folder: &std::path::Path) -> std::path::PathBuf {
    let entry = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    if entry.is_dir() { first_file(&entry) } else { entry }
}
