//! Removes what no output needs: shape arithmetic that became Dims, and constants that were folded away.

use std::collections::{BTreeMap, BTreeSet};

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::{Graph, NodeId, ValueId};
use precast_tensor::{Dim, Symbol};

/// The same graph without nodes, constants and size reads that do not reach an output. Inputs stay.
pub(crate) fn remove_dead(mut graph: Graph) -> Result<Graph, GraphError> {
    let live = Live::of(&graph);
    graph.sizes.retain(|size| live.symbols.contains(&size.symbol));
    let mut copy = GraphCopy::with_inputs(&graph);
    for (position, node) in graph.nodes().iter().enumerate() {
        if live.nodes[position] {
            copy.node(node)?;
        }
    }
    Ok(copy.finish())
}

/// What the outputs of a graph are made from.
struct Live {
    nodes: Vec<bool>,
    symbols: BTreeSet<Symbol>,
}

impl Live {
    fn of(graph: &Graph) -> Live {
        let makers = symbol_makers(graph);
        let mut live = Live { nodes: vec![false; graph.nodes().len()], symbols: BTreeSet::new() };
        let mut open: Vec<ValueId> = graph.outputs().iter().map(|output| output.value).collect();
        while let Some(value) = open.pop() {
            let mut used: BTreeSet<Symbol> = graph.ty(value).dims.iter().flat_map(Dim::symbols).collect();
            if let precast_ir::Definition::Node { node, .. } = graph.value(value).definition
                && !std::mem::replace(&mut live.nodes[node.0 as usize], true)
            {
                let node = graph.node(node);
                node.op.collect_symbols(&mut used);
                open.extend(node.inputs.iter().copied());
                open.extend(node.outputs.iter().copied());
            }
            for symbol in used {
                if !live.symbols.insert(symbol.clone()) {
                    continue;
                }
                open.extend(graph.sizes.iter().filter(|size| size.symbol == symbol).map(|size| size.value));
                if let Some(&maker) = makers.get(&symbol) {
                    open.extend(graph.node(maker).outputs.iter().copied());
                }
            }
        }
        live
    }
}

/// For each symbol that neither an input nor a size read gives its number, the first node whose result's shape does.
fn symbol_makers(graph: &Graph) -> BTreeMap<Symbol, NodeId> {
    let mut given: BTreeSet<Symbol> = graph.sizes.iter().map(|size| size.symbol.clone()).collect();
    given.extend(graph.inputs().iter().flat_map(|&input| &graph.ty(input).dims).flat_map(Dim::symbols));
    let mut makers = BTreeMap::new();
    for (position, node) in graph.nodes().iter().enumerate() {
        for dim in node.outputs.iter().flat_map(|&output| &graph.ty(output).dims) {
            if let Some(symbol) = dim.as_symbol()
                && !given.contains(symbol)
            {
                makers.entry(symbol.clone()).or_insert(NodeId(position as u32));
            }
        }
    }
    makers
}
