//! Pooling, resizing and sampling.

use precast::{DType, Tensor};

use super::conv::Sliding;
use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, FLOATS, Growing, Known, Wanted};
use crate::fuzz::messages::{float, int, sizes, string};

pub const MAKERS: &[Maker] = &[
    on("AffineGrid", 20, affine_grid),
    on("AveragePool", 19, pool),
    on("Col2Im", 18, columns),
    on("GlobalAveragePool", 1, global),
    on("GlobalLpPool", 2, global),
    on("GlobalMaxPool", 1, global),
    on("GridSample", 20, grid_sample),
    on("LpPool", 18, pool),
    on("MaxPool", 12, pool),
    on("MaxRoiPool", 1, roi_pool),
    on("MaxUnpool", 11, unpool),
    on("Resize", 18, resize),
    on("RoiAlign", 16, roi_align),
];

fn pool(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(3..=5).filled());
    let spatial = x.shape()[2..].to_vec();
    let is_dilated = operator != "LpPool";
    let sliding = Sliding::over(growing, &spatial, is_dilated)?;
    let mut attributes = vec![sizes("kernel_shape", &sliding.window)];
    attributes.extend(sliding.attributes());
    attributes.push(int("ceil_mode", growing.random.below(2)));
    match operator {
        "AveragePool" => attributes.push(int("count_include_pad", growing.random.below(2))),
        "LpPool" => attributes.push(int("p", 1 + growing.random.below(3))),
        _ => {}
    }
    if operator != "MaxPool" {
        return growing.add(Call::of(operator, &[&x]).with(attributes)).map(drop);
    }
    // Which of two neighbours is larger must not hang on a last bit where their places are asked for.
    let outputs = if x.is_exact() { 1 + growing.random.below(2) } else { 1 };
    growing.add_all(Call::of(operator, &[&x]).with(attributes).outputs(outputs).exact()).map(drop)
}

fn global(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(3..=5).filled());
    let call = Call::of(operator, &[&x]);
    growing.add(if operator == "GlobalMaxPool" { call.exact() } else { call }).map(drop)
}

fn unpool(growing: &mut Growing, operator: &str) -> Made {
    let [batch, channels] = [0; 2].map(|_| 1 + growing.random.below(3));
    let [height, width] = [0; 2].map(|_| 2 * (1 + growing.random.below(4)));
    let x = growing.operand(DType::F32, &[batch, channels, height, width]);
    let attributes = vec![sizes("kernel_shape", &[2, 2]), sizes("strides", &[2, 2])];
    let pooled = growing.add_all(Call::of("MaxPool", &[&x]).with(attributes.clone()).outputs(2).exact())?;
    growing.add(Call::of(operator, &[&pooled[0], &pooled[1]]).with(attributes).exact()).map(drop)
}

fn columns(growing: &mut Growing, operator: &str) -> Made {
    let [batch, channels, height, width] = [0; 4].map(|_| 1 + growing.random.below(5));
    let sliding = Sliding::over(growing, &[height, width], true)?;
    let places: usize = [height, width]
        .iter()
        .enumerate()
        .map(|(axis, size)| {
            let extent = (sliding.window[axis] - 1) * sliding.dilation[axis] + 1;
            (size + sliding.pads[axis] + sliding.pads[axis + 2] - extent) / sliding.stride[axis] + 1
        })
        .product();
    let taps: usize = sliding.window.iter().product();
    let x = growing.operand(DType::F32, &[batch, channels * taps, places]);
    let (image, block) = (growing.sizes(&[height, width]), growing.sizes(&sliding.window));
    growing.add(Call::of(operator, &[&x, &image, &block]).with(sliding.attributes())).map(drop)
}

