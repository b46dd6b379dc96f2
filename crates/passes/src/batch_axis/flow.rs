//! The dataflow: states of inputs become states of outputs, node by node. Whatever a rule says is held against the Types
//! of the results: rows must be the only place where the Dim shows.

use std::collections::BTreeSet;

use precast_ir::{Definition, Graph, Node, Op, ValueId};
use precast_tensor::{Dim, Ranges, Symbol, SymbolRange, Type};

use super::align::all_whole;
use super::control::{fused, has_bodies, if_, loop_};
use super::places::{Known, known};
use super::state::{Answer, Refusal, Site, State, View, refusal};
use super::{attention, conv, elementwise, index, layout, matmul, norm, quantize, reduce, sequence, window};

/// States of a graph's outputs from those of its inputs. In a body, `outer` is the node that has it.
pub(super) fn output_states(
    graph: &Graph,
    dim: &Symbol,
    range: SymbolRange,
    inputs: Vec<State>,
    outer: Option<&Site>,
) -> Vec<State> {
    let mut flow = Flow::start(graph, dim, range, inputs, outer);
    for (position, node) in graph.nodes().iter().enumerate() {
        for (&output, (state, known)) in node.outputs.iter().zip(flow.node_states(position, node)) {
            flow.set(output, state);
            flow.known[output.0 as usize] = known;
        }
    }
    graph.outputs().iter().map(|output| flow.states[output.value.0 as usize].clone()).collect()
}

struct Flow<'a> {
    graph: &'a Graph,
    dim: &'a Symbol,
    outer: Option<&'a Site>,
    /// What is known of symbols. The range of the Dim is the one given: a body may not know it.
    ranges: Ranges,
    /// Types by value, simplified under the ranges.
    types: Vec<Type>,
    states: Vec<State>,
    known: Vec<Known>,
    /// Symbols that some value met so far has in its Type: a new one is a size that a node decides.
    seen: BTreeSet<Symbol>,
    /// Symbols whose numbers may depend on rows or on how many there are, though they do not show the Dim.
    tied: BTreeSet<Symbol>,
}

