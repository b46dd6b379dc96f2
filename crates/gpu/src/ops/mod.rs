//! Kernels by family.

pub mod conv;
pub mod elementwise;
pub mod fused;
pub mod fused_epilogue;
pub mod index;
pub mod integer;
pub mod layout;
pub mod matmul;
pub mod norm;
pub mod quantize;
pub mod random;
pub mod reduce;
pub mod scatter;
pub mod sequence;
pub mod topk;
pub mod window;
