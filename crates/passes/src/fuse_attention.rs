//! softmax(q·kᵀ·scale + mask)·v becomes one node, whose kernel keeps the scores of a few queries in a cache. The views
//! that part a projection into heads, and those that join the heads again, come along: the kernel reads and writes with
//! strides. The node is a `fused` one, so its meaning is that of the nodes it replaces.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, UnaryFn};
use precast_ir::{Definition, Graph, Node, NodeId, Op, ValueId};
use precast_tensor::DType;

use crate::fuse_epilogues::{add_fused, single_consumers};
use crate::log::{Log, Reason};
use crate::pattern::{binary, is_number};
use crate::pipeline::{Class, Pass, Run};
use crate::strided_view::StridedView;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_attention",
    doc: "softmax(q·kᵀ·a + mask)·v → fused { matmul, mul, add, softmax, matmul }, with the views of q, k, v and the result",
    class: Class::Exact,
    run: Run::Plain(fuse_attention),
};

/// The softmax is not over the keys, or not followed by the product with the values.
const NO_VALUES: Reason = "no-values";
/// What the softmax reads is no product of computed matrices.
const NO_SCORES: Reason = "no-scores";
/// A value inside is read elsewhere or is an output.
const MULTIPLE_USES: Reason = "multiple-uses";
/// Not f32.
const TYPE: Reason = "type";
/// An operand has no strides that the kernel reads.
const LAYOUT: Reason = "layout";
/// A row of scores is too long to be kept.
const TOO_MANY_KEYS: Reason = "too-many-keys";

/// Beyond this a row of scores and the packed keys leave the caches.
const KEYS_MAX: usize = 1 << 14;

