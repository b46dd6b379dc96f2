//! Matrix products: packed weights with an epilogue, batches of plain matrices, and 8-bit products.

use precast_ir::op::Matmul;
use precast_kernels::arithmetic::Arithmetic;
use precast_kernels::epilogue::{self, Bias};
use precast_kernels::gemm::{
    self, BatchB, BatchedGemm, BatchedOperand, MatrixA, MatrixB, Order, Packing, gemm_batched_scratch_len,
    gemm_scratch_len_in,
};
use precast_kernels::gemm_int::{self, GemmInt, ZeroPoints};
use precast_kernels::isa::Isa;
use precast_tensor::{DType, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::ops::matmul_blocks::{Operands, lower_product};
use crate::ops::matmul_exact;
use crate::ops::quantize::{zero_point, zero_points};
use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

/// A product of f32 matrices.
pub fn lower_matmul(
    step: &StepNode,
    op: &Matmul,
    epilogue: &Epilogue,
    machine: Machine,
) -> Result<Option<Lowered>, String> {
    if step.dtype(0) != DType::F32 || step.dtype(1) != DType::F32 {
        return Ok(None);
    }
    let columns = step.output_shape(0).last().copied().unwrap_or(0);
    if epilogue.bias.is_some_and(|bias| step.shape(bias).iter().product::<usize>() != columns) {
        return Ok(None);
    }
    if step.is_constant(1) && step.shape(1).len() == 2 && !op.transpose_a && epilogue.scale.is_none() {
        let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
        return lower_weights(step, op, epilogue, constant_part, machine).map(Some);
    }
    if epilogue.bias.is_some() || epilogue.residual.is_some() {
        return Ok(None);
    }
    let alpha = match epilogue.scale {
        None => 1.0,
        Some(input) => match step.inline(input).filter(|scale| scale.len() == 1) {
            Some(scale) => scale.to_f64_vec()[0] as f32,
            None => return Ok(None),
        },
    };
    let Some(constant_part) = epilogue.constant_part(step) else { return Ok(None) };
    lower_batched(step, op, alpha, constant_part, machine).map(Some)
}

/// x[.., K] · W[K, N]: all leading axes of x are rows.
fn lower_weights(
    step: &StepNode,
    op: &Matmul,
    epilogue: &Epilogue,
    constant_part: epilogue::Epilogue<'static>,
    machine: Machine,
) -> Result<Lowered, String> {
    let x = step.shape(0);
    let k = x[x.len() - 1];
    let m: usize = x[..x.len() - 1].iter().product();
    let weights = step.shape(1);
    let n = if op.transpose_b { weights[0] } else { weights[1] };
    if let Some(form) = matmul_exact::said_form(step, k, n)? {
        let operands = Operands { x: 0, m, packed: matmul_exact::packed(step, op, form, machine) };
        return Ok(lower_product("gemm_exact", form, operands, epilogue, constant_part, machine));
    }
    let arithmetic = machine.arithmetic();
    let (plain, packed) = (Packing::Plain, Packing::Packed);
    let len = gemm_scratch_len_in(arithmetic, machine.isa, machine.threads, [m, n, k], plain, packed);
    let scratch = len * size_of::<f32>();
    let mut reads = vec![Read::Input(0), packed_weights(step, op, k, n, machine, arithmetic)];
    let bias = epilogue.bias.map(|input| push(&mut reads, input));
    let residual = epilogue.residual.map(|input| push(&mut reads, input));
    Ok(Lowered {
        kernel: format!("gemm{}{}", if machine.is_bf16 { ".bf16" } else { "" }, epilogue.suffix()),
        reads,
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let a = MatrixA::Rows { data: args.read(0), stride: k };
            let b = MatrixB::Packed(args.read(1));
            let bias = bias.map_or(Bias::None, |read| Bias::Columns(args.read(read)));
            let residual = residual.map(|read| args.read::<f32>(read));
            let c = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            let epilogue = epilogue::Epilogue { bias, residual, ..constant_part };
            gemm::gemm_in(arithmetic, exec, [m, n, k], a, b, c, n, &epilogue, scratch);
            Ok(())
        }),
    })
}

/// The constant right operand, k × n, in its packed form.
fn packed_weights(step: &StepNode, op: &Matmul, k: usize, n: usize, machine: Machine, arithmetic: Arithmetic) -> Read {
    let (isa, is_transposed) = (machine.isa, op.transpose_b);
    let words = format!("gemm {k}×{n} {arithmetic:?} {} transposed {is_transposed}", isa.name());
    let constants = step.constant(1).map(|tensor| [tensor.clone()]);
    let len = gemm::packed_b_len(isa, arithmetic.steps(k), n);
    Read::packed_once(len, words, constants, move |[tensor], packed: &mut [f32]| match arithmetic {
        Arithmetic::F32 => pack_in_parts(&tensor, is_transposed, k, n, isa, packed),
        Arithmetic::Bf16 => pack_words(&tensor, is_transposed, k, n, isa, packed),
    })
}

