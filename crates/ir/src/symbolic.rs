//! Values of small integer tensors as Dims: shape arithmetic that a model does on `dim_value`s, followed far enough to
//! turn its results back into the Dims of reshapes, slices and broadcasts. Anything undecided is `None`, never a guess.

use precast_tensor::{Answer, DType, Dim, Ranges, Type, eq, le, lt};

use crate::op::{
    Binary, BinaryFn, Clamp, Compare, CompareFn, Iota, Op, Reduce, ReduceFn, Slice, Transpose, Unary, UnaryFn,
};
use crate::ops::reduce::Groups;
use crate::ops::shape::{axis_index, broadcast_strides, check_count, count, offsets, split_at_axis, strides};

/// Shape tensors have as many elements as a rank; more than this is data.
pub const ELEMENTS_MAX: usize = 64;

/// The elements of an op's only output as Dims, from the elements of its inputs where they are known. Bools are 0 and 1.
pub fn content(op: &Op, inputs: &[Option<Vec<Dim>>], input_types: &[&Type], output_type: &Type) -> Option<Vec<Dim>> {
    let shape = output_type.shape()?;
    let is_small = check_count(op.name(), &shape).is_ok_and(|elements| elements <= ELEMENTS_MAX);
    if !is_small || output_type.dtype.is_float() {
        return None;
    }
    let node = Node { inputs, input_types, dtype: output_type.dtype, shape };
    let elements = node.content(op)?;
    let is_light = elements.iter().all(|element| element.weight() <= Dim::WEIGHT_MAX);
    (elements.len() == count(&node.shape) && is_light).then_some(elements)
}

/// What is known of a node: its inputs' Types and elements, its output's element type and shape.
struct Node<'a> {
    inputs: &'a [Option<Vec<Dim>>],
    input_types: &'a [&'a Type],
    dtype: DType,
    shape: Vec<usize>,
}

