//! Convolutions.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, FLOATS, Growing, Known, Wanted};
use crate::fuzz::messages::{int, sizes, string};
use precast_onnx::proto::AttributeProto;

pub const MAKERS: &[Maker] = &[
    on("CausalConvWithState", 27, causal),
    on("Conv", 11, convolve),
    on("ConvInteger", 10, convolve_integers),
    on("ConvTranspose", 11, transposed),
    on("DeformConv", 19, deformed),
];

/// A window that slides along spatial axes.
pub struct Sliding {
    pub window: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub pads: Vec<usize>,
}

impl Sliding {
    /// One that fits at least once into every axis.
    pub fn over(growing: &mut Growing, spatial: &[usize], is_dilated: bool) -> Option<Sliding> {
        let rank = spatial.len();
        let mut sliding = Sliding { window: vec![], stride: vec![], dilation: vec![], pads: vec![0; 2 * rank] };
        for (axis, &size) in spatial.iter().enumerate() {
            let (window, stride) = (1 + growing.random.below(4), 1 + growing.random.below(3));
            let dilation = if is_dilated { 1 + growing.random.below(2) } else { 1 };
            let extent = (window - 1) * dilation + 1;
            for side in [axis, rank + axis] {
                sliding.pads[side] = growing.random.below(window.min(3));
            }
            (size + sliding.pads[axis] + sliding.pads[rank + axis]).checked_sub(extent)?;
            sliding.window.push(window);
            sliding.stride.push(stride);
            sliding.dilation.push(dilation);
        }
        Some(sliding)
    }

    /// Strides, dilations and pads as attributes.
    pub fn attributes(&self) -> Vec<AttributeProto> {
        vec![sizes("strides", &self.stride), sizes("dilations", &self.dilation), sizes("pads", &self.pads)]
    }

    /// Attributes in which pads follow from the sizes, at times.
    fn attributes_of(&self, growing: &mut Growing) -> Vec<AttributeProto> {
        if growing.random.once_in(4) && self.dilation.iter().all(|&dilation| dilation == 1) {
            let way = *growing.random.pick(&["SAME_UPPER", "SAME_LOWER", "VALID"]);
            return vec![sizes("strides", &self.stride), string("auto_pad", way)];
        }
        self.attributes()
    }
}

/// A divisor of the channels.
fn groups_of(growing: &mut Growing, channels: usize) -> usize {
    let divisors: Vec<usize> = (1..=channels).filter(|&groups| channels.is_multiple_of(groups)).collect();
    *growing.random.pick(&divisors)
}

fn image(growing: &mut Growing, dtypes: &[DType]) -> Known {
    growing.pick(&Wanted::of(dtypes).ranks(3..=5).filled())
}

fn convolve(growing: &mut Growing, operator: &str) -> Made {
    let x = image(growing, FLOATS);
    let channels = x.shape()[1];
    let spatial = x.shape()[2..].to_vec();
    let sliding = Sliding::over(growing, &spatial, true)?;
    let groups = groups_of(growing, channels);
    let outputs = groups * (1 + growing.random.below(4));
    let mut filter = vec![outputs, channels / groups];
    filter.extend(&sliding.window);
    let filter = growing.operand(x.dtype(), &filter);
    let mut inputs = vec![x.clone(), filter];
    if growing.random.once_in(2) {
        inputs.push(growing.operand(x.dtype(), &[outputs]));
    }
    let mut attributes = sliding.attributes_of(growing);
    attributes.push(int("group", groups));
    growing.add(Call::of(operator, &inputs.iter().collect::<Vec<&Known>>()).with(attributes)).map(drop)
}

fn convolve_integers(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::U8, DType::I8]).ranks(3..=4).filled());
    let channels = x.shape()[1];
    let spatial = x.shape()[2..].to_vec();
    let sliding = Sliding::over(growing, &spatial, true)?;
    let groups = groups_of(growing, channels);
    let outputs = groups * (1 + growing.random.below(3));
    let mut filter = vec![outputs, channels / groups];
    filter.extend(&sliding.window);
    let dtype = growing.pick_type(&[DType::U8, DType::I8]);
    let filter = growing.operand(dtype, &filter);
    let zeros = match growing.random.below(3) {
        0 => [Known::absent(), Known::absent()],
        1 => [growing.operand(x.dtype(), &[]), Known::absent()],
        _ => [growing.operand(x.dtype(), &[]), growing.operand(dtype, &[])],
    };
    let mut attributes = sliding.attributes();
    attributes.push(int("group", groups));
    growing.add(Call::of(operator, &[&x, &filter, &zeros[0], &zeros[1]]).with(attributes).exact()).map(drop)
}