impl<'a> Flow<'a> {
    fn start(
        graph: &'a Graph,
        dim: &'a Symbol,
        range: SymbolRange,
        inputs: Vec<State>,
        outer: Option<&'a Site>,
    ) -> Flow<'a> {
        let mut ranges = graph.ranges.clone();
        ranges.insert(dim, range);
        let types = graph.values().iter().map(|value| value.ty.simplify(&ranges)).collect();
        let states = vec![State::Free; graph.values().len()];
        let known = graph.values().iter().map(|value| match &value.definition {
            Definition::Constant(tensor) => Known::of_constant(tensor),
            Definition::Input(_) | Definition::Node { .. } => Known::Nothing,
        });
        let known = known.collect();
        let (seen, tied) = (BTreeSet::new(), BTreeSet::new());
        let mut flow = Flow { graph, dim, outer, ranges, types, states, known, seen, tied };
        for &input in graph.inputs() {
            flow.seen.extend(graph.ty(input).dims.iter().flat_map(Dim::symbols));
        }
        for (&input, state) in graph.inputs().iter().zip(inputs) {
            flow.set(input, state);
        }
        flow
    }

    /// Records a state. Sizes that are read from the value, and those that it alone decides, share its fate.
    fn set(&mut self, value: ValueId, state: State) {
        let is_free = matches!(state, State::Free);
        if !is_free {
            let reads = self.graph.sizes.iter().filter(|size| size.value == value);
            self.tied.extend(reads.map(|size| size.symbol.clone()));
        }
        let is_node = matches!(self.graph.value(value).definition, Definition::Node { .. });
        for symbol in self.graph.ty(value).dims.iter().flat_map(Dim::symbols) {
            let is_new = self.seen.insert(symbol.clone());
            if is_new && is_node && !is_free && !matches!(state, State::Row(_)) {
                self.tied.insert(symbol);
            }
        }
        self.states[value.0 as usize] = state;
    }

    fn node_states(&self, position: usize, node: &'a Node) -> Vec<(State, Known)> {
        let states: Vec<&State> = node.inputs.iter().map(|input| &self.states[input.0 as usize]).collect();
        let mixed = states.iter().find(|state| matches!(state, State::Mixed(_)));
        if let (Some(mixed), false) = (mixed, has_bodies(&node.op)) {
            return vec![((*mixed).clone(), Known::Nothing); node.outputs.len()];
        }
        let types = node.inputs.iter().map(|input| &self.types[input.0 as usize]).collect();
        let known = node.inputs.iter().map(|input| &self.known[input.0 as usize]).collect();
        let site = self.site(position, node);
        let view = View { dim: self.dim, ranges: &self.ranges, types, states, known, site };
        let answer = self.check_attributes(node).and_then(|()| rule(&node.op, node.outputs.len(), &view));
        match answer {
            Ok(states) => {
                let outputs = node.outputs.iter().zip(states);
                outputs
                    .map(|(&output, state)| self.learn(node, output, self.checked(output, state, &view), &view))
                    .collect()
            }
            Err(Refusal { axis, why }) => {
                vec![(State::Mixed(view.site(axis, why)), Known::Nothing); node.outputs.len()]
            }
        }
    }

    /// Adds what is known of the elements. Sizes that do not depend on the Dim are `Free`, whatever they were picked from.
    fn learn(&self, node: &Node, output: ValueId, state: State, view: &View<'_>) -> (State, Known) {
        let known = known(node, view, &state, &self.types[output.0 as usize].dims);
        match (&known, &state) {
            (Known::Sizes(sizes), State::Extent(_)) if !sizes.iter().any(|size| view.mentions(size)) => {
                (State::Free, known)
            }
            _ => (state, known),
        }
    }

    fn site(&self, position: usize, node: &Node) -> Site {
        let names = node.provenance.to_string();
        let (node_position, outer_names) = match self.outer {
            Some(outer) => (outer.node, outer.names.clone()),
            None => (position, String::new()),
        };
        let names = if names.is_empty() { outer_names } else { names };
        Site { node: node_position, op: node.op.name(), names, axis: None, why: String::new() }
    }

    /// Refuses attributes with sizes that depend on the Dim in ways that do not show.
    fn check_attributes(&self, node: &Node) -> Result<(), Refusal> {
        if self.tied.is_empty() {
            return Ok(());
        }
        let mut symbols = BTreeSet::new();
        node.op.collect_symbols(&mut symbols);
        match symbols.intersection(&self.tied).next() {
            Some(symbol) => Err(refusal(None, format!("uses the size {symbol}, which depends on {}", self.dim))),
            None => Ok(()),
        }
    }

    /// The state, if the Type shows the Dim just where the state says.
    fn checked(&self, value: ValueId, state: State, view: &View<'_>) -> State {
        let ty = &self.types[value.0 as usize];
        let symbols: BTreeSet<Symbol> = ty.dims.iter().flat_map(Dim::symbols).collect();
        if matches!(state, State::Mixed(_)) || (self.shows(ty, &state) && symbols.is_disjoint(&self.tied)) {
            return state;
        }
        State::Mixed(view.site(None, format!("gives {ty}, in which rows of {} do not show", self.dim)))
    }

    fn shows(&self, ty: &Type, state: &State) -> bool {
        let row_axis = match state {
            State::Row(rows) => Some(rows),
            State::Free | State::Dup(_) | State::Extent(_) | State::Mixed(_) => None,
        };
        let is_right = |(axis, size): (usize, &Dim)| match row_axis {
            Some(rows) if rows.axis == axis => rows.extent(self.dim).simplify(&self.ranges) == *size,
            _ => !size.symbols().contains(self.dim),
        };
        row_axis.is_none_or(|rows| rows.axis < ty.rank()) && ty.dims.iter().enumerate().all(is_right)
    }
}

