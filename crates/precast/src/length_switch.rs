//! Finds where a decoder asks how long its rows are: comparisons of the mask's length with a number, which choose between
//! rotary tables for short and for long rows. Beside a cache with room left the mask has the length of the cache, so what
//! these comparisons say must come from the rows themselves.

use std::collections::BTreeMap;

use precast_onnx::proto::{GraphProto, NodeProto};
use precast_tensor::Tensor;

use crate::error::Error;

/// A decoder that computes rows of more tokens than a limit in another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LengthSwitch {
    /// Most tokens of a row that is short.
    pub(crate) limit: usize,
    /// Names of the comparisons, and whether they hold for long rows.
    conditions: Vec<(String, bool)>,
}

impl LengthSwitch {
    /// What the comparisons are for rows that are long or not.
    pub(crate) fn known(&self, is_long: bool) -> BTreeMap<String, Tensor> {
        let value = |holds_for_long: bool| {
            Tensor::from_bools(Vec::new(), &[holds_for_long == is_long]).expect("a scalar has one element")
        };
        self.conditions.iter().map(|(name, holds_for_long)| (name.clone(), value(*holds_for_long))).collect()
    }
}

/// The comparisons of a mask's length in a graph; none if there are none. `numbers` has the constants that are one integer.
pub(crate) fn find_length_switch(
    graph: &GraphProto,
    mask: &str,
    numbers: &dyn Fn(&str) -> Option<i64>,
) -> Result<Option<LengthSwitch>, Error> {
    let by_output: BTreeMap<&str, &NodeProto> =
        graph.node.iter().flat_map(|node| node.output.iter().map(move |output| (output.as_str(), node))).collect();
    let mut found: Option<LengthSwitch> = None;
    for node in &graph.node {
        let [left, right] = &node.input[..] else { continue };
        let Some(output) = node.output.first() else { continue };
        let is_length = |name: &str| is_length(&by_output, name, mask, numbers);
        let (number, is_swapped) = match (is_length(left), is_length(right)) {
            (true, false) => (numbers(right), false),
            (false, true) => (numbers(left), true),
            _ => continue,
        };
        let Some((limit, holds_for_long)) = number.and_then(|number| beyond(&node.op_type, number, is_swapped)) else {
            continue;
        };
        let switch = found.get_or_insert_with(|| LengthSwitch { limit, conditions: Vec::new() });
        if switch.limit != limit {
            return Err(Error::Request(format!(
                "'{output}' compares the length of rows with {limit}, another node with {}; one limit is covered",
                switch.limit
            )));
        }
        switch.conditions.push((output.clone(), holds_for_long));
    }
    Ok(found)
}

/// The most tokens of a row for which `length op number`, or with swapped operands `number op length`, is not yet what it is
/// for longer ones, and whether it holds for those.
fn beyond(op: &str, number: i64, is_swapped: bool) -> Option<(usize, bool)> {
    let (limit, holds_for_long) = match (op, is_swapped) {
        ("Greater", false) | ("Less", true) => (number, true),
        ("GreaterOrEqual", false) | ("LessOrEqual", true) => (number - 1, true),
        ("LessOrEqual", false) | ("GreaterOrEqual", true) => (number, false),
        ("Less", false) | ("Greater", true) => (number - 1, false),
        _ => return None,
    };
    Some((usize::try_from(limit).ok()?, holds_for_long))
}

/// Nodes on the way to a comparison that change type and rank alone, and how many of them there may be.
const PASSED: [&str; 5] = ["Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"];
const PASSED_MAX: usize = 8;

/// Whether a value is the second size of the mask.
fn is_length(
    by_output: &BTreeMap<&str, &NodeProto>,
    name: &str,
    mask: &str,
    numbers: &dyn Fn(&str) -> Option<i64>,
) -> bool {
    let Some(gather) = maker(by_output, name).filter(|node| node.op_type == "Gather") else { return false };
    let [shape, index] = &gather.input[..] else { return false };
    let shape = maker(by_output, shape).filter(|node| node.op_type == "Shape");
    numbers(index) == Some(1) && shape.is_some_and(|shape| shape.input.first().is_some_and(|input| input == mask))
}

/// The node that gives a value, but for those that change its type and rank alone.
fn maker<'g>(by_output: &BTreeMap<&str, &'g NodeProto>, name: &str) -> Option<&'g NodeProto> {
    let mut node = *by_output.get(name)?;
    for _ in 0..PASSED_MAX {
        if !PASSED.contains(&node.op_type.as_str()) {
            return Some(node);
        }
        node = by_output.get(node.input.first()?.as_str())?;
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn node(op_type: &str, input: &[&str], output: &str) -> NodeProto {
        let input = input.iter().map(ToString::to_string).collect();
        NodeProto { op_type: op_type.to_string(), input, output: vec![output.to_string()], ..NodeProto::default() }
    }

    /// The switch of a graph whose comparisons read the mask's length.
    fn switch(comparisons: &[(&str, [&str; 2])]) -> Result<Option<LengthSwitch>, Error> {
        let mut nodes = vec![node("Shape", &["mask"], "shape"), node("Gather", &["shape", "1"], "gathered")];
        nodes.push(node("Cast", &["gathered"], "length"));
        let compared = comparisons.iter().enumerate();
        nodes.extend(compared.map(|(number, (op, inputs))| node(op, inputs, &format!("condition{number}"))));
        let graph = GraphProto { node: nodes, ..GraphProto::default() };
        find_length_switch(&graph, "mask", &|name| name.parse().ok())
    }

    #[test]
    fn comparisons_say_which_rows_are_long() {
        let known = |comparison: (&str, [&str; 2])| {
            let switch = switch(&[comparison]).unwrap().unwrap();
            (switch.limit, switch.known(true)["condition0"].to_bools().unwrap()[0])
        };
        assert_eq!(known(("Greater", ["length", "4096"])), (4096, true));
        assert_eq!(known(("GreaterOrEqual", ["length", "4096"])), (4095, true));
        assert_eq!(known(("Less", ["length", "4096"])), (4095, false));
        assert_eq!(known(("Less", ["4096", "length"])), (4096, true));
    }

    #[test]
    fn other_nodes_are_no_switch_and_two_limits_are_refused() {
        assert_eq!(switch(&[("Greater", ["other", "4096"]), ("Add", ["length", "1"])]).unwrap(), None);
        let error = switch(&[("Greater", ["length", "32"]), ("Greater", ["length", "64"])]).unwrap_err();
        assert!(error.to_string().contains("one limit is covered"), "{error}");
    }
}
