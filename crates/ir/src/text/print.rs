//! Printing graphs. Bodies print like graphs, moved in by the depth of their node.

use std::fmt::Write;

use precast_tensor::{Ranges, Symbol, SymbolRange};

use super::lexer::quote;
use super::literal::{is_inline, print_elements};
use crate::graph::{Definition, Graph, Node, SizeRead, ValueId};

const INDENT: &str = "  ";

/// The text form of a graph, with a newline at the end.
pub fn print(graph: &Graph) -> String {
    print_body(graph) + "\n"
}

/// The text form of a graph as an attribute: without a newline at the end.
pub fn print_body(graph: &Graph) -> String {
    let inputs: Vec<String> = graph
        .inputs()
        .iter()
        .map(|&input| format!("{input} {}: {}", quote(graph.input_name(input)), graph.ty(input)))
        .collect();
    let mut text = format!("graph {}({}){} {{\n", quote(&graph.name), inputs.join(", "), print_where(graph));
    let mut nodes = graph.nodes().iter().enumerate().peekable();
    for (at, value) in graph.values().iter().enumerate() {
        match &value.definition {
            Definition::Input(_) => {}
            Definition::Constant(tensor) => {
                let elements =
                    if is_inline(tensor) { print_elements(tensor) } else { format!("@blake3:{}", tensor.digest()) };
                push_line(&mut text, &format!("%{at} = constant {} {elements}", value.ty));
            }
            // A node prints where its first output is defined; those without outputs before it print first.
            Definition::Node { node, output: 0 } => {
                while let Some((_, printed)) = nodes.next_if(|(position, _)| *position <= node.0 as usize) {
                    push_line(&mut text, &print_node(graph, printed));
                }
            }
            Definition::Node { .. } => {}
        }
    }
    for (_, node) in nodes {
        push_line(&mut text, &print_node(graph, node));
    }
    let outputs: Vec<String> =
        graph.outputs().iter().map(|output| format!("{} {}", quote(&output.name), output.value)).collect();
    push_line(&mut text, format!("return {}", outputs.join(", ")).trim_end());
    text.push('}');
    text
}

fn print_where(graph: &Graph) -> String {
    let Graph { ranges, sizes, .. } = graph;
    let clauses: Vec<String> = print_ranges(ranges).chain(sizes.iter().map(print_size)).collect();
    if clauses.is_empty() { String::new() } else { format!(" where {}", clauses.join(", ")) }
}

fn print_ranges(ranges: &Ranges) -> impl Iterator<Item = String> + '_ {
    ranges.iter().map(|(symbol, range): (&Symbol, SymbolRange)| {
        let multiple = if range.multiple == 1 { String::new() } else { format!(" multiple {}", range.multiple) };
        format!("{symbol} in {}..={}{multiple}", range.lo, range.hi)
    })
}

fn print_size(size: &SizeRead) -> String {
    format!("{} = {}[{}]", size.symbol, size.value, size.element)
}

fn print_node(graph: &Graph, node: &Node) -> String {
    let mut attributes = node.op.attributes();
    let func = match attributes.first() {
        Some(("func", _)) => format!(".{}", attributes.remove(0).1),
        _ => String::new(),
    };
    let mut text = String::new();
    if !node.outputs.is_empty() {
        text += &format!("{} = ", join(&node.outputs));
    }
    text += &format!("{}{func}({})", node.op.name(), join(&node.inputs));
    if !attributes.is_empty() {
        let pairs: Vec<String> = attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        text += &format!(" {{{}}}", pairs.join(", "));
    }
    if !node.outputs.is_empty() {
        let types: Vec<String> = node.outputs.iter().map(|&output| graph.ty(output).to_string()).collect();
        text += &format!(" : {}", types.join(", "));
    }
    if !node.provenance.names().is_empty() {
        let names: Vec<String> = node.provenance.names().iter().map(|name| quote(name)).collect();
        text += &format!("  # {}", names.join(", "));
    }
    text
}

fn join(values: &[ValueId]) -> String {
    values.iter().map(ValueId::to_string).collect::<Vec<_>>().join(", ")
}

/// Adds a line of a graph; further lines of the text (those of bodies) move in with it. Quoted names hold no newlines.
fn push_line(text: &mut String, line: &str) {
    for part in line.split('\n') {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{INDENT}{part}");
    }
}
