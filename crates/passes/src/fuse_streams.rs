//! Products of few rows with constant weights, as a decoder's step has them, take along the norm of their rows, a second product
//! of the same rows, and what follows: such a product takes as long as its weights take to read, and each step of its own
//! beside it only adds to that. Weights that lie as blocks of few bits are read so.

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Definition, Graph, Node, NodeId, Op, ValueId};
use precast_tensor::DType;

use crate::block_weights::block_weights;
use crate::fuse_epilogues::{add_fused, single_consumers};
use crate::fuse_pointwise::is_pointwise;
use crate::log::Log;
use crate::pipeline::{Class, Pass, Run};
use crate::step_costs::StepCosts;

/// The pass.
pub const PASS: Pass = Pass {
    name: "fuse_streams",
    doc: "silu(matmul(n, W)) · matmul(n, V) with n = rms_norm(x) → fused { rms_norm, matmul, silu, matmul, mul }, W and V constant, \
          where there are few rows; the same for one product, with what is added to it, and with W = dequantize(unpack(bytes))",
    class: Class::Exact,
    run: Run::Costed(fuse_streams),
};

/// What short rows, and blocks of their weights, are multiples of: so many of their elements are read at once.
const SHORT_MULTIPLE: usize = 8;
/// Nodes that may follow products.
const FOLLOWERS_MAX: usize = 8;

