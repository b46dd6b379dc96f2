//! What is known about symbols, and the bounds of Dims that follow from it.
//!
//! Interval arithmetic, sharpened by two exact identities that let equal parts cancel: min and max distribute
//! over the rest of the sum, and `k * (x floordiv k) = x - x mod k`.

use std::collections::BTreeMap;

use crate::dim::{Atom, Division, Extreme, SumBuilder, Term, saturate};
use crate::dim_divide::{divide_numbers, gcd};
use crate::{Dim, Symbol};

/// The values a symbol may take: `lo..=hi`, and only multiples of `multiple`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SymbolRange {
    /// Smallest value.
    pub lo: i64,
    /// Largest value.
    pub hi: i64,
    /// Every value is a multiple of this; 1 where nothing is known.
    pub multiple: i64,
}

impl SymbolRange {
    /// Any size a tensor can have: not negative, and small enough that a few can be added or scaled in i64.
    pub const ANY: SymbolRange = SymbolRange { lo: 0, hi: i64::MAX >> 20, multiple: 1 };

    /// All values from `lo` to `hi`.
    pub const fn new(lo: i64, hi: i64) -> SymbolRange {
        SymbolRange { lo, hi, multiple: 1 }
    }

    /// The range with its ends moved inwards to multiples.
    fn tightened(self) -> (i64, i64) {
        if self.multiple <= 1 || self.lo > self.hi {
            return (self.lo.min(self.hi), self.lo.max(self.hi));
        }
        let multiple = i128::from(self.multiple);
        let lo = i128::from(divide_numbers(Division::Ceil, self.lo, self.multiple)) * multiple;
        let hi = i128::from(divide_numbers(Division::Floor, self.hi, self.multiple)) * multiple;
        if lo > hi { (self.lo, self.hi) } else { (saturate(lo), saturate(hi)) }
    }
}

impl Default for SymbolRange {
    fn default() -> SymbolRange {
        SymbolRange::ANY
    }
}

/// The ranges of some symbols; a symbol that is absent has `SymbolRange::ANY`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ranges(BTreeMap<Symbol, SymbolRange>);

impl Ranges {
    /// Nothing known beyond `SymbolRange::ANY`.
    pub fn new() -> Ranges {
        Ranges::default()
    }

    /// The range of a symbol.
    pub fn get(&self, symbol: &Symbol) -> SymbolRange {
        self.0.get(symbol).copied().unwrap_or_default()
    }

    /// Whether a range was given for this symbol.
    pub fn contains(&self, symbol: &Symbol) -> bool {
        self.0.contains_key(symbol)
    }

    /// Gives a symbol a range; returns the one it had.
    pub fn insert(&mut self, symbol: impl Into<Symbol>, range: SymbolRange) -> Option<SymbolRange> {
        self.0.insert(symbol.into(), range)
    }

    /// Forgets a symbol; returns the range it had.
    pub fn remove(&mut self, symbol: &Symbol) -> Option<SymbolRange> {
        self.0.remove(symbol)
    }

    /// The given ranges in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, SymbolRange)> {
        self.0.iter().map(|(symbol, range)| (symbol, *range))
    }

    /// Whether no range was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S: Into<Symbol>> FromIterator<(S, SymbolRange)> for Ranges {
    fn from_iter<I: IntoIterator<Item = (S, SymbolRange)>>(ranges: I) -> Ranges {
        Ranges(ranges.into_iter().map(|(symbol, range)| (symbol.into(), range)).collect())
    }
}

/// How many identities `bounds` applies inside one another, on how many terms of a sum and to how many arguments
/// of a min or max: the work grows with their powers, and shapes found in models need two or three.
const IDENTITY_DEPTH_MAX: u32 = 3;
const IDENTITY_TERMS_MAX: usize = 4;
const IDENTITY_ARGUMENTS_MAX: usize = 8;

type Interval = (i128, i128);

impl Dim {
    /// Bounds of this size: every value lies in `lo..=hi`. Saturates at i64.
    pub fn bounds(&self, ranges: &Ranges) -> (i64, i64) {
        bounds_to_depth(self, ranges, IDENTITY_DEPTH_MAX)
    }

    /// A number that divides every value of this size; 0 for the size 0.
    pub fn known_multiple(&self, ranges: &Ranges) -> i64 {
        self.terms().iter().fold(gcd(self.constant(), 0), |common, term| gcd(common, term.known_multiple(ranges)))
    }
}

