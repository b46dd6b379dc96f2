//! Random graphs mean the same before and after every pass, and before and after the whole pipeline.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod meaning;

use meaning::Random;
use precast_ir::op::{
    Binary, BinaryFn, Cast, Clamp, Compare, CompareFn, Concat, Matmul, Reduce, ReduceFn, Reshape, Select, Slice,
    Softmax, Transpose, Unary, UnaryFn,
};
use precast_ir::{Graph, ValueId};
use precast_passes::{CANONICAL, FUSED, PassOptions, run_passes};
use precast_tensor::{DType, Dim, Tensor, Type};

const GRAPHS: u64 = 400;
const NODES: usize = 14;

#[test]
fn passes_keep_the_meaning_of_random_graphs() {
    for seed in 0..GRAPHS {
        let graph = random_graph(&mut Random(seed * 7919 + 1));
        for pass in CANONICAL.iter().chain(FUSED) {
            let changed = run_passes(&graph, std::slice::from_ref(pass), &PassOptions::default())
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{graph}"));
            meaning::assert_same(&graph, &changed, format!("seed {seed}, pass {}", pass.name));
        }
        let canonical = run_passes(&graph, CANONICAL, &PassOptions::default()).unwrap();
        let fused = run_passes(&canonical, FUSED, &PassOptions::default()).unwrap();
        meaning::assert_same(&graph, &fused, format!("seed {seed}, pipeline"));
    }
}

/// A graph of up to `NODES` nodes over values of a few shapes; the last values are its outputs.
fn random_graph(random: &mut Random) -> Graph {
    let mut graph = Graph::new("random");
    let shapes: [&[usize]; 4] = [&[2, 3, 4], &[3, 4], &[4, 4], &[1, 3, 1]];
    let mut values: Vec<ValueId> = Vec::new();
    for (position, shape) in shapes.iter().enumerate() {
        let ty = Type::new(DType::F32, shape.iter().copied());
        values.push(graph.add_input(format!("x{position}"), ty.clone()));
        let constant = random.tensor(&ty);
        values.push(graph.add_constant(constant));
    }
    for number in [0.0, 1.0, 0.5, -0.0] {
        values.push(graph.add_constant(Tensor::scalar(number as f32)));
    }
    for _ in 0..NODES {
        if let Some(value) = random_node(&mut graph, random, &values) {
            values.push(value);
        }
    }
    for (position, &value) in values.iter().rev().take(3).enumerate() {
        graph.add_output(format!("y{position}"), value);
    }
    graph
}

/// One node on random operands, if its op takes them.
fn random_node(graph: &mut Graph, random: &mut Random, values: &[ValueId]) -> Option<ValueId> {
    let a = values[random.next(values.len() as u64) as usize];
    let b = values[random.next(values.len() as u64) as usize];
    let rank = graph.ty(a).rank();
    let none = Default::default();
    let pick = |random: &mut Random, list: &[UnaryFn]| list[random.next(list.len() as u64) as usize];
    let result = match random.next(14) {
        0..=2 => {
            let funcs = [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Sub, BinaryFn::Max, BinaryFn::Min];
            let func = funcs[random.next(funcs.len() as u64) as usize];
            graph.add(Binary { func }, &[a, b], &none)
        }
        3 | 4 => {
            let func = pick(random, &[UnaryFn::Relu, UnaryFn::Sigmoid, UnaryFn::Tanh, UnaryFn::Neg, UnaryFn::Abs]);
            graph.add(Unary { func, alpha: 0.0, beta: 0.0 }, &[a], &none)
        }
        5 if rank > 0 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.rotate_left(1 + random.next(2) as usize % rank.max(1));
            graph.add(Transpose { perm }, &[a], &none)
        }
        6 => {
            let count = graph.ty(a).element_count();
            graph.add(Reshape { shape: vec![Dim::from(1), count] }, &[a], &none)
        }
        7 if rank > 0 => {
            let func = if random.next(2) == 0 { ReduceFn::Max } else { ReduceFn::Mean };
            graph.add(Reduce { func, axes: vec![rank - 1], keep_dims: random.next(2) == 0 }, &[a], &none)
        }
        8 => graph.add(Matmul { transpose_a: false, transpose_b: random.next(2) == 0 }, &[a, b], &none),
        9 if rank > 0 => graph.add(Concat { axis: 0 }, &[a, a], &none),
        10 => {
            let condition = graph.add(Compare { func: CompareFn::Lt }, &[a, b], &none).ok()?;
            graph.add(Select {}, &[condition, a, b], &none)
        }
        11 => graph.add(Clamp { lo: -1.0, hi: 1.0 }, &[a], &none),
        12 if rank > 0 => {
            let size = graph.ty(a).dims.clone();
            graph.add(Slice { start: vec![Dim::from(0); rank], step: vec![1; rank], size }, &[a], &none)
        }
        13 if rank > 0 => graph.add(Softmax { axis: rank - 1, log: false }, &[a], &none),
        _ => {
            let wide = graph.add(Cast { to: DType::F64, saturate: true }, &[a], &none).ok()?;
            graph.add(Cast { to: DType::F32, saturate: true }, &[wide], &none)
        }
    };
    result.ok()
}
