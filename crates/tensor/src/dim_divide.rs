//! The four divisions of Dims. Each simplifies only where the result is equal for all integers, and keeps an
//! opaque atom otherwise. Dividing by zero gives zero, as an opaque expression until it is bound.

use crate::Dim;
use crate::dim::{Atom, Division, Product, SumBuilder, Term, saturate};

impl Dim {
    /// Quotient rounded towards minus infinity.
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        divide(Division::Floor, self, divisor)
    }

    /// Quotient rounded towards plus infinity.
    pub fn ceil_div(&self, divisor: &Dim) -> Dim {
        divide(Division::Ceil, self, divisor)
    }

    /// Quotient rounded towards zero, as ONNX divides integers.
    pub fn trunc_div(&self, divisor: &Dim) -> Dim {
        divide(Division::Trunc, self, divisor)
    }

    /// Remainder of `floor_div`: it has the sign of the divisor.
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        divide(Division::Mod, self, divisor)
    }

    /// The polynomial `q` with `self == q * divisor` for all integers, if there is one.
    ///
    /// This is the `-1` of a reshape: it is the quotient wherever the divisor is not zero.
    pub fn floor_div_exact(&self, divisor: &Dim) -> Option<Dim> {
        if let Some(factor) = divisor.as_const() {
            return divide_coefficients(self, factor);
        }
        // Long division by the leading term. Each step removes the leading term of the rest and adds only
        // smaller ones, so it ends; it fails at the first leading term that does not divide.
        let leading = divisor.terms().last()?;
        let mut quotient = SumBuilder::default();
        let mut rest = self.clone();
        while let Some(term) = rest.terms().last() {
            let step = divide_term(term, leading)?;
            rest = rest.checked_add_scaled(&checked_multiply(divisor, &step)?, -1)?;
            match step.product {
                Some(product) => quotient.add_term(product, step.coefficient),
                None => quotient.add_constant(step.coefficient),
            }
        }
        if rest != Dim::ZERO {
            return None;
        }
        quotient.finish_exact()
    }
}

/// One division of numbers; zero where the divisor is zero.
pub(crate) fn divide_numbers(division: Division, dividend: i64, divisor: i64) -> i64 {
    if divisor == 0 {
        return 0;
    }
    let (dividend, divisor) = (i128::from(dividend), i128::from(divisor));
    let (quotient, remainder) = (dividend / divisor, dividend % divisor);
    let is_rounded_up = remainder != 0 && (remainder < 0) != (divisor < 0);
    saturate(match division {
        Division::Trunc => quotient,
        Division::Floor => quotient - i128::from(is_rounded_up),
        Division::Ceil => quotient + i128::from(remainder != 0 && !is_rounded_up),
        Division::Mod if is_rounded_up => remainder + divisor,
        Division::Mod => remainder,
    })
}

pub(crate) fn divide(division: Division, dividend: &Dim, divisor: &Dim) -> Dim {
    let simplified = match (divisor.as_const(), dividend.as_const()) {
        (Some(0), _) => None,
        (_, Some(0)) => Some(Dim::ZERO),
        (Some(divisor), Some(dividend)) => Some(divide_numbers(division, dividend, divisor).into()),
        (Some(divisor), None) => match division {
            Division::Floor => floor_by_number(dividend, divisor),
            Division::Ceil => ceil_by_number(dividend, divisor),
            Division::Trunc => trunc_by_number(dividend, divisor),
            Division::Mod => mod_by_number(dividend, divisor),
        },
        (None, _) => match division {
            // A multiple of the divisor leaves nothing, also where the divisor is zero.
            Division::Mod => dividend.floor_div_exact(divisor).map(|_| Dim::ZERO),
            Division::Floor | Division::Ceil | Division::Trunc => None,
        },
    };
    simplified.unwrap_or_else(|| Dim::atom(Atom::Divide(division, dividend.clone(), divisor.clone())))
}

