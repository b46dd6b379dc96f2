//! ONNX element types and declared types in our terms, without interpreting them.

use std::fmt;

use precast_tensor::DType;

use super::error::{Quoted, ReadError};
use crate::proto::{DataType, DimensionProto, DimensionValue, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto};

/// What the elements of an ONNX tensor are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// One of our element types.
    Number(DType),
    /// Pairs (real, imaginary) of this type; a tensor of them has one more dimension, of size 2.
    Complex(DType),
    /// Byte strings.
    String,
}

impl ElementType {
    /// The element type with this ONNX number. The error is a clause that says what is wrong with it.
    pub fn from_onnx(data_type: i32) -> Result<ElementType, String> {
        let Ok(known) = DataType::try_from(data_type) else {
            return Err(format!("element type {data_type} is not one of ONNX"));
        };
        let dtype = match known {
            DataType::Undefined => return Err("the element type is missing".into()),
            DataType::Float6e2m3 | DataType::Float6e3m2 => {
                return Err(format!("6-bit floats ({known:?}) are not supported"));
            }
            DataType::String => return Ok(ElementType::String),
            DataType::Complex64 => return Ok(ElementType::Complex(DType::F32)),
            DataType::Complex128 => return Ok(ElementType::Complex(DType::F64)),
            DataType::Float => DType::F32,
            DataType::Uint8 => DType::U8,
            DataType::Int8 => DType::I8,
            DataType::Uint16 => DType::U16,
            DataType::Int16 => DType::I16,
            DataType::Int32 => DType::I32,
            DataType::Int64 => DType::I64,
            DataType::Bool => DType::Bool,
            DataType::Float16 => DType::F16,
            DataType::Double => DType::F64,
            DataType::Uint32 => DType::U32,
            DataType::Uint64 => DType::U64,
            DataType::Bfloat16 => DType::BF16,
            DataType::Float8e4m3fn => DType::F8E4M3Fn,
            DataType::Float8e4m3fnuz => DType::F8E4M3FnUz,
            DataType::Float8e5m2 => DType::F8E5M2,
            DataType::Float8e5m2fnuz => DType::F8E5M2FnUz,
            DataType::Uint4 => DType::U4,
            DataType::Int4 => DType::I4,
            DataType::Float4e2m1 => DType::F4E2M1,
            DataType::Float8e8m0 => DType::F8E8M0,
            DataType::Uint2 => DType::U2,
            DataType::Int2 => DType::I2,
        };
        Ok(ElementType::Number(dtype))
    }
}

/// What ONNX calls an element type in texts: `float`, `int64`, `float8e4m3fn`.
pub fn onnx_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float",
        DType::F64 => "double",
        DType::F8E4M3Fn => "float8e4m3fn",
        DType::F8E4M3FnUz => "float8e4m3fnuz",
        DType::F8E5M2 => "float8e5m2",
        DType::F8E5M2FnUz => "float8e5m2fnuz",
        DType::F8E8M0 => "float8e8m0",
        DType::U4 => "uint4",
        DType::I4 => "int4",
        DType::U2 => "uint2",
        DType::I2 => "int2",
        DType::F4E2M1 => "float4e2m1",
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::Number(dtype) => onnx_name(*dtype),
            ElementType::Complex(DType::F64) => "complex128",
            ElementType::Complex(_) => "complex64",
            ElementType::String => "string",
        })
    }
}

/// Our element type for an ONNX number, as `to` and `dtype` attributes give it; `None` for strings, complex numbers
/// and numbers that ONNX does not define.
pub fn dtype_from_number(number: i64) -> Option<DType> {
    match ElementType::from_onnx(i32::try_from(number).ok()?) {
        Ok(ElementType::Number(dtype)) => Some(dtype),
        Ok(ElementType::Complex(_) | ElementType::String) | Err(_) => None,
    }
}

/// A declared type, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeclaredType {
    /// A dense tensor.
    Tensor(DeclaredTensor),
    /// A sparse tensor.
    SparseTensor(DeclaredTensor),
    /// A list of values of one type.
    Sequence(Box<DeclaredType>),
    /// A value or nothing.
    Optional(Box<DeclaredType>),
    /// Values by key.
    Map(ElementType, Box<DeclaredType>),
}

/// As ONNX writes types: `tensor(float)`, `seq(tensor(int64))`.
impl fmt::Display for DeclaredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeclaredType::Tensor(tensor) => write!(f, "tensor({})", tensor.element),
            DeclaredType::SparseTensor(tensor) => write!(f, "sparse_tensor({})", tensor.element),
            DeclaredType::Sequence(element) => write!(f, "seq({element})"),
            DeclaredType::Optional(element) => write!(f, "optional({element})"),
            DeclaredType::Map(key, value) => write!(f, "map({key},{value})"),
        }
    }
}

