//! H3: onnx CVE-2025-51480, CVE-2024-5187: names chosen by a model decide what is written where.

use std::fs;

use precast_onnx::proto::ValueInfoProto;

use crate::Bench;
use crate::model::{encode, external, graph, node};

#[test]
fn outputs_stay_inside_the_folder_that_was_named() {
    let bench = Bench::new();
    let names = ["../escaped", "/escaped", "..", ".", "a/../../b", "c:\\d", "e\u{1b}[2J", "../model/data", "x"];
    let nodes = names.iter().map(|name| node("Identity", &["w"], &[name], vec![])).collect();
    let mut graph = graph(nodes, vec![external(&[("location", "data")])]);
    let output = |name: &&str| ValueInfoProto { name: name.to_string(), ..ValueInfoProto::default() };
    graph.output = names.iter().map(output).collect();
    fs::write(bench.path("m.onnx"), encode(graph)).unwrap();
    let before: Vec<u8> = fs::read(bench.path("data")).unwrap();
    let outcome = bench.run("run m.onnx --output out");
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
    assert_eq!(listed(bench.outer()), ["model", "outside"]);
    assert_eq!(listed(&bench.path("")), ["data", "m.onnx", "out", "sub"]);
    assert_eq!(listed(&bench.path("out")).len(), names.len());
    assert_eq!(fs::read(bench.path("data")).unwrap(), before);
    assert!(!outcome.stdout.contains('\u{1b}'), "a control character reached the terminal");
}

fn listed(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
