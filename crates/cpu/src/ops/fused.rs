//! A fused body: a convolution or product (of floats, 8-bit weights or blocks of few bits) with its epilogue, a pair of convolutions, an attention, an LSTM of bytes,
//! lookups that are concatenated, or elementwise nodes.

use precast_ir::{Graph, Op};
use precast_passes::dynamic_product::dynamic_product_len;
use precast_passes::fuse_recurrent::ByteLayer;
use precast_tensor::Tensor;

use crate::ops::epilogue::Epilogue;
use crate::ops::{
    attention, conv, conv_pair, elementwise, gather_concat, matmul, matmul_blocks, matmul_dynamic, sequence_dynamic,
};
use crate::step::{Lowered, Machine, StepNode};

/// The kernel of a fused body.
pub fn lower(step: &StepNode, body: &Graph, machine: Machine) -> Result<Option<Lowered>, String> {
    let Some(root) = body.nodes().first() else { return Ok(None) };
    if body.nodes().iter().any(|node| matches!(node.op, Op::Softmax(_))) {
        return Ok(attention::lower(step, body, machine));
    }
    if let Some(product_len) = dynamic_product_len(body) {
        return matmul_dynamic::lower(step, body, product_len);
    }
    if let Some((op, operands)) = ByteLayer::of_body(body) {
        return sequence_dynamic::lower(step, body, op, &operands);
    }
    let is_in_order = body.inputs().starts_with(&root.inputs);
    match &root.op {
        // A body's inputs are the step's inputs in order of first use, so the root's operands come first.
        Op::Conv(_) | Op::Matmul(_) if !is_in_order => Ok(None),
        Op::Conv(op) => match Epilogue::of(body) {
            Some(epilogue) => conv::lower_conv(step, op, &epilogue, machine),
            None => conv_pair::lower(step, body, machine),
        },
        Op::Matmul(op) => match Epilogue::of(body) {
            Some(epilogue) => matmul::lower_matmul(step, op, &epilogue, machine),
            None => Ok(None),
        },
        Op::Unpack(_) | Op::Dequantize(_) => matmul_blocks::lower(step, body, machine),
        Op::Gather(_) => Ok(gather_concat::lower(step, body)),
        _ => {
            let (inner, operands) = with_inline_constants(step, body)?;
            Ok(elementwise::lower_program(step, &inner, &operands, &names(body)))
        }
    }
}

/// The body with one-element constants in place of the inputs that are such, and the step inputs that are left.
fn with_inline_constants(step: &StepNode, body: &Graph) -> Result<(Graph, Vec<usize>), String> {
    let mut copy = precast_ir::graph::GraphCopy::new(body);
    let mut operands = Vec::new();
    for (position, &input) in body.inputs().iter().enumerate() {
        match step.inline(position).filter(|tensor: &&Tensor| tensor.len() == 1) {
            Some(tensor) => {
                let constant = copy.new.add_constant(tensor.clone());
                copy.set(input, constant);
            }
            None => {
                copy.input(input, body.ty(input).clone());
                operands.push(position);
            }
        }
    }
    for node in body.nodes() {
        copy.node(node).map_err(|error| error.to_string())?;
    }
    Ok((copy.finish(), operands))
}

/// Names of the first ops of a body, for people.
fn names(body: &Graph) -> String {
    const SHOWN: usize = 4;
    let mut names: Vec<&str> = body.nodes().iter().take(SHOWN).map(|node| function(&node.op)).collect();
    if body.nodes().len() > SHOWN {
        names.push("…");
    }
    names.join("+")
}

fn function(op: &Op) -> &'static str {
    match op {
        Op::Unary(op) => op.func.name(),
        Op::Binary(op) => op.func.name(),
        Op::Compare(op) => op.func.name(),
        other => other.name(),
    }
}
