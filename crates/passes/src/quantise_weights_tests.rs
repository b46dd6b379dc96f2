//! Graphs whose weights are too large to be written in a file.

use precast_ir::eval::eval_graph;
use precast_ir::op::{Binary, BinaryFn, Matmul, Unary, UnaryFn};
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{DType, Dim, Symbol, Tensor, Type};

use crate::dynamic_product::dynamic_product_len;
use crate::numerics::{Numerics, WeightPrecision};
use crate::pipeline::{FUSED, PassOptions, run_passes, run_passes_with};
use crate::{Grade, pad_verdict};

fn options(weights: WeightPrecision) -> PassOptions {
    PassOptions { numerics: Numerics { weights, ..Numerics::default() }, ..PassOptions::default() }
}

/// Numbers between -1 and 1 that repeat after none of the sizes used here.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// gelu(x · W + b) + x2, W as `transpose_b` wants it.
fn graph(rows: Dim, depth: usize, columns: usize, transpose_b: bool) -> Graph {
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [rows.clone(), Dim::from(depth)]));
    let residual = graph.add_input("r", Type::new(DType::F32, [rows, Dim::from(columns)]));
    let shape = if transpose_b { [columns, depth] } else { [depth, columns] };
    let weights = graph.add_constant(Tensor::from_vec(shape, numbers(depth * columns)).unwrap());
    let bias = graph.add_constant(Tensor::from_vec([columns], numbers(columns)).unwrap());
    let mut add = |op: Op, inputs: &[ValueId]| graph.add(op, inputs, &Default::default()).unwrap();
    let product = add(Matmul { transpose_a: false, transpose_b }.into(), &[x, weights]);
    let sum = add(Binary { func: BinaryFn::Add }.into(), &[product, bias]);
    let active = add(Unary { func: UnaryFn::GeluErf, alpha: 0.0, beta: 0.0 }.into(), &[sum]);
    let y = add(Binary { func: BinaryFn::Add }.into(), &[active, residual]);
    graph.add_output("y", y);
    graph
}

fn fused(graph: &Graph, weights: WeightPrecision) -> Graph {
    run_passes(graph, FUSED, &options(weights)).unwrap()
}

fn body(graph: &Graph) -> &Graph {
    let [node] = graph.nodes() else { panic!("{graph}") };
    let Op::Fused(fused) = &node.op else { panic!("{graph}") };
    &fused.body
}

#[test]
fn a_product_and_its_epilogue_become_one_8_bit_step_that_is_near() {
    for transpose_b in [false, true] {
        let before = graph(Dim::from(5), 64, 48, transpose_b);
        let after = fused(&before, WeightPrecision::Int8);
        assert_eq!(dynamic_product_len(body(&after)), Some(16), "{after}");
        let inputs =
            [Tensor::from_vec([5, 64], numbers(5 * 64)).unwrap(), Tensor::from_vec([5, 48], numbers(5 * 48)).unwrap()];
        let wanted = eval_graph(&before, &inputs).unwrap()[0].to_f64_vec();
        let found = eval_graph(&after, &inputs).unwrap()[0].to_f64_vec();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = dot(&wanted, &found) / (dot(&wanted, &wanted) * dot(&found, &found)).sqrt();
        assert!(cosine > 0.9999, "{cosine}");
        assert!(wanted != found, "nothing was rounded");
    }
}

#[test]
fn nothing_is_quantised_unasked() {
    let before = graph(Dim::from(5), 64, 48, false);
    let after = fused(&before, WeightPrecision::F32);
    assert_eq!(dynamic_product_len(body(&after)), None);
    assert!(after.values().iter().all(|value| value.ty.dtype == DType::F32), "{after}");
}

#[test]
fn what_does_not_pay_or_fit_stays_with_its_reason() {
    let nan = {
        let mut graph = Graph::new("");
        let x = graph.add_input("x", Type::new(DType::F32, [2, 64]));
        let mut elements = numbers(64 * 64);
        elements[77] = f32::NAN;
        let weights = graph.add_constant(Tensor::from_vec([64, 64], elements).unwrap());
        let matmul = Matmul { transpose_a: false, transpose_b: false };
        let y = graph.add(matmul, &[x, weights], &Default::default()).unwrap();
        graph.add_output("y", y);
        graph
    };
    let computed = {
        let mut graph = Graph::new("");
        let x = graph.add_input("x", Type::new(DType::F32, [64, 64]));
        let matmul = Matmul { transpose_a: false, transpose_b: false };
        let y = graph.add(matmul, &[x, x], &Default::default()).unwrap();
        graph.add_output("y", y);
        graph
    };
    let small = graph(Dim::from(5), 64, 16, false);
    for (before, reason) in [(small, "too-small"), (nan, "not-finite"), (computed, "no-constant-matrix")] {
        let mut reasons = Vec::new();
        run_passes_with(&before, FUSED, &options(WeightPrecision::Int8), &mut |report| {
            if report.pass == super::PASS.name {
                assert!(report.fired.is_empty());
                reasons.extend(report.refused.iter().map(|(reason, _)| *reason));
            }
        })
        .unwrap();
        assert_eq!(reasons, [reason]);
    }
}

#[test]
fn rows_stay_independent_of_one_another() {
    let batch = Symbol::new("n");
    let before = graph(Dim::from(batch.clone()), 64, 48, false);
    let after = fused(&before, WeightPrecision::Int8);
    assert!(dynamic_product_len(body(&after)).is_some());
    assert_eq!(pad_verdict(&after, &batch).grade, Grade::Independent);
}
