//! The matrix of a product of few rows as it lies in memory: elements of the rows' type, or levels of few bits with a scale, and
//! perhaps a zero point, for each block of them.

use std::fmt::Write as _;

use precast_ir::op::{Dequantize, Matmul};
use precast_ir::{Definition, Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::element::memory_type;
use crate::kernel::{Operand, STREAM_BLOCKS, STREAM_FLOATS, STREAM_MMA_BLOCKS, STREAM_MMA_FLOATS};
use crate::ops::gemv::transposed;
use crate::ops::offsets::common_width;
use crate::site::{Site, dense_strides};

/// Bytes that a lane reads at once.
const LINE_BYTES: usize = 16;
/// Elements of 16 bits in such a line, and what a lane may have of a matrix for matrix instructions: of elements a line, of
/// levels of 4 bits as many as that or fewer.
const MMA_LINE: usize = 8;
const MMA_LANES: [usize; 3] = [32, 16, MMA_LINE];
/// The highest bit of a byte.
const SIGN: u32 = 1 << 7;

/// How the matrices of all products of a body lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// As elements.
    Floats,
    /// As levels.
    Blocks(Blocks),
}

/// Levels of few bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Bits of a level: 4 or 8.
    bits: usize,
    /// Successive levels along K that share a scale.
    block: usize,
    /// Bits that are the other way round in memory: the highest one of signed bytes.
    flip: u32,
    /// The level that stands for 0 where no zero point says another.
    origin: u32,
    scales: DType,
    zeros: Option<DType>,
}

/// One matrix.
pub struct Weights {
    /// How it lies.
    pub form: Form,
    /// Positions of its parts among the body's inputs: elements; or levels, scales and zero points.
    inputs: Vec<usize>,
    /// Whether elements along K are not neighbours yet.
    is_turned: bool,
}

impl Weights {
    /// The constant matrix of a product in a body; none where it is something else.
    pub fn of(site: &Site, body: &Graph, product: &Node) -> Option<Weights> {
        let Op::Matmul(Matmul { transpose_a: false, transpose_b }) = product.op else { return None };
        let input = |value: ValueId| body.inputs().iter().position(|&input| input == value);
        let constant = |value: ValueId| input(value).filter(|&at| site.constant(at).is_some());
        let dtype = body.ty(product.inputs[0]).dtype;
        if let Some(at) = constant(product.inputs[1]) {
            let is_matrix = site.shape(at).len() == 2 && site.dtype(at) == dtype;
            return is_matrix.then_some(Weights { form: Form::Floats, inputs: vec![at], is_turned: !transpose_b });
        }
        let node_of = |value: ValueId| match body.value(value).definition {
            Definition::Node { node, .. } => Some(body.node(node)),
            _ => None,
        };
        let scaling = node_of(product.inputs[1])?;
        let Op::Dequantize(Dequantize { to, axis: 1, block }) = scaling.op else { return None };
        let levels = scaling.inputs[0];
        let unpack = node_of(levels).filter(|node| matches!(node.op, Op::Unpack(_)));
        let (least, _) = body.ty(levels).dtype.int_range()?;
        // Levels that are not packed lie one a byte, signed ones with their sign.
        let (bits, flip, origin) = match unpack {
            Some(_) => (body.ty(levels).dtype.bits() as usize, 0, least.unsigned_abs() as u32),
            None if least < 0 => (8, SIGN, SIGN),
            None => (8, 0, 0),
        };
        let blocks = Blocks {
            bits,
            block,
            flip,
            origin,
            scales: body.ty(scaling.inputs[1]).dtype,
            zeros: scaling.inputs.get(2).map(|&zeros| body.ty(zeros).dtype),
        };
        let source = unpack.map_or(levels, |node| node.inputs[0]);
        let parts = std::iter::once(source).chain(scaling.inputs[1..].iter().copied());
        let inputs: Vec<usize> = parts.map(constant).collect::<Option<_>>()?;
        let is_small = matches!(body.ty(levels).dtype, DType::I4 | DType::U4 | DType::I8 | DType::U8);
        let is_float = matches!(blocks.scales, DType::F16 | DType::BF16 | DType::F32);
        let is_legal = is_small && is_float && to == dtype && transpose_b && block > 0;
        is_legal.then_some(Weights { form: Form::Blocks(blocks), inputs, is_turned: false })
    }

