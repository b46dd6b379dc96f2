//! The one function that decides whether a result equals its reference: how far a Target's rounding may lead it away.
//!
//! `tol = 2·u(out)·|ref| + 4·u(acc)·√n·max(s, |ref|)`, where n is the length of the reduction and s = √Σ terms². The s
//! of each family is a bound made from the largest elements, which is never below the true one. Integers and bools must
//! be equal, NaN matches NaN, infinities match by sign; ops that only move elements keep every bit.

use std::fmt;

use precast_ir::eval::eval_graph_with;
use precast_ir::op::{BinaryFn, CumulateFn, Op, PoolFn, ReduceFn, ResizeFn, ScatterFn, UnaryFn};
use precast_ir::{EvalError, Family, Graph, Node};
use precast_tensor::{DType, Tensor};

/// Error of a transcendental function in f32, in units in the last place.
const FUNCTION_ULPS: f64 = 4.0;
/// How many times the error of a plain sum Winograd's F(4,3) may have.
const WINOGRAD_FACTOR: f64 = 16.0;
/// Absolute error of `logistic`: 2^-22.
const LOGISTIC_ERROR: f64 = 1.0 / (1 << 22) as f64;
/// Distance of the smallest f32 numbers: below them rounding is absolute. Functions may miss by a few.
const SUBNORMAL_STEP: f64 = FUNCTION_ULPS / (1u128 << 100) as f64 / (1u128 << 49) as f64;

/// Half the distance from 1 to the next number of an element type; 0 for integers, which are exact.
pub fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F8E4M3Fn | DType::F8E4M3FnUz => 2f64.powi(-4),
        DType::F8E5M2 | DType::F8E5M2FnUz => 2f64.powi(-3),
        _ => 0.0,
    }
}

/// How far an element may lie from `reference`: see the head of this file.
pub fn tolerance(out: DType, acc: DType, n: usize, s: f64, reference: f64) -> f64 {
    let size = reference.abs();
    2.0 * unit_roundoff(out) * size + 4.0 * unit_roundoff(acc) * (n as f64).sqrt() * s.max(size)
}

/// What the rounding of one node, or of a chain of nodes, may do: `relative` to the element, plus `absolute`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bound {
    relative: f64,
    absolute: f64,
    /// Not even the sign of a zero may change.
    is_bitwise: bool,
    /// The result falls off like an exponential, whose rounded argument moves the result by as many units as the
    /// argument is large: about |log result|.
    has_tail: bool,
}

impl Bound {
    fn reduction(acc: DType, n: usize, s: f64) -> Bound {
        let at = |reference: f64| tolerance(acc, acc, n, 0.0, reference);
        Bound { relative: at(1.0), absolute: tolerance(acc, acc, n, s, 0.0), ..Bound::default() }
    }

    fn relative(dtype: DType, ulps: f64) -> Bound {
        Bound { relative: 2.0 * ulps * unit_roundoff(dtype), ..Bound::default() }
    }

    fn plus(self, other: Bound) -> Bound {
        let (relative, absolute) = (self.relative + other.relative, self.absolute + other.absolute);
        let (is_bitwise, has_tail) = (self.is_bitwise && other.is_bitwise, self.has_tail || other.has_tail);
        Bound { relative, absolute, is_bitwise, has_tail }
    }

    fn tolerance(&self, reference: f64) -> f64 {
        let size = reference.abs();
        if !self.has_tail || size >= 1.0 || size == 0.0 {
            return self.relative * size + self.absolute + SUBNORMAL_STEP;
        }
        // A subnormal factor is multiplied by x, which is below 256 there.
        self.relative * size * (1.0 - size.ln()) + self.absolute + 256.0 * SUBNORMAL_STEP
    }
}

/// The reference outputs of a graph and how far a Target may be from them.
pub struct Reference {
    /// Outputs by reference evaluation.
    pub outputs: Vec<Tensor>,
    bound: Bound,
    /// Of a chain the errors of inner values reach the outputs, so the largest value of the run sets the scale.
    chain_scale: f64,
}

