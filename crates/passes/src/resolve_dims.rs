//! `dim_value` of a number becomes a constant.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Graph, Op};
use precast_tensor::Tensor;

use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "resolve_dims",
    doc: "dim_value {dim=8} → constant 8",
    class: Class::Exact,
    run: Run::Plain(resolve_dims),
};

fn resolve_dims(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match &node.op {
            Op::DimValue(op) if op.dim.is_const() => {
                let number = op.dim.as_const().unwrap_or_default();
                let constant = copy.new.add_constant(Tensor::scalar(number));
                copy.set(node.outputs[0], constant);
                log.fired(node);
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}
