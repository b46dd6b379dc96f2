//! Random symbolic Graphs over most of the op table.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{
    ArgFn, ArgReduce, Binary, BinaryFn, Broadcast, Cast, Clamp, Compare, CompareFn, Concat, Conv, Cumulate, CumulateFn,
    DimValue, Fused, Gather, GatherElements, GatherNd, If, Iota, LayerNorm, Lrn, Matmul, Op, Pad, PadFn, Pool, PoolFn,
    PoolIndices, Quantize, Reduce, ReduceFn, Reshape, RmsNorm, ScatterElements, ScatterFn, ScatterNd, Select, Slice,
    Softmax, Topk, Transpose, Unary, UnaryFn,
};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Dim, Type};

use crate::meaning::Random;

const NODES: u64 = 9;

/// A Graph in which `n` is the first axis of most inputs, without nodes that reach no output.
pub fn random_graph(random: &mut Random) -> Graph {
    let mut graph = Graph::new("random");
    let n = || Dim::symbol("n");
    let float_shapes: [Vec<Dim>; 7] = [
        vec![n(), 3.into(), 4.into()],
        vec![n(), 4.into()],
        vec![3.into(), n(), 4.into()],
        vec![n(), 2.into(), 4.into(), 4.into()],
        vec![n()],
        vec![Dim::symbol("m"), 4.into()],
        vec![n() * 2, 4.into()],
    ];
    let int_shapes: [Vec<Dim>; 4] = [vec![n()], vec![n(), 2.into()], vec![n(), 3.into(), 4.into()], vec![2.into()]];
    let mut values: Vec<ValueId> = Vec::new();
    let inputs =
        float_shapes.map(|dims| (DType::F32, dims)).into_iter().chain(int_shapes.map(|dims| (DType::I64, dims)));
    for (position, (dtype, dims)) in inputs.enumerate() {
        values.push(graph.add_input(format!("x{position}"), Type { dtype, dims }));
    }
    for shape in [&[4, 4][..], &[3, 4], &[4], &[], &[2, 2, 3, 3]] {
        let constant = random.tensor(&Type::new(DType::F32, shape.iter().copied()));
        values.push(graph.add_constant(constant));
    }
    for _ in 0..2 + random.next(NODES) {
        if let Some(Ok(outputs)) = random_node(&mut graph, random, &values) {
            // Later values are chosen more often: chains are where rules meet.
            values.extend(outputs.iter().chain(&outputs).chain(&outputs));
        }
    }
    let outputs = 1 + random.next(2) as usize;
    for position in 0..outputs {
        let last = values.len() as u64 - 1;
        let value = values[(last - random.next(last.min(5))) as usize];
        graph.add_output(format!("y{position}"), value);
    }
    without_dead_nodes(&graph)
}