fn fuse_attention(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let consumers = single_consumers(graph);
    let mut region_ending_at: Vec<Option<Vec<NodeId>>> = vec![None; graph.nodes().len()];
    let mut is_absorbed = vec![false; graph.nodes().len()];
    for node in graph.nodes() {
        let Op::Softmax(op) = &node.op else { continue };
        if op.log || op.axis + 1 != graph.ty(node.inputs[0]).rank() || op.axis < 2 {
            continue;
        }
        match region(graph, &consumers, node) {
            Ok(Region { views, core }) => {
                log.fired(node);
                for &inner in &core {
                    is_absorbed[inner.0 as usize] = true;
                }
                let last = core.last().expect("a region has its two products").0 as usize;
                let mut nodes: Vec<NodeId> = views.into_iter().chain(core).collect();
                nodes.sort_unstable();
                nodes.dedup();
                region_ending_at[last] = Some(nodes);
            }
            Err(reason) => log.refused(node, reason),
        }
    }
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        match &region_ending_at[position] {
            Some(nodes) => add_fused(graph, &mut copy, nodes)?,
            None if is_absorbed[position] => {}
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// The nodes of one attention.
struct Region {
    /// Views of operands. Others may read them too, so they also stay outside where they are needed.
    views: Vec<NodeId>,
    /// All others in order, the one that gives the result last.
    core: Vec<NodeId>,
}

fn region(graph: &Graph, consumers: &[Option<NodeId>], softmax: &Node) -> Result<Region, Reason> {
    let found = Found::around(graph, consumers, softmax)?;
    let mut core = found.core.clone();
    let mut views = Vec::new();
    for operand in [found.q, found.k, found.v] {
        views.extend(operand_views(graph, operand));
    }
    while let Some(next) = next_output_view(graph, consumers, &core) {
        core.push(next);
    }
    // What the kernel will read is decided by the same words as when it is lowered. The views of the result that it
    // cannot write through stay outside.
    loop {
        let mut nodes: Vec<NodeId> = views.iter().copied().chain(core.iter().copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut alone = GraphCopy::with_inputs(graph);
        for &value in nodes.iter().flat_map(|&id| &graph.node(id).inputs) {
            if !alone.has(value) && graph.constant(value).is_none() {
                let outside = alone.new.add_input("", graph.ty(value).clone());
                alone.set(value, outside);
            }
        }
        add_fused(graph, &mut alone, &nodes).map_err(|_| LAYOUT)?;
        let Some(Op::Fused(fused)) = alone.new.nodes().last().map(|node| &node.op) else { return Err(LAYOUT) };
        let constants = |input: usize| {
            let node = alone.new.nodes().last()?;
            Some(alone.new.constant(node.inputs[input])?.clone())
        };
        match attention_of(&fused.body, &constants) {
            Some(attention) if attention.keys > KEYS_MAX => return Err(TOO_MANY_KEYS),
            Some(_) => return Ok(Region { views, core }),
            None if core.len() > found.core.len() => {
                core.pop();
            }
            None => return Err(LAYOUT),
        }
    }
}

/// The nodes between the two products.
struct Found {
    core: Vec<NodeId>,
    q: ValueId,
    k: ValueId,
    v: ValueId,
}

impl Found {
    fn around(graph: &Graph, consumers: &[Option<NodeId>], softmax: &Node) -> Result<Found, Reason> {
        if graph.ty(softmax.inputs[0]).dtype != DType::F32 {
            return Err(TYPE);
        }
        let mut core = vec![id_of(graph, softmax.outputs[0]).ok_or(NO_SCORES)?];
        let scores = scores_below(graph, consumers, softmax.inputs[0], &mut core)?;
        core.reverse();
        let mut weights = softmax.outputs[0];
        if let Some(cleared) = nan_cleared(graph, weights) {
            core.extend(cleared.nodes);
            weights = cleared.value;
        }
        let last = consumers[weights.0 as usize].ok_or(MULTIPLE_USES)?;
        let product = graph.node(last);
        let Op::Matmul(op) = &product.op else { return Err(NO_VALUES) };
        let v = match product.inputs.iter().position(|&input| input == weights) {
            Some(0) if !op.transpose_a => product.inputs[1],
            Some(1) if op.transpose_b => product.inputs[0],
            _ => return Err(NO_VALUES),
        };
        core.push(last);
        Ok(Found { core, q: scores.0, k: scores.1, v })
    }
}

/// The operands of the product that a softmax reads through a scale and a mask; adds the nodes, last first.
fn scores_below(
    graph: &Graph,
    consumers: &[Option<NodeId>],
    value: ValueId,
    core: &mut Vec<NodeId>,
) -> Result<(ValueId, ValueId), Reason> {
    let mut value = value;
    for _ in 0..3 {
        let Some((node, _)) = graph.producer(value) else { return Err(NO_SCORES) };
        let next = match &node.op {
            Op::Matmul(_) => None,
            Op::Binary(op) => {
                let (a, b) = (node.inputs[0], node.inputs[1]);
                let is_scaled = |value: ValueId| leads_to_product(graph, value);
                match op.func {
                    BinaryFn::Add if is_scaled(a) => Some(a),
                    BinaryFn::Add if is_scaled(b) => Some(b),
                    BinaryFn::Mul | BinaryFn::Div if is_scalar(graph, b) => Some(a),
                    BinaryFn::Mul if is_scalar(graph, a) => Some(b),
                    _ => return Err(NO_SCORES),
                }
            }
            _ => return Err(NO_SCORES),
        };
        if consumers[value.0 as usize].is_none() {
            return Err(MULTIPLE_USES);
        }
        core.push(id_of(graph, value).ok_or(NO_SCORES)?);
        match next {
            Some(next) if graph.ty(next) == graph.ty(value) => value = next,
            Some(_) => return Err(NO_SCORES),
            None if node.inputs.iter().any(|&operand| graph.constant(operand).is_some()) => return Err(NO_SCORES),
            None => return Ok((node.inputs[0], node.inputs[1])),
        }
    }
    Err(NO_SCORES)
}

/// Whether a value is a product, or a product times a number.
fn leads_to_product(graph: &Graph, value: ValueId) -> bool {
    let made = |value: ValueId| graph.producer(value).map(|(node, _)| node);
    let is_product = |value: ValueId| made(value).is_some_and(|node| matches!(node.op, Op::Matmul(_)));
    let is_scaled = |node: &Node| match (binary(node, BinaryFn::Mul), binary(node, BinaryFn::Div)) {
        (Some((a, b)), _) => (is_scalar(graph, b) && is_product(a)) || (is_scalar(graph, a) && is_product(b)),
        (_, Some((a, b))) => is_scalar(graph, b) && is_product(a),
        _ => false,
    };
    is_product(value) || made(value).is_some_and(is_scaled)
}

fn is_scalar(graph: &Graph, value: ValueId) -> bool {
    graph.constant(value).is_some_and(|tensor| tensor.len() == 1)
}

/// select(isnan(p), 0, p), as exporters write it for rows that are masked whole.
struct Cleared {
    nodes: [NodeId; 2],
    value: ValueId,
}

fn nan_cleared(graph: &Graph, weights: ValueId) -> Option<Cleared> {
    let readers: Vec<NodeId> =
        (0..graph.nodes().len() as u32).map(NodeId).filter(|&id| graph.node(id).inputs.contains(&weights)).collect();
    let [isnan, select] = readers[..] else { return None };
    let is_output = graph.outputs().iter().any(|output| output.value == weights);
    cleared(graph, graph.node(isnan), graph.node(select), weights)
        .filter(|_| !is_output)
        .map(|value| Cleared { nodes: [isnan, select], value })
}

fn cleared(graph: &Graph, isnan: &Node, select: &Node, weights: ValueId) -> Option<ValueId> {
    let is_test = matches!(&isnan.op, Op::Unary(op) if op.func == UnaryFn::IsNan);
    let is_choice = matches!(select.op, Op::Select(_))
        && select.inputs[0] == isnan.outputs[0]
        && is_number(graph, select.inputs[1], 0.0)
        && select.inputs[2] == weights;
    (is_test && is_choice && graph.ty(select.outputs[0]) == graph.ty(weights)).then_some(select.outputs[0])
}

fn id_of(graph: &Graph, value: ValueId) -> Option<NodeId> {
    match graph.value(value).definition {
        Definition::Node { node, .. } => Some(node),
        Definition::Input(_) | Definition::Constant(_) => None,
    }
}

fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_))
}

