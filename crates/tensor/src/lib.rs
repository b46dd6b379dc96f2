//! Sizes, element types and host tensors: the vocabulary every other room speaks.
//!
//! `Dim` is an exact integer expression over symbols, `Type` an element type with dims, `Tensor` a type with
//! immutable host bytes. Nothing here knows about operators, file formats or devices.
#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("tensor bytes are little-endian in memory; big-endian machines are not supported");

mod convert;
mod digest;
mod dim;
mod dim_bind;
mod dim_bounds;
pub mod dim_compare;
mod dim_divide;
mod dim_operators;
mod dim_parse;
mod dim_print;
mod dim_simplify;
mod dtype;
mod element;
mod mapping;
pub mod minifloat;
mod packing;
mod philox;
mod symbol;
mod tensor;
mod types;

#[cfg(test)]
mod dim_tests;

pub use digest::{Digest, Hasher, ParseDigestError};
pub use dim::Dim;
pub use dim_bounds::{Ranges, SymbolRange};
pub use dim_compare::{Answer, eq, le, lt};
pub use dim_parse::ParseDimError;
pub use dtype::DType;
pub use element::Element;
pub use mapping::{FilePages, map_file};
pub use philox::philox;
pub use symbol::{Bindings, Symbol};
pub use tensor::{Tensor, TensorError};
pub use types::{ParseTypeError, Type};
