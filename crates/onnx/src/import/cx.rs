//! What an Import works with: one ONNX node, its inputs and attributes, and the Graph it adds to.

use std::collections::BTreeSet;

use precast_ir::graph::Provenance;
use precast_ir::op::{
    Binary, BinaryFn, Broadcast, Cast, Clamp, Compare, CompareFn, Concat, DimValue, Gather, Iota, Matmul, Pad, PadFn,
    Reduce, ReduceFn, Reshape, Select, Slice, Softmax, Transpose, Unary, UnaryFn,
};
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{DType, Dim, Tensor, Type};

use crate::proto::{GraphProto, NodeProto, SparseTensorProto, TensorProto};
use crate::reader::StringTensor;

use super::attributes::Attributes;
use super::body::free_names;
use super::error::Fault;
use super::live::remove_dead;
use super::value::Value;
use super::{Builder, Importer, Opsets};

/// One ONNX node while it is imported.
pub struct NodeCx<'n, 'g> {
    pub(super) importer: &'n mut Importer<'g>,
    pub(super) builder: &'n mut Builder,
    pub(super) node: &'n NodeProto,
    pub(super) inputs: Vec<Option<ValueId>>,
    pub(super) values: Vec<Option<Value>>,
    pub(super) attributes: Attributes<'n>,
    pub(super) opsets: &'n Opsets,
    pub(super) opset: i64,
    pub(super) provenance: Provenance,
    pub(super) depth: usize,
}

/// Nodes that all unrolled loops of a model together may become.
const UNROLLED_TOTAL_MAX: usize = 1 << 15;

/// Results of adding to the Graph.
type Added = Result<ValueId, Fault>;

/// The node itself.
impl<'n, 'g> NodeCx<'n, 'g> {
    pub(crate) fn new(
        importer: &'n mut Importer<'g>,
        builder: &'n mut Builder,
        node: &'n NodeProto,
        values: Vec<Option<Value>>,
        attributes: Attributes<'n>,
        opsets: &'n Opsets,
        opset: i64,
        provenance: Provenance,
        depth: usize,
    ) -> NodeCx<'n, 'g> {
        let inputs = values.iter().map(|value| value.as_ref().and_then(Value::tensor)).collect();
        NodeCx { importer, builder, node, inputs, values, attributes, opsets, opset, provenance, depth }
    }

    /// Fails if the node has attributes that nobody read.
    pub(crate) fn finish(&self) -> Result<(), Fault> {
        self.attributes.finish()
    }

    /// Operator name.
    pub fn op_type(&self) -> &'n str {
        &self.node.op_type
    }

    /// Name of the node, or one made of its operator and place where it has none.
    pub fn name(&self) -> &str {
        self.provenance.names().first().map_or("", |name| &**name)
    }

    /// Version of the operator set in force for this node's domain.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// How many inputs are written, absent ones included.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs are written.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }

    /// Whether the output at `position` has a name.
    pub fn is_wanted(&self, position: usize) -> bool {
        self.node.output.get(position).is_some_and(|name| !name.is_empty())
    }

    /// A required input.
    pub fn input(&self, position: usize) -> Added {
        self.optional(position).ok_or_else(|| Fault::Invalid(format!("input {position} is missing")))
    }

    /// An input that may be absent.
    pub fn optional(&self, position: usize) -> Option<ValueId> {
        self.inputs.get(position).copied().flatten()
    }

    /// What a required input stands for.
    pub fn value(&self, position: usize) -> Result<Value, Fault> {
        self.optional_value(position).ok_or_else(|| Fault::Invalid(format!("input {position} is missing")))
    }

    /// What an input stands for that may be absent.
    pub fn optional_value(&self, position: usize) -> Option<Value> {
        self.values.get(position).cloned().flatten()
    }

    /// A required input that must be a tensor of numbers.
    pub fn tensor_input(&self, position: usize) -> Added {
        let value = self.value(position)?;
        value.tensor().ok_or_else(|| {
            Fault::Invalid(format!("input {position} is {}; a tensor of numbers was expected", value.kind()))
        })
    }

    /// Takes tensors in the place of inputs, for operators that move strings as they move numbers.
    pub(crate) fn set_inputs(&mut self, inputs: Vec<Option<ValueId>>) {
        self.inputs = inputs;
    }

    /// How many tokens of each row are cached, where the past is a cache with room left.
    pub fn cache_lengths(&self) -> Option<ValueId> {
        self.builder.cache_lengths
    }

    /// Whether attention of this type behind a cache is one node.
    pub fn keeps_attention(&self, dtype: DType) -> bool {
        self.builder.keeps_attention.contains(&dtype)
    }

    /// Whether past keys and values are buffers that present ones are written into.
    pub fn shares_caches(&self) -> bool {
        self.builder.shares_caches
    }

    /// All inputs, none of which may be absent.
    pub fn all_inputs(&self) -> Result<Vec<ValueId>, Fault> {
        (0..self.inputs.len()).map(|position| self.input(position)).collect()
    }
}

