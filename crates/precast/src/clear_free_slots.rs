//! Caches of decoders whose attention is plain operators, read with zeros in their free slots. The mask hides those slots where
//! they hold numbers; what dropped tokens and rows of before left there may be none, and no mask hides that: a score of none
//! stays none whatever is added to it, and a value of none does with a weight of nothing.

use precast_generate::roles::Roles;
use precast_generate::text_model::{CAPACITY, LENGTH, ROWS};
use precast_ir::graph::{GraphCopy, Provenance};
use precast_ir::op::{Compare, CompareFn, Reshape, Select, Slice};
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{Dim, Tensor};

use crate::decoder_graph::{half_names, is_masked, misfit};
use crate::error::Error;

/// The Graph with zeros in the slots of plain caches that the mask does not show. Caches of which only the new tokens are given
/// have nodes that know how many tokens there are.
pub(crate) fn clear_free_slots(graph: &Graph, roles: &Roles) -> Result<Graph, Error> {
    let plain = plain_caches(graph, roles);
    if plain.is_empty() || !is_masked(roles) {
        return Ok(graph.clone());
    }
    let mut copy = GraphCopy::with_inputs(graph);
    let mask = roles.attention_mask.as_deref().unwrap_or_default();
    let mask = input_of(graph, mask).ok_or_else(|| misfit(format!("no node reads the mask '{mask}'")))?;
    let (given, none) = (copy.get(mask), Provenance::default());
    let (rows, capacity) = (Dim::symbol(ROWS), Dim::symbol(CAPACITY));
    let size = vec![rows.clone(), capacity.clone()];
    let slice = Slice { start: vec![Dim::ZERO; 2], step: vec![1; 2], size };
    let slots = copy.new.add_node(Op::Slice(slice), &[given], &none)?[0];
    let shape = vec![rows, Dim::ONE, capacity, Dim::ONE];
    let slots = copy.new.add_node(Op::Reshape(Reshape { shape }), &[slots], &none)?[0];
    let zero_of = |dtype| Tensor::from_i128(dtype, [], &[0]).map_err(|error| misfit(error.to_string()));
    let zero = copy.new.add_constant(zero_of(graph.ty(mask).dtype)?);
    let is_token = copy.new.add_node(Op::Compare(Compare { func: CompareFn::Gt }), &[slots, zero], &none)?[0];
    for cache in plain {
        let zero = Tensor::from_f64(graph.ty(cache).dtype, [], &[0.0], true);
        let zero = copy.new.add_constant(zero.map_err(|error| misfit(error.to_string()))?);
        let given = copy.get(cache);
        let cleared = copy.new.add_node(Op::Select(Select {}), &[is_token, given, zero], &none)?[0];
        copy.set(cache, cleared);
    }
    for node in graph.nodes() {
        copy.node(node)?;
    }
    Ok(copy.finish())
}

/// Cached keys and values that are given back whole, with the new ones behind them.
fn plain_caches(graph: &Graph, roles: &Roles) -> Vec<ValueId> {
    let whole = &Dim::symbol(CAPACITY) + &Dim::symbol(LENGTH);
    let names = roles.past.iter().zip(&roles.present);
    let names = names.flat_map(|(past, present)| half_names(past).into_iter().zip(half_names(present)));
    let is_whole = |name: &str| {
        let output = graph.outputs().iter().find(|output| output.name == name);
        output.is_some_and(|output| graph.ty(output.value).dims.get(2) == Some(&whole))
    };
    names.filter(|(_, present)| is_whole(present)).filter_map(|(past, _)| input_of(graph, &past)).collect()
}

fn input_of(graph: &Graph, name: &str) -> Option<ValueId> {
    graph.inputs().iter().copied().find(|&input| graph.input_name(input) == name)
}