impl Term {
    pub(crate) fn known_multiple(&self, ranges: &Ranges) -> i64 {
        let multiples = self.product.0.iter().map(|atom| atom_multiple(atom, ranges));
        // A product that leaves i64 is dropped to what is known so far, which still divides.
        multiples.fold(gcd(self.coefficient, 0), |product, multiple| product.checked_mul(multiple).unwrap_or(product))
    }
}

fn atom_multiple(atom: &Atom, ranges: &Ranges) -> i64 {
    match atom {
        Atom::Symbol(symbol) => ranges.get(symbol).multiple.max(1),
        Atom::Divide(Division::Mod, dividend, divisor) => {
            gcd(dividend.known_multiple(ranges), divisor.known_multiple(ranges)).max(1)
        }
        Atom::Divide(Division::Floor | Division::Ceil | Division::Trunc, ..) => 1,
        Atom::Extreme(_, arguments) => {
            arguments.iter().fold(0, |common, argument| gcd(common, argument.known_multiple(ranges))).max(1)
        }
        Atom::Unexpanded(left, right) => {
            let (left, right) = (left.known_multiple(ranges), right.known_multiple(ranges));
            left.checked_mul(right).unwrap_or(left).max(1)
        }
    }
}

fn bounds_to_depth(dim: &Dim, ranges: &Ranges, depth: u32) -> (i64, i64) {
    let (mut lo, mut hi) = interval_of_sum(dim, ranges, depth);
    if depth > 0 && dim.terms().len() > 1 {
        for term in dim.terms().iter().filter(|term| has_identity(term)).take(IDENTITY_TERMS_MAX) {
            let Some(sharper) = interval_by_identity(dim, term, ranges, depth - 1) else {
                continue;
            };
            (lo, hi) = (lo.max(sharper.0), hi.min(sharper.1));
        }
    }
    (saturate(lo), saturate(hi))
}

fn interval_of_sum(dim: &Dim, ranges: &Ranges, depth: u32) -> Interval {
    let constant = i128::from(dim.constant());
    dim.terms().iter().fold((constant, constant), |(lo, hi), Term { product, coefficient }| {
        let start = (i128::from(*coefficient), i128::from(*coefficient));
        let term =
            product.0.iter().fold(start, |interval, atom| multiply(interval, interval_of_atom(atom, ranges, depth)));
        (lo.saturating_add(term.0), hi.saturating_add(term.1))
    })
}

fn has_identity(term: &Term) -> bool {
    match term.product.as_atom() {
        Some(Atom::Extreme(_, arguments)) => arguments.len() <= IDENTITY_ARGUMENTS_MAX,
        Some(Atom::Divide(Division::Floor, _, divisor)) => divisor.as_const().is_some_and(|value| value > 0),
        Some(Atom::Symbol(_) | Atom::Divide(..) | Atom::Unexpanded(..)) | None => false,
    }
}

/// The bounds of the whole sum with one term rewritten so that its parts can cancel against the others.
fn interval_by_identity(dim: &Dim, term: &Term, ranges: &Ranges, depth: u32) -> Option<Interval> {
    let Term { product, coefficient } = term;
    let without = || {
        let mut builder = SumBuilder::default();
        builder.add_scaled(dim, 1);
        builder.add_term(product.clone(), coefficient.checked_neg()?);
        builder.finish_exact()
    };
    match product.as_atom()? {
        Atom::Extreme(kind, arguments) => {
            let rest = without()?;
            let is_max = (*kind == Extreme::Max) == (*coefficient > 0);
            let mut bounds = Vec::with_capacity(arguments.len());
            for argument in arguments {
                bounds.push(bounds_to_depth(&rest.checked_add_scaled(argument, *coefficient)?, ranges, depth));
            }
            let (los, his) = (bounds.iter().map(|(lo, _)| *lo), bounds.iter().map(|(_, hi)| *hi));
            let (lo, hi) = if is_max { (los.max()?, his.max()?) } else { (los.min()?, his.min()?) };
            Some(unsaturated(lo, hi))
        }
        Atom::Divide(Division::Floor, dividend, divisor) => {
            let divisor = divisor.as_const().filter(|value| *value > 0)?;
            let remainder = dividend.modulo(&Dim::from(divisor));
            let multiple = dividend.checked_add_scaled(&remainder, -1)?;
            let scaled = without()?.checked_scale(divisor)?.checked_add_scaled(&multiple, *coefficient)?;
            let (lo, hi) = bounds_to_depth(&scaled, ranges, depth);
            let (lo, hi) = unsaturated(lo, hi);
            let divisor = i128::from(divisor);
            Some((-(-lo).div_euclid(divisor), hi.div_euclid(divisor)))
        }
        Atom::Symbol(_) | Atom::Divide(..) | Atom::Unexpanded(..) => None,
    }
}

