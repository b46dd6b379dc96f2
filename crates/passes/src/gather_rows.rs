//! Keeps some rows of each sequence of an output: `y [batch, length, ..]` becomes `y [batch, wanted, ..]`, the rows that a new
//! input `index` i64 [batch, wanted] names.
//!
//! Before: every row goes through the last layers. After: rows are gathered as early as nothing else needs the others:
//! before the last norm and the product with the vocabulary, and before what of the last layer only this output reads.

use std::collections::BTreeSet;

use precast_ir::graph::{GraphCopy, GraphError, Provenance};
use precast_ir::op::{GatherNd, Reshape};
use precast_ir::{Definition, Graph, Node, Op, ValueId};
use precast_tensor::{DType, Dim, Type};

/// The Graph with `wanted` rows of each sequence of the output called `output`, chosen by a new input called `index`.
pub fn gather_rows(graph: &Graph, output: &str, index: &str, wanted: Dim) -> Result<Graph, GraphError> {
    let graph = &with_all_rows(graph, output)?;
    let Some(value) = graph.outputs().iter().find(|port| port.name == output).map(|port| port.value) else {
        return Ok(graph.clone());
    };
    let [batch, length, _, ..] = &graph.ty(value).dims[..] else { return Ok(graph.clone()) };
    let others = graph.outputs().iter().filter(|port| port.name != output).map(|port| port.value);
    let rows = Rows::of(graph, value, (batch, length), closure(graph, others));
    let mut copy = GraphCopy::with_inputs(graph);
    let index = copy.new.add_input(index, Type::new(DType::I64, vec![batch.clone(), wanted.clone()]));
    let shape = vec![batch.clone(), wanted, Dim::ONE];
    let mut gathering = Gathering { rows: &rows, new: vec![None; graph.values().len()], index, shape };
    for &input in graph.inputs() {
        gathering.at_border(&mut copy, input)?;
    }
    for node in graph.nodes() {
        if node.outputs.iter().any(|value| rows.whole.contains(value)) {
            copy.node(node)?;
        }
        for &value in &node.outputs {
            gathering.at_border(&mut copy, value)?;
        }
        if node.outputs.iter().any(|value| rows.inside.contains(value)) {
            gathering.node(&mut copy, node)?;
        }
    }
    let outputs: Vec<ValueId> = graph
        .outputs()
        .iter()
        .map(|port| match gathering.new[port.value.0 as usize] {
            Some(value) if port.name == output => value,
            _ => copy.get(port.value),
        })
        .collect();
    let mut gathered = copy.new;
    for (port, value) in graph.outputs().iter().zip(outputs) {
        gathered.add_output(port.name.clone(), value);
    }
    Ok(gathered)
}

/// The Graph without a gather of the last row on the way to an output, as exporters put it there: where lengths are padded,
/// the last row is not the one that is wanted.
fn with_all_rows(graph: &Graph, output: &str) -> Result<Graph, GraphError> {
    let port = graph.outputs().iter().find(|port| port.name == output);
    let Some((gather, unsqueeze)) = port.and_then(|port| last_row_gather(graph, port.value)) else {
        return Ok(graph.clone());
    };
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        match node.outputs[0] {
            value if value == gather || value == unsqueeze => {
                let rows = copy.get(node.inputs[0]);
                copy.set(value, rows);
            }
            _ => copy.node(node)?,
        }
    }
    Ok(copy.finish())
}

/// What gathers the last row of [batch, length, ..] and what gives it the axis back, on the way to a value.
fn last_row_gather(graph: &Graph, value: ValueId) -> Option<(ValueId, ValueId)> {
    let uses = graph.use_counts();
    let mut value = value;
    loop {
        let (node, _) = graph.producer(value)?;
        // Weights of a product may be made of constants by nodes of their own; its rows come first.
        let candidates = if matches!(node.op, Op::Matmul(_)) { &node.inputs[..1] } else { &node.inputs[..] };
        let mut computed = candidates.iter().filter(|&&input| graph.constant(input).is_none());
        let (Some(input), None) = (computed.next(), computed.next()) else { return None };
        let below = graph.producer(*input).map(|(node, _)| node);
        if let (Op::Reshape(_), Some(gather)) = (&node.op, below)
            && is_last_row(graph, gather)
            && uses[input.0 as usize] == 1
        {
            let (rows, dims) = (&graph.ty(gather.inputs[0]).dims, &graph.ty(value).dims);
            let is_unsqueezed =
                matches!((&rows[..], &dims[..]), ([a, _, b], [c, one, d]) if a == c && b == d && *one == Dim::ONE);
            return is_unsqueezed.then_some((*input, value));
        }
        let is_row_wise = matches!(node.op, Op::Matmul(_) | Op::Unary(_) | Op::Binary(_) | Op::Clamp(_) | Op::Cast(_));
        if !is_row_wise || uses[input.0 as usize] != 1 {
            return None;
        }
        value = *input;
    }
}

