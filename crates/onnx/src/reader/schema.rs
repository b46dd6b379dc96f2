//! Which fields of which messages hold messages, names, lists and tensor data: what the scan must know of ONNX.
//!
//! Every place where a tensor can occur is a row that leads to `Kind::Tensor`. Fields the decoder skips but that
//! hold whole graphs (training) are walked too, so that nothing inside a file is unchecked.

/// The kinds of message a file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    Segment,
    ValueInfo,
    Type,
    TensorType,
    SequenceType,
    MapType,
    OpaqueType,
    Shape,
    Dimension,
    /// A key and value anywhere but in the model's own metadata.
    Entry,
    /// A key and value of the model's metadata.
    Metadata,
    OperatorSet,
    Function,
    Training,
    Annotation,
    Sequence,
    Map,
    Optional,
}

/// What a field holds, as far as budgets are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Message(Kind),
    /// A name: one and all are limited.
    Name,
    /// A node's output: a name and a value.
    Output,
    /// A tensor's name, which errors want.
    TensorName,
    /// Text of any length, counted with the names.
    Text,
    /// Text of the model's metadata.
    Metadata,
    /// One element of a list of byte strings, which share the file's bytes.
    Strings,
    /// Integers of an attribute list.
    Varints,
    /// Floats of an attribute list.
    Fixed32,
    /// Dimensions of a tensor.
    Dims,
    /// Tensor data as varints.
    TypedVarints,
    /// Tensor data of four bytes each.
    Typed32,
    /// Tensor data of eight bytes each.
    Typed64,
    /// Anything that makes the decoder allocate nothing: scalars, shared bytes, unknown fields.
    Other,
}

