//! The Graph of a decoder whose caches are pages that rows share, as an engine has them on a device.

use std::collections::BTreeSet;

use precast_generate::text_model::{CAPACITY, PAGE_TOKENS, PAGES, ROW_PAGES, ROWS};
use precast_ir::graph::GraphCopy;
use precast_ir::op::CachedAttention;
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Dim, Symbol, Type};

use crate::error::Error;

/// The input that says which pages each row has.
pub(crate) const PAGES_INPUT: &str = "precast.pages";

/// Which inputs of an attention are cached keys and values.
const CACHES: [usize; 2] = [1, 2];

/// caches [rows, heads, capacity, size] → pages [pages, heads, page_tokens, size] and a table of each row's. Says why where nodes
/// need caches in one piece.
pub(crate) fn with_pages(graph: &Graph, is_cache: &dyn Fn(&str) -> bool) -> Result<Result<Graph, String>, Error> {
    let caches: Vec<ValueId> =
        graph.inputs().iter().copied().filter(|&input| is_cache(graph.input_name(input))).collect();
    if let Some(reason) = reads_in_one_piece(graph, &caches) {
        return Ok(Err(reason));
    }
    let mut copy = GraphCopy::new(graph);
    for &input in graph.inputs() {
        let ty = graph.ty(input);
        copy.input(input, if caches.contains(&input) { paged_type(ty) } else { ty.clone() });
    }
    let table = Type::new(DType::I32, vec![Dim::symbol(ROWS), Dim::symbol(ROW_PAGES)]);
    let table = copy.new.add_input(PAGES_INPUT, table);
    for node in graph.nodes() {
        let Some(op) = attention_behind(node, &caches) else {
            copy.node(node)?;
            continue;
        };
        let mut inputs = copy.get_all(&node.inputs);
        inputs.push(table);
        let paged = Op::CachedAttention(CachedAttention { paged: true, ..op.clone() });
        let outputs = copy.new.add_node(paged, &inputs, &node.provenance)?;
        node.outputs.iter().zip(outputs).for_each(|(&old, new)| copy.set(old, new));
    }
    Ok(Ok(copy.finish()))
}

/// The attention of a node that reads caches.
fn attention_behind<'n>(node: &'n Node, caches: &[ValueId]) -> Option<&'n CachedAttention> {
    match &node.op {
        Op::CachedAttention(op) => CACHES.iter().all(|&at| caches.contains(&node.inputs[at])).then_some(op),
        _ => None,
    }
}

/// Who needs a cache in one piece, or computes with its size.
fn reads_in_one_piece(graph: &Graph, caches: &[ValueId]) -> Option<String> {
    for node in graph.nodes() {
        let is_paged = |at: usize| attention_behind(node, caches).is_some() && CACHES.contains(&at);
        let mut reads = node.inputs.iter().enumerate();
        if reads.any(|(at, input)| caches.contains(input) && !is_paged(at)) {
            return Some(format!("'{}' reads a cache in one piece", node.provenance));
        }
        let mut symbols = BTreeSet::new();
        node.op.collect_symbols(&mut symbols);
        if symbols.iter().any(is_capacity) {
            return Some(format!("'{}' computes with the size of a cache", node.provenance));
        }
    }
    let is_sized = |ty: &Type| ty.dims.iter().flat_map(|dim| dim.symbols()).any(|symbol| is_capacity(&symbol));
    let sized = graph.inputs().iter().find(|input| !caches.contains(input) && is_sized(graph.ty(**input)));
    sized.map(|&input| format!("'{}' is as long as a cache", graph.input_name(input)))
}

/// Whether a symbol is the size of caches, of those with a window included.
fn is_capacity(symbol: &Symbol) -> bool {
    symbol.as_str().split('.').next() == Some(CAPACITY)
}

fn paged_type(ty: &Type) -> Type {
    let mut dims = ty.dims.clone();
    (dims[0], dims[2]) = (Dim::symbol(PAGES), Dim::symbol(PAGE_TOKENS));
    Type::new(ty.dtype, dims)
}