impl Reference {
    /// Evaluates a graph by its meaning.
    pub fn new(graph: &Graph, inputs: &[Tensor]) -> Result<Reference, EvalError> {
        let mut values: Vec<Option<Tensor>> = vec![None; graph.values().len()];
        for (&input, tensor) in graph.inputs().iter().zip(inputs) {
            values[input.0 as usize] = Some(tensor.clone());
        }
        let mut bound = Bound { is_bitwise: true, ..Bound::default() };
        let mut scale = 0f64;
        let outputs = eval_graph_with(graph, inputs, &mut |node, outputs| {
            let node = graph.node(node);
            let operands: Vec<Tensor> = node
                .inputs
                .iter()
                .filter_map(|&input| graph.constant(input).or(values[input.0 as usize].as_ref()).cloned())
                .collect();
            bound = bound.plus(node_bound(node, &operands));
            for (&output, tensor) in node.outputs.iter().zip(outputs) {
                scale = scale.max(largest(tensor));
                values[output.0 as usize] = Some(tensor.clone());
            }
        })?;
        let chain_scale = if graph.nodes().len() > 1 { scale } else { 0.0 };
        Ok(Reference { outputs, bound, chain_scale })
    }

    /// The first place where `found`, the outputs of a Target, is not what it should be.
    pub fn first_difference(&self, found: &[Tensor]) -> Option<Difference> {
        if found.len() != self.outputs.len() {
            return Some(Difference(format!("{} outputs where {} are expected", found.len(), self.outputs.len())));
        }
        let pairs = self.outputs.iter().zip(found).enumerate();
        pairs.into_iter().find_map(|(position, (expected, found))| {
            let place = self.compare(expected, found)?;
            Some(Difference(format!("output {position}{place}")))
        })
    }

    fn compare(&self, expected: &Tensor, found: &Tensor) -> Option<String> {
        if expected.type_() != found.type_() {
            return Some(format!(": {} found where {} is expected", found.type_(), expected.type_()));
        }
        if !expected.dtype().is_float() || self.bound.is_bitwise {
            let size = expected.dtype().size_bytes();
            let mut elements = expected.as_bytes().chunks(size).zip(found.as_bytes().chunks(size));
            let at = elements.position(|(expected, found)| expected != found)?;
            let (expected, found) = (expected.to_f64_vec()[at], found.to_f64_vec()[at]);
            return Some(format!("[{at}]: {found:?} found where exactly {expected:?} is expected"));
        }
        let elements = expected.to_f64_vec().into_iter().zip(found.to_f64_vec()).enumerate();
        elements.into_iter().find_map(|(at, (expected, found))| {
            let tolerance = self.bound.tolerance(expected.abs().max(self.chain_scale));
            // The distance to an infinity is no measure: its own bound is infinite too.
            let is_exact = self.bound.relative == 0.0 && self.bound.absolute == 0.0 || expected.is_infinite();
            let is_near = !is_exact && (expected - found).abs() <= tolerance;
            let fits = (expected.is_nan() && found.is_nan()) || expected == found || is_near;
            (!fits).then(|| format!("[{at}]: {found:?} found where {expected:?} ± {tolerance:e} is expected"))
        })
    }
}