/// Attributes.
impl<'n, 'g> NodeCx<'n, 'g> {
    /// The attributes, for what the shorthands below do not cover.
    pub fn attributes(&self) -> &Attributes<'n> {
        &self.attributes
    }

    /// An integer attribute or its default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64, Fault> {
        Ok(self.attributes.int(name)?.unwrap_or(default))
    }

    /// An integer attribute used as a yes or no.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, Fault> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    /// A float attribute or its default.
    pub fn float(&self, name: &str, default: f64) -> Result<f64, Fault> {
        Ok(self.attributes.float(name)?.unwrap_or(default))
    }

    /// A string attribute or its default.
    pub fn string(&self, name: &str, default: &str) -> Result<String, Fault> {
        Ok(self.attributes.string(name)?.unwrap_or_else(|| default.to_string()))
    }

    /// An integer list attribute.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, Fault> {
        self.attributes.ints(name)
    }

    /// A list attribute of sizes, each 0 or more.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>, Fault> {
        let Some(ints) = self.ints(name)? else { return Ok(None) };
        ints.iter()
            .map(|&int| {
                usize::try_from(int)
                    .map_err(|_| Fault::Invalid(format!("attribute '{name}' has the negative size {int}")))
            })
            .collect::<Result<Vec<usize>, Fault>>()
            .map(Some)
    }

    /// An element type attribute, as ONNX numbers them.
    pub fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, Fault> {
        let Some(number) = self.attributes.int(name)? else {
            return Ok(None);
        };
        crate::reader::dtype_from_number(number)
            .map(Some)
            .ok_or_else(|| Fault::Unsupported(format!("attribute '{name}': element type {number} is not covered")))
    }

    /// The dense tensor of a sparse proto inside an attribute.
    pub fn read_sparse_tensor(&self, proto: &SparseTensorProto) -> Result<Tensor, Fault> {
        Ok(self.importer.file.sparse_tensor(proto)?)
    }

    /// The strings of a proto inside an attribute.
    pub fn read_strings(&self, proto: &TensorProto) -> Result<StringTensor, Fault> {
        Ok(self.importer.file.strings(proto)?)
    }

    /// The tensor of a proto inside an attribute.
    pub fn read_tensor(&self, proto: &TensorProto) -> Result<Tensor, Fault> {
        Ok(self.importer.file.tensor(proto)?)
    }
}

/// Adding to the Graph.
impl NodeCx<'_, '_> {
    /// Adds a node, or its value where it is known already.
    pub fn add_node(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<Vec<ValueId>, Fault> {
        self.builder.add_node(op.into(), inputs, &self.provenance)
    }

    /// Adds a node of one output.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Added {
        Ok(self.add_node(op, inputs)?[0])
    }

    /// Adds a constant.
    pub fn tensor(&mut self, tensor: Tensor) -> ValueId {
        self.builder.constant(tensor)
    }

