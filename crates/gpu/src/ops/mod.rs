//! Kernels by family.
