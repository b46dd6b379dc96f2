//! `Tensor`: an element type, a shape and immutable host bytes, shared by clones.
//!
//! Bytes are little-endian, row-major and without gaps; they may be owned, shared or mapped from a file, and
//! need not be aligned, so typed views are fallible.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::{DType, Digest, Element, FilePages, Type};

/// An immutable tensor on the host. Cheap to clone.
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
    /// What the bytes take of memory while they are read, if they are mapped.
    pages: FilePages,
    /// Filled on first use: hashing gigabytes of weights is worth doing once.
    digest: OnceLock<Digest>,
}

/// Bytes that are hashed at once.
const HASHED_BYTES: usize = 1 << 20;

/// Why a tensor cannot be made or read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TensorError {
    /// The byte count does not fit the address space.
    #[error("tensor {dtype}{shape:?}: size in bytes overflows")]
    TooLarge {
        /// Element type asked for.
        dtype: DType,
        /// Shape asked for.
        shape: Vec<usize>,
    },
    /// There is no memory for it.
    #[error("tensor {dtype}{shape:?}: no memory for {bytes} bytes")]
    OutOfMemory {
        /// Element type asked for.
        dtype: DType,
        /// Shape asked for.
        shape: Vec<usize>,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The bytes are too few or too many.
    #[error("tensor {dtype}{shape:?}: expected {expected} bytes, got {actual}")]
    ByteCount {
        /// Element type of the tensor.
        dtype: DType,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Bytes that type and shape take.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// The elements are too few or too many.
    #[error("tensor {dtype}{shape:?}: expected {expected} elements, got {actual}")]
    ElementCount {
        /// Element type of the tensor.
        dtype: DType,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Elements of the shape.
        expected: usize,
        /// Elements given.
        actual: usize,
    },
    /// A byte is outside the values of bool or a sub-byte type.
    #[error("tensor {dtype}{shape:?}: element {index} is the byte {byte:#04x}, which is no {dtype}")]
    InvalidElement {
        /// Element type of the tensor.
        dtype: DType,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Position of the element in row-major order.
        index: usize,
        /// The byte found.
        byte: u8,
    },
    /// The tensor has another element type than asked for.
    #[error("tensor {dtype}{shape:?}: expected {expected} elements")]
    WrongDType {
        /// Element type of the tensor.
        dtype: DType,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// What was asked for: a type name or a kind of types.
        expected: &'static str,
    },
}

impl Tensor {
    /// A tensor over these bytes, without copying them. Checks their number, and that each byte of a bool or
    /// sub-byte tensor is a value of the type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, bytes: Bytes) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        let expected = byte_count(dtype, &shape)?;
        if bytes.len() != expected {
            return Err(TensorError::ByteCount { dtype, shape, expected, actual: bytes.len() });
        }
        if let Some(index) = first_invalid_element(dtype, &bytes) {
            return Err(TensorError::InvalidElement { dtype, shape, index, byte: bytes[index] });
        }
        Ok(Tensor::from_valid(dtype, shape, bytes))
    }

    /// A tensor over these elements, without copying them.
    pub fn from_vec<T: Element>(shape: impl Into<Vec<usize>>, elements: Vec<T>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(T::DTYPE, &shape, elements.len())?;
        Ok(Tensor::from_valid(T::DTYPE, shape, bytes_of_vec(elements)))
    }

    /// A bool tensor.
    pub fn from_bools(shape: impl Into<Vec<usize>>, elements: &[bool]) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(DType::Bool, &shape, elements.len())?;
        let bytes: Vec<u8> = elements.iter().map(|element| u8::from(*element)).collect();
        Ok(Tensor::from_valid(DType::Bool, shape, Bytes::from(bytes)))
    }

    /// A tensor of rank 0.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_valid(T::DTYPE, Vec::new(), bytes_of_vec(vec![value]))
    }

    /// A tensor of zero bytes: zero in every type but f8e8m0, where the code 0 is 2^-127.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Tensor, TensorError> {
        Tensor::from_repeated_word(dtype, shape.into(), 0)
    }

    /// A tensor whose bytes repeat one word, which holds whole elements of any type and aligns them all.
    pub(crate) fn from_repeated_word(dtype: DType, shape: Vec<usize>, word: u64) -> Result<Tensor, TensorError> {
        let bytes = byte_count(dtype, &shape)?;
        let word_count = bytes.div_ceil(size_of::<u64>());
        let mut words: Vec<u64> = Vec::new();
        if words.try_reserve_exact(word_count).is_err() {
            return Err(TensorError::OutOfMemory { dtype, shape, bytes });
        }
        words.resize(word_count, word);
        Ok(Tensor::from_valid(dtype, shape, bytes_of_vec(words).slice(..bytes)))
    }

    /// For callers that have shown size and element values to be right.
    pub(crate) fn from_valid(dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Tensor {
        Tensor(Arc::new(Inner { dtype, shape, bytes, pages: FilePages::default(), digest: OnceLock::new() }))
    }

    /// This tensor, whose bytes may lie in a mapped file with these pages.
    pub fn in_pages(&self, pages: &FilePages) -> Tensor {
        if !pages.hold(self.as_bytes()) {
            return self.clone();
        }
        let (shape, bytes, digest) = (self.shape().to_vec(), self.bytes().clone(), self.0.digest.clone());
        Tensor(Arc::new(Inner { dtype: self.dtype(), shape, bytes, pages: pages.clone(), digest }))
    }

    /// Lets go of the memory that reading the bytes of a mapped file took. Owned bytes stay.
    pub fn release_pages(&self) {
        self.0.pages.release(self.as_bytes());
    }

    /// The bytes in parts of this many, for whoever reads them once: what a mapped file took for one part is let go with
    /// the next, or the end.
    pub fn read_parts(&self, part_bytes: usize) -> impl Iterator<Item = &[u8]> {
        let mut parts = self.as_bytes().chunks(part_bytes.max(1));
        let mut last: &[u8] = &[];
        std::iter::from_fn(move || {
            self.0.pages.release(last);
            let part = parts.next();
            last = part.unwrap_or_default();
            part
        })
    }

    /// The type of each element.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Element type and shape as a `Type`.
    pub fn type_(&self) -> Type {
        Type::new(self.dtype(), self.shape().iter().copied())
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.as_bytes().len() / self.dtype().size_bytes()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// The bytes, to share without copying.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }

    /// The bytes, to read.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The elements in place, if they are of this type and aligned for it.
    pub fn view<T: Element>(&self) -> Option<&[T]> {
        if self.dtype() != T::DTYPE {
            return None;
        }
        // An empty slice may dangle at any address, which is no reason to refuse it.
        if self.is_empty() {
            return Some(&[]);
        }
        bytemuck::try_cast_slice(self.as_bytes()).ok()
    }

    /// A copy of the elements, which need not be aligned.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if self.dtype() != T::DTYPE {
            return Err(self.wrong_dtype(T::DTYPE.name()));
        }
        Ok(self.map_elements(|element: T| element))
    }

    /// The elements of a bool tensor.
    pub fn to_bools(&self) -> Result<Vec<bool>, TensorError> {
        if self.dtype() != DType::Bool {
            return Err(self.wrong_dtype(DType::Bool.name()));
        }
        Ok(self.as_bytes().iter().map(|byte| *byte != 0).collect())
    }

    /// The same elements in another shape of the same size.
    pub fn reshaped(&self, shape: impl Into<Vec<usize>>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_element_count(self.dtype(), &shape, self.len())?;
        Ok(Tensor::from_valid(self.dtype(), shape, self.bytes().clone()).in_pages(&self.0.pages))
    }

    /// This tensor with bytes that any typed view can read: itself, or a copy where they are not aligned.
    pub fn aligned(&self) -> Tensor {
        if self.as_bytes().as_ptr().addr().is_multiple_of(align_of::<u64>()) {
            return self.clone();
        }
        let mut words = vec![0_u64; self.as_bytes().len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..self.as_bytes().len()].copy_from_slice(self.as_bytes());
        let bytes = bytes_of_vec(words).slice(..self.as_bytes().len());
        Tensor::from_valid(self.dtype(), self.shape().to_vec(), bytes)
    }

    /// The digest of element type, shape and bytes. Computed once and shared by clones. What reading a mapped file takes
    /// is let go.
    pub fn digest(&self) -> Digest {
        *self.0.digest.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            // The zero byte and the rank keep name, shape and bytes apart.
            hasher.update(self.dtype().name().as_bytes()).update(&[0]);
            hasher.update(&(self.rank() as u64).to_le_bytes());
            for size in self.shape() {
                hasher.update(&(*size as u64).to_le_bytes());
            }
            for part in self.read_parts(HASHED_BYTES) {
                hasher.update(part);
            }
            hasher.finalize().into()
        })
    }

    pub(crate) fn wrong_dtype(&self, expected: &'static str) -> TensorError {
        TensorError::WrongDType { dtype: self.dtype(), shape: self.shape().to_vec(), expected }
    }
}

