//! What a Session knows of a model without its Graph: inputs, outputs, dims, how each dim may be padded, and the digests
//! that its keys are made of. Small and serialisable, so that a model whose Programs are all cached is opened without
//! importing it.

use std::collections::BTreeMap;

use precast_cache::KeyRecord;
use precast_ir::graph::{GraphCopy, GraphError, Provenance};
use precast_ir::{Definition, Graph, text};
use precast_passes::batch_axis::{self, Grade, OutputRule, PadVerdict, pad_verdict};
use precast_program::Bucket;
use precast_tensor::{Bindings, Digest, Dim, Symbol, SymbolRange, Type};
use serde::{Deserialize, Serialize};

use crate::error::SessionError;

/// Where Graphs come from when something must be compiled.
pub trait GraphSource: Send + Sync {
    /// The Graph of a Bucket: every dim is a number.
    fn graph(&self, bucket: &Bucket) -> Result<Graph, SessionError>;

    /// The digest of the measured tactics that the Program of this record rests on, beside which the record is complete.
    /// May measure. The Graph is given where it is there already.
    fn tuning(&self, _untuned: &KeyRecord, _graph: Option<&Graph>) -> Result<Option<Digest>, SessionError> {
        Ok(None)
    }

    /// The Programs of the start are there: what Graphs are made from may go until it is asked for again.
    fn forget_graph(&self) {}
}

impl GraphSource for Graph {
    fn graph(&self, bucket: &Bucket) -> Result<Graph, SessionError> {
        Ok(self.bind(&bucket.bindings(), &BTreeMap::new())?)
    }
}

/// What a Session knows of a model without its Graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Inputs in order.
    pub inputs: Vec<SymbolicPort>,
    /// Outputs in order; empty where Graphs differ by their dims, see `graph`.
    pub outputs: Vec<SymbolicPort>,
    /// Symbols of the inputs' Types, in the order in which they first appear.
    pub dims: Vec<DimInterface>,
    /// Digests of the symbolic Graph; none for a model whose Graph exists only for given dims.
    pub graph: Option<GraphDigests>,
}

/// An input or output with symbols in its Type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymbolicPort {
    /// Name in the model.
    pub name: String,
    /// Its Type.
    #[serde(with = "as_text")]
    pub ty: Type,
}

/// What is known of one dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DimInterface {
    /// Name of its symbol.
    pub symbol: String,
    /// Least and largest value, and what values are multiples of.
    pub range: (i64, i64, i64),
    /// How rows may be padded.
    pub grade: PadGrade,
    /// Whether chunks of rows may run one after the other.
    pub is_split_safe: bool,
    /// The verdict as one line for people.
    pub explanation: String,
    /// Where the rows of each output lie; none where it does not carry the dim.
    pub outputs: Vec<Option<RowAxis>>,
}

/// How rows of a dim may be padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PadGrade {
    /// With anything.
    Independent,
    /// With copies of real rows.
    ReplicateOnly,
    /// Not at all.
    Refused,
}

/// Where the rows of a dim lie in a tensor: the axis has the extent outer × rows × inner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowAxis {
    /// The axis.
    pub axis: usize,
    /// Blocks of all rows inside the axis.
    pub outer: usize,
    /// Elements of one row inside the axis.
    pub inner: usize,
}

impl RowAxis {
    /// Whether an axis of this extent has the rows of a symbol so: tried for two counts of rows, between which it is a line.
    fn is_in(self, extent: &Dim, symbol: &str) -> bool {
        let row = self.outer.checked_mul(self.inner).filter(|&row| row > 0);
        [1, 3].into_iter().all(|rows| {
            let bound = extent.bind(&[(symbol, rows as i64)].into_iter().collect()).as_usize();
            bound.is_some() && bound == row.and_then(|row| row.checked_mul(rows))
        })
    }
}

/// Digests of a Graph without its node names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphDigests {
    /// Of everything but the constants' bytes.
    #[serde(with = "as_text")]
    pub graph: Digest,
    /// Of the constants.
    #[serde(with = "as_text")]
    pub weights: Digest,
}

impl Interface {
    /// The interface of a symbolic Graph. `lowered` is the Graph as the target will compile it: a fusion may tie rows
    /// together that the model does not, and then it decides.
    pub fn of(graph: &Graph, lowered: Option<&Graph>) -> Result<Interface, SessionError> {
        let port = |name: &str, ty: &Type| SymbolicPort { name: name.to_string(), ty: ty.clone() };
        let inputs = graph.inputs().iter().map(|&input| port(graph.input_name(input), graph.ty(input)));
        let inputs: Vec<SymbolicPort> = inputs.collect();
        let outputs = graph.outputs().iter().map(|output| port(&output.name, graph.ty(output.value))).collect();
        let dims = symbols_of(&inputs).iter().map(|symbol| dim_interface(graph, lowered, symbol)).collect();
        Ok(Interface { inputs, outputs, dims, graph: Some(GraphDigests::of(graph)?) })
    }

