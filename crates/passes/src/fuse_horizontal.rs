//! Projections of one value that one attention reads become one projection, of which the attention reads the parts with
//! strides (A19): the value is read once and packed once.
//!
//! Other products and convolutions of one value stay apart: their parts would have to be copied out of the joint result.

use precast_ir::graph::{GraphCopy, GraphError, Provenance};
use precast_ir::op::{Binary, BinaryFn, Concat, Fused, Matmul, Slice};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Dim, Tensor};

use crate::fuse_attention::attention_of;
use crate::fuse_epilogues::is_column_bias;
use crate::log::{Log, Reason};
use crate::pattern::made_by;
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_horizontal",
    doc: "attention(x·Q + q, x·K + k, x·V + v) → attention of slices of x·(Q‖K‖V) + (q‖k‖v)",
    class: Class::Exact,
    run: Run::Plain(fuse_horizontal),
};

/// Less than two operands are projections of one value.
const NO_SIBLINGS: Reason = "no-siblings";
/// The parts of the joint projection have no strides that the kernel reads.
const LAYOUT: Reason = "layout";

fn fuse_horizontal(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let Some(fused) = attention(graph, node) else {
            copy.node(node)?;
            continue;
        };
        match joined(graph, &uses, node, fused) {
            Ok(joint) => {
                log.fired(node);
                add_joint(graph, &mut copy, node, joint)?;
            }
            Err(reason) => {
                log.refused(node, reason);
                copy.node(node)?;
            }
        }
    }
    Ok(copy.finish())
}

/// The body of a node that is an attention.
fn attention<'a>(graph: &Graph, node: &'a Node) -> Option<&'a Fused> {
    let Op::Fused(fused) = &node.op else { return None };
    let has_softmax = fused.body.nodes().iter().any(|node| matches!(node.op, Op::Softmax(_)));
    (has_softmax && is_attention(graph, node, &fused.body)).then_some(fused)
}

fn is_attention(graph: &Graph, node: &Node, body: &Graph) -> bool {
    attention_of(body, &|input| graph.constant(node.inputs[input]).cloned()).is_some()
}

/// x·W, or x·W + b, with W and b constant.
struct Projection<'a> {
    /// Position among the attention's inputs.
    input: usize,
    x: ValueId,
    op: &'a Matmul,
    weights: &'a Tensor,
    bias: Option<&'a Tensor>,
    provenance: Provenance,
}

/// One projection in place of several.
struct Joint<'a> {
    parts: Vec<Projection<'a>>,
    weights: Tensor,
    bias: Option<Tensor>,
    body: Graph,
}

fn joined<'a>(graph: &'a Graph, uses: &[u32], node: &Node, fused: &Fused) -> Result<Joint<'a>, Reason> {
    let all: Vec<Projection<'a>> =
        (0..node.inputs.len()).filter_map(|input| projection(graph, uses, node, input)).collect();
    let first = all.first().ok_or(NO_SIBLINGS)?;
    let is_sibling = |part: &Projection<'_>| part.x == first.x && part.op == first.op;
    let parts: Vec<Projection<'a>> = {
        let is_part: Vec<bool> = all.iter().map(is_sibling).collect();
        all.into_iter().zip(is_part).filter_map(|(part, is_part)| is_part.then_some(part)).collect()
    };
    if parts.len() < 2 {
        return Err(NO_SIBLINGS);
    }
    let axis = if parts[0].op.transpose_b { 0 } else { 1 };
    let weights: Vec<Tensor> = parts.iter().map(|part| part.weights.clone()).collect();
    let weights = concat(axis, &weights).ok_or(LAYOUT)?;
    let has_bias = parts.iter().any(|part| part.bias.is_some());
    let biases: Option<Vec<Tensor>> = parts.iter().map(bias_of).collect();
    let bias = if has_bias { Some(concat(0, &biases.ok_or(LAYOUT)?).ok_or(LAYOUT)?) } else { None };
    let body = body_of_slices(graph, node, fused, &parts).map_err(|_| LAYOUT)?;
    Ok(Joint { parts, weights, bias, body })
}

fn columns(part: &Projection<'_>) -> usize {
    part.weights.shape()[if part.op.transpose_b { 0 } else { 1 }]
}

/// The bias as a vector. Where there is none it is −0, which keeps every sum as it is.
fn bias_of(part: &Projection<'_>) -> Option<Tensor> {
    let elements = part.bias.map_or_else(|| vec![-0.0; columns(part)], Tensor::to_f64_vec);
    Tensor::from_f64(DType::F32, [columns(part)], &elements, false).ok()
}

