//! Tensors of strings. They are no Tensors: an import knows them as a table of strings and a tensor of places in it.

use precast_tensor::DType;

use super::error::ReadError;
use super::limits::Limits;
use super::tensor_data::TensorSize;
use crate::proto::TensorProto;

/// A shape and its strings in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StringTensor {
    shape: Vec<usize>,
    elements: Vec<String>,
}

impl StringTensor {
    /// As many strings as the shape has places; none otherwise.
    pub fn new(shape: Vec<usize>, elements: Vec<String>) -> Option<StringTensor> {
        let places = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
        (places == elements.len()).then_some(StringTensor { shape, elements })
    }

    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its strings in row-major order.
    pub fn elements(&self) -> &[String] {
        &self.elements
    }
}

/// Reads the strings that `proto` holds.
pub(super) fn read_strings(proto: &TensorProto, limits: &Limits) -> Result<StringTensor, ReadError> {
    let fault = |problem: String| ReadError::tensor(&proto.name, problem);
    let size = TensorSize::new(&proto.name, DType::U8, &proto.dims, limits)?;
    let has_other_data = proto.raw_data.as_ref().is_some_and(|raw| !raw.is_empty()) || !proto.external_data.is_empty();
    if has_other_data {
        return Err(fault("strings can only lie in string_data".into()));
    }
    if proto.string_data.len() != size.elements {
        let found = proto.string_data.len();
        return Err(fault(format!("{found} strings, expected {} for {:?}", size.elements, size.shape)));
    }
    let elements = proto.string_data.iter().enumerate().map(|(position, bytes)| {
        let text = std::str::from_utf8(bytes).map_err(|_| fault(format!("string {position} is not UTF-8")))?;
        Ok(text.to_string())
    });
    Ok(StringTensor { shape: size.shape, elements: elements.collect::<Result<_, ReadError>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn proto(dims: &[i64], strings: &[&'static [u8]]) -> TensorProto {
        let string_data = strings.iter().map(|bytes| Bytes::from_static(bytes)).collect();
        TensorProto { name: "t".into(), dims: dims.to_vec(), data_type: 8, string_data, ..TensorProto::default() }
    }

    #[test]
    fn strings_fill_their_shape() {
        let read = read_strings(&proto(&[1, 2], &[b"a", "é".as_bytes()]), &Limits::default()).unwrap();
        assert_eq!((read.shape(), read.elements()), (&[1, 2][..], &["a".to_string(), "é".to_string()][..]));
    }

    #[test]
    fn what_is_no_text_or_does_not_fit_is_refused() {
        let message = |proto: &TensorProto| read_strings(proto, &Limits::default()).unwrap_err().to_string();
        assert_eq!(message(&proto(&[2], &[b"a"])), "tensor 't': 1 strings, expected 2 for [2]");
        assert_eq!(message(&proto(&[1], &[b"\xFF"])), "tensor 't': string 0 is not UTF-8");
        assert!(message(&proto(&[-1], &[])).contains("dimension -1 of [-1] is negative"));
        let raw = TensorProto { raw_data: Some(Bytes::from_static(b"x")), ..proto(&[0], &[]) };
        assert_eq!(message(&raw), "tensor 't': strings can only lie in string_data");
    }
}
