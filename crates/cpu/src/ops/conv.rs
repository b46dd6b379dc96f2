//! Convolutions: 1-D and 2-D in f32 with packed filters; the rest by reference.

use precast_ir::op::{Conv, ConvInt, ConvTranspose};
use precast_ir::{Graph, Node, Op};
use precast_kernels::conv::{self, ConvShape, ConvTactic};
use precast_kernels::conv_int::{self, ConvIntAxis, ConvIntShape};
use precast_kernels::conv_transpose;
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm_int::ZeroPoints;
use precast_tensor::{DType, Dim, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::ops::quantize::{zero_point, zero_points};
use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

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

/// Sizes of a convolution in the plane: [height, width] each.
struct Plane {
    input: [usize; 2],
    output: [usize; 2],
    filter: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    dilation: [usize; 2],
}

impl Plane {
    /// The sizes of a 1-D or 2-D convolution that is a step.
    fn of(step: &StepNode, stride: &[usize], pad_lo: &[Dim], dilation: &[usize]) -> Option<Plane> {
        let plane =
            Plane::as_written([&step.shape(0), &step.shape(1), &step.output_shape(0)], stride, pad_lo, dilation)?;
        let is_column = [plane.input, plane.output, plane.filter].iter().all(|[_, width]| *width == 1);
        Some(if is_column && plane.pad[1] == 0 { plane.turned() } else { plane })
    }

    /// The sizes of a 1-D or 2-D convolution with these shapes of input, filter and output.
    fn as_written(
        [input, filter, output]: [&[usize]; 3],
        stride: &[usize],
        pad_lo: &[Dim],
        dilation: &[usize],
    ) -> Option<Plane> {
        Some(Plane {
            input: plane(&input[2..], 1)?,
            output: plane(&output[2..], 1)?,
            filter: plane(&filter[2..], 1)?,
            stride: plane(stride, 1)?,
            pad: plane(&numbers(pad_lo)?, 0)?,
            dilation: plane(dilation, 1)?,
        })
    }

    /// A column as a line: the same memory, and kernels are made for lines.
    fn turned(self) -> Plane {
        let turn = |[height, width]: [usize; 2]| [width, height];
        Plane {
            input: turn(self.input),
            output: turn(self.output),
            filter: turn(self.filter),
            stride: turn(self.stride),
            pad: turn(self.pad),
            dilation: turn(self.dilation),
        }
    }

    /// The sizes as the f32 kernels take them, of an input of this shape.
    fn shape(&self, x: &[usize], out_channels: usize, groups: usize) -> ConvShape {
        ConvShape {
            batch: x[0],
            in_channels: x[1],
            in_height: self.input[0],
            in_width: self.input[1],
            out_channels,
            out_height: self.output[0],
            out_width: self.output[1],
            filter_height: self.filter[0],
            filter_width: self.filter[1],
            stride: self.stride,
            pad_top: self.pad[0],
            pad_left: self.pad[1],
            dilation: self.dilation,
            groups,
        }
    }
}

/// The convolution as a plane, if it is 1-D or 2-D in f32 with a constant filter.
fn conv_shape(step: &StepNode, op: &Conv) -> Option<ConvShape> {
    if step.dtype(0) != DType::F32 || step.dtype(1) != DType::F32 || !step.is_constant(1) {
        return None;
    }
    // Padding at the end shows in the size of the result; a negative one would crop, which the kernel does not do.
    numbers(&op.pad_hi)?;
    let plane = Plane::of(step, &op.stride, &op.pad_lo, &op.dilation)?;
    Some(plane.shape(&step.shape(0), step.shape(1)[0], op.groups))
}

/// The sizes of a convolution in f32 inside a fused body.
pub fn inner_shape(body: &Graph, node: &Node, op: &Conv) -> Option<ConvShape> {
    numbers(&op.pad_hi)?;
    let values = [node.inputs[0], node.inputs[1], node.outputs[0]];
    if values.iter().any(|&value| body.ty(value).dtype != DType::F32) {
        return None;
    }
    let [x, filter, y] = values.map(|value| body.ty(value).shape());
    let (x, filter, y) = (x?, filter?, y?);
    let plane = Plane::as_written([&x, &filter, &y], &op.stride, &op.pad_lo, &op.dilation)?;
    Some(plane.shape(&x, filter[0], op.groups))
}

/// The sizes and epilogue of a step that the f32 convolution covers: a step whose tactic is chosen.
pub fn tactic_shape(step: &StepNode) -> Option<(ConvShape, Epilogue)> {
    let (op, epilogue) = match step.op() {
        Op::Conv(op) => (op, Epilogue::default()),
        Op::Fused(fused) => {
            let root = fused.body.nodes().first()?;
            match &root.op {
                Op::Conv(op) if fused.body.inputs().starts_with(&root.inputs) => (op, Epilogue::of(&fused.body)?),
                _ => return None,
            }
        }
        _ => return None,
    };
    let is_covered = epilogue.bias.is_none() && epilogue.scale.is_none() && epilogue.constant_part(step).is_some();
    Some((conv_shape(step, op)?, epilogue)).filter(|_| is_covered)
}

/// The input that is the convolution's own bias.
pub fn own_bias(step: &StepNode, epilogue: &Epilogue) -> Option<usize> {
    let is_own = |input: &usize| Some(*input) != epilogue.residual && epilogue.numbers().all(|number| number != *input);
    (2..step.input_count()).find(is_own)
}

/// The tactic that a step says, if it can compute these sizes.
fn said_tactic(step: &StepNode, shape: &ConvShape, machine: Machine) -> Result<ConvTactic, String> {
    let said = step.tactic.as_ref().ok_or("it does not say its tactic")?;
    let tactic = ConvTactic::from_name(&said.name).ok_or_else(|| format!("its tactic '{}' is unknown", said.name))?;
    let is_allowed = tactic.covers(shape) && machine.liberty().allows(tactic);
    is_allowed.then_some(tactic).ok_or_else(|| format!("the tactic '{}' does not cover it", said.name))
}

/// A convolution with its epilogue. The step's inputs are x, filter, then the bias if there is one.
pub fn lower_conv(
    step: &StepNode,
    op: &Conv,
    epilogue: &Epilogue,
    machine: Machine,
) -> Result<Option<Lowered>, String> {
    let Some(shape) = conv_shape(step, op) else { return Ok(None) };
    // A bias is an operand of the convolution itself.
    if epilogue.bias.is_some() || epilogue.scale.is_some() {
        return Ok(None);
    }
    let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
    let tactic = said_tactic(step, &shape, machine)?;
    let pack = |filter: &Tensor| {
        let filter = filter.bytes().clone();
        move |packed: &mut [f32]| {
            conv::pack_filter_into(machine.isa, tactic, &shape, &f32_elements(&filter), packed);
        }
    };
    let packed = Read::packed(conv::packed_filter_len(tactic, &shape), step.constant(1).map(pack))?;
    let mut reads = vec![Read::Input(0), packed];
    let own_bias = own_bias(step, epilogue);
    let mut push = |input: Option<usize>| {
        input.map(|input| {
            reads.push(Read::Input(input));
            reads.len() - 1
        })
    };
    let (bias, residual) = (push(own_bias), push(epilogue.residual));
    let scratch = conv::conv_scratch_len(machine.isa, machine.threads, tactic, &shape) * size_of::<f32>();
    Ok(Some(Lowered {
        kernel: format!("{}{}", conv_name(tactic, &shape), epilogue.suffix()),
        reads,
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let (x, filter) = (args.read::<f32>(0), args.read::<f32>(1));
            let bias = bias.map_or(Bias::None, |read| Bias::Rows(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let y = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            let epilogue = epilogue::Epilogue { bias, residual, ..constant_part };
            conv::conv(exec, tactic, &shape, x, filter, &epilogue, scratch, y);
            Ok(())
        }),
    }))
}

fn conv_name(tactic: ConvTactic, shape: &ConvShape) -> &'static str {
    match tactic {
        ConvTactic::Depthwise => "conv.depthwise",
        ConvTactic::Winograd2 => "conv.winograd2",
        ConvTactic::Winograd4 => "conv.winograd4",
        ConvTactic::WinogradLine => "conv.winograd_line",
        ConvTactic::ProductBf16 if shape.filter_height == 1 && shape.filter_width == 1 => "conv.1x1.bf16",
        ConvTactic::ProductBf16 => "conv.bf16",
        ConvTactic::Product if shape.filter_height == 1 && shape.filter_width == 1 => "conv.1x1",
        ConvTactic::Product => "conv",
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
    let pack = |filter: &Tensor| {
        let packed = conv_int::pack_conv_int(&shape, filter.as_bytes(), is_w_signed);
        move |target: &mut [u8]| target.copy_from_slice(&packed)
    };
    let packed = Read::packed(conv_int::packed_conv_int_len(&shape), step.constant(1).map(pack))?;
    let has_channel_zeros = elements(3) != 1;
    let zeros = if has_channel_zeros { zero_points(step, 3)? } else { Read::Input(3) };
    let scratch = conv_int::conv_int_scratch_len(&shape, is_x_signed);
    Ok(Some(Lowered {
        kernel: "conv_int".to_string(),
        reads: vec![Read::Input(0), packed, Read::Input(2), zeros],
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
    let plane = Plane::of(step, &op.stride, &op.pad_lo, &op.dilation)?;
    numbers(&op.pad_hi)?;
    let axis = |axis: usize| ConvIntAxis {
        input: plane.input[axis],
        output: plane.output[axis],
        kernel: plane.filter[axis],
        stride: plane.stride[axis],
        pad: plane.pad[axis],
        dilation: plane.dilation[axis],
    };
    let (x, filter) = (step.shape(0), step.shape(1));
    Some(ConvIntShape {
        batch: x[0],
        groups: op.groups,
        in_channels: x[1] / op.groups,
        out_channels: filter[0] / op.groups,
        height: axis(0),
        width: axis(1),
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

fn conv_transpose_shape(step: &StepNode, op: &ConvTranspose) -> Option<ConvShape> {
    if (0..step.input_count()).any(|input| step.dtype(input) != DType::F32) {
        return None;
    }
    let plane = Plane::of(step, &op.stride, &op.pad_lo, &op.dilation)?;
    Some(plane.shape(&step.shape(0), step.shape(1)[1] * op.groups, op.groups))
}
