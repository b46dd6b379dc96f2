//! TensorProto → Tensor: sizes are computed and held against the bytes that are really there before anything is
//! allocated.
//!
//! Raw and external data are shared, never copied. Typed fields are narrowed to their element type. Sub-byte
//! elements are packed in every field and in other files alike.

use bytes::Bytes;
use precast_tensor::{DType, Tensor, TensorError};

use super::element_type::ElementType;
use super::error::{Quoted, ReadError};
use super::external::ExternalFiles;
use super::limits::{Budget, Limits};
use crate::proto::{DataLocation, TensorProto};

/// Reads the tensor `proto` describes.
pub(super) fn read_tensor(proto: &TensorProto, limits: &Limits, files: &ExternalFiles) -> Result<Tensor, ReadError> {
    let size = TensorSize::of(proto, limits)?;
    let stored = stored_bytes(proto, &size, limits, files)?;
    Tensor::from_packed(size.dtype, size.shape, stored).map_err(|error| tensor_fault(&proto.name, &error))
}

/// The room below does not know the tensor's name.
pub(super) fn tensor_fault(name: &str, error: &TensorError) -> ReadError {
    let text = error.to_string();
    ReadError::tensor(name, text.strip_prefix("tensor ").unwrap_or(&text))
}

/// Checked sizes of one tensor.
pub(super) struct TensorSize {
    pub(super) dtype: DType,
    /// The dims, and a 2 after them for complex elements.
    pub(super) shape: Vec<usize>,
    /// Elements of `dtype`.
    pub(super) elements: usize,
    /// Bytes in the file; fewer than in memory for sub-byte types.
    pub(super) stored_bytes: usize,
}

impl TensorSize {
    fn of(proto: &TensorProto, limits: &Limits) -> Result<TensorSize, ReadError> {
        let fault = |problem: String| ReadError::tensor(&proto.name, problem);
        let place = || format!("tensor {}", Quoted::new(&proto.name));
        match ElementType::from_onnx(proto.data_type).map_err(fault)? {
            ElementType::Number(dtype) => TensorSize::new(&proto.name, dtype, &proto.dims, limits),
            ElementType::Complex(dtype) => {
                let mut dims = proto.dims.clone();
                dims.push(2);
                TensorSize::new(&proto.name, dtype, &dims, limits)
            }
            ElementType::String => {
                let problem = "string tensors are not supported; expected numbers".into();
                Err(ReadError::Unsupported { place: place(), problem })
            }
        }
    }

    /// Checks dims against the limits and multiplies them.
    pub(super) fn new(name: &str, dtype: DType, dims: &[i64], limits: &Limits) -> Result<TensorSize, ReadError> {
        let over = |budget: Budget, value: u64| {
            let place = format!("tensor {}", Quoted::new(name));
            Err(ReadError::OverLimit { place, budget, value, limit: limits.get(budget) })
        };
        let rank = u64::try_from(dims.len()).unwrap_or(u64::MAX);
        if rank > limits.rank {
            return over(Budget::Rank, rank);
        }
        let mut shape = Vec::new();
        for &dim in dims {
            let Ok(size) = u64::try_from(dim) else {
                return Err(ReadError::tensor(name, format!("dimension {dim} of {dims:?} is negative")));
            };
            if size > limits.dim {
                return over(Budget::Dim, size);
            }
            let size =
                usize::try_from(size).map_err(|_| ReadError::tensor(name, format!("dimension {dim} is too large")))?;
            shape.push(size);
        }
        // A zero anywhere makes the tensor empty, whatever the product of the others.
        let elements = match shape.contains(&0) {
            true => Some(0),
            false => shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size)),
        };
        let memory_bytes = elements.and_then(|elements| elements.checked_mul(dtype.size_bytes()));
        let (Some(elements), Some(memory_bytes)) = (elements, memory_bytes) else {
            return Err(ReadError::tensor(name, format!("the product of dims {dims:?} overflows")));
        };
        let memory_bytes = u64::try_from(memory_bytes).unwrap_or(u64::MAX);
        if memory_bytes > limits.tensor_bytes {
            return over(Budget::TensorBytes, memory_bytes);
        }
        let stored_bytes = match dtype.bits() {
            2 => elements.div_ceil(4),
            4 => elements.div_ceil(2),
            _ => elements.saturating_mul(dtype.size_bytes()),
        };
        Ok(TensorSize { dtype, shape, elements, stored_bytes })
    }
}

