//! Simplifying Dims with what is known about their symbols. The result is equal for all values in range.

use crate::dim::{Atom, Division, Extreme, SumBuilder, Term, extreme};
use crate::dim_compare::le;
use crate::dim_divide::{divide, divide_numbers, gcd};
use crate::{Dim, Ranges};

impl Dim {
    /// The simplest form that is equal for all values in range: decided min and max are dropped, as are
    /// divisions that are exact and remainders that are zero.
    pub fn simplify(&self, ranges: &Ranges) -> Dim {
        // Most sizes of a Graph: a number, or free symbols in a sum that is in its simplest form already.
        let is_free = |atom: &Atom| match atom {
            Atom::Symbol(symbol) => ranges.get(symbol).lo != ranges.get(symbol).hi,
            Atom::Divide(..) | Atom::Extreme(..) | Atom::Unexpanded(..) => false,
        };
        if self.terms().iter().all(|term| term.product.0.iter().all(is_free)) {
            return self.clone();
        }
        let simplified = self.map_atoms(&|atom| simplify_atom(atom, ranges));
        undo_exact_divisions(&simplified, ranges)
    }
}

fn simplify_atom(atom: &Atom, ranges: &Ranges) -> Dim {
    match atom {
        Atom::Symbol(symbol) => {
            let range = ranges.get(symbol);
            if range.lo == range.hi { Dim::from(range.lo) } else { Dim::atom(atom.clone()) }
        }
        Atom::Divide(division, dividend, divisor) => {
            simplify_division(*division, &dividend.simplify(ranges), &divisor.simplify(ranges), ranges)
        }
        Atom::Extreme(kind, arguments) => {
            let arguments: Vec<Dim> = arguments.iter().map(|argument| argument.simplify(ranges)).collect();
            simplify_extreme(*kind, &arguments, ranges)
        }
        Atom::Unexpanded(left, right) => left.simplify(ranges) * right.simplify(ranges),
    }
}

fn simplify_extreme(kind: Extreme, arguments: &[Dim], ranges: &Ranges) -> Dim {
    let mut kept: Vec<&Dim> = Vec::new();
    for candidate in arguments {
        let loses_to = |winner: &Dim, loser: &Dim| match kind {
            Extreme::Min => le(winner, loser, ranges).is_yes(),
            Extreme::Max => le(loser, winner, ranges).is_yes(),
        };
        if kept.iter().any(|other| loses_to(other, candidate)) {
            continue;
        }
        kept.retain(|other| !loses_to(candidate, other));
        kept.push(candidate);
    }
    extreme(kind, kept)
}

fn simplify_division(division: Division, dividend: &Dim, divisor: &Dim, ranges: &Ranges) -> Dim {
    let (lo, hi) = dividend.bounds(ranges);
    let (divisor_lo, divisor_hi) = divisor.bounds(ranges);
    if (divisor_lo, divisor_hi) == (0, 0) {
        return Dim::ZERO;
    }
    let is_never_zero = divisor_lo > 0 || divisor_hi < 0;
    match division {
        Division::Trunc if lo >= 0 && divisor_lo > 0 => {
            return simplify_division(Division::Floor, dividend, divisor, ranges);
        }
        Division::Mod if lo >= 0 && hi < divisor_lo => return dividend.clone(),
        Division::Floor if lo >= 0 && hi < divisor_lo => return Dim::ZERO,
        Division::Mod => {}
        Division::Floor | Division::Ceil | Division::Trunc => {
            if let Some(quotient) = dividend.floor_div_exact(divisor).filter(|_| is_never_zero) {
                return quotient;
            }
        }
    }
    match divisor.as_const().filter(|value| *value > 0) {
        Some(divisor) => simplify_by_number(division, dividend, divisor, (lo, hi), ranges),
        None => divide(division, dividend, divisor),
    }
}

fn simplify_by_number(division: Division, dividend: &Dim, divisor: i64, bounds: (i64, i64), ranges: &Ranges) -> Dim {
    let as_dim = Dim::from(divisor);
    let unchanged = || divide(division, dividend, &as_dim);
    // The bounds saturate: the ends of i64 stand for anything beyond.
    let is_bounded = bounds.0 > i64::MIN && bounds.1 < i64::MAX;
    let quotients =
        (divide_numbers(Division::Floor, bounds.0, divisor), divide_numbers(Division::Floor, bounds.1, divisor));
    let is_one_quotient = is_bounded && quotients.0 == quotients.1;
    match division {
        Division::Floor if is_one_quotient => Dim::from(quotients.0),
        Division::Floor => {
            // Terms that are all multiples of g leave remainders below g to the constant, which rounds away.
            let multiple = (dividend - dividend.constant()).known_multiple(ranges);
            let remainder = dividend.constant().rem_euclid(gcd(multiple, divisor).max(1));
            let rounded = dividend.checked_add_scaled(&Dim::from(remainder), -1);
            rounded.map_or_else(unchanged, |rounded| rounded.floor_div(&as_dim))
        }
        Division::Mod if is_one_quotient => {
            dividend.checked_add_scaled(&as_dim, quotients.0.saturating_neg()).unwrap_or_else(unchanged)
        }
        Division::Mod => {
            let mut builder = SumBuilder::default();
            for term in dividend.terms().iter().filter(|term| term.known_multiple(ranges) % divisor != 0) {
                builder.add_term(term.product.clone(), term.coefficient);
            }
            builder.add_constant(dividend.constant());
            builder.finish().modulo(&as_dim)
        }
        Division::Ceil | Division::Trunc => unchanged(),
    }
}

/// `k * (x floordiv k)` is `x` where x is known to be a multiple of k.
fn undo_exact_divisions(dim: &Dim, ranges: &Ranges) -> Dim {
    let mut builder = SumBuilder::default();
    for term in dim.terms() {
        match exact_division_undone(term, ranges) {
            Some(undone) => builder.add_scaled(&undone, 1),
            None => builder.add_term(term.product.clone(), term.coefficient),
        }
    }
    builder.add_constant(dim.constant());
    builder.finish_exact().unwrap_or_else(|| dim.clone())
}

fn exact_division_undone(term: &Term, ranges: &Ranges) -> Option<Dim> {
    term.product.0.iter().enumerate().find_map(|(index, atom)| {
        let Atom::Divide(Division::Floor, dividend, divisor) = atom else {
            return None;
        };
        let divisor = divisor.as_const().filter(|value| *value > 0)?;
        let is_exact = dividend.known_multiple(ranges) % divisor == 0;
        if !is_exact || term.coefficient % divisor != 0 {
            return None;
        }
        let others = term.product.0.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Dim = others.map(|(_, atom)| Dim::atom(atom.clone())).product();
        (dividend * &others).checked_scale(term.coefficient / divisor)
    })
}