fn without_dead_nodes(graph: &Graph) -> Graph {
    let mut is_live = vec![false; graph.values().len()];
    graph.outputs().iter().for_each(|output| is_live[output.value.0 as usize] = true);
    for node in graph.nodes().iter().rev() {
        if node.outputs.iter().any(|output| is_live[output.0 as usize]) {
            node.inputs.iter().for_each(|input| is_live[input.0 as usize] = true);
        }
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes().iter().filter(|node| node.outputs.iter().any(|output| is_live[output.0 as usize])) {
        copy.node(node).unwrap();
    }
    copy.finish()
}

fn pick<T: Clone>(random: &mut Random, list: &[T]) -> T {
    list[random.next(list.len() as u64) as usize].clone()
}

/// One node on random operands; none if the op does not take them, an error if their Types do not fit.
fn random_node(graph: &mut Graph, random: &mut Random, values: &[ValueId]) -> Option<Result<Vec<ValueId>, GraphError>> {
    let of = |graph: &Graph, float: bool| -> Vec<ValueId> {
        values.iter().copied().filter(|&value| graph.ty(value).dtype.is_float() == float).collect()
    };
    let (floats, ints) = (of(graph, true), of(graph, false));
    let (a, b, index) = (pick(random, &floats), pick(random, &floats), pick(random, &ints));
    let dims = graph.ty(a).dims.clone();
    let rank = dims.len();
    let axis = random.next(rank.max(1) as u64) as usize;
    let n = Dim::symbol("n");
    let (op, inputs): (Op, Vec<ValueId>) = match random.next(36) {
        0..=2 => {
            let func = pick(random, &[BinaryFn::Add, BinaryFn::Mul, BinaryFn::Sub, BinaryFn::Max]);
            match random.next(4) {
                0 => (Binary { func }.into(), vec![index, pick(random, &ints)]),
                _ => (Binary { func }.into(), vec![a, b]),
            }
        }
        3 => {
            let func = pick(random, &[UnaryFn::Relu, UnaryFn::Tanh, UnaryFn::Neg, UnaryFn::Exp]);
            (Unary { func, alpha: 0.0, beta: 0.0 }.into(), vec![a])
        }
        4 => {
            let condition = graph.add(Compare { func: CompareFn::Lt }, &[a, b], &Default::default()).ok()?;
            (Select {}.into(), vec![condition, a, b])
        }
        5 => (Clamp { lo: -1.0, hi: 1.0 }.into(), vec![a]),
        6 if rank > 0 => {
            let func = pick(random, ReduceFn::ALL);
            let axes = if random.next(3) == 0 { (0..rank).collect() } else { vec![axis] };
            (Reduce { func, axes, keep_dims: random.next(2) == 0 }.into(), vec![a])
        }
        7 | 8 if rank > 0 => {
            let func = pick(random, &[ReduceFn::Max, ReduceFn::Min, ReduceFn::Mean]);
            (Reduce { func, axes: vec![axis], keep_dims: true }.into(), vec![a])
        }
        9 if rank > 0 => {
            let last = random.next(2) == 0;
            (ArgReduce { func: ArgFn::Max, axis, keep_dims: random.next(2) == 0, last }.into(), vec![a])
        }
        10 if rank > 0 => {
            let (exclusive, reverse) = (random.next(2) == 0, random.next(3) == 0);
            (Cumulate { func: CumulateFn::Sum, axis, exclusive, reverse }.into(), vec![a])
        }
        11 | 12 => {
            let (transpose_a, transpose_b) = (random.next(3) == 0, random.next(2) == 0);
            (Matmul { transpose_a, transpose_b }.into(), vec![a, b])
        }
        13 if rank == 4 => {
            let filter = *values.iter().find(|&&value| graph.constant(value).is_some_and(|c| c.rank() == 4))?;
            let (one, two) = (vec![1, 1], vec![Dim::from(1); 2]);
            let op = Conv { stride: one.clone(), pad_lo: two.clone(), pad_hi: two, dilation: one, groups: 1 };
            (op.into(), vec![a, filter])
        }
        14 if rank == 4 => {
            let (pads, output) = (vec![Dim::ZERO; 2], dims[2..].iter().map(|size| size - 1).collect());
            let (window, stride, dilation) = (vec![2, 2], vec![1, 1], vec![1, 1]);
            let op = match random.next(2) {
                0 => PoolIndices {
                    window,
                    stride,
                    pad_lo: pads.clone(),
                    pad_hi: pads,
                    dilation,
                    output,
                    column_major: false,
                }
                .into(),
                _ => Pool {
                    func: PoolFn::Avg,
                    window,
                    stride,
                    pad_lo: pads.clone(),
                    pad_hi: pads,
                    dilation,
                    output,
                    count_pad: true,
                    p: 2,
                }
                .into(),
            };
            (op, vec![a])
        }
        15 if rank > 0 => (Softmax { axis, log: false }.into(), vec![a]),
        16 if rank > 0 => (LayerNorm { axis, epsilon: 1e-5 }.into(), vec![a, b]),
        17 if rank > 0 => (RmsNorm { axis, epsilon: 1e-5 }.into(), vec![a, b]),
        18 if rank > 1 => (Lrn { size: 3, alpha: 0.1, beta: 0.5, bias: 1.0 }.into(), vec![a]),
        19 | 20 if rank > 0 => (Gather { axis }.into(), vec![a, index]),
        21 if rank > 0 => (GatherElements { axis }.into(), vec![a, index]),
        22 if rank > 0 => (GatherNd { batch_axes: random.next(2) as usize }.into(), vec![a, index]),
        23 if rank > 0 => {
            let func = pick(random, &[ScatterFn::Replace, ScatterFn::Add]);
            if random.next(2) == 0 {
                (ScatterElements { func, axis }.into(), vec![a, index, b])
            } else {
                (ScatterNd { func }.into(), vec![a, index, b])
            }
        }
        24 if rank > 0 => (Topk { axis, k: 2.into(), largest: true }.into(), vec![a]),
        25 => {
            let length = pick(random, &[n.clone(), Dim::from(4), &n * 2]);
            (
                Iota { to: pick(random, &[DType::F32, DType::I64]), start: 0.into(), step: 1.into(), length }.into(),
                vec![],
            )
        }
        26 if random.next(3) == 0 => {
            let size = graph.add(DimValue { dim: n }, &[], &Default::default()).ok()?;
            (Cast { to: DType::F32, saturate: true }.into(), vec![size])
        }
        27 | 28 if rank > 0 => (Reshape { shape: random_shape(random, &dims) }.into(), vec![a]),
        29 if rank > 0 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.rotate_left(axis);
            (Transpose { perm }.into(), vec![a])
        }
        30 => {
            let shape = pick(
                random,
                &[vec![n.clone(), 1.into(), 4.into()], vec![2.into(), n.clone(), 4.into()], vec![n, 4.into()]],
            );
            (Broadcast { shape }.into(), vec![a])
        }
        31 if rank > 0 => {
            let mut op = Slice { start: vec![Dim::ZERO; rank], step: vec![1; rank], size: dims.clone() };
            match random.next(3) {
                0 => op.size[axis] = Dim::from(1),
                1 => (op.start[axis], op.step[axis]) = (&dims[axis] - 1, -1),
                _ => op.size[axis] = &dims[axis] - 1,
            }
            (op.into(), vec![a])
        }
        32 if rank > 0 => (Concat { axis }.into(), vec![a, if random.next(2) == 0 { a } else { b }]),
        33 if rank > 0 => {
            let mut lo = vec![Dim::ZERO; rank];
            lo[axis] = Dim::from(1);
            let func = pick(random, &[PadFn::Constant, PadFn::Edge]);
            (Pad { func, hi: vec![Dim::ZERO; rank], lo }.into(), vec![a])
        }
        34 => (Quantize { to: DType::I8, axis, block: 0, saturate: true, precision: DType::F32 }.into(), vec![a, b]),
        35 => body_node(graph, random, a, b)?,
        _ => (Cast { to: DType::I64, saturate: true }.into(), vec![a]),
    };
    Some(graph.add_node(op, &inputs, &Default::default()))
}

