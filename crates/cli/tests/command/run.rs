//! `run` reads arrays, runs, and writes arrays.

use precast::npy::{write_npy, write_npz};
use precast::{Tensor, read_archive, read_tensor};
use prost::Message;
use serde_json::json;

use crate::{Bench, models};

/// What the affine model gives for x = [1, 2, 3].
const X: [f32; 3] = [1.0, 2.0, 3.0];
const Y: [f32; 2] = [1.0 + 1.0 - 3.0 + 0.25, -2.0 + 6.0 + 6.0 - 0.5];

fn expected() -> Tensor {
    Tensor::from_vec([1, 2], Y.map(|y| y.max(0.0)).to_vec()).unwrap()
}

fn bench_with_inputs() -> Bench {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let x = Tensor::from_vec([1, 3], X.to_vec()).unwrap();
    write_npy(std::fs::File::create(bench.path("x.npy")).unwrap(), &x).unwrap();
    write_npz(std::fs::File::create(bench.path("x.npz")).unwrap(), &[("x".to_string(), x)]).unwrap();
    let proto = precast_onnx::proto::TensorProto {
        dims: vec![1, 3],
        data_type: 1,
        float_data: X.to_vec(),
        ..Default::default()
    };
    bench.write("x.pb", &proto.encode_to_vec());
    bench
}

#[test]
fn inputs_come_from_every_kind_of_file() {
    let bench = bench_with_inputs();
    for input in ["x=x.npy", "x=x.npz", "x.npz", "x=x.pb"] {
        let json = bench.json(&format!("run m.onnx --input {input} --output y.npz"));
        assert_eq!(json["schema"], "precast.run/1");
        assert_eq!(read_tensor(&bench.path("y.npz"), "y", None).unwrap(), expected(), "{input}");
    }
}

#[test]
fn made_up_inputs_are_announced_and_depend_on_the_seed() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let outcome = bench.run("run m.onnx --seed 3");
    assert!(outcome.stderr.contains("inputs nobody gave are random (--seed 3): x;"), "{}", outcome.stderr);
    let outputs = |arguments: &str| bench.json(arguments)["outputs"].clone();
    assert_eq!(outputs("run m.onnx --seed 3"), outputs("run m.onnx --seed 3"));
    assert_ne!(outputs("run m.onnx --seed 3"), outputs("run m.onnx --seed 4"));
    assert_eq!(outputs("run m.onnx --input x=zeros")[0]["first"], json!([0.25, 0.0]));
    assert_eq!(outputs("run m.onnx --input x=ones --dim rows=2")[0]["shape"], json!([2, 2]));
}

#[test]
fn integers_and_booleans_are_printed_as_such() {
    let bench = Bench::with_model("m.onnx", &models::embedding());
    let json = bench.json("run m.onnx --input ids=ones --input mask=zeros --dim length=2");
    assert_eq!(json["outputs"][0]["first"], json!([3.0, 4.0, 3.0, 4.0]));
    assert_eq!(json["outputs"][1]["first"], json!([true, true]));
}

#[test]
fn outputs_can_go_to_a_folder() {
    let bench = bench_with_inputs();
    bench.json("run m.onnx --input x=x.npy --output out");
    assert_eq!(read_tensor(&bench.path("out/y.npy"), "y", None).unwrap(), expected());
    assert_eq!(bench.names(), ["m.onnx", "out", "x.npy", "x.npz", "x.pb"]);
}

#[test]
fn an_output_archive_is_an_input_archive() {
    let bench = Bench::with_model("m.onnx", &models::positions());
    let json = bench.json("run m.onnx --input x=ones --dim n=3 --output y.npz");
    assert_eq!(json["outputs"][0]["first"], json!([0, 1, 2]));
    let arrays = read_archive(&bench.path("y.npz"), |_| None).unwrap();
    assert_eq!(arrays, [("y".to_string(), Tensor::from_vec([1, 3], vec![0_i64, 1, 2]).unwrap())]);
}

#[test]
fn guessed_sizes_that_do_not_fit_are_replaced() {
    let bench = Bench::with_model("m.onnx", &models::needs_80_channels());
    let outcome = bench.run("run m.onnx --input x=ones");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("used instead: --dim channels=80 --dim n=1\n"), "{}", outcome.stderr);
    assert_eq!(bench.run("run m.onnx --dim channels=81").exit, 3);
}

#[test]
fn strings_and_sequences_are_shown_and_strings_are_not_saved() {
    let bench = Bench::with_model("m.onnx", &models::names());
    let outcome = bench.run("run m.onnx --input ids=ones --dim n=2");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
    let dog = r#"name  string[2]  ["dog\u{1b}[31m", "dog\u{1b}[31m"]"#;
    assert!(outcome.stdout.contains(dog), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("pair  sequence of 2\npair[0]  i64[2]"), "{}", outcome.stdout);
    let json = bench.json("run m.onnx --input ids=zeros --dim n=1");
    assert_eq!(json["outputs"][0], json!({ "name": "name", "dtype": "string", "shape": [1], "first": ["cat"] }));
    assert_eq!(json["outputs"][1]["elements"][1]["first"], json!([0]));
    let outcome = bench.run("run m.onnx --input ids=ones --dim n=2 --output y.npz");
    assert_eq!(outcome.exit, 2);
    assert!(outcome.stderr.contains("'name' is a tensor of strings"), "{}", outcome.stderr);
}
