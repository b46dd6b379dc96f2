//! Convolutions: 1-D and 2-D in f32 with packed filters; the rest by reference.

use precast_ir::op::{Conv, ConvInt, ConvTranspose};
use precast_kernels::conv::{self, ConvShape};
use precast_kernels::conv_int::{self, ConvIntAxis, ConvIntShape};
use precast_kernels::conv_transpose::{self, ConvTransposeShape};
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm_int::ZeroPoints;
use precast_tensor::{DType, Dim, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::ops::quantize::{zero_point, zero_points};
use crate::step::{Lowered, Machine, Read, StepNode};

/// Height and width of a list of spatial numbers; a 1-D list has height `one`.
fn plane(list: &[usize], one: usize) -> Option<[usize; 2]> {
    match *list {
        [width] => Some([one, width]),
        [height, width] => Some([height, width]),
        _ => None,
    }
}

fn numbers(dims: &[Dim]) -> Option<Vec<usize>> {
    dims.iter().map(Dim::as_usize).collect()
}

/// The convolution as a plane, if it is 1-D or 2-D in f32 with a constant filter.
fn conv_shape(step: &StepNode, op: &Conv) -> Option<ConvShape> {
    let (x, filter, y) = (step.shape(0), step.shape(1), step.output_shape(0));
    let (dtype_x, dtype_filter) = (step.dtype(0), step.dtype(1));
    if dtype_x != DType::F32 || dtype_filter != DType::F32 || !step.is_constant(1) {
        return None;
    }
    let [in_height, in_width] = plane(&x[2..], 1)?;
    let [out_height, out_width] = plane(&y[2..], 1)?;
    let [filter_height, filter_width] = plane(&filter[2..], 1)?;
    let [pad_top, pad_left] = plane(&numbers(&op.pad_lo)?, 0)?;
    // Padding at the end shows in the size of the result; a negative one would crop, which the kernel does not do.
    numbers(&op.pad_hi)?;
    Some(ConvShape {
        batch: x[0],
        in_channels: x[1],
        in_height,
        in_width,
        out_channels: filter[0],
        out_height,
        out_width,
        filter_height,
        filter_width,
        stride: plane(&op.stride, 1)?,
        pad_top,
        pad_left,
        dilation: plane(&op.dilation, 1)?,
        groups: op.groups,
    })
}

/// A convolution with its epilogue. The step's inputs are x, filter, then the bias if there is one.
pub fn lower_conv(
    step: &StepNode,
    op: &Conv,
    epilogue: &Epilogue,
    machine: Machine,
) -> Result<Option<Lowered>, String> {
    let Some(shape) = conv_shape(step, op) else { return Ok(None) };
    let packed = match step.constant(1) {
        None => None,
        Some(filter) => {
            let filter = filter.to_vec::<f32>().map_err(|error| error.to_string())?;
            let packed = conv::pack_filter(machine.isa, &shape, &filter);
            Some(Tensor::from_vec([packed.len()], packed).map_err(|error| error.to_string())?)
        }
    };
    let mut reads = vec![Read::Input(0), Read::Packed(packed)];
    let own_bias = (2..step.input_count()).find(|&input| Some(input) != epilogue.residual);
    let mut push = |input: Option<usize>| {
        input.map(|input| {
            reads.push(Read::Input(input));
            reads.len() - 1
        })
    };
    let (bias, residual) = (push(own_bias), push(epilogue.residual));
    let scratch = conv::conv_scratch_len(machine.isa, machine.threads, &shape) * size_of::<f32>();
    let activation = epilogue.activation;
    Ok(Some(Lowered {
        kernel: format!("{}{}", conv_name(&shape), epilogue.suffix()),
        reads,
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let (x, filter) = (args.read::<f32>(0), args.read::<f32>(1));
            let bias = bias.map_or(Bias::None, |read| Bias::Rows(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let y = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            conv::conv(exec, &shape, x, filter, &epilogue::Epilogue { bias, residual, activation }, scratch, y);
            Ok(())
        }),
    }))
}

fn conv_name(shape: &ConvShape) -> &'static str {
    if shape.groups > 1 && shape.in_channels == shape.groups {
        "conv.depthwise"
    } else if shape.filter_height == 1 && shape.filter_width == 1 {
        "conv.1x1"
    } else {
        "conv"
    }
}