    /// A scalar constant of any element type.
    pub fn scalar(&mut self, dtype: DType, number: f64) -> Added {
        let tensor = if dtype.is_float() {
            Tensor::from_f64(dtype, [], &[number], true)
        } else {
            Tensor::from_i128(dtype, [], &[number as i128])
        };
        Ok(self.builder.constant(tensor.map_err(|error| Fault::Invalid(error.to_string()))?))
    }

    /// A constant i64 scalar.
    pub fn int_scalar(&mut self, int: i64) -> ValueId {
        self.builder.constant(Tensor::scalar(int))
    }

    /// A constant of floats, rounded once to the element type.
    pub fn float_tensor(&mut self, dtype: DType, shape: Vec<usize>, elements: &[f64]) -> Added {
        let tensor = Tensor::from_f64(dtype, shape, elements, true);
        Ok(self.builder.constant(tensor.map_err(|error| Fault::Invalid(error.to_string()))?))
    }

    /// start, start + 1, .. as an i64 vector.
    pub fn iota(&mut self, start: Dim, length: Dim) -> Added {
        self.add(Iota { to: DType::I64, start, step: Dim::from(1), length }, &[])
    }

    /// A constant i64 vector.
    pub fn int_vector(&mut self, ints: &[i64]) -> Added {
        let tensor = Tensor::from_vec([ints.len()], ints.to_vec());
        Ok(self.builder.constant(tensor.map_err(|error| Fault::Invalid(error.to_string()))?))
    }

    /// A function of one element without parameters.
    pub fn unary(&mut self, func: UnaryFn, x: ValueId) -> Added {
        self.add(Unary { func, alpha: 0.0, beta: 0.0 }, &[x])
    }

    /// A function of one element with parameters.
    pub fn unary_with(&mut self, func: UnaryFn, alpha: f64, beta: f64, x: ValueId) -> Added {
        self.add(Unary { func, alpha, beta }, &[x])
    }

    /// A function of two elements.
    pub fn binary(&mut self, func: BinaryFn, a: ValueId, b: ValueId) -> Added {
        self.add(Binary { func }, &[a, b])
    }

    /// A function of an element and a number.
    pub fn binary_scalar(&mut self, func: BinaryFn, a: ValueId, number: f64) -> Added {
        let scalar = self.scalar(self.dtype(a), number)?;
        self.binary(func, a, scalar)
    }

    /// A comparison.
    pub fn compare(&mut self, func: CompareFn, a: ValueId, b: ValueId) -> Added {
        self.add(Compare { func }, &[a, b])
    }

    /// x where the condition holds, else y.
    pub fn select(&mut self, condition: ValueId, x: ValueId, y: ValueId) -> Added {
        self.add(Select {}, &[condition, x, y])
    }

    /// Limits elements.
    pub fn clamp(&mut self, x: ValueId, lo: f64, hi: f64) -> Added {
        self.add(Clamp { lo, hi }, &[x])
    }

