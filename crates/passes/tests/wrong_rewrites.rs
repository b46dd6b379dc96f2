//! Rewrites that other systems got wrong (specs/compiler.md §5): each graph of `graphs/wrong` means the same after every
//! pass alone and after the pipeline, on the inputs of the report and on random ones.
//!
//! W19 and W21 are about folding quantised convolutions, W24 about the algebra of Dims, W28 about a buffer: no pass here
//! does such a thing, and Dims and buffers have their own tests.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod meaning;

use std::path::Path;

use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, text};
use precast_passes::{CANONICAL, FUSED, FastMath, Numerics, PassOptions, run_passes};
use precast_tensor::{Tensor, Type};

/// Rows of the table that have no graph here.
const WITHOUT_GRAPH: [usize; 4] = [19, 21, 24, 28];
const ROWS: usize = 37;

#[test]
fn no_pass_makes_the_mistakes_of_others() {
    for row in (1..=ROWS).filter(|row| !WITHOUT_GRAPH.contains(row)) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/wrong/W{row:02}.ir"));
        let content = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("W{row}: {error}"));
        check(row, &content);
    }
}

/// W7 and W9 are rewrites of class F: by name they are allowed, and then do what the report says.
#[test]
fn what_is_wrong_unasked_is_done_if_it_is_named() {
    for (row, names, changed) in [(7, "zero", vec![0.0, 0.0, 0.0]), (9, "log-exp", vec![100.0])] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/graphs/wrong/W{row:02}.ir"));
        let content = std::fs::read_to_string(&path).unwrap();
        let (_, rest) = content.split_once('\n').unwrap();
        let (graph, values) = rest.split_once("=>\n").unwrap();
        let graph = text::parse(graph, &NoConstants).unwrap();
        let given = values.lines().find_map(|line| line.strip_prefix("in")).unwrap();
        let given: Vec<f64> = given.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let inputs = [tensor(graph.ty(graph.inputs()[0]), &given)];
        let run = |fast_math: FastMath| {
            let numerics = Numerics { fast_math, ..Numerics::default() };
            let options = PassOptions { numerics, ..PassOptions::default() };
            let canonical = run_passes(&graph, CANONICAL, &options).unwrap();
            elements(&run_passes(&canonical, FUSED, &options).unwrap(), &inputs)
        };
        assert!(is_same(&run(FastMath::default()), &elements(&graph, &inputs)), "W{row}");
        assert_eq!(run(names.parse().unwrap())[0], changed, "W{row}");
    }
}

fn check(row: usize, content: &str) {
    let (_, rest) = content.split_once('\n').unwrap();
    let (graph, values) = rest.split_once("=>\n").unwrap();
    let graph = text::parse(graph, &NoConstants).unwrap_or_else(|error| panic!("W{row}: {error}"));
    let lines = |word: &str| -> Vec<Vec<f64>> {
        let own = values.lines().filter_map(|line| line.strip_prefix(word));
        own.map(|line| line.split_whitespace().map(|number| number.parse().unwrap()).collect()).collect()
    };
    let inputs: Vec<Tensor> =
        graph.inputs().iter().zip(lines("in")).map(|(&input, elements)| tensor(graph.ty(input), &elements)).collect();
    assert_eq!(inputs.len(), graph.inputs().len(), "W{row}");
    let expected = elements(&graph, &inputs);
    let listed = lines("out");
    if !listed.is_empty() {
        assert!(is_same(&expected, &listed), "W{row}: {expected:?} where {listed:?} is right");
    }
    let options = PassOptions::default();
    let mut changed: Vec<(&str, Graph)> = CANONICAL
        .iter()
        .chain(FUSED)
        .map(|pass| (pass.name, run_passes(&graph, std::slice::from_ref(pass), &options).unwrap()))
        .collect();
    let canonical = run_passes(&graph, CANONICAL, &options).unwrap();
    changed.push(("the pipeline", run_passes(&canonical, FUSED, &options).unwrap()));
    for (name, changed) in changed {
        let found = elements(&changed, &inputs);
        assert!(is_same(&found, &expected), "W{row}, {name}: {found:?} where {expected:?} is right\n{changed}");
        meaning::assert_same(&graph, &changed, format!("W{row}, {name}"));
    }
}

fn tensor(ty: &Type, elements: &[f64]) -> Tensor {
    let shape = ty.shape().unwrap();
    if ty.dtype.is_float() {
        return Tensor::from_f64(ty.dtype, shape, elements, false).unwrap();
    }
    let integers: Vec<i128> = elements.iter().map(|&element| element as i128).collect();
    Tensor::from_i128(ty.dtype, shape, &integers).unwrap()
}

fn elements(graph: &Graph, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    eval_graph(graph, inputs).unwrap().iter().map(Tensor::to_f64_vec).collect()
}

/// Equal but for the last bits that a rewrite of class R may change.
fn is_same(found: &[Vec<f64>], expected: &[Vec<f64>]) -> bool {
    let is_near = |a: &f64, b: &f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-6 * b.abs();
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(a, b)))
}