/// An 8-bit convolution, 1-D or 2-D with a constant filter.
pub fn lower_conv_int(step: &StepNode, op: &ConvInt, _machine: Machine) -> Result<Option<Lowered>, String> {
    let elements = |input: usize| step.shape(input).iter().product::<usize>();
    let Some(shape) = conv_int_shape(step, op) else { return Ok(None) };
    if !step.is_constant(1) || elements(2) != 1 || (elements(3) != 1 && !step.is_constant(3)) {
        return Ok(None);
    }
    let (is_x_signed, is_w_signed) = (step.dtype(0) == DType::I8, step.dtype(1) == DType::I8);
    let packed = match step.constant(1) {
        None => None,
        Some(filter) => {
            let packed = conv_int::pack_conv_int(&shape, filter.as_bytes(), is_w_signed);
            Some(Tensor::from_vec([packed.len()], packed).map_err(|error| error.to_string())?)
        }
    };
    let has_channel_zeros = elements(3) != 1;
    let zeros = match (has_channel_zeros, step.constant(3)) {
        (false, _) => Read::Input(3),
        (true, None) => Read::Packed(None),
        (true, Some(zeros)) => Read::Packed(Some(zero_points(zeros)?)),
    };
    let scratch = conv_int::conv_int_scratch_len(&shape, is_x_signed);
    Ok(Some(Lowered {
        kernel: "conv_int".to_string(),
        reads: vec![Read::Input(0), Read::Packed(packed), Read::Input(2), zeros],
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let w_zero = if has_channel_zeros {
                ZeroPoints::Each(args.read::<i32>(3))
            } else {
                ZeroPoints::Scalar(zero_point(args.read::<u8>(3), is_w_signed))
            };
            let x_zero = zero_point(args.read::<u8>(2), is_x_signed);
            let (x, packed_w) = (args.read::<u8>(0), args.read::<u8>(1));
            let y = args.write::<i32>(0);
            let scratch: &mut [u8] = if scratch > 0 { args.write(1) } else { &mut [] };
            let conv = conv_int::ConvInt { shape, x, is_x_signed, x_zero, packed_w, is_w_signed, w_zero };
            conv_int::conv_int(&exec, &conv, y, scratch);
            Ok(())
        }),
    }))
}

fn conv_int_shape(step: &StepNode, op: &ConvInt) -> Option<ConvIntShape> {
    let (x, filter, y) = (step.shape(0), step.shape(1), step.output_shape(0));
    let [in_height, in_width] = plane(&x[2..], 1)?;
    let [out_height, out_width] = plane(&y[2..], 1)?;
    let [filter_height, filter_width] = plane(&filter[2..], 1)?;
    let [stride_y, stride_x] = plane(&op.stride, 1)?;
    let [dilation_y, dilation_x] = plane(&op.dilation, 1)?;
    let [pad_top, pad_left] = plane(&numbers(&op.pad_lo)?, 0)?;
    numbers(&op.pad_hi)?;
    let axis =
        |input, output, kernel, stride, pad, dilation| ConvIntAxis { input, output, kernel, stride, pad, dilation };
    Some(ConvIntShape {
        batch: x[0],
        groups: op.groups,
        in_channels: x[1] / op.groups,
        out_channels: filter[0] / op.groups,
        height: axis(in_height, out_height, filter_height, stride_y, pad_top, dilation_y),
        width: axis(in_width, out_width, filter_width, stride_x, pad_left, dilation_x),
    })
}

/// A transposed convolution, 1-D or 2-D in f32.
pub fn lower_conv_transpose(step: &StepNode, op: &ConvTranspose, machine: Machine) -> Result<Option<Lowered>, String> {
    let Some(shape) = conv_transpose_shape(step, op) else { return Ok(None) };
    let scratch = conv_transpose::conv_transpose_scratch_len(machine.isa, machine.threads, &shape) * size_of::<f32>();
    let has_bias = step.input_count() > 2;
    Ok(Some(Lowered {
        scratch_bytes: scratch,
        ..Lowered::plain("conv_transpose", step, move |args, exec| {
            let (x, filter) = (args.read::<f32>(0), args.read::<f32>(1));
            let bias = has_bias.then(|| args.read::<f32>(2));
            let y = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            conv_transpose::conv_transpose(exec, &shape, x, filter, bias, scratch, y);
            Ok(())
        })
    }))
}

fn conv_transpose_shape(step: &StepNode, op: &ConvTranspose) -> Option<ConvTransposeShape> {
    if (0..step.input_count()).any(|input| step.dtype(input) != DType::F32) {
        return None;
    }
    let (x, filter, y) = (step.shape(0), step.shape(1), step.output_shape(0));
    let [in_height, in_width] = plane(&x[2..], 1)?;
    let [out_height, out_width] = plane(&y[2..], 1)?;
    let [filter_height, filter_width] = plane(&filter[2..], 1)?;
    let [pad_top, pad_left] = plane(&numbers(&op.pad_lo)?, 0)?;
    Some(ConvTransposeShape {
        batch: x[0],
        in_channels: x[1],
        in_height,
        in_width,
        out_channels: filter[1] * op.groups,
        out_height,
        out_width,
        filter_height,
        filter_width,
        stride: plane(&op.stride, 1)?,
        pad_top,
        pad_left,
        dilation: plane(&op.dilation, 1)?,
        groups: op.groups,
    })
}
