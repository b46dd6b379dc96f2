//! What is known of one value: where the rows of the Dim lie in it, and what ties them together.

use std::sync::Arc;

use precast_tensor::{Dim, Ranges, Symbol, Type};

use super::Grade;
use super::places::Known;

/// A node that ties rows together, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Position of the node of the Graph; of a node in a body, that of the node that has the body.
    pub node: usize,
    /// Name of the op.
    pub op: &'static str,
    /// Names of the source model's nodes; may be empty.
    pub names: String,
    /// The axis of the op's input on which the rows lay.
    pub axis: Option<usize>,
    /// What the op does with the rows, as the rest of a sentence that begins with its name.
    pub why: String,
}

impl Site {
    /// The refusal that names this place.
    pub(super) fn as_refused(&self) -> Grade {
        let Site { node, op, names, axis, why } = self.clone();
        Grade::Refused { node, op, names, axis, why }
    }
}

/// Knowledge of one value. `Row` with `dup` is called RowDup in the specification, with `prefix` Prefix.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// Depends neither on rows nor on their number.
    Free,
    /// Has an axis of rows; row i depends on row i and on what is `Free`, and on what `Rows` says besides.
    Row(Rows),
    /// Has no axis of rows and depends on all of them, in a way that copies of rows do not change.
    Dup(Arc<Site>),
    /// Has no axis of rows and depends on their number.
    Extent(Arc<Site>),
    /// Nothing is known.
    Mixed(Arc<Site>),
}

impl State {
    /// Why the value changes with pads that are not copies.
    pub(super) fn dup_site(&self) -> Option<&Arc<Site>> {
        match self {
            State::Row(rows) => rows.dup.as_ref(),
            State::Dup(site) => Some(site),
            State::Free | State::Extent(_) | State::Mixed(_) => None,
        }
    }

    /// Why a row of the value depends on those before it.
    pub(super) fn prefix_site(&self) -> Option<&Arc<Site>> {
        match self {
            State::Row(rows) => rows.prefix.as_ref(),
            State::Free | State::Dup(_) | State::Extent(_) | State::Mixed(_) => None,
        }
    }

    /// What is known of a value that is one of two; none if that is nothing.
    pub(super) fn join(&self, other: &State) -> Option<State> {
        match (self, other) {
            (State::Mixed(_), _) => Some(self.clone()),
            (_, State::Mixed(_)) => Some(other.clone()),
            (State::Row(a), State::Row(b)) => a.merge(b).map(State::Row),
            (State::Row(_), State::Free | State::Dup(_) | State::Extent(_)) => None,
            (State::Free | State::Dup(_) | State::Extent(_), State::Row(_)) => None,
            (_, State::Free) | (State::Dup(_), State::Dup(_)) | (State::Extent(_), State::Extent(_)) => {
                Some(self.clone())
            }
            (State::Free, State::Dup(_) | State::Extent(_)) => Some(other.clone()),
            (State::Dup(_), State::Extent(_)) | (State::Extent(_), State::Dup(_)) => None,
        }
    }
}

/// Where rows lie: axis `axis` has extent outer × Dim × inner, and row i is index i of the middle factor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rows {
    pub axis: usize,
    pub outer: Dim,
    pub inner: Dim,
    /// Rows also depend on all rows, in a way that copies of rows do not change.
    pub dup: Option<Arc<Site>>,
    /// Row i also depends on rows before it, or on i.
    pub prefix: Option<Arc<Site>>,
}

impl Rows {
    /// Rows that depend on nothing else.
    pub fn new(axis: usize, outer: Dim, inner: Dim) -> Rows {
        Rows { axis, outer, inner, dup: None, prefix: None }
    }

    /// The same rows on another axis.
    pub fn at(&self, axis: usize) -> Rows {
        Rows { axis, ..self.clone() }
    }

    /// Extent of the axis.
    pub fn extent(&self, dim: &Symbol) -> Dim {
        &self.outer * Dim::from(dim) * &self.inner
    }

    /// Rows that depend on what either depends on; none if they lie differently.
    pub fn merge(&self, other: &Rows) -> Option<Rows> {
        let is_aligned = self.axis == other.axis && self.outer == other.outer && self.inner == other.inner;
        is_aligned.then(|| Rows {
            dup: self.dup.clone().or_else(|| other.dup.clone()),
            prefix: self.prefix.clone().or_else(|| other.prefix.clone()),
            ..self.clone()
        })
    }
}

/// Why a rule cannot keep rows apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub axis: Option<usize>,
    pub why: String,
}

/// What a rule says of an output.
pub(super) type Answer = Result<State, Refusal>;

/// One node as a rule sees it. Among the states of its inputs is no `Mixed`, except for ops with bodies.
pub(super) struct View<'a> {
    pub dim: &'a Symbol,
    pub ranges: &'a Ranges,
    /// Types of the inputs, simplified under the ranges.
    pub types: Vec<&'a Type>,
    pub states: Vec<&'a State>,
    pub known: Vec<&'a Known>,
    /// The node, without axis and reason.
    pub site: Site,
}

impl View<'_> {
    /// The rows of an input that has some.
    pub fn rows(&self, input: usize) -> Option<&Rows> {
        match self.states.get(input) {
            Some(State::Row(rows)) => Some(rows),
            _ => None,
        }
    }

    /// Dims of an input.
    pub fn dims(&self, input: usize) -> &[Dim] {
        &self.types[input].dims
    }

    /// A size among the attributes, simplified as the Types are.
    pub fn size(&self, size: &Dim) -> Dim {
        size.simplify(self.ranges)
    }

    /// Sizes among the attributes, simplified as the Types are.
    pub fn simplified(&self, sizes: &[Dim]) -> Vec<Dim> {
        sizes.iter().map(|size| self.size(size)).collect()
    }

    /// Whether a size depends on the Dim.
    pub fn mentions(&self, size: &Dim) -> bool {
        size.symbols().contains(self.dim)
    }

    /// Refuses sizes among the attributes that depend on the Dim.
    pub fn check_sizes<'d>(&self, what: &str, sizes: impl IntoIterator<Item = &'d Dim>) -> Result<(), Refusal> {
        match sizes.into_iter().find(|size| self.mentions(size)) {
            Some(size) => Err(refusal(None, format!("has {what} {size}"))),
            None => Ok(()),
        }
    }

    /// This node as the reason for something.
    pub fn site(&self, axis: Option<usize>, why: impl Into<String>) -> Arc<Site> {
        Arc::new(Site { axis, why: why.into(), ..self.site.clone() })
    }

    /// The refusal of an op that does `what` along the rows.
    pub fn over(&self, axis: usize, what: &str) -> Refusal {
        refusal(axis, format!("{what} over {}", self.dim))
    }
}

/// A refusal.
pub(super) fn refusal(axis: impl Into<Option<usize>>, why: impl Into<String>) -> Refusal {
    Refusal { axis: axis.into(), why: why.into() }
}