    /// What a kernel reads of it; elements are turned where they must be.
    pub fn operands(&self, site: &Site, [n, k]: [usize; 2], packed: &mut Vec<Tensor>) -> Option<Vec<Operand>> {
        if self.is_turned {
            packed.push(transposed(site.constant(self.inputs[0])?, k, n)?);
            return Some(vec![Operand::Packed(packed.len() as u32 - 1)]);
        }
        Some(self.inputs.iter().map(|&input| Operand::Read(input as u32)).collect())
    }

    /// Whether its parts lie in row-major order.
    pub fn is_dense(&self, site: &Site) -> bool {
        self.inputs.iter().all(|&input| site.strides(input) == dense_strides(&site.shape(input), false))
    }
}

impl Form {
    /// Whether matrices lie as elements.
    pub fn is_floats(&self) -> bool {
        matches!(self, Form::Floats)
    }

    /// Successive elements along K that a lane takes at a time, and how many elements of `row_type` it reads at once; none where
    /// rows do not consist of whole ones.
    pub fn lane(&self, warp: usize, k: usize, row_type: DType) -> Option<[usize; 2]> {
        let vec = common_width(LINE_BYTES / row_type.size_bytes(), &[k]);
        let Form::Blocks(Blocks { bits, block, .. }) = *self else { return Some([vec, vec]) };
        // Whole words of levels, and of a row as much as lies in one block: the most of it that leaves few lanes idle.
        let sizes = [16, 8, 4].map(|bytes| bytes * 8 / bits);
        let is_legal = |size: &usize| k.is_multiple_of(*size) && block.is_multiple_of(*size);
        let padded = |size: usize| k.next_multiple_of(warp * size);
        let sizes = sizes.into_iter().filter(is_legal);
        let best = sizes.min_by_key(|&size| (padded(size), std::cmp::Reverse(size)))?;
        Some([best, vec.min(best)])
    }

    /// Successive elements along K that a lane takes at a time where matrix instructions multiply them; none where they do not:
    /// levels become elements of `row_type` two at a time if they have 4 bits, and scales are of that type.
    pub fn mma_lane(&self, k: usize, row_type: DType) -> Option<usize> {
        let is_short = matches!(row_type, DType::F16 | DType::BF16);
        let is_legal = |size: &usize| match *self {
            Form::Floats => *size == MMA_LINE,
            Form::Blocks(Blocks { bits, block, scales, .. }) => {
                bits == 4 && scales == row_type && block.is_multiple_of(*size)
            }
        };
        MMA_LANES.into_iter().filter(|_| is_short).find(|size| k.is_multiple_of(*size) && is_legal(size))
    }

    /// Lines of text that say how matrices lie, and the text that reads them.
    pub fn text(&self) -> Option<String> {
        let reader = if self.is_floats() { STREAM_FLOATS } else { STREAM_BLOCKS };
        Some(self.constants()? + reader)
    }

    /// The same where matrix instructions multiply.
    pub fn mma_text(&self) -> Option<String> {
        let reader = if self.is_floats() { STREAM_MMA_FLOATS } else { STREAM_MMA_BLOCKS };
        Some(self.constants()? + reader)
    }

    fn constants(&self) -> Option<String> {
        let Form::Blocks(Blocks { bits, block, flip, origin, scales, zeros }) = *self else {
            return Some(String::new());
        };
        let (scale_type, zero_type) = (memory_type(scales)?, memory_type(zeros.unwrap_or(DType::U8))?);
        let mut text = format!("typedef {scale_type} S;\ntypedef {zero_type} Z;\n");
        let has_zeros = zeros.is_some();
        let _ =
            writeln!(text, "constexpr int BITS = {bits}, BLOCK = {block};\nconstexpr bool HAS_ZEROS = {has_zeros};");
        let _ = writeln!(text, "constexpr u32 FLIP = {flip}u;\nconstexpr f32 ORIGIN = {origin};");
        Some(text)
    }

    /// Types of the parts of a matrix in text.
    pub fn parts(&self) -> &'static [&'static str] {
        match self {
            Form::Floats => &["T"],
            Form::Blocks(Blocks { zeros: None, .. }) => &["u8", "S"],
            Form::Blocks(_) => &["u8", "S", "Z"],
        }
    }

    /// What a step's name says of it.
    pub fn suffix(&self) -> String {
        match self {
            Form::Floats => String::new(),
            Form::Blocks(blocks) => format!(".{}bit", blocks.bits),
        }
    }
}
