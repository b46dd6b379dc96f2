//! Kernels by family.

pub mod attention;
pub mod conv;
mod conv_depthwise;
mod conv_transpose;
pub mod elementwise;
pub mod epilogue;
pub mod fused;
pub mod fused_epilogue;
pub mod gather_concat;
mod gemv;
pub mod index;
pub mod integer;
pub mod layout;
pub mod matmul;
pub mod norm;
mod offsets;
pub mod product;
pub mod quantize;
pub mod random;
pub mod reduce;
pub mod scatter;
pub mod sequence;
pub mod tiles;
pub mod topk;
pub mod window;
