//! What follows a convolution or a product with constant weights, and only reads its result once, joins it: a bias a column,
//! one residual of the same shape, one activation, in this order; after the activation a constant factor, a constant number
//! added, and the residual if it was not before. A product of computed operands takes a constant factor.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, Fused, UnaryFn};
use precast_ir::{Graph, Node, NodeId, Op, ValueId};
use precast_tensor::DType;

use crate::block_weights::block_weights;
use crate::log::{Log, Reason};
use crate::pattern::{beside_constant, binary};
use crate::pipeline::{Class, Pass, Run};
use crate::step_costs::StepCosts;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_epilogues",
    doc: "relu(conv(x, W, b) + r) → fused { conv, add, relu }; the same for matmul(x, W) + b; \
          silu(conv(x, W, b)) · a + c + r → fused { conv, silu, mul, add, add }, a and c constant numbers; \
          matmul(x, y) · a → fused { matmul, mul }, a a constant number; \
          matmul(x, dequantize(W)) + b → fused { dequantize, matmul, add } where products take blocks of few bits",
    class: Class::Exact,
    run: Run::Costed(fuse_epilogues),
};

/// Activations that may end an epilogue.
pub fn is_epilogue_activation(op: &Op) -> bool {
    match op {
        Op::Clamp(_) => true,
        Op::Unary(unary) => {
            matches!(
                unary.func,
                UnaryFn::Relu
                    | UnaryFn::Leaky
                    | UnaryFn::Sigmoid
                    | UnaryFn::Silu
                    | UnaryFn::HardSwish
                    | UnaryFn::HardSigmoid
                    | UnaryFn::GeluErf
                    | UnaryFn::GeluTanh
                    | UnaryFn::Tanh
            ) && (unary.func != UnaryFn::Silu || unary.alpha == 1.0)
        }
        _ => false,
    }
}

/// The result is read more than once or is an output.
const MULTIPLE_USES: Reason = "multiple-uses";
/// Its weights are computed, or not f32.
const NO_KERNEL: Reason = "no-kernel";
/// What reads it is no bias, residual or activation.
const NO_EPILOGUE: Reason = "no-epilogue";

fn fuse_epilogues(graph: &Graph, costs: &StepCosts, log: &mut Log) -> Result<Graph, GraphError> {
    let consumers = single_consumers(graph);
    let mut chains = Chains::new(graph);
    for position in 0..graph.nodes().len() {
        chains.claim(chain_from(graph, &consumers, costs, NodeId(position as u32)));
    }
    chains.fuse(graph, log, &|node| why_alone(graph, &consumers, costs, node))
}

/// Nodes that become one, each in one chain at most.
pub(crate) struct Chains {
    ending_at: Vec<Option<Vec<NodeId>>>,
    is_taken: Vec<bool>,
}

impl Chains {
    pub(crate) fn new(graph: &Graph) -> Chains {
        let len = graph.nodes().len();
        Chains { ending_at: vec![None; len], is_taken: vec![false; len] }
    }

    /// Takes a chain up to the first node that another has: the sum of two convolutions belongs to the first of them, and the
    /// second is its residual. One node alone is no chain.
    pub(crate) fn claim(&mut self, mut chain: Vec<NodeId>) {
        let end = chain.iter().position(|node| self.is_taken[node.0 as usize]).unwrap_or(chain.len());
        chain.truncate(end);
        let Some(&last) = chain.last().filter(|_| chain.len() > 1) else { return };
        for node in &chain {
            self.is_taken[node.0 as usize] = true;
        }
        self.ending_at[last.0 as usize] = Some(chain);
    }

    /// The Graph with one `fused` node for each chain; `why_alone` gives a reason for a node that might have had one.
    pub(crate) fn fuse(
        &self,
        graph: &Graph,
        log: &mut Log,
        why_alone: &dyn Fn(&Node) -> Option<Reason>,
    ) -> Result<Graph, GraphError> {
        let mut copy = GraphCopy::with_inputs(graph);
        for (position, node) in graph.nodes().iter().enumerate() {
            match &self.ending_at[position] {
                Some(chain) => {
                    log.fired(graph.node(chain[0]));
                    add_fused(graph, &mut copy, chain)?;
                }
                None if self.is_taken[position] => {}
                None => {
                    if let Some(reason) = why_alone(node) {
                        log.refused(node, reason);
                    }
                    copy.node(node)?;
                }
            }
        }
        Ok(copy.finish())
    }
}

