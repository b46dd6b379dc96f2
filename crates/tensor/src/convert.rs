//! Tensors to and from f64 and i128, the types in which reference arithmetic runs.

use bytes::Bytes;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::minifloat::{bf16_from_f64, decode, encode_f64, f16_from_f64};
use crate::tensor::{bytes_of_vec, check_element_count};
use crate::{DType, Element, Tensor, TensorError};

impl Tensor {
    /// Every element as f64: exact but for integers beyond 53 bits, which round to nearest.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match self.dtype() {
            DType::F16 => self.map_elements(|value: f16| value.to_f64()),
            DType::BF16 => self.map_elements(|value: bf16| value.to_f64()),
            DType::F32 => self.map_elements(|value: f32| f64::from(value)),
            DType::F64 => self.map_elements(|value: f64| value),
            DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 | DType::F4E2M1 => {
                let dtype = self.dtype();
                self.map_elements(|code: u8| decode(dtype, code).map_or(f64::NAN, f64::from))
            }
            DType::Bool | DType::U8 | DType::U4 | DType::U2 => self.map_elements(|value: u8| f64::from(value)),
            DType::I8 | DType::I4 | DType::I2 => self.map_elements(|value: i8| f64::from(value)),
            DType::U16 => self.map_elements(|value: u16| f64::from(value)),
            DType::I16 => self.map_elements(|value: i16| f64::from(value)),
            DType::U32 => self.map_elements(|value: u32| f64::from(value)),
            DType::I32 => self.map_elements(|value: i32| f64::from(value)),
            DType::U64 => self.map_elements(|value: u64| value as f64),
            DType::I64 => self.map_elements(|value: i64| value as f64),
        }
    }

    /// Every element of an integer or bool tensor, exactly.
    pub fn to_i128_vec(&self) -> Result<Vec<i128>, TensorError> {
        Ok(match self.dtype() {
            DType::Bool | DType::U8 | DType::U4 | DType::U2 => self.map_elements(|value: u8| i128::from(value)),
            DType::I8 | DType::I4 | DType::I2 => self.map_elements(|value: i8| i128::from(value)),
            DType::U16 => self.map_elements(|value: u16| i128::from(value)),
            DType::I16 => self.map_elements(|value: i16| i128::from(value)),
            DType::U32 => self.map_elements(|value: u32| i128::from(value)),
            DType::I32 => self.map_elements(|value: i32| i128::from(value)),
            DType::U64 => self.map_elements(|value: u64| i128::from(value)),
            DType::I64 => self.map_elements(|value: i64| i128::from(value)),
            DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => return Err(self.wrong_dtype("integer or bool")),
        })
    }

    /// Every element of an integer or bool tensor as i64; u64 beyond i64 saturates.
    pub fn to_i64_vec(&self) -> Result<Vec<i64>, TensorError> {
        let values = self.to_i128_vec()?;
        Ok(values.into_iter().map(|value| i64::try_from(value).unwrap_or(i64::MAX)).collect())
    }

    /// Values rounded once to an element type. Integers truncate and saturate, NaN becoming 0; bool is whether the
    /// value is not 0; `saturate` is the attribute of ONNX Cast and concerns only 8-bit floats.
    pub fn from_f64(
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        values: &[f64],
        saturate: bool,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(dtype, &shape, values.len())?;
        let bytes = match dtype {
            DType::Bool => map_values(values, |value| u8::from(value != 0.0)),
            DType::U8 => map_values(values, |value| value as u8),
            DType::U16 => map_values(values, |value| value as u16),
            DType::U32 => map_values(values, |value| value as u32),
            DType::U64 => map_values(values, |value| value as u64),
            DType::I8 => map_values(values, |value| value as i8),
            DType::I16 => map_values(values, |value| value as i16),
            DType::I32 => map_values(values, |value| value as i32),
            DType::I64 => map_values(values, |value| value as i64),
            DType::U4 => map_values(values, |value| (value as u8).min(15)),
            DType::U2 => map_values(values, |value| (value as u8).min(3)),
            DType::I4 => map_values(values, |value| (value as i8).clamp(-8, 7)),
            DType::I2 => map_values(values, |value| (value as i8).clamp(-2, 1)),
            DType::F16 => map_values(values, f16_from_f64),
            DType::BF16 => map_values(values, bf16_from_f64),
            DType::F32 => map_values(values, |value| value as f32),
            DType::F64 => map_values(values, |value| value),
            DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 | DType::F4E2M1 => {
                map_values(values, |value| encode_f64(dtype, value, saturate).unwrap_or(0))
            }
        };
        Ok(Tensor::from_valid(dtype, shape, bytes))
    }

    /// Values of f32 rounded once to an element type, as by `from_f64`; much faster to 16-bit floats.
    pub fn from_f32(dtype: DType, shape: impl Into<Vec<usize>>, values: &[f32]) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(dtype, &shape, values.len())?;
        let bytes = match dtype {
            DType::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                bytes_of_vec(halves)
            }
            DType::BF16 => {
                let mut halves = vec![bf16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                bytes_of_vec(halves)
            }
            _ => {
                let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
                return Tensor::from_f64(dtype, shape, &values, true);
            }
        };
        Ok(Tensor::from_valid(dtype, shape, bytes))
    }

    /// Values wrapped to an integer type, or rounded to a float; bool is whether the value is not 0.
    pub fn from_i128(dtype: DType, shape: impl Into<Vec<usize>>, values: &[i128]) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(dtype, &shape, values.len())?;
        let bytes = match dtype {
            DType::Bool => map_values(values, |value| u8::from(value != 0)),
            DType::U8 => map_values(values, |value| value as u8),
            DType::U16 => map_values(values, |value| value as u16),
            DType::U32 => map_values(values, |value| value as u32),
            DType::U64 => map_values(values, |value| value as u64),
            DType::I8 => map_values(values, |value| value as i8),
            DType::I16 => map_values(values, |value| value as i16),
            DType::I32 => map_values(values, |value| value as i32),
            DType::I64 => map_values(values, |value| value as i64),
            DType::U4 => map_values(values, |value| value as u8 & 0xF),
            DType::U2 => map_values(values, |value| value as u8 & 3),
            // Shifting the sign bit of the small type up and back extends it.
            DType::I4 => map_values(values, |value| ((value as i8) << 4) >> 4),
            DType::I2 => map_values(values, |value| ((value as i8) << 6) >> 6),
            DType::F32 => map_values(values, |value| value as f32),
            // Integers that fit 53 bits, which is all that can be finite in the narrow types, are exact in f64.
            DType::F16
            | DType::BF16
            | DType::F64
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::F4E2M1 => {
                let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
                return Tensor::from_f64(dtype, shape, &values, true);
            }
        };
        Ok(Tensor::from_valid(dtype, shape, bytes))
    }

    /// A tensor that repeats one value, rounded as `from_f64` does.
    pub fn full(dtype: DType, shape: impl Into<Vec<usize>>, value: f64) -> Result<Tensor, TensorError> {
        let one = Tensor::from_f64(dtype, [], &[value], true)?;
        let mut word = [0; size_of::<u64>()];
        word.chunks_exact_mut(dtype.size_bytes()).for_each(|element| element.copy_from_slice(one.as_bytes()));
        Tensor::from_repeated_word(dtype, shape.into(), u64::from_le_bytes(word))
    }

    /// Reads elements as `T`, which has the width of the element type, and maps them.
    pub(crate) fn map_elements<T: Element, R>(&self, map: impl Fn(T) -> R) -> Vec<R> {
        let elements = self.as_bytes().chunks_exact(size_of::<T>());
        elements.map(|bytes| map(bytemuck::pod_read_unaligned(bytes))).collect()
    }
}