impl Node<'_> {
    fn content(&self, op: &Op) -> Option<Vec<Dim>> {
        match op {
            Op::DimValue(op) => Some(vec![op.dim.clone()]),
            Op::Iota(op) => self.iota(op),
            Op::Reshape(_) => Some(self.input(0)?.1.to_vec()),
            Op::Broadcast(_) => self.broadcast(0),
            Op::Transpose(op) => self.transpose(op),
            Op::Slice(op) => self.slice(op),
            Op::Concat(op) => self.concat(op.axis),
            Op::Gather(op) => self.gather(op.axis),
            Op::Select(_) => self.select(),
            Op::Cast(_) => self.map(|element| self.cast(element)),
            Op::Unary(op) => self.map(|element| self.unary(op, element)),
            Op::Clamp(op) => self.map(|element| self.clamp(op, element)),
            Op::Binary(op) => self.zip(|a, b| self.binary(op, a, b)),
            Op::Compare(op) => self.zip(|a, b| compare(op, a, b).map(truth)),
            Op::Reduce(op) => self.reduce(op),
            Op::Bitcast(_)
            | Op::ArgReduce(_)
            | Op::Cumulate(_)
            | Op::Matmul(_)
            | Op::MatmulInt(_)
            | Op::Conv(_)
            | Op::ConvInt(_)
            | Op::ConvTranspose(_)
            | Op::Pool(_)
            | Op::PoolIndices(_)
            | Op::RoiAlign(_)
            | Op::Resize(_)
            | Op::GridSample(_)
            | Op::Softmax(_)
            | Op::LayerNorm(_)
            | Op::RmsNorm(_)
            | Op::GroupNorm(_)
            | Op::Lrn(_)
            | Op::Recurrent(_)
            | Op::CachedAttention(_)
            | Op::AppendToCache(_)
            | Op::GatherElements(_)
            | Op::GatherNd(_)
            | Op::ScatterElements(_)
            | Op::ScatterNd(_)
            | Op::Topk(_)
            | Op::NonZero(_)
            | Op::Nms(_)
            | Op::Pad(_)
            | Op::Quantize(_)
            | Op::Dequantize(_)
            | Op::Unpack(_)
            | Op::Uniform(_)
            | Op::Normal(_)
            | Op::If(_)
            | Op::Loop(_)
            | Op::Fused(_) => None,
        }
    }

    /// Shape and elements of an input, as many as the shape says.
    fn input(&self, position: usize) -> Option<(Vec<usize>, &[Dim])> {
        let elements = self.inputs.get(position)?.as_deref()?;
        let shape = self.input_types.get(position)?.shape()?;
        (count(&shape) == elements.len()).then_some((shape, elements))
    }

    fn iota(&self, op: &Iota) -> Option<Vec<Dim>> {
        let elements = (0..count(&self.shape)).map(|at| &op.start + &op.step * Dim::from(at));
        elements.map(|element| self.sound(element)).collect()
    }

    fn broadcast(&self, position: usize) -> Option<Vec<Dim>> {
        let (shape, elements) = self.input(position)?;
        let strides = (shape.len() <= self.shape.len()).then(|| broadcast_strides(&shape, &self.shape))?;
        self.pick(elements, 0, &strides)
    }

    fn transpose(&self, op: &Transpose) -> Option<Vec<Dim>> {
        let (shape, elements) = self.input(0)?;
        let own = strides(&shape);
        let permuted: Option<Vec<usize>> = op.perm.iter().map(|&axis| own.get(axis).copied()).collect();
        self.pick(elements, 0, &permuted?)
    }

    /// The elements at `start + Σ index·stride` for every index of the output.
    fn pick(&self, elements: &[Dim], start: usize, strides: &[usize]) -> Option<Vec<Dim>> {
        offsets(&self.shape, strides).into_iter().map(|at| elements.get(start.checked_add(at)?).cloned()).collect()
    }

    fn slice(&self, op: &Slice) -> Option<Vec<Dim>> {
        let (shape, elements) = self.input(0)?;
        if op.start.len() != shape.len() || op.step.len() != shape.len() {
            return None;
        }
        let mut places: Vec<i128> = vec![0];
        for (axis, &stride) in strides(&shape).iter().enumerate() {
            let (start, step) = (i128::from(op.start[axis].as_const()?), i128::from(op.step[axis]));
            let along = |at: usize| (start + at as i128 * step) * stride as i128;
            let extent = *self.shape.get(axis)?;
            places = places.iter().flat_map(|place| (0..extent).map(move |at| place + along(at))).collect();
        }
        places.into_iter().map(|place| elements.get(usize::try_from(place).ok()?).cloned()).collect()
    }

    fn concat(&self, axis: usize) -> Option<Vec<Dim>> {
        let inputs: Option<Vec<_>> = (0..self.inputs.len()).map(|position| self.input(position)).collect();
        let inputs = inputs?;
        if inputs.iter().any(|(shape, _)| axis >= shape.len()) {
            return None;
        }
        let outer = count(self.shape.get(..axis)?);
        let mut joined = Vec::new();
        for block in 0..outer {
            for (shape, elements) in &inputs {
                let run = split_at_axis(shape, axis).extent * split_at_axis(shape, axis).inner;
                joined.extend_from_slice(elements.get(block * run..(block + 1) * run)?);
            }
        }
        Some(joined)
    }

    fn gather(&self, axis: usize) -> Option<Vec<Dim>> {
        let ((shape, elements), (_, indices)) = (self.input(0)?, self.input(1)?);
        let split = (axis < shape.len()).then(|| split_at_axis(&shape, axis))?;
        let mut found = Vec::new();
        for outer in 0..split.outer {
            for index in indices {
                let place = axis_index("gather", i128::from(index.as_const()?), split.extent).ok()?;
                let from = (outer * split.extent + place) * split.inner;
                found.extend_from_slice(elements.get(from..from + split.inner)?);
            }
        }
        Some(found)
    }

    fn select(&self) -> Option<Vec<Dim>> {
        let (x, y) = (self.broadcast(1)?, self.broadcast(2)?);
        let Some(condition) = self.broadcast(0) else {
            return (x == y).then_some(x);
        };
        let choices = condition.iter().zip(x.into_iter().zip(y));
        choices.map(|(condition, (x, y))| Some(if condition.as_const()? != 0 { x } else { y })).collect()
    }

    fn map(&self, apply: impl Fn(&Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
        self.input(0)?.1.iter().map(apply).collect()
    }

    fn zip(&self, apply: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
        let (a, b) = (self.broadcast(0)?, self.broadcast(1)?);
        a.iter().zip(&b).map(|(a, b)| apply(a, b)).collect()
    }

    /// Sizes are taken to fit integers of 32 bits or more, as the model that converts them takes it. Narrower types
    /// would wrap.
    fn cast(&self, element: &Dim) -> Option<Dim> {
        if self.input_types.first()?.dtype.is_float() {
            return None;
        }
        let Some((least, most)) = self.dtype.int_range() else {
            return decide(eq(element, &Dim::ZERO, &Ranges::new())).map(|is_zero| truth(!is_zero));
        };
        let (lo, hi) = element.bounds(&Ranges::new());
        let is_wide = self.dtype.bits() >= 32 && !element.is_const();
        let fits = i128::from(lo) >= least && (is_wide || i128::from(hi) <= most);
        fits.then(|| element.clone())
    }

    fn unary(&self, op: &Unary, element: &Dim) -> Option<Dim> {
        match op.func {
            UnaryFn::Neg => self.sound(-element),
            UnaryFn::Abs => self.sound(Dim::max(element, &-element).simplify(&Ranges::new())),
            UnaryFn::Relu => Some(Dim::max(element, &Dim::ZERO).simplify(&Ranges::new())),
            UnaryFn::Not => element.as_const().map(|value| truth(value == 0)),
            UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round => Some(element.clone()),
            UnaryFn::Sign
            | UnaryFn::Recip
            | UnaryFn::Sqrt
            | UnaryFn::Rsqrt
            | UnaryFn::Exp
            | UnaryFn::Expm1
            | UnaryFn::Log
            | UnaryFn::Log1p
            | UnaryFn::Sin
            | UnaryFn::Cos
            | UnaryFn::Tan
            | UnaryFn::Asin
            | UnaryFn::Acos
            | UnaryFn::Atan
            | UnaryFn::Sinh
            | UnaryFn::Cosh
            | UnaryFn::Tanh
            | UnaryFn::Asinh
            | UnaryFn::Acosh
            | UnaryFn::Atanh
            | UnaryFn::Erf
            | UnaryFn::BitNot
            | UnaryFn::IsNan
            | UnaryFn::IsInf
            | UnaryFn::Leaky
            | UnaryFn::Elu
            | UnaryFn::Selu
            | UnaryFn::Celu
            | UnaryFn::GeluErf
            | UnaryFn::GeluTanh
            | UnaryFn::QuickGelu
            | UnaryFn::Silu
            | UnaryFn::Mish
            | UnaryFn::Sigmoid
            | UnaryFn::Logistic
            | UnaryFn::HardSigmoid
            | UnaryFn::HardSwish
            | UnaryFn::Softplus
            | UnaryFn::Softsign
            | UnaryFn::Shrink
            | UnaryFn::Thresholded
            | UnaryFn::Affine
            | UnaryFn::ScaledTanh => None,
        }
    }

    fn clamp(&self, op: &Clamp, element: &Dim) -> Option<Dim> {
        // Limits that no size reaches change nothing; the conversion saturates.
        let (lo, hi) = (Dim::from(op.lo.ceil() as i64), Dim::from(op.hi.floor() as i64));
        let is_limit = !op.lo.is_nan() && !op.hi.is_nan();
        is_limit.then(|| Dim::min(&Dim::max(element, &lo), &hi).simplify(&Ranges::new()))
    }

    fn binary(&self, op: &Binary, a: &Dim, b: &Dim) -> Option<Dim> {
        let both = || Some((a.as_const()? != 0, b.as_const()? != 0));
        match op.func {
            BinaryFn::Add => self.sound(a + b),
            BinaryFn::Sub => self.sound(a - b),
            BinaryFn::Mul => self.sound(a * b),
            BinaryFn::Div => self.sound(a.trunc_div(b)),
            BinaryFn::Mod => self.sound(a.modulo(b)),
            BinaryFn::Fmod => self.sound(a - a.trunc_div(b) * b),
            BinaryFn::Min => Some(Dim::min(a, b).simplify(&Ranges::new())),
            BinaryFn::Max => Some(Dim::max(a, b).simplify(&Ranges::new())),
            BinaryFn::And => both().map(|(a, b)| truth(a & b)),
            BinaryFn::Or => both().map(|(a, b)| truth(a | b)),
            BinaryFn::Xor => both().map(|(a, b)| truth(a ^ b)),
            BinaryFn::Pow
            | BinaryFn::BitAnd
            | BinaryFn::BitOr
            | BinaryFn::BitXor
            | BinaryFn::Shl
            | BinaryFn::Shr
            | BinaryFn::Prelu => None,
        }
    }

    fn reduce(&self, op: &Reduce) -> Option<Vec<Dim>> {
        let (shape, elements) = self.input(0)?;
        if op.axes.iter().any(|&axis| axis >= shape.len()) {
            return None;
        }
        let results = Groups::new(&shape, &op.axes).map(elements, |group| self.reduce_group(op.func, group));
        results.into_iter().collect()
    }

    fn reduce_group(&self, func: ReduceFn, group: &[Dim]) -> Option<Dim> {
        let extreme = |join: fn(&Dim, &Dim) -> Dim| {
            let (first, rest) = group.split_first()?;
            Some(rest.iter().fold(first.clone(), |joined, element| join(&joined, element)).simplify(&Ranges::new()))
        };
        let numbers: Option<Vec<i64>> = group.iter().map(Dim::as_const).collect();
        match func {
            ReduceFn::Sum => self.sound(group.iter().sum()),
            ReduceFn::Prod => self.sound(group.iter().product()),
            ReduceFn::Max => extreme(Dim::max),
            ReduceFn::Min => extreme(Dim::min),
            ReduceFn::Any => numbers.map(|all| truth(all.iter().any(|&value| value != 0))),
            ReduceFn::All => numbers.map(|all| truth(all.iter().all(|&value| value != 0))),
            ReduceFn::Mean | ReduceFn::L1 | ReduceFn::L2 | ReduceFn::SumSq | ReduceFn::LogSum | ReduceFn::LogSumExp => {
                None
            }
        }
    }

    /// A result of arithmetic, unless it is a number that the element type would have wrapped or that Dim arithmetic
    /// may have saturated.
    fn sound(&self, result: Dim) -> Option<Dim> {
        let (least, most) = self.dtype.int_range()?;
        let is_sound = result
            .as_const()
            .is_none_or(|value| (least..=most).contains(&i128::from(value)) && value != i64::MIN && value != i64::MAX);
        is_sound.then_some(result)
    }
}

fn compare(op: &Compare, a: &Dim, b: &Dim) -> Option<bool> {
    let ranges = Ranges::new();
    decide(match op.func {
        CompareFn::Eq => eq(a, b, &ranges),
        CompareFn::Lt => lt(a, b, &ranges),
        CompareFn::Le => le(a, b, &ranges),
        CompareFn::Gt => lt(b, a, &ranges),
        CompareFn::Ge => le(b, a, &ranges),
    })
}

fn decide(answer: Answer) -> Option<bool> {
    match answer {
        Answer::Yes => Some(true),
        Answer::No => Some(false),
        Answer::Unknown => None,
    }
}

fn truth(is_true: bool) -> Dim {
    Dim::from(i64::from(is_true))
}

#[cfg(test)]
#[path = "symbolic_tests.rs"]
mod tests;
