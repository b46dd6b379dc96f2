//! Nodes that look elements up or put them somewhere.

use precast::{DType, Tensor};

use super::{Made, Maker, on};
use crate::fuzz::growing::{ANY, Call, FLOATS, Growing, Known, NUMBERS, Wanted};
use crate::fuzz::messages::{int, string};

pub const MAKERS: &[Maker] = &[
    on("Compress", 11, compress),
    on("Gather", 13, gather),
    on("GatherElements", 13, gather_elements),
    on("GatherND", 13, gather_nd),
    on("NonMaxSuppression", 11, suppress),
    on("NonZero", 13, nonzero),
    on("OneHot", 11, one_hot),
    on("ReverseSequence", 10, reverse_sequence),
    on("ScatterElements", 18, scatter_elements),
    on("ScatterND", 18, scatter_nd),
    on("TensorScatter", 24, tensor_scatter),
    on("TopK", 11, top),
    on("Unique", 11, unique),
];

/// Indices into an axis of a size, from either end.
fn indices(growing: &mut Growing, shape: &[usize], size: usize) -> Option<Known> {
    let count: usize = shape.iter().product();
    if size == 0 && count > 0 {
        return None;
    }
    let list: Vec<i128> = (0..count).map(|_| growing.random.below(2 * size) as i128 - size as i128).collect();
    let dtype = growing.pick_type(&[DType::I64, DType::I64, DType::I32]);
    let tensor = Tensor::from_i128(dtype, shape, &list).ok()?;
    Some(growing.constant_of(tensor))
}

fn gather(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let axis = growing.random.below(x.rank());
    let size = x.shape()[axis];
    let shape = growing.shape(0..=2);
    let places = indices(growing, &shape, size)?;
    growing.add(Call::of(operator, &[&x, &places]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn gather_elements(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let axis = growing.random.below(x.rank());
    let mut shape = x.shape().to_vec();
    let size = shape[axis];
    shape[axis] = growing.size();
    let places = indices(growing, &shape, size)?;
    growing.add(Call::of(operator, &[&x, &places]).with(vec![int("axis", axis)]).exact()).map(drop)
}

/// Index tuples of `depth` into the axes of x after `batch`.
fn tuples(growing: &mut Growing, sizes: &[usize], rows: &[usize]) -> Option<Known> {
    let count: usize = rows.iter().product();
    if count > 0 && sizes.contains(&0) {
        return None;
    }
    let mut list = Vec::new();
    for _ in 0..count {
        for &size in sizes {
            list.push(growing.random.below(2 * size) as i64 - size as i64);
        }
    }
    let mut shape = rows.to_vec();
    shape.push(sizes.len());
    let tensor = Tensor::from_vec(shape, list).ok()?;
    Some(growing.constant_of(tensor))
}

fn gather_nd(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let batch = growing.random.below(x.rank());
    let depth = 1 + growing.random.below(x.rank() - batch);
    let mut rows = x.shape()[..batch].to_vec();
    rows.push(1 + growing.random.below(3));
    let sizes = x.shape()[batch..batch + depth].to_vec();
    let places = tuples(growing, &sizes, &rows)?;
    growing.add(Call::of(operator, &[&x, &places]).with(vec![int("batch_dims", batch)]).exact()).map(drop)
}

/// How updates join what is there. Where a place may be written twice only what has no order is asked for.
fn reduction(growing: &mut Growing, x: &Known) -> &'static str {
    let ways: &[&'static str] =
        if x.dtype() == DType::Bool { &["none"] } else { &["none", "add", "mul", "max", "min"] };
    growing.choose(ways)
}

fn scatter_elements(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=3).filled());
    let axis = growing.random.below(x.rank());
    let way = reduction(growing, &x);
    let mut shape = x.shape().to_vec();
    let size = shape[axis];
    let places = if way == "none" {
        // One line of different places for all, from the other end.
        let count: usize = shape.iter().product();
        let inner: usize = shape[axis + 1..].iter().product();
        let list = (0..count).map(|at| -1 - ((at / inner) % size) as i64).collect();
        let tensor = Tensor::from_vec(shape.clone(), list).ok()?;
        growing.constant_of(tensor)
    } else {
        shape[axis] = growing.size().min(5);
        indices(growing, &shape, size)?
    };
    let updates = growing.operand(x.dtype(), &shape);
    let attributes = vec![int("axis", axis), string("reduction", way)];
    let call = Call::of(operator, &[&x, &places, &updates]).with(attributes);
    growing.add(if matches!(way, "add" | "mul") { call } else { call.exact() }).map(drop)
}

fn scatter_nd(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=3).filled());
    let depth = 1 + growing.random.below(x.rank());
    let way = reduction(growing, &x);
    let rows = if way == "none" { 1 } else { 1 + growing.random.below(4) };
    let sizes = x.shape()[..depth].to_vec();
    let places = tuples(growing, &sizes, &[rows])?;
    let mut shape = vec![rows];
    shape.extend(&x.shape()[depth..]);
    let updates = growing.operand(x.dtype(), &shape);
    let call = Call::of(operator, &[&x, &places, &updates]).with(vec![string("reduction", way)]);
    growing.add(if matches!(way, "add" | "mul") { call } else { call.exact() }).map(drop)
}

