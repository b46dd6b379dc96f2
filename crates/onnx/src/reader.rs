//! Bytes → checked messages → tensors. Nothing here knows what an operator means.
//!
//! Numbers from a file are never trusted: arithmetic on them is checked, and nothing indexes or casts. The lints
//! below hold every file of this folder to that.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod adapter_file;
mod beneath;
mod data_file;
mod element_type;
mod error;
mod external;
mod file;
mod hold;
mod limits;
mod scan;
mod schema;
mod sparse;
mod strings;
mod tensor_data;

#[cfg(test)]
mod adapter_file_tests;
#[cfg(test)]
mod external_tests;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod tensor_data_tests;

pub use adapter_file::AdapterFile;
pub use data_file::{
    decode_optional, decode_sequence, decode_tensor, decode_type, sparse_tensor_without_model, strings_without_model,
    tensor_without_model,
};
pub use element_type::{
    DeclaredDim, DeclaredTensor, DeclaredType, ElementType, declared_type, dtype_from_number, onnx_name,
    type_from_proto,
};
pub use error::{Quoted, ReadError, ReadErrorKind};
pub use file::{IR_VERSION_MIN, ModelFile, canonical_domain, opset_version};
pub use limits::{Budget, Limits};
pub use strings::StringTensor;