    /// An interface of inputs alone: every set of dims has a Graph of its own, so nothing is padded.
    pub fn of_inputs(inputs: Vec<SymbolicPort>, why: &str) -> Interface {
        let dims = symbols_of(&inputs).into_iter().map(|symbol| DimInterface {
            symbol: symbol.as_str().to_string(),
            range: (SymbolRange::ANY.lo, SymbolRange::ANY.hi, SymbolRange::ANY.multiple),
            grade: PadGrade::Refused,
            is_split_safe: false,
            explanation: format!("{symbol}  Refused  {why} → exact {symbol} only"),
            outputs: Vec::new(),
        });
        Interface { dims: dims.collect(), inputs, outputs: Vec::new(), graph: None }
    }

    /// Whether its parts agree with each other; one that was read may not. Rows that lie elsewhere than an output's Type says
    /// would be copied from beyond its end.
    pub fn is_consistent(&self) -> bool {
        let symbols = symbols_of(&self.inputs);
        let is_known = symbols.iter().map(|symbol| symbol.as_str()).eq(self.dims.iter().map(|dim| &*dim.symbol));
        is_known && self.dims.iter().all(|dim| self.has_rows_in_place(dim))
    }

    fn has_rows_in_place(&self, dim: &DimInterface) -> bool {
        // An output that grows with a dim and has no rows of it is never padded, cut or joined.
        let is_whole_alone = dim.grade == PadGrade::Refused && !dim.is_split_safe;
        let is_in_place = |(port, rows): (&SymbolicPort, &Option<RowAxis>)| match rows {
            Some(rows) => port.ty.dims.get(rows.axis).is_some_and(|extent| rows.is_in(extent, &dim.symbol)),
            None => {
                is_whole_alone
                    || !symbols_of(std::slice::from_ref(port)).iter().any(|symbol| symbol.as_str() == dim.symbol)
            }
        };
        dim.outputs.len() == self.outputs.len() && self.outputs.iter().zip(&dim.outputs).all(is_in_place)
    }

    /// What is known of a dim, by the name of its symbol.
    pub fn dim(&self, symbol: &str) -> Option<&DimInterface> {
        self.dims.iter().find(|dim| dim.symbol == symbol)
    }

    /// Types of the inputs and outputs of a Bucket, as text: part of its key.
    pub fn types(&self, bucket: &Bucket) -> Vec<String> {
        let bindings: Bindings = bucket.bindings();
        self.inputs.iter().chain(&self.outputs).map(|port| port.ty.bind(&bindings).to_string()).collect()
    }
}

impl GraphDigests {
    /// Digests of a Graph. Its name and those of nodes are left out, so that renaming one changes no key.
    pub fn of(graph: &Graph) -> Result<GraphDigests, GraphError> {
        let mut copy = GraphCopy::with_inputs(graph);
        for node in graph.nodes() {
            let mut anonymous = node.clone();
            anonymous.provenance = Provenance::default();
            copy.node(&anonymous)?;
        }
        let mut anonymous = copy.finish();
        anonymous.name.clear();
        let mut weights = String::new();
        for value in anonymous.values() {
            if let Definition::Constant(tensor) = &value.definition {
                weights.push_str(&tensor.digest().to_string());
            }
        }
        Ok(GraphDigests {
            graph: Digest::of_bytes(without_elements(&text::print(&anonymous)).as_bytes()),
            weights: Digest::of_bytes(weights.as_bytes()),
        })
    }
}

/// The text of a Graph with constants as their Types only: their bytes are the weights' part of a key, and a change of one
/// must not read as another Graph. Constants of bodies, which are indented further, stay.
fn without_elements(text: &str) -> String {
    let is_constant = |line: &&str| line.starts_with("  %") && line.split(' ').nth(4) == Some("constant");
    let cut = |line: &str| line.split(' ').take(6).collect::<Vec<_>>().join(" ");
    text.lines().map(|line| if is_constant(&line) { cut(line) } else { line.to_string() } + "\n").collect()
}