fn fuse_streams(graph: &Graph, costs: &StepCosts, log: &mut Log) -> Result<Graph, GraphError> {
    let streams = Streams::find(graph, costs);
    let mut copy = GraphCopy::with_inputs(graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        match &streams.ending_at[position] {
            Some(chain) => {
                log.fired(graph.node(chain[0]));
                add_fused(graph, &mut copy, chain)?;
            }
            None if streams.is_absorbed[position] => {}
            None => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// Which nodes become one.
struct Streams {
    /// By the last node.
    ending_at: Vec<Option<Vec<NodeId>>>,
    is_absorbed: Vec<bool>,
}

impl Streams {
    fn find(graph: &Graph, costs: &StepCosts) -> Streams {
        let count = graph.nodes().len();
        let mut streams = Streams { ending_at: vec![None; count], is_absorbed: vec![false; count] };
        if costs.streamed_rows == 0 {
            return streams;
        }
        let (users, consumers) = (users_of(graph), single_consumers(graph));
        let mut is_taken = vec![false; count];
        for position in 0..count {
            let id = NodeId(position as u32);
            if is_taken[position] || !is_streamed(graph, &consumers, graph.node(id), costs) {
                continue;
            }
            let norm = norm_of(graph, graph.node(id).inputs[0]);
            let is_other = |other: &Node| is_streamed(graph, &consumers, other, costs);
            let Some(mut chain) = grown(graph, &users, id, &is_taken, is_other) else { continue };
            let is_wide = graph.ty(graph.node(id).outputs[0]).dtype == DType::F32;
            let products: Vec<NodeId> =
                chain.iter().copied().filter(|id| matches!(graph.node(*id).op, Op::Matmul(_))).collect();
            let blocks = products.iter().filter_map(|id| block_weights(graph, &consumers, graph.node(*id)));
            let blocks: Vec<NodeId> = blocks.flatten().collect();
            // A product of f32 without a norm is for epilogues to find.
            if is_wide && norm.is_none() && products.len() == 1 && blocks.is_empty() {
                continue;
            }
            chain.extend(blocks);
            chain.sort();
            chain.iter().for_each(|id| is_taken[id.0 as usize] = true);
            let last = *chain.last().expect("a chain has its product");
            for id in &chain[..chain.len() - 1] {
                streams.is_absorbed[id.0 as usize] = true;
            }
            chain.extend(norm);
            chain.sort();
            if chain.len() > 1 {
                streams.ending_at[last.0 as usize] = Some(chain);
            }
        }
        streams.drop_norms(graph, &users);
        streams
    }

    /// A norm that every reader computes itself is gone.
    fn drop_norms(&mut self, graph: &Graph, users: &[Vec<NodeId>]) {
        let chains: Vec<&Vec<NodeId>> = self.ending_at.iter().flatten().collect();
        for (position, node) in graph.nodes().iter().enumerate() {
            let id = NodeId(position as u32);
            let takes_norm = |user: &NodeId| chains.iter().any(|chain| chain.contains(&id) && chain.contains(user));
            let is_output = graph.outputs().iter().any(|output| node.outputs.contains(&output.value));
            let readers = &users[node.outputs[0].0 as usize];
            if matches!(node.op, Op::RmsNorm(_)) && !is_output && !readers.is_empty() && readers.iter().all(takes_norm)
            {
                self.is_absorbed[position] = true;
            }
        }
    }
}

/// For each value the nodes that read it.
fn users_of(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut users = vec![Vec::new(); graph.values().len()];
    for (position, node) in graph.nodes().iter().enumerate() {
        for input in &node.inputs {
            users[input.0 as usize].push(NodeId(position as u32));
        }
    }
    users
}

/// Whether a node multiplies few rows with constant weights, or with weights that are made of constant blocks.
fn is_streamed(graph: &Graph, consumers: &[Option<NodeId>], node: &Node, costs: &StepCosts) -> bool {
    let Op::Matmul(op) = &node.op else { return false };
    let ty = graph.ty(node.inputs[0]);
    let Some(shape) = ty.shape() else { return false };
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let is_float = matches!(ty.dtype, DType::F16 | DType::BF16 | DType::F32);
    let is_constant = graph.constant(node.inputs[1]).is_some_and(|weights| weights.rank() == 2);
    let blocks = block_weights(graph, consumers, node);
    let is_short = matches!(ty.dtype, DType::F16 | DType::BF16)
        && shape[shape.len() - 1].is_multiple_of(SHORT_MULTIPLE)
        && blocks.as_ref().is_none_or(|blocks| has_short_blocks(graph, blocks, ty.dtype));
    let rows_max = if is_short { costs.streamed_short_rows } else { costs.streamed_rows };
    let is_matrix = is_constant || blocks.is_some();
    is_float && is_matrix && !op.transpose_a && (1..=rows_max as usize).contains(&rows)
}

/// Whether weights are packed levels of 4 bits with scales of this type.
fn has_short_blocks(graph: &Graph, blocks: &[NodeId], dtype: DType) -> bool {
    let [unpack, scaling] = *blocks else { return false };
    let (levels, scaling) = (graph.ty(graph.node(unpack).outputs[0]).dtype, graph.node(scaling));
    let Op::Dequantize(op) = &scaling.op else { return false };
    let is_packed = matches!(levels, DType::I4 | DType::U4) && op.block.is_multiple_of(SHORT_MULTIPLE);
    is_packed && graph.ty(scaling.inputs[1]).dtype == dtype
}

/// The norm that makes a value, if it is of whole rows with one constant scale for each column.
fn norm_of(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let Definition::Node { node: id, .. } = graph.value(value).definition else { return None };
    let node = graph.node(id);
    let Op::RmsNorm(op) = &node.op else { return None };
    let ty = graph.ty(value);
    let is_scaled = graph.constant(node.inputs[1]).is_some_and(|scale| scale.rank() == 1 && scale.dtype() == ty.dtype);
    (op.axis + 1 == ty.rank() && is_scaled && graph.ty(node.inputs[0]) == ty).then_some(id)
}

/// A product with what follows it: first with another product of the same rows, if they meet.
fn grown(
    graph: &Graph,
    users: &[Vec<NodeId>],
    product: NodeId,
    is_taken: &[bool],
    is_streamed: impl Fn(&Node) -> bool,
) -> Option<Vec<NodeId>> {
    let node = graph.node(product);
    let is_other = |id: &&NodeId| {
        let other = graph.node(**id);
        **id > product
            && !is_taken[id.0 as usize]
            && is_streamed(other)
            && other.inputs[0] == node.inputs[0]
            && graph.ty(other.outputs[0]) == graph.ty(node.outputs[0])
    };
    let others = users[node.inputs[0].0 as usize].iter().filter(is_other);
    let pairs = others.filter_map(|&other| region(graph, users, &[product, other], is_taken));
    let pair = pairs.max_by_key(Vec::len);
    pair.or_else(|| region(graph, users, &[product], is_taken))
}

/// Products and the single elements' work on them, up to the last node whose result alone is read elsewhere.
fn region(graph: &Graph, users: &[Vec<NodeId>], products: &[NodeId], is_taken: &[bool]) -> Option<Vec<NodeId>> {
    let ty = graph.ty(graph.node(products[0]).outputs[0]);
    let mut nodes = products.to_vec();
    let mut best = is_closed(graph, users, &nodes).then(|| nodes.clone());
    let later = graph.nodes().iter().enumerate().skip(products[0].0 as usize + 1);
    for (position, node) in later.filter(|(position, _)| !is_taken[*position]) {
        let id = NodeId(position as u32);
        let makes = |value: &ValueId| nodes.iter().any(|id| graph.node(*id).outputs.contains(value));
        let is_follower = is_pointwise(&node.op) && graph.ty(node.outputs[0]) == ty;
        if nodes.contains(&id) || !is_follower || !node.inputs.iter().any(makes) {
            continue;
        }
        nodes.push(id);
        nodes.sort();
        if is_closed(graph, users, &nodes) {
            best = Some(nodes.clone());
        }
        if nodes.len() == products.len() + FOLLOWERS_MAX {
            break;
        }
    }
    best
}

/// Whether only the last node's result is read elsewhere, and all of the others' here.
fn is_closed(graph: &Graph, users: &[Vec<NodeId>], nodes: &[NodeId]) -> bool {
    let Some((_, earlier)) = nodes.split_last() else { return false };
    earlier.iter().all(|id| {
        let value = graph.node(*id).outputs[0];
        let is_output = graph.outputs().iter().any(|output| output.value == value);
        let readers = &users[value.0 as usize];
        !is_output && !readers.is_empty() && readers.iter().all(|reader| nodes.contains(reader))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use precast_ir::attr::NoConstants;
    use precast_ir::text;

    /// Names of the nodes of a graph of one row of two elements after the pass.
    fn fused(nodes: &str, rows_max: u32) -> String {
        let product = "{transpose_a=false, transpose_b=false} : bf16[1,2]";
        let nodes = nodes.replace("PRODUCT", product).replace("NORM", "{axis=1, epsilon=0.5} : bf16[1,2]");
        let text_of = format!(
            "graph \"\"(%0 \"x\": bf16[1,2], %1 \"r\": bf16[1,2]) {{\n  %2 = constant bf16[2] [1.0, 2.0]\n  \
             %3 = constant bf16[2,2] [1.0, 2.0, 3.0, 4.0]\n{nodes}}}\n"
        );
        fused_text(&text_of, rows_max)
    }

    /// Names of the nodes of a graph after the pass.
    fn fused_text(text_of: &str, rows_max: u32) -> String {
        fused_costed(text_of, [rows_max; 2])
    }

    /// The same with the most rows of any type, and of 16 bits.
    fn fused_costed(text_of: &str, [streamed_rows, streamed_short_rows]: [u32; 2]) -> String {
        let graph = text::parse(text_of, &NoConstants).unwrap();
        let costs = StepCosts { streamed_rows, streamed_short_rows, ..StepCosts::CORES };
        let fused = fuse_streams(&graph, &costs, &mut Log::default()).unwrap();
        let name = |node: &Node| match &node.op {
            Op::Fused(op) => {
                let names: Vec<&str> = op.body.nodes().iter().map(|node| node.op.name()).collect();
                format!("fused({})", names.join(" "))
            }
            op => op.name().to_string(),
        };
        fused.nodes().iter().map(name).collect::<Vec<String>>().join(", ")
    }

    const GATED: &str = "  %4 = rms_norm(%0, %2) NORM
  %5 = matmul(%4, %3) PRODUCT
  %6 = matmul(%4, %3) PRODUCT
  %7 = unary.sigmoid(%5) {alpha=0.0, beta=0.0} : bf16[1,2]
  %8 = binary.mul(%5, %7) : bf16[1,2]
  %9 = binary.mul(%8, %6) : bf16[1,2]
  return \"y\" %9
";

    #[test]
    fn two_products_of_normed_rows_become_one() {
        assert_eq!(fused(GATED, 1), "fused(rms_norm matmul matmul unary binary binary)");
        assert_eq!(fused(GATED, 0), "rms_norm, matmul, matmul, unary, binary, binary");
    }

    #[test]
    fn a_sum_that_is_read_twice_ends_what_follows() {
        let nodes = "  %4 = matmul(%0, %3) PRODUCT
  %5 = binary.add(%4, %1) : bf16[1,2]
  %6 = rms_norm(%5, %2) NORM
  %7 = matmul(%6, %3) PRODUCT
  %8 = binary.add(%7, %5) : bf16[1,2]
  return \"y\" %8
";
        assert_eq!(fused(nodes, 1), "fused(matmul binary), fused(rms_norm matmul binary)");
    }

    #[test]
    fn weights_in_blocks_of_few_bits_stay_so() {
        let text_of = "graph \"\"(%0 \"x\": f32[1,4]) {
  %1 = constant u8[2,2] [1, 2, 3, 4]
  %2 = constant f32[2,2] [1.0, 2.0, 3.0, 4.0]
  %3 = unpack(%1) {to=i4} : i4[2,4]
  %4 = dequantize(%3, %2) {to=f32, axis=1, block=2} : f32[2,4]
  %5 = matmul(%0, %4) {transpose_a=false, transpose_b=true} : f32[1,2]
  return \"y\" %5
}
";
        assert_eq!(fused_text(text_of, 1), "fused(unpack dequantize matmul)");
        assert_eq!(fused_text(text_of, 0), "unpack, dequantize, matmul");
        let read_twice = text_of.replace("return \"y\" %5", "return \"y\" %5, \"w\" %4");
        assert_eq!(fused_text(&read_twice, 1), "unpack, dequantize, matmul");
    }

    #[test]
    fn more_rows_of_16_bits_than_of_others_take_along_what_is_around_them() {
        let ones = |count: usize| vec!["1.0"; count].join(", ");
        let network = |dtype: &str, k: usize| {
            format!(
                "graph \"\"(%0 \"x\": {dtype}[3,{k}]) {{\n  %1 = constant {dtype}[{k}] [{}]\n  %2 = constant {dtype}[{k},1] [{}]
  %3 = rms_norm(%0, %1) {{axis=1, epsilon=0.5}} : {dtype}[3,{k}]
  %4 = matmul(%3, %2) {{transpose_a=false, transpose_b=false}} : {dtype}[3,1]\n  return \"y\" %4\n}}\n",
                ones(k),
                ones(k)
            )
        };
        assert_eq!(fused_costed(&network("bf16", 8), [2, 3]), "fused(rms_norm matmul)");
        assert_eq!(fused_costed(&network("bf16", 8), [2, 2]), "rms_norm, matmul");
        assert_eq!(fused_costed(&network("bf16", 7), [2, 3]), "rms_norm, matmul");
        assert_eq!(fused_costed(&network("f32", 8), [2, 3]), "rms_norm, matmul");
    }

    #[test]
    fn more_rows_of_16_bits_than_of_others_read_blocks_of_4_bits() {
        let network = |scale: &str, block: usize| {
            format!(
                "graph \"\"(%0 \"x\": bf16[3,16]) {{
  %1 = constant u8[1,8] [1, 2, 3, 4, 5, 6, 7, 8]
  %2 = constant {scale}[1,{count}] [{scales}]
  %3 = unpack(%1) {{to=i4}} : i4[1,16]
  %4 = dequantize(%3, %2) {{to=bf16, axis=1, block={block}}} : bf16[1,16]
  %5 = matmul(%0, %4) {{transpose_a=false, transpose_b=true}} : bf16[3,1]
  return \"y\" %5
}}
",
                count = 16 / block,
                scales = vec!["1.0"; 16 / block].join(", ")
            )
        };
        assert_eq!(fused_costed(&network("bf16", 8), [2, 3]), "fused(unpack dequantize matmul)");
        assert_eq!(fused_costed(&network("bf16", 4), [2, 3]), "unpack, dequantize, matmul");
        assert_eq!(fused_costed(&network("f32", 8), [2, 3]), "unpack, dequantize, matmul");
    }

    #[test]
    fn a_norm_that_others_read_stays() {
        let nodes = "  %4 = rms_norm(%0, %2) NORM
  %5 = matmul(%4, %3) PRODUCT
  return \"y\" %5, \"n\" %4
";
        assert_eq!(fused(nodes, 1), "rms_norm, fused(rms_norm matmul)");
    }
}
