//! ONNX files as Precast sees them.
//!
//! `proto` declares the messages of the format; `reader` turns untrusted bytes into checked messages and tensors;
//! `import` makes a Graph of them, operator by operator as `operators` says.
#![forbid(unsafe_code)]

pub mod import;
pub mod operators;
pub mod proto;
mod reader;

pub use import::{ImportError, ImportOptions, Imported, UnsupportedNode, declared_dim, import};
pub use reader::{
    AdapterFile, Budget, DeclaredDim, DeclaredTensor, DeclaredType, ElementType, IR_VERSION_MIN, Limits, ModelFile,
    Quoted, ReadError, ReadErrorKind, StringTensor, canonical_domain, declared_type, decode_optional, decode_sequence,
    decode_tensor, decode_type, dtype_from_number, onnx_name, opset_version, sparse_tensor_without_model,
    strings_without_model, tensor_without_model, type_from_proto,
};
