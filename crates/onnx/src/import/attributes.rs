//! Attributes of one node, typed as its Import asks for them. An attribute that nobody asked for is an error, so that
//! nothing in a file is silently without effect.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::proto::{
    AttributeProto, AttributeType, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto,
};

use super::error::Fault;

/// Attributes of one node.
pub struct Attributes<'n> {
    attributes: &'n [AttributeProto],
    read: RefCell<BTreeSet<&'n str>>,
}

impl<'n> Attributes<'n> {
    /// Attributes of a node; names must be unique.
    pub fn new(attributes: &'n [AttributeProto]) -> Result<Attributes<'n>, Fault> {
        let mut names = BTreeSet::new();
        for attribute in attributes {
            if !names.insert(attribute.name.as_str()) {
                return Err(Fault::Invalid(format!("attribute '{}' is given twice", attribute.name)));
            }
            if !attribute.ref_attr_name.is_empty() {
                return Err(Fault::Invalid(format!(
                    "attribute '{}' refers to '{}' outside of a function",
                    attribute.name, attribute.ref_attr_name
                )));
            }
        }
        Ok(Attributes { attributes, read: RefCell::new(BTreeSet::new()) })
    }

    /// Whether the node has the attribute. Counts as reading it.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// An integer.
    pub fn int(&self, name: &str) -> Result<Option<i64>, Fault> {
        self.typed(name, AttributeType::Int, |attribute| attribute.i)
    }

    /// A float.
    pub fn float(&self, name: &str) -> Result<Option<f64>, Fault> {
        self.typed(name, AttributeType::Float, |attribute| attribute.f.map(f64::from))
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<String>, Fault> {
        self.typed(name, AttributeType::String, |attribute| {
            attribute.s.as_ref().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
        })
    }

    /// A list of integers.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Fault> {
        self.typed(name, AttributeType::Ints, |attribute| Some(attribute.ints.clone()))
    }

    /// A list of floats.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f64>>, Fault> {
        self.typed(name, AttributeType::Floats, |attribute| {
            Some(attribute.floats.iter().map(|&f| f64::from(f)).collect())
        })
    }

    /// A list of strings.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<String>>, Fault> {
        self.typed(name, AttributeType::Strings, |attribute| {
            attribute.strings.iter().map(|bytes| String::from_utf8(bytes.to_vec()).ok()).collect()
        })
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<Option<&'n TensorProto>, Fault> {
        self.typed(name, AttributeType::Tensor, |attribute| attribute.t.as_deref())
    }

    /// A sparse tensor.
    pub fn sparse_tensor(&self, name: &str) -> Result<Option<&'n SparseTensorProto>, Fault> {
        self.typed(name, AttributeType::SparseTensor, |attribute| attribute.sparse_tensor.as_deref())
    }

    /// A graph.
    pub fn graph(&self, name: &str) -> Result<Option<&'n GraphProto>, Fault> {
        self.typed(name, AttributeType::Graph, |attribute| attribute.g.as_deref())
    }

    /// The raw attribute, for kinds that few operators have.
    pub fn raw(&self, name: &str) -> Option<&'n AttributeProto> {
        self.find(name)
    }

    /// An error if the node has attributes that nobody asked for.
    pub fn finish(&self) -> Result<(), Fault> {
        let read = self.read.borrow();
        match self.attributes.iter().find(|attribute| !read.contains(attribute.name.as_str())) {
            None => Ok(()),
            Some(attribute) => {
                Err(Fault::Invalid(format!("attribute '{}' does not belong to this operator", attribute.name)))
            }
        }
    }

    fn find(&self, name: &str) -> Option<&'n AttributeProto> {
        let attribute = self.attributes.iter().find(|attribute| attribute.name == name)?;
        self.read.borrow_mut().insert(attribute.name.as_str());
        Some(attribute)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: AttributeType,
        value: impl Fn(&'n AttributeProto) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(attribute) = self.find(name) else {
            return Ok(None);
        };
        // Files of IR version 1 leave the type out; the field that is set decides then.
        let found = attribute.r#type();
        if found != expected && found != AttributeType::Undefined {
            return Err(Fault::Invalid(format!("attribute '{name}' is {found:?}; {expected:?} was expected")));
        }
        match value(attribute) {
            Some(value) => Ok(Some(value)),
            None => Err(Fault::Invalid(format!("attribute '{name}' has no {expected:?} value"))),
        }
    }
}

/// A function's nodes with every reference to the function's attributes replaced by the caller's value or the default.
pub(crate) fn bind_function_attributes(function: &FunctionProto, given: &[AttributeProto]) -> Vec<NodeProto> {
    let value = |name: &str| {
        given
            .iter()
            .find(|attribute| attribute.name == name)
            .or_else(|| function.attribute_proto.iter().find(|attribute| attribute.name == name))
    };
    let mut nodes = function.node.clone();
    for node in &mut nodes {
        bind_node(node, &value);
    }
    nodes
}

fn bind_node<'v>(node: &mut NodeProto, value: &dyn Fn(&str) -> Option<&'v AttributeProto>) {
    let attributes = std::mem::take(&mut node.attribute);
    for mut attribute in attributes {
        if !attribute.ref_attr_name.is_empty() {
            // A reference to an attribute that the caller left out means that this one is left out too.
            if let Some(bound) = value(&attribute.ref_attr_name) {
                node.attribute.push(AttributeProto { name: attribute.name, ..bound.clone() });
            }
            continue;
        }
        if let Some(graph) = &mut attribute.g {
            for inner in &mut graph.node {
                bind_node(inner, value);
            }
        }
        node.attribute.push(attribute);
    }
}