/// What field `number` of a message of this kind holds.
pub(super) fn field_of(kind: Kind, number: u32) -> Field {
    use Field::Message;
    match (kind, number) {
        (Kind::Model, 7) => Message(Kind::Graph),
        (Kind::Model, 8) => Message(Kind::OperatorSet),
        (Kind::Model, 14) => Message(Kind::Metadata),
        (Kind::Model, 20) => Message(Kind::Training),
        (Kind::Model, 25) => Message(Kind::Function),
        (Kind::Model, 2 | 3 | 4 | 6) => Field::Text,

        (Kind::Training, 1 | 2) => Message(Kind::Graph),
        (Kind::Training, 3 | 4) => Message(Kind::Entry),

        (Kind::Function, 7) => Message(Kind::Node),
        (Kind::Function, 9) => Message(Kind::OperatorSet),
        (Kind::Function, 11) => Message(Kind::Attribute),
        (Kind::Function, 12) => Message(Kind::ValueInfo),
        (Kind::Function, 14) => Message(Kind::Entry),
        (Kind::Function, 1 | 4 | 5 | 6 | 10 | 13) => Field::Name,
        (Kind::Function, 8) => Field::Text,

        (Kind::Graph, 1) => Message(Kind::Node),
        (Kind::Graph, 5) => Message(Kind::Tensor),
        (Kind::Graph, 11..=13) => Message(Kind::ValueInfo),
        (Kind::Graph, 14) => Message(Kind::Annotation),
        (Kind::Graph, 15) => Message(Kind::SparseTensor),
        (Kind::Graph, 16) => Message(Kind::Entry),
        (Kind::Graph, 2) => Field::Name,
        (Kind::Graph, 10) => Field::Text,

        (Kind::Node, 1 | 3 | 4 | 7 | 8) => Field::Name,
        (Kind::Node, 2) => Field::Output,
        (Kind::Node, 5) => Message(Kind::Attribute),
        (Kind::Node, 6) => Field::Text,
        (Kind::Node, 9) => Message(Kind::Entry),

        (Kind::Attribute, 1 | 21) => Field::Name,
        (Kind::Attribute, 5 | 10) => Message(Kind::Tensor),
        (Kind::Attribute, 6 | 11) => Message(Kind::Graph),
        (Kind::Attribute, 7) => Field::Fixed32,
        (Kind::Attribute, 8) => Field::Varints,
        (Kind::Attribute, 9) => Field::Strings,
        (Kind::Attribute, 14 | 15) => Message(Kind::Type),
        (Kind::Attribute, 22 | 23) => Message(Kind::SparseTensor),

        (Kind::Tensor, 1) => Field::Dims,
        (Kind::Tensor, 3) => Message(Kind::Segment),
        (Kind::Tensor, 4) => Field::Typed32,
        (Kind::Tensor, 5 | 7 | 11) => Field::TypedVarints,
        (Kind::Tensor, 6) => Field::Strings,
        (Kind::Tensor, 8) => Field::TensorName,
        (Kind::Tensor, 10) => Field::Typed64,
        (Kind::Tensor, 13 | 16) => Message(Kind::Entry),

        (Kind::SparseTensor, 1 | 2) => Message(Kind::Tensor),
        (Kind::SparseTensor, 3) => Field::Dims,

        (Kind::ValueInfo, 1) => Field::Name,
        (Kind::ValueInfo, 2) => Message(Kind::Type),
        (Kind::ValueInfo, 4) => Message(Kind::Entry),

        (Kind::Type, 1 | 8) => Message(Kind::TensorType),
        (Kind::Type, 4 | 9) => Message(Kind::SequenceType),
        (Kind::Type, 5) => Message(Kind::MapType),
        (Kind::Type, 6) => Field::Name,
        (Kind::Type, 7) => Message(Kind::OpaqueType),
        (Kind::TensorType, 2) => Message(Kind::Shape),
        (Kind::SequenceType, 1) | (Kind::MapType, 2) => Message(Kind::Type),
        (Kind::OpaqueType, 1 | 2) => Field::Name,
        (Kind::Shape, 1) => Message(Kind::Dimension),
        (Kind::Dimension, 2 | 3) => Field::Name,

        (Kind::Entry, 1 | 2) => Field::Text,
        (Kind::Metadata, 1 | 2) => Field::Metadata,
        (Kind::OperatorSet, 1) => Field::Name,
        (Kind::Annotation, 1) => Field::Name,
        (Kind::Annotation, 2) => Message(Kind::Entry),

        (Kind::Sequence, 1) | (Kind::Map, 1) | (Kind::Optional, 1) => Field::Name,
        (Kind::Sequence | Kind::Optional, 3) => Message(Kind::Tensor),
        (Kind::Sequence | Kind::Optional, 4) => Message(Kind::SparseTensor),
        (Kind::Sequence | Kind::Optional, 5) | (Kind::Map, 5) => Message(Kind::Sequence),
        (Kind::Sequence | Kind::Optional, 6) => Message(Kind::Map),
        (Kind::Sequence | Kind::Optional, 7) => Message(Kind::Optional),
        (Kind::Map, 3) => Field::Varints,
        (Kind::Map, 4) => Field::Strings,

        _ => Field::Other,
    }
}

impl Kind {
    /// The ONNX name of the message, for errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Model => "ModelProto",
            Kind::Graph => "GraphProto",
            Kind::Node => "NodeProto",
            Kind::Attribute => "AttributeProto",
            Kind::Tensor => "TensorProto",
            Kind::SparseTensor => "SparseTensorProto",
            Kind::Segment => "TensorProto.Segment",
            Kind::ValueInfo => "ValueInfoProto",
            Kind::Type => "TypeProto",
            Kind::TensorType => "TypeProto.Tensor",
            Kind::SequenceType => "TypeProto.Sequence",
            Kind::MapType => "TypeProto.Map",
            Kind::OpaqueType => "TypeProto.Opaque",
            Kind::Shape => "TensorShapeProto",
            Kind::Dimension => "TensorShapeProto.Dimension",
            Kind::Entry | Kind::Metadata => "StringStringEntryProto",
            Kind::OperatorSet => "OperatorSetIdProto",
            Kind::Function => "FunctionProto",
            Kind::Training => "TrainingInfoProto",
            Kind::Annotation => "TensorAnnotation",
            Kind::Sequence => "SequenceProto",
            Kind::Map => "MapProto",
            Kind::Optional => "OptionalProto",
        }
    }
}