fn is_last_row(graph: &Graph, node: &Node) -> bool {
    let is_last = |index: ValueId| graph.constant(index).is_some_and(|index| index.to_f64_vec() == [-1.0]);
    matches!(&node.op, Op::Gather(gather) if gather.axis == 1) && is_last(node.inputs[1])
}

/// Which values exist in which form.
struct Rows {
    /// Values of which only the wanted rows are computed.
    inside: BTreeSet<ValueId>,
    /// Values whose wanted rows are gathered.
    border: BTreeSet<ValueId>,
    /// Values that are computed as a whole.
    whole: BTreeSet<ValueId>,
}

impl Rows {
    fn of(graph: &Graph, wanted: ValueId, (batch, length): (&Dim, &Dim), whole: BTreeSet<ValueId>) -> Rows {
        let (mut inside, mut border, mut plain) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut open = vec![wanted];
        while let Some(value) = open.pop() {
            if inside.contains(&value) || border.contains(&value) {
                continue;
            }
            let node = match &graph.value(value).definition {
                Definition::Node { node, .. } if !whole.contains(&value) => Some(graph.node(*node)),
                Definition::Node { .. } | Definition::Input(_) | Definition::Constant(_) => None,
            };
            match node.and_then(|node| row_inputs(graph, node, batch, length)) {
                Some(row_inputs) => {
                    inside.insert(value);
                    let inputs = node.map_or(&[][..], |node| &node.inputs);
                    plain.extend(inputs.iter().copied().filter(|input| !row_inputs.contains(input)));
                    open.extend(row_inputs);
                }
                None => drop(border.insert(value)),
            }
        }
        let whole = closure(graph, whole.into_iter().chain(border.iter().copied()).chain(plain));
        Rows { inside, border, whole }
    }
}

/// The inputs of a node that have a row for each row of its output, if each row of its output is made of those rows and of
/// inputs without rows.
fn row_inputs(graph: &Graph, node: &Node, batch: &Dim, length: &Dim) -> Option<Vec<ValueId>> {
    let dims = |value: ValueId| &graph.ty(value).dims;
    let [output] = node.outputs[..] else { return None };
    let has_rows = |value: ValueId| matches!(&dims(value)[..], [a, b, _, ..] if a == batch && b == length);
    let rank = dims(output).len();
    let is_row_wise = match &node.op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Cast(_) => true,
        Op::LayerNorm(norm) => norm.axis >= 2,
        Op::RmsNorm(norm) => norm.axis >= 2,
        Op::Softmax(softmax) => softmax.axis >= 2,
        Op::Matmul(product) => rank == 3 && !product.transpose_a && dims(node.inputs[1]).len() == 2,
        _ => false,
    };
    let rows: Vec<ValueId> = node.inputs.iter().copied().filter(|&input| has_rows(input)).collect();
    let is_operand = matches!(node.op, Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Matmul(_));
    // What has no rows must not be spread along them: scales and weights are not, other inputs are of lower rank.
    let fits = |&input: &ValueId| has_rows(input) || is_operand || dims(input).len() + 1 < rank;
    (is_row_wise && has_rows(output) && !rows.is_empty() && node.inputs.iter().all(fits)).then_some(rows)
}

/// Values that these are made of, themselves included.
fn closure(graph: &Graph, values: impl Iterator<Item = ValueId>) -> BTreeSet<ValueId> {
    let mut open: Vec<ValueId> = values.collect();
    let mut found = BTreeSet::new();
    while let Some(value) = open.pop() {
        if !found.insert(value) {
            continue;
        }
        if let Definition::Node { node, .. } = graph.value(value).definition {
            let node = graph.node(node);
            open.extend(node.inputs.iter().chain(&node.outputs).copied());
        }
    }
    found
}

/// The second form of values: only the wanted rows.
struct Gathering<'r> {
    rows: &'r Rows,
    new: Vec<Option<ValueId>>,
    index: ValueId,
    /// Sizes of the index as a gather reads it.
    shape: Vec<Dim>,
}