fn floor_by_number(dividend: &Dim, divisor: i64) -> Option<Dim> {
    if divisor < 0 {
        return Some(dividend.checked_scale(-1)?.floor_div(&Dim::from(divisor.checked_neg()?)));
    }
    // Whole multiples of the divisor leave the division. Coefficients split with their own sign, which keeps
    // interval bounds as tight as before the split; the constant leaves a remainder that is not negative.
    let mut whole = SumBuilder::default();
    let mut rest = SumBuilder::default();
    for Term { product, coefficient } in dividend.terms() {
        whole.add_term(product.clone(), coefficient / divisor);
        rest.add_term(product.clone(), coefficient % divisor);
    }
    whole.add_constant(dividend.constant().div_euclid(divisor));
    rest.add_constant(dividend.constant().rem_euclid(divisor));
    let (whole, rest) = (whole.finish(), rest.finish());
    if rest.is_const() {
        return Some(whole);
    }
    // (g·T + r) floordiv (g·k) = (T + r floordiv g) floordiv k.
    let common = rest.terms().iter().fold(divisor, |common, term| gcd(common, term.coefficient));
    let (rest, divisor) = (floor_coefficients(&rest, common), divisor / common);
    if divisor == 1 {
        return whole.checked_add_scaled(&rest, 1);
    }
    let quotient = merge_nested_floor(&rest, divisor)
        .unwrap_or_else(|| Dim::atom(Atom::Divide(Division::Floor, rest, Dim::from(divisor))));
    whole.checked_add_scaled(&quotient, 1)
}

/// (x floordiv j + r) floordiv k = (x + r·j) floordiv (j·k).
fn merge_nested_floor(rest: &Dim, divisor: i64) -> Option<Dim> {
    let [Term { product, coefficient: 1 }] = rest.terms() else {
        return None;
    };
    let Atom::Divide(Division::Floor, inner, inner_divisor) = product.as_atom()? else {
        return None;
    };
    let inner_divisor = inner_divisor.as_const().filter(|value| *value > 0)?;
    let shifted = inner.checked_add_scaled(&Dim::from(rest.constant()), inner_divisor)?;
    Some(shifted.floor_div(&Dim::from(inner_divisor.checked_mul(divisor)?)))
}

fn ceil_by_number(dividend: &Dim, divisor: i64) -> Option<Dim> {
    if divisor < 0 {
        return Some(dividend.checked_scale(-1)?.ceil_div(&Dim::from(divisor.checked_neg()?)));
    }
    let shifted = dividend.checked_add_scaled(&Dim::from(divisor - 1), 1)?;
    Some(shifted.floor_div(&Dim::from(divisor)))
}

fn trunc_by_number(dividend: &Dim, divisor: i64) -> Option<Dim> {
    if let Some(quotient) = divide_coefficients(dividend, divisor) {
        return Some(quotient);
    }
    if divisor < 0 {
        let positive = dividend.trunc_div(&Dim::from(divisor.checked_neg()?));
        return positive.checked_scale(-1);
    }
    None
}

fn mod_by_number(dividend: &Dim, divisor: i64) -> Option<Dim> {
    if divisor < 0 {
        let positive = dividend.checked_scale(-1)?.modulo(&Dim::from(divisor.checked_neg()?));
        return positive.checked_scale(-1);
    }
    // Only the value modulo the divisor matters: coefficients reduce, and an inner mod whose divisor is a
    // multiple of ours (times its coefficient) is its own argument.
    let mut builder = SumBuilder::default();
    let mut has_unwrapped = false;
    for Term { product, coefficient } in dividend.terms() {
        match inner_of_mod(product, *coefficient, divisor) {
            Some(inner) => {
                builder.add_scaled(inner, coefficient.rem_euclid(divisor));
                has_unwrapped = true;
            }
            None => builder.add_term(product.clone(), coefficient.rem_euclid(divisor)),
        }
    }
    builder.add_constant(dividend.constant().rem_euclid(divisor));
    let unwrapped = builder.finish_exact()?;
    if has_unwrapped {
        return Some(unwrapped.modulo(&Dim::from(divisor)));
    }
    let mut builder = SumBuilder::default();
    for Term { product, coefficient } in unwrapped.terms() {
        builder.add_term(product.clone(), coefficient.rem_euclid(divisor));
    }
    builder.add_constant(unwrapped.constant().rem_euclid(divisor));
    let reduced = builder.finish();
    if let Some(value) = reduced.as_const() {
        return Some(Dim::from(value));
    }
    // (g·T + g·q + r) mod (g·k) = g·((T + q) mod k) + r, with 0 <= r < g.
    let common = reduced.terms().iter().fold(divisor, |common, term| gcd(common, term.coefficient));
    let (quotient, inner_divisor) = (floor_coefficients(&reduced, common), divisor / common);
    let remainder = Dim::from(reduced.constant().rem_euclid(common));
    if inner_divisor == 1 {
        return Some(remainder);
    }
    let inner = if common == 1 {
        Dim::atom(Atom::Divide(Division::Mod, quotient, Dim::from(inner_divisor)))
    } else {
        quotient.modulo(&Dim::from(inner_divisor))
    };
    remainder.checked_add_scaled(&inner, common)
}

