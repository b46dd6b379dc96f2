//! Kernels by family.

pub(crate) mod conv;
