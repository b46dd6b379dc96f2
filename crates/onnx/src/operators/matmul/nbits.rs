//! MatMulNBits: a product with weights packed to 2, 4 or 8 bits, one scale and zero point a block of a column. The
//! weights stay the file's bytes under an `unpack` and a `dequantize`, so that they stay small in the Graph.
//! MatMulNBitsMlp and MatMulNBitsQkv: several such products of one operand, which is normalised before them.
//! GatherBlockQuantized: rows of such a matrix, as embeddings that share it with the product at the end have it.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Dequantize, Matmul, RmsNorm, UnaryFn, Unpack};
use precast_tensor::{DType, Dim, Tensor};

use crate::import::{Fault, NodeCx};

/// Default of what keeps the root in the norm before a gated product from 0.
const MLP_EPSILON: f64 = 1e-5;
/// The same before the products for queries, keys and values.
const QKV_EPSILON: f64 = 1e-6;

/// Sizes of the weights: `columns` (N) by `depth` (K), in blocks along the depth.
struct Blocks {
    columns: usize,
    depth: usize,
    block: usize,
    dtype: DType,
}

impl Blocks {
    fn count(&self) -> usize {
        self.depth.div_ceil(self.block)
    }
}

pub(super) fn matmul_nbits(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let blocks = read_blocks(cx, "N")?;
    // Both are hints for kernels of ONNX Runtime.
    cx.int("accuracy_level", 0)?;
    if cx.int("weight_prepacked", 0)? != 0 {
        return Err(Fault::Unsupported(
            "weights are packed for one kernel: export again without weight_prepacked".into(),
        ));
    }
    let (a, packed, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    check_groups(cx, &blocks)?;
    let weights = unpack_weights(cx, packed, &blocks, cx.optional(3).is_some())?;
    let dtype = cx.dtype(a);
    let scales = cx.cast(scales, dtype)?;
    let scales = cx.reshape(scales, vec![Dim::from(blocks.columns), Dim::from(blocks.count())])?;
    let weights = dequantize(cx, weights, scales, &blocks)?;
    let mut y = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[a, weights])?;
    if let Some(bias) = cx.optional(5) {
        y = cx.binary(BinaryFn::Add, y, bias)?;
    }
    Ok(vec![y])
}

/// MatMulNBitsMlp: activation(A · gate) times A · up, where A may be normalised first, behind a sum with a skip.
pub(super) fn matmul_nbits_mlp(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let blocks = read_blocks(cx, "N")?;
    let (a, sum) = normalised(cx, MLP_EPSILON)?;
    let gate = product_at(cx, a, 3, &blocks)?;
    let up = product_at(cx, a, 6, &blocks)?;
    let gate = match cx.string("activation", "")?.to_lowercase().as_str() {
        "silu" | "swish" => cx.unary_with(UnaryFn::Silu, 1.0, 0.0, gate)?,
        "gelu" => cx.unary(UnaryFn::GeluErf, gate)?,
        "relu" => cx.unary(UnaryFn::Relu, gate)?,
        other => return Err(Fault::Invalid(format!("attribute 'activation' is '{other}'; silu was expected"))),
    };
    Ok(vec![cx.binary(BinaryFn::Mul, gate, up)?, sum])
}

/// MatMulNBitsQkv: queries, keys and values of a normalised A, behind a sum with a skip where one is given.
pub(super) fn matmul_nbits_qkv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let (of_queries, of_keys) = (read_blocks(cx, "Nq")?, read_blocks(cx, "Nkv")?);
    let (a, sum) = normalised(cx, QKV_EPSILON)?;
    let query = product_at(cx, a, 3, &of_queries)?;
    let (key, value) = (product_at(cx, a, 6, &of_keys)?, product_at(cx, a, 9, &of_keys)?);
    Ok(vec![query, key, value, sum])
}

/// The first input plus the skip at position 1, normalised by the scale at position 2, where these are given; and the sum.
fn normalised(cx: &mut NodeCx<'_, '_>, epsilon: f64) -> Result<(ValueId, ValueId), Fault> {
    let epsilon = cx.float("epsilon", epsilon)?;
    // A hint for kernels of ONNX Runtime.
    cx.int("accuracy_level", 0)?;
    let mut a = cx.input(0)?;
    if let Some(skip) = cx.optional(1) {
        a = cx.binary(BinaryFn::Add, a, skip)?;
    }
    let Some(scale) = cx.optional(2) else { return Ok((a, a)) };
    let axis = cx.axis(-1, cx.rank(a))?;
    Ok((cx.add(RmsNorm { axis, epsilon }, &[a, scale])?, a))
}

/// a times packed weights at a position, with scales and a bias at the next two.
fn product_at(cx: &mut NodeCx<'_, '_>, a: ValueId, at: usize, blocks: &Blocks) -> Result<ValueId, Fault> {
    let weights = unpack_weights(cx, cx.input(at)?, blocks, false)?;
    let scales = cx.cast(cx.input(at + 1)?, cx.dtype(a))?;
    let scales = cx.reshape(scales, vec![Dim::from(blocks.columns), Dim::from(blocks.count())])?;
    let op = Dequantize { to: cx.dtype(scales), axis: 1, block: blocks.block };
    let weights = cx.add(op, &[weights, scales])?;
    let y = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[a, weights])?;
    match cx.optional(at + 2) {
        Some(bias) => cx.binary(BinaryFn::Add, y, bias),
        None => Ok(y),
    }
}

