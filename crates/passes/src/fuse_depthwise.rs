//! A 1×1 convolution that only a depthwise one reads becomes one step with it, where the machine keeps a few channels at hand
//! between the two instead of a whole tensor.

use precast_ir::graph::GraphError;
use precast_ir::op::Conv;
use precast_ir::{Graph, Node, NodeId, Op};
use precast_tensor::Dim;

use crate::fuse_epilogues::{Chains, chain_from, is_root, single_consumers};
use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};
use crate::step_costs::StepCosts;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_depthwise",
    doc: "depthwise(relu(conv1x1(x, W, b)), V, c) → fused { conv, relu, conv }, with what follows the second as \
          fuse_epilogues has it, where the machine keeps channels at hand",
    class: Class::Exact,
    run: Run::Costed(fuse_depthwise),
};

/// The most taps of the depthwise filter: beyond them it takes as long as what it would save.
const TAPS_MAX: usize = 25;

/// What a depthwise convolution reads is no 1×1 convolution, is read more than once, or has a residual.
const NO_PAIR: Reason = "no-pair";

fn fuse_depthwise(graph: &Graph, costs: &StepCosts, log: &mut Log) -> Result<Graph, GraphError> {
    if !costs.joins_depthwise {
        return Ok(graph.clone());
    }
    let consumers = single_consumers(graph);
    let mut chains = Chains::new(graph);
    for position in 0..graph.nodes().len() {
        if let Some(chain) = pair_from(graph, &consumers, costs, NodeId(position as u32)) {
            chains.claim(chain);
        }
    }
    let is_alone = |node: &Node| is_depthwise(graph, node) && graph.producer(node.inputs[0]).is_some();
    chains.fuse(graph, log, &|node| is_alone(node).then_some(NO_PAIR))
}

/// The nodes of a pair whose first convolution is this, if it is one.
fn pair_from(graph: &Graph, consumers: &[Option<NodeId>], costs: &StepCosts, first: NodeId) -> Option<Vec<NodeId>> {
    if !is_pointwise(graph, graph.node(first)) {
        return None;
    }
    let mut chain = chain_from(graph, consumers, costs, first);
    let middle = graph.node(*chain.last()?).outputs[0];
    let second = consumers[middle.0 as usize]?;
    let reads_first = graph.node(second).inputs[0] == middle && is_depthwise(graph, graph.node(second));
    if !reads_first || !reads_constants_alone(graph, &chain) {
        return None;
    }
    chain.extend(chain_from(graph, consumers, costs, second));
    Some(chain)
}

/// Whether nodes after the first read constants beside each other: the first convolution has no residual.
fn reads_constants_alone(graph: &Graph, chain: &[NodeId]) -> bool {
    chain.windows(2).all(|pair| {
        let before = graph.node(pair[0]).outputs[0];
        graph.node(pair[1]).inputs.iter().all(|&input| input == before || graph.constant(input).is_some())
    })
}

/// Whether every pixel of a convolution's result comes from the one pixel in its place.
fn is_pointwise(graph: &Graph, node: &Node) -> bool {
    let Some((op, filter)) = convolution(graph, node) else { return false };
    let is_unpadded = op.pad_lo.iter().chain(&op.pad_hi).all(|pad| pad.as_usize() == Some(0));
    op.groups == 1
        && filter[2..].iter().all(|&size| size == 1)
        && op.stride.iter().all(|&step| step == 1)
        && is_unpadded
}

/// Whether every channel of a convolution's result comes from the one channel in its place.
fn is_depthwise(graph: &Graph, node: &Node) -> bool {
    let Some((op, filter)) = convolution(graph, node) else { return false };
    let is_padded = op.pad_lo.iter().chain(&op.pad_hi).all(|pad: &Dim| pad.as_usize().is_some());
    let is_by_channel = op.groups > 1 && op.groups == filter[0] && filter[1] == 1;
    is_by_channel && filter[2..].iter().product::<usize>() <= TAPS_MAX && is_padded
}

/// A convolution of planes or lines in f32 with a constant filter, and the filter's sizes.
fn convolution<'a>(graph: &'a Graph, node: &'a Node) -> Option<(&'a Conv, &'a [usize])> {
    let Op::Conv(op) = &node.op else { return None };
    is_root(graph, node).then_some((op, graph.constant(node.inputs[1])?.shape()))
}