/// The tensor's bytes as files hold them, from the one place that has them.
fn stored_bytes(
    proto: &TensorProto,
    size: &TensorSize,
    limits: &Limits,
    files: &ExternalFiles,
) -> Result<Bytes, ReadError> {
    let fault = |problem: String| ReadError::tensor(&proto.name, problem);
    if proto.segment.is_some() {
        let place = format!("tensor {}", Quoted::new(&proto.name));
        return Err(ReadError::Unsupported { place, problem: "tensors in segments are not supported".into() });
    }
    let raw = proto.raw_data.clone().unwrap_or_default();
    let typed = TypedField::used(proto);
    let is_external = match DataLocation::try_from(proto.data_location.unwrap_or(0)) {
        Ok(DataLocation::External) => true,
        Ok(DataLocation::Default) if proto.external_data.is_empty() => false,
        Ok(DataLocation::Default) => {
            return Err(fault("external_data is given, but data_location is not EXTERNAL".into()));
        }
        Err(_) => return Err(fault(format!("unknown data_location {:?}", proto.data_location))),
    };
    if is_external {
        if !raw.is_empty() || !typed.is_empty() {
            return Err(fault("data both in the model and in an external file, expected one".into()));
        }
        return files.read(proto, size.stored_bytes, limits);
    }
    if !raw.is_empty() && !typed.is_empty() {
        return Err(fault(format!("both raw_data and {} hold data, expected one", names(&typed))));
    }
    let expected = TypedField::of(size.dtype);
    if typed.iter().any(|&field| field != expected) {
        let problem = format!("data in {}, expected {} for {}", names(&typed), expected.name(), size.dtype);
        return Err(fault(problem));
    }
    if typed.is_empty() {
        if raw.len() != size.stored_bytes {
            let TensorSize { dtype, shape, stored_bytes, .. } = size;
            return Err(fault(format!("{} bytes of data, expected {stored_bytes} for {dtype} {shape:?}", raw.len())));
        }
        return Ok(raw);
    }
    expected.encode(proto, size).map(Bytes::from)
}

/// The fields a tensor's values can be in, other than `raw_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypedField {
    Float,
    Int32,
    String,
    Int64,
    Double,
    Uint64,
}

fn names(fields: &[TypedField]) -> String {
    fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(" and ")
}

impl TypedField {
    const ALL: [TypedField; 6] = [
        TypedField::Float,
        TypedField::Int32,
        TypedField::String,
        TypedField::Int64,
        TypedField::Double,
        TypedField::Uint64,
    ];

    /// The fields of `proto` that hold something.
    fn used(proto: &TensorProto) -> Vec<TypedField> {
        TypedField::ALL.into_iter().filter(|field| field.len(proto) > 0).collect()
    }

    /// The field ONNX prescribes for an element type.
    fn of(dtype: DType) -> TypedField {
        match dtype {
            DType::F32 => TypedField::Float,
            DType::F64 => TypedField::Double,
            DType::I64 => TypedField::Int64,
            DType::U64 | DType::U32 => TypedField::Uint64,
            DType::Bool
            | DType::U8
            | DType::U16
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::F16
            | DType::BF16
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::U4
            | DType::I4
            | DType::U2
            | DType::I2
            | DType::F4E2M1 => TypedField::Int32,
        }
    }