/// Rows of a matrix in blocks of few bits. Levels that are packed into bytes are counted from the middle one, those of a
/// type of few bits from 0, unless zero points are given.
pub(super) fn gather_block_quantized(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let (data, indices, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (bits, block) = (cx.int("bits", 4)?, cx.int("block_size", 128)?);
    let (gather_axis, quantize_axis) = (cx.int("gather_axis", 0)?, cx.int("quantize_axis", 1)?);
    let rank = cx.rank(data);
    if rank != 2 || cx.axis(gather_axis, rank)? != 0 || cx.axis(quantize_axis, rank)? != 1 {
        return Err(Fault::Unsupported("only rows of a matrix with blocks along its columns are covered".to_string()));
    }
    let dtype = match (cx.dtype(data), bits) {
        (DType::U8, 2) => DType::U2,
        (DType::U8, 4) => DType::U4,
        (DType::U8, 8) => DType::U8,
        (few @ (DType::I4 | DType::U4), _) => few,
        (dtype, bits) => {
            return Err(Fault::Unsupported(format!("{bits}-bit levels in elements of type {dtype} are not covered")));
        }
    };
    let block = usize::try_from(block).ok().filter(|&block| block > 0);
    let block = block.ok_or_else(|| Fault::Invalid("attribute 'block_size' is not positive".to_string()))?;
    let is_packed = cx.dtype(data) == DType::U8;
    let per_byte = if is_packed { 8 / dtype.bits() as usize } else { 1 };
    let columns = cx.number(&cx.dims(data)[0].clone(), "the rows of the matrix")?;
    let depth = per_byte * cx.number(&cx.dims(data)[1].clone(), "the columns of the matrix")?;
    let blocks = Blocks { columns, depth, block, dtype };
    let scales = cx.reshape(scales, vec![Dim::from(columns), Dim::from(blocks.count())])?;
    let rows = cx.gather(data, indices, 0)?;
    let levels = if is_packed { unpack_rows(cx, rows, level_type(dtype, cx.optional(3).is_some()))? } else { rows };
    let mut parts = vec![levels, cx.gather(scales, indices, 0)?];
    if let Some(zeros) = cx.optional(3) {
        let zeros = match is_packed {
            true => unpack_zero_points(cx, zeros, &blocks)?,
            false => zeros,
        };
        parts.push(cx.gather(zeros, indices, 0)?);
    }
    let op = Dequantize { to: cx.dtype(scales), axis: cx.rank(parts[0]) - 1, block };
    Ok(vec![cx.add(op, &parts)?])
}

/// The sizes that attributes give; the one that counts columns has this name.
fn read_blocks(cx: &NodeCx<'_, '_>, columns: &str) -> Result<Blocks, Fault> {
    let size = |name: &str, default: i64| {
        let number = cx.int(name, default)?;
        usize::try_from(number)
            .ok()
            .filter(|&number| number > 0)
            .ok_or_else(|| Fault::Invalid(format!("attribute '{name}' is {number}; 1 or more was expected")))
    };
    let dtype = type_of_bits(cx.int("bits", 4)?)?;
    Ok(Blocks { columns: size(columns, 0)?, depth: size("K", 0)?, block: size("block_size", 32)?, dtype })
}

/// The unsigned type of so many bits.
pub(super) fn type_of_bits(bits: i64) -> Result<DType, Fault> {
    match bits {
        2 => Ok(DType::U2),
        4 => Ok(DType::U4),
        8 => Ok(DType::U8),
        _ => Err(Fault::Unsupported(format!("{bits}-bit weights are not covered; 2, 4 and 8 are"))),
    }
}

/// `g_idx` names the block of every row; only the order that it has without `g_idx` is covered.
fn check_groups(cx: &NodeCx<'_, '_>, blocks: &Blocks) -> Result<(), Fault> {
    let Some(groups) = cx.optional(4) else { return Ok(()) };
    let groups = cx.require_ints(groups, "the block of each row (g_idx)")?;
    if groups.iter().enumerate().all(|(row, &group)| group == (row / blocks.block) as i64) {
        return Ok(());
    }
    Err(Fault::Unsupported("rows are not in the order of their blocks (g_idx): export without act-order".to_string()))
}

/// Weights [N, K] of packed rows. They stay packed in the Graph: what reads them unpacks them.
fn unpack_weights(
    cx: &mut NodeCx<'_, '_>,
    packed: ValueId,
    blocks: &Blocks,
    has_zero_points: bool,
) -> Result<ValueId, Fault> {
    let tensor = cx.require_constant(packed, "packed weights")?;
    let per_byte = 8 / blocks.dtype.bits() as usize;
    // Rows of a product's weights are padded to whole blocks.
    let padded = blocks.count() * blocks.block;
    let row_bytes = padded.div_ceil(per_byte);
    let (found, expected) = (tensor.as_bytes().len(), blocks.columns * row_bytes);
    if found != expected || tensor.dtype() != DType::U8 {
        return Err(Fault::Invalid(format!("{found} bytes of packed elements; {expected} were expected")));
    }
    let packed = cx.reshape(packed, vec![Dim::from(blocks.columns), Dim::from(row_bytes)])?;
    let levels = unpack_rows(cx, packed, level_type(blocks.dtype, has_zero_points))?;
    match row_bytes * per_byte == blocks.depth {
        true => Ok(levels),
        false => cx.slice_axis(levels, 1, Dim::ZERO, Dim::from(blocks.depth)),
    }
}

/// The type of levels. Without zero points the middle level stands for 0: signed levels say so without a tensor of them.
pub(super) fn level_type(dtype: DType, has_zero_points: bool) -> DType {
    if has_zero_points { dtype } else { signed(dtype) }
}

/// The levels in packed rows.
pub(super) fn unpack_rows(cx: &mut NodeCx<'_, '_>, packed: ValueId, to: DType) -> Result<ValueId, Fault> {
    if to == cx.dtype(packed) {
        return Ok(packed);
    }
    cx.add(Unpack { to }, &[packed])
}

/// The signed type of as many bits.
fn signed(dtype: DType) -> DType {
    match dtype {
        DType::U2 => DType::I2,
        DType::U4 => DType::I4,
        _ => DType::I8,
    }
}

/// Zero points [N, blocks], one element a byte.
fn unpack_zero_points(cx: &mut NodeCx<'_, '_>, zeros: ValueId, blocks: &Blocks) -> Result<ValueId, Fault> {
    let packed = cx.require_constant(zeros, "packed zero points")?;
    let elements = unpack(packed.as_bytes(), blocks.columns, blocks.count(), blocks.dtype)?;
    constant(cx, blocks.dtype, vec![blocks.columns, blocks.count()], elements)
}

/// Elements of `rows` rows of `length`, each row packed by itself with its first element in the lowest bits.
fn unpack(bytes: &[u8], rows: usize, length: usize, dtype: DType) -> Result<Vec<u8>, Fault> {
    let bits = dtype.bits() as usize;
    let per_byte = 8 / bits;
    let row_bytes = length.div_ceil(per_byte);
    if bytes.len() != rows * row_bytes {
        return Err(Fault::Invalid(format!(
            "{} bytes of packed elements; {} were expected",
            bytes.len(),
            rows * row_bytes
        )));
    }
    let mask = u8::MAX >> (8 - bits);
    let element = |row: &[u8], position: usize| (row[position / per_byte] >> (bits * (position % per_byte))) & mask;
    Ok(bytes.chunks(row_bytes).flat_map(|row| (0..length).map(move |position| element(row, position))).collect())
}

/// (weights - zero point) * scale, a block at a time.
fn dequantize(cx: &mut NodeCx<'_, '_>, weights: ValueId, scales: ValueId, blocks: &Blocks) -> Result<ValueId, Fault> {
    let op = Dequantize { to: cx.dtype(scales), axis: 1, block: blocks.block };
    let zeros = match cx.optional(3) {
        None => return cx.add(op, &[weights, scales]),
        Some(zeros) if cx.dtype(zeros).is_float() => {
            return dequantize_with_float_zeros(cx, weights, scales, zeros, blocks);
        }
        Some(zeros) => unpack_zero_points(cx, zeros, blocks)?,
    };
    cx.add(op, &[weights, scales, zeros])
}

/// Zero points that are floats are subtracted after the scale, as zero point times scale.
fn dequantize_with_float_zeros(
    cx: &mut NodeCx<'_, '_>,
    weights: ValueId,
    scales: ValueId,
    zeros: ValueId,
    blocks: &Blocks,
) -> Result<ValueId, Fault> {
    let (columns, count) = (Dim::from(blocks.columns), Dim::from(blocks.count()));
    let zeros = cx.cast(zeros, cx.dtype(scales))?;
    let zeros = cx.reshape(zeros, vec![columns.clone(), count.clone()])?;
    let offsets = cx.binary(BinaryFn::Mul, zeros, scales)?;
    let offsets = cx.unsqueeze(offsets, &[2])?;
    let offsets = cx.broadcast(offsets, vec![columns.clone(), count, Dim::from(blocks.block)])?;
    let offsets = cx.reshape(offsets, vec![columns, Dim::from(blocks.count() * blocks.block)])?;
    let offsets = cx.slice_axis(offsets, 1, Dim::ZERO, Dim::from(blocks.depth))?;
    let op = Dequantize { to: cx.dtype(scales), axis: 1, block: blocks.block };
    let scaled = cx.add(op, &[weights, scales])?;
    cx.binary(BinaryFn::Sub, scaled, offsets)
}

fn constant(cx: &mut NodeCx<'_, '_>, dtype: DType, shape: Vec<usize>, elements: Vec<u8>) -> Result<ValueId, Fault> {
    let tensor = Tensor::new(dtype, shape, elements.into()).map_err(|error| Fault::Invalid(error.to_string()))?;
    Ok(cx.tensor(tensor))
}