    /// Another element type; nothing is added where x has it.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Added {
        if self.dtype(x) == to { Ok(x) } else { self.add(Cast { to, saturate: true }, &[x]) }
    }

    /// Another shape of the same elements; nothing is added where x has it.
    pub fn reshape(&mut self, x: ValueId, shape: Vec<Dim>) -> Added {
        if self.dims(x) == shape { Ok(x) } else { self.add(Reshape { shape }, &[x]) }
    }

    /// Axes in another order; nothing is added for the order x has.
    pub fn transpose(&mut self, x: ValueId, perm: Vec<usize>) -> Added {
        if perm.iter().enumerate().all(|(axis, &from)| axis == from) {
            Ok(x)
        } else {
            self.add(Transpose { perm }, &[x])
        }
    }

    /// x broadcast to a shape.
    pub fn broadcast(&mut self, x: ValueId, shape: Vec<Dim>) -> Added {
        if self.dims(x) == shape { Ok(x) } else { self.add(Broadcast { shape }, &[x]) }
    }

    /// x with size-1 axes put in, `axes` counted in the result.
    pub fn unsqueeze(&mut self, x: ValueId, axes: &[usize]) -> Added {
        let mut dims = self.dims(x);
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        for axis in sorted {
            if axis > dims.len() {
                return Err(Fault::Invalid(format!("axis {axis} is out of range for rank {}", dims.len() + 1)));
            }
            dims.insert(axis, Dim::from(1));
        }
        self.reshape(x, dims)
    }

    /// x without the axes given, each of size 1.
    pub fn squeeze(&mut self, x: ValueId, axes: &[usize]) -> Added {
        let dims = self.dims(x);
        let kept = dims.into_iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, dim)| dim).collect();
        self.reshape(x, kept)
    }

    /// The elements of one axis in the opposite order.
    pub fn reverse_axis(&mut self, x: ValueId, axis: usize) -> Added {
        let (size, last) = (self.dims(x), self.dim(x, axis)? - 1);
        let (mut start, mut step) = (vec![Dim::ZERO; size.len()], vec![1; size.len()]);
        start[axis] = last;
        step[axis] = -1;
        self.add(Slice { start, step, size }, &[x])
    }

    /// Elements start..start+size of one axis.
    pub fn slice_axis(&mut self, x: ValueId, axis: usize, start: Dim, size: Dim) -> Added {
        self.dim(x, axis)?;
        let dims = self.dims(x);
        let mut starts = vec![Dim::from(0); dims.len()];
        let mut sizes = dims.clone();
        starts[axis] = start;
        sizes[axis] = size;
        if sizes == dims {
            Ok(x)
        } else {
            self.add(Slice { start: starts, step: vec![1; dims.len()], size: sizes }, &[x])
        }
    }

    /// Inputs joined along an axis.
    pub fn concat(&mut self, inputs: &[ValueId], axis: usize) -> Added {
        if let [one] = inputs { Ok(*one) } else { self.add(Concat { axis }, inputs) }
    }

    /// A reduction.
    pub fn reduce(&mut self, func: ReduceFn, x: ValueId, axes: Vec<usize>, keep_dims: bool) -> Added {
        self.add(Reduce { func, axes, keep_dims }, &[x])
    }

    /// A matrix product of operands of rank 2 or more.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Added {
        self.add(Matmul { transpose_a: false, transpose_b: false }, &[a, b])
    }

    /// Softmax over an axis.
    pub fn softmax(&mut self, x: ValueId, axis: usize) -> Added {
        self.add(Softmax { axis, log: false }, &[x])
    }

    /// x with `hi` elements of a constant added at the end of every axis.
    pub fn pad_end(&mut self, x: ValueId, hi: Vec<Dim>, fill: f64) -> Added {
        let fill = self.scalar(self.dtype(x), fill)?;
        self.add(Pad { func: PadFn::Constant, lo: vec![Dim::from(0); hi.len()], hi }, &[x, fill])
    }

    /// Slices of x along an axis.
    pub fn gather(&mut self, x: ValueId, indices: ValueId, axis: usize) -> Added {
        self.add(Gather { axis }, &[x, indices])
    }

    /// start + i * step for i in 0..length, as any element type.
    pub fn iota_as(&mut self, to: DType, start: Dim, step: Dim, length: Dim) -> Added {
        self.add(Iota { to, start, step, length }, &[])
    }

    /// 0..length along one axis, the other axes having size 1.
    pub fn iota_along(&mut self, to: DType, length: Dim, axis: usize, rank: usize) -> Added {
        let mut shape = vec![Dim::ONE; rank];
        shape[axis] = length.clone();
        let counted = self.iota_as(to, Dim::ZERO, Dim::ONE, length)?;
        self.reshape(counted, shape)
    }

    /// The value of a dim as an i64 scalar.
    pub fn dim_value(&mut self, dim: Dim) -> Added {
        match dim.as_const() {
            Some(number) => {
                let tensor = Tensor::scalar(number);
                Ok(self.tensor(tensor))
            }
            None => self.add(DimValue { dim }, &[]),
        }
    }

    /// Values of dims as an i64 vector.
    pub fn dim_vector(&mut self, dims: &[Dim]) -> Added {
        if dims.is_empty() {
            return self.int_vector(&[]);
        }
        let parts: Vec<ValueId> = dims
            .iter()
            .map(|dim| {
                let scalar = self.dim_value(dim.clone())?;
                self.reshape(scalar, vec![Dim::from(1)])
            })
            .collect::<Result<_, Fault>>()?;
        self.concat(&parts, 0)
    }
}

