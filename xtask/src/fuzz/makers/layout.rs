//! Nodes that move elements without looking at them, and nodes that make tensors of sizes.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{ANY, Call, FLOATS, Growing, Known, NUMBERS, Wanted};
use crate::fuzz::messages::{float, int, ints, number_of, sizes, string, tensor};

pub const MAKERS: &[Maker] = &[
    on("CenterCropPad", 18, center),
    on("Concat", 13, concat),
    on("Constant", 13, constant),
    on("ConstantOfShape", 9, filled),
    on("DepthToSpace", 13, depth_to_space),
    on("Expand", 13, expand),
    on("EyeLike", 9, eye),
    on("Flatten", 13, flatten),
    on("Pad", 18, pad),
    on("Range", 11, range),
    on("Reshape", 14, reshape),
    on("Shape", 15, shape),
    on("Size", 13, size),
    on("Slice", 13, slice),
    on("SpaceToDepth", 13, space_to_depth),
    on("Split", 18, split),
    on("Squeeze", 13, squeeze),
    on("Tile", 13, tile),
    on("Transpose", 13, transpose),
    on("Trilu", 14, trilu),
    on("Unsqueeze", 13, unsqueeze),
];

fn transpose(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let mut perm: Vec<usize> = (0..x.rank()).collect();
    for at in (1..perm.len()).rev() {
        let other = growing.random.below(at + 1);
        perm.swap(at, other);
    }
    growing.add(Call::of(operator, &[&x]).with(vec![sizes("perm", &perm)]).exact()).map(drop)
}

fn reshape(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).filled());
    let (mut target, mut rest) = (Vec::new(), x.tensor.len());
    for _ in 0..growing.random.below(4) {
        let divisors: Vec<usize> = (1..=rest).filter(|&size| rest.is_multiple_of(size)).collect();
        let size = *growing.random.pick(&divisors);
        target.push(size as i64);
        rest /= size;
    }
    target.push(if growing.random.once_in(2) { -1 } else { rest as i64 });
    if growing.random.once_in(4) && target[0] == x.shape().first().map_or(-2, |&size| size as i64) {
        target[0] = 0;
    }
    let target = growing.ints(&target);
    growing.add(Call::of(operator, &[&x, &target]).exact()).map(drop)
}

fn flatten(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let axis = growing.random.below(x.rank() + 1);
    growing.add(Call::of(operator, &[&x]).with(vec![int("axis", axis)]).exact()).map(drop)
}

fn squeeze(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let ones: Vec<i64> = (0..x.rank()).filter(|&axis| x.shape()[axis] == 1).map(|axis| axis as i64).collect();
    let axes: Vec<i64> = ones.iter().copied().filter(|_| growing.random.once_in(2)).collect();
    let axes = if axes.is_empty() { Known::absent() } else { growing.ints(&axes) };
    growing.add(Call::of(operator, &[&x, &axes]).exact()).map(drop)
}

fn unsqueeze(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(0..=3));
    let axis = growing.random.below(x.rank() + 1) as i64;
    let axis = if growing.random.once_in(3) { axis - x.rank() as i64 - 1 } else { axis };
    let axes = growing.ints(&[axis]);
    growing.add(Call::of(operator, &[&x, &axes]).exact()).map(drop)
}

fn concat(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let axis = growing.random.below(x.rank());
    let mut inputs = vec![x.clone()];
    for _ in 0..1 + growing.random.below(3) {
        let mut other = x.shape().to_vec();
        other[axis] = growing.random.below(4);
        inputs.push(if growing.random.once_in(3) { x.clone() } else { growing.operand(x.dtype(), &other) });
    }
    let axis = axis as i64 - if growing.random.once_in(3) { x.rank() as i64 } else { 0 };
    let call = Call::of(operator, &inputs.iter().collect::<Vec<&Known>>());
    growing.add(call.with(vec![int("axis", axis)]).exact()).map(drop)
}

fn split(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4).filled());
    let axis = growing.random.below(x.rank());
    let size = x.shape()[axis];
    if growing.random.once_in(2) {
        let parts = 1 + growing.random.below(size.min(4));
        let attributes = vec![int("axis", axis), int("num_outputs", parts)];
        // Parts of equal size may not fill the axis otherwise.
        if size.div_ceil(parts) * (parts - 1) >= size {
            return None;
        }
        return growing.add_all(Call::of(operator, &[&x]).with(attributes).outputs(parts).exact()).map(drop);
    }
    let first = growing.random.below(size + 1);
    let lengths = growing.sizes(&[first, size - first]);
    growing.add_all(Call::of(operator, &[&x, &lengths]).with(vec![int("axis", axis)]).outputs(2).exact()).map(drop)
}

fn slice(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let axes: Vec<i64> = (0..x.rank() as i64).filter(|_| growing.random.once_in(2)).collect();
    let (mut starts, mut ends, mut steps) = (vec![], vec![], vec![]);
    for &axis in &axes {
        let size = x.shape()[axis as usize] as i64;
        let step = *growing.random.pick(&[1i64, 1, 1, 2, 3, -1, -2]);
        let place = |growing: &mut Growing| growing.random.below(3 * size as usize + 3) as i64 - size - 1;
        starts.push(place(growing));
        // An end beyond the side that a slice goes away from is a whole axis in onnxruntime, and nothing in NumPy.
        let beyond = if step > 0 { i64::MAX } else { i64::MIN };
        ends.push(*growing.random.pick(&[beyond, beyond, size, -1, size / 2]));
        steps.push(step);
    }
    let inputs = [&starts, &ends, &axes, &steps].map(|list| growing.ints(list));
    growing.add(Call::of(operator, &[&x, &inputs[0], &inputs[1], &inputs[2], &inputs[3]]).exact()).map(drop)
}

