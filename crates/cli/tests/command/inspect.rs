//! `inspect` shows models and Program files.

use serde_json::json;

use crate::{Bench, models};

#[test]
fn a_model_shows_its_interface_and_operators() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let text = bench.run("inspect m.onnx").stdout;
    assert!(text.contains("opset ai.onnx 17 · ir 8 · 3 nodes, 3 operators · 32 B weights"), "{text}");
    assert!(text.contains("input    x f32[rows,3]\noutput   y f32[rows,2]\n"), "{text}");
    assert!(text.contains("operators Add 1, MatMul 1, Relu 1\n"), "{text}");
}

#[test]
fn json_has_the_same() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let json = bench.json("inspect m.onnx");
    assert_eq!(json["schema"], "precast.inspect/1");
    assert_eq!(json["kind"], "model");
    assert_eq!(json["inputs"], json!([{ "name": "x", "dtype": "f32", "dims": ["rows", 3] }]));
    assert_eq!(json["operators"], json!({ "Add": 1, "MatMul": 1, "Relu": 1 }));
}

#[test]
fn text_is_the_graph_of_each_stage() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let imported = bench.run("inspect m.onnx --text").stdout;
    assert!(imported.starts_with("graph ") && imported.contains("f32[rows,3]"), "{imported}");
    let canonical = bench.run("inspect m.onnx --text --stage canonical").stdout;
    assert!(canonical.contains("f32[rows,3]"), "{canonical}");
    let fused = bench.run("inspect m.onnx --text --stage fused --dim rows=5").stdout;
    assert!(fused.contains("f32[5,3]"), "{fused}");
}

#[test]
fn a_program_shows_its_numerics_and_takes_no_others() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let compiled = bench.json("compile m.onnx -o p --numerics strict");
    assert_eq!(compiled["numerics"]["rounding"], json!("strict"));
    let text = bench.run("inspect p").stdout;
    assert!(
        text.contains("\nnumerics activations f32 · fast-math none · floats f32 · rounding strict · weights f32\n"),
        "{text}"
    );
    assert_eq!(bench.json("run p --seed 7")["outputs"], bench.json("run m.onnx --seed 7 --numerics strict")["outputs"]);
    let outcome = bench.run("run p --numerics strict");
    assert_eq!(outcome.exit, 2);
    assert!(outcome.stderr.contains("'p' is a Program file, compiled already"), "{}", outcome.stderr);
}

#[test]
fn a_program_shows_its_steps() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o p --dim rows=2");
    let text = bench.run("inspect p").stdout;
    assert!(text.contains("bucket   rows=2\n") && text.contains("input    x f32[2,3]\n"), "{text}");
    assert!(text.contains("make_product"), "{text}");
    let json = bench.json("inspect p");
    assert_eq!((&json["kind"], &json["bucket"]["rows"]), (&json!("program"), &json!(2)));
    assert!(json["explain"].as_array().is_some_and(|steps| !steps.is_empty()));
    assert!(bench.run("inspect p --text").stdout.starts_with("graph "));
}
