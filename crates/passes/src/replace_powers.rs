//! The power ½ is a square root (A6) but for two operands: pow(−0, ½) is 0 and pow(−∞, ½) is ∞, where sqrt gives −0 and
//! NaN.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{BinaryFn, Unary, UnaryFn};
use precast_ir::{Graph, Node, ValueId};

use crate::fast_math::FastRewrite;
use crate::log::{Log, Reason};
use crate::pattern::{binary, is_number};
use crate::pipeline::{Class, Liberty, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "replace_powers",
    doc: "pow(x, ½) → sqrt(x)",
    class: Class::Fast(Liberty::Math(FastRewrite::PowSqrt)),
    run: Run::Plain(replace_powers),
};

/// The result has another Type than x.
const BROADCAST: Reason = "broadcast";

fn replace_powers(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match square_root(graph, node) {
            Some(x) if graph.ty(x) == graph.ty(node.outputs[0]) => {
                log.fired(node);
                let x = copy.get(x);
                let sqrt = Unary { func: UnaryFn::Sqrt, alpha: 0.0, beta: 0.0 };
                let output = copy.new.add(sqrt, &[x], &node.provenance)?;
                copy.set(node.outputs[0], output);
            }
            Some(_) => {
                log.refused(node, BROADCAST);
                copy.node(node)?;
            }
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// The base of a float power of one half.
fn square_root(graph: &Graph, node: &Node) -> Option<ValueId> {
    let (x, exponent) = binary(node, BinaryFn::Pow)?;
    let is_half = graph.ty(exponent).dtype.is_float() && is_number(graph, exponent, 0.5);
    (is_half && graph.ty(x).dtype.is_float()).then_some(x)
}