/// A place where a result is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference(String);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The largest finite magnitude.
fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64_vec().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The bound of one node on these operands.
fn node_bound(node: &Node, operands: &[Tensor]) -> Bound {
    let Some(x) = operands.first() else { return Bound::default() };
    let dtype = x.dtype();
    let exact = Bound::default();
    match &node.op {
        Op::Unary(op) if op.func == UnaryFn::Logistic => Bound { absolute: LOGISTIC_ERROR, ..exact },
        Op::Unary(op) => Bound { has_tail: has_tail(op.func), ..Bound::relative(dtype, unary_ulps(op.func)) },
        Op::Binary(op) => Bound::relative(dtype, binary_ulps(op.func)),
        Op::Clamp(_) | Op::Cast(_) => exact,
        Op::Reduce(op) => reduce_bound(op.func, x, &op.axes),
        Op::Cumulate(op) => {
            let n = x.shape()[op.axis];
            match op.func {
                CumulateFn::Sum => sum_bound(dtype, n, largest(x)),
                CumulateFn::Prod => Bound::relative(dtype, n as f64),
            }
        }
        Op::Matmul(op) => {
            let rank = x.shape().len();
            let k = x.shape()[if op.transpose_a { rank - 2 } else { rank - 1 }];
            sum_bound(dtype, k, largest(x) * largest(&operands[1]))
        }
        Op::Conv(op) => {
            let bound = conv_bound(operands);
            // Winograd's F(4,3) and F(2,5) may compute these (specs/compiler.md §10).
            let is_form = matches!(operands[1].shape()[2..], [3, 3] | [1, 3] | [1, 5] | [3, 1] | [5, 1] | [3] | [5])
                && op.groups == 1;
            let is_dense = op.stride.iter().chain(&op.dilation).all(|&step| step == 1);
            if is_form && is_dense { Bound { absolute: WINOGRAD_FACTOR * bound.absolute, ..bound } } else { bound }
        }
        Op::ConvTranspose(_) => conv_bound(operands),

        Op::Pool(op) => {
            let n = op.window.iter().product();
            match op.func {
                PoolFn::Max => exact,
                PoolFn::Avg => sum_bound(dtype, n, largest(x) / n as f64),
                PoolFn::Lp => Bound::reduction(dtype, n, 0.0),
            }
        }
        Op::Resize(op) => match op.func {
            ResizeFn::Nearest => Bound { is_bitwise: true, ..exact },
            ResizeFn::Linear | ResizeFn::Cubic => {
                // A table of weights is f32: each is one more rounding of its term.
                let n: usize = op.scales.iter().map(|scale| (4.0 / scale.min(1.0)).ceil() as usize).product();
                sum_bound(dtype, n, largest(x))
            }
        },
        Op::Softmax(op) => {
            // The difference to the largest element is rounded before exp, which makes that error a relative one.
            let n = x.shape()[op.axis] as f64;
            let ulps = largest(x) + 2.0 * n.sqrt() + 2.0 * FUNCTION_ULPS;
            let Bound { relative, .. } = Bound::relative(dtype, ulps);
            if op.log { Bound { relative, absolute: relative, ..exact } } else { Bound { relative, ..exact } }
        }
        Op::LayerNorm(op) => {
            let columns = x.shape()[op.axis..].iter().product();
            norm_bound(operands, columns, op.epsilon)
        }
        Op::GroupNorm(op) => {
            let columns = x.shape()[1] / op.groups.max(1) * x.shape()[2..].iter().product::<usize>();
            norm_bound(operands, columns, op.epsilon)
        }
        Op::RmsNorm(op) => {
            let columns: usize = x.shape()[op.axis..].iter().product();
            Bound::reduction(dtype, columns, 0.0).plus(Bound::relative(dtype, FUNCTION_ULPS))
        }
        Op::Lrn(op) => Bound::reduction(dtype, op.size, 0.0).plus(Bound::relative(dtype, 4.0 * FUNCTION_ULPS)),
        Op::Recurrent(op) => {
            let steps = x.shape()[0];
            let n = x.shape()[2] + op.hidden + 2;
            let operand = largest(x).max(operands[3..].iter().map(largest).fold(1.0, f64::max));
            let weights = largest(&operands[1]).max(largest(&operands[2])).max(1.0);
            let one = sum_bound(dtype, n, operand * weights).plus(Bound::relative(dtype, 4.0 * FUNCTION_ULPS));
            Bound { relative: one.relative * steps as f64, absolute: one.absolute * steps as f64, ..exact }
        }
        Op::CachedAttention(op) => {
            let (cache, length) = (operands[1].shape(), x.shape()[1]);
            let pages = operands.last().filter(|_| op.paged).map_or(1, |pages| pages.shape()[1]);
            let (keys, value) = (pages * cache[2] + length, largest(x).max(largest(&operands[2])));
            // An error of a score is a relative one of its weight; both halves of a turned pair add to it.
            let score = 4.0 * largest(x) * largest(x).max(largest(&operands[1])) * (cache[3] as f64) * op.scale.abs();
            sum_bound(dtype, keys + cache[3], value * (1.0 + score))
        }
        Op::ScatterElements(op) => scatter_bound(op.func, operands),
        Op::ScatterNd(op) => scatter_bound(op.func, operands),
        Op::Dequantize(op) => Bound::relative(op.to, 1.0),
        op => Bound { is_bitwise: op.family() == Family::Layout || op.family() == Family::Index, ..exact },
    }
}

