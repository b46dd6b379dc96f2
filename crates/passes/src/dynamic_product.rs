//! The nodes of a product of float rows and 8-bit weights, as `quantise_weights` writes them and targets recognise them:
//! every row of x is quantised to u8 by its own extremes, so rows stay independent of one another.

use precast_ir::graph::{GraphError, Provenance};
use precast_ir::op::{Binary, BinaryFn, Cast, Clamp, MatmulInt, Quantize, Reduce, ReduceFn, Unary, UnaryFn};
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{DType, Tensor, Type};

/// Largest u8.
const MOST: f64 = 255.0;

/// Adds x · weights to a graph: x f32[.., K], weights i8[K, N] and their scales f32[N]. The result is f32[.., N].
pub fn add_dynamic_product(
    graph: &mut Graph,
    [x, weights, scales]: [ValueId; 3],
    provenance: &Provenance,
) -> Result<ValueId, GraphError> {
    let mut nodes = Nodes { graph, provenance };
    let last = nodes.graph.ty(x).rank() - 1;
    let depth = nodes.graph.ty(weights).dims[0].as_usize().unwrap_or(0);
    let reduce = |func| Op::Reduce(Reduce { func, axes: vec![last], keep_dims: true });
    let (zero, most) = (nodes.number(0.0), nodes.number(MOST as f32));
    // The range always holds 0, so that 0 is exact.
    let largest = nodes.add(reduce(ReduceFn::Max), &[x])?;
    let largest = nodes.binary(BinaryFn::Max, largest, zero)?;
    let least = nodes.add(reduce(ReduceFn::Min), &[x])?;
    let least = nodes.binary(BinaryFn::Min, least, zero)?;
    let span = nodes.binary(BinaryFn::Sub, largest, least)?;
    let scale = nodes.binary(BinaryFn::Div, span, most)?;
    let steps = nodes.binary(BinaryFn::Div, least, scale)?;
    let steps = nodes.unary(UnaryFn::Neg, steps)?;
    let steps = nodes.add(Clamp { lo: 0.0, hi: MOST }, &[steps])?;
    let steps = nodes.unary(UnaryFn::Round, steps)?;
    let zero_point = nodes.add(Cast { to: DType::U8, saturate: true }, &[steps])?;
    let quantize = Quantize { to: DType::U8, axis: last, block: depth, saturate: true, precision: DType::F32 };
    let levels = nodes.add(quantize, &[x, scale, zero_point])?;
    let weight_zero = nodes.graph.add_constant(Tensor::scalar(0_i8));
    let sums = nodes.add(MatmulInt {}, &[levels, weights, zero_point, weight_zero])?;
    let sums = nodes.add(Cast { to: DType::F32, saturate: true }, &[sums])?;
    let by_row = nodes.binary(BinaryFn::Mul, sums, scale)?;
    nodes.binary(BinaryFn::Mul, by_row, scales)
}

/// The number of nodes at the start of a body that are a dynamic product of its first three inputs, if they are one.
pub fn dynamic_product_len(body: &Graph) -> Option<usize> {
    let [x, weights, scales, ..] = body.inputs() else { return None };
    let types = [x, weights, scales].map(|&input| body.ty(input));
    if !is_product(types) {
        return None;
    }
    let mut template = Graph::new("");
    let inputs = types.map(|ty| template.add_input("", ty.clone()));
    add_dynamic_product(&mut template, inputs, &Provenance::default()).ok()?;
    let mut pairs: Vec<(ValueId, ValueId)> = inputs.into_iter().zip(body.inputs().iter().copied()).collect();
    let found = body.nodes().get(..template.nodes().len())?;
    for (wanted, found) in template.nodes().iter().zip(found) {
        let is_same = |(a, b): (&ValueId, &ValueId)| match template.constant(*a) {
            Some(constant) => body.constant(*b) == Some(constant),
            None => pairs.contains(&(*a, *b)),
        };
        let has_same_inputs =
            wanted.inputs.len() == found.inputs.len() && wanted.inputs.iter().zip(&found.inputs).all(is_same);
        if wanted.op != found.op || !has_same_inputs {
            return None;
        }
        pairs.extend(wanted.outputs.iter().copied().zip(found.outputs.iter().copied()));
    }
    Some(template.nodes().len())
}

/// Whether operands of these Types have a product.
fn is_product([x, weights, scales]: [&Type; 3]) -> bool {
    let dtypes = [x.dtype, weights.dtype, scales.dtype];
    dtypes == [DType::F32, DType::I8, DType::F32]
        && x.rank() >= 2
        && weights.rank() == 2
        && weights.dims[0].as_usize().is_some_and(|depth| depth > 0)
        && x.dims.last() == weights.dims.first()
        && scales.dims == weights.dims[1..]
}

/// Adds nodes of one provenance.
struct Nodes<'a> {
    graph: &'a mut Graph,
    provenance: &'a Provenance,
}

impl Nodes<'_> {
    fn add(&mut self, op: impl Into<Op>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        self.graph.add(op, inputs, self.provenance)
    }

    fn binary(&mut self, func: BinaryFn, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.add(Binary { func }, &[a, b])
    }

    fn unary(&mut self, func: UnaryFn, x: ValueId) -> Result<ValueId, GraphError> {
        self.add(Unary { func, alpha: 0.0, beta: 0.0 }, &[x])
    }

    fn number(&mut self, number: f32) -> ValueId {
        self.graph.add_constant(Tensor::scalar(number))
    }
}