fn map_values<V: Copy, T: Element>(values: &[V], map: impl Fn(V) -> T) -> Bytes {
    bytes_of_vec(values.iter().map(|value| map(*value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_whole_values_survive_every_type() {
        for dtype in DType::ALL {
            let values: &[f64] = if dtype == DType::F8E8M0 { &[1.0, 1.0] } else { &[0.0, 1.0] };
            let tensor = Tensor::from_f64(dtype, [2], values, true).unwrap();
            assert_eq!(tensor.to_f64_vec(), values, "{dtype}");
            assert_eq!(Tensor::new(dtype, [2], tensor.bytes().clone()), Ok(tensor.clone()));
            if !dtype.is_float() {
                assert_eq!(tensor.to_i128_vec().unwrap(), [0, 1]);
                assert_eq!(Tensor::from_i128(dtype, [2], &[0, 1]), Ok(tensor));
            }
        }
    }

    #[test]
    fn floats_truncate_and_saturate_into_integers() {
        let values = [-1e30, -2.9, 2.9, 1e30, f64::NAN];
        let convert = |dtype| Tensor::from_f64(dtype, [5], &values, true).unwrap().to_i128_vec().unwrap();
        assert_eq!(convert(DType::I8), [-128, -2, 2, 127, 0]);
        assert_eq!(convert(DType::I4), [-8, -2, 2, 7, 0]);
        assert_eq!(convert(DType::U2), [0, 0, 2, 3, 0]);
        assert_eq!(convert(DType::Bool), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn integers_wrap_into_integers() {
        let values = [300, -129, 9, -3];
        let convert = |dtype| Tensor::from_i128(dtype, [4], &values).unwrap().to_i128_vec().unwrap();
        assert_eq!(convert(DType::U8), [44, 127, 9, 253]);
        assert_eq!(convert(DType::I8), [44, 127, 9, -3]);
        assert_eq!(convert(DType::I4), [-4, -1, -7, -3]);
        assert_eq!(convert(DType::I2), [0, -1, 1, 1]);
        assert_eq!(convert(DType::U4), [12, 15, 9, 13]);
    }

    #[test]
    fn floats_are_not_integers() {
        let error = Tensor::scalar(1.5_f32).to_i128_vec().unwrap_err();
        assert_eq!(error.to_string(), "tensor f32[]: expected integer or bool elements");
        assert_eq!(Tensor::scalar(u64::MAX).to_i64_vec(), Ok(vec![i64::MAX]));
    }

    #[test]
    fn rounding_happens_once() {
        let value = 1.0 + 2_f64.powi(-11) + 2_f64.powi(-40);
        let tensor = Tensor::from_f64(DType::F16, [], &[value], true).unwrap();
        assert_eq!(tensor.to_f64_vec(), [1.0 + 2_f64.powi(-10)]);
    }

    #[test]
    fn f32_rounds_as_f64_does() {
        let mut words = (0..=u16::MAX).flat_map(|high| [0, 1, 0x1000, 0x2001].map(|low| u32::from(high) << 16 | low));
        let values: Vec<f32> = words.by_ref().map(f32::from_bits).filter(|value| !value.is_nan()).collect();
        let wide: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            let expected = Tensor::from_f64(dtype, [values.len()], &wide, true).unwrap();
            assert_eq!(Tensor::from_f32(dtype, [values.len()], &values).unwrap(), expected, "{dtype}");
        }
        let nan = Tensor::from_f32(DType::F16, [1], &[f32::NAN]).unwrap().to_f64_vec();
        assert!(nan[0].is_nan());
    }

    #[test]
    fn full_repeats_one_rounded_value() {
        let tensor = Tensor::full(DType::BF16, [2, 2], 0.5).unwrap();
        assert_eq!(tensor.to_f64_vec(), [0.5; 4]);
        assert!(Tensor::full(DType::F32, [usize::MAX, 4], 0.0).is_err());
    }
}
