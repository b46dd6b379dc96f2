//! GELU by erf becomes its approximation by tanh, which differs by up to 5e-4 and costs less.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Unary, UnaryFn};
use precast_ir::{Graph, Op};

use crate::fast_math::FastRewrite;
use crate::log::Log;
use crate::pipeline::{Class, Liberty, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "approximate_gelu",
    doc: "gelu_erf(x) → gelu_tanh(x)",
    class: Class::Fast(Liberty::Math(FastRewrite::Gelu)),
    run: Run::Plain(approximate_gelu),
};

fn approximate_gelu(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match &node.op {
            Op::Unary(unary) if unary.func == UnaryFn::GeluErf => {
                log.fired(node);
                copy.node_as(node, Unary { func: UnaryFn::GeluTanh, ..unary.clone() }.into())?;
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}
