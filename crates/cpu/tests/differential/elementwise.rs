//! The product of functions and element types: too regular to write down.

use precast_ir::Op;
use precast_ir::op::{Binary, BinaryFn, Cast, Clamp, Compare, CompareFn, Unary, UnaryFn};
use precast_tensor::{DType, Tensor, Type};

use crate::case::{Case, Expects, Operand};
use crate::value::{Fill, Random, SPECIAL_FLOATS};

/// Types that pointwise kernels have registers for.
const TYPES: [DType; 6] = [DType::F32, DType::I32, DType::I64, DType::Bool, DType::U8, DType::I8];

/// Every special value, in turns with others.
const ELEMENTS: usize = 2 * SPECIAL_FLOATS.len() + 5;

/// Parameters that functions are given: most have none.
fn parameters(func: UnaryFn) -> Vec<(f64, f64)> {
    match func {
        UnaryFn::Leaky | UnaryFn::Elu | UnaryFn::Celu => vec![(0.3, 0.0), (1.0, 0.0)],
        UnaryFn::Selu => vec![(1.67326, 1.0507)],
        UnaryFn::QuickGelu => vec![(1.702, 0.0)],
        UnaryFn::Silu => vec![(1.0, 0.0), (0.5, 0.0)],
        UnaryFn::HardSigmoid => vec![(0.2, 0.5), (1.0 / 6.0, 0.5)],
        UnaryFn::Shrink => vec![(0.5, 0.0), (1.5, 1.5), (2.0, 1.0)],
        UnaryFn::Thresholded => vec![(1.0, 0.0), (-0.5, 0.0)],
        UnaryFn::IsInf => vec![(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)],
        _ => vec![(0.0, 0.0)],
    }
}

fn node(name: String, op: impl Into<Op>, tensors: Vec<Tensor>) -> Option<Case> {
    let op = op.into();
    let expects = if is_without_kernel(&op, tensors[0].dtype()) { Expects::Reference } else { Expects::Kernels };
    let operands = tensors.into_iter().map(|tensor| Operand { tensor, is_constant: false }).collect();
    // What has no meaning for a type is no case.
    Case::of_node(name, op, operands, expects).ok()
}

/// Functions that only recurrent cells have, and functions of integers that no model applies.
fn is_without_kernel(op: &Op, dtype: DType) -> bool {
    match op {
        Op::Unary(op) => match op.func {
            UnaryFn::Affine | UnaryFn::ScaledTanh => true,
            UnaryFn::Shrink | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round => dtype != DType::F32,
            _ => false,
        },
        Op::Binary(op) => op.func == BinaryFn::Prelu && dtype != DType::F32,
        _ => false,
    }
}

/// Every function of one and two elements on every type, on special and on plain values.
pub fn functions() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in TYPES {
        for fill in [Fill::Special, Fill::Plain, Fill::Wide] {
            let place = |what: &str| format!("{what} of {} {fill:?}", dtype.name());
            let ty = Type::new(dtype, [ELEMENTS]);
            for &func in UnaryFn::ALL {
                for (alpha, beta) in parameters(func) {
                    let name = place(&format!("unary.{} {alpha} {beta}", func.name()));
                    let x = Random::new(&name).tensor(&ty, fill);
                    cases.extend(node(name, Unary { func, alpha, beta }, vec![x]));
                }
            }
            for &func in BinaryFn::ALL {
                let name = place(&format!("binary.{}", func.name()));
                let pair = every_pair(&name, dtype, fill);
                cases.extend(node(name, Binary { func }, pair));
            }
            for &func in CompareFn::ALL {
                let name = place(&format!("compare.{}", func.name()));
                let pair = every_pair(&name, dtype, fill);
                cases.extend(node(name, Compare { func }, pair));
            }
            for (lo, hi) in LIMITS {
                let name = place(&format!("clamp {lo} {hi}"));
                let x = Random::new(&name).tensor(&ty, fill);
                cases.extend(node(name, Clamp { lo, hi }, vec![x]));
            }
        }
    }
    cases
}

/// Limits of clamps: usual, one-sided, fractional, beyond every integer, and crossed.
const LIMITS: [(f64, f64); 9] = [
    (0.0, 6.0),
    (f64::NEG_INFINITY, f64::INFINITY),
    (f64::NEG_INFINITY, 3.0),
    (-1.5, 2.5),
    (-1e30, 1e30),
    (5.0, -5.0),
    (0.25, 0.75),
    (0.5, 5.5),
    (-5.5, -1.5),
];

/// A column and a row, so that every value meets every other.
fn every_pair(name: &str, dtype: DType, fill: Fill) -> Vec<Tensor> {
    let mut random = Random::new(name);
    let column = random.tensor(&Type::new(dtype, [ELEMENTS, 1]), fill);
    vec![column, random.tensor(&Type::new(dtype, [ELEMENTS]), fill)]
}

/// Every cast among the types.
pub fn casts() -> Vec<Case> {
    let mut cases = Vec::new();
    for from in TYPES {
        for to in TYPES {
            for fill in [Fill::Special, Fill::Wide] {
                let name = format!("cast of {} {fill:?} to {}", from.name(), to.name());
                let x = Random::new(&name).tensor(&Type::new(from, [ELEMENTS]), fill);
                cases.extend(node(name, Cast { to, saturate: true }, vec![x]));
            }
        }
    }
    cases
}
