//! The padding proof: whether the rows of a Dim stay apart from the inputs to the outputs of a Graph, so that a request
//! of n rows may run in a Program of b > n rows, or be cut into chunks.
//!
//! A forward dataflow, linear in the Graph, gives every value a `State`; one file a family holds the rules of its ops. A
//! rule claims as little as it can prove: what it does not know is `Mixed`, which refuses padding. That an extent equals
//! the Dim on one request is no evidence: only equal expressions count as equal.

mod align;
mod attention;
mod control;
mod conv;
mod elementwise;
mod flow;
mod index;
mod layout;
mod matmul;
mod norm;
mod places;
mod quantize;
mod reduce;
mod sequence;
mod state;
mod window;

use std::sync::Arc;

use precast_ir::Graph;
use precast_tensor::{Dim, Symbol, SymbolRange, Type};

pub use state::Site;

use flow::output_states;
use state::{Rows, State};

/// How rows of the Dim may be padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Real rows are the same bits for any content of pad rows.
    Independent,
    /// Real rows are the same bits if every pad row is a copy of a real one.
    ReplicateOnly,
    /// Rows may not be padded. Where an input or output as declared has no rows, `op` is `input` or `output` and `node`
    /// its position among them.
    Refused {
        /// Position of the node of the Graph; of a node in a body, that of the node that has the body.
        node: usize,
        /// Name of the op.
        op: &'static str,
        /// Names of the source model's nodes; may be empty.
        names: String,
        /// The axis of the op's input on which the rows lay.
        axis: Option<usize>,
        /// What the op does with the rows, as the rest of a sentence that begins with its name.
        why: String,
    },
}

/// Where the rows of an output lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputRule {
    /// The output does not carry the Dim.
    Whole,
    /// Axis `axis` has extent outer × Dim × inner: row i is index i of the middle factor.
    Rows {
        /// The axis.
        axis: usize,
        /// Blocks before the Dim inside the axis.
        outer: i64,
        /// Elements after the Dim inside the axis.
        inner: i64,
    },
    /// Rows cannot be told apart.
    Mixed,
}

/// What padding and splitting along one Dim may do to a Graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PadVerdict {
    /// The Dim.
    pub dim: Symbol,
    /// How rows may be padded.
    pub grade: Grade,
    /// Whether chunks of rows may run one after the other.
    pub split_safe: bool,
    /// The node that keeps rows from being split, or from being padded with anything but copies; none where the grade is
    /// `Refused`, which names its own.
    pub tie: Option<Site>,
    /// One rule an output, in order.
    pub outputs: Vec<OutputRule>,
}

/// A Dim without a declared range is taken to have at most this many rows: `min(n, 10^9)`, which exporters write for "to
/// the end", is then n.
pub const ROWS_MAX: i64 = 1 << 24;

/// The verdict for one Dim of a symbolic Graph. Inputs are taken to be padded at the end of the axis that carries the
/// Dim: of an extent c × Dim, c elements a row.
pub fn pad_verdict(graph: &Graph, dim: &Symbol) -> PadVerdict {
    let inputs: Vec<State> = graph
        .inputs()
        .iter()
        .enumerate()
        .map(|(position, &input)| input_state(graph.ty(input), dim, position, graph.input_name(input)))
        .collect();
    let refused_input = inputs.iter().find(|state| matches!(state, State::Mixed(_))).cloned();
    let any = SymbolRange { lo: 1, hi: ROWS_MAX, multiple: 1 };
    let range = if graph.ranges.contains(dim) { graph.ranges.get(dim) } else { any };
    let states = output_states(graph, dim, range, inputs, None);
    let rules: Vec<Result<OutputRule, Arc<Site>>> = states
        .iter()
        .enumerate()
        .map(|(position, state)| output_rule(state, dim, position, &graph.outputs()[position].name))
        .collect();
    let refusal = match refused_input {
        Some(State::Mixed(site)) => Some(site),
        _ => rules.iter().find_map(|rule| rule.as_ref().err().cloned()),
    };
    let dup = states.iter().find_map(State::dup_site);
    let tie = dup.or_else(|| states.iter().find_map(State::prefix_site));
    let grade = match (&refusal, dup) {
        (Some(site), _) => site.as_refused(),
        (None, Some(_)) => Grade::ReplicateOnly,
        (None, None) => Grade::Independent,
    };
    PadVerdict {
        dim: dim.clone(),
        split_safe: refusal.is_none() && tie.is_none(),
        tie: if refusal.is_none() { tie.map(|site| (**site).clone()) } else { None },
        grade,
        outputs: rules.into_iter().map(|rule| rule.unwrap_or(OutputRule::Mixed)).collect(),
    }
}

