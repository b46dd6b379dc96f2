//! Operators that look up, write and choose elements by index.

mod unique;

use precast_ir::ValueId;
use precast_ir::op::{
    BinaryFn, CompareFn, GatherElements, GatherNd, Nms, NonZero, ScatterElements, ScatterFn, ScatterNd, Topk,
};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub const IMPORTS: &[Import] = &[
    Import::onnx("Gather", 1, 1, gather),
    Import::onnx("GatherElements", 11, 1, gather_elements),
    Import::onnx("GatherND", 11, 1, gather_nd),
    Import::onnx("Scatter", 9, 1, scatter_elements),
    Import::onnx("ScatterElements", 11, 1, scatter_elements),
    Import::onnx("ScatterND", 11, 1, scatter_nd),
    Import::onnx("TensorScatter", 24, 1, tensor_scatter),
    Import::onnx("TopK", 1, 1, topk_1),
    Import::onnx("TopK", 10, 1, topk_10),
    Import::onnx("NonZero", 9, 1, nonzero),
    Import::onnx("NonMaxSuppression", 10, 1, non_max_suppression),
    Import::onnx("OneHot", 9, 1, one_hot),
    Import::onnx("Compress", 9, 2, compress),
    Import::onnx("ReverseSequence", 10, 2, reverse_sequence),
    Import::onnx("Unique", 11, 2, unique::unique),
    Import::microsoft("GatherND", 2, gather_nd),
    Import::microsoft("NGramRepeatBlock", 2, ngram_repeat_block),
    Import::microsoft("TorchEmbedding", 2, torch_embedding),
    Import::microsoft("Unique", 2, unique::unique_in_order),
];

/// What an Import gives.
type Values = Result<Vec<ValueId>, Fault>;

/// Rows of a table. What the other inputs say matters to gradients alone.
fn torch_embedding(cx: &mut NodeCx<'_, '_>) -> Values {
    let (table, indices) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![cx.gather(table, indices, 0)?])
}

/// Scores [batch, vocabulary] with -inf for every token that would complete an n-gram that the ids [batch, length] have
/// already.
fn ngram_repeat_block(cx: &mut NodeCx<'_, '_>) -> Values {
    let (ids, scores) = (cx.input(0)?, cx.input(1)?);
    let size = match cx.int("ngram_size", 0)? {
        size if size > 0 => size,
        size => return Err(Fault::Invalid(format!("attribute 'ngram_size' is {size}; 1 or more was expected"))),
    };
    let [batch, length] = &cx.dims(ids)[..] else {
        return Err(Fault::Invalid(format!("the ids have rank {}; 2 was expected", cx.rank(ids))));
    };
    let length = cx.number(length, "the number of ids")? as i64;
    if length < size {
        return Ok(vec![scores]);
    }
    // Every n-gram but its last token, held against the last tokens of all.
    let (count, before) = (Dim::from(length - size + 1), size - 1);
    let mut is_again: Option<ValueId> = None;
    for place in 0..before {
        let own = cx.slice_axis(ids, 1, Dim::from(place), count.clone())?;
        let last = cx.slice_axis(ids, 1, Dim::from(length - before + place), Dim::ONE)?;
        let is_same = cx.compare(CompareFn::Eq, own, last)?;
        is_again = Some(match is_again {
            Some(is_again) => cx.binary(BinaryFn::And, is_again, is_same)?,
            None => is_same,
        });
    }
    let next = cx.slice_axis(ids, 1, Dim::from(before), count.clone())?;
    let banned = match is_again {
        Some(is_again) => cx.cast(is_again, DType::F32)?,
        None => {
            let one = cx.scalar(DType::F32, 1.0)?;
            cx.broadcast(one, vec![batch.clone(), count])?
        }
    };
    let zero = cx.scalar(DType::F32, 0.0)?;
    let none = cx.broadcast(zero, cx.dims(scores))?;
    let banned = cx.add(ScatterElements { axis: 1, func: ScatterFn::Max }, &[none, next, banned])?;
    let is_banned = cx.compare(CompareFn::Gt, banned, zero)?;
    let never = cx.scalar(cx.dtype(scores), f64::NEG_INFINITY)?;
    Ok(vec![cx.select(is_banned, never, scores)?])
}

fn gather(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    Ok(vec![cx.gather(x, indices, axis)?])
}

fn gather_elements(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    Ok(vec![cx.add(GatherElements { axis }, &[x, indices])?])
}

fn gather_nd(cx: &mut NodeCx<'_, '_>) -> Values {
    let batch = if cx.opset() >= 12 { cx.int("batch_dims", 0)? } else { 0 };
    let batch_axes = usize::try_from(batch)
        .map_err(|_| Fault::Invalid(format!("attribute 'batch_dims' is {batch}; 0 or more was expected")))?;
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    check_tuples(cx, indices)?;
    Ok(vec![cx.add(GatherNd { batch_axes }, &[x, indices])?])
}

