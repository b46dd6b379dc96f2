//! Attributes of the runtime's nodes as messages of ONNX. Graphs are not among them: the runtime gives those with the node.

use std::ffi::c_int;
use std::ptr::null_mut;

use bytes::Bytes;
use precast_onnx::proto::{AttributeProto, AttributeType, TensorProto};

use crate::abi::{OrtOpAttr, OrtValue, attribute_type};
use crate::error::EpError;
use crate::graph::tensor_message;
use crate::runtime::{Runtime, bytes_at};

/// The message of an attribute; none for a graph.
pub(crate) fn read_attribute(runtime: Runtime, attribute: *const OrtOpAttr) -> Result<Option<AttributeProto>, EpError> {
    let api = runtime.api;
    // SAFETY: the attribute is one of a node that lives.
    let name = runtime.text(|name| unsafe { api.op_attr_get_name(attribute, name) })?;
    // SAFETY: as above.
    let kind = runtime.get(0, |kind| unsafe { api.op_attr_get_type(attribute, kind) })?;
    let read = |element_bytes| read_bytes(runtime, attribute, kind, element_bytes);
    let message = AttributeProto { name: name.clone(), ..AttributeProto::default() };
    let message = match kind {
        attribute_type::GRAPH => return Ok(None),
        attribute_type::INT => AttributeProto {
            r#type: Some(AttributeType::Int as i32),
            i: integers(&read(size_of::<i64>())?).first().copied(),
            ..message
        },
        attribute_type::INTS => {
            AttributeProto { r#type: Some(AttributeType::Ints as i32), ints: integers(&read(0)?), ..message }
        }
        attribute_type::FLOAT => AttributeProto {
            r#type: Some(AttributeType::Float as i32),
            f: floats(&read(size_of::<f32>())?).first().copied(),
            ..message
        },
        attribute_type::FLOATS => {
            AttributeProto { r#type: Some(AttributeType::Floats as i32), floats: floats(&read(0)?), ..message }
        }
        attribute_type::STRING => {
            AttributeProto { r#type: Some(AttributeType::String as i32), s: Some(read(0)?.into()), ..message }
        }
        attribute_type::STRINGS => {
            AttributeProto { r#type: Some(AttributeType::Strings as i32), strings: texts(&read(0)?), ..message }
        }
        attribute_type::TENSOR => AttributeProto {
            r#type: Some(AttributeType::Tensor as i32),
            t: Some(Box::new(read_tensor(runtime, attribute)?)),
            ..message
        },
        other => return Err(EpError::other(format!("attribute '{name}' is of kind {other}, which is not known"))),
    };
    Ok(Some(message))
}

/// The bytes of an attribute. Lists and texts tell their size by failing the first time, with a status to release.
fn read_bytes(
    runtime: Runtime,
    attribute: *const OrtOpAttr,
    kind: c_int,
    element_bytes: usize,
) -> Result<Vec<u8>, EpError> {
    let mut needed = element_bytes;
    if needed == 0 {
        // SAFETY: there is room for nothing, so nothing but the size is written.
        let status = unsafe { runtime.api.read_op_attr(attribute, kind, null_mut(), 0, &mut needed) };
        let refused = runtime.check(status);
        if needed == 0 {
            return refused.map(|()| Vec::new());
        }
    }
    // Integers are written as such, so the room is aligned for them.
    let mut room = vec![0u64; needed.div_ceil(size_of::<u64>())];
    let mut written = 0;
    // SAFETY: there is room for as many bytes as are said.
    let status = unsafe { runtime.api.read_op_attr(attribute, kind, room.as_mut_ptr().cast(), needed, &mut written) };
    runtime.check(status)?;
    Ok(bytemuck::cast_slice::<u64, u8>(&room)[..needed.min(written)].to_vec())
}

fn integers(bytes: &[u8]) -> Vec<i64> {
    bytes.as_chunks().0.iter().map(|&chunk| i64::from_ne_bytes(chunk)).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&chunk| f32::from_ne_bytes(chunk)).collect()
}

/// Texts that each end in a zero.
fn texts(bytes: &[u8]) -> Vec<Bytes> {
    let mut texts: Vec<Bytes> = bytes.split(|&byte| byte == 0).map(Bytes::copy_from_slice).collect();
    texts.pop();
    texts
}

/// A tensor of the runtime's that is released when this is dropped.
struct OwnedValue(Runtime, *mut OrtValue);

impl Drop for OwnedValue {
    fn drop(&mut self) {
        // SAFETY: it was given to us and is not used again.
        unsafe { self.0.api.release_value(self.1) };
    }
}

fn read_tensor(runtime: Runtime, attribute: *const OrtOpAttr) -> Result<TensorProto, EpError> {
    // SAFETY: the attribute holds a tensor.
    let value = runtime.get(null_mut(), |value| unsafe { runtime.api.op_attr_get_tensor(attribute, value) })?;
    let value = OwnedValue(runtime, value);
    tensor_message(runtime, "", value.1, |address, bytes| {
        // SAFETY: the bytes are the value's, which lives; they are copied.
        Bytes::copy_from_slice(unsafe { bytes_at(address, bytes) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_lies_before_each_zero() {
        assert_eq!(texts(b""), Vec::<Bytes>::new());
        assert_eq!(texts(b"\0"), [Bytes::new()]);
        assert_eq!(texts(b"ab\0\0c\0"), ["ab", "", "c"].map(Bytes::from));
    }
}
