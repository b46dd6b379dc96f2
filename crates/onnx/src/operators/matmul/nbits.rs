//! MatMulNBits: a product with weights packed to 2, 4 or 8 bits, one scale and zero point a block of a column. The
//! weights become a constant of that element type under a `dequantize`, so that they stay small in the Graph.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Dequantize, Matmul};
use precast_tensor::{DType, Dim, Tensor};

use crate::import::{Fault, NodeCx};

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
    let blocks = read_blocks(cx)?;
    // Both are hints for kernels of ONNX Runtime.
    cx.int("accuracy_level", 0)?;
    if cx.int("weight_prepacked", 0)? != 0 {
        return Err(Fault::Unsupported(
            "weights are packed for one kernel: export again without weight_prepacked".into(),
        ));
    }
    let (a, packed, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    check_groups(cx, &blocks)?;
    let weights = unpack_weights(cx, packed, &blocks)?;
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

fn read_blocks(cx: &NodeCx<'_, '_>) -> Result<Blocks, Fault> {
    let size = |name: &str, default: i64| {
        let number = cx.int(name, default)?;
        usize::try_from(number)
            .ok()
            .filter(|&number| number > 0)
            .ok_or_else(|| Fault::Invalid(format!("attribute '{name}' is {number}; 1 or more was expected")))
    };
    let bits = cx.int("bits", 4)?;
    let dtype = match bits {
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        _ => {
            return Err(Fault::Unsupported(format!("{bits}-bit weights are not covered; 2, 4 and 8 are")));
        }
    };
    Ok(Blocks { columns: size("N", 0)?, depth: size("K", 0)?, block: size("block_size", 32)?, dtype })
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

/// Weights [N, K], one element a byte.
fn unpack_weights(cx: &mut NodeCx<'_, '_>, packed: ValueId, blocks: &Blocks) -> Result<ValueId, Fault> {
    let packed = cx.require_constant(packed, "packed weights")?;
    let padded = blocks.count() * blocks.block;
    let rows = unpack(packed.as_bytes(), blocks.columns, padded, blocks.dtype)?;
    let kept: Vec<u8> = rows.chunks(padded).flat_map(|row| row[..blocks.depth].iter().copied()).collect();
    constant(cx, blocks.dtype, vec![blocks.columns, blocks.depth], kept)
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
    let shape = vec![blocks.columns, blocks.count()];
    let op = Dequantize { to: cx.dtype(scales), axis: 1, block: blocks.block };
    let zeros = match cx.optional(3) {
        None => {
            let middle = 1u8 << (blocks.dtype.bits() - 1);
            constant(cx, blocks.dtype, shape.clone(), vec![middle; shape.iter().product()])?
        }
        Some(zeros) if cx.dtype(zeros).is_float() => {
            return dequantize_with_float_zeros(cx, weights, scales, zeros, blocks);
        }
        Some(zeros) => {
            let packed = cx.require_constant(zeros, "packed zero points")?;
            let elements = unpack(packed.as_bytes(), blocks.columns, blocks.count(), blocks.dtype)?;
            constant(cx, blocks.dtype, shape, elements)?
        }
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
