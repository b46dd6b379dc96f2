//! Which nodes only name bytes: a slice that is one run of its operand, a concatenation whose operands are one run each.

use precast_ir::op::{Concat, Slice};
use precast_ir::{Graph, Node};

/// Where the result of a slice starts in its operand, in bytes, if it is one run of it.
pub(crate) fn slice_start(graph: &Graph, node: &Node, op: &Slice) -> Option<u64> {
    let ty = graph.ty(node.inputs[0]);
    let (from, to) = (ty.shape()?, graph.ty(node.outputs[0]).shape()?);
    if to.contains(&0) {
        return None;
    }
    let starts: Vec<usize> = op.start.iter().map(|start| start.as_usize()).collect::<Option<_>>()?;
    // Before the first axis with several elements, starts only move the run; behind it, axes must be whole.
    let cut = to.iter().position(|&size| size > 1).unwrap_or(to.len());
    let is_run = (cut..to.len()).all(|axis| op.step[axis] == 1 && (axis == cut || to[axis] == from[axis]));
    let start = starts.iter().zip(&from).fold(0, |position, (&start, &size)| position * size + start);
    is_run.then_some((start * ty.dtype.size_bytes()) as u64)
}

/// Where the operands of a concatenation start in its result, in bytes, if each of them is one run of it.
pub(crate) fn concat_starts(graph: &Graph, node: &Node, op: &Concat) -> Option<Vec<u64>> {
    let shape = graph.ty(node.outputs[0]).shape()?;
    if shape[..op.axis].iter().any(|&size| size != 1) {
        return None;
    }
    let mut start = 0;
    let mut starts = Vec::with_capacity(node.inputs.len());
    for &input in &node.inputs {
        starts.push(start);
        start += graph.ty(input).size_bytes()? as u64;
    }
    Some(starts)
}

#[cfg(test)]
mod tests {
    use precast_ir::attr::NoConstants;
    use precast_ir::{Op, text};

    use super::*;

    fn slice_of(shape: &str, attributes: &str, result: &str) -> Option<u64> {
        let text = format!(
            "graph \"\"(%0 \"x\": f32[{shape}]) {{\n  %1 = slice(%0) {{{attributes}}} : f32[{result}]\n  return \"y\" %1\n}}\n"
        );
        let graph = text::parse(&text, &NoConstants).expect("the text of the test");
        let node = &graph.nodes()[0];
        let Op::Slice(op) = &node.op else { panic!("not a slice") };
        slice_start(&graph, node, op)
    }

    #[test]
    fn channels_of_one_image_are_a_run_and_those_of_two_are_not() {
        let channels = "start=[0, 2, 0], step=[1, 1, 1], size=";
        assert_eq!(slice_of("1,4,6", &format!("{channels}[1, 2, 6]"), "1,2,6"), Some(48));
        assert_eq!(slice_of("2,4,6", &format!("{channels}[2, 2, 6]"), "2,2,6"), None);
    }

    #[test]
    fn a_run_has_whole_inner_axes_and_no_steps() {
        assert_eq!(slice_of("1,4,6", "start=[0, 2, 1], step=[1, 1, 1], size=[1, 2, 5]", "1,2,5"), None);
        assert_eq!(slice_of("1,4,6", "start=[0, 0, 0], step=[1, 2, 1], size=[1, 2, 6]", "1,2,6"), None);
        assert_eq!(slice_of("3,4,6", "start=[1, 2, 1], step=[1, 1, 1], size=[1, 1, 4]", "1,1,4"), Some(4 * 37));
        assert_eq!(slice_of("3,4,6", "start=[2, 3, 5], step=[1, 1, -1], size=[1, 1, 1]", "1,1,1"), Some(4 * 71));
    }
}
