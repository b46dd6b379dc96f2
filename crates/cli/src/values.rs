//! Outputs that are more than a tensor of numbers, as lines and as JSON: strings, sequences, optionals.

use std::fmt::Write;

use precast::{StringTensor, Tensor, Value};
use serde_json::json;

use crate::exit::Failure;
use crate::run::Summary;

/// Strings of an output that are shown.
const SHOWN: usize = 8;

/// Adds the lines of a value; elements of a sequence have lines of their own, named by their places.
pub fn write_lines(text: &mut String, name: &str, value: &Value) {
    let _ = match value {
        Value::Tensor(tensor) => writeln!(text, "{name}  {}  {}", tensor.type_(), Summary::new(tensor)),
        Value::Strings(strings) => writeln!(text, "{name}  string{:?}  {}", strings.shape(), shown(strings)),
        Value::Nothing => writeln!(text, "{name}  an optional without an element"),
        Value::Sequence(elements) => writeln!(text, "{name}  sequence of {}", elements.len()),
    };
    if let Value::Sequence(elements) = value {
        for (place, element) in elements.iter().enumerate() {
            write_lines(text, &format!("{name}[{place}]"), element);
        }
    }
}

/// The first strings, quoted, so that what a model holds cannot steer a terminal.
fn shown(strings: &StringTensor) -> String {
    let first: Vec<String> = strings.elements().iter().take(SHOWN).map(|text| format!("{text:?}")).collect();
    let more = if strings.elements().len() > SHOWN { ", …" } else { "" };
    format!("[{}{more}]", first.join(", "))
}

/// A value as JSON.
pub fn value_json(name: &str, value: &Value) -> serde_json::Value {
    match value {
        Value::Tensor(tensor) => Summary::new(tensor).json(name, tensor),
        Value::Strings(strings) => {
            let first: Vec<&String> = strings.elements().iter().take(SHOWN).collect();
            json!({ "name": name, "dtype": "string", "shape": strings.shape(), "first": first })
        }
        Value::Nothing => json!({ "name": name, "kind": "nothing" }),
        Value::Sequence(elements) => {
            let elements = elements.iter().enumerate();
            let elements: Vec<_> =
                elements.map(|(place, element)| value_json(&format!("{name}[{place}]"), element)).collect();
            json!({ "name": name, "kind": "sequence", "elements": elements })
        }
    }
}

/// The tensors of outputs for files of arrays, which hold numbers alone; an empty optional has none.
pub fn tensors(outputs: &[(String, Value)]) -> Result<Vec<(String, Tensor)>, Failure> {
    let mut tensors = Vec::new();
    for (name, value) in outputs {
        add_tensors(name, value, &mut tensors)?;
    }
    Ok(tensors)
}

fn add_tensors(name: &str, value: &Value, tensors: &mut Vec<(String, Tensor)>) -> Result<(), Failure> {
    match value {
        Value::Tensor(tensor) => tensors.push((name.to_string(), tensor.clone())),
        Value::Nothing => {}
        Value::Strings(_) => {
            return Err(Failure::usage(format!(
                "--output: '{name}' is a tensor of strings, and files of arrays hold numbers; leave --output out and see \
                 --json"
            )));
        }
        Value::Sequence(elements) => {
            for (place, element) in elements.iter().enumerate() {
                add_tensors(&format!("{name}[{place}]"), element, tensors)?;
            }
        }
    }
    Ok(())
}
