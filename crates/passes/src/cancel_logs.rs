//! The logarithm of an exponential is its operand, that of a quotient a difference (A9). Neither overflows where the
//! model does: exp(100) is infinite in f32, and a / b may be, or 0, where both logarithms are finite.

use precast_ir::graph::{GraphCopy, GraphError, Provenance};
use precast_ir::op::{Binary, BinaryFn, Unary, UnaryFn};
use precast_ir::{Graph, Op, ValueId};

use crate::fast_math::FastRewrite;
use crate::log::Log;
use crate::pattern::{made_by, made_by_unary};
use crate::pipeline::{Class, Liberty, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "cancel_logs",
    doc: "log(exp(x)) → x; log(a / b) → log(a) − log(b)",
    class: Class::Fast(Liberty::Math(FastRewrite::LogExp)),
    run: Run::Plain(cancel_logs),
};

fn cancel_logs(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match &node.op {
            Op::Unary(unary) if unary.func == UnaryFn::Log && is_special(graph, node.inputs[0]) => {
                log.fired(node);
                let output = log_of(graph, &mut copy, node.inputs[0], &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

fn is_special(graph: &Graph, value: ValueId) -> bool {
    made_by_unary(graph, value, UnaryFn::Exp).is_some() || made_by(graph, value, BinaryFn::Div).is_some()
}

/// The logarithm of a value; quotients of quotients come apart too, so that the pass leaves nothing for a second run.
fn log_of(
    graph: &Graph,
    copy: &mut GraphCopy<'_>,
    value: ValueId,
    provenance: &Provenance,
) -> Result<ValueId, GraphError> {
    if let Some(x) = made_by_unary(graph, value, UnaryFn::Exp) {
        return Ok(copy.get(x));
    }
    if let Some((a, b)) = made_by(graph, value, BinaryFn::Div) {
        let (a, b) = (log_of(graph, copy, a, provenance)?, log_of(graph, copy, b, provenance)?);
        return copy.new.add(Binary { func: BinaryFn::Sub }, &[a, b], provenance);
    }
    let x = copy.get(value);
    copy.new.add(Unary { func: UnaryFn::Log, alpha: 0.0, beta: 0.0 }, &[x], provenance)
}
