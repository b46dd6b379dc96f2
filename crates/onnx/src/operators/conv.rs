//! Convolutions: Conv, ConvTranspose, ConvInteger and the fused forms of com.microsoft.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Conv, ConvInt, ConvTranspose};
use precast_tensor::Dim;

use super::activation::fused_activation;
use super::channels::{channels_first, channels_last};
use super::matmul::zero_point;
use super::sliding::{AutoPad, Sliding};
use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "Conv", since: 1, tier: 1, function: conv },
    Import { domain: "", name: "ConvInteger", since: 10, tier: 1, function: conv_integer },
    Import { domain: "", name: "ConvTranspose", since: 1, tier: 1, function: conv_transpose },
    Import { domain: "com.microsoft", name: "ConvTransposeWithDynamicPads", since: 1, tier: 2, function: conv_transpose_with_pads },
    Import { domain: "com.microsoft", name: "FusedConv", since: 1, tier: 1, function: fused_conv },
    Import { domain: "com.microsoft", name: "NhwcConv", since: 1, tier: 1, function: nhwc_conv },
    Import { domain: "com.microsoft", name: "NhwcFusedConv", since: 1, tier: 1, function: nhwc_fused_conv },
];

type Outputs = Result<Vec<ValueId>, Fault>;

fn conv(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![add_conv(cx, x)?])
}

/// Conv of x [N, spatial.., C]; the filter lies as ever.
fn nhwc_conv(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let x = channels_first(cx, x)?;
    let y = add_conv(cx, x)?;
    Ok(vec![channels_last(cx, y)?])
}

/// Conv, then a fourth input added, then an activation.
fn fused_conv(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let activation = cx.string("activation", "")?;
    let parameters = cx.attributes().floats("activation_params")?.unwrap_or_default();
    let x = cx.input(0)?;
    let mut y = add_conv(cx, x)?;
    if let Some(addend) = cx.optional(3) {
        y = cx.binary(BinaryFn::Add, y, addend)?;
    }
    Ok(vec![fused_activation(cx, &activation, &parameters, y)?])
}

/// FusedConv with the channels of x, of the fourth input and of the result last.
fn nhwc_fused_conv(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let activation = cx.string("activation", "")?;
    let parameters = cx.attributes().floats("activation_params")?.unwrap_or_default();
    let x = cx.input(0)?;
    let x = channels_first(cx, x)?;
    let y = add_conv(cx, x)?;
    let mut y = channels_last(cx, y)?;
    if let Some(addend) = cx.optional(3) {
        y = cx.binary(BinaryFn::Add, y, addend)?;
    }
    Ok(vec![fused_activation(cx, &activation, &parameters, y)?])
}

fn add_conv(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
    let filter = cx.input(1)?;
    let (sliding, groups) = read_filter(cx, x, filter)?;
    let Sliding { stride, pad_lo, pad_hi, dilation, .. } = sliding;
    let inputs: Vec<ValueId> = [Some(x), Some(filter), cx.optional(2)].into_iter().flatten().collect();
    cx.add(Conv { stride, pad_lo, pad_hi, dilation, groups }, &inputs)
}

fn conv_integer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, filter) = (cx.input(0)?, cx.input(1)?);
    let (sliding, groups) = read_filter(cx, x, filter)?;
    let x_zero = zero_point(cx, 2, x)?;
    let filter_zero = zero_point(cx, 3, filter)?;
    let Sliding { stride, pad_lo, pad_hi, dilation, .. } = sliding;
    let op = ConvInt { stride, pad_lo, pad_hi, dilation, groups };
    Ok(vec![cx.add(op, &[x, filter, x_zero, filter_zero])?])
}

fn conv_transpose(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_conv_transpose(cx, None, 2)
}

/// Inputs x, filter, pads and bias.
fn conv_transpose_with_pads(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let pads = match cx.optional(2) {
        Some(pads) => Some(cx.require_dims(pads, "the pads")?),
        None => None,
    };
    add_conv_transpose(cx, pads, 3)
}

