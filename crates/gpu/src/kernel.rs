//! A kernel as the target writes it: text, shape of the launch, and which buffers its arguments are.

use precast_tensor::Tensor;
use serde::{Deserialize, Serialize};

/// What every kernel text starts from.
pub const PRELUDE: &str = concat!(include_str!("text/prelude.h"), include_str!("text/functions.h"));
/// The host's part of it, for tests without a GPU.
pub const HOST: &str = include_str!("text/host.h");

/// Matrix instructions, for kernels that name them.
pub const MATRIX: &str = include_str!("text/matrix.h");
/// Where operands of products lie.
pub const PRODUCT_SOURCES: &str = include_str!("text/tile_sources.h");
/// Windows of convolutions as operands of products.
pub const PRODUCT_WINDOWS: &str = include_str!("text/window_rows.h");
/// Places of images as operands of products.
pub const PRODUCT_POINTS: &str = include_str!("text/point_rows.h");
/// Division by a parameter of a kernel.
pub const DIVISOR: &str = include_str!("text/divisor.h");
/// The first elements of a long line in order.
pub const TOPK_SELECT: &str = include_str!("text/topk_select.h");
/// How tiles of 16-bit operands come to shared memory.
pub const TILE_COPIES: &str = include_str!("text/tile_copies.h");
/// Products on the matrix instructions of a warp.
pub const PRODUCT_MMA: &str = include_str!("text/gemm_mma.h");
/// Products on the matrix instructions of four warps together.
pub const PRODUCT_GROUP: &str = include_str!("text/gemm_group.h");
/// A block's part of a product on matrix instructions.
pub const TILE_PRODUCT: &str = include_str!("text/tile_product.h");
/// Products by multiply-add.
pub const PRODUCT_FMA: &str = include_str!("text/gemm_fma.h");
/// The end of products.
pub const PRODUCT_FINISH: &str = include_str!("text/finish.h");
/// Depthwise convolutions.
pub const CONV_DEPTHWISE: &str = include_str!("text/conv_depthwise.h");
/// Transposed convolutions.
pub const CONV_TRANSPOSE: &str = include_str!("text/conv_transpose.h");

/// Rows of a stream.
pub const STREAM_ROWS: &str = include_str!("text/stream_rows.h");
/// Matrices of a stream that are floats.
pub const STREAM_FLOATS: &str = include_str!("text/stream_floats.h");
/// Matrices of a stream that are blocks of few bits.
pub const STREAM_BLOCKS: &str = include_str!("text/stream_blocks.h");
/// Products of few rows with constant matrices, normed before and finished after.
pub const STREAM: &str = include_str!("text/stream.h");
/// What rows and matrices of a stream on matrix instructions consist of.
pub const STREAM_MMA_LINES: &str = include_str!("text/stream_mma_lines.h");
/// Matrices of such a stream that are floats.
pub const STREAM_MMA_FLOATS: &str = include_str!("text/stream_mma_floats.h");
/// Matrices of such a stream that are blocks of 4 bits.
pub const STREAM_MMA_BLOCKS: &str = include_str!("text/stream_mma_blocks.h");
/// The same as `STREAM`, on matrix instructions.
pub const STREAM_MMA: &str = include_str!("text/stream_mma.h");
/// Products of few rows.
pub const GEMV: &str = include_str!("text/gemv.h");
/// Attentions on matrix instructions.
pub const ATTENTION_MMA: &str = include_str!("text/attention_mma.h");
/// Attentions behind a cache.
pub const CACHED_ATTENTION: &str = include_str!("text/cached_attention.h");
/// New tokens behind cached ones.
pub const APPEND_TO_CACHE: &str = include_str!("text/append_to_cache.h");
/// Places of the best elements of long rows.
pub const ARG_REDUCE_PARTS: &str = include_str!("text/arg_reduce_parts.h");
/// Attentions by multiply-add.
pub const ATTENTION_FMA: &str = include_str!("text/attention_fma.h");

/// Whose compiler and driver a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Hip,
}

/// What kernels are generated for: found by a door, read by the compiler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    /// Whose.
    pub vendor: Vendor,
    /// Name as the vendor's compiler takes it: `sm_90a`, `gfx90a`.
    pub name: String,
    /// Threads of a warp.
    pub warp: u32,
    /// Shared memory that one block may have.
    pub shared_bytes_max: u32,
    /// Multiprocessors, for choosing how far to split work.
    pub multiprocessors: u32,
}

/// A buffer of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operand {
    /// Operand of the node, by position.
    Read(u32),
    /// Result of the node, by position.
    Write(u32),
    /// Memory between two launches of one step, by position.
    Scratch(u32),
    /// A constant made while lowering, by position.
    Packed(u32),
}

/// One launch of a kernel. Its parameters are the operands' addresses in order, then the scalars, 8 bytes each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Name of the kernel in its text.
    pub entry: String,
    /// Text after the prelude: canonical, without names of nodes.
    pub text: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Buffers, in the order of the kernel's parameters.
    pub operands: Vec<Operand>,
    /// Further parameters, each a `long long`.
    pub scalars: Vec<i64>,
    /// By operand: of how many bytes the rows of a caller's buffer must be multiples, where the text takes one with fewer rows than
    /// the Program's (`Arg::rows`); 0, or nothing, where it takes only whole ones.
    pub row_bytes: Vec<u64>,
}

/// What a kernel is declared by whose blocks along the third axis of the grid its launch makes a cluster.
pub(crate) const CLUSTERED: &str = "KERNEL_CLUSTERED(";

impl Launch {
    /// Whether its blocks along the third axis of the grid have to be launched as a cluster. Texts that say themselves how many
    /// blocks a cluster has need nothing of the launch.
    pub fn is_clustered(&self) -> bool {
        // With the name: texts with `MATRIX` have the macro itself.
        self.text.contains(&format!("{CLUSTERED}{},", self.entry))
    }
}

/// What a node becomes.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Name for people: `pointwise`, `gemm.mma.128x128`.
    pub name: String,
    /// Launches in order, on one stream.
    pub launches: Vec<Launch>,
    /// Sizes of the scratch buffers.
    pub scratch_bytes: Vec<u64>,
    /// Constants made while lowering.
    pub packed: Vec<Tensor>,
}

impl Lowered {
    /// A node that is one launch without scratch memory.
    pub fn one(name: impl Into<String>, launch: Launch) -> Lowered {
        Lowered { name: name.into(), launches: vec![launch], scratch_bytes: Vec::new(), packed: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_clustered_where_its_kernel_is_declared_so() {
        let launch = |kernel: &str| Launch {
            entry: "product".to_string(),
            text: format!("{MATRIX}{kernel}product, 32, i64 rows) {{}}\n"),
            grid: [1, 1, 12],
            block: [32, 1, 1],
            shared_bytes: 0,
            operands: Vec::new(),
            scalars: Vec::new(),
            row_bytes: Vec::new(),
        };
        assert!(!launch("KERNEL(").is_clustered());
        assert!(launch(CLUSTERED).is_clustered());
    }
}
