//! Messages of the ONNX format, as short as the generator needs them.

use precast::{DType, Tensor};
use precast_onnx::dtype_from_number;
use precast_onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};

/// The number that ONNX has for an element type.
pub fn number_of(dtype: DType) -> i32 {
    let number = (1..64).find(|&number| dtype_from_number(number) == Some(dtype));
    number.expect("every element type has a number") as i32
}

/// A dim as it is declared.
pub enum Size {
    /// A number.
    Fixed(usize),
    /// A name, the same for equal sizes.
    Named(String),
}

/// A declared value; without sizes its rank is left open.
pub fn declared(name: &str, dtype: DType, sizes: Option<Vec<Size>>) -> ValueInfoProto {
    let dim = |size| DimensionProto {
        value: Some(match size {
            Size::Fixed(size) => DimensionValue::DimValue(size as i64),
            Size::Named(name) => DimensionValue::DimParam(name),
        }),
        ..DimensionProto::default()
    };
    let shape = sizes.map(|sizes| TensorShapeProto { dim: sizes.into_iter().map(dim).collect() });
    let tensor = TensorTypeProto { elem_type: number_of(dtype), shape };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() });
    ValueInfoProto { name: name.to_string(), r#type, ..ValueInfoProto::default() }
}

/// A value declared with the shape of a tensor.
pub fn declared_as(name: &str, tensor: &Tensor) -> ValueInfoProto {
    declared(name, tensor.dtype(), Some(tensor.shape().iter().map(|&size| Size::Fixed(size)).collect()))
}

/// A tensor in a file.
pub fn tensor_message(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.to_string(),
        data_type: number_of(tensor.dtype()),
        dims: tensor.shape().iter().map(|&size| size as i64).collect(),
        raw_data: Some(tensor.to_packed()),
        ..TensorProto::default()
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_string(), r#type: Some(kind.into()), ..AttributeProto::default() }
}

/// An attribute of one integer.
pub fn int(name: &str, i: impl TryInto<i64>) -> AttributeProto {
    AttributeProto { i: Some(i.try_into().unwrap_or(i64::MAX)), ..attribute(name, AttributeType::Int) }
}

/// An attribute of one float.
pub fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attribute(name, AttributeType::Float) }
}

/// An attribute of integers.
pub fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// An attribute of sizes.
pub fn sizes(name: &str, sizes: &[usize]) -> AttributeProto {
    ints(name, &sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>())
}

/// An attribute of a text.
pub fn string(name: &str, text: &str) -> AttributeProto {
    AttributeProto { s: Some(text.as_bytes().to_vec().into()), ..attribute(name, AttributeType::String) }
}

/// An attribute of texts.
pub fn strings(name: &str, texts: &[&str]) -> AttributeProto {
    let strings = texts.iter().map(|text| text.as_bytes().to_vec().into()).collect();
    AttributeProto { strings, ..attribute(name, AttributeType::Strings) }
}

/// An attribute of a tensor.
pub fn tensor(name: &str, tensor: &Tensor) -> AttributeProto {
    AttributeProto { t: Some(Box::new(tensor_message("", tensor))), ..attribute(name, AttributeType::Tensor) }
}

/// An attribute of a graph.
pub fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(graph)), ..attribute(name, AttributeType::Graph) }
}
