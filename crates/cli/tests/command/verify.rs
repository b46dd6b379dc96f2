//! `verify` tells equal from different by its exit code, and says where.

use std::os::unix::fs::PermissionsExt;

use precast::Tensor;
use precast::npy::write_npz;
use serde_json::json;

use crate::{Bench, models};

#[test]
fn a_model_equals_its_reference() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let outcome = bench.run("verify m.onnx --per-step --bisect");
    assert_eq!(outcome.exit, 0, "{}{}", outcome.stdout, outcome.stderr);
    assert!(outcome.stdout.contains("none diverges\nverdict  equal within tolerance\n"), "{}", outcome.stdout);
    let json = bench.json("verify m.onnx --per-step");
    assert_eq!((&json["schema"], &json["equal"]), (&json!("precast.verify/1"), &json!(true)));
    assert!(json["first_diverging_step"].is_null() && json["steps"].is_array());
}

#[test]
fn a_device_without_captures_says_so() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let outcome = bench.run("verify m.onnx --replay --capture off");
    assert_eq!(outcome.exit, 2);
    assert!(outcome.stderr.contains("the Program is not replayed on this device (no-captures)"), "{}", outcome.stderr);
}

#[test]
fn saved_outputs_that_differ_end_with_4() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    bench.json("run m.onnx --input x=ones --output y.npz");
    assert_eq!(bench.run("verify m.onnx --input x=ones --against y.npz").exit, 0);
    let outcome = bench.run("verify m.onnx --input x=zeros --against y.npz");
    assert_eq!(outcome.exit, 4);
    assert!(outcome.stdout.contains("DIFFER   y f32[1,2]"), "{}", outcome.stdout);
    assert_eq!(bench.run("verify m.onnx --input x=zeros --against y.npz --atol 100").exit, 0);
    let json = bench.run("verify m.onnx --input x=zeros --against y.npz --json");
    assert_eq!((json.exit, &json.json()["equal"]), (4, &json!(false)));
}

#[test]
fn other_names_types_or_shapes_differ() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let cases = [
        ("z", Tensor::from_vec([1, 2], vec![0.75_f32, 0.5]).unwrap()),
        ("y", Tensor::from_vec([2], vec![0.75_f32, 2.5]).unwrap()),
        ("y", Tensor::from_vec([1, 2], vec![0.75_f64, 2.5]).unwrap()),
    ];
    for (name, tensor) in cases {
        write_npz(std::fs::File::create(bench.path("y.npz")).unwrap(), &[(name.to_string(), tensor)]).unwrap();
        assert_eq!(bench.run("verify m.onnx --input x=ones --against y.npz --rel 1e9").exit, 4);
    }
}

#[test]
fn without_onnxruntime_the_other_side_is_unreachable() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let outcome = bench.run("verify m.onnx --against onnxruntime --python ./absent");
    assert_eq!(outcome.exit, 9);
    assert!(outcome.stderr.contains("cannot start './absent'"), "{}", outcome.stderr);
    bench.write("python", b"#!/bin/sh\necho No module named onnxruntime >&2\nexit 77\n");
    std::fs::set_permissions(bench.path("python"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = bench.run("verify m.onnx --against onnxruntime --python ./python");
    assert_eq!(outcome.exit, 9);
    assert!(outcome.stderr.contains("onnxruntime is not installed for './python'"), "{}", outcome.stderr);
}