/// The longest chain of views that ends at an operand and leaves it readable.
fn operand_views(graph: &Graph, operand: ValueId) -> Vec<NodeId> {
    let (mut chain, mut best) = (Vec::new(), 0);
    let mut value = operand;
    while let Some(id) = id_of(graph, value) {
        let node = graph.node(id);
        if !is_view(&node.op) {
            break;
        }
        chain.push(id);
        value = node.inputs[0];
        let view = through(graph, value, &chain);
        if view.is_none() {
            break;
        }
        if view.is_some_and(|view| Matrix::of(&view).is_some()) {
            best = chain.len();
        }
    }
    chain.truncate(best);
    chain
}

/// The view of a value that nodes, last first, make.
fn through(graph: &Graph, source: ValueId, chain: &[NodeId]) -> Option<StridedView> {
    let start = StridedView::dense(&graph.ty(source).shape()?);
    chain.iter().rev().try_fold(start, |view, &id| {
        let node = graph.node(id);
        view.after(&node.op, &graph.ty(node.outputs[0]).shape()?)
    })
}

fn next_output_view(graph: &Graph, consumers: &[Option<NodeId>], core: &[NodeId]) -> Option<NodeId> {
    let last = graph.node(*core.last()?);
    let next = consumers[last.outputs[0].0 as usize]?;
    matches!(graph.node(next).op, Op::Reshape(_) | Op::Transpose(_)).then_some(next)
}

/// A matrix that a kernel reads with one stride: rows with unit steps inside, or columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Whether neighbours in a row are neighbours in memory; else those in a column are.
    pub is_by_rows: bool,
    /// From one row, or column, to the next.
    pub stride: usize,
}

impl Matrix {
    /// The last two axes of a view.
    pub fn of(view: &StridedView) -> Option<Matrix> {
        let rank = view.shape.len();
        let [rows, columns] = [view.shape[rank - 2], view.shape[rank - 1]];
        let [row_stride, column_stride] = [view.strides[rank - 2], view.strides[rank - 1]];
        if columns == 1 || column_stride == 1 {
            return (rows == 1 || row_stride >= columns).then_some(Matrix { is_by_rows: true, stride: row_stride });
        }
        let is_by_columns = rows == 1 || row_stride == 1;
        (is_by_columns && column_stride >= rows).then_some(Matrix { is_by_rows: false, stride: column_stride })
    }
}

