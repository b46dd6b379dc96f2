//! What is known of integers that say where rows lie: sizes, and indices that stay within their own row. Exporters build
//! attention masks by reading the mask at such indices: `mask[arange(n), arange(s)]`, or the same in a flattened mask.

use precast_ir::op::{BinaryFn, Iota};
use precast_ir::{Node, Op};
use precast_tensor::{DType, Dim, Tensor, dim_compare};

use super::state::{Rows, State, View};

/// Constants of more elements are no sizes.
const SIZES_MAX: usize = 16;
/// Constants of more elements are not looked at: indices that exporters build are small.
const INDICES_MAX: usize = 1 << 20;

/// What is known of the elements of an integer value. Facts about rows hold where the value's state has rows; they are
/// made from counted numbers only, so the place within a row never depends on which row it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    /// Nothing.
    Nothing,
    /// Every element, in row-major order.
    Sizes(Vec<Dim>),
    /// Every element lies in a range.
    Within(Place),
    /// The last axis holds tuples, with a range for each component.
    Tuple(Vec<Place>),
}

/// Elements of row i lie in `i * stride .. i * stride + span`; a value without rows has stride 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    stride: Dim,
    span: Dim,
}

impl Place {
    /// Whether this is an index on the axis of `rows` that stays within the row it belongs to.
    pub fn is_own_row(&self, view: &View<'_>, rows: &Rows) -> bool {
        rows.outer == Dim::ONE
            && self.stride == rows.inner
            && dim_compare::le(&self.span, &rows.inner, view.ranges).is_yes()
    }

    /// Whether it is the same in every row.
    pub fn is_shared(&self) -> bool {
        self.stride == Dim::ZERO
    }
}

impl Known {
    /// What is known of a constant.
    pub fn of_constant(tensor: &Tensor) -> Known {
        if tensor.dtype() != DType::I64 || tensor.len() > INDICES_MAX {
            return Known::Nothing;
        }
        let Ok(values) = tensor.to_i64_vec() else { return Known::Nothing };
        if values.len() <= SIZES_MAX {
            return Known::Sizes(values.into_iter().map(Dim::from).collect());
        }
        range_of(&values).map_or(Known::Nothing, Known::Within)
    }

    /// The only element.
    fn size(&self) -> Option<&Dim> {
        match self {
            Known::Sizes(sizes) if sizes.len() == 1 => sizes.first(),
            Known::Nothing | Known::Sizes(_) | Known::Within(_) | Known::Tuple(_) => None,
        }
    }

    /// The range of the elements.
    pub fn place(&self) -> Option<Place> {
        match self {
            Known::Within(place) => Some(place.clone()),
            Known::Sizes(sizes) => range_of(&sizes.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?),
            Known::Nothing | Known::Tuple(_) => None,
        }
    }
}

/// The range of numbers that are the same in every row and not negative.
fn range_of(numbers: &[i64]) -> Option<Place> {
    let most = *numbers.iter().max()?;
    let is_counted = numbers.iter().all(|&number| number >= 0) && most < i64::MAX;
    is_counted.then(|| Place { stride: Dim::ZERO, span: Dim::from(most) + 1 })
}

/// What is known of the only output of a node; its state says where its rows lie.
pub(super) fn known(node: &Node, view: &View<'_>, state: &State, output: &[Dim]) -> Known {
    if matches!(state, State::Mixed(_)) || node.outputs.len() != 1 {
        return Known::Nothing;
    }
    fact(&node.op, view, state, output).unwrap_or(Known::Nothing)
}