/// The attribute `reduction`, which opset 16 brings.
fn reduction(cx: &NodeCx<'_, '_>) -> Result<ScatterFn, Fault> {
    if cx.opset() < 16 {
        return Ok(ScatterFn::Replace);
    }
    match cx.string("reduction", "none")?.as_str() {
        "none" => Ok(ScatterFn::Replace),
        "add" => Ok(ScatterFn::Add),
        "mul" => Ok(ScatterFn::Mul),
        "min" => Ok(ScatterFn::Min),
        "max" => Ok(ScatterFn::Max),
        other => Err(Fault::Invalid(format!("attribute 'reduction' is '{other}'"))),
    }
}

fn scatter_elements(cx: &mut NodeCx<'_, '_>) -> Values {
    let func = reduction(cx)?;
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(inputs[0]))?;
    Ok(vec![cx.add(ScatterElements { func, axis }, &inputs)?])
}

fn scatter_nd(cx: &mut NodeCx<'_, '_>) -> Values {
    let func = reduction(cx)?;
    let inputs = [cx.input(0)?, cx.input(1)?, cx.input(2)?];
    check_tuples(cx, inputs[1])?;
    Ok(vec![cx.add(ScatterNd { func }, &inputs)?])
}

/// The length of index tuples decides the rank of the result.
fn check_tuples(cx: &NodeCx<'_, '_>, indices: ValueId) -> Result<(), Fault> {
    match cx.dims(indices).last() {
        Some(length) => cx.number(length, "the length of index tuples").map(drop),
        None => Err(Fault::Invalid("the indices are a scalar; rank 1 or more was expected".to_string())),
    }
}

/// Writes the update into a cache, for each sample from its own position on.
fn tensor_scatter(cx: &mut NodeCx<'_, '_>) -> Values {
    let (cache, update) = (cx.input(0)?, cx.input(1)?);
    let rank = cx.rank(cache);
    let axis = cx.axis(cx.int("axis", -2)?, rank)?;
    let is_circular = match cx.string("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => {
            return Err(Fault::Invalid(format!("attribute 'mode' is '{other}'; linear or circular was expected")));
        }
    };
    if axis == 0 || cx.rank(update) != rank {
        return Err(Fault::Invalid(format!("axis {axis} of a cache of rank {rank} cannot be written")));
    }
    let (cache_dims, update_dims) = (cx.dims(cache), cx.dims(update));
    let mut positions = cx.iota_along(DType::I64, update_dims[axis].clone(), axis, rank)?;
    if let Some(starts) = cx.optional(2) {
        let mut shape = vec![Dim::ONE; rank];
        shape[0] = update_dims[0].clone();
        let starts = cx.reshape(starts, shape)?;
        positions = cx.binary(BinaryFn::Add, positions, starts)?;
    }
    if is_circular {
        let length = cx.dim_value(cache_dims[axis].clone())?;
        positions = cx.binary(BinaryFn::Mod, positions, length)?;
    }
    let indices = cx.broadcast(positions, update_dims)?;
    Ok(vec![cx.add(ScatterElements { func: ScatterFn::Replace, axis }, &[cache, indices, update])?])
}

fn topk_1(cx: &mut NodeCx<'_, '_>) -> Values {
    let k = cx.attributes().int("k")?.ok_or_else(|| Fault::Invalid("attribute 'k' is missing".to_string()))?;
    topk(cx, Dim::from(k), true)
}

fn topk_10(cx: &mut NodeCx<'_, '_>) -> Values {
    let k = cx.input(1)?;
    let k = cx.require_size(k, "k")?;
    let mut largest = true;
    if cx.opset() >= 11 {
        largest = cx.flag("largest", true)?;
        // Without it any order is right, the sorted one too.
        cx.flag("sorted", true)?;
    }
    topk(cx, k, largest)
}

fn topk(cx: &mut NodeCx<'_, '_>, k: Dim, largest: bool) -> Values {
    let x = cx.input(0)?;
    let axis = cx.axis(cx.int("axis", -1)?, cx.rank(x))?;
    cx.add_node(Topk { axis, k, largest }, &[x])
}

fn nonzero(cx: &mut NodeCx<'_, '_>) -> Values {
    let x = cx.input(0)?;
    Ok(vec![nonzero_of(cx, x)?])
}

/// Index tuples [rank, count] of the elements of x that are not zero.
fn nonzero_of(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let elements: Dim = cx.dims(x).iter().product();
    let count = cx.fresh_dim("count", elements.as_const());
    cx.add(NonZero { count }, &[x])
}

