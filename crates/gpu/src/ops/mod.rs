//! Kernels by family.

pub mod conv;
pub mod fused_epilogue;
pub mod matmul;