/// Symbols of the inputs, in the order in which they first appear.
fn symbols_of(inputs: &[SymbolicPort]) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::new();
    for symbol in inputs.iter().flat_map(|input| &input.ty.dims).flat_map(|dim| dim.symbols()) {
        if !symbols.contains(&symbol) {
            symbols.push(symbol);
        }
    }
    symbols
}

fn dim_interface(graph: &Graph, lowered: Option<&Graph>, symbol: &Symbol) -> DimInterface {
    let imported = pad_verdict(graph, symbol);
    let binding = lowered.map(|lowered| (lowered, pad_verdict(lowered, symbol)));
    let (judged, verdict) = match &binding {
        Some((lowered, verdict)) if strictness(verdict) > strictness(&imported) => (*lowered, verdict),
        _ => (graph, &imported),
    };
    let range = graph.ranges.get(symbol);
    DimInterface {
        symbol: symbol.as_str().to_string(),
        range: (range.lo, range.hi, range.multiple),
        grade: grade(verdict),
        is_split_safe: verdict.split_safe,
        explanation: batch_axis::explain(judged, verdict),
        outputs: verdict.outputs.iter().map(row_axis).collect(),
    }
}

fn grade(verdict: &PadVerdict) -> PadGrade {
    match verdict.grade {
        Grade::Independent => PadGrade::Independent,
        Grade::ReplicateOnly => PadGrade::ReplicateOnly,
        Grade::Refused { .. } => PadGrade::Refused,
    }
}

fn strictness(verdict: &PadVerdict) -> (PadGrade, bool) {
    (grade(verdict), !verdict.split_safe)
}

fn row_axis(rule: &OutputRule) -> Option<RowAxis> {
    match *rule {
        OutputRule::Rows { axis, outer, inner } => {
            Some(RowAxis { axis, outer: outer.max(1) as usize, inner: inner.max(1) as usize })
        }
        OutputRule::Whole | OutputRule::Mixed => None,
    }
}

/// Values that are written as the text they print and read back from it.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use precast_ir::attr::NoConstants;

    fn digests(text: &str) -> GraphDigests {
        GraphDigests::of(&text::parse(text, &NoConstants).unwrap()).unwrap()
    }

    const SOURCE: &str = r#"graph "g"(%0 "x": f32[n,2]) {
  %1 = constant f32[2] [1.0, -2.0]
  %2 = binary.add(%0, %1) : f32[n,2]  # "node"
  return "y" %2
}
"#;

    #[test]
    fn a_changed_weight_changes_the_weights_only_and_a_name_nothing() {
        let before = digests(SOURCE);
        let weight = digests(&SOURCE.replace("-2.0", "-2.5"));
        assert_eq!(weight.graph, before.graph);
        assert_ne!(weight.weights, before.weights);
        assert_eq!(digests(&SOURCE.replace("\"node\"", "\"other\"").replace("\"g\"", "\"h\"")), before);
        let op = digests(&SOURCE.replace("binary.add", "binary.sub"));
        assert_ne!(op.graph, before.graph);
        assert_eq!(op.weights, before.weights);
    }

    #[test]
    fn an_interface_whose_parts_disagree_is_found() {
        let graph = text::parse(SOURCE, &NoConstants).unwrap();
        let interface = Interface::of(&graph, None).unwrap();
        assert!(interface.is_consistent());
        assert!(Interface::of_inputs(interface.inputs.clone(), "no reason").is_consistent());
        let changed = |change: &dyn Fn(&mut Interface)| {
            let mut changed = interface.clone();
            change(&mut changed);
            changed.is_consistent()
        };
        let rows = |axis, outer, inner| Some(RowAxis { axis, outer, inner });
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = rows(1, 1, 1)), "an axis without rows");
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = rows(2, 1, 1)), "no axis");
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = rows(0, 1, 2)), "rows of another size");
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = rows(0, usize::MAX, 2)));
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = rows(0, 0, 0)));
        assert!(!changed(&|interface| interface.dims[0].outputs[0] = None), "rows that are not said");
        assert!(!changed(&|interface| interface.dims[0].outputs.clear()));
        assert!(!changed(&|interface| interface.dims[0].symbol = "m".to_string()));
        assert!(!changed(&|interface| interface.dims.clear()));
    }

    #[test]
    fn an_interface_is_read_back_as_it_was_written() {
        let graph = text::parse(SOURCE, &NoConstants).unwrap();
        let interface = Interface::of(&graph, None).unwrap();
        let bytes = postcard::to_allocvec(&interface).unwrap();
        assert_eq!(postcard::from_bytes::<Interface>(&bytes).unwrap(), interface);
    }
}
