//! Sub-byte elements as files pack them: several to a byte, the first in the low bits.

use bytes::Bytes;

use crate::tensor::{byte_count, bytes_of_vec};
use crate::{DType, Tensor, TensorError};

impl Tensor {
    /// Elements as a file has them: unpacked to one a byte for sub-byte types, the bytes themselves otherwise.
    /// Unused bits of the last byte are ignored.
    pub fn from_packed(dtype: DType, shape: impl Into<Vec<usize>>, packed: Bytes) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        let bits = dtype.bits();
        if bits >= 8 {
            return Tensor::new(dtype, shape, packed);
        }
        let count = byte_count(dtype, &shape)?;
        let per_byte = (8 / bits) as usize;
        let expected = count.div_ceil(per_byte);
        if packed.len() != expected {
            return Err(TensorError::ByteCount { dtype, shape, expected, actual: packed.len() });
        }
        let sign_extends = dtype.is_int() && dtype.is_signed();
        let unpack = |index: usize| {
            let offset = bits * (index % per_byte) as u32;
            // The element moves to the top of the byte and back down, which clears or extends its sign.
            let top = packed[index / per_byte] << (8 - bits - offset);
            if sign_extends { ((top as i8) >> (8 - bits)) as u8 } else { top >> (8 - bits) }
        };
        let elements: Vec<u8> = (0..count).map(unpack).collect();
        Ok(Tensor::from_valid(dtype, shape, bytes_of_vec(elements)))
    }

    /// The bytes that a file has for this tensor; the inverse of `from_packed`.
    pub fn to_packed(&self) -> Bytes {
        let bits = self.dtype().bits();
        if bits >= 8 {
            return self.bytes().clone();
        }
        let mask = (1_u8 << bits) - 1;
        let pack = |chunk: &[u8]| chunk.iter().rev().fold(0_u8, |byte, element| (byte << bits) | (element & mask));
        self.as_bytes().chunks((8 / bits) as usize).map(pack).collect::<Vec<u8>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_element_is_in_the_low_bits() {
        let packed = Bytes::from_static(&[0x8F, 0x07]);
        let tensor = Tensor::from_packed(DType::I4, [3], packed.clone()).unwrap();
        assert_eq!(tensor.to_i128_vec().unwrap(), [-1, -8, 7]);
        assert_eq!(tensor.to_packed(), packed);
        let tensor = Tensor::from_packed(DType::U4, [3], packed.clone()).unwrap();
        assert_eq!(tensor.to_i128_vec().unwrap(), [15, 8, 7]);
        let tensor = Tensor::from_packed(DType::F4E2M1, [3], packed).unwrap();
        assert_eq!(tensor.to_f64_vec(), [-6.0, -0.0, 6.0]);
    }

    #[test]
    fn two_bit_elements_pack_four_to_a_byte() {
        let packed = Bytes::from_static(&[0b11_10_01_00, 0b10]);
        let tensor = Tensor::from_packed(DType::I2, [5], packed.clone()).unwrap();
        assert_eq!(tensor.to_i128_vec().unwrap(), [0, 1, -2, -1, -2]);
        assert_eq!(tensor.to_packed(), packed);
        let tensor = Tensor::from_packed(DType::U2, [5], packed.clone()).unwrap();
        assert_eq!(tensor.to_i128_vec().unwrap(), [0, 1, 2, 3, 2]);
        assert_eq!(tensor.to_packed(), packed);
    }

    #[test]
    fn a_wrong_number_of_packed_bytes_is_an_error() {
        let error = Tensor::from_packed(DType::U4, [3], Bytes::from_static(&[0])).unwrap_err();
        assert_eq!(error.to_string(), "tensor u4[3]: expected 2 bytes, got 1");
        let whole = Tensor::from_packed(DType::U8, [2], Bytes::from_static(&[1, 2])).unwrap();
        assert_eq!(whole.to_packed(), &[1, 2][..]);
    }
}