fn pad(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4).filled());
    let mode = *growing.random.pick(&["constant", "constant", "edge", "reflect", "wrap"]);
    let rank = x.rank();
    let mut pads = Vec::new();
    for side in 0..2 * rank {
        let size = x.shape()[side % rank];
        pads.push(match mode {
            "reflect" => growing.random.below(size.min(3)) as i64,
            "wrap" => growing.random.below(size.min(3) + 1) as i64,
            "constant" if size > 2 => growing.random.below(5) as i64 - 1,
            _ => growing.random.below(3) as i64,
        });
    }
    let pads = growing.ints(&pads);
    let value = match mode == "constant" && growing.random.once_in(2) {
        true => growing.operand(x.dtype(), &[]),
        false => Known::absent(),
    };
    growing.add(Call::of(operator, &[&x, &pads, &value]).with(vec![string("mode", mode)]).exact()).map(drop)
}

fn center(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let target: Vec<usize> = x.shape().to_vec().iter().map(|_| growing.size().min(9)).collect();
    let target = growing.sizes(&target);
    growing.add(Call::of(operator, &[&x, &target]).exact()).map(drop)
}

fn tile(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(1..=4));
    let times: Vec<i64> = (0..x.rank()).map(|_| *growing.random.pick(&[1, 1, 2, 3, 0])).collect();
    let times = growing.ints(&times);
    growing.add(Call::of(operator, &[&x, &times]).exact()).map(drop)
}

fn expand(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let mut target = growing.shape(0..=1);
    if x.rank() + target.len() > 4 {
        target.clear();
    }
    for &size in x.shape() {
        target.push(if size == 1 { growing.size() } else { *growing.random.pick(&[1, size]) });
    }
    let target = growing.sizes(&target);
    growing.add(Call::of(operator, &[&x, &target]).exact()).map(drop)
}

fn block(growing: &mut Growing, operator: &str, shape: [usize; 4], block: usize, attributes: &[&str]) -> Made {
    let dtype = growing.pick_type(FLOATS);
    let x = growing.operand(dtype, &shape);
    let mut list = vec![int("blocksize", block)];
    if let Some(mode) = attributes.first() {
        list.push(string("mode", mode));
    }
    growing.add(Call::of(operator, &[&x]).with(list).exact()).map(drop)
}

fn depth_to_space(growing: &mut Growing, operator: &str) -> Made {
    let [batch, channels, height, width] = [0; 4].map(|_| 1 + growing.random.below(3));
    let size = 1 + growing.random.below(3);
    let mode = *growing.random.pick(&["DCR", "CRD"]);
    block(growing, operator, [batch, channels * size * size, height, width], size, &[mode])
}

fn space_to_depth(growing: &mut Growing, operator: &str) -> Made {
    let [batch, channels, height, width] = [0; 4].map(|_| 1 + growing.random.below(3));
    let size = 1 + growing.random.below(3);
    block(growing, operator, [batch, channels, height * size, width * size], size, &[])
}

fn trilu(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).ranks(2..=4));
    let diagonal = growing.random.below(7) as f64 - 3.0;
    let diagonal = if growing.random.once_in(3) { Known::absent() } else { growing.scalar(DType::I64, diagonal) };
    let attributes = vec![int("upper", growing.random.below(2))];
    growing.add(Call::of(operator, &[&x, &diagonal]).with(attributes).exact()).map(drop)
}

fn shape(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let attributes = match growing.random.below(3) {
        0 => vec![int("start", -1)],
        1 => vec![int("start", 0), int("end", 2)],
        _ => vec![],
    };
    growing.add(Call::of(operator, &[&x]).with(attributes).exact()).map(drop)
}

fn size(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

fn constant(growing: &mut Growing, operator: &str) -> Made {
    let shape = growing.shape(0..=2);
    let dtype = growing.pick_type(NUMBERS);
    let value = growing.numbers(dtype, &shape, 0.0, 2.0);
    let attribute = match growing.random.below(4) {
        0 => float("value_float", 0.75),
        1 => int("value_int", 3),
        2 => ints("value_ints", &[1, 2, 3]),
        _ => tensor("value", &value),
    };
    growing.add(Call::of(operator, &[]).with(vec![attribute]).exact()).map(drop)
}

fn filled(growing: &mut Growing, operator: &str) -> Made {
    let target = growing.shape(0..=3);
    let target = growing.sizes(&target);
    let dtype =
        growing.pick_type(&[DType::F32, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool]);
    let value = growing.numbers(dtype, &[1], 0.0, 2.0);
    growing.add(Call::of(operator, &[&target]).with(vec![tensor("value", &value)]).exact()).map(drop)
}

fn range(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::I64, DType::I32, DType::F32]);
    let (start, limit) = (growing.random.below(9) as f64 - 4.0, growing.random.below(17) as f64 - 8.0);
    let step = *growing.random.pick(&[1.0, 2.0, 3.0, -1.0, -2.0]);
    let inputs = [start, limit, step].map(|value| growing.scalar(dtype, value));
    growing.add(Call::of(operator, &[&inputs[0], &inputs[1], &inputs[2]]).exact()).map(drop)
}

fn eye(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64, DType::I64, DType::I32]).ranks(2..=2));
    let mut attributes = vec![int("k", growing.random.below(5) as i64 - 2)];
    if growing.random.once_in(2) {
        attributes.push(int("dtype", number_of(growing.pick_type(&[DType::F32, DType::I64, DType::F64]))));
    }
    growing.add(Call::of(operator, &[&x]).with(attributes).exact()).map(drop)
}