/// A bound at the end of i64 may stand for anything beyond it.
fn unsaturated(lo: i64, hi: i64) -> Interval {
    let lo = if lo == i64::MIN { i128::MIN / 2 } else { i128::from(lo) };
    let hi = if hi == i64::MAX { i128::MAX / 2 } else { i128::from(hi) };
    (lo, hi)
}

fn interval_of_atom(atom: &Atom, ranges: &Ranges, depth: u32) -> Interval {
    let bounds_of = |dim: &Dim| bounds_to_depth(dim, ranges, depth.saturating_sub(1));
    let (lo, hi) = match atom {
        Atom::Symbol(symbol) => ranges.get(symbol).tightened(),
        Atom::Divide(Division::Mod, dividend, divisor) => mod_bounds(bounds_of(dividend), bounds_of(divisor)),
        Atom::Divide(division, dividend, divisor) => {
            quotient_bounds(*division, bounds_of(dividend), bounds_of(divisor))
        }
        Atom::Extreme(kind, arguments) => {
            let bounds = arguments.iter().map(bounds_of);
            let merged = match kind {
                Extreme::Min => bounds.reduce(|left, right| (left.0.min(right.0), left.1.min(right.1))),
                Extreme::Max => bounds.reduce(|left, right| (left.0.max(right.0), left.1.max(right.1))),
            };
            merged.unwrap_or((i64::MIN, i64::MAX))
        }
        Atom::Unexpanded(left, right) => {
            let (left, right) = (bounds_of(left), bounds_of(right));
            let (lo, hi) = multiply((left.0.into(), left.1.into()), (right.0.into(), right.1.into()));
            (saturate(lo), saturate(hi))
        }
    };
    (i128::from(lo), i128::from(hi))
}

/// Quotients are monotone in each operand while the divisor keeps its sign, so corners decide; divisors 1 and -1
/// are the corners next to zero, and zero itself gives zero.
fn quotient_bounds(division: Division, dividend: (i64, i64), divisor: (i64, i64)) -> (i64, i64) {
    let mut corners = Vec::with_capacity(9);
    let mut add_side = |from: i64, to: i64| {
        for divisor in [from, to] {
            corners.push(divide_numbers(division, dividend.0, divisor));
            corners.push(divide_numbers(division, dividend.1, divisor));
        }
    };
    if divisor.1 > 0 {
        add_side(divisor.0.max(1), divisor.1);
    }
    if divisor.0 < 0 {
        add_side(divisor.0, divisor.1.min(-1));
    }
    if divisor.0 <= 0 && divisor.1 >= 0 {
        corners.push(0);
    }
    let lo = corners.iter().copied().min().unwrap_or(i64::MIN);
    (lo, corners.iter().copied().max().unwrap_or(i64::MAX))
}

fn mod_bounds(dividend: (i64, i64), divisor: (i64, i64)) -> (i64, i64) {
    if dividend.0 >= 0 && dividend.1 < divisor.0 {
        return dividend;
    }
    let lo = if divisor.0 < 0 { divisor.0.saturating_add(1) } else { 0 };
    let hi = if divisor.1 > 0 { divisor.1 - 1 } else { 0 };
    // With a positive divisor a remainder of something not negative never exceeds it.
    if dividend.0 >= 0 && divisor.0 >= 0 { (lo, hi.min(dividend.1)) } else { (lo, hi) }
}

fn multiply(left: Interval, right: Interval) -> Interval {
    let corners = [
        left.0.saturating_mul(right.0),
        left.0.saturating_mul(right.1),
        left.1.saturating_mul(right.0),
        left.1.saturating_mul(right.1),
    ];
    (corners.into_iter().fold(i128::MAX, i128::min), corners.into_iter().fold(i128::MIN, i128::max))
}