fn inner_of_mod(product: &Product, coefficient: i64, divisor: i64) -> Option<&Dim> {
    let Atom::Divide(Division::Mod, inner, inner_divisor) = product.as_atom()? else {
        return None;
    };
    let inner_divisor = inner_divisor.as_const().filter(|value| *value != 0)?;
    let period = i128::from(coefficient) * i128::from(inner_divisor);
    (period % i128::from(divisor) == 0).then_some(inner)
}

/// Divides every coefficient, or none where one does not divide.
fn divide_coefficients(dim: &Dim, divisor: i64) -> Option<Dim> {
    let divides = |value: i64| value.checked_rem(divisor) == Some(0);
    if !divides(dim.constant()) || !dim.terms().iter().all(|term| divides(term.coefficient)) {
        return None;
    }
    let mut builder = SumBuilder::default();
    for Term { product, coefficient } in dim.terms() {
        builder.add_term(product.clone(), coefficient.checked_div(divisor)?);
    }
    builder.add_constant(dim.constant().checked_div(divisor)?);
    builder.finish_exact()
}

/// Divides coefficients that all divide, and the constant rounding down.
fn floor_coefficients(dim: &Dim, divisor: i64) -> Dim {
    let mut builder = SumBuilder::default();
    for Term { product, coefficient } in dim.terms() {
        builder.add_term(product.clone(), coefficient / divisor);
    }
    builder.add_constant(dim.constant().div_euclid(divisor));
    builder.finish()
}

/// A term, or a number where there is no product.
struct Monomial {
    product: Option<Product>,
    coefficient: i64,
}

fn divide_term(term: &Term, divisor: &Term) -> Option<Monomial> {
    if term.coefficient.checked_rem(divisor.coefficient)? != 0 {
        return None;
    }
    let mut atoms = term.product.0.clone();
    for atom in &divisor.product.0 {
        let position = atoms.iter().position(|other| other == atom)?;
        atoms.remove(position);
    }
    let product = (!atoms.is_empty()).then_some(Product(atoms));
    Some(Monomial { product, coefficient: term.coefficient.checked_div(divisor.coefficient)? })
}

/// The product, expanded whatever its size, or none where a coefficient leaves i64.
fn checked_multiply(dim: &Dim, monomial: &Monomial) -> Option<Dim> {
    let Some(factor) = &monomial.product else {
        return dim.checked_scale(monomial.coefficient);
    };
    let mut builder = SumBuilder::default();
    builder.add_term(factor.clone(), dim.constant().checked_mul(monomial.coefficient)?);
    for Term { product, coefficient } in dim.terms() {
        builder.add_term(product.times(factor), coefficient.checked_mul(monomial.coefficient)?);
    }
    builder.finish_exact()
}

/// The greatest common divisor; 0 only for two zeros. Saturates for two `i64::MIN`.
pub(crate) fn gcd(left: i64, right: i64) -> i64 {
    let (mut left, mut right) = (left.unsigned_abs(), right.unsigned_abs());
    while right != 0 {
        (left, right) = (right, left % right);
    }
    i64::try_from(left).unwrap_or(i64::MAX)
}
