//! Operators of com.microsoft that are products, or solve with them: distances, inverses, 16-bit integers, weights of 4 bits
//! by a table.

use precast_ir::ValueId;
use precast_ir::op::{ArgFn, ArgReduce, BinaryFn, CompareFn, Matmul, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::{Outputs, matmul_of_vectors};
use crate::import::{Fault, NodeCx};

/// Distances between the rows of a [M, N] and of b [K, N].
pub(super) fn cdist(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let func = match cx.string("metric", "sqeuclidean")?.as_str() {
        "euclidean" => ReduceFn::L2,
        "sqeuclidean" => ReduceFn::SumSq,
        other => {
            return Err(Fault::Unsupported(format!("metric={other} is not covered; euclidean and sqeuclidean are")));
        }
    };
    if cx.rank(a) != 2 || cx.rank(b) != 2 {
        return Err(Fault::Invalid(format!("operands have ranks {} and {}; 2 was expected", cx.rank(a), cx.rank(b))));
    }
    let (a, b) = (cx.unsqueeze(a, &[1])?, cx.unsqueeze(b, &[0])?);
    let apart = cx.binary(BinaryFn::Sub, a, b)?;
    Ok(vec![cx.reduce(func, apart, vec![2], false)?])
}

/// The product of 16-bit integers in 32 bits, which have no sign if neither operand has.
pub(super) fn matmul_integer16(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let is_unsigned = cx.dtype(a) == DType::U16 && cx.dtype(b) == DType::U16;
    let wide = if is_unsigned { DType::U32 } else { DType::I32 };
    let (a, b) = (cx.cast(a, wide)?, cx.cast(b, wide)?);
    Ok(vec![matmul_of_vectors(cx, a, b, |cx, a, b| cx.matmul(a, b))?])
}

/// Inverses are written out column by column, which is only sensible for small matrices.
const INVERSE_SIZE_MAX: usize = 32;

/// The inverse of each matrix by elimination: [x | 1] becomes [1 | inverse], a column at a time.
pub(super) fn inverse(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let [batch @ .., rows, columns] = &dims[..] else {
        return Err(Fault::Invalid(format!("the input has rank {}; 2 or more was expected", dims.len())));
    };
    let size = cx.number(rows, "the size of the matrix")?;
    if rows != columns {
        return Err(Fault::Invalid(format!("matrices of {rows} by {columns} have no inverse")));
    }
    if size > INVERSE_SIZE_MAX {
        return Err(Fault::Unsupported(format!(
            "inverses of {size}x{size} matrices are not covered; up to {INVERSE_SIZE_MAX}x{INVERSE_SIZE_MAX} are"
        )));
    }
    let dtype = cx.dtype(x);
    // Half floats lose too much on the way.
    let exact = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let count: Dim = batch.iter().product();
    let matrices = cx.reshape(x, vec![count.clone(), rows.clone(), columns.clone()])?;
    let matrices = cx.cast(matrices, exact)?;
    let unit: Vec<f64> = (0..size * size).map(|at| f64::from(u8::from(at / size == at % size))).collect();
    let unit = cx.float_tensor(exact, vec![1, size, size], &unit)?;
    let unit = cx.broadcast(unit, vec![count, rows.clone(), columns.clone()])?;
    let mut both = cx.concat(&[matrices, unit], 2)?;
    for column in 0..size {
        both = eliminate(cx, both, column, size)?;
    }
    let inverse = cx.slice_axis(both, 2, Dim::from(size), Dim::from(size))?;
    let inverse = cx.reshape(inverse, dims)?;
    Ok(vec![cx.cast(inverse, dtype)?])
}

/// Makes a column of [matrices, size, 2 * size] one of the unit matrix. Of the rows that are left the one with the largest
/// element there is the pivot; it changes places with the row of this number.
fn eliminate(cx: &mut NodeCx<'_, '_>, both: ValueId, column: usize, size: usize) -> Result<ValueId, Fault> {
    let dtype = cx.dtype(both);
    let elements = cx.slice_axis(both, 2, Dim::from(column), Dim::ONE)?;
    let sizes = cx.unary(UnaryFn::Abs, elements)?;
    let is_done: Vec<f64> = (0..size).map(|row| f64::from(u8::from(row < column))).collect();
    let is_done = cx.float_tensor(DType::Bool, vec![1, size, 1], &is_done)?;
    let least = cx.scalar(dtype, -1.0)?;
    let sizes = cx.select(is_done, least, sizes)?;
    let pivot = cx.add(ArgReduce { func: ArgFn::Max, axis: 1, keep_dims: true, last: false }, &[sizes])?;
    let numbers = cx.iota(Dim::ZERO, Dim::from(size))?;
    let numbers = cx.reshape(numbers, vec![Dim::ONE, Dim::from(size), Dim::ONE])?;
    let is_pivot = cx.compare(CompareFn::Eq, numbers, pivot)?;

    let chosen = cx.cast(is_pivot, dtype)?;
    let pivot_row = cx.add(Matmul { transpose_a: true, transpose_b: false }, &[chosen, both])?;
    let own_row = cx.slice_axis(both, 1, Dim::from(column), Dim::ONE)?;
    let swapped = cx.select(is_pivot, own_row, both)?;
    let pivot_element = cx.slice_axis(pivot_row, 2, Dim::from(column), Dim::ONE)?;
    let pivot_row = cx.binary(BinaryFn::Div, pivot_row, pivot_element)?;

    let factors = cx.slice_axis(swapped, 2, Dim::from(column), Dim::ONE)?;
    let parts = cx.binary(BinaryFn::Mul, factors, pivot_row)?;
    let others = cx.binary(BinaryFn::Sub, swapped, parts)?;
    let own = cx.int_scalar(column as i64);
    let is_own = cx.compare(CompareFn::Eq, numbers, own)?;
    cx.select(is_own, pivot_row, others)
}

/// What the 16 codes of bitsandbytes' FP4 stand for, as parts of the largest.
const FP4: [f64; 16] = {
    let magnitudes = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut levels = [0.0; 16];
    let mut code = 0;
    while code < 8 {
        levels[code] = magnitudes[code] / 12.0;
        levels[code + 8] = -magnitudes[code] / 12.0;
        code += 1;
    }
    levels
};

/// The same of NF4: quantiles of the normal distribution (QLoRA, appendix E).
const NF4: [f64; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// A product with weights [N, K] of 4 bits, two a byte with the first in its upper half, in blocks of all weights in a row.
pub(super) fn matmul_bnb4(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (a, packed, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let size = |name: &str| match cx.int(name, 0)? {
        number if number > 0 => Ok(number as usize),
        number => Err(Fault::Invalid(format!("attribute '{name}' is {number}; 1 or more was expected"))),
    };
    let (depth, columns, block) = (size("K")?, size("N")?, size("block_size")?);
    let levels = match cx.int("quant_type", 1)? {
        0 => FP4,
        1 => NF4,
        other => return Err(Fault::Invalid(format!("attribute 'quant_type' is {other}; 0 or 1 was expected"))),
    };
    let transpose_b = cx.flag("transB", true)?;
    cx.int("training_mode", 0)?;
    let packed = cx.require_constant(packed, "packed weights")?;
    let scales = cx.require_floats(scales, "the scales of blocks (absmax)")?;
    let count = columns
        .checked_mul(depth)
        .filter(|&count| packed.as_bytes().len() == count.div_ceil(2) && scales.len() == count.div_ceil(block));
    let Some(count) = count else {
        let (bytes, scales) = (packed.as_bytes().len(), scales.len());
        return Err(Fault::Invalid(format!(
            "{bytes} bytes and {scales} scales do not make {columns} by {depth} weights in blocks of {block}"
        )));
    };
    let code = |at: usize| packed.as_bytes()[at / 2] >> (4 * (1 - at % 2)) & 0xf;
    let weights: Vec<f32> =
        (0..count).map(|at| levels[usize::from(code(at))] as f32 * scales[at / block] as f32).collect();
    let weights = Tensor::from_vec(vec![columns, depth], weights).map_err(|error| Fault::Invalid(error.to_string()))?;
    let weights = cx.tensor(weights);
    let weights = cx.cast(weights, cx.dtype(a))?;
    Ok(vec![cx.add(Matmul { transpose_a: false, transpose_b }, &[a, weights])?])
}