fn pack_words(tensor: &Tensor, is_transposed: bool, k: usize, n: usize, isa: Isa, packed: &mut [f32]) {
    let data = &f32_elements(tensor.as_bytes());
    let matrix = match is_transposed {
        true => MatrixB::Columns { data, stride: k },
        false => MatrixB::Rows { data, stride: n },
    };
    packed.copy_from_slice(&gemm::pack_b_words(isa, k, n, matrix));
}

/// Packs rows of a mapped matrix some at a time, so that neither its pages nor an aligned copy of it are in memory whole.
fn pack_in_parts(tensor: &Tensor, is_transposed: bool, k: usize, n: usize, isa: Isa, packed: &mut [f32]) {
    let (row, rows_multiple) = if is_transposed { (k, gemm::panel_columns(isa)) } else { (n, 1) };
    let row_bytes = row * size_of::<f32>();
    let rows = PART_BYTES.checked_div(row_bytes).unwrap_or(0).max(1).next_multiple_of(rows_multiple);
    for (index, part) in tensor.read_parts(rows * row_bytes).enumerate() {
        let elements = f32_elements(part);
        match is_transposed {
            true => gemm::pack_b_columns(isa, k, index * rows, &elements, packed),
            false => gemm::pack_b_rows(isa, k, n, index * rows, &elements, packed),
        }
    }
}

/// Bytes of a matrix that are packed at once.
const PART_BYTES: usize = 1 << 20;

fn push(reads: &mut Vec<Read>, input: usize) -> usize {
    reads.push(Read::Input(input));
    reads.len() - 1
}

/// Products of matrices times `alpha`, batch axes broadcast; one constant right matrix is packed while compiling.
fn lower_batched(
    step: &StepNode,
    op: &Matmul,
    alpha: f32,
    epilogue: epilogue::Epilogue<'static>,
    machine: Machine,
) -> Result<Lowered, String> {
    let (a, b, c) = (step.shape(0), step.shape(1), step.output_shape(0));
    let (m, n) = (c[c.len() - 2], c[c.len() - 1]);
    let k = if op.transpose_a { a[a.len() - 2] } else { a[a.len() - 1] };
    let batch = &c[..c.len() - 2];
    let operand = |transposed: bool, rows: usize, columns: usize| BatchedOperand {
        order: if transposed { Order::Columns } else { Order::Rows },
        stride: if transposed { rows } else { columns },
        batch_stride: 0,
    };
    let mut batched = BatchedGemm {
        batch: 1,
        m,
        n,
        k,
        a: operand(op.transpose_a, m, k),
        b: operand(op.transpose_b, k, n),
        c_stride: n,
        c_batch_stride: m * n,
        alpha,
    };
    let items: usize = batch.iter().product();
    let (a_offsets, b_offsets) = (offsets(&a, batch, m * k), offsets(&b, batch, k * n));
    let uniform = |offsets: &[usize]| {
        let stride = offsets.get(1).copied().unwrap_or(0);
        offsets.iter().enumerate().all(|(item, &offset)| offset == item * stride).then_some(stride)
    };
    if let (Some(a_stride), Some(b_stride)) = (uniform(&a_offsets), uniform(&b_offsets)) {
        batched = BatchedGemm {
            batch: items,
            a: BatchedOperand { batch_stride: a_stride, ..batched.a },
            b: BatchedOperand { batch_stride: b_stride, ..batched.b },
            ..batched
        };
    }
    let is_one_call = batched.batch == items;
    let is_packed = is_one_call && step.is_constant(1) && b.len() == 2;
    let (packing, right) = match is_packed {
        true => (Packing::Packed, packed_weights(step, op, k, n, machine, Arithmetic::F32)),
        false => (Packing::Plain, Read::Input(1)),
    };
    let scratch = gemm_batched_scratch_len(machine.isa, machine.threads, &batched, packing) * size_of::<f32>();
    Ok(Lowered {
        kernel: "gemm_batched".to_string(),
        reads: vec![Read::Input(0), right],
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let (a, b) = (args.read::<f32>(0), args.read::<f32>(1));
            let c = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            if is_one_call {
                let b = if is_packed { BatchB::Packed(b) } else { BatchB::Plain(b) };
                gemm::gemm_batched(exec, &batched, a, b, c, &epilogue, scratch);
                return Ok(());
            }
            for (item, c) in c.chunks_mut((m * n).max(1)).enumerate() {
                let (a, b) = (&a[a_offsets[item]..], BatchB::Plain(&b[b_offsets[item]..]));
                gemm::gemm_batched(exec, &batched, a, b, c, &epilogue, scratch);
            }
            Ok(())
        }),
    })
}