fn fact(op: &Op, view: &View<'_>, state: &State, output: &[Dim]) -> Option<Known> {
    let input = |at: usize| view.known.get(at).copied();
    match op {
        Op::DimValue(op) => Some(Known::Sizes(vec![view.size(&op.dim)])),
        Op::Iota(op) => counted(op, view),
        Op::Cast(op) => input(0).filter(|_| op.to == DType::I64).cloned(),
        Op::Reshape(_) => match input(0)? {
            Known::Tuple(places) if output.last() != Some(&Dim::from(places.len())) => None,
            known => Some(known.clone()),
        },
        Op::Transpose(_) | Op::Broadcast(_) => input(0)?.place().map(Known::Within),
        // Of a value without rows, as many elements as there are rows differ from row to row.
        Op::Slice(_) if matches!(state, State::Row(_)) != view.rows(0).is_some() => None,
        Op::Slice(_) => input(0)?.place().map(Known::Within),
        Op::Concat(op) => concat(op.axis, view),
        Op::Gather(_) => gather(view),
        Op::Binary(op) => binary(op.func, view, input(0)?, input(1)?),
        Op::Unary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Bitcast(_) => None,
        Op::Reduce(_) | Op::ArgReduce(_) | Op::Cumulate(_) | Op::Matmul(_) | Op::MatmulInt(_) => None,
        Op::Conv(_) | Op::ConvInt(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::PoolIndices(_) => None,
        Op::RoiAlign(_) | Op::Resize(_) | Op::GridSample(_) | Op::Softmax(_) | Op::LayerNorm(_) => None,
        Op::RmsNorm(_) | Op::GroupNorm(_) | Op::Lrn(_) | Op::Recurrent(_) | Op::CachedAttention(_) => None,
        Op::AppendToCache(_) => None,
        Op::GatherElements(_) | Op::GatherNd(_) | Op::ScatterElements(_) | Op::ScatterNd(_) => None,
        Op::Topk(_) | Op::NonZero(_) | Op::Nms(_) | Op::Pad(_) | Op::Quantize(_) | Op::Dequantize(_) => None,
        Op::Unpack(_) => None,
        Op::Uniform(_) | Op::Normal(_) | Op::If(_) | Op::Loop(_) | Op::Fused(_) => None,
    }
}

/// Numbers from 0 on; in narrower types than i64 they may wrap.
fn counted(op: &Iota, view: &View<'_>) -> Option<Known> {
    if op.start != Dim::ZERO || op.step != Dim::ONE || op.to != DType::I64 {
        return None;
    }
    let length = view.size(&op.length);
    if !view.mentions(&length) {
        return Some(Known::Within(Place { stride: Dim::ZERO, span: length }));
    }
    let inner = length.floor_div_exact(&Dim::from(view.dim))?;
    Some(Known::Within(Place { stride: inner.clone(), span: inner }))
}

/// A list of sizes from lists, or tuples from single numbers.
fn concat(axis: usize, view: &View<'_>) -> Option<Known> {
    let rank = view.types.first()?.rank();
    let parts = view.known.iter();
    if rank == 1 {
        let lists = parts.map(|known| match known {
            Known::Sizes(sizes) => Some(sizes.clone()),
            Known::Nothing | Known::Within(_) | Known::Tuple(_) => None,
        });
        return Some(Known::Sizes(lists.collect::<Option<Vec<_>>>()?.concat()));
    }
    let are_single = view.types.iter().all(|ty| ty.dims.last() == Some(&Dim::ONE));
    let places = parts.map(|known| known.place()).collect::<Option<Vec<Place>>>()?;
    (axis + 1 == rank && are_single).then_some(Known::Tuple(places))
}

/// Sizes picked from a list of sizes.
fn gather(view: &View<'_>) -> Option<Known> {
    let [Known::Sizes(sizes), Known::Sizes(indices)] = view.known[..] else { return None };
    let pick = |index: &Dim| {
        let index = index.as_const()?;
        let place = if index < 0 { index + sizes.len() as i64 } else { index };
        sizes.get(usize::try_from(place).ok()?).cloned()
    };
    let picked: Option<Vec<Dim>> = indices.iter().map(pick).collect();
    (view.types[0].rank() == 1).then_some(Known::Sizes(picked?))
}

fn binary(func: BinaryFn, view: &View<'_>, a: &Known, b: &Known) -> Option<Known> {
    let (is_add, is_mul) = (func == BinaryFn::Add, func == BinaryFn::Mul);
    match (a.size(), b.size()) {
        (Some(x), Some(y)) if is_add => Some(Known::Sizes(vec![x + y])),
        (Some(x), Some(y)) if is_mul => Some(Known::Sizes(vec![x * y])),
        (Some(x), Some(y)) if func == BinaryFn::Sub => Some(Known::Sizes(vec![x - y])),
        (Some(factor), None) if is_mul => scaled(view, b.place()?, factor),
        (None, Some(factor)) if is_mul => scaled(view, a.place()?, factor),
        _ if is_add => {
            let (a, b) = (a.place()?, b.place()?);
            Some(Known::Within(Place { stride: a.stride + b.stride, span: a.span + b.span - 1 }))
        }
        _ => None,
    }
}

fn scaled(view: &View<'_>, place: Place, factor: &Dim) -> Option<Known> {
    let is_usable = !view.mentions(factor) && factor.bounds(view.ranges).0 >= 0;
    let span = (place.span - 1) * factor + 1;
    is_usable.then(|| Known::Within(Place { stride: place.stride * factor, span }))
}