/// Why a convolution or product takes nothing with it.
fn why_alone(graph: &Graph, consumers: &[Option<NodeId>], costs: &StepCosts, node: &Node) -> Option<Reason> {
    if !matches!(node.op, Op::Conv(_) | Op::Matmul(_)) {
        return None;
    }
    let has_blocks = wide_blocks(graph, consumers, costs, node).is_some();
    if !is_root(graph, node) && !has_blocks && !is_product_of_computed(graph, node) {
        return Some(NO_KERNEL);
    }
    Some(if consumers[node.outputs[0].0 as usize].is_none() { MULTIPLE_USES } else { NO_EPILOGUE })
}

/// For each value the one node that reads it, if nothing else does.
pub(crate) fn single_consumers(graph: &Graph) -> Vec<Option<NodeId>> {
    let uses = graph.use_counts();
    let mut consumers = vec![None; graph.values().len()];
    for (position, node) in graph.nodes().iter().enumerate() {
        for input in &node.inputs {
            if uses[input.0 as usize] == 1 {
                consumers[input.0 as usize] = Some(NodeId(position as u32));
            }
        }
    }
    consumers
}

/// The nodes that make the weights of a product of f32 out of blocks of few bits, where a product takes these as they are.
fn wide_blocks(graph: &Graph, consumers: &[Option<NodeId>], costs: &StepCosts, node: &Node) -> Option<Vec<NodeId>> {
    let blocks = block_weights(graph, consumers, node).filter(|_| costs.multiplies_blocks)?;
    (graph.ty(node.outputs[0]).dtype == DType::F32).then_some(blocks)
}

/// Nodes that join the conv or matmul at `root`, itself first. Empty if it is neither.
pub(crate) fn chain_from(graph: &Graph, consumers: &[Option<NodeId>], costs: &StepCosts, root: NodeId) -> Vec<NodeId> {
    let node = graph.node(root);
    let blocks = wide_blocks(graph, consumers, costs, node);
    if blocks.is_none() && is_product_of_computed(graph, node) {
        return [root].into_iter().chain(scale_of(graph, consumers, node)).collect();
    }
    if blocks.is_none() && !is_root(graph, node) {
        return Vec::new();
    }
    let mut chain: Vec<NodeId> = blocks.into_iter().flatten().chain([root]).collect();
    let (mut has_bias, mut has_residual) = (false, false);
    let mut value = node.outputs[0];
    while let Some(consumer) = consumers[value.0 as usize] {
        let next = graph.node(consumer);
        let keeps_type = next.outputs.len() == 1 && graph.ty(next.outputs[0]) == graph.ty(value);
        if !keeps_type {
            break;
        }
        if is_epilogue_activation(&next.op) {
            chain.push(consumer);
            chain.extend(after_activation(graph, consumers, next.outputs[0], has_residual));
            break;
        }
        let Op::Binary(op) = &next.op else { break };
        if op.func != BinaryFn::Add {
            break;
        }
        let other = if next.inputs[0] == value { next.inputs[1] } else { next.inputs[0] };
        if !has_bias && !has_residual && matches!(node.op, Op::Matmul(_)) && is_column_bias(graph, other, value) {
            has_bias = true;
        } else if !has_residual && graph.ty(other) == graph.ty(value) {
            has_residual = true;
        } else {
            break;
        }
        chain.push(consumer);
        value = next.outputs[0];
    }
    chain
}

/// Nodes that follow the activation whose result is `value`: a factor, a number added, the residual.
fn after_activation(
    graph: &Graph,
    consumers: &[Option<NodeId>],
    mut value: ValueId,
    has_residual: bool,
) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    let (mut has_factor, mut has_number) = (false, false);
    while let Some(consumer) = consumers[value.0 as usize] {
        let next = graph.node(consumer);
        let Op::Binary(op) = &next.op else { break };
        if graph.ty(next.outputs[0]) != graph.ty(value) {
            break;
        }
        let other = if next.inputs[0] == value { next.inputs[1] } else { next.inputs[0] };
        let is_one_element = graph.ty(other).dims.iter().all(|dim| dim.as_usize() == Some(1));
        let is_number = is_one_element && graph.constant(other).is_some();
        match op.func {
            BinaryFn::Mul if is_number && !has_factor && !has_number => has_factor = true,
            BinaryFn::Add if is_number && !has_number => has_number = true,
            BinaryFn::Add if !has_residual && !is_one_element && graph.ty(other) == graph.ty(value) => {
                nodes.push(consumer);
                break;
            }
            _ => break,
        }
        nodes.push(consumer);
        value = next.outputs[0];
    }
    nodes
}

