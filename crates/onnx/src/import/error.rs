//! Why a model did not become a Graph. A `Fault` is about one node while it is imported; an `ImportError` is what the
//! caller gets, with all unsupported nodes at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use precast_ir::graph::GraphError;
use precast_ir::{Definition, Graph, ValueId};
use thiserror::Error;

use crate::proto::NodeProto;
use crate::reader::ReadError;

use super::Builder;

/// What went wrong with one node.
#[derive(Debug)]
pub enum Fault {
    /// The operator, or this use of it, is not covered. Other nodes are still looked at.
    Unsupported(String),
    /// The node breaks the rules of ONNX.
    Invalid(String),
    /// The form of the Graph depends on these values, which are not constant.
    NeedsValue {
        /// The values that must be known.
        values: Vec<ValueId>,
        /// What they decide.
        what: String,
    },
    /// The form of the Graph depends on a dim that is still symbolic.
    NeedsNumber {
        /// The dim as printed.
        dim: String,
        /// What it decides.
        what: String,
    },
    /// Something inside a body or function is on the list of unsupported nodes already.
    Listed,
    /// Reading a tensor failed.
    Read(ReadError),
    /// Something inside a body or function.
    Nested(Box<ImportError>),
}

impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Fault {
        Fault::Invalid(error.source.to_string())
    }
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Fault {
        Fault::Read(error)
    }
}

impl Fault {
    /// The caller's error for a fault of a node.
    pub(crate) fn at(self, op_type: &str, name: &str, builder: &Builder) -> ImportError {
        let place = format!("{op_type} '{name}'");
        match self {
            Fault::Unsupported(reason) => ImportError::malformed(format!("{place}: {reason}")),
            Fault::Invalid(reason) => ImportError::malformed(format!("{place}: {reason}")),
            Fault::Listed => ImportError::malformed(format!("{place}: a node inside it is not covered")),
            Fault::NeedsValue { values, what } => {
                let what = format!("{place}: {what}");
                let inputs = inputs_behind(&builder.graph, &values);
                match builder.free_symbol_behind(&values).filter(|_| inputs.is_empty()) {
                    Some(symbol) => ImportError::NeedsNumber { dim: symbol.to_string(), what },
                    None => ImportError::NeedsInputs { inputs, what },
                }
            }
            Fault::NeedsNumber { dim, what } => ImportError::NeedsNumber { dim, what: format!("{place}: {what}") },
            Fault::Read(error) => ImportError::Read(error),
            Fault::Nested(error) => *error,
        }
    }
}

/// Names of the graph inputs that values are computed from.
pub(crate) fn inputs_behind(graph: &Graph, values: &[ValueId]) -> BTreeSet<String> {
    let (mut inputs, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), values.to_vec());
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        match &graph.value(value).definition {
            Definition::Input(name) => {
                inputs.insert(name.clone());
            }
            Definition::Constant(_) => {}
            Definition::Node { node, .. } => open.extend(graph.node(*node).inputs.iter().copied()),
        }
    }
    inputs
}

/// One node that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedNode {
    /// Operator name.
    pub op_type: String,
    /// Operator domain, spelled out.
    pub domain: String,
    /// Version of the domain's operator set in force.
    pub version: i64,
    /// Name of the node.
    pub name: String,
    /// Why, and what would help.
    pub reason: String,
}

impl UnsupportedNode {
    pub(crate) fn new(node: &NodeProto, name: &str, version: i64, reason: String) -> UnsupportedNode {
        let domain = if super::domain_of(&node.domain).is_empty() { "ai.onnx" } else { &node.domain };
        UnsupportedNode {
            op_type: node.op_type.clone(),
            domain: domain.to_string(),
            version,
            name: name.to_string(),
            reason,
        }
    }
}

/// Why a model did not become a Graph.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file breaks the rules of ONNX.
    #[error("{0}")]
    Malformed(String),
    /// Nodes that are not covered; all of them.
    #[error("{}", UnsupportedList { nodes, total: *total })]
    Unsupported {
        /// The nodes in file order.
        nodes: Vec<UnsupportedNode>,
        /// How many nodes the model has.
        total: usize,
    },
    /// The form of the Graph depends on the values of inputs: import again with them frozen.
    #[error("{what} must be known before the model is compiled; it depends on {}", list_inputs(inputs))]
    NeedsInputs {
        /// Names of the inputs.
        inputs: BTreeSet<String>,
        /// What they decide, and where.
        what: String,
    },
    /// The form of the Graph depends on a symbolic dim: import again with numbers.
    #[error("{what} depends on the dim '{dim}', which has no number yet")]
    NeedsNumber {
        /// The dim as printed.
        dim: String,
        /// What it decides, and where.
        what: String,
    },
}

impl ImportError {
    pub(crate) fn malformed(text: impl Into<String>) -> ImportError {
        ImportError::Malformed(text.into())
    }
}

fn list_inputs(inputs: &BTreeSet<String>) -> String {
    let names: Vec<String> = inputs.iter().map(|name| format!("input '{name}'")).collect();
    if names.is_empty() { "no input".to_string() } else { names.join(", ") }
}

/// The table of unsupported nodes, grouped by operator and reason.
struct UnsupportedList<'a> {
    nodes: &'a [UnsupportedNode],
    total: usize,
}

/// Node names shown for one kind before the rest becomes "...".
const NAMES_SHOWN: usize = 3;

impl fmt::Display for UnsupportedList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut kinds: BTreeMap<(&str, &str, i64, &str), Vec<&str>> = BTreeMap::new();
        for node in self.nodes {
            kinds.entry((&node.op_type, &node.domain, node.version, &node.reason)).or_default().push(&node.name);
        }
        let plural = if kinds.len() == 1 { "kind" } else { "kinds" };
        write!(f, "{} of {} nodes cannot be imported ({} {plural})", self.nodes.len(), self.total, kinds.len())?;
        for ((op_type, domain, version, reason), names) in kinds {
            let count = if names.len() == 1 { "1 node".to_string() } else { format!("{} nodes", names.len()) };
            let mut shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
            if names.len() > NAMES_SHOWN {
                shown.push_str(", ...");
            }
            write!(f, "\n  {op_type:<20} {:<16} {count:>9}   {shown:<40} {reason}", format!("{domain} {version}"))?;
        }
        Ok(())
    }
}