fn non_max_suppression(cx: &mut NodeCx<'_, '_>) -> Values {
    let center_point = cx.flag("center_point_box", false)?;
    let (boxes, scores) = (cx.input(0)?, cx.input(1)?);
    let boxes_max = match cx.optional(2) {
        Some(most) => cx.require_size(most, "max_output_boxes_per_class")?,
        None => Dim::ZERO,
    };
    let threshold = |position: usize, what: &str| match cx.optional(position) {
        Some(value) => match cx.require_floats(value, what)?[..] {
            [number] => Ok(Some(number)),
            ref numbers => Err(Fault::Invalid(format!("{what} has {} elements; one was expected", numbers.len()))),
        },
        None => Ok(None),
    };
    let iou_threshold = threshold(3, "iou_threshold")?.unwrap_or(0.0);
    let score_threshold = threshold(4, "score_threshold")?;
    let most = match (&cx.dims(scores)[..], boxes_max.as_const()) {
        ([batch, classes, _], Some(most)) => (batch * classes * most).as_const(),
        _ => None,
    };
    let count = cx.fresh_dim("count", most);
    let op = Nms {
        count,
        center_point,
        boxes_max,
        iou_threshold,
        score_threshold: score_threshold.unwrap_or(0.0),
        has_score_threshold: score_threshold.is_some(),
    };
    Ok(vec![cx.add(op, &[boxes, scores])?])
}

fn one_hot(cx: &mut NodeCx<'_, '_>) -> Values {
    let (indices, depth, values) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let rank = cx.rank(indices) + 1;
    let axis = cx.axis(cx.int("axis", -1)?, rank)?;
    let depth = match cx.dtype(depth).is_float() {
        true => match cx.require_floats(depth, "depth")?[..] {
            [number] => Dim::from(number as i64),
            ref numbers => {
                return Err(Fault::Invalid(format!("depth has {} elements; one was expected", numbers.len())));
            }
        },
        false => cx.require_size(depth, "depth")?,
    };
    let mut indices = cx.cast(indices, DType::I64)?;
    if cx.opset() >= 11 {
        // Negative indices count from the end; before opset 11 they mean no class.
        let zero = cx.scalar(DType::I64, 0.0)?;
        let is_negative = cx.compare(CompareFn::Lt, indices, zero)?;
        let size = cx.dim_value(depth.clone())?;
        let wrapped = cx.binary(BinaryFn::Add, indices, size)?;
        indices = cx.select(is_negative, wrapped, indices)?;
    }
    let indices = cx.unsqueeze(indices, &[axis])?;
    let classes = cx.iota_along(DType::I64, depth, axis, rank)?;
    let is_hot = cx.compare(CompareFn::Eq, indices, classes)?;
    let [off, on] = [0, 1].map(|at| {
        let element = cx.slice_axis(values, 0, Dim::from(at), Dim::ONE)?;
        cx.reshape(element, Vec::new())
    });
    Ok(vec![cx.select(is_hot, on?, off?)?])
}

/// Slices of x along the axis where the condition holds; without an axis, elements of x.
fn compress(cx: &mut NodeCx<'_, '_>) -> Values {
    let (mut x, condition) = (cx.input(0)?, cx.input(1)?);
    let axis = match cx.attributes().int("axis")? {
        Some(axis) => cx.axis(axis, cx.rank(x))?,
        None => {
            let elements = cx.dims(x).iter().product();
            x = cx.reshape(x, vec![elements])?;
            0
        }
    };
    let tuples = nonzero_of(cx, condition)?;
    let [_, count] = <[Dim; 2]>::try_from(cx.dims(tuples))
        .map_err(|_| Fault::Invalid("the condition has no axes; one was expected".to_string()))?;
    let indices = cx.reshape(tuples, vec![count])?;
    Ok(vec![cx.gather(x, indices, axis)?])
}

/// Reverses the first `sequence_lens[b]` steps of every sample b.
fn reverse_sequence(cx: &mut NodeCx<'_, '_>) -> Values {
    let (x, lengths) = (cx.input(0)?, cx.input(1)?);
    let (dims, rank) = (cx.dims(x), cx.rank(x));
    let time = cx.axis(cx.int("time_axis", 0)?, rank)?;
    let batch = cx.axis(cx.int("batch_axis", 1)?, rank)?;
    let mut shape = vec![Dim::ONE; rank];
    shape[batch] = dims[batch].clone();
    let lengths = cx.cast(lengths, DType::I64)?;
    let lengths = cx.reshape(lengths, shape)?;
    let steps = cx.iota_along(DType::I64, dims[time].clone(), time, rank)?;
    let last = cx.binary_scalar(BinaryFn::Sub, lengths, 1.0)?;
    let mirrored = cx.binary(BinaryFn::Sub, last, steps)?;
    let is_inside = cx.compare(CompareFn::Lt, steps, lengths)?;
    let indices = cx.select(is_inside, mirrored, steps)?;
    let indices = cx.broadcast(indices, dims)?;
    Ok(vec![cx.add(GatherElements { axis: time }, &[x, indices])?])
}
