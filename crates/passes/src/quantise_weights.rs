//! Products with large constant weights become 8-bit: the weights are rounded to signed bytes with a scale a column while
//! compiling, the rows of x to unsigned bytes with a scale a row when they are known. Bias, residual and activation stay f32.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Fused, Matmul};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::dynamic_product::add_dynamic_product;
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Liberty, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "quantise_weights",
    doc: "act(matmul(x, W) + b) → act(s · t ⊙ matmul_int(quantize(x, s), W₈) + b), s a scale a row of x, t a scale a \
          column of W",
    class: Class::Fast(Liberty::Int8),
    run: Run::Plain(quantise_weights),
};

/// Depth and columns below which quantising the rows costs more than it saves.
const DEPTH_MIN: usize = 32;
const COLUMNS_MIN: usize = 32;
/// Depth above which a sum of 255 · 127 a term may leave i32.
const DEPTH_MAX: usize = 1 << 16;
/// Largest magnitude of a weight: symmetric, so that the zero point is 0.
const WEIGHT_MOST: f64 = 127.0;

/// The weights are computed, or are not one matrix.
const WEIGHTS: Reason = "no-constant-matrix";
/// Operands are not f32.
const DTYPE: Reason = "not-f32";
/// x is read transposed.
const TRANSPOSED: Reason = "transposed";
/// The product is too small to gain.
const TOO_SMALL: Reason = "too-small";
/// Sums may leave i32.
const TOO_DEEP: Reason = "too-deep";
/// A weight is NaN or infinite.
const NOT_FINITE: Reason = "not-finite";

fn quantise_weights(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let Some(product) = Product::of(node) else {
            copy.node(node)?;
            continue;
        };
        match quantised(graph, node, product.op) {
            Ok(weights) => {
                log.fired(node);
                product.add(graph, node, weights, &mut copy)?;
            }
            Err(reason) => {
                log.refused(node, reason);
                copy.node(node)?;
            }
        }
    }
    Ok(copy.finish())
}

/// A product, alone or with its epilogue.
struct Product<'a> {
    op: &'a Matmul,
    /// The body whose first node it is.
    body: Option<&'a Graph>,
}

impl<'a> Product<'a> {
    fn of(node: &'a Node) -> Option<Product<'a>> {
        match &node.op {
            Op::Matmul(op) => Some(Product { op, body: None }),
            Op::Fused(fused) => {
                let body = &fused.body;
                let (first, rest) = body.nodes().split_first()?;
                let Op::Matmul(op) = &first.op else { return None };
                let is_epilogue = |node: &Node| matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Clamp(_));
                let reads_operands_in_order = body.inputs().starts_with(&first.inputs);
                (rest.iter().all(is_epilogue) && reads_operands_in_order).then_some(Product { op, body: Some(body) })
            }
            _ => None,
        }
    }

    /// Adds a fused node in the place of the product: x, bytes and scales first, then what the epilogue reads.
    fn add(&self, graph: &Graph, node: &Node, weights: Weights, copy: &mut GraphCopy<'_>) -> Result<(), GraphError> {
        let mut body = Graph::new("");
        let bytes = copy.new.add_constant(weights.bytes);
        let scales = copy.new.add_constant(weights.scales);
        let mut outside = vec![copy.get(node.inputs[0]), bytes, scales];
        let operands = [0, 1, 2].map(|at| body.add_input(format!("x{at}"), copy.new.ty(outside[at]).clone()));
        for (at, &input) in node.inputs.iter().enumerate().skip(2) {
            body.add_input(format!("x{}", at + 1), graph.ty(input).clone());
            outside.push(copy.get(input));
        }
        let mut value = add_dynamic_product(&mut body, operands, &node.provenance)?;
        if let Some(old) = self.body {
            value = self.add_epilogue(old, &mut body, value)?;
        }
        body.add_output("y", value);
        let output = copy.new.add(Fused { body }, &outside, &node.provenance)?;
        copy.set(node.outputs[0], output);
        Ok(())
    }