/// The verdict as one line for `precast check`.
pub fn explain(graph: &Graph, verdict: &PadVerdict) -> String {
    let dim = &verdict.dim;
    let named = |names: &str, op: &str| if names.is_empty() { op.to_string() } else { names.to_string() };
    let tie = verdict.tie.as_ref().map(|site| format!("{} {}", named(&site.names, site.op), site.why));
    match (&verdict.grade, tie) {
        (Grade::Refused { names, op, why, .. }, _) => {
            format!("{dim}  Refused  {} {why} → exact {dim} only", named(names, op))
        }
        (Grade::ReplicateOnly, tie) => {
            let tie = tie.unwrap_or_default();
            format!("{dim}  ReplicateOnly  {tie} → pads copy a real row, never split")
        }
        (Grade::Independent, Some(tie)) => format!("{dim}  Independent  {tie} → any pads, never split"),
        (Grade::Independent, None) => {
            format!("{dim}  Independent  {} → any pads, may be split", row_outputs(graph, verdict))
        }
    }
}

/// Names of the outputs that have rows; of many only the first.
fn row_outputs(graph: &Graph, verdict: &PadVerdict) -> String {
    let outputs = graph.outputs().iter().zip(&verdict.outputs);
    let has_rows = outputs.filter(|(_, rule)| matches!(rule, OutputRule::Rows { .. }));
    let names: Vec<&str> = has_rows.map(|(output, _)| output.name.as_str()).collect();
    match names[..] {
        [] => "no output has rows".to_string(),
        [first] => format!("rows of {first}"),
        [first, ..] => format!("rows of {first} and {} more", names.len() - 1),
    }
}

/// The state of an input: rows where one dim is the Dim or a multiple of it.
fn input_state(ty: &Type, dim: &Symbol, position: usize, name: &str) -> State {
    let carrying: Vec<usize> = (0..ty.rank()).filter(|&axis| ty.dims[axis].symbols().contains(dim)).collect();
    let site = |axis: Option<usize>, why: String| {
        State::Mixed(Arc::new(Site { node: position, op: "input", names: format!("input '{name}'"), axis, why }))
    };
    match carrying[..] {
        [] => State::Free,
        [axis] => match ty.dims[axis].floor_div_exact(&Dim::from(dim)) {
            Some(inner) if !inner.symbols().contains(dim) => State::Row(Rows::new(axis, Dim::ONE, inner)),
            _ => site(Some(axis), format!("has extent {} where rows need a multiple of {dim}", ty.dims[axis])),
        },
        [..] => site(None, format!("has {dim} on {} axes", carrying.len())),
    }
}

fn output_rule(state: &State, dim: &Symbol, position: usize, name: &str) -> Result<OutputRule, Arc<Site>> {
    match state {
        State::Free | State::Dup(_) => Ok(OutputRule::Whole),
        State::Row(rows) => match (rows.outer.as_const(), rows.inner.as_const()) {
            (Some(outer), Some(inner)) => Ok(OutputRule::Rows { axis: rows.axis, outer, inner }),
            _ => Err(Arc::new(Site {
                node: position,
                op: "output",
                names: format!("output '{name}'"),
                axis: Some(rows.axis),
                why: format!("has extent {} × {dim} × {}, which no number describes", rows.outer, rows.inner),
            })),
        },
        State::Extent(site) | State::Mixed(site) => Err(site.clone()),
    }
}
