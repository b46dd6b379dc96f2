//! Which values lie with their channels innermost: what convolutions on matrix units read and write, and what lies between
//! them. Kernels take any layout of any operand, so this choice is about speed alone.

use precast_ir::{Graph, Node, Op};
use precast_passes::fuse_pointwise::is_pointwise;

use crate::kernel::Arch;
use crate::ops::conv;
use crate::site::{Layouts, Site};

/// The layout of every value of a graph whose dims are numbers.
pub fn choose_layouts(graph: &Graph, arch: &Arch) -> Layouts {
    let mut layouts = Layouts::default();
    let is_bound = row_major_values(graph);
    for node in graph.nodes() {
        let site = Site { graph, node, arch, layouts: &layouts };
        let is_wanted = conv::wants_channels_last(&site) || follows(graph, node, &layouts);
        if !is_wanted {
            continue;
        }
        for &output in &node.outputs {
            if graph.ty(output).dims.len() > 2 && !is_bound[output.0 as usize] {
                layouts.set_channels_last(output);
            }
        }
    }
    layouts
}

/// Values whose bytes others read in row-major order: results of the graph and what is viewed under another Type.
fn row_major_values(graph: &Graph) -> Vec<bool> {
    let mut is_bound = vec![false; graph.values().len()];
    for output in graph.outputs() {
        is_bound[output.value.0 as usize] = true;
    }
    for node in graph.nodes() {
        if matches!(node.op, Op::Reshape(_) | Op::Bitcast(_)) {
            is_bound[node.inputs[0].0 as usize] = true;
            is_bound[node.outputs[0].0 as usize] = true;
        }
    }
    is_bound
}

/// Whether a node keeps the axes of an operand whose channels are innermost.
fn follows(graph: &Graph, node: &Node, layouts: &Layouts) -> bool {
    let keeps_axes = match &node.op {
        Op::Fused(fused) => fused.body.nodes().iter().all(|node| is_pointwise(&node.op)),
        Op::Pool(_) | Op::Resize(_) | Op::Concat(_) | Op::Slice(_) | Op::Pad(_) | Op::GroupNorm(_) => true,
        op => is_pointwise(op),
    };
    let rank = graph.ty(node.outputs[0]).dims.len();
    let operands = node.inputs.iter().filter(|&&input| graph.ty(input).dims.len() == rank);
    keeps_axes && operands.into_iter().any(|&input| layouts.is_channels_last(input))
}
