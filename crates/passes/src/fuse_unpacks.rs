//! Weights of few bits that a product reads as floats are made of their bytes in one step: written one a byte in between, they
//! would be moved three times.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Definition, Graph, NodeId, Op, ValueId};

use crate::fuse_epilogues::{add_fused, single_consumers};
use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};
use crate::step_costs::StepCosts;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_unpacks",
    doc: "dequantize(unpack(bytes), s) → fused { unpack, dequantize } where products do not take blocks of few bits",
    class: Class::Exact,
    run: Run::Costed(fuse_unpacks),
};

fn fuse_unpacks(graph: &Graph, costs: &StepCosts, log: &mut Log) -> Result<Graph, GraphError> {
    let consumers = single_consumers(graph);
    let unpack_of = |value: ValueId| match graph.value(value).definition {
        Definition::Node { node, .. } if matches!(graph.node(node).op, Op::Unpack(_)) => Some(node),
        _ => None,
    };
    let is_read_once = |id: &NodeId| consumers[graph.node(*id).outputs[0].0 as usize].is_some();
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        let id = NodeId(position as u32);
        let unpack = match &node.op {
            Op::Dequantize(_) if !costs.multiplies_blocks => unpack_of(node.inputs[0]).filter(is_read_once),
            _ => None,
        };
        match unpack {
            Some(unpack) => {
                log.fired(node);
                add_fused(graph, &mut copy, &[unpack, id])?;
            }
            // What nothing reads any more goes with the pass.
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

#[cfg(test)]
mod tests {
    use precast_ir::attr::NoConstants;
    use precast_ir::text;

    use super::*;
    use crate::pipeline::remove_dead;

    fn names(results: &str, costs: &StepCosts) -> Vec<String> {
        let text_of = format!(
            "graph \"\"(%0 \"x\": u8[2,2], %1 \"s\": f32[2,2]) {{\n  %2 = unpack(%0) {{to=i4}} : i4[2,4]\n  \
             %3 = dequantize(%2, %1) {{to=f32, axis=1, block=2}} : f32[2,4]\n  return {results}\n}}\n"
        );
        let graph = text::parse(&text_of, &NoConstants).unwrap();
        let fused = remove_dead(&fuse_unpacks(&graph, costs, &mut Log::default()).unwrap()).unwrap();
        fused.nodes().iter().map(|node| node.op.name().to_string()).collect()
    }

    #[test]
    fn bytes_become_floats_in_one_step() {
        let costs = StepCosts { multiplies_blocks: false, ..StepCosts::CORES };
        assert_eq!(names("\"y\" %3", &costs), ["fused"]);
        assert_eq!(names("\"y\" %3", &StepCosts::CORES), ["unpack", "dequantize"]);
        assert_eq!(names("\"y\" %3, \"levels\" %2", &costs), ["unpack", "dequantize"]);
    }
}