/// Where the matrices of an operand start, for each item of the broadcast batch.
fn offsets(shape: &[usize], batch: &[usize], matrix: usize) -> Vec<usize> {
    let own = &shape[..shape.len() - 2];
    let strides = crate::ops::broadcast_strides(own, batch);
    let items: usize = batch.iter().product();
    (0..items)
        .map(|item| {
            let (mut rest, mut offset) = (item, 0);
            for axis in (0..batch.len()).rev() {
                offset += rest % batch[axis] * strides[axis];
                rest /= batch[axis];
            }
            offset * matrix
        })
        .collect()
}

/// As `pack_in_parts`, of bytes `[k, n]`.
fn pack_bytes_in_parts(tensor: &Tensor, k: usize, n: usize, is_signed: bool, packed: &mut [u8]) {
    let rows = PART_BYTES.checked_div(n).unwrap_or(0).max(1).next_multiple_of(gemm_int::ROWS_PER_PART);
    for (part, bytes) in tensor.read_parts(rows * n).enumerate() {
        gemm_int::pack_rows_b_int(k, n, part * rows, bytes, is_signed, packed);
    }
}

/// A product of 8-bit matrices: constant weights packed while compiling, computed ones at run time.
pub fn lower_matmul_int(step: &StepNode, _machine: Machine) -> Result<Option<Lowered>, String> {
    let (a, b) = (step.shape(0), step.shape(1));
    let elements = |input: usize| step.shape(input).iter().product::<usize>();
    if b.len() != 2 || a.len() < 2 || elements(2) != 1 {
        return Ok(None);
    }
    let (k, n) = (b[0], b[1]);
    let m: usize = a[..a.len() - 1].iter().product();
    let (is_a_signed, is_b_signed) = (step.dtype(0) == DType::I8, step.dtype(1) == DType::I8);
    let is_b_constant = step.is_constant(1);
    let mut reads = vec![Read::Input(0), Read::Input(2)];
    reads.push(if is_b_constant {
        let pack = |tensor: &Tensor| {
            let tensor = tensor.clone();
            move |packed: &mut [u8]| pack_bytes_in_parts(&tensor, k, n, is_b_signed, packed)
        };
        Read::packed(gemm_int::packed_b_int_len(k, n), step.constant(1).map(pack))?
    } else {
        Read::Input(1)
    });
    let has_column_zeros = elements(3) != 1;
    reads.push(match (has_column_zeros, step.is_constant(3)) {
        (false, _) => Read::Input(3),
        // Zero points of columns that are computed at run time are rare.
        (true, false) => return Ok(None),
        (true, true) => zero_points(step, 3)?,
    });
    let a_bytes = gemm_int::gemm_int_scratch_len(m, k, is_a_signed);
    let b_bytes = if is_b_constant { 0 } else { gemm_int::packed_b_int_len(k, n) };
    Ok(Some(Lowered {
        kernel: "gemm_int".to_string(),
        reads,
        scratch_bytes: a_bytes + b_bytes,
        run: Box::new(move |args, exec| {
            let a_zero = ZeroPoints::Scalar(zero_point(args.read::<u8>(1), is_a_signed));
            let b_zero = if has_column_zeros {
                ZeroPoints::Each(args.read::<i32>(3))
            } else {
                ZeroPoints::Scalar(zero_point(args.read::<u8>(3), is_b_signed))
            };
            let c = args.write::<i32>(0);
            let scratch: &mut [u8] = if a_bytes + b_bytes > 0 { args.write(1) } else { &mut [] };
            let (b_scratch, a_scratch) = scratch.split_at_mut(b_bytes);
            let packed_b = if is_b_constant {
                args.read::<u8>(2)
            } else {
                gemm_int::pack_b_int_into(&exec, k, n, args.read(2), is_b_signed, false, b_scratch);
                b_scratch
            };
            let gemm = GemmInt { m, n, k, a: args.read(0), is_a_signed, a_zero, packed_b, is_b_signed, b_zero };
            gemm_int::gemm_int(&exec, &gemm, c, n, a_scratch);
            Ok(())
        }),
    }))
}