/// Bodies.
impl NodeCx<'_, '_> {
    /// Names outside of `bodies` that they use and that are not constants, in a fixed order, with their values.
    pub fn captures(&self, bodies: &[&GraphProto]) -> Vec<(String, ValueId)> {
        let named = all_free_names(bodies).into_iter().filter_map(|name| Some((self.builder.lookup(&name)?, name)));
        named
            .filter(|(value, _)| self.builder.graph.constant(*value).is_none())
            .map(|(value, name)| (name, value))
            .collect()
    }

    /// Whether a body reads something from around it that is no tensor of numbers.
    pub fn captures_structures(&self, bodies: &[&GraphProto]) -> bool {
        all_free_names(bodies).iter().filter_map(|name| self.builder.value(name)).any(|value| value.tensor().is_none())
    }

    /// Imports a body whose inputs are `parameters` and then the captures of all `bodies`.
    pub fn body(&mut self, proto: &GraphProto, bodies: &[&GraphProto], parameters: &[Type]) -> Result<Graph, Fault> {
        let names: Vec<String> = all_free_names(bodies).into_iter().collect();
        self.importer.import_body(self.builder, proto, parameters, &names, self.opsets, self.depth)
    }

    /// A body that an import writes itself: `write` is given its parameters and gives its outputs. What it reads of the
    /// graph around it must be among the parameters.
    pub fn own_body(
        &mut self,
        parameters: &[Type],
        write: impl FnOnce(&mut Self, &[ValueId]) -> Result<Vec<ValueId>, Fault>,
    ) -> Result<Graph, Fault> {
        let inner = Builder::inside(&self.fresh_name("loop"), self.builder);
        let outer = std::mem::replace(self.builder, inner);
        let inputs: Vec<ValueId> = parameters
            .iter()
            .enumerate()
            .map(|(at, ty)| self.builder.add_body_input(&format!("parameter.{at}"), ty.clone(), true))
            .collect();
        let written = write(self, &inputs);
        let mut body = std::mem::replace(self.builder, outer).graph;
        for (at, value) in written?.into_iter().enumerate() {
            body.add_output(format!("result.{at}"), value);
        }
        Ok(remove_dead(body)?)
    }

    /// Whether a loop may become this many nodes, of all that loops of this model may become.
    pub fn may_unroll(&mut self, nodes: usize) -> bool {
        self.importer.nodes_unrolled = self.importer.nodes_unrolled.saturating_add(nodes);
        self.importer.nodes_unrolled <= UNROLLED_TOTAL_MAX
    }

    /// A name of its own for a value, for bodies that are written here and not in the file.
    pub fn alias(&mut self, value: ValueId) -> String {
        loop {
            let name = self.fresh_name("alias");
            if self.builder.lookup(&name).is_none() {
                self.builder.define(&name, value);
                return name;
            }
        }
    }

    /// Imports a body in place, for a branch that is known to be taken or one round of a loop. `parameters` are the
    /// values of its own inputs.
    pub fn inline(&mut self, proto: &GraphProto, parameters: &[Value]) -> Result<Vec<Value>, Fault> {
        self.importer.inline_body(self.builder, proto, parameters, self.opsets, self.depth)
    }
}

fn all_free_names(bodies: &[&GraphProto]) -> BTreeSet<String> {
    bodies.iter().flat_map(|body| free_names(body)).collect()
}