/// A fused graph, or an `if` on a constant condition, over two values.
fn body_node(graph: &mut Graph, random: &mut Random, a: ValueId, b: ValueId) -> Option<(Op, Vec<ValueId>)> {
    let body = |func: BinaryFn| -> Option<Graph> {
        let mut body = Graph::new("body");
        let inputs = [a, b].map(|value| body.add_input("x", graph.ty(value).clone()));
        let sum = body.add(Binary { func }, &inputs, &Default::default()).ok()?;
        body.add_output("y", sum);
        Some(body)
    };
    if random.next(2) == 0 {
        return Some((Fused { body: body(BinaryFn::Mul)? }.into(), vec![a, b]));
    }
    let op = If { then_body: body(BinaryFn::Add)?, else_body: body(BinaryFn::Sub)? };
    let condition = graph.add_constant(random.tensor(&Type::scalar(DType::Bool)));
    Some((op.into(), vec![condition, a, b]))
}

/// Axes merged, split or added.
fn random_shape(random: &mut Random, dims: &[Dim]) -> Vec<Dim> {
    let at = random.next(dims.len() as u64) as usize;
    let mut shape = dims.to_vec();
    match random.next(4) {
        0 => vec![dims.iter().product()],
        1 if at + 1 < dims.len() => {
            let next = shape.remove(at + 1);
            shape[at] *= next;
            shape
        }
        2 => match dims[at].floor_div_exact(&Dim::from(2)) {
            Some(half) => {
                shape[at] = half;
                shape.insert(at + random.next(2) as usize, Dim::from(2));
                shape
            }
            None => shape,
        },
        _ => {
            shape.insert(at, Dim::ONE);
            shape
        }
    }
}
