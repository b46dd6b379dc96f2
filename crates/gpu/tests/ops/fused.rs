//! Fused bodies that are not elementwise run node by node.

use precast_ir::op::{
    Binary, BinaryFn, Concat, Gather, LayerNorm, Op, Reduce, ReduceFn, ScatterFn, ScatterNd, Softmax, Transpose, Unary,
    UnaryFn,
};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, check_none, numbers, of_values};

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
