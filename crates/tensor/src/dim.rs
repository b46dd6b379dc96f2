//! `Dim`: a size as an exact integer expression over symbols, kept in canonical form.
//!
//! The form is a sum of products with sorted terms, over symbols and opaque atoms (divisions, min, max). Equal
//! forms are equal for all integers. Coefficients saturate at the ends of i64 instead of wrapping or panicking:
//! no size beyond that can exist, so a saturated Dim is only ever refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Symbol;

/// A size: a number, a symbol, or an expression of symbols. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dim(pub(crate) Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Repr {
    /// Never a bare number: `terms` is not empty.
    Sum(Arc<Sum>),
    /// Sorts last, so that `min(n,4)` prints as people write it.
    Const(i64),
}

/// `Σ terms + constant`.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sum {
    /// Sorted by product, products distinct, coefficients not zero.
    pub terms: Vec<Term>,
    pub constant: i64,
    /// Number of leaves when written out as a tree.
    weight: u64,
}

/// `coefficient * product`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Term {
    pub product: Product,
    pub coefficient: i64,
}

/// Atoms multiplied together: sorted, repeated for powers, not empty.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Product(pub Vec<Atom>);

/// A factor that is not taken apart.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Atom {
    Symbol(Symbol),
    Divide(Division, Dim, Dim),
    /// Two or more arguments, sorted, none a constant distance from another.
    Extreme(Extreme, Vec<Dim>),
    /// A product whose expansion would be too large, operands sorted.
    Unexpanded(Dim, Dim),
}

/// What a division atom keeps. Division by zero gives zero in all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Division {
    Floor,
    Ceil,
    Trunc,
    Mod,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Extreme {
    Min,
    Max,
}

impl Dim {
    /// The size 0.
    pub const ZERO: Dim = Dim(Repr::Const(0));
    /// The size 1.
    pub const ONE: Dim = Dim(Repr::Const(1));

    /// Importers refuse expressions heavier than this: evaluation and printing walk them as trees.
    pub const WEIGHT_MAX: u64 = 1 << 10;

    /// A free size with this name.
    pub fn symbol(symbol: impl Into<Symbol>) -> Dim {
        Dim::atom(Atom::Symbol(symbol.into()))
    }

    /// The number, if this is one.
    pub fn as_const(&self) -> Option<i64> {
        match &self.0 {
            Repr::Const(value) => Some(*value),
            Repr::Sum(_) => None,
        }
    }

    /// The number as a size, if this is one and it is not negative.
    pub fn as_usize(&self) -> Option<usize> {
        usize::try_from(self.as_const()?).ok()
    }

    /// The symbol, if this is exactly one.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.as_atom()? {
            Atom::Symbol(symbol) => Some(symbol),
            Atom::Divide(..) | Atom::Extreme(..) | Atom::Unexpanded(..) => None,
        }
    }

    /// Whether this is a number.
    pub fn is_const(&self) -> bool {
        self.as_const().is_some()
    }

    /// Leaves of the expression written out as a tree; 1 for a number.
    pub fn weight(&self) -> u64 {
        match &self.0 {
            Repr::Const(_) => 1,
            Repr::Sum(sum) => sum.weight,
        }
    }

    /// The smaller of two sizes. Call as `Dim::min(&a, &b)`.
    pub fn min(&self, other: &Dim) -> Dim {
        extreme(Extreme::Min, [self, other])
    }

    /// The larger of two sizes. Call as `Dim::max(&a, &b)`.
    pub fn max(&self, other: &Dim) -> Dim {
        extreme(Extreme::Max, [self, other])
    }

    pub(crate) fn atom(atom: Atom) -> Dim {
        let mut builder = SumBuilder::default();
        builder.add_term(Product(vec![atom]), 1);
        builder.finish()
    }

    pub(crate) fn as_atom(&self) -> Option<&Atom> {
        match (self.terms(), self.constant()) {
            ([Term { product, coefficient: 1 }], 0) => product.as_atom(),
            _ => None,
        }
    }

    pub(crate) fn terms(&self) -> &[Term] {
        match &self.0 {
            Repr::Const(_) => &[],
            Repr::Sum(sum) => &sum.terms,
        }
    }

    /// The part of the sum without symbols.
    pub(crate) fn constant(&self) -> i64 {
        match &self.0 {
            Repr::Const(value) => *value,
            Repr::Sum(sum) => sum.constant,
        }
    }

    pub(crate) fn degree(&self) -> usize {
        self.terms().iter().map(|term| term.product.0.len()).max().unwrap_or(0)
    }

    /// `self + factor * other`, or none where a coefficient leaves i64.
    pub(crate) fn checked_add_scaled(&self, other: &Dim, factor: i64) -> Option<Dim> {
        let mut builder = SumBuilder::default();
        builder.add_scaled(self, 1);
        builder.add_scaled(other, factor);
        builder.finish_exact()
    }

    /// `factor * self`, or none where a coefficient leaves i64.
    pub(crate) fn checked_scale(&self, factor: i64) -> Option<Dim> {
        Dim::ZERO.checked_add_scaled(self, factor)
    }
}

impl Product {
    pub(crate) fn as_atom(&self) -> Option<&Atom> {
        match self.0.as_slice() {
            [atom] => Some(atom),
            _ => None,
        }
    }

