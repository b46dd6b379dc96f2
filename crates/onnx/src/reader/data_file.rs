//! Files that hold one value instead of a model, such as the inputs and outputs of conformance cases.
//!
//! They pass the same scan and limits as models; they have no folder, so external data is refused.

use bytes::Bytes;
use precast_tensor::Tensor;

use super::error::ReadError;
use super::external::ExternalFiles;
use super::file::decode;
use super::limits::Limits;
use super::schema::Kind;
use super::sparse::read_sparse_tensor;
use super::strings::{StringTensor, read_strings};
use super::tensor_data::read_tensor;
use crate::proto::{OptionalProto, SequenceProto, SparseTensorProto, TensorProto, TypeProto};

/// Decodes a file that holds one tensor.
pub fn decode_tensor(bytes: &Bytes, limits: &Limits) -> Result<TensorProto, ReadError> {
    decode(bytes, Kind::Tensor, limits)
}

/// Decodes a file that holds one sequence.
pub fn decode_sequence(bytes: &Bytes, limits: &Limits) -> Result<SequenceProto, ReadError> {
    decode(bytes, Kind::Sequence, limits)
}

/// Decodes a file that holds one optional value.
pub fn decode_optional(bytes: &Bytes, limits: &Limits) -> Result<OptionalProto, ReadError> {
    decode(bytes, Kind::Optional, limits)
}

/// Decodes a declared type on its own.
pub fn decode_type(bytes: &Bytes, limits: &Limits) -> Result<TypeProto, ReadError> {
    decode(bytes, Kind::Type, limits)
}

/// The tensor of a message that belongs to no model.
pub fn tensor_without_model(proto: &TensorProto, limits: &Limits) -> Result<Tensor, ReadError> {
    read_tensor(proto, limits, &ExternalFiles::new(None))
}

/// The strings of a message that belongs to no model.
pub fn strings_without_model(proto: &TensorProto, limits: &Limits) -> Result<StringTensor, ReadError> {
    read_strings(proto, limits)
}

/// The dense form of a sparse tensor that belongs to no model.
pub fn sparse_tensor_without_model(proto: &SparseTensorProto, limits: &Limits) -> Result<Tensor, ReadError> {
    read_sparse_tensor(proto, limits, &ExternalFiles::new(None))
}
