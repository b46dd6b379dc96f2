//! The inner loops of the CPU target: what runs after everything has been decided.
//!
//! Kernels take plain slices and shapes and know nothing of graphs or operators. Each exists for every `Isa` and
//! gives the same bits for any number of threads. This room may use `unsafe`; callers need none.

#![allow(unsafe_code)]

mod allocation;
pub mod arena;
pub mod arithmetic;
pub mod attention;
pub mod cached_attention;
mod cached_attention_hidden;
mod cached_attention_lines;
mod cached_attention_strips;
#[cfg(target_arch = "x86_64")]
mod cached_attention_tiles;
#[cfg(target_arch = "x86_64")]
mod cached_attention_x86;
pub mod conv;
mod conv_depthwise;
mod conv_depthwise_rows;
pub mod conv_int;
pub mod conv_pair;
mod conv_patches;
mod conv_planes;
pub mod conv_transpose;
mod conv_winograd;
mod conv_winograd_line;
pub mod copy;
mod cores;
pub mod epilogue;
pub mod exact_weights;
pub mod float16;
pub mod gather;
pub mod gather_concat;
pub mod gemm;
pub mod gemm_blocks;
pub mod gemm_blocks_digits;
#[cfg(target_arch = "x86_64")]
mod gemm_blocks_digits_x86;
pub mod gemm_blocks_int;
mod gemm_blocks_int_line;
#[cfg(target_arch = "x86_64")]
mod gemm_blocks_int_x86;
mod gemm_blocks_line;
#[cfg(target_arch = "x86_64")]
mod gemm_blocks_x86;
mod gemm_drive;
pub mod gemm_dynamic;
pub mod gemm_f64;
pub mod gemm_int;
mod gemm_int_tile;
mod gemm_pack;
mod gemm_panelwise;
mod gemm_tile;
mod gemm_tile_words;
pub mod isa;
pub mod math;
pub mod norm;
mod padded_plane;
mod plane_rows;
pub mod pointwise;
mod pointwise_lanes;
mod pointwise_program;
mod pointwise_tiles;
pub mod pool;
pub mod quantize;
pub mod recurrent;
pub mod reduce;
pub mod resize;
mod row_sum;
mod scratch_slots;
mod simd;
pub mod softmax;
#[cfg(test)]
mod test_data;
pub mod topk;
pub mod window;
mod winograd_lanes;
mod winograd_transform;