/// An operand of an attention: an input of the body as the kernel reads it, [batch.., rows, columns].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Position of the input.
    pub input: usize,
    /// Where its elements lie.
    pub view: StridedView,
}

/// What a fused body computes if it is an attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Leading axes of the scores.
    pub batch: Vec<usize>,
    /// Rows of the scores.
    pub queries: usize,
    /// Columns of the scores.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub depth: usize,
    /// Elements of a value.
    pub width: usize,
    /// [batch.., queries, depth]
    pub q: Operand,
    /// [batch.., depth, keys]
    pub k: Operand,
    /// [batch.., keys, width]
    pub v: Operand,
    /// Factor of the products.
    pub scale: f32,
    /// Divisor of the products.
    pub divisor: f32,
    /// Added to the scores: [batch.., queries, keys].
    pub mask: Option<Operand>,
    /// Whether weights that are not a number are 0.
    pub clears_nan: bool,
    /// The result as it is written, [batch.., queries, width].
    pub output: StridedView,
}

/// The attention that a fused body is. `constant` gives an input's value where it is a constant.
pub fn attention_of(body: &Graph, constant: &dyn Fn(usize) -> Option<precast_tensor::Tensor>) -> Option<Attention> {
    let [output] = body.outputs() else { return None };
    let softmax = body.nodes().iter().find(|node| matches!(node.op, Op::Softmax(_)))?;
    let consumers = single_consumers(body);
    // Towards the result.
    let mut weights = softmax.outputs[0];
    let cleared = nan_cleared(body, weights);
    let clears_nan = cleared.is_some() || nan_cleared_by_input(body, weights, constant).is_some();
    if let Some(value) = cleared.map(|cleared| cleared.value).or_else(|| nan_cleared_by_input(body, weights, constant))
    {
        weights = value;
    }
    let product = body.node(consumers[weights.0 as usize]?);
    let Op::Matmul(op) = &product.op else { return None };
    let is_mirrored = product.inputs[1] == weights;
    let scores_shape = body.ty(softmax.inputs[0]).shape()?;
    let [batch @ .., queries, keys] = scores_shape.as_slice() else { return None };
    let result_shape = body.ty(product.outputs[0]).shape()?;
    let flip = |view: StridedView| {
        let mut perm: Vec<usize> = (0..view.shape.len()).collect();
        let rank = perm.len();
        perm.swap(rank - 2, rank - 1);
        view.transposed(&perm)
    };
    let flip_if = |view: StridedView, is_flipped: bool| if is_flipped { flip(view) } else { view };
    let width = result_shape[result_shape.len() - if is_mirrored { 2 } else { 1 }];
    if result_shape[..result_shape.len() - 2] != *batch {
        return None;
    }
    let operand = |value: ValueId, is_flipped: bool, rows: usize, columns: usize| -> Option<Operand> {
        let operand = operand_of(body, value)?;
        let view = flip_if(operand.view, is_flipped);
        let shape: Vec<usize> = batch.iter().copied().chain([rows, columns]).collect();
        let view = view.broadcast(&shape)?;
        Matrix::of(&view)?;
        Some(Operand { input: operand.input, view })
    };
    let v = match is_mirrored {
        // (v · pᵀ)ᵀ = p · vᵀ
        true => operand(product.inputs[0], !op.transpose_a, *keys, width)?,
        false => operand(product.inputs[1], op.transpose_b, *keys, width)?,
    };
    // Towards the operands.
    let (mut value, mut mask) = (softmax.inputs[0], None);
    let (mut scale, mut divisor) = (1.0f32, 1.0f32);
    let scores = loop {
        let (node, _) = body.producer(value)?;
        match &node.op {
            Op::Matmul(_) => break node,
            Op::Binary(op) => {
                let (a, b) = (node.inputs[0], node.inputs[1]);
                let number = |value: ValueId| {
                    let tensor = match input_position(body, value) {
                        Some(input) => constant(input)?,
                        None => body.constant(value)?.clone(),
                    };
                    (tensor.len() == 1).then(|| tensor.to_f64_vec()[0] as f32)
                };
                let is_inside = |value: ValueId| {
                    body.producer(value).is_some_and(|(node, _)| matches!(node.op, Op::Matmul(_) | Op::Binary(_)))
                };
                match op.func {
                    BinaryFn::Mul if number(b).is_some() => (value, scale) = (a, number(b)?),
                    BinaryFn::Mul => (value, scale) = (b, number(a)?),
                    BinaryFn::Div => (value, divisor) = (a, number(b)?),
                    BinaryFn::Add if mask.is_none() && scale == 1.0 && divisor == 1.0 => {
                        let (next, other) = if is_inside(a) { (a, b) } else { (b, a) };
                        let operand = operand_of(body, other)?;
                        let view = operand.view.broadcast(&scores_shape)?;
                        // Keys one by one, or one number for all of them.
                        if *keys > 1 && view.strides[view.strides.len() - 1] > 1 {
                            return None;
                        }
                        mask = Some(Operand { input: operand.input, view });
                        value = next;
                    }
                    _ => return None,
                }
            }
            _ => return None,
        }
    };
    let Op::Matmul(op) = &scores.op else { return None };
    let q_shape = body.ty(scores.inputs[0]).shape()?;
    let depth = q_shape[q_shape.len() - if op.transpose_a { 2 } else { 1 }];
    let q = operand(scores.inputs[0], op.transpose_a, *queries, depth)?;
    let k = operand(scores.inputs[1], op.transpose_b, depth, *keys)?;
    // The views of the result, undone from the dense result on.
    let mut undo = Vec::new();
    let mut end = product.outputs[0];
    while end != output.value {
        let next = body.node(consumers[end.0 as usize]?);
        undo.push((&next.op, body.ty(end).shape()?));
        end = next.outputs[0];
    }
    let mut view = StridedView::dense(&body.ty(output.value).shape()?);
    for (op, shape) in undo.iter().rev() {
        view = match op {
            Op::Transpose(op) => view.transposed_back(&op.perm),
            Op::Reshape(_) => view.reshaped(shape)?,
            _ => return None,
        };
    }
    let view = flip_if(view, is_mirrored);
    Matrix::of(&view)?;
    if scores_shape.contains(&0) || depth == 0 || width == 0 {
        return None;
    }
    let (batch, queries, keys) = (batch.to_vec(), *queries, *keys);
    Some(Attention { batch, queries, keys, depth, width, q, k, v, scale, divisor, mask, clears_nan, output: view })
}