    fn name(self) -> &'static str {
        match self {
            TypedField::Float => "float_data",
            TypedField::Int32 => "int32_data",
            TypedField::String => "string_data",
            TypedField::Int64 => "int64_data",
            TypedField::Double => "double_data",
            TypedField::Uint64 => "uint64_data",
        }
    }

    fn len(self, proto: &TensorProto) -> usize {
        match self {
            TypedField::Float => proto.float_data.len(),
            TypedField::Int32 => proto.int32_data.len(),
            TypedField::String => proto.string_data.len(),
            TypedField::Int64 => proto.int64_data.len(),
            TypedField::Double => proto.double_data.len(),
            TypedField::Uint64 => proto.uint64_data.len(),
        }
    }

    /// The field's values as the bytes `raw_data` would hold.
    fn encode(self, proto: &TensorProto, size: &TensorSize) -> Result<Vec<u8>, ReadError> {
        let dtype = size.dtype;
        // A packed byte is one value of int32_data, however many elements it holds.
        let expected = if dtype.bits() < 8 { size.stored_bytes } else { size.elements };
        if self.len(proto) != expected {
            let shape = &size.shape;
            let problem =
                format!("{} values in {}, expected {expected} for {dtype} {shape:?}", self.len(proto), self.name());
            return Err(ReadError::tensor(&proto.name, problem));
        }
        let narrow = Narrow { tensor: &proto.name, field: self.name(), dtype };
        let ints = &proto.int32_data;
        match dtype {
            DType::F32 => narrow.encode(&proto.float_data, |value| Some(value.to_le_bytes())),
            DType::F64 => narrow.encode(&proto.double_data, |value| Some(value.to_le_bytes())),
            DType::I64 => narrow.encode(&proto.int64_data, |value| Some(value.to_le_bytes())),
            DType::U64 => narrow.encode(&proto.uint64_data, |value| Some(value.to_le_bytes())),
            DType::U32 => narrow.encode(&proto.uint64_data, |value| u32::try_from(value).ok().map(u32::to_le_bytes)),
            DType::I32 => narrow.encode(ints, |value| Some(value.to_le_bytes())),
            DType::I16 => narrow.encode(ints, |value| i16::try_from(value).ok().map(i16::to_le_bytes)),
            DType::I8 => narrow.encode(ints, |value| i8::try_from(value).ok().map(i8::to_le_bytes)),
            DType::U16 | DType::F16 | DType::BF16 => {
                narrow.encode(ints, |value| u16::try_from(value).ok().map(u16::to_le_bytes))
            }
            DType::Bool
            | DType::U8
            | DType::F8E4M3Fn
            | DType::F8E4M3FnUz
            | DType::F8E5M2
            | DType::F8E5M2FnUz
            | DType::F8E8M0
            | DType::U4
            | DType::I4
            | DType::U2
            | DType::I2
            | DType::F4E2M1 => narrow.encode(ints, |value| u8::try_from(value).ok().map(u8::to_le_bytes)),
        }
    }
}

/// Turns typed values into bytes of an element type, naming the first that does not fit.
struct Narrow<'a> {
    tensor: &'a str,
    field: &'static str,
    dtype: DType,
}

impl Narrow<'_> {
    fn encode<V: Copy + std::fmt::Display, const N: usize>(
        &self,
        values: &[V],
        to_bytes: impl Fn(V) -> Option<[u8; N]>,
    ) -> Result<Vec<u8>, ReadError> {
        let mut bytes = reserve(self.tensor, values.len().saturating_mul(N))?;
        for (index, &value) in values.iter().enumerate() {
            let Some(element) = to_bytes(value) else {
                let problem = format!("{}[{index}] is {value}, expected bits of {}", self.field, self.dtype);
                return Err(ReadError::tensor(self.tensor, problem));
            };
            bytes.extend_from_slice(&element);
        }
        Ok(bytes)
    }
}

/// An empty buffer for `bytes` bytes, or an error instead of an abort.
pub(super) fn reserve(tensor: &str, bytes: usize) -> Result<Vec<u8>, ReadError> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| ReadError::Memory {
        place: format!("tensor {}", Quoted::new(tensor)),
        bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
    })?;
    Ok(buffer)
}
