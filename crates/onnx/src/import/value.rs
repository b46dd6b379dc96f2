//! What the names of a model stand for while it is imported. A Graph knows tensors of numbers alone, so what ONNX has
//! beside them is taken apart here: a sequence is a list of values, an optional is its element or nothing, and strings
//! are a table of texts that is known and a tensor of places in it.

use std::sync::Arc;

use precast_ir::{Graph, ValueId};

/// What a name stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor of numbers.
    Tensor(ValueId),
    /// A tensor of strings.
    Strings(Strings),
    /// A list of values.
    Sequence(Vec<Value>),
    /// An optional without an element.
    Nothing,
}

/// A tensor of strings.
#[derive(Clone, Debug, PartialEq)]
pub struct Strings {
    /// Every text that may occur, sorted and each once, so that places compare as texts do.
    pub table: Arc<[String]>,
    /// Places in the table, as an i64 tensor.
    pub places: ValueId,
}

impl From<ValueId> for Value {
    fn from(tensor: ValueId) -> Value {
        Value::Tensor(tensor)
    }
}

impl Value {
    /// The tensor, where it is one of numbers.
    pub fn tensor(&self) -> Option<ValueId> {
        match self {
            Value::Tensor(tensor) => Some(*tensor),
            Value::Strings(_) | Value::Sequence(_) | Value::Nothing => None,
        }
    }

    /// What it is, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Tensor(_) => "a tensor",
            Value::Strings(_) => "a tensor of strings",
            Value::Sequence(_) => "a sequence",
            Value::Nothing => "an empty optional",
        }
    }
}

/// How a value lies in tensors of a Graph: they come one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Structure {
    /// One tensor.
    Tensor,
    /// One tensor of places in a table of texts.
    Strings(Arc<[String]>),
    /// The tensors of every element.
    Sequence(Vec<Structure>),
    /// No tensor.
    Nothing,
}

impl Structure {
    /// What it is, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            Structure::Tensor => "a tensor of numbers",
            Structure::Strings(_) => "a tensor of strings",
            Structure::Sequence(_) => "a sequence",
            Structure::Nothing => "nothing",
        }
    }

    /// Calls `visit` with the name of every tensor, in order: the value's own, or that and places in brackets.
    pub fn visit_tensors(&self, name: &str, visit: &mut impl FnMut(String)) {
        match self {
            Structure::Tensor | Structure::Strings(_) => visit(name.to_string()),
            Structure::Sequence(elements) => {
                for (place, element) in elements.iter().enumerate() {
                    element.visit_tensors(&element_name(name, place), visit);
                }
            }
            Structure::Nothing => {}
        }
    }
}

/// The name of one element of a sequence.
pub fn element_name(name: &str, place: usize) -> String {
    format!("{name}[{place}]")
}

/// Adds a value's tensors to the outputs of a Graph and gives how they lie there.
pub(crate) fn add_output(graph: &mut Graph, name: &str, value: &Value) -> Structure {
    match value {
        Value::Tensor(tensor) => {
            graph.add_output(name.to_string(), *tensor);
            Structure::Tensor
        }
        Value::Strings(strings) => {
            graph.add_output(name.to_string(), strings.places);
            Structure::Strings(strings.table.clone())
        }
        Value::Sequence(elements) => {
            let elements = elements.iter().enumerate();
            Structure::Sequence(
                elements.map(|(place, element)| add_output(graph, &element_name(name, place), element)).collect(),
            )
        }
        Value::Nothing => Structure::Nothing,
    }
}

/// The texts that occur, sorted and each once, and the place of each element among them.
pub fn tabulate(elements: &[String]) -> (Arc<[String]>, Vec<i64>) {
    let mut table = elements.to_vec();
    table.sort_unstable();
    table.dedup();
    let place = |text: &String| table.binary_search(text).map_or(-1, |place| place as i64);
    let places = elements.iter().map(place).collect();
    (table.into(), places)
}
