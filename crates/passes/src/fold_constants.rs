//! Nodes of constants become constants, by reference evaluation, within a budget: results of up to 64 KiB always; larger
//! ones only if they are not much larger than the constants they replace. What only replicates data is never folded. A
//! cast may grow by the ratio of its element types: weights that an exporter stores as bytes and casts would otherwise be
//! cast, and packed, in every run.

use std::collections::HashMap;

use precast_ir::eval_parts::eval_in_parts;
use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::work::multiply_adds;
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{Tensor, Type};

use crate::log::{Log, Reason};
use crate::pipeline::{Class, Pass, Run};

/// Results of this size or less are always worth folding.
const SMALL_BYTES: u64 = 64 << 10;
/// Larger results may exceed their inputs by this factor: 5/4.
const GROWTH: (u64, u64) = (5, 4);
/// Multiply-adds that one folded node may cost.
const MULTIPLY_ADDS_MAX: u64 = 1 << 30;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fold_constants",
    doc: "f(constants) → constant",
    class: Class::Exact,
    run: Run::Plain(fold_constants),
};

/// A size is a symbol.
const UNKNOWN_SIZE: Reason = "unknown-size";
/// The op draws numbers or has a body.
const NOT_FOLDABLE: Reason = "not-foldable";
/// The op repeats what it reads.
const ONLY_REPLICATES: Reason = "only-replicates";
/// The result is larger than what it replaces.
const GROWS: Reason = "grows";
/// Evaluating it takes too long.
const TOO_MUCH_WORK: Reason = "too-much-work";

fn fold_constants(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    let mut folded = Folded::new(graph);
    for node in graph.nodes() {
        let constants = folded.constants(node);
        let refusal = constants.as_ref().and_then(|constants| refusal(graph, node, constants));
        if let Some(reason) = refusal {
            log.refused(node, reason);
        }
        let constants = constants.filter(|_| refusal.is_none());
        match constants.and_then(|constants| eval_in_parts(&node.op, &constants).ok()) {
            Some(results) => {
                log.fired(node);
                folded.keep(node, results);
            }
            None => {
                folded.add_to(&mut copy, &node.inputs);
                copy.node(node)?;
            }
        }
        folded.drop_unused(node);
    }
    let outputs = graph.outputs().iter().map(|output| output.value);
    let kept: Vec<ValueId> = outputs.chain(graph.sizes.iter().map(|size| size.value)).collect();
    folded.add_to(&mut copy, &kept);
    Ok(copy.finish())
}

/// Results of folded nodes that a later node reads. They become constants of the new Graph only where a node that stays
/// reads them: a chain of large ones would else be in memory all at once.
struct Folded<'a> {
    graph: &'a Graph,
    tensors: HashMap<ValueId, Tensor>,
    /// Nodes that have yet to read each value.
    readers: Vec<usize>,
}

impl<'a> Folded<'a> {
    fn new(graph: &'a Graph) -> Folded<'a> {
        let mut readers = vec![0; graph.values().len()];
        let reads = graph.nodes().iter().flat_map(|node| node.inputs.iter().copied());
        let outputs = graph.outputs().iter().map(|output| output.value);
        for value in reads.chain(outputs).chain(graph.sizes.iter().map(|size| size.value)) {
            readers[value.0 as usize] += 1;
        }
        Folded { graph, tensors: HashMap::new(), readers }
    }

    /// The operands of a node, if all are constants.
    fn constants(&self, node: &Node) -> Option<Vec<Tensor>> {
        let find = |value: &ValueId| self.tensors.get(value).or_else(|| self.graph.constant(*value)).cloned();
        node.inputs.iter().map(find).collect()
    }

    fn keep(&mut self, node: &Node, results: Vec<Tensor>) {
        self.tensors.extend(node.outputs.iter().copied().zip(results));
    }

    /// Makes those of these values that were folded constants of the new Graph.
    fn add_to(&self, copy: &mut GraphCopy<'_>, values: &[ValueId]) {
        for value in values {
            if let Some(tensor) = self.tensors.get(value).filter(|_| !copy.has(*value)) {
                let constant = copy.new.add_constant(tensor.clone());
                copy.set(*value, constant);
            }
        }
    }

    /// Lets go of what no node reads after this one.
    fn drop_unused(&mut self, node: &Node) {
        for input in &node.inputs {
            self.readers[input.0 as usize] -= 1;
        }
        for value in node.inputs.iter().chain(&node.outputs) {
            if self.readers[value.0 as usize] == 0 {
                self.tensors.remove(value);
            }
        }
    }
}

/// Whether the op's meaning needs nothing but its inputs, and does more than copy them.
fn is_foldable(op: &Op) -> bool {
    !matches!(op, Op::Uniform(_) | Op::Normal(_) | Op::If(_) | Op::Loop(_) | Op::Fused(_) | Op::NonZero(_) | Op::Nms(_))
}

fn only_replicates(op: &Op) -> bool {
    matches!(op, Op::Broadcast(_) | Op::Iota(_) | Op::Dequantize(_) | Op::Pad(_))
}

/// Why a node of constants stays.
fn refusal(graph: &Graph, node: &Node, constants: &[Tensor]) -> Option<Reason> {
    let Some(result_bytes) = node.outputs.iter().map(|&output| bytes_of(graph.ty(output))).sum::<Option<u64>>() else {
        return Some(UNKNOWN_SIZE);
    };
    let input_bytes: u64 = constants.iter().map(|tensor| tensor.as_bytes().len() as u64).sum();
    let is_small = result_bytes <= SMALL_BYTES;
    let is_cast = matches!(node.op, Op::Cast(_));
    let is_no_growth = is_cast || (result_bytes <= input_bytes / GROWTH.1 * GROWTH.0 && !only_replicates(&node.op));
    if !is_foldable(&node.op) {
        return Some(NOT_FOLDABLE);
    }
    if !is_small && !is_no_growth {
        return Some(if only_replicates(&node.op) { ONLY_REPLICATES } else { GROWS });
    }
    (work_of(graph, node) > MULTIPLY_ADDS_MAX).then_some(TOO_MUCH_WORK)
}

fn bytes_of(ty: &Type) -> Option<u64> {
    let count = u64::try_from(ty.element_count().as_const()?).ok()?;
    count.checked_mul(ty.dtype.size_bytes() as u64)
}

fn work_of(graph: &Graph, node: &Node) -> u64 {
    let inputs: Vec<&Type> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
    let outputs: Vec<Type> = node.outputs.iter().map(|&output| graph.ty(output).clone()).collect();
    multiply_adds(&node.op, &inputs, &outputs)
}
