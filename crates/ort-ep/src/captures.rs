//! What bodies of nodes read from the graph around them, and how a graph is cut where the runtime does not hand that over.
//!
//! Before 1.27 the runtime gives to a fused node what its nodes read, and forgets what only their bodies do. Such a node is
//! then kept: the runtime runs it, and its bodies are fused by themselves. All others are fused in groups around it.

use std::collections::{BTreeMap, BTreeSet};

use precast_onnx::proto::{GraphProto, NodeProto};

use crate::error::EpError;
use crate::runtime::Runtime;

/// The first version of the runtime that hands to a fused node what only bodies of its nodes read.
const CAPTURES_VERSION_MIN: u32 = 27;

/// Operators whose nodes the runtime can run for a provider.
pub(crate) const KEPT_OPERATORS: &[&str] = &["If", "Loop"];

/// Whether the runtime hands to a fused node what only bodies of its nodes read.
pub(crate) fn hands_captures_over(runtime: Runtime) -> bool {
    runtime.version >= CAPTURES_VERSION_MIN
}

/// A graph cut into nodes that are fused and nodes that the runtime runs, by their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Each is fused into one node: no way from one of its nodes to another leads over a node that is not of it.
    pub(crate) groups: Vec<Vec<usize>>,
    pub(crate) kept: BTreeSet<usize>,
}

impl Parts {
    /// All nodes as one.
    pub(crate) fn whole(nodes: usize) -> Parts {
        Parts { groups: vec![(0..nodes).collect()], kept: BTreeSet::new() }
    }

    /// The fewest nodes are kept that must be; an error where the runtime cannot run one of those.
    pub(crate) fn of(graph: &GraphProto) -> Result<Parts, EpError> {
        let flow = Flow::of(graph);
        let mut kept = BTreeSet::new();
        loop {
            let groups = flow.groups(&kept);
            let deprived = || groups.iter().flat_map(|group| flow.deprived(group));
            if let Some((node, name)) = deprived().find(|(node, _)| !flow.is_kept_by_runtime(*node)) {
                let operator = &graph.node[node].op_type;
                return Err(not_handed_over(operator, name));
            }
            let lost: Vec<usize> = deprived().map(|(node, _)| node).collect();
            if lost.is_empty() {
                return Ok(Parts { groups, kept });
            }
            kept.extend(lost);
        }
    }

    /// An error where a node would have to be kept.
    pub(crate) fn check_whole(graph: &GraphProto) -> Result<(), EpError> {
        let flow = Flow::of(graph);
        let all: Vec<usize> = (0..graph.node.len()).collect();
        match flow.deprived(&all).next() {
            None => Ok(()),
            Some((node, name)) => Err(not_handed_over(&graph.node[node].op_type, name)),
        }
    }
}

fn not_handed_over(operator: &str, name: &str) -> EpError {
    EpError::other(format!(
        "'{name}' is read by bodies of {operator} alone, which onnxruntime before 1.{CAPTURES_VERSION_MIN} does not hand over"
    ))
}

/// Which nodes of a graph read what.
struct Flow<'a> {
    nodes: &'a [NodeProto],
    /// What the bodies of each node read from outside.
    captured: Vec<BTreeSet<&'a str>>,
    constants: BTreeSet<&'a str>,
    producers: BTreeMap<&'a str, usize>,
}

impl<'a> Flow<'a> {
    fn of(graph: &'a GraphProto) -> Flow<'a> {
        let outputs =
            |(place, node): (usize, &'a NodeProto)| node.output.iter().map(move |name| (name.as_str(), place));
        Flow {
            nodes: &graph.node,
            captured: graph.node.iter().map(captured_by).collect(),
            constants: graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect(),
            producers: graph.node.iter().enumerate().flat_map(outputs).collect(),
        }
    }

    fn is_kept_by_runtime(&self, node: usize) -> bool {
        self.nodes[node].domain.is_empty() && KEPT_OPERATORS.contains(&self.nodes[node].op_type.as_str())
    }

    /// Nodes that are not kept, by how many kept ones lie on the way to them. Nodes come after those that they read.
    fn groups(&self, kept: &BTreeSet<usize>) -> Vec<Vec<usize>> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.nodes.len());
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let read = node.input.iter().map(String::as_str).chain(self.captured[place].iter().copied());
            let before = read.filter_map(|name| self.producers.get(name)).filter(|&&producer| producer < place);
            let level = before.map(|&producer| levels[producer] + usize::from(kept.contains(&producer)));
            levels.push(level.max().unwrap_or(0));
            if !kept.contains(&place) {
                groups.entry(levels[place]).or_default().push(place);
            }
        }
        groups.into_values().collect()
    }

    /// Nodes of a group of whose captures some would not be handed over, each with the first of these.
    fn deprived(&self, group: &[usize]) -> impl Iterator<Item = (usize, &'a str)> {
        let mut known = self.constants.clone();
        for &place in group {
            let node = &self.nodes[place];
            known.extend(node.input.iter().chain(&node.output).map(String::as_str));
        }
        let first_lost = |&place: &usize| {
            let lost = self.captured[place].iter().copied().find(|name| !known.contains(name));
            lost.map(|name| (place, name))
        };
        group.iter().filter_map(first_lost).collect::<Vec<_>>().into_iter()
    }
}