/// The parts as one; what reading them from a mapped file took is let go.
fn concat(axis: usize, parts: &[Tensor]) -> Option<Tensor> {
    let joint = Op::from(Concat { axis }).eval(parts).ok()?.into_iter().next();
    parts.iter().for_each(Tensor::release_pages);
    joint
}

fn projection<'a>(graph: &'a Graph, uses: &[u32], node: &Node, input: usize) -> Option<Projection<'a>> {
    let value = node.inputs[input];
    let (last, _) = graph.producer(value)?;
    let with_bias = made_by(graph, value, BinaryFn::Add).and_then(|(a, b)| {
        let is_bias = |bias: ValueId| is_column_bias(graph, bias, value);
        if is_bias(b) { Some((a, b)) } else { is_bias(a).then_some((b, a)) }
    });
    let (product, bias) = match with_bias {
        Some((product, bias)) => (product, Some(graph.constant(bias)?)),
        None => (value, None),
    };
    let (matmul, _) = graph.producer(product)?;
    let Op::Matmul(op) = &matmul.op else { return None };
    let (x, weights) = (matmul.inputs[0], graph.constant(matmul.inputs[1])?);
    let is_once = uses[value.0 as usize] == 1 && uses[product.0 as usize] == 1;
    let fits = !op.transpose_a && weights.rank() == 2 && weights.dtype() == DType::F32 && graph.constant(x).is_none();
    let keeps_type = graph.ty(value) == graph.ty(product);
    (is_once && fits && keeps_type).then(|| Projection {
        input,
        x,
        op,
        weights,
        bias,
        provenance: matmul.provenance.join(&last.provenance),
    })
}

/// The attention's body on slices of the joint projection, which is its first input.
fn body_of_slices(graph: &Graph, node: &Node, fused: &Fused, parts: &[Projection<'_>]) -> Result<Graph, Reason> {
    let old = &fused.body;
    let mut ty = old.ty(old.inputs()[parts[0].input]).clone();
    let axis = ty.rank() - 1;
    ty.dims[axis] = Dim::from(parts.iter().map(columns).sum::<usize>());
    let mut copy = GraphCopy::new(old);
    let joint = copy.new.add_input("x0", ty.clone());
    let mut kept = Vec::new();
    for (position, &input) in old.inputs().iter().enumerate() {
        if !parts.iter().any(|part| part.input == position) {
            let value = copy.new.add_input(format!("x{}", kept.len() + 1), old.ty(input).clone());
            copy.set(input, value);
            kept.push(node.inputs[position]);
        }
    }
    let mut first = 0;
    for part in parts {
        let mut slice = Slice { start: vec![Dim::ZERO; axis + 1], step: vec![1; axis + 1], size: ty.dims.clone() };
        slice.start[axis] = Dim::from(first);
        slice.size[axis] = Dim::from(columns(part));
        first += columns(part);
        let value = copy.new.add(slice, &[joint], &Provenance::default()).map_err(|_| LAYOUT)?;
        copy.set(old.inputs()[part.input], value);
    }
    for node in old.nodes() {
        copy.node(node).map_err(|_| LAYOUT)?;
    }
    let body = copy.finish();
    let constant = |input: usize| graph.constant(*kept.get(input.checked_sub(1)?)?).cloned();
    if attention_of(&body, &constant).is_some() { Ok(body) } else { Err(LAYOUT) }
}

fn add_joint(graph: &Graph, copy: &mut GraphCopy<'_>, node: &Node, joint: Joint<'_>) -> Result<(), GraphError> {
    let Joint { parts, weights, bias, body } = joint;
    let provenance = parts.iter().skip(1).fold(parts[0].provenance.clone(), |all, part| all.join(&part.provenance));
    let x = copy.get(parts[0].x);
    let weights = copy.new.add_constant(weights);
    let mut value = copy.new.add(parts[0].op.clone(), &[x, weights], &provenance)?;
    if let Some(bias) = bias {
        let bias = copy.new.add_constant(bias);
        value = copy.new.add(Binary { func: BinaryFn::Add }, &[value, bias], &provenance)?;
    }
    let kept: Vec<ValueId> = (0..node.inputs.len())
        .filter(|position| !parts.iter().any(|part| part.input == *position))
        .map(|position| node.inputs[position])
        .collect();
    let mut inputs = vec![value];
    inputs.extend(copy.get_all(&kept));
    let output = copy.new.add(Fused { body }, &inputs, &node.provenance)?;
    debug_assert_eq!(copy.new.ty(output), graph.ty(node.outputs[0]));
    copy.set(node.outputs[0], output);
    Ok(())
}
