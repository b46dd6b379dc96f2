//! Comparing Dims for all values of their symbols. A guard treats `Unknown` as refusal.

use crate::dim::{Atom, Division};
use crate::{Dim, Ranges};

/// Whether a claim about Dims holds for all values in range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// It holds for all values.
    Yes,
    /// It holds for none.
    No,
    /// It holds for some only, or neither could be shown.
    Unknown,
}

impl Answer {
    /// Shown to hold for all values.
    pub fn is_yes(self) -> bool {
        self == Answer::Yes
    }

    /// Shown to hold for no value.
    pub fn is_no(self) -> bool {
        self == Answer::No
    }
}

/// Whether two sizes are equal.
pub fn eq(left: &Dim, right: &Dim, ranges: &Ranges) -> Answer {
    if left == right {
        return Answer::Yes;
    }
    let Some(difference) = left.checked_add_scaled(right, -1) else {
        return Answer::Unknown;
    };
    let difference = difference.simplify(ranges);
    if let Some(value) = difference.as_const() {
        return if value == 0 { Answer::Yes } else { Answer::No };
    }
    match difference.bounds(ranges) {
        (0, 0) => return Answer::Yes,
        (lo, hi) if lo > 0 || hi < 0 => return Answer::No,
        _ => {}
    }
    // A sum of multiples of m never cancels a constant that is not one.
    let multiple = (&difference - difference.constant()).known_multiple(ranges);
    if multiple != 0 && difference.constant() % multiple != 0 {
        return Answer::No;
    }
    if expand_mods(&difference) == Dim::ZERO { Answer::Yes } else { Answer::Unknown }
}

/// Whether `left <= right`.
pub fn le(left: &Dim, right: &Dim, ranges: &Ranges) -> Answer {
    let Some(difference) = right.checked_add_scaled(left, -1) else {
        return Answer::Unknown;
    };
    match difference.bounds(ranges) {
        (lo, _) if lo >= 0 => Answer::Yes,
        (_, hi) if hi < 0 => Answer::No,
        _ => Answer::Unknown,
    }
}

/// Whether `left < right`.
pub fn lt(left: &Dim, right: &Dim, ranges: &Ranges) -> Answer {
    match le(right, left, ranges) {
        Answer::Yes => Answer::No,
        Answer::No => Answer::Yes,
        Answer::Unknown => Answer::Unknown,
    }
}

/// `x mod k = x - k * (x floordiv k)`, so that quotient and remainder of the same division cancel.
fn expand_mods(dim: &Dim) -> Dim {
    dim.map_atoms(&|atom| match atom {
        Atom::Divide(Division::Mod, dividend, divisor) if divisor.as_const().is_some_and(|value| value != 0) => {
            dividend - &(divisor * &dividend.floor_div(divisor))
        }
        Atom::Symbol(_) | Atom::Divide(..) | Atom::Extreme(..) | Atom::Unexpanded(..) => Dim::atom(atom.clone()),
    })
}