fn transposed(growing: &mut Growing, operator: &str) -> Made {
    let x = image(growing, FLOATS);
    let channels = x.shape()[1];
    let groups = groups_of(growing, channels);
    let outputs = 1 + growing.random.below(4);
    let spatial = x.rank() - 2;
    let (mut window, mut stride, mut dilation, mut output_padding) = (vec![], vec![], vec![], vec![]);
    for _ in 0..spatial {
        window.push(1 + growing.random.below(3));
        stride.push(1 + growing.random.below(3));
        dilation.push(1 + growing.random.below(2));
        output_padding.push(growing.random.below(*stride.last()?));
    }
    let pads: Vec<usize> = (0..2 * spatial).map(|side| growing.random.below(window[side % spatial])).collect();
    let mut filter = vec![channels, outputs];
    filter.extend(&window);
    let filter = growing.operand(x.dtype(), &filter);
    let mut inputs = vec![x.clone(), filter];
    if growing.random.once_in(2) {
        inputs.push(growing.operand(x.dtype(), &[outputs * groups]));
    }
    let attributes = vec![
        sizes("strides", &stride),
        sizes("dilations", &dilation),
        sizes("pads", &pads),
        sizes("output_padding", &output_padding),
        int("group", groups),
    ];
    growing.add(Call::of(operator, &inputs.iter().collect::<Vec<&Known>>()).with(attributes)).map(drop)
}

fn deformed(growing: &mut Growing, operator: &str) -> Made {
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let [batch, channels, height, width] = [0; 4].map(|_| 1 + growing.random.below(5));
    let x = growing.operand(dtype, &[batch, channels, height, width]);
    let sliding = Sliding::over(growing, &[height, width], true)?;
    let outputs = 1 + growing.random.below(3);
    let filter = growing.operand(dtype, &[outputs, channels, sliding.window[0], sliding.window[1]]);
    let places: Vec<usize> = [height, width]
        .iter()
        .enumerate()
        .map(|(axis, size)| {
            let extent = (sliding.window[axis] - 1) * sliding.dilation[axis] + 1;
            (size + sliding.pads[axis] + sliding.pads[axis + 2] - extent) / sliding.stride[axis] + 1
        })
        .collect();
    let taps = sliding.window[0] * sliding.window[1];
    // Offsets at multiples of 1/8 lie on no edge of a cell by accident more often than on purpose.
    let offset = growing.operand(dtype, &[batch, 2 * taps, places[0], places[1]]);
    let mut inputs = vec![x, filter, offset];
    if growing.random.once_in(2) {
        inputs.push(growing.operand(dtype, &[outputs]));
        if growing.random.once_in(2) {
            inputs.push(growing.operand(dtype, &[batch, taps, places[0], places[1]]));
        }
    }
    let call = Call::of(operator, &inputs.iter().collect::<Vec<&Known>>());
    growing.add(call.with(sliding.attributes())).map(drop)
}

fn causal(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(3..=3).filled());
    let (batch, channels, taps) = (x.shape()[0], x.shape()[1], 1 + growing.random.below(4));
    let filter = growing.operand(x.dtype(), &[channels, 1, taps]);
    let bias = if growing.random.once_in(2) { growing.operand(x.dtype(), &[channels]) } else { Known::absent() };
    let state = match growing.random.once_in(2) {
        true => growing.operand(x.dtype(), &[batch, channels, taps - 1]),
        false => Known::absent(),
    };
    let activation = *growing.random.pick(&["none", "silu"]);
    let call = Call::of(operator, &[&x, &filter, &bias, &state]).with(vec![string("activation", activation)]);
    growing.add_all(call.outputs(2)).map(drop)
}
