//! Initializers and inputs of the top graph. Dims of inputs become symbols: a name stands for one symbol, except names
//! that mean nothing ("?", "None"), negative numbers and missing dims, each of which is a symbol of its own.

use std::collections::BTreeSet;

use precast_ir::ValueId;
use precast_tensor::{DType, Dim, Type};

use crate::proto::{GraphProto, TensorProto, TypeProto, ValueInfoProto};
use crate::reader::{
    DeclaredDim, DeclaredTensor, DeclaredType, ElementType, ReadError, declared_type, type_from_proto,
};

use super::value::{Strings, Structure, Value, element_name};
use super::{Builder, ImportError, ImportOptions, Importer};

/// Names that exporters write for "some size"; two of them are not the same size.
const EMPTY_NAMES: [&str; 5] = ["", "?", "None", "unk", "-1"];

impl Importer<'_> {
    /// Adds every initializer as a constant.
    pub(crate) fn add_initializers(
        &mut self,
        builder: &mut Builder,
        graph: &GraphProto,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        let inputs: BTreeSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        let mut overridable = 0;
        for initializer in &graph.initializer {
            overridable += usize::from(inputs.contains(initializer.name.as_str()));
            let value = match options.freeze.get(&initializer.name) {
                Some(tensor) => builder.constant(tensor.clone()).into(),
                None => self.initializer(builder, initializer)?,
            };
            if !builder.define(&initializer.name, value) {
                return Err(ImportError::malformed(format!("initializer '{}' is defined twice", initializer.name)));
            }
        }
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map_or("", |values| values.name.as_str());
            let tensor = self.file.sparse_tensor(sparse)?;
            let value = builder.constant(tensor);
            if !builder.define(name, value) {
                return Err(ImportError::malformed(format!("initializer '{name}' is defined twice")));
            }
        }
        // Files before IR version 4 had to list every initializer as an input, so it says nothing there.
        if overridable > 0 && self.file.proto().ir_version >= 4 {
            self.notices.push(format!("{overridable} inputs have initializers; they are constants here"));
        }
        Ok(())
    }

    /// The constant of an initializer.
    pub(crate) fn initializer(&self, builder: &mut Builder, proto: &TensorProto) -> Result<Value, ReadError> {
        if is_strings(proto) {
            let strings = self.file.strings(proto)?;
            return Ok(builder.strings(strings.shape(), strings.elements()));
        }
        Ok(builder.constant(self.file.tensor(proto)?).into())
    }

    /// Adds every input that has no initializer.
    pub(crate) fn add_inputs(
        &mut self,
        builder: &mut Builder,
        graph: &GraphProto,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        for input in &graph.input {
            if builder.value(&input.name).is_some() {
                continue;
            }
            let value = match (options.structures.get(&input.name), options.freeze.get(&input.name)) {
                (Some(structure), _) => add_structure(builder, input, structure, options)?,
                (None, Some(tensor)) => builder.constant(tensor.clone()).into(),
                (None, None) => {
                    let ty = self.input_type(input, options)?;
                    builder.add_input(&input.name, ty).into()
                }
            };
            if !builder.define(&input.name, value) {
                return Err(ImportError::malformed(format!("input '{}' is declared twice", input.name)));
            }
        }
        Ok(())
    }

    fn input_type(&self, input: &ValueInfoProto, options: &ImportOptions) -> Result<Type, ImportError> {
        let (dtype, declared) = declared_type(input)?;
        if let Some(shape) = options.shapes.get(&input.name) {
            if let Some(declared) = &declared
                && declared.len() != shape.len()
            {
                return Err(ImportError::malformed(format!(
                    "input '{}': a shape of rank {} was given; the model declares rank {}",
                    input.name,
                    shape.len(),
                    declared.len()
                )));
            }
            return Ok(Type { dtype, dims: shape.clone() });
        }
        let Some(declared) = declared else {
            return Err(ImportError::NeedsNumber {
                dim: "rank".to_string(),
                what: format!("input '{}': the model does not declare a shape; its rank", input.name),
            });
        };
        let dims =
            declared.iter().enumerate().map(|(axis, dim)| declared_dim(&input.name, axis, dim, options)).collect();
        Ok(Type { dtype, dims })
    }
}

