//! Kernels by family.

pub mod attention;
mod c_text;
pub mod conv;
mod conv_depthwise;
mod conv_transpose;
pub mod epilogue;
pub mod fused_epilogue;
mod gemv;
pub mod matmul;
pub mod product;
pub mod tiles;
