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

#[test]
fn constants_are_listed_once_whatever_the_number_of_buckets() {
    let bench = Bench::with_model("m.onnx", &models::needs_80_channels());
    bench.json("cache warm programs m.onnx --max-batch 4 --dim channels=80");
    let json = bench.json("cache ls programs --bytes");
    let constants = json["constants"].as_array().unwrap();
    assert_eq!(constants.len(), 1, "{json}");
    assert_eq!(constants[0]["programs"], json!(3));
    assert_eq!(json["stored_bytes"].as_u64().unwrap() * 3, json["unshared_bytes"].as_u64().unwrap());
}

#[test]
fn warm_compiles_what_is_missing_and_why_agrees() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let first = bench.json("cache warm programs m.onnx --max-batch 4");
    assert_eq!((&first["compiles"], first["buckets"].as_array().unwrap().len()), (&json!(3), 3));
    let more = bench.json("cache warm programs m.onnx --max-batch 8");
    assert_eq!(more["compiles"], json!(1));
    let why = bench.json("cache why programs m.onnx --max-batch 8");
    assert_eq!(why["hits"], json!(4));
    // What `perf` opens is what `warm` compiled.
    assert_eq!(bench.json("perf m.onnx --max-batch 8 --duration 0 --cache programs")["compiles"], json!(0));
}

#[test]
fn why_names_the_field_that_differs() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("cache warm programs m.onnx --max-batch 1 --isa avx2");
    let why = bench.json("cache why programs m.onnx --max-batch 1 --isa portable");
    let bucket = &why["buckets"][0];
    assert_eq!((&bucket["hit"], &bucket["miss"]), (&json!(false), &json!("absent")));
    let differing = bucket["nearest"]["differing"].as_array().unwrap();
    assert_eq!(differing.iter().map(|diff| diff["field"].as_str().unwrap()).collect::<Vec<_>>(), ["target"]);
    assert!(differing[0]["want"].as_str().unwrap().contains("portable"), "{differing:?}");
    assert!(differing[0]["have"].as_str().unwrap().contains("avx2"), "{differing:?}");
    let key = bucket["nearest"]["key"].as_str().unwrap();
    assert_eq!(bench.json(&format!("cache why programs {key}"))["hits"], json!(1));
    assert_eq!(bench.run("cache why programs m.onnx").exit, 2);
    assert_eq!(bench.run("cache why programs nothing").exit, 2);
}

/// H19: a weight, an option or a size that differs is another Program, and `why` says which of them it was.
#[test]
fn a_flipped_weight_an_option_and_a_dim_are_misses_that_why_names() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("cache warm programs m.onnx --max-batch 1");
    assert_eq!(bench.json("cache why programs m.onnx --max-batch 1")["hits"], json!(1));
    let mut retrained = models::affine();
    let weight = &mut retrained.graph.as_mut().unwrap().initializer[0];
    let mut bytes = weight.raw_data.take().unwrap().to_vec();
    bytes[0] ^= 1;
    weight.raw_data = Some(bytes.into());
    bench.write("retrained.onnx", &models::encode(&retrained));
    for (arguments, field) in [
        ("retrained.onnx --max-batch 1", "weights"),
        ("m.onnx --max-batch 1 --numerics strict", "precision.rounding"),
        ("m.onnx --max-batch 3 --buckets 3", "bucket.rows"),
    ] {
        let why = bench.json(&format!("cache why programs {arguments}"));
        assert_eq!(why["hits"], json!(0), "{arguments}");
        let differing = why["buckets"][0]["nearest"]["differing"].as_array().unwrap();
        assert!(differing.iter().any(|diff| diff["field"] == json!(field)), "{arguments}: {differing:?}");
    }
}