/// Adds the tensors of an input that is no tensor of numbers.
fn add_structure(
    builder: &mut Builder,
    input: &ValueInfoProto,
    structure: &Structure,
    options: &ImportOptions,
) -> Result<Value, ImportError> {
    let undeclared = TypeProto::default();
    let declared = type_from_proto(&input.name, input.r#type.as_ref().unwrap_or(&undeclared))?;
    structure_value(builder, &input.name, &declared, structure, options)
}

fn structure_value(
    builder: &mut Builder,
    name: &str,
    declared: &DeclaredType,
    structure: &Structure,
    options: &ImportOptions,
) -> Result<Value, ImportError> {
    match (structure, declared) {
        (Structure::Nothing, DeclaredType::Optional(_)) => Ok(Value::Nothing),
        (given, DeclaredType::Optional(element)) => structure_value(builder, name, element, given, options),
        (Structure::Sequence(elements), DeclaredType::Sequence(element)) => {
            let elements = elements
                .iter()
                .enumerate()
                .map(|(place, given)| structure_value(builder, &element_name(name, place), element, given, options));
            Ok(Value::Sequence(elements.collect::<Result<_, _>>()?))
        }
        (Structure::Tensor, DeclaredType::Tensor(DeclaredTensor { element: ElementType::Number(dtype), .. })) => {
            Ok(tensor_of(builder, name, *dtype, options)?.into())
        }
        (Structure::Strings(table), DeclaredType::Tensor(DeclaredTensor { element: ElementType::String, .. })) => {
            let places = tensor_of(builder, name, DType::I64, options)?;
            Ok(Value::Strings(Strings { table: table.clone(), places }))
        }
        (given, _) => Err(ImportError::malformed(format!(
            "input '{name}' is given as {}; the model declares something else",
            given.kind()
        ))),
    }
}

/// A tensor of a structure: frozen, or an input of the shape that is given.
fn tensor_of(builder: &mut Builder, name: &str, dtype: DType, options: &ImportOptions) -> Result<ValueId, ImportError> {
    if let Some(tensor) = options.freeze.get(name) {
        return Ok(builder.constant(tensor.clone()));
    }
    let dims = options.shapes.get(name).cloned();
    let dims = dims.ok_or_else(|| ImportError::malformed(format!("input '{name}': its shape is not given")))?;
    Ok(builder.add_input(name, Type { dtype, dims }))
}

/// Whether an initializer holds strings.
fn is_strings(proto: &TensorProto) -> bool {
    matches!(ElementType::from_onnx(proto.data_type), Ok(ElementType::String))
}

/// The Dim of one axis of an input as the file declares it.
pub fn declared_dim(input: &str, axis: usize, dim: &DeclaredDim, options: &ImportOptions) -> Dim {
    let own = || {
        let name = format!("{input}.{axis}");
        options.dims.get(&name).cloned().unwrap_or_else(|| Dim::symbol(name.as_str()))
    };
    match dim {
        DeclaredDim::Value(number) if *number >= 0 => Dim::from(*number),
        DeclaredDim::Value(_) | DeclaredDim::Unknown => own(),
        DeclaredDim::Symbol(name) if EMPTY_NAMES.contains(&name.as_str()) => own(),
        DeclaredDim::Symbol(name) => {
            if let Some(bound) = options.dims.get(name) {
                return bound.clone();
            }
            // "past_sequence_length + sequence_length" is a sum of two symbols that other inputs name. A quotient such as
            // "frames / 2" is a size of its own: no input of that size could tell how many frames there are.
            let is_sum = name.chars().all(|c| c.is_ascii_alphanumeric() || " _.+-*".contains(c));
            let dim = match Dim::parse(name) {
                Ok(dim) if is_sum && !dim.is_const() => dim,
                _ => Dim::symbol(name.as_str()),
            };
            let bindings = options
                .dims
                .iter()
                .filter_map(|(symbol, dim)| dim.as_const().map(|number| (symbol.as_str(), number)))
                .collect();
            dim.bind(&bindings)
        }
    }
}