/// The rule of every op.
fn rule(op: &Op, output_count: usize, view: &View<'_>) -> Result<Vec<State>, Refusal> {
    let answer: Answer = match op {
        Op::Unary(_) | Op::Clamp(_) | Op::Cast(_) | Op::Bitcast(_) => elementwise::unary(view),
        Op::Binary(_) | Op::Compare(_) | Op::Select(_) => elementwise::joined(view),
        Op::Reduce(op) => reduce::reduce(op, view),
        Op::ArgReduce(op) => reduce::arg_reduce(op, view),
        Op::Cumulate(op) => reduce::cumulate(op, view),
        Op::Matmul(op) => matmul::matmul(op, view),
        Op::MatmulInt(_) => matmul::matmul_int(view),
        Op::Conv(op) => conv::conv(view, op.pad_lo.iter().chain(&op.pad_hi)),
        Op::ConvInt(op) => conv::conv(view, op.pad_lo.iter().chain(&op.pad_hi)),
        Op::ConvTranspose(op) => conv::conv(view, op.pad_lo.iter().chain(&op.pad_hi)),
        Op::Pool(op) => window::pool(op, view),
        Op::PoolIndices(op) => window::pool_indices(op, view),
        Op::RoiAlign(_) => window::roi_align(view),
        Op::Resize(op) => window::resize(op, view),
        Op::GridSample(op) => window::grid_sample(op, view),
        Op::Softmax(op) => norm::softmax(op.axis, view),
        Op::LayerNorm(op) => norm::trailing(op.axis, view),
        Op::RmsNorm(op) => norm::trailing(op.axis, view),
        Op::GroupNorm(_) => norm::group_norm(view),
        Op::Lrn(_) => norm::lrn(view),
        Op::Recurrent(op) => return sequence::recurrent(op, view),
        Op::CachedAttention(op) => attention::cached_attention(op, view),
        Op::AppendToCache(op) => attention::append_to_cache(op, view),
        Op::Gather(op) => index::gather(op, view),
        Op::GatherElements(op) => index::gather_elements(op, view),
        Op::GatherNd(op) => index::gather_nd(op, view),
        Op::ScatterElements(op) => index::scatter_elements(op, view),
        Op::ScatterNd(op) => index::scatter_nd(op, view),
        Op::Topk(op) => index::topk(op, view),
        Op::NonZero(_) | Op::Nms(_) => counted(view),
        Op::Iota(op) => layout::iota(op, view),
        Op::DimValue(op) => layout::dim_value(&op.dim, view),
        Op::Reshape(op) => layout::reshape(op, view),
        Op::Transpose(op) => layout::transpose(op, view),
        Op::Broadcast(op) => layout::broadcast_to(op, view),
        Op::Slice(op) => layout::slice(op, view),
        Op::Concat(op) => layout::concat(op, view),
        Op::Pad(op) => layout::pad(op, view),
        Op::Quantize(op) => quantize::scaled(op.axis, op.block, view),
        Op::Dequantize(op) => quantize::scaled(op.axis, op.block, view),
        Op::Unpack(_) => quantize::unpacked(view),
        Op::Uniform(_) | Op::Normal(_) => Err(refusal(None, "draws random numbers")),
        Op::If(op) => return if_(op, view),
        Op::Loop(op) => return loop_(op, view),
        Op::Fused(op) => return fused(op, view),
    };
    Ok(vec![answer?; output_count])
}

/// Ops whose result has as many elements as values say.
fn counted(view: &View<'_>) -> Answer {
    match all_whole(view)? {
        State::Free => Ok(State::Free),
        State::Row(_) | State::Dup(_) | State::Extent(_) | State::Mixed(_) => {
            Err(refusal(None, format!("counts values that depend on {}", view.dim)))
        }
    }
}