fn tensor_scatter(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(3..=4).filled());
    let axis = x.rank() - 2;
    let mut shape = x.shape().to_vec();
    let room = shape[axis];
    shape[axis] = 1 + growing.random.below(room);
    let updates = growing.operand(x.dtype(), &shape);
    let starts: Vec<i64> = (0..shape[0]).map(|_| growing.random.below(room - shape[axis] + 1) as i64).collect();
    let starts = growing.ints(&starts);
    growing.add(Call::of(operator, &[&x, &updates, &starts]).exact()).map(drop)
}

fn top(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS).ranks(1..=4).exact().filled());
    let axis = growing.random.below(x.rank());
    let count = growing.random.below(x.shape()[axis] + 1);
    let count = growing.sizes(&[count]);
    let attributes = vec![int("axis", axis), int("largest", growing.random.below(2)), int("sorted", 1)];
    growing.add_all(Call::of(operator, &[&x, &count]).with(attributes).outputs(2).exact()).map(drop)
}

fn nonzero(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=3).exact());
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

fn compress(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=3).filled());
    let axis = growing.random.below(x.rank());
    let has_axis = growing.random.once_in(2);
    let length = if has_axis { x.shape()[axis] } else { x.tensor.len().min(9) };
    let condition = growing.operand(DType::Bool, &[length]);
    let attributes = if has_axis { vec![int("axis", axis)] } else { vec![] };
    growing.add(Call::of(operator, &[&x, &condition]).with(attributes).exact()).map(drop)
}

fn unique(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS).ranks(1..=3).exact().filled());
    let mut attributes = vec![int("sorted", 1)];
    if growing.random.once_in(2) {
        attributes.push(int("axis", growing.random.below(x.rank())));
    }
    growing.add_all(Call::of(operator, &[&x]).with(attributes).outputs(4).exact()).map(drop)
}

fn one_hot(growing: &mut Growing, operator: &str) -> Made {
    let depth = 1 + growing.random.below(7);
    let shape = growing.shape(1..=3);
    let places = indices(growing, &shape, depth)?;
    let size = growing.scalar(DType::I64, depth as f64);
    let dtype = growing.pick_type(&[DType::F32, DType::F32, DType::I64, DType::I32]);
    let values = growing.operand(dtype, &[2]);
    let axis = growing.random.below(shape.len() + 1);
    growing.add(Call::of(operator, &[&places, &size, &values]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn reverse_sequence(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(2..=4).filled());
    let time = growing.random.below(2);
    let (length, batch) = (x.shape()[time], x.shape()[1 - time]);
    let lengths: Vec<i64> = (0..batch).map(|_| 1 + growing.random.below(length) as i64).collect();
    let lengths = growing.ints(&lengths);
    let attributes = vec![int("time_axis", time), int("batch_axis", 1 - time)];
    growing.add(Call::of(operator, &[&x, &lengths]).with(attributes).exact()).map(drop)
}

fn suppress(growing: &mut Growing, operator: &str) -> Made {
    let (batch, classes, count) =
        (1 + growing.random.below(2), 1 + growing.random.below(3), 1 + growing.random.below(8));
    let boxes = growing.operand_within(DType::F32, &[batch, count, 4], 0.0, 4.0);
    // Scores that differ, so that the order of equal ones decides nothing.
    let mut scores: Vec<f32> = (0..batch * classes * count).map(|at| (at * 37 % 101) as f32 / 101.0).collect();
    scores.rotate_left(growing.random.below(batch * classes * count));
    let scores = Tensor::from_vec([batch, classes, count], scores).ok()?;
    let scores = growing.constant_of(scores);
    let most = 1 + growing.random.below(4);
    let most = growing.scalar(DType::I64, most as f64);
    let overlap = *growing.random.pick(&[0.0, 0.3, 0.7]);
    let overlap = growing.scalar(DType::F32, overlap);
    let least = growing.scalar(DType::F32, 0.25);
    let attributes = vec![int("center_point_box", growing.random.below(2))];
    growing.add(Call::of(operator, &[&boxes, &scores, &most, &overlap, &least]).with(attributes).exact()).map(drop)
}