#[test]
fn diff_shows_both_values() {
    let bench = filled();
    let listed = bench.json("cache ls programs");
    let key = |index: usize| listed["entries"][index]["key"].as_str().unwrap().to_string();
    let differing = bench.json(&format!("cache diff programs {} {}", key(0), key(1)));
    let fields: Vec<&str> =
        differing["differing"].as_array().unwrap().iter().map(|diff| diff["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["bucket.rows", "types"]);
    assert_eq!(bench.json(&format!("cache diff programs {0} {0}", key(0)))["differing"], json!([]));
}

#[test]
fn a_pinned_program_outlives_gc() {
    let bench = filled();
    let key = bench.json("cache ls programs")["entries"][1]["key"].as_str().unwrap().to_string();
    assert_eq!(bench.json(&format!("cache pin programs {}", &key[..12]))["key"], json!(key));
    bench.json("cache gc programs --max-bytes 0 --apply");
    assert_eq!(bench.json("cache ls programs")["entries"][0]["pinned"], json!(true));
    bench.json(&format!("cache unpin programs {}", &key[..12]));
    bench.json("cache gc programs --max-bytes 0 --apply");
    assert_eq!(bench.json("cache ls programs")["entries"], json!([]));
}

#[test]
fn push_and_pull_move_what_is_missing() {
    let bench = filled();
    let pushed = bench.json("cache push programs store");
    assert_eq!(pushed["programs"], json!(3));
    assert_eq!(bench.json("cache push programs store")["programs"], json!(0));
    let url = format!("file://{}", bench.path("store").display());
    let pulled = bench.json(&format!("cache pull other {url}"));
    assert_eq!((&pulled["programs"], &pulled["bytes"]), (&json!(3), &pushed["bytes"]));
    assert_eq!(bench.json("cache why other m.onnx --max-batch 4")["hits"], json!(3));
    assert_eq!(bench.run("cache pull other nowhere").exit, 2);
    assert_eq!(bench.run("cache push nowhere store").exit, 2);
}

#[test]
fn a_store_that_this_build_cannot_reach_says_how_to_build_one_that_can() {
    let bench = filled();
    let outcome = bench.run("cache push programs s3://bucket/path");
    if !cfg!(feature = "cloud") {
        assert_eq!(outcome.exit, 2);
        assert!(outcome.stderr.contains("--features cloud"), "{}", outcome.stderr);
    }
}

/// An Ed25519 key of the bytes 0 to 31, as OpenSSL writes it, its public half, and another public key.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=
-----END PUBLIC KEY-----
";
const OTHER: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAFlSZvJ8+SjZ0WHNbahc8K01bgK5HrLBbla6zliDJIs8=
-----END PUBLIC KEY-----
";

#[test]
fn a_signed_cache_is_used_and_an_unsigned_one_is_not() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.write("key.pem", PRIVATE.as_bytes());
    bench.write("public.pem", PUBLIC.as_bytes());
    bench.write("other.pem", OTHER.as_bytes());
    bench.json("cache warm signed m.onnx --max-batch 2 --sign-key key.pem");
    bench.json("cache warm unsigned m.onnx --max-batch 2");
    let perf = |dir: &str, public: &str| {
        let flags = format!("--max-batch 2 --duration 0 --cache {dir} --require-signed {public}");
        bench.json(&format!("perf m.onnx {flags}"))["compiles"].clone()
    };
    assert_eq!(perf("signed", "public.pem"), json!(0));
    assert_eq!(perf("signed", "other.pem"), json!(2));
    assert_eq!(perf("unsigned", "public.pem"), json!(2));
    let why = bench.json("cache why unsigned m.onnx --max-batch 2 --require-signed public.pem");
    assert_eq!(why["buckets"][0]["miss"], json!("incompatible"));
    assert!(why["buckets"][0]["message"].as_str().unwrap().contains("signature"), "{why}");
    assert_eq!(bench.run("cache verify signed --require-signed public.pem").exit, 0);
    assert_eq!(bench.run("cache verify unsigned --require-signed public.pem").exit, 6);
    assert_eq!(bench.run("cache verify signed --require-signed key.pem").exit, 2);
    assert_eq!(bench.run("cache warm signed m.onnx --max-batch 2 --sign-key none.pem").exit, 2);
}