/// Equal type, shape and bytes: NaNs are equal to themselves, and 0.0 differs from -0.0.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        let is_same = Arc::ptr_eq(&self.0, &other.0);
        let is_same_type = self.dtype() == other.dtype() && self.shape() == other.shape();
        is_same || (is_same_type && self.as_bytes() == other.as_bytes())
    }
}

impl Eq for Tensor {}

impl fmt::Debug for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to tell small tensors apart in a failed assertion.
        const SHOWN_MAX: usize = 16;
        write!(formatter, "Tensor({}", self.type_())?;
        if self.len() <= SHOWN_MAX {
            write!(formatter, " {:?}", self.to_f64_vec())?;
        }
        formatter.write_str(")")
    }
}

/// Bytes of a shape, or an error beyond what an allocation can be. A zero size does not excuse the others.
pub(crate) fn byte_count(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    let count = shape.iter().try_fold(dtype.size_bytes(), |bytes, size| bytes.checked_mul(*size));
    let count = count.filter(|bytes| isize::try_from(*bytes).is_ok());
    count.ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })
}

pub(crate) fn check_element_count(dtype: DType, shape: &[usize], actual: usize) -> Result<(), TensorError> {
    let expected = byte_count(dtype, shape)? / dtype.size_bytes();
    if actual == expected {
        return Ok(());
    }
    Err(TensorError::ElementCount { dtype, shape: shape.to_vec(), expected, actual })
}

