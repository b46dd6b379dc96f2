//! Fused bodies that are not elementwise run node by node.

use precast_ir::op::{
    Binary, BinaryFn, Concat, Gather, LayerNorm, Matmul, Op, Reduce, ReduceFn, RmsNorm, ScatterFn, ScatterNd, Softmax,
    Transpose, Unary, UnaryFn,
};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, check_none, launch_count, numbers, of_values};

struct Body {
    graph: Graph,
    inputs: Vec<Tensor>,
}

impl Body {
    fn new(inputs: &[Tensor]) -> Body {
        let mut graph = Graph::new("");
        for input in inputs {
            graph.add_input("", input.type_());
        }
        Body { graph, inputs: inputs.to_vec() }
    }

    fn add(&mut self, op: impl Into<Op>, operands: &[u32]) -> u32 {
        let operands: Vec<ValueId> = operands.iter().map(|&operand| ValueId(operand)).collect();
        self.graph.add(op, &operands, &Default::default()).unwrap().0
    }

    fn finish(mut self, name: &str, outputs: &[u32]) -> Case {
        for &output in outputs {
            self.graph.add_output("", ValueId(output));
        }
        Case::fused(name, self.graph, &self.inputs)
    }
}

#[test]
fn bodies_run_node_by_node() {
    let x = |shape: &[usize], seed| numbers(DType::F32, shape, seed, -1.0, 1.0);
    let indices = numbers(DType::I64, &[5], 3, 0.0, 4.0);

    let mut body = Body::new(&[x(&[4, 8], 1), x(&[4, 6], 2), indices.clone()]);
    let first = body.add(Gather { axis: 0 }, &[0, 2]);
    let second = body.add(Gather { axis: 0 }, &[1, 2]);
    let joined = body.add(Concat { axis: 1 }, &[first, second]);
    let lookups = body.finish("lookups", &[joined]);

    let mut body = Body::new(&[x(&[2, 3, 4, 4], 1), x(&[4], 2)]);
    let mean = body.add(Reduce { func: ReduceFn::Mean, axes: vec![2], keep_dims: true }, &[0]);
    let shifted = body.add(Binary { func: BinaryFn::Sub }, &[0, mean]);
    let normal = body.add(LayerNorm { axis: 3, epsilon: 1e-5 }, &[shifted, 1]);
    let soft = body.add(Softmax { axis: 1, log: false }, &[normal]);
    let turned = body.add(Transpose { perm: vec![0, 1, 3, 2] }, &[soft]);
    let chain = body.finish("chain", &[turned, shifted]);

    let mut body = Body::new(&[x(&[4, 8], 1), indices, x(&[5, 8], 2)]);
    let rows = body.graph.add_constant(of_values(DType::I64, &[5, 1], &[0.0, 1.0, 1.0, 3.0, 1.0])).0;
    let scattered = body.add(ScatterNd { func: ScatterFn::Replace }, &[0, rows, 2]);
    let picked = body.add(Gather { axis: 0 }, &[scattered, 1]);
    let scatter = body.finish("scatter", &[picked]);

    let cases = [lookups, chain.clone(), chain.channels_last(), scatter];
    check(&cases, PLAIN);
    check(&cases, WIDE);
    check(&cases, INDIRECT);
}

#[test]
fn a_body_that_returns_its_input_has_no_kernel() {
    let mut body = Body::new(&[numbers(DType::F32, &[3], 1, 0.0, 1.0)]);
    let sum = body.add(Reduce { func: ReduceFn::Sum, axes: vec![0], keep_dims: true }, &[0]);
    let root = body.add(Unary { func: UnaryFn::Sqrt, alpha: 0.0, beta: 0.0 }, &[sum]);
    check_none(&body.finish("same", &[root, 0]));
}

/// A body of a decoder's step: rows that may be normed, one product or two, and what follows.
fn stream_case(dtype: DType, [m, n, k]: [usize; 3], is_normed: bool, is_gated: bool, transpose_b: bool) -> Case {
    let shape = if transpose_b { [n, k] } else { [k, n] };
    let mut inputs = vec![numbers(dtype, &[1, m, k], 1, -1.0, 1.0), numbers(dtype, &[k], 2, 0.5, 1.5)];
    inputs.extend([3, 4].map(|seed| numbers(dtype, &shape, seed, -0.5, 0.5)));
    inputs.push(numbers(dtype, &[1, m, n], 5, -1.0, 1.0));
    let mut body = Body::new(&inputs);
    let x = if is_normed { body.add(RmsNorm { axis: 2, epsilon: 1e-5 }, &[0, 1]) } else { 0 };
    let matmul = || Matmul { transpose_a: false, transpose_b };
    let mut y = body.add(matmul(), &[x, 2]);
    if is_gated {
        let other = body.add(matmul(), &[x, 3]);
        let gate = body.add(Unary { func: UnaryFn::Silu, alpha: 1.0, beta: 0.0 }, &[y]);
        y = body.add(Binary { func: BinaryFn::Mul }, &[gate, other]);
    } else {
        y = body.add(Binary { func: BinaryFn::Add }, &[y, 4]);
    }
    body.graph.add_output("", ValueId(y));
    let name = format!("stream {dtype} {m}x{n}x{k} normed {is_normed} gated {is_gated} turned {transpose_b}");
    Case::fused_with_constants(&name, body.graph, &inputs, &[1, 2, 3])
}

#[test]
fn products_of_few_rows_take_along_what_is_around_them() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (mnk, transpose_b) in [([1, 40, 72], false), ([2, 70, 520], true), ([8, 9, 33], false)] {
            for (is_normed, is_gated) in [(true, true), (true, false), (false, true), (false, false)] {
                cases.push(stream_case(dtype, mnk, is_normed, is_gated, transpose_b));
            }
        }
        // Columns enough for several of each warp.
        cases.push(stream_case(dtype, [1, 300, 16], true, false, true));
        cases.push(stream_case(dtype, [3, 150, 2304], true, true, true));
    }
    for case in &cases {
        let is_alone = case.name.contains("f32") && case.name.contains("normed false gated false");
        assert!(is_alone || launch_count(case) == 1, "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..14], WIDE);
    check(&cases[..4], INDIRECT);
}