fn resize(growing: &mut Growing, operator: &str) -> Made {
    let mode = *growing.random.pick(&["nearest", "linear", "cubic"]);
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F32, DType::F16, DType::F64]).ranks(4..=4).filled());
    let coordinates = *growing.random.pick(&[
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
    ]);
    let mut attributes = vec![string("mode", mode), string("coordinate_transformation_mode", coordinates)];
    match mode {
        "nearest" => {
            let rounding = *growing.random.pick(&["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]);
            attributes.push(string("nearest_mode", rounding));
        }
        _ if growing.random.once_in(4) => attributes.push(int("antialias", 1)),
        "cubic" => {
            attributes.push(float("cubic_coeff_a", *growing.random.pick(&[-0.75, -0.5])));
            attributes.push(int("exclude_outside", growing.random.below(2)));
        }
        _ => {}
    }
    let absent = Known::absent();
    // Powers of two as factors are exact in every width of floats.
    if growing.random.once_in(2) {
        let factors: Vec<f32> =
            [1.0, 1.0].into_iter().chain([0; 2].map(|_| *growing.random.pick(&[0.5, 1.0, 2.0]))).collect();
        let is_cut = x.shape().iter().zip(&factors).any(|(&size, &factor)| (size as f32 * factor).fract() != 0.0);
        let scales = growing.constant_of(Tensor::from_vec([4], factors).ok()?);
        growing.add(Call::of(operator, &[&x, &absent, &scales]).with(attributes))?;
        if is_cut && coordinates == "align_corners" {
            growing.unjudged = Some("the corners that onnxruntime aligns are those of the size that was rounded down");
        }
        return Some(());
    }
    let mut target = x.shape()[..2].to_vec();
    target.extend([0; 2].map(|_| 1 + growing.random.below(9)));
    let target = growing.sizes(&target);
    growing.add(Call::of(operator, &[&x, &absent, &absent, &target]).with(attributes)).map(drop)
}

fn grid_sample(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).ranks(4..=4).filled());
    let [height, width] = [0; 2].map(|_| 1 + growing.random.below(5));
    let mode = *growing.random.pick(&["linear", "nearest", "cubic"]);
    let padding = *growing.random.pick(&["zeros", "border", "reflection"]);
    let batch = x.shape()[0];
    let grid = growing.operand_within(x.dtype(), &[batch, height, width, 2], -1.25, 1.25);
    let aligned = growing.random.below(2);
    let attributes = vec![string("mode", mode), string("padding_mode", padding), int("align_corners", aligned)];
    growing.add(Call::of(operator, &[&x, &grid]).with(attributes)).map(drop)
}

fn affine_grid(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let [batch, channels, height, width] = [0; 4].map(|_| 1 + growing.random.below(4));
    let theta = growing.operand(dtype, &[batch, 2, 3]);
    let target = growing.sizes(&[batch, channels, height, width]);
    let attributes = vec![int("align_corners", growing.random.below(2))];
    growing.add(Call::of(operator, &[&theta, &target]).with(attributes)).map(drop)
}

fn roi_align(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).ranks(4..=4).filled());
    let count = 1 + growing.random.below(3);
    let corners: Vec<f64> = (0..count)
        .flat_map(|_| {
            let [x1, y1, width, height] = [0; 4].map(|_| growing.random.below(24) as f64 / 8.0);
            [x1, y1, x1 + width + 0.5, y1 + height + 0.5]
        })
        .collect();
    let rois = growing.constant_of(Tensor::from_f64(x.dtype(), [count, 4], &corners, true).ok()?);
    let batches = x.shape()[0];
    let rows: Vec<i64> = (0..count).map(|_| growing.random.below(batches) as i64).collect();
    let rows = growing.ints(&rows);
    let attributes = vec![
        int("output_height", 1 + growing.random.below(4)),
        int("output_width", 1 + growing.random.below(4)),
        int("sampling_ratio", growing.random.below(3)),
        float("spatial_scale", *growing.random.pick(&[1.0, 0.5])),
        string("mode", growing.choose(&["avg", "max"])),
        string("coordinate_transformation_mode", growing.choose(&["half_pixel", "output_half_pixel"])),
    ];
    growing.add(Call::of(operator, &[&x, &rois, &rows]).with(attributes)).map(drop)
}

fn roi_pool(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(4..=4).filled());
    let count = 1 + growing.random.below(3);
    let batches = x.shape()[0];
    let corners: Vec<f64> = (0..count)
        .flat_map(|_| {
            let row = growing.random.below(batches) as f64;
            let [x1, y1, width, height] = [0; 4].map(|_| growing.random.below(6) as f64);
            [row, x1, y1, x1 + width, y1 + height]
        })
        .collect();
    let rois = growing.constant_of(Tensor::from_f64(DType::F32, [count, 5], &corners, true).ok()?);
    let shape = [0; 2].map(|_| 1 + growing.random.below(3));
    let attributes = vec![sizes("pooled_shape", &shape), float("spatial_scale", *growing.random.pick(&[1.0, 0.5]))];
    growing.add(Call::of(operator, &[&x, &rois]).with(attributes).exact()).map(drop)
}