    /// Adds the nodes after the product to a body whose inputs are those of the old one but for the weights.
    fn add_epilogue(&self, old: &Graph, body: &mut Graph, product: ValueId) -> Result<ValueId, GraphError> {
        let mut pairs: Vec<(ValueId, ValueId)> = Vec::new();
        let (first, rest) = old.nodes().split_first().expect("a product is the first node of its body");
        pairs.push((old.inputs()[0], body.inputs()[0]));
        pairs.extend(old.inputs().iter().skip(2).copied().zip(body.inputs().iter().skip(3).copied()));
        pairs.push((first.outputs[0], product));
        let mut value = product;
        for node in rest {
            let mut inputs = Vec::new();
            for &input in &node.inputs {
                let known = pairs.iter().find(|(before, _)| *before == input).map(|&(_, after)| after);
                inputs.push(match (known, old.constant(input)) {
                    (Some(value), _) => value,
                    (None, Some(constant)) => body.add_constant(constant.clone()),
                    (None, None) => unreachable!("an epilogue reads inputs, constants and what came before it"),
                });
            }
            value = body.add(node.op.clone(), &inputs, &node.provenance)?;
            pairs.push((node.outputs[0], value));
        }
        Ok(value)
    }
}

/// Weights as signed bytes [K, N] and the scale of each column.
struct Weights {
    bytes: Tensor,
    scales: Tensor,
}

/// The weights of a product in 8 bits, or why they stay.
fn quantised(graph: &Graph, node: &Node, op: &Matmul) -> Result<Weights, Reason> {
    let constant = graph.constant(node.inputs[1]).filter(|tensor| tensor.rank() == 2).ok_or(WEIGHTS)?;
    if constant.dtype() != DType::F32 || graph.ty(node.inputs[0]).dtype != DType::F32 {
        return Err(DTYPE);
    }
    if op.transpose_a {
        return Err(TRANSPOSED);
    }
    let (rows, columns) = (constant.shape()[0], constant.shape()[1]);
    let (depth, count) = if op.transpose_b { (columns, rows) } else { (rows, columns) };
    if depth < DEPTH_MIN || count < COLUMNS_MIN {
        return Err(TOO_SMALL);
    }
    if depth > DEPTH_MAX {
        return Err(TOO_DEEP);
    }
    let elements = constant.to_vec::<f32>().map_err(|_| DTYPE)?;
    if elements.iter().any(|element| !element.is_finite()) {
        return Err(NOT_FINITE);
    }
    let elements = if op.transpose_b { transposed(&elements, count, depth) } else { elements };
    let mut most = vec![0.0_f32; count];
    for row in elements.chunks_exact(count) {
        most.iter_mut().zip(row).for_each(|(most, element)| *most = most.max(element.abs()));
    }
    // A column of zeros has no scale of its own; any keeps it.
    let scale = |most: f32| if most == 0.0 { 1.0 } else { (f64::from(most) / WEIGHT_MOST) as f32 };
    let scales: Vec<f32> = most.into_iter().map(scale).collect();
    let mut bytes = Vec::with_capacity(depth * count);
    for row in elements.chunks_exact(count) {
        bytes.extend(row.iter().zip(&scales).map(|(&element, &scale)| level(element, scale)));
    }
    let bytes = Tensor::from_vec([depth, count], bytes).map_err(|_| DTYPE)?;
    let scales = Tensor::from_vec([count], scales).map_err(|_| DTYPE)?;
    Ok(Weights { bytes, scales })
}

/// The nearest multiple of the scale, half to even.
fn level(element: f32, scale: f32) -> i8 {
    let level = f64::from(element) / f64::from(scale);
    level.round_ties_even().clamp(-WEIGHT_MOST, WEIGHT_MOST) as i8
}

/// A matrix [rows, columns] as [columns, rows].
fn transposed(elements: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = Vec::with_capacity(elements.len());
    for column in 0..columns {
        transposed.extend((0..rows).map(|row| elements[row * columns + column]));
    }
    transposed
}

#[cfg(test)]
#[path = "quantise_weights_tests.rs"]
mod tests;