    pub(crate) fn times(&self, other: &Product) -> Product {
        let mut atoms: Vec<Atom> = self.0.iter().chain(&other.0).cloned().collect();
        atoms.sort();
        Product(atoms)
    }
}

/// By degree, then atom by atom: an order that multiplication keeps, as polynomial division needs.
impl Ord for Product {
    fn cmp(&self, other: &Product) -> std::cmp::Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Product {
    fn partial_cmp(&self, other: &Product) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// An arbitrary order of forms, for sorting and maps; it says nothing about sizes (see `dim_compare`).
impl Ord for Dim {
    fn cmp(&self, other: &Dim) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }

    // `a.min(b)` on owned Dims finds these methods before the inherent ones: they must mean the same.
    fn min(self, other: Dim) -> Dim {
        Dim::min(&self, &other)
    }

    fn max(self, other: Dim) -> Dim {
        Dim::max(&self, &other)
    }

    fn clamp(self, low: Dim, high: Dim) -> Dim {
        Dim::min(&Dim::max(&self, &low), &high)
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Dim) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim(Repr::Const(value))
    }
}

impl From<i32> for Dim {
    fn from(value: i32) -> Dim {
        Dim::from(i64::from(value))
    }
}

impl From<u32> for Dim {
    fn from(value: u32) -> Dim {
        Dim::from(i64::from(value))
    }
}

/// Saturates at `i64::MAX`.
impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim::from(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Dim {
        Dim::symbol(symbol)
    }
}

impl From<&Symbol> for Dim {
    fn from(symbol: &Symbol) -> Dim {
        Dim::symbol(symbol.clone())
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

/// Collects terms into canonical form; remembers whether a coefficient had to saturate.
#[derive(Default)]
pub(crate) struct SumBuilder {
    terms: BTreeMap<Product, i64>,
    constant: i64,
    has_overflowed: bool,
}

impl SumBuilder {
    pub(crate) fn add_constant(&mut self, value: i64) {
        self.constant = self.narrow(i128::from(self.constant) + i128::from(value));
    }

    pub(crate) fn add_term(&mut self, product: Product, coefficient: i64) {
        let previous = self.terms.get(&product).copied().unwrap_or(0);
        match self.narrow(i128::from(previous) + i128::from(coefficient)) {
            0 => self.terms.remove(&product),
            sum => self.terms.insert(product, sum),
        };
    }

    pub(crate) fn add_scaled(&mut self, dim: &Dim, factor: i64) {
        for Term { product, coefficient } in dim.terms() {
            let scaled = self.narrow(i128::from(*coefficient) * i128::from(factor));
            self.add_term(product.clone(), scaled);
        }
        let scaled = self.narrow(i128::from(dim.constant()) * i128::from(factor));
        self.add_constant(scaled);
    }

    pub(crate) fn narrow(&mut self, value: i128) -> i64 {
        let narrowed = saturate(value);
        self.has_overflowed |= i128::from(narrowed) != value;
        narrowed
    }

    pub(crate) fn finish(self) -> Dim {
        if self.terms.is_empty() {
            return Dim(Repr::Const(self.constant));
        }
        let terms: Vec<Term> =
            self.terms.into_iter().map(|(product, coefficient)| Term { product, coefficient }).collect();
        let leaves = terms.iter().flat_map(|term| &term.product.0).map(Atom::weight);
        let weight = leaves.fold(1, u64::saturating_add);
        Dim(Repr::Sum(Arc::new(Sum { terms, constant: self.constant, weight })))
    }

    pub(crate) fn finish_exact(self) -> Option<Dim> {
        (!self.has_overflowed).then(|| self.finish())
    }
}

impl Atom {
    fn weight(&self) -> u64 {
        match self {
            Atom::Symbol(_) => 1,
            Atom::Divide(_, left, right) | Atom::Unexpanded(left, right) => {
                left.weight().saturating_add(right.weight())
            }
            Atom::Extreme(_, arguments) => arguments.iter().map(Dim::weight).fold(0, u64::saturating_add),
        }
    }
}

/// The i64 nearest to a value.
pub(crate) fn saturate(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// Min or max of some sizes: flattened, with arguments a constant distance apart decided.
pub(crate) fn extreme<'a>(kind: Extreme, dims: impl IntoIterator<Item = &'a Dim>) -> Dim {
    let mut kept: Vec<Dim> = Vec::new();
    for dim in dims {
        match dim.as_atom() {
            Some(Atom::Extreme(inner, arguments)) if *inner == kind => {
                arguments.iter().for_each(|argument| keep_extreme(kind, &mut kept, argument));
            }
            _ => keep_extreme(kind, &mut kept, dim),
        }
    }
    kept.sort();
    match kept.as_slice() {
        [single] => single.clone(),
        _ => Dim::atom(Atom::Extreme(kind, kept)),
    }
}

fn keep_extreme(kind: Extreme, kept: &mut Vec<Dim>, candidate: &Dim) {
    for dim in kept.iter_mut() {
        let distance = candidate.checked_add_scaled(dim, -1).and_then(|distance| distance.as_const());
        let Some(distance) = distance else { continue };
        let replaces = match kind {
            Extreme::Min => distance < 0,
            Extreme::Max => distance > 0,
        };
        if replaces {
            *dim = candidate.clone();
        }
        return;
    }
    kept.push(candidate.clone());
}
