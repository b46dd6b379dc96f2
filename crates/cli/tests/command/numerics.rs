//! Liberties with numbers are taken only by name, shown, and part of every key.

use serde_json::json;

use crate::{Bench, models};

#[test]
fn int8_is_shown_and_near_and_never_unasked() {
    let bench = Bench::with_model("m.onnx", &models::wide());
    let compiled = bench.json("compile m.onnx -o p --dim rows=3 --int8 --explain");
    assert_eq!(
        compiled["numerics"],
        json!({ "rounding": "default", "fast_math": "none", "floats": "f32", "weights": "int8", "activations": "f32" })
    );
    assert_eq!(compiled["explain"][0]["kernel"], json!("gemm_dynamic+act"));
    let text = bench.run("inspect p").stdout;
    assert!(text.contains("+int8 threads=") && text.contains("weights int8\n"), "{text}");
    assert_eq!(bench.json("verify m.onnx --dim rows=3 --int8")["equal"], json!(true));
    assert_eq!(bench.run("verify m.onnx --dim rows=3 --int8 --rel 1e-6").exit, 4);

    let plain = bench.json("compile m.onnx -o q --dim rows=3 --explain");
    assert_eq!(plain["explain"][0]["kernel"], json!("gemm+act"));
    let is_off = |name: &str| {
        let passes = plain["passes"].as_array().unwrap();
        passes.iter().any(|pass| pass["pass"] == json!(name) && pass["is_skipped"] == json!(true))
    };
    let named = ["quantise_weights", "approximate_gelu", "fold_zero_products", "cancel_logs", "replace_powers"];
    assert!(named.into_iter().all(is_off), "{plain}");
    bench.json("compile m.onnx -o r --dim rows=3 --numerics default");
    assert_eq!(bench.read("q"), bench.read("r"));
}

#[test]
fn each_liberty_is_a_miss_that_names_it() {
    let bench = Bench::with_model("m.onnx", &models::wide());
    bench.json("cache warm programs m.onnx --max-batch 2");
    let cases = [
        ("--int8", "precision.weights", "int8", "f32"),
        ("--bf16", "precision.weights", "bf16", "f32"),
        ("--int8-activations", "precision.activations", "int8", "f32"),
        ("--fast-math zero,gelu", "precision.fast_math", "gelu,zero", "none"),
        ("--numerics strict", "precision.rounding", "strict", "default"),
    ];
    for (flags, field, want, have) in cases {
        let why = bench.json(&format!("cache why programs m.onnx --max-batch 2 {flags}"));
        let bucket = &why["buckets"][0];
        assert_eq!(bucket["hit"], json!(false), "{flags}: {why}");
        let named = json!([{ "field": field, "want": want, "have": have }]);
        assert_eq!(bucket["nearest"]["differing"], named, "{flags}: {why}");
    }
    bench.json("cache warm programs m.onnx --max-batch 2 --int8");
    let why = bench.json("cache why programs m.onnx --max-batch 2 --int8");
    assert_eq!(why["buckets"][0]["hit"], json!(true), "{why}");
}