fn is_product_of_computed(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Matmul(_))
        && graph.ty(node.outputs[0]).dtype == DType::F32
        && node.inputs.iter().all(|&operand| graph.constant(operand).is_none())
}

/// The node that multiplies a product by a constant number.
fn scale_of(graph: &Graph, consumers: &[Option<NodeId>], product: &Node) -> Option<NodeId> {
    let consumer = consumers[product.outputs[0].0 as usize]?;
    let next = graph.node(consumer);
    let (value, _) = beside_constant(graph, binary(next, BinaryFn::Mul)?)?;
    (value == product.outputs[0] && graph.ty(next.outputs[0]) == graph.ty(value)).then_some(consumer)
}

pub(crate) fn is_root(graph: &Graph, node: &Node) -> bool {
    let is_f32 = node.outputs.iter().all(|&output| graph.ty(output).dtype == DType::F32);
    match &node.op {
        Op::Conv(_) => is_f32 && graph.constant(node.inputs[1]).is_some() && graph.ty(node.inputs[0]).rank() <= 4,
        Op::Matmul(op) => {
            let weights = node.inputs[1];
            is_f32 && !op.transpose_a && graph.constant(weights).is_some() && graph.ty(weights).rank() == 2
        }
        _ => false,
    }
}

/// Whether `bias` is a constant with one number a column of `value`.
pub(crate) fn is_column_bias(graph: &Graph, bias: ValueId, value: ValueId) -> bool {
    let (Some(tensor), columns) = (graph.constant(bias), graph.ty(value).dims.last()) else { return false };
    let Some(columns) = columns.and_then(|dim| dim.as_usize()) else { return false };
    tensor.len() == columns && tensor.shape().last() == Some(&columns) && tensor.rank() <= graph.ty(value).rank()
}

/// Adds one `fused` node for a chain. Its inputs are what the chain reads from outside, in order of first use; its outputs
/// are those of the last node.
pub(crate) fn add_fused(graph: &Graph, copy: &mut GraphCopy<'_>, chain: &[NodeId]) -> Result<(), GraphError> {
    let mut body = Graph::new("");
    let mut inner: Vec<(ValueId, ValueId)> = Vec::new();
    let mut outside: Vec<ValueId> = Vec::new();
    let mut provenance = graph.node(chain[0]).provenance.clone();
    for (position, &id) in chain.iter().enumerate() {
        let node = graph.node(id);
        if position > 0 {
            provenance = provenance.join(&node.provenance);
        }
        let inputs: Vec<ValueId> = node
            .inputs
            .iter()
            .map(|&input| match inner.iter().find(|(outer, _)| *outer == input) {
                Some(&(_, value)) => value,
                None => {
                    let value = body.add_input(format!("x{}", outside.len()), graph.ty(input).clone());
                    outside.push(input);
                    inner.push((input, value));
                    value
                }
            })
            .collect();
        let outputs = body.add_node(node.op.clone(), &inputs, &node.provenance)?;
        inner.extend(node.outputs.iter().copied().zip(outputs));
    }
    let last = graph.node(*chain.last().expect("a chain has nodes"));
    for (position, result) in last.outputs.iter().enumerate() {
        let value = inner.iter().find(|(outer, _)| outer == result).map(|&(_, value)| value);
        let name = if position == 0 { "y".to_string() } else { format!("y{position}") };
        body.add_output(name, value.expect("the last node of the chain was just added"));
    }
    let inputs = copy.get_all(&outside);
    let outputs = copy.new.add_node(Fused { body }, &inputs, &provenance)?;
    for (&result, output) in last.outputs.iter().zip(outputs) {
        copy.set(result, output);
    }
    Ok(())
}
