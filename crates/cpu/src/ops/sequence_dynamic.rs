//! LSTMs of bytes: one integer product for all inputs of a direction, then the recurrence, whose state is quantised at every
//! step.

use precast_ir::op::Recurrent;
use precast_ir::{Graph, ValueId};
use precast_kernels::arena::as_bytes_mut;
use precast_kernels::epilogue::Activation;
use precast_kernels::gemm_int::{self, GemmInt, Scales, ZeroPoints};
use precast_kernels::isa::Exec;
use precast_kernels::recurrent::{self, LstmOptions, LstmWeights, SequenceShape, Start};
use precast_passes::fuse_recurrent::{ByteLayer, ByteOperand};
use precast_tensor::{DType, Tensor};

use crate::ops::sequence::{Layer, Operands, pack_biases, usual_activations};
use crate::step::{Lowered, Read, StepNode};

/// Weights of a step: positions of their bytes, scales and zero points.
#[derive(Clone, Copy)]
struct Weights {
    bytes: usize,
    scale: usize,
    zero: Option<usize>,
    /// Rows of each direction.
    depth: usize,
    is_signed: bool,
}

impl Weights {
    fn new(step: &StepNode, operand: ByteOperand, position: impl Fn(ValueId) -> usize) -> Weights {
        let bytes = position(operand.bytes);
        Weights {
            bytes,
            scale: position(operand.scale),
            zero: operand.zero.map(&position),
            depth: step.shape(bytes)[1],
            is_signed: step.dtype(bytes) == DType::I8,
        }
    }

    fn positions(self) -> impl Iterator<Item = usize> {
        [Some(self.bytes), Some(self.scale), self.zero].into_iter().flatten()
    }

    fn packed_len(self, columns: usize) -> usize {
        gemm_int::packed_b_int_len(self.depth, columns)
    }

    fn pack(self, step: &StepNode, columns: usize, packed: &mut [u8]) {
        let directions = known(step, self.bytes).read_parts(self.depth * columns);
        for (bytes, packed) in directions.zip(packed.chunks_exact_mut(self.packed_len(columns).max(1))) {
            gemm_int::pack_constant_b_int(self.depth, columns, bytes, self.is_signed, false, packed);
        }
    }

    /// The scale of each column of each direction.
    fn scales(self, step: &StepNode, len: usize) -> impl Iterator<Item = f32> {
        spread(known(step, self.scale), len).map(|scale| scale as f32)
    }

    /// The zero point of each column of each direction.
    fn zeros(self, step: &StepNode, len: usize) -> impl Iterator<Item = i32> {
        let none = Tensor::scalar(0_u8);
        let zeros = self.zero.map_or(&none, |zero| known(step, zero));
        spread(zeros, len).map(|zero| zero as i32)
    }
}

/// Elements of a tensor, each repeated so that there are `len`.
fn spread(tensor: &Tensor, len: usize) -> impl Iterator<Item = f64> + use<> {
    let elements = tensor.to_f64_vec();
    let each = len / elements.len().max(1);
    elements.into_iter().flat_map(move |element| std::iter::repeat_n(element, each))
}

fn known(step: &StepNode, input: usize) -> &Tensor {
    step.constant(input).expect("weights are packed where they are known")
}