/// Element type and dims of a declared tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredTensor {
    /// The element type.
    pub element: ElementType,
    /// The dims; `None` when not even the rank is declared.
    pub dims: Option<Vec<DeclaredDim>>,
}

/// One declared dimension. `Value` is what the file says and may be negative, as some producers write "unknown".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeclaredDim {
    /// A number.
    Value(i64),
    /// A symbol, not empty.
    Symbol(String),
    /// Nothing declared.
    Unknown,
}

/// What wraps the innermost type.
enum Wrapper {
    Sequence,
    Optional,
    Map(ElementType),
}

/// Element type and dims of a value that must be a dense tensor of numbers; no dims when no rank is declared.
pub fn declared_type(value: &ValueInfoProto) -> Result<(DType, Option<Vec<DeclaredDim>>), ReadError> {
    let undeclared = TypeProto::default();
    let declared = type_from_proto(&value.name, value.r#type.as_ref().unwrap_or(&undeclared))?;
    let found = match declared {
        DeclaredType::Tensor(DeclaredTensor { element: ElementType::Number(dtype), dims }) => return Ok((dtype, dims)),
        DeclaredType::Tensor(DeclaredTensor { element: ElementType::Complex(dtype), dims }) => {
            let with_pair = |mut dims: Vec<DeclaredDim>| {
                dims.push(DeclaredDim::Value(2));
                dims
            };
            return Ok((dtype, dims.map(with_pair)));
        }
        DeclaredType::Tensor(DeclaredTensor { element: ElementType::String, .. }) => "a tensor of strings",
        DeclaredType::SparseTensor(_) => "a sparse tensor",
        DeclaredType::Sequence(_) => "a sequence",
        DeclaredType::Optional(_) => "an optional",
        DeclaredType::Map(..) => "a map",
    };
    let place = format!("value {}", Quoted::new(&value.name));
    Err(ReadError::Unsupported { place, problem: format!("declared as {found}, expected a tensor of numbers") })
}

/// Reads any declared type; `value` is the name of what has it, for errors.
pub fn type_from_proto(value: &str, proto: &TypeProto) -> Result<DeclaredType, ReadError> {
    let fault = |problem: String| ReadError::Type { value: Quoted::new(value), problem };
    let mut wrappers = Vec::new();
    let mut inner = Some(proto);
    let tensor = loop {
        // Each kind of type has at most one inner type, so a list of wrappers replaces recursion.
        let form = inner.and_then(|proto| proto.value.as_ref());
        let Some(form) = form else {
            return Err(fault("its type is not declared".into()));
        };
        match form {
            TypeValue::TensorType(tensor) => {
                break DeclaredType::Tensor(declared_tensor(value, tensor)?);
            }
            TypeValue::SparseTensorType(tensor) => {
                break DeclaredType::SparseTensor(declared_tensor(value, tensor)?);
            }
            TypeValue::SequenceType(sequence) => {
                wrappers.push(Wrapper::Sequence);
                inner = sequence.elem_type.as_deref();
            }
            TypeValue::OptionalType(optional) => {
                wrappers.push(Wrapper::Optional);
                inner = optional.elem_type.as_deref();
            }
            TypeValue::MapType(map) => {
                wrappers.push(Wrapper::Map(ElementType::from_onnx(map.key_type).map_err(fault)?));
                inner = map.value_type.as_deref();
            }
            TypeValue::OpaqueType(opaque) => {
                let problem = format!("opaque type {} is not supported", Quoted::new(&opaque.name));
                return Err(ReadError::Unsupported { place: format!("value {}", Quoted::new(value)), problem });
            }
        }
    };
    Ok(wrappers.into_iter().rev().fold(tensor, |inner, wrapper| match wrapper {
        Wrapper::Sequence => DeclaredType::Sequence(Box::new(inner)),
        Wrapper::Optional => DeclaredType::Optional(Box::new(inner)),
        Wrapper::Map(key) => DeclaredType::Map(key, Box::new(inner)),
    }))
}

fn declared_tensor(value: &str, proto: &TensorTypeProto) -> Result<DeclaredTensor, ReadError> {
    let element = ElementType::from_onnx(proto.elem_type)
        .map_err(|problem| ReadError::Type { value: Quoted::new(value), problem })?;
    let dims = proto.shape.as_ref().map(|shape| shape.dim.iter().map(declared_dim).collect());
    Ok(DeclaredTensor { element, dims })
}

fn declared_dim(proto: &DimensionProto) -> DeclaredDim {
    match &proto.value {
        Some(DimensionValue::DimValue(value)) => DeclaredDim::Value(*value),
        Some(DimensionValue::DimParam(symbol)) if !symbol.is_empty() => DeclaredDim::Symbol(symbol.clone()),
        Some(DimensionValue::DimParam(_)) | None => DeclaredDim::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{SequenceTypeProto, TensorShapeProto};

    fn tensor_type(elem_type: DataType, dims: &[DimensionValue]) -> TypeProto {
        let dim = dims.iter().map(|value| DimensionProto { value: Some(value.clone()), ..Default::default() });
        let shape = Some(TensorShapeProto { dim: dim.collect() });
        let tensor = TensorTypeProto { elem_type: elem_type.into(), shape };
        TypeProto { value: Some(TypeValue::TensorType(tensor)), ..Default::default() }
    }

    fn wrapped(form: fn(SequenceTypeProto) -> TypeValue, inner: TypeProto) -> TypeProto {
        let wrapper = SequenceTypeProto { elem_type: Some(Box::new(inner)) };
        TypeProto { value: Some(form(wrapper)), ..Default::default() }
    }

    #[test]
    fn dims_keep_numbers_symbols_and_unknowns() {
        let symbol = |name: &str| DimensionValue::DimParam(name.into());
        let proto = tensor_type(DataType::Float16, &[symbol("batch"), DimensionValue::DimValue(-1), symbol("")]);
        let dims = vec![DeclaredDim::Symbol("batch".into()), DeclaredDim::Value(-1), DeclaredDim::Unknown];
        let expected = DeclaredTensor { element: ElementType::Number(DType::F16), dims: Some(dims) };
        assert_eq!(type_from_proto("x", &proto).unwrap(), DeclaredType::Tensor(expected));
    }

    #[test]
    fn wrappers_keep_their_order() {
        let inner = tensor_type(DataType::Int64, &[]);
        let proto = wrapped(TypeValue::OptionalType, wrapped(TypeValue::SequenceType, inner));
        let tensor = DeclaredTensor { element: ElementType::Number(DType::I64), dims: Some(vec![]) };
        let expected = DeclaredType::Optional(Box::new(DeclaredType::Sequence(Box::new(DeclaredType::Tensor(tensor)))));
        assert_eq!(type_from_proto("x", &proto).unwrap(), expected);
    }

    #[test]
    fn an_undeclared_or_unknown_type_is_an_error_that_names_the_value() {
        let message = |proto: &TypeProto| type_from_proto("x", proto).unwrap_err().to_string();
        assert_eq!(message(&TypeProto::default()), "value 'x': its type is not declared");
        assert_eq!(message(&tensor_type(DataType::Undefined, &[])), "value 'x': the element type is missing");
        let mut proto = tensor_type(DataType::Float, &[]);
        let Some(TypeValue::TensorType(tensor)) = &mut proto.value else { unreachable!() };
        tensor.elem_type = 99;
        assert_eq!(message(&proto), "value 'x': element type 99 is not one of ONNX");
    }

    #[test]
    fn a_value_is_a_tensor_of_numbers_or_an_error_that_says_what_it_is() {
        let value = |proto: TypeProto| ValueInfoProto { name: "x".into(), r#type: Some(proto), ..Default::default() };
        let read = |proto: TypeProto| declared_type(&value(proto));
        let dims = |numbers: &[i64]| Some(numbers.iter().map(|&number| DeclaredDim::Value(number)).collect());
        let three = [DimensionValue::DimValue(3)];
        assert_eq!(read(tensor_type(DataType::Int4, &three)).unwrap(), (DType::I4, dims(&[3])));
        assert_eq!(read(tensor_type(DataType::Complex64, &three)).unwrap(), (DType::F32, dims(&[3, 2])));
        let sequence = wrapped(TypeValue::SequenceType, tensor_type(DataType::Float, &[]));
        let error = read(sequence).unwrap_err().to_string();
        assert_eq!(error, "value 'x': declared as a sequence, expected a tensor of numbers");
        let undeclared = declared_type(&ValueInfoProto { name: "x".into(), ..Default::default() });
        assert_eq!(undeclared.unwrap_err().to_string(), "value 'x': its type is not declared");
    }

    #[test]
    fn attribute_numbers_are_element_types() {
        let numbers = [1, 9, 26, 8, 14, 27, 0, -1, 1 << 40];
        let expected = [Some(DType::F32), Some(DType::Bool), Some(DType::I2), None, None, None, None, None, None];
        assert_eq!(numbers.map(dtype_from_number), expected);
    }
}