fn conv_bound(operands: &[Tensor]) -> Bound {
    let filter = operands[1].shape();
    // The bias is one more term.
    let n = filter[1..].iter().product::<usize>().max(filter[0] * filter[2..].iter().product::<usize>()) + 1;
    let bias = operands.get(2).map_or(0.0, largest);
    sum_bound(operands[0].dtype(), n, (largest(&operands[0]) * largest(&operands[1])).max(bias))
}

/// A sum of n terms that are at most `term`.
fn sum_bound(dtype: DType, n: usize, term: f64) -> Bound {
    Bound::reduction(dtype, n, (n as f64).sqrt() * term)
}

fn unary_ulps(func: UnaryFn) -> f64 {
    match func {
        UnaryFn::Abs
        | UnaryFn::Neg
        | UnaryFn::Sign
        | UnaryFn::Ceil
        | UnaryFn::Floor
        | UnaryFn::Round
        | UnaryFn::Relu
        | UnaryFn::Thresholded => 0.0,
        UnaryFn::Recip | UnaryFn::Sqrt | UnaryFn::Leaky | UnaryFn::Softsign | UnaryFn::Shrink => 2.0,
        _ => FUNCTION_ULPS,
    }
}

fn has_tail(func: UnaryFn) -> bool {
    matches!(func, UnaryFn::GeluErf | UnaryFn::GeluTanh | UnaryFn::QuickGelu | UnaryFn::Silu | UnaryFn::Mish)
}

fn binary_ulps(func: BinaryFn) -> f64 {
    match func {
        BinaryFn::Min | BinaryFn::Max => 0.0,
        BinaryFn::Pow => FUNCTION_ULPS,
        _ => 1.0,
    }
}

fn reduce_bound(func: ReduceFn, x: &Tensor, axes: &[usize]) -> Bound {
    let n: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
    let (dtype, term) = (x.dtype(), largest(x));
    let logarithm = |s: f64| {
        let sum = Bound::reduction(dtype, n, s);
        Bound { absolute: sum.relative + sum.absolute, ..Bound::relative(dtype, 2.0 * FUNCTION_ULPS) }
    };
    match func {
        ReduceFn::Max | ReduceFn::Min | ReduceFn::Any | ReduceFn::All => Bound::default(),
        ReduceFn::Sum => sum_bound(dtype, n, term),
        ReduceFn::Mean => sum_bound(dtype, n, term / n.max(1) as f64),
        ReduceFn::Prod => Bound::relative(dtype, n as f64),
        // Terms of one sign: s is at most the sum.
        ReduceFn::L1 | ReduceFn::L2 | ReduceFn::SumSq => Bound::reduction(dtype, n, 0.0),
        ReduceFn::LogSum => logarithm(1.0),
        ReduceFn::LogSumExp => logarithm(1.0 + term),
    }
}