/// A body that is one LSTM of bytes with the usual activations.
pub fn lower(step: &StepNode, body: &Graph, op: &Recurrent, operands: &ByteLayer) -> Result<Option<Lowered>, String> {
    let Some(node) = body.nodes().last() else { return Ok(None) };
    let find = |value: ValueId| body.inputs().iter().position(|&input| input == value);
    let bytes = [operands.x, operands.w, operands.r];
    let values = bytes.iter().flat_map(|operand| [Some(operand.bytes), Some(operand.scale), operand.zero]).flatten();
    let is_all_given = values.chain(node.inputs[3..].iter().copied()).all(|value| find(value).is_some());
    if !is_all_given || usual_activations(op).is_none() {
        return Ok(None);
    }
    let position = |value: ValueId| find(value).expect("all values are inputs of the body");
    let (w, r) = (Weights::new(step, operands.w, position), Weights::new(step, operands.r, position));
    let others = Operands::of(op, |at| position(node.inputs[at]));
    let constants = || w.positions().chain(r.positions()).chain(others.bias);
    if !constants().all(|input| step.is_constant(input)) {
        return Ok(None);
    }
    let layer = Layer::of(op, &step.shape(position(operands.x.bytes)));
    let (columns, directions) = (layer.columns(), layer.directions);
    // While loading the small ones among them are known, being part of the text, but there is nothing left to pack.
    let is_known = constants().all(|input| step.constant(input).is_some());
    let (w_len, r_len, len) = (w.packed_len(columns), r.packed_len(columns), directions * columns);
    let bias_len = columns + layer.hidden;
    let pack_w = |packed: &mut [u8]| w.pack(step, columns, packed);
    let pack_r = |packed: &mut [u8]| r.pack(step, columns, packed);
    let pack_bias = |packed: &mut [f32]| pack_biases(step, op, &others, layer, packed);
    let pack_scales = |packed: &mut [f32]| {
        let scales = w.scales(step, len).chain(r.scales(step, len));
        packed.iter_mut().zip(scales).for_each(|(target, scale)| *target = scale);
    };
    let pack_zeros = |packed: &mut [i32]| {
        let zeros = w.zeros(step, len).chain(r.zeros(step, len));
        packed.iter_mut().zip(zeros).for_each(|(target, zero)| *target = zero);
    };
    let mut reads = vec![
        Read::packed(directions * w_len, is_known.then_some(pack_w))?,
        Read::packed(directions * r_len, is_known.then_some(pack_r))?,
        Read::packed(directions * bias_len, is_known.then_some(pack_bias))?,
        Read::packed(2 * len, is_known.then_some(pack_scales))?,
        Read::packed(2 * len, is_known.then_some(pack_zeros))?,
    ];
    let mut push = |input: usize| {
        reads.push(Read::Input(input));
        reads.len() - 1
    };
    let (x, x_scale) = (push(position(operands.x.bytes)), push(position(operands.x.scale)));
    let x_zero = operands.x.zero.map(|zero| push(position(zero)));
    let [lengths, initial_h, initial_c, peepholes] =
        [others.lengths, others.initial_h, others.initial_c, others.peepholes].map(|input| input.map(&mut push));
    let (op, state) = (op.clone(), layer.batch * layer.hidden);
    let (rows, shape) = (layer.steps * layer.batch, layer.sequence(&op, 0));
    let product_len = gemm_int::gemm_int_scratch_len(rows, layer.input, false).div_ceil(size_of::<f32>());
    let lens = [rows * columns, rows * layer.hidden, recurrent::lstm_bytes_scratch_len(&shape)];
    let direction_len: usize = lens.iter().sum();
    let scratch_len = directions * direction_len + columns + product_len;
    let within = 0..=i32::try_from(layer.steps).unwrap_or(i32::MAX);
    // Each step of a recurrence waits for the one before, so that threads gain by directions or by parts of one product.
    let runs_beside = gemm_int::is_one_task(layer.batch, columns, layer.hidden);
    Ok(Some(Lowered {
        kernel: "recurrent.lstm_dynamic".to_string(),
        reads,
        scratch_bytes: scratch_len * size_of::<f32>(),
        run: Box::new(move |args, exec| {
            let (w_packed, r_packed, biases) = (args.read::<u8>(0), args.read::<u8>(1), args.read::<f32>(2));
            let (w_scales, r_scales) = args.read::<f32>(3).split_at(len);
            let (w_zeros, r_zeros) = args.read::<i32>(4).split_at(len);
            let (x, x_scale) = (args.read::<u8>(x), args.read::<f32>(x_scale)[0]);
            let x_zero = x_zero.map_or(0, |read| i32::from(args.read::<u8>(read)[0]));
            let optional = |read: Option<usize>| read.map(|read| args.read::<f32>(read));
            let (initial_h, initial_c, peepholes) = (optional(initial_h), optional(initial_c), optional(peepholes));
            let lengths = lengths.map(|read| args.read::<i32>(read));
            if let Some(length) = lengths.and_then(|all| all.iter().find(|length| !within.contains(*length))) {
                return Err(format!("length {length} is not within 0..={}", within.end()));
            }
            let (y, mut y_h, mut y_c) = (args.write::<f32>(0), args.write::<f32>(1), args.write::<f32>(2));
            let scratch: &mut [f32] = if scratch_len > 0 { args.write(3) } else { &mut [] };
            let (mut own, shared) = scratch.split_at_mut(directions * direction_len);
            let (scales, shared) = shared.split_at_mut(columns);
            let mut recurrences: [Option<Recurrence>; 2] = [None, None];
            for (direction, recurrence) in recurrences.iter_mut().enumerate().take(directions) {
                let each = direction * columns..(direction + 1) * columns;
                let projected = take(&mut own, lens[0]);
                scales.iter_mut().zip(&w_scales[each.clone()]).for_each(|(scale, w_scale)| *scale = x_scale * w_scale);
                let product = GemmInt {
                    m: rows,
                    n: columns,
                    k: layer.input,
                    a: x,
                    is_a_signed: false,
                    a_zero: ZeroPoints::Scalar(x_zero),
                    packed_b: &w_packed[direction * w_len..][..w_len],
                    is_b_signed: w.is_signed,
                    b_zero: ZeroPoints::Each(&w_zeros[each.clone()]),
                };
                let (scales, bias) = (Scales::Each(scales), Some(&biases[direction * bias_len..][..columns]));
                let (bytes, none) = (as_bytes_mut(shared), Activation::None);
                gemm_int::gemm_int_scaled(&exec, &product, scales, bias, none, projected, columns, bytes);
                let part = direction * state;
                *recurrence = Some(Recurrence {
                    // Its y is its own until both are through.
                    shape: SequenceShape { y_stride: state, ..layer.sequence(&op, direction) },
                    weights: LstmWeights::Bytes {
                        packed: &r_packed[direction * r_len..][..r_len],
                        is_signed: r.is_signed,
                        scales: &r_scales[each.clone()],
                        zeros: &r_zeros[each],
                    },
                    options: LstmOptions {
                        peepholes: peepholes.map(|p| &p[direction * 3 * layer.hidden..][..3 * layer.hidden]),
                        couples_input_forget: op.input_forget,
                    },
                    start: Start {
                        hidden: initial_h.map(|h| &h[part..][..state]),
                        cell: initial_c.map(|c| &c[part..][..state]),
                        lengths,
                    },
                    projected,
                    y: take(&mut own, lens[1]),
                    scratch: take(&mut own, lens[2]),
                    y_h: take(&mut y_h, state),
                    y_c: take(&mut y_c, state),
                });
            }
            if runs_beside {
                exec.pool()
                    .chunks_mut(&mut recurrences, 1, |_, each| each.iter_mut().flatten().for_each(|it| it.run(exec)));
            } else {
                recurrences.iter_mut().flatten().for_each(|recurrence| recurrence.run(exec));
            }
            for (direction, recurrence) in recurrences.iter().flatten().enumerate() {
                let steps = recurrence.y.chunks_exact(state.max(1));
                for (own, y) in steps.zip(y.chunks_exact_mut((directions * state).max(1))) {
                    y[direction * state..][..state].copy_from_slice(own);
                }
            }
            Ok(())
        }),
    }))
}

/// The recurrence of one direction.
struct Recurrence<'a> {
    shape: SequenceShape,
    weights: LstmWeights<'a>,
    options: LstmOptions<'a>,
    start: Start<'a>,
    projected: &'a [f32],
    y: &'a mut [f32],
    y_h: &'a mut [f32],
    y_c: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Recurrence<'_> {
    fn run(&mut self, exec: Exec) {
        let Recurrence { shape, weights, options, start, projected, y, y_h, y_c, scratch } = self;
        recurrent::lstm(exec, shape, projected, weights, options, start, Some(y), y_h, y_c, scratch);
    }
}

/// Cuts the first `len` elements off.
fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (first, others) = std::mem::take(rest).split_at_mut(len);
    *rest = others;
    first
}
