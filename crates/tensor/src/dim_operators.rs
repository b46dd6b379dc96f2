//! `+ - *` on Dims, owned or borrowed, with Dims and numbers. Products of sums are multiplied out, so that equal
//! polynomials have one form.

use std::iter;
use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::Dim;
use crate::dim::{Atom, Repr, SumBuilder, saturate};

macro_rules! operators {
    ($($operator:ident $method:ident $assign:ident $assign_method:ident $function:expr;)*) => {$(
        impl $operator<&Dim> for &Dim {
            type Output = Dim;
            fn $method(self, other: &Dim) -> Dim {
                $function(self, other)
            }
        }
        impl $operator<Dim> for &Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim {
                $function(self, &other)
            }
        }
        impl $operator<&Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: &Dim) -> Dim {
                $function(&self, other)
            }
        }
        impl $operator<Dim> for Dim {
            type Output = Dim;
            fn $method(self, other: Dim) -> Dim {
                $function(&self, &other)
            }
        }
        impl $operator<i64> for &Dim {
            type Output = Dim;
            fn $method(self, other: i64) -> Dim {
                $function(self, &Dim::from(other))
            }
        }
        impl $operator<i64> for Dim {
            type Output = Dim;
            fn $method(self, other: i64) -> Dim {
                $function(&self, &Dim::from(other))
            }
        }
        impl<D: Into<Dim>> $assign<D> for Dim {
            fn $assign_method(&mut self, other: D) {
                *self = $function(self, &other.into());
            }
        }
    )*};
}

operators! {
    Add add AddAssign add_assign (|left, right| add_scaled(left, right, 1));
    Sub sub SubAssign sub_assign (|left, right| add_scaled(left, right, -1));
    Mul mul MulAssign mul_assign multiply;
}

impl Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        add_scaled(&Dim::ZERO, self, -1)
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        -&self
    }
}

impl<D: Into<Dim>> iter::Sum<D> for Dim {
    fn sum<I: Iterator<Item = D>>(dims: I) -> Dim {
        dims.fold(Dim::ZERO, |sum, dim| sum + dim.into())
    }
}

impl<D: Into<Dim>> iter::Product<D> for Dim {
    fn product<I: Iterator<Item = D>>(dims: I) -> Dim {
        dims.fold(Dim::ONE, |product, dim| product * dim.into())
    }
}

/// Products of sums are multiplied out up to this many terms and this degree; both bound the work that a hostile
/// model can ask for, and real shapes stay far below.
const EXPANDED_TERMS_MAX: usize = 256;
const EXPANDED_DEGREE_MAX: usize = 32;

fn multiply(left: &Dim, right: &Dim) -> Dim {
    match (left.as_const(), right.as_const()) {
        (Some(left), Some(right)) => return Dim(Repr::Const(saturate(i128::from(left) * i128::from(right)))),
        (Some(1), None) => return right.clone(),
        (None, Some(1)) => return left.clone(),
        _ => {}
    }
    let mut builder = SumBuilder::default();
    if let Some(factor) = right.as_const() {
        builder.add_scaled(left, factor);
        return builder.finish();
    }
    if let Some(factor) = left.as_const() {
        builder.add_scaled(right, factor);
        return builder.finish();
    }
    let terms = left.terms().len().saturating_add(1) * right.terms().len().saturating_add(1);
    if terms > EXPANDED_TERMS_MAX || left.degree() + right.degree() > EXPANDED_DEGREE_MAX {
        let (first, second) = if left <= right { (left, right) } else { (right, left) };
        return Dim::atom(Atom::Unexpanded(first.clone(), second.clone()));
    }
    builder.add_scaled(left, right.constant());
    for one in right.terms() {
        let scaled = builder.narrow(i128::from(one.coefficient) * i128::from(left.constant()));
        builder.add_term(one.product.clone(), scaled);
        for other in left.terms() {
            let coefficient = builder.narrow(i128::from(one.coefficient) * i128::from(other.coefficient));
            builder.add_term(one.product.times(&other.product), coefficient);
        }
    }
    builder.finish()
}

fn add_scaled(left: &Dim, right: &Dim, factor: i64) -> Dim {
    if let (Some(left), Some(right)) = (left.as_const(), right.as_const()) {
        return Dim(Repr::Const(saturate(i128::from(left) + i128::from(right) * i128::from(factor))));
    }
    let mut builder = SumBuilder::default();
    builder.add_scaled(left, 1);
    builder.add_scaled(right, factor);
    builder.finish()
}