/// Rows of `columns` elements minus their mean, over their deviation: errors of the mean grow as the deviation shrinks.
fn norm_bound(operands: &[Tensor], columns: usize, epsilon: f64) -> Bound {
    let x = operands[0].to_f64_vec();
    let dtype = operands[0].dtype();
    let deviation = x
        .chunks(columns.max(1))
        .map(|row| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64 + epsilon).sqrt()
        })
        .fold(f64::INFINITY, f64::min);
    let others = operands[1..].iter().map(largest).fold(1.0, f64::max);
    let s = largest(&operands[0]) * others * (1.0 / deviation).min(f64::MAX);
    Bound::reduction(dtype, columns, s.max(others)).plus(Bound::relative(dtype, FUNCTION_ULPS))
}

fn scatter_bound(func: ScatterFn, operands: &[Tensor]) -> Bound {
    let (x, updates) = (&operands[0], &operands[2]);
    let n = updates.len() + 1;
    match func {
        ScatterFn::Replace => Bound { is_bitwise: true, ..Bound::default() },
        ScatterFn::Min | ScatterFn::Max => Bound::default(),
        ScatterFn::Add => sum_bound(x.dtype(), n, largest(x).max(largest(updates))),
        ScatterFn::Mul => Bound::relative(x.dtype(), n as f64),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use precast_ir::op::{Matmul, Softmax, Transpose, Unary};

    use super::*;

    fn reference(op: impl Into<Op>, inputs: &[Tensor]) -> Reference {
        let mut graph = Graph::new("");
        let values: Vec<_> = inputs.iter().map(|input| graph.add_input("", input.type_())).collect();
        let output = graph.add(op, &values, &Default::default()).unwrap();
        graph.add_output("", output);
        Reference::new(&graph, inputs).unwrap()
    }

    fn floats(shape: &[usize], elements: &[f32]) -> Tensor {
        Tensor::from_vec(shape, elements.to_vec()).unwrap()
    }

    #[test]
    fn the_bound_grows_with_the_reduction() {
        let at = |n: usize| tolerance(DType::F32, DType::F32, n, 1.0, 1.0) / 2f64.powi(-24);
        assert_eq!((at(1), at(16), at(256)), (6.0, 18.0, 66.0));
    }

    #[test]
    fn a_wrong_digit_is_found_and_a_rounded_one_is_not() {
        let op = Matmul { transpose_a: false, transpose_b: false };
        let reference = reference(op, &[floats(&[1, 2], &[1.0, 2.0]), floats(&[2, 1], &[3.0, 4.0])]);
        let found = |x: f32| reference.first_difference(&[floats(&[1, 1], &[x])]);
        assert_eq!(found(11.0), None);
        assert_eq!(found(11.000001), None);
        assert!(found(11.0001).is_some());
        assert!(found(f32::NAN).is_some());
        assert!(reference.first_difference(&[floats(&[1], &[11.0])]).is_some(), "another shape");
    }

    #[test]
    fn nan_matches_nan_and_infinities_match_by_sign() {
        let op = Unary { func: UnaryFn::Exp, alpha: 0.0, beta: 0.0 };
        let reference = reference(op, &[floats(&[2], &[f32::NAN, f32::INFINITY])]);
        let found = |a: f32, b: f32| reference.first_difference(&[floats(&[2], &[a, b])]);
        assert_eq!(found(-f32::NAN, f32::INFINITY), None);
        assert!(found(0.0, f32::INFINITY).is_some());
        assert!(found(f32::NAN, f32::NEG_INFINITY).is_some());
        assert!(found(f32::NAN, f32::MAX).is_some());
    }

    #[test]
    fn moved_elements_keep_every_bit() {
        let reference = reference(Transpose { perm: vec![0] }, &[floats(&[1], &[0.0])]);
        assert_eq!(reference.first_difference(&[floats(&[1], &[0.0])]), None);
        assert!(reference.first_difference(&[floats(&[1], &[-0.0])]).is_some());
    }

    #[test]
    fn infinite_operands_do_not_make_everything_near() {
        let op = Softmax { axis: 0, log: false };
        let reference = reference(op, &[floats(&[2], &[f32::NEG_INFINITY, 1.0])]);
        assert!(reference.first_difference(&[floats(&[2], &[0.1, 0.9])]).is_some());
    }
}
