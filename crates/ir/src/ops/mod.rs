//! Meaning of every op, one file a family: its Type rule and its reference evaluation. `shape` holds what the
//! families share: index arithmetic, broadcasting, and reading elements as numbers. `raw` moves elements as bytes.

pub mod attention;
pub mod cache;
pub mod control;
pub mod conv;
pub mod elementwise;
pub mod function;
pub mod index;
pub mod layout;
pub mod matmul;
pub mod norm;
pub mod quantize;
pub mod random;
pub mod reduce;
pub mod sequence;
pub mod shape;
pub mod window;

mod geometry;
mod nms;
mod raw;
mod scatter;

#[cfg(test)]
pub(crate) mod test_tensor;