/// `nan_cleared` where the zero is an input of the body.
fn nan_cleared_by_input(
    body: &Graph,
    weights: ValueId,
    constant: &dyn Fn(usize) -> Option<precast_tensor::Tensor>,
) -> Option<ValueId> {
    let readers: Vec<&Node> = body.nodes().iter().filter(|node| node.inputs.contains(&weights)).collect();
    let [isnan, select] = readers[..] else { return None };
    let is_test = matches!(&isnan.op, Op::Unary(op) if op.func == UnaryFn::IsNan);
    let is_choice =
        matches!(select.op, Op::Select(_)) && select.inputs[0] == isnan.outputs[0] && select.inputs[2] == weights;
    let zero = constant(input_position(body, *select.inputs.get(1)?)?)?;
    let is_zero = zero.len() == 1 && zero.to_f64_vec()[0] == 0.0;
    (is_test && is_choice && is_zero).then_some(select.outputs[0])
}

fn input_position(body: &Graph, value: ValueId) -> Option<usize> {
    body.inputs().iter().position(|&input| input == value)
}

/// The input of the body that a value is a view of.
fn operand_of(body: &Graph, value: ValueId) -> Option<Operand> {
    let mut chain = Vec::new();
    let mut source = value;
    while let Some(id) = id_of(body, source) {
        chain.push(id);
        source = body.node(id).inputs[0];
    }
    let input = input_position(body, source)?;
    Some(Operand { input, view: through(body, source, &chain)? })
}

#[cfg(test)]
#[path = "fuse_attention_tests.rs"]
mod tests;