/// A transposed convolution with pads that are given or attributes, and the bias at a position.
fn add_conv_transpose(cx: &mut NodeCx<'_, '_>, pads: Option<Vec<Dim>>, bias: usize) -> Outputs {
    let (x, filter) = (cx.input(0)?, cx.input(1)?);
    let spatial = spatial_dims(cx, x, filter)?;
    let rank = spatial.len();
    let auto_pad = AutoPad::read(cx)?;
    let window = window_of(cx, filter)?;
    let mut sliding = Sliding::read_explicit(cx, rank, window)?;
    if let Some(pads) = pads {
        if pads.len() != 2 * rank {
            return Err(Fault::Invalid(format!("{} pads; {} were expected", pads.len(), 2 * rank)));
        }
        (sliding.pad_lo, sliding.pad_hi) = (pads[..rank].to_vec(), pads[rank..].to_vec());
    }
    let groups = read_groups(cx)?;
    let output_pad = cx.sizes("output_padding")?.filter(|list| !list.is_empty()).unwrap_or_else(|| vec![0; rank]);
    let output_shape = cx.ints("output_shape")?.filter(|list| !list.is_empty());
    if output_pad.len() != rank {
        return Err(Fault::Invalid(format!(
            "attribute 'output_padding' has {} entries; {rank} were expected",
            output_pad.len()
        )));
    }
    let wanted: Option<Vec<Dim>> = match output_shape {
        // Some exporters give batch and channels too.
        Some(shape) if shape.len() == rank || shape.len() == rank + 2 => {
            Some(shape[shape.len() - rank..].iter().map(|&size| Dim::from(size)).collect())
        }
        Some(shape) => {
            return Err(Fault::Invalid(format!(
                "attribute 'output_shape' has {} entries; {rank} were expected",
                shape.len()
            )));
        }
        None if matches!(auto_pad, AutoPad::SameUpper | AutoPad::SameLower) => {
            Some(spatial.iter().zip(&sliding.stride).map(|(size, &stride)| size * Dim::from(stride)).collect())
        }
        None => None,
    };
    if let Some(wanted) = wanted {
        for axis in 0..rank {
            let natural = (&spatial[axis] - 1) * Dim::from(sliding.stride[axis])
                + sliding.extent(axis)
                + Dim::from(output_pad[axis]);
            let total = natural - &wanted[axis];
            // An output larger than the natural one has its extra elements at the end.
            let half = Dim::max(&total, &Dim::ZERO).floor_div(&Dim::from(2));
            let lo = if auto_pad == AutoPad::SameUpper { half } else { Dim::max(&total, &Dim::ZERO) - half };
            sliding.pad_hi[axis] = total - &lo;
            sliding.pad_lo[axis] = lo;
        }
    } else if auto_pad == AutoPad::Valid {
        sliding.pad_lo = vec![Dim::ZERO; rank];
        sliding.pad_hi = vec![Dim::ZERO; rank];
    }
    let Sliding { stride, pad_lo, pad_hi, dilation, .. } = sliding;
    let inputs: Vec<ValueId> = [Some(x), Some(filter), cx.optional(bias)].into_iter().flatten().collect();
    Ok(vec![cx.add(ConvTranspose { stride, pad_lo, pad_hi, output_pad, dilation, groups }, &inputs)?])
}

/// How a convolution's filter slides over x, and into how many groups the channels fall.
pub(super) fn read_filter(cx: &NodeCx<'_, '_>, x: ValueId, filter: ValueId) -> Result<(Sliding, usize), Fault> {
    let spatial = spatial_dims(cx, x, filter)?;
    let window = window_of(cx, filter)?;
    Ok((Sliding::read(cx, &spatial, window)?, read_groups(cx)?))
}

fn spatial_dims(cx: &NodeCx<'_, '_>, x: ValueId, filter: ValueId) -> Result<Vec<Dim>, Fault> {
    let (dims, filter_rank) = (cx.dims(x), cx.rank(filter));
    if dims.len() < 3 || filter_rank != dims.len() {
        return Err(Fault::Invalid(format!(
            "the input has rank {} and the filter rank {filter_rank}; equal ranks of 3 or more were expected",
            dims.len()
        )));
    }
    Ok(dims[2..].to_vec())
}

/// Spatial sizes of a filter; `kernel_shape` repeats them where it is given.
fn window_of(cx: &NodeCx<'_, '_>, filter: ValueId) -> Result<Vec<usize>, Fault> {
    let window: Vec<usize> =
        cx.dims(filter)[2..].iter().map(|dim| cx.number(dim, "the filter's size")).collect::<Result<_, _>>()?;
    match cx.sizes("kernel_shape")? {
        Some(given) if !given.is_empty() && given != window => {
            Err(Fault::Invalid(format!("attribute 'kernel_shape' is {given:?}, but the filter has {window:?}")))
        }
        _ => Ok(window),
    }
}

fn read_groups(cx: &NodeCx<'_, '_>) -> Result<usize, Fault> {
    let groups = cx.int("group", 1)?;
    usize::try_from(groups)
        .ok()
        .filter(|&groups| groups > 0)
        .ok_or_else(|| Fault::Invalid(format!("attribute 'group' is {groups}; 1 or more was expected")))
}