/// What the bodies of a node read from outside.
fn captured_by(node: &NodeProto) -> BTreeSet<&str> {
    let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_deref());
    bodies.flat_map(read_from_outside).collect()
}

fn read_from_outside(body: &GraphProto) -> BTreeSet<&str> {
    let mut read: BTreeSet<&str> = body.output.iter().map(|value| value.name.as_str()).collect();
    for node in &body.node {
        read.extend(node.input.iter().map(String::as_str));
        read.extend(captured_by(node));
    }
    let own = names_of(body);
    read.retain(|name| !name.is_empty() && !own.contains(name));
    read
}

/// Every name that a graph gives a meaning.
pub(crate) fn names_of(graph: &GraphProto) -> BTreeSet<&str> {
    let inputs = graph.input.iter().map(|value| value.name.as_str());
    let constants = graph.initializer.iter().map(|tensor| tensor.name.as_str());
    let made = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
    inputs.chain(constants).chain(made).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use precast_onnx::proto::{AttributeProto, TensorProto};

    use super::*;

    fn node(operator: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            op_type: operator.to_string(),
            input: inputs.iter().map(|name| name.to_string()).collect(),
            output: vec![output.to_string()],
            ..NodeProto::default()
        }
    }

    fn graph(nodes: Vec<NodeProto>) -> GraphProto {
        GraphProto { node: nodes, ..GraphProto::default() }
    }

    fn with_body(mut node: NodeProto, body: GraphProto) -> NodeProto {
        node.attribute.push(AttributeProto { g: Some(Box::new(body)), ..AttributeProto::default() });
        node
    }

    fn branch(reads: &[&str], output: &str) -> NodeProto {
        with_body(node("If", &["flag"], output), graph(vec![node("Abs", reads, "inner")]))
    }

    fn parts(graph: &GraphProto) -> (Vec<Vec<usize>>, Vec<usize>) {
        let Parts { groups, kept } = Parts::of(graph).unwrap();
        (groups, kept.into_iter().collect())
    }

    #[test]
    fn what_a_fused_node_is_given_anyway_cuts_nothing() {
        let produced = graph(vec![node("Neg", &["x"], "a"), branch(&["a"], "y")]);
        assert_eq!(parts(&produced), (vec![vec![0, 1]], vec![]));
        let read_elsewhere = graph(vec![branch(&["x"], "y"), node("Neg", &["x"], "a")]);
        assert_eq!(parts(&read_elsewhere), (vec![vec![0, 1]], vec![]));
        let mut constant = graph(vec![branch(&["c"], "y")]);
        constant.initializer.push(TensorProto { name: "c".to_string(), ..TensorProto::default() });
        assert_eq!(parts(&constant), (vec![vec![0]], vec![]));
    }

    #[test]
    fn a_node_whose_body_alone_reads_a_value_is_kept_and_cuts_what_follows_it() {
        let cut = graph(vec![
            node("Neg", &["z"], "a"),
            branch(&["x"], "b"),
            node("Neg", &["b"], "c"),
            node("Add", &["a", "c"], "y"),
        ]);
        assert_eq!(parts(&cut), (vec![vec![0], vec![2, 3]], vec![1]));
        assert!(Parts::check_whole(&cut).unwrap_err().to_string().contains("'x' is read by bodies of If alone"));
    }

    #[test]
    fn a_value_of_another_group_is_lost_too() {
        let cut = graph(vec![
            node("Neg", &["z"], "a"),
            branch(&["x"], "b"),
            with_body(node("If", &["b"], "y"), graph(vec![node("Abs", &["a"], "inner")])),
        ]);
        assert_eq!(parts(&cut), (vec![vec![0]], vec![1, 2]));
    }

    #[test]
    fn names_of_a_body_are_its_own_and_bodies_inside_it_count() {
        let inner = with_body(node("If", &["flag"], "i"), graph(vec![node("Add", &["own", "x"], "j")]));
        let outer = with_body(node("If", &["flag"], "y"), graph(vec![node("Neg", &["flag"], "own"), inner]));
        assert_eq!(captured_by(&outer).into_iter().collect::<Vec<_>>(), ["flag", "x"]);
    }

    #[test]
    fn an_operator_that_the_runtime_does_not_run_for_us_is_refused() {
        let body = graph(vec![node("Abs", &["x"], "inner")]);
        let scan = graph(vec![with_body(node("Scan", &["s"], "y"), body)]);
        let error = Parts::of(&scan).unwrap_err().to_string();
        assert!(error.contains("'x' is read by bodies of Scan alone"), "{error}");
    }
}