fn first_invalid_element(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let is_invalid: fn(&u8) -> bool = match dtype {
        DType::Bool => |byte| *byte > 1,
        DType::U4 | DType::F4E2M1 => |byte| *byte > 0xF,
        DType::U2 => |byte| *byte > 3,
        DType::I4 => |byte| !(-8..8).contains(&(*byte as i8)),
        DType::I2 => |byte| !(-2..2).contains(&(*byte as i8)),
        DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::F8E4M3Fn
        | DType::F8E4M3FnUz
        | DType::F8E5M2
        | DType::F8E5M2FnUz
        | DType::F8E8M0 => return None,
    };
    bytes.iter().position(is_invalid)
}

/// Keeps elements alive behind `Bytes` and shows them as bytes.
struct VecOwner<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for VecOwner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

pub(crate) fn bytes_of_vec<T: Element>(elements: Vec<T>) -> Bytes {
    Bytes::from_owner(VecOwner(elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_becomes_a_tensor_without_a_copy() {
        let elements = vec![1.0_f32, -2.5];
        let address = elements.as_ptr().addr();
        let tensor = Tensor::from_vec([2, 1], elements).unwrap();
        assert_eq!(tensor.as_bytes().as_ptr().addr(), address);
        assert_eq!(tensor.view::<f32>(), Some(&[1.0, -2.5][..]));
        assert_eq!(tensor.view::<i32>(), None);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), [1.0, -2.5]);
        assert_eq!(tensor.type_(), Type::new(DType::F32, [2, 1]));
        assert_eq!((tensor.rank(), tensor.len(), tensor.is_empty()), (2, 2, false));
    }

    #[test]
    fn unaligned_bytes_have_no_view_but_can_be_copied() {
        let whole = Tensor::from_vec([3], vec![7_u64, 8, 9]).unwrap();
        let words = bytes_of_vec(vec![7_u64 << 8, 8 << 8, 9 << 8, 0]);
        let tensor = Tensor::new(DType::U64, [3], words.slice(1..25)).unwrap();
        assert_eq!(tensor.view::<u64>(), None);
        assert_eq!(tensor.to_vec::<u64>().unwrap(), [7, 8, 9]);
        assert_eq!(tensor.aligned().view::<u64>(), Some(&[7, 8, 9][..]));
        assert_eq!(tensor, whole);
        assert_eq!(tensor.digest(), whole.digest());
    }

    #[test]
    fn empty_tensors_and_scalars_work() {
        let empty = Tensor::zeros(DType::F64, [2, 0, 3]).unwrap();
        assert_eq!((empty.len(), empty.rank()), (0, 3));
        assert_eq!(empty.view::<f64>(), Some(&[][..]));
        assert_eq!(Tensor::new(DType::F32, [0], Bytes::new()).unwrap().view::<f32>(), Some(&[][..]));
        let scalar = Tensor::scalar(3_i64);
        assert_eq!((scalar.shape(), scalar.len()), (&[][..], 1));
        assert_eq!(format!("{scalar:?}"), "Tensor(i64[] [3.0])");
    }

    #[test]
    fn zeros_are_aligned_for_every_type() {
        let zeros = Tensor::zeros(DType::F64, [3]).unwrap();
        assert_eq!(zeros.view::<f64>(), Some(&[0.0; 3][..]));
        assert_eq!(Tensor::zeros(DType::U8, [3]).unwrap().as_bytes(), [0; 3]);
    }

    #[test]
    fn wrong_sizes_are_errors_that_say_both() {
        let message = |result: Result<Tensor, TensorError>| result.unwrap_err().to_string();
        let bytes = Bytes::from_static(&[0; 7]);
        assert_eq!(message(Tensor::new(DType::F32, [2], bytes)), "tensor f32[2]: expected 8 bytes, got 7");
        assert_eq!(message(Tensor::from_vec([2], vec![1_u8])), "tensor u8[2]: expected 2 elements, got 1");
        assert_eq!(message(Tensor::scalar(1_u8).reshaped([0])), "tensor u8[0]: expected 0 elements, got 1");
        let huge = message(Tensor::zeros(DType::F32, [usize::MAX, 2]));
        assert!(huge.ends_with("size in bytes overflows"), "{huge}");
        let large = message(Tensor::zeros(DType::U8, [isize::MAX as usize - 8]));
        assert!(large.contains("no memory for"), "{large}");
        let wrong = Tensor::scalar(1_u8).to_vec::<f32>().unwrap_err().to_string();
        assert_eq!(wrong, "tensor u8[]: expected f32 elements");
    }

    #[test]
    fn bytes_outside_a_small_type_are_refused() {
        let is_valid = |dtype, byte: u8| Tensor::new(dtype, [], Bytes::copy_from_slice(&[byte])).is_ok();
        assert!(is_valid(DType::Bool, 1) && !is_valid(DType::Bool, 2));
        assert!(is_valid(DType::I4, 0xF8) && !is_valid(DType::I4, 8));
        assert!(is_valid(DType::U2, 3) && !is_valid(DType::U2, 4));
        let error = Tensor::new(DType::Bool, [2], Bytes::from_static(&[1, 7])).unwrap_err();
        assert_eq!(error.to_string(), "tensor bool[2]: element 1 is the byte 0x07, which is no bool");
    }

    #[test]
    fn digests_tell_type_shape_and_bytes_apart() {
        let tensor = Tensor::from_vec([2, 1], vec![1_u8, 0]).unwrap();
        let others = [
            tensor.reshaped([2]).unwrap(),
            Tensor::from_bools([2, 1], &[true, false]).unwrap(),
            Tensor::from_vec([2, 1], vec![0_u8, 1]).unwrap(),
        ];
        for other in &others {
            assert_ne!(other.digest(), tensor.digest());
            assert_ne!(other, &tensor);
        }
        assert_eq!(tensor.clone().digest(), tensor.digest());
    }

    #[test]
    fn equality_is_of_bytes() {
        let nan = Tensor::scalar(f32::NAN);
        assert_eq!(nan, Tensor::scalar(f32::NAN));
        assert_ne!(Tensor::scalar(0.0_f32), Tensor::scalar(-0.0_f32));
    }
}