impl Gathering<'_> {
    /// Gathers the rows of a value at the border.
    fn at_border(&mut self, copy: &mut GraphCopy<'_>, value: ValueId) -> Result<(), GraphError> {
        if !self.rows.border.contains(&value) {
            return Ok(());
        }
        let whole = copy.get(value);
        let provenance = Provenance::default();
        let shape = self.shape.clone();
        let index = copy.new.add_node(Op::Reshape(Reshape { shape }), &[self.index], &provenance)?[0];
        let gather = Op::GatherNd(GatherNd { batch_axes: 1 });
        self.new[value.0 as usize] = Some(copy.new.add_node(gather, &[whole, index], &provenance)?[0]);
        Ok(())
    }

    /// Adds a node on the wanted rows of its inputs.
    fn node(&mut self, copy: &mut GraphCopy<'_>, node: &Node) -> Result<(), GraphError> {
        let inputs: Vec<ValueId> =
            node.inputs.iter().map(|&input| self.new[input.0 as usize].unwrap_or_else(|| copy.get(input))).collect();
        let outputs = copy.new.add_node(node.op.clone(), &inputs, &node.provenance)?;
        for (old, new) in node.outputs.iter().zip(outputs) {
            self.new[old.0 as usize] = Some(new);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use precast_ir::attr::NoConstants;
    use precast_ir::eval::eval_graph;
    use precast_ir::text;
    use precast_tensor::Tensor;

    /// A residual stream whose other output needs all rows of the first sum.
    const SOURCE: &str = r#"graph "g"(%0 "x": f32[b,l,2], %1 "y": f32[b,l,2]) {
  %2 = constant f32[2] [1.0, 2.0]
  %3 = constant f32[2,3] [1.0, 2.0, 3.0, -1.0, 0.5, 4.0]
  %4 = binary.add(%0, %1) : f32[b,l,2]
  %5 = transpose(%4) {perm=[0,2,1]} : f32[b,2,l]
  %6 = unary.tanh(%4) {alpha=0.0, beta=0.0} : f32[b,l,2]
  %7 = rms_norm(%6, %2) {axis=2, epsilon=0.00001} : f32[b,l,2]
  %8 = matmul(%7, %3) {transpose_a=false, transpose_b=false} : f32[b,l,3]
  return "logits" %8, "other" %5
}
"#;

    #[test]
    fn a_gather_of_the_last_row_becomes_one_of_the_wanted_row() {
        let source = r#"graph "g"(%0 "x": f32[b,l,2]) {
  %1 = constant i64[] [-1]
  %2 = constant f32[2,3] [1.0, 2.0, 3.0, -1.0, 0.5, 4.0]
  %3 = gather(%0, %1) {axis=1} : f32[b,2]
  %4 = reshape(%3) {shape=[b,1,2]} : f32[b,1,2]
  %5 = matmul(%4, %2) {transpose_a=false, transpose_b=false} : f32[b,1,3]
  return "logits" %5
}
"#;
        let graph = text::parse(source, &NoConstants).unwrap();
        let gathered = gather_rows(&graph, "logits", "index", Dim::ONE).unwrap();
        let names: Vec<&str> = gathered.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(names, ["reshape", "gather_nd", "matmul"]);
        let x = Tensor::from_vec(vec![1, 3, 2], vec![1.0f32, 0.0, 0.0, 1.0, 5.0, 5.0]).unwrap();
        let index = Tensor::from_vec(vec![1, 1], vec![1i64]).unwrap();
        assert_eq!(eval_graph(&gathered, &[x, index]).unwrap()[0].to_f64_vec(), [-1.0, 0.5, 4.0]);
    }

    #[test]
    fn rows_are_gathered_where_nothing_else_needs_the_others() {
        let graph = text::parse(SOURCE, &NoConstants).unwrap();
        let gathered = gather_rows(&graph, "logits", "index", Dim::symbol("w")).unwrap();
        let rows: Vec<String> = gathered
            .nodes()
            .iter()
            .map(|node| format!("{} {}", node.op.name(), gathered.ty(node.outputs[0])))
            .collect();
        let expected = [
            "binary f32[b,l,2]",
            "reshape i64[b,w,1]",
            "gather_nd f32[b,w,2]",
            "transpose f32[b,2,l]",
            "unary f32[b,w,2]",
            "rms_norm f32[b,w,2]",
            "matmul f32[b,w,3]",
        ];
        assert_eq!(rows, expected);
        let tensor = |shift: f32| {
            let elements: Vec<f32> = (0..12).map(|i| i as f32 / 5.0 - shift).collect();
            Tensor::from_vec(vec![2, 3, 2], elements).unwrap()
        };
        let whole = eval_graph(&graph, &[tensor(1.0), tensor(0.5)]).unwrap();
        let all = whole[0].to_f64_vec();
        let chosen = |wanted: usize, index: &[i64]| {
            let index = Tensor::from_vec(vec![2, wanted], index.to_vec()).unwrap();
            eval_graph(&gathered, &[tensor(1.0), tensor(0.5), index]).unwrap()
        };
        let one = chosen(1, &[2, 0]);
        assert_eq!(one[0].to_f64_vec(), [&all[6..9], &all[9..12]].concat());
        assert_eq!(one[1], whole[1]);
        let two = chosen(2, &[0, 2, 1, 1]);
        assert_eq!(two[0].to_f64_vec(), [&all[0..3], &all[6..9], &all[12..15], &all[12..15]].concat());
    }

    /// The last layer of a decoder: its keys and values are outputs, and the stream before it is added to twice.
    const LAYER: &str = r#"graph "g"(%0 "x": f32[b,l,4], %1 "keys": f32[b,1,s,2], %2 "values": f32[b,1,s,2], %3 "cached": i32[b]) {
  %4 = constant f32[4] [1.0, 2.0, 0.5, 1.0]
  %5 = constant f32[4,8] [1.0, 2.0, 3.0, -1.0, 0.5, 4.0, 1.0, 0.0, 1.0, -2.0, 0.0, 1.0, 0.5, -1.0, 2.0, 1.0, 1.0, 1.0, -3.0, 0.0, 0.5, 2.0, 1.0, 0.0, 0.5, 1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 2.0]
  %6 = constant f32[4,4] [1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.0, 0.0, -0.5, 0.0, 1.0]
  %7 = rms_norm(%0, %4) {axis=2, epsilon=0.00001} : f32[b,l,4]
  %8 = matmul(%7, %5) {transpose_a=false, transpose_b=false} : f32[b,l,8]
  %9, %10, %11 = cached_attention(%8, %1, %2, %3) {heads=2, kv_heads=1, scale=0.5, softcap=0.0, window=0, rotary=none, positions=false, sinks=false, paged=false} : f32[b,l,4], f32[b,1,l,2], f32[b,1,l,2]
  %12 = matmul(%9, %6) {transpose_a=false, transpose_b=false} : f32[b,l,4]
  %13 = binary.add(%0, %12) : f32[b,l,4]
  %14 = rms_norm(%13, %4) {axis=2, epsilon=0.00001} : f32[b,l,4]
  %15 = matmul(%14, %6) {transpose_a=false, transpose_b=false} : f32[b,l,4]
  %16 = unary.silu(%15) {alpha=1.0, beta=0.0} : f32[b,l,4]
  %17 = matmul(%14, %6) {transpose_a=false, transpose_b=false} : f32[b,l,4]
  %18 = binary.mul(%16, %17) : f32[b,l,4]
  %19 = binary.add(%13, %18) : f32[b,l,4]
  return "logits" %19, "new_keys" %10, "new_values" %11
}
"#;

    #[test]
    fn of_the_last_layer_only_keys_and_values_have_all_rows() {
        let graph = text::parse(LAYER, &NoConstants).unwrap();
        let gathered = gather_rows(&graph, "logits", "index", Dim::ONE).unwrap();
        let whole: Vec<&str> = gathered
            .nodes()
            .iter()
            .filter(|node| gathered.ty(node.outputs[0]).dims.get(1) == Some(&Dim::symbol("l")))
            .map(|node| node.op.name())
            .collect();
        assert_eq!(whole, ["rms_norm", "matmul", "cached_attention"]);
        let tensor = |shape: &[usize], shift: usize| {
            let count = shape.iter().product::<usize>();
            let elements: Vec<f32> = (0..count).map(|i| ((i * 7 + shift) % 11) as f32 / 5.0 - 1.0).collect();
            Tensor::from_vec(shape.to_vec(), elements).unwrap()
        };
        // Rows of a batch have cached different numbers of tokens, and their last tokens stand in different places.
        let cached = Tensor::from_vec(vec![2], vec![3i32, 1]).unwrap();
        let inputs = [tensor(&[2, 5, 4], 0), tensor(&[2, 1, 3, 2], 1), tensor(&[2, 1, 3, 2], 2), cached];
        let all = eval_graph(&graph, &inputs).unwrap();
        for index in [[4i64, 2], [0, 4]] {
            let index_tensor = Tensor::from_vec(vec![2, 1], index.to_vec()).unwrap();
            let found = eval_graph(&gathered, &[inputs.to_vec(), vec![index_tensor]].concat()).unwrap();
            let rows = all[0].to_f64_vec();
            let at = |batch: usize| (batch * 5 + index[batch] as usize) * 4;
            assert_eq!(found[0].to_f64_vec(), [&rows[at(0)..at(0) + 4], &rows[at(1)..at(1) + 4]].concat());
            assert_eq!(found[1..], all[1..]);
        }
    }

    #[test]
    fn an_output_without_rows_and_one_that_is_not_there_stay_as_they_are() {
        let source = r#"graph "g"(%0 "x": f32[b,l]) {
  %1 = unary.tanh(%0) {alpha=0.0, beta=0.0} : f32[b,l]
  return "logits" %1
}
"#;
        let graph = text::parse(source, &NoConstants).unwrap();
        for output in ["logits", "other"] {
            let same = gather_rows(&graph, output, "index", Dim::ONE).unwrap();
            assert_eq!(same.to_string(), graph.to_string());
        }
    }
}
