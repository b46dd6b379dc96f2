//! `perf` measures models and Program files.

use serde_json::json;

use crate::{Bench, models};

const SHORT: &str = "--warmUp 0 --iterations 7";

#[test]
fn json_has_latencies_in_order() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let json = bench.json(&format!("perf m.onnx --dim rows=2 {SHORT} --per-step"));
    assert_eq!((&json["schema"], &json["threads"], &json["runs"]), (&json!("precast.perf/1"), &json!(1), &json!(7)));
    let latency = |name: &str| json["latency_ms"][name].as_f64().unwrap();
    let ordered = ["min", "p50", "p90", "p95", "p99", "max"].map(latency);
    assert!(ordered.is_sorted() && ordered[0] > 0.0 && latency("mean") > 0.0, "{ordered:?}");
    assert!(json["first_ms"].as_f64().unwrap() >= json["compile_ms"].as_f64().unwrap());
    assert!(json["steps"][0]["kernel"].is_string() && json["kernels"][0]["share"].is_number());
    assert_eq!(json["inputs"], json!([{ "name": "x", "dtype": "f32", "shape": [2, 3] }]));
}

#[test]
fn batches_are_measured_one_after_another() {
    let bench = Bench::with_model("m.onnx", &models::embedding());
    let json = bench.json(&format!("perf m.onnx --batches 1,3,7 {SHORT}"));
    let shapes: Vec<_> = json["batches"].as_array().unwrap().iter().map(|row| &row["inputs"][0]["shape"]).collect();
    assert_eq!(shapes, [&json!([1, 64]), &json!([3, 64]), &json!([7, 64])]);
    assert_eq!(json["batches"][1]["batch"], json!(3));
    let text = bench.run(&format!("perf m.onnx --batches 1,3 {SHORT}")).stdout;
    assert!(text.contains("min ms       p50"), "{text}");
}

#[test]
fn programs_and_models_in_parts_are_measured_too() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("compile m.onnx -o p --isa portable");
    let json = bench.json(&format!("perf p {SHORT}"));
    assert_eq!((&json["runs"], &json["isa"]), (&json!(7), &json!("portable")));
    assert_eq!(bench.run(&format!("perf p --batches 1,2 {SHORT}")).exit, 2);
    let bench = Bench::with_model("m.onnx", &models::positions());
    let json = bench.json(&format!("perf m.onnx {SHORT}"));
    assert!(json["program"].is_null() && json["latency_ms"]["p50"].is_number());
    assert_eq!(bench.run(&format!("perf m.onnx --per-step {SHORT}")).exit, 3);
}

#[test]
fn a_ragged_stream_runs_on_buckets_and_the_cache_keeps_them() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let command = "perf m.onnx --max-batch 4 --batches 1..9 --duration 0 --iterations 60 --cache programs";
    let first = bench.json(command);
    assert_eq!((&first["buckets"], &first["compiles"]), (&json!([1, 2, 4]), &json!(3)));
    // How many ran before the other Buckets were there depends on the machine.
    assert!((1..=3).contains(&first["buckets_ready"].as_u64().unwrap()), "{first}");
    let tiers: u64 = first["tiers"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(json!(tiers), first["requests"]);
    let rows: u64 = first["rows"].as_array().unwrap().iter().map(|row| row["runs"].as_u64().unwrap()).sum();
    assert_eq!(json!(rows), first["requests"]);
    assert_eq!(bench.json(command)["compiles"], json!(0));
    assert_eq!(bench.run("perf m.onnx --max-batch 4 --buckets 0").exit, 2);
    assert_eq!(bench.run("perf m.onnx --max-batch 4 --on-miss sometimes").exit, 2);
    assert_eq!(bench.run("perf m.onnx --batches 9..1").exit, 2);
}

#[test]
fn a_trace_has_every_step_of_every_run_in_order() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let json = bench.json("trace m.onnx --dim rows=2 -o t.json --runs 2");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(bench.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(json["events"], json!(events.len()));
    let steps: Vec<_> = events.iter().filter(|event| event["cat"] == "step").collect();
    assert_eq!((events.len() - steps.len(), steps[0]["ph"].as_str()), (2, Some("X")));
    assert!(steps.windows(2).all(|pair| pair[0]["ts"].as_f64() <= pair[1]["ts"].as_f64()));
    assert_eq!(bench.run("trace m.onnx -o no/such/folder/t.json").exit, 2);
}
