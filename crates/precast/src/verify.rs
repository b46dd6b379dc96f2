//! Checks every step by itself: each step's result is compared with reference evaluation of the same node on the same
//! operands, so an error is found where it is made and not where it shows.

use precast_ir::graph::GraphCopy;
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::Tensor;

use crate::compare::{Difference, compare};
use crate::error::Error;
use crate::runner::Runner;

/// One step against the meaning of its node.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Position among the nodes of the optimised Graph.
    pub node: usize,
    /// Name of the op.
    pub op: String,
    /// Source nodes.
    pub nodes: Vec<String>,
    /// How far the result is from the meaning.
    pub difference: Difference,
}

/// Every step of a model for these inputs, in order.
pub fn verify_steps(runner: &Runner, inputs: &[(String, Tensor)]) -> Result<Vec<StepReport>, Error> {
    let (graph, positions) = runner.optimised(inputs)?;
    let tensors: Vec<Tensor> = positions.iter().map(|&position| inputs[position].1.clone()).collect();
    let values = run_all_values(runner, &graph, &tensors)?;
    let mut reports = Vec::new();
    for (position, node) in graph.nodes().iter().enumerate() {
        let operands: Option<Vec<Tensor>> = node.inputs.iter().map(|&input| values.get(&graph, input)).collect();
        let (Some(operands), Some(found)) = (operands, values.get(&graph, node.outputs[0])) else { continue };
        let expected = node.op.eval(&operands)?;
        reports.push(StepReport {
            node: position,
            op: node.op.name().to_string(),
            nodes: node.provenance.names().iter().map(|name| name.to_string()).collect(),
            difference: compare(&found, &expected[0]),
        });
    }
    Ok(reports)
}

/// Values of a run, where they could be had.
struct AllValues(Vec<Option<Tensor>>);

impl AllValues {
    fn get(&self, graph: &Graph, value: ValueId) -> Option<Tensor> {
        self.0[value.0 as usize].clone().or_else(|| graph.constant(value).cloned())
    }
}

/// Runs the optimised Graph with every value as an output.
fn run_all_values(runner: &Runner, graph: &Graph, inputs: &[Tensor]) -> Result<AllValues, Error> {
    let mut copy = GraphCopy::with_inputs(graph);
    let mut shown = Vec::new();
    for node in graph.nodes() {
        copy.node(node)?;
        if !matches!(node.op, Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_)) {
            shown.extend(node.outputs.iter().copied());
        }
    }
    let mut wide = copy.new.clone();
    for &value in &shown {
        let new = copy.get(value);
        wide.add_output(format!("v{}", value.0), new);
    }
    let outputs = runner.run_optimised(&wide, inputs)?;
    let mut values: Vec<Option<Tensor>> = vec![None; graph.values().len()];
    for (&input, tensor) in graph.inputs().iter().zip(inputs) {
        values[input.0 as usize] = Some(tensor.clone());
    }
    for (value, tensor) in shown.into_iter().zip(outputs) {
        values[value.0 as usize] = Some(tensor);
    }
    Ok(AllValues(values))
}
