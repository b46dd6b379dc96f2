//! `check` gives a verdict, with every reason at once.

use serde_json::json;

use crate::{Bench, models};

#[test]
fn a_supported_model_shows_which_inputs_have_each_dim() {
    let bench = Bench::with_model("m.onnx", &models::embedding());
    let outcome = bench.run("check m.onnx");
    assert_eq!(outcome.exit, 0);
    assert!(
        outcome.stdout.contains("dims     length  ids[1] mask[1]\n         n  ids[0] mask[0]\n"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.ends_with("verdict  supported on cpu\n"));
    let json = bench.json("check m.onnx");
    assert_eq!((&json["schema"], &json["supported"]), (&json!("precast.check/1"), &json!(true)));
}

#[test]
fn all_unsupported_nodes_are_listed_at_once() {
    let bench = Bench::with_model("m.onnx", &models::unsupported());
    let outcome = bench.run("check m.onnx");
    assert_eq!(outcome.exit, 3);
    assert!(outcome.stdout.contains("Frobnicate") && outcome.stdout.contains("Whirl"), "{}", outcome.stdout);
    let outcome = bench.run("check m.onnx --json");
    assert_eq!(outcome.exit, 3);
    let json = outcome.json();
    assert_eq!(json["supported"], json!(false));
    let operators: Vec<&str> =
        json["unsupported"].as_array().unwrap().iter().map(|node| node["operator"].as_str().unwrap()).collect();
    assert_eq!(operators, ["Frobnicate", "Whirl"]);
}
