//! Holds f32 values in 16 bits: conv(x, w) → conv(cast(x), cast(w)). Inputs and outputs keep their Types. Runs last, on
//! fused form, so that every other rewrite sees the model as it was written. Ops whose meaning needs the bits (casts to
//! integers, running sums, coordinates, quantisation, random numbers) stay in f32, with casts around them.

use precast_ir::graph::{GraphError, Provenance};
use precast_ir::op::{Cast, Fused, ReduceFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor, Type};

use crate::fuse_pointwise::is_pointwise;

/// The graph with its f32 values held as `to`.
pub fn narrow_floats(graph: &Graph, to: DType) -> Result<Graph, GraphError> {
    let mut narrowing = Narrowing::new(graph, to);
    for &input in graph.inputs() {
        let new = narrowing.new.add_input(graph.input_name(input), graph.ty(input).clone());
        narrowing.wide[input.0 as usize] = Some(new);
    }
    for node in graph.nodes() {
        narrowing.node(node)?;
    }
    for output in graph.outputs() {
        let value = narrowing.value(output.value, false)?;
        narrowing.new.add_output(output.name.clone(), value);
    }
    for size in &graph.sizes {
        let value = narrowing.value(size.value, false)?;
        narrowing.new.sizes.push(precast_ir::graph::SizeRead { value, ..size.clone() });
    }
    Ok(narrowing.new)
}

/// A graph on its way to narrow values. Of each f32 value there may be both forms; others are in `wide`.
struct Narrowing<'a> {
    old: &'a Graph,
    new: Graph,
    to: DType,
    wide: Vec<Option<ValueId>>,
    narrow: Vec<Option<ValueId>>,
}

impl<'a> Narrowing<'a> {
    fn new(old: &'a Graph, to: DType) -> Narrowing<'a> {
        let mut new = Graph::new(old.name.clone());
        new.ranges = old.ranges.clone();
        let none = vec![None; old.values().len()];
        Narrowing { old, new, to, wide: none.clone(), narrow: none }
    }

    /// The new value of an old one, narrow where that is asked for and the value is an f32.
    fn value(&mut self, old: ValueId, is_narrow: bool) -> Result<ValueId, GraphError> {
        let at = old.0 as usize;
        let is_narrow = is_narrow && self.old.ty(old).dtype == DType::F32;
        let (wanted, other) =
            if is_narrow { (self.narrow[at], self.wide[at]) } else { (self.wide[at], self.narrow[at]) };
        if let Some(value) = wanted {
            return Ok(value);
        }
        let value = match (other, self.old.constant(old)) {
            (_, Some(tensor)) if is_narrow => self.new.add_constant(narrowed(tensor, self.to)?),
            (_, Some(tensor)) => self.new.add_constant(tensor.clone()),
            (Some(other), None) => {
                let to = if is_narrow { self.to } else { DType::F32 };
                self.new.add(Cast { to, saturate: true }, &[other], &Provenance::default())?
            }
            (None, None) => unreachable!("nodes are in order, so a value has a form before it is used"),
        };
        *(if is_narrow { &mut self.narrow[at] } else { &mut self.wide[at] }) = Some(value);
        Ok(value)
    }

    /// Whether a node keeps the width of its operands, and of none of them is there a narrow form: what comes from the
    /// caller or from an op that needs the bits stays wide up to the next product, convolution or norm. Sums that are
    /// too large for 16 bits are divided before they are stored, and one cast of a result is less than one of each part.
    fn stays_wide(&self, node: &Node) -> bool {
        let is_wide = |&input: &ValueId| self.narrow[input.0 as usize].is_none();
        let mut floats = node
            .inputs
            .iter()
            .filter(|&&input| self.old.ty(input).dtype == DType::F32 && self.old.constant(input).is_none());
        keeps_width(&node.op) && floats.clone().next().is_some() && floats.all(is_wide)
    }

    fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let touches = node.inputs.iter().chain(&node.outputs).any(|&value| self.old.ty(value).dtype == DType::F32);
        let is_narrow = touches && is_narrowable(&node.op) && !self.stays_wide(node);
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.push(self.value(input, is_narrow)?);
        }
        let op = match &node.op {
            Op::Fused(fused) if is_narrow => Op::Fused(Fused { body: narrow_body(&fused.body, self.to)? }),
            op => op.clone(),
        };
        let outputs = self.new.add_node(op, &inputs, &node.provenance)?;
        for (&old, new) in node.outputs.iter().zip(outputs) {
            let is_narrow = is_narrow && self.old.ty(old).dtype == DType::F32;
            *(if is_narrow { &mut self.narrow[old.0 as usize] } else { &mut self.wide[old.0 as usize] }) = Some(new);
        }
        Ok(())
    }
}

/// The body of a fused node with every f32 in it narrow: what a kernel holds in registers stays as wide as it likes.
fn narrow_body(body: &Graph, to: DType) -> Result<Graph, GraphError> {
    let mut narrowing = Narrowing::new(body, to);
    for &input in body.inputs() {
        let ty = body.ty(input);
        let dtype = if ty.dtype == DType::F32 { to } else { ty.dtype };
        let new = narrowing.new.add_input(body.input_name(input), Type::new(dtype, ty.dims.clone()));
        let is_narrow = ty.dtype == DType::F32;
        *(if is_narrow { &mut narrowing.narrow[input.0 as usize] } else { &mut narrowing.wide[input.0 as usize] }) =
            Some(new);
    }
    for node in body.nodes() {
        narrowing.node(node)?;
    }
    for output in body.outputs() {
        let value = narrowing.value(output.value, true)?;
        narrowing.new.add_output(output.name.clone(), value);
    }
    Ok(narrowing.new)
}

/// A constant in 16 bits; what is too large for them becomes the largest that is not, as masks expect.
fn narrowed(tensor: &Tensor, to: DType) -> Result<Tensor, GraphError> {
    let most = if to == DType::F16 { 65504.0 } else { f32::MAX };
    let bounded = |element: f32| if element.is_finite() { element.clamp(-most, most) } else { element };
    let mut elements: Vec<f32> = tensor.to_vec().expect("only f32 values are narrowed");
    elements.iter_mut().for_each(|element| *element = bounded(*element));
    Ok(Tensor::from_f32(to, tensor.shape().to_vec(), &elements).expect("every f32 has a 16-bit form"))
}

/// Whether an op computes or moves single elements, or sums them.
fn keeps_width(op: &Op) -> bool {
    match op {
        Op::Fused(fused) => fused.body.nodes().iter().all(|node| is_pointwise(&node.op)),
        Op::Reduce(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Concat(_) => true,
        op => is_pointwise(op),
    }
}

/// Whether a reduction's result is no larger than what it reduces.
fn is_bounded(func: ReduceFn) -> bool {
    matches!(func, ReduceFn::Mean | ReduceFn::Max | ReduceFn::Min | ReduceFn::Any | ReduceFn::All)
}

/// Whether an op means the same on narrow values but for their rounding.
fn is_narrowable(op: &Op) -> bool {
    match op {
        Op::Cast(_) | Op::Bitcast(_) | Op::Cumulate(_) | Op::ArgReduce(_) => false,
        Op::MatmulInt(_) | Op::ConvInt(_) | Op::Quantize(_) | Op::Dequantize(_) | Op::Unpack(_) => false,
        Op::GridSample(_) | Op::RoiAlign(_) | Op::PoolIndices(_) | Op::Nms(_) | Op::NonZero(_) | Op::Topk(_) => false,
        Op::Iota(_) | Op::DimValue(_) | Op::Uniform(_) | Op::Normal(_) | Op::Recurrent(_) => false,
        Op::If(_) | Op::Loop(_) | Op::CachedAttention(_) | Op::AppendToCache(_) => false,
        Op::Fused(fused) => fused.body.nodes().iter().all(|node| is_narrowable(&node.op)),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) => true,
        Op::Reduce(reduce) => is_bounded(reduce.func),
        Op::Matmul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::Resize(_) | Op::Softmax(_) => true,
        Op::LayerNorm(_) | Op::RmsNorm(_) | Op::GroupNorm(_) | Op::Lrn(_) => true,
        Op::Gather(_) | Op::GatherElements(_) | Op::GatherNd(_) | Op::ScatterElements(_) | Op::ScatterNd(_) => true,
        Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Concat(_) | Op::Pad(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use precast_ir::attr::NoConstants;
    use precast_ir::eval::eval_graph;
    use precast_ir::text;

    fn check(before: &str, expected_casts: usize) -> Graph {
        let graph = text::parse(before, &NoConstants).unwrap();
        let narrow = narrow_floats(&graph, DType::F16).unwrap();
        precast_ir::verify::verify(&narrow).unwrap();
        let casts = narrow.nodes().iter().filter(|node| matches!(node.op, Op::Cast(_))).count();
        assert_eq!(casts, expected_casts, "{}", text::print(&narrow));
        for (&old, &new) in graph.inputs().iter().zip(narrow.inputs()) {
            assert_eq!(graph.ty(old), narrow.ty(new));
        }
        for (old, new) in graph.outputs().iter().zip(narrow.outputs()) {
            assert_eq!(graph.ty(old.value), narrow.ty(new.value));
        }
        narrow
    }

    #[test]
    fn values_between_inputs_and_outputs_are_narrow() {
        let text = r#"graph "g"(%0 "x": f32[2,3], %1 "w": f32[3,3]) {
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[2,3]
  %3 = unary.exp(%2) {alpha=0.0, beta=0.0} : f32[2,3]
  return "y" %3
}
"#;
        let narrow = check(text, 3);
        let x = Tensor::from_vec([2, 3], vec![0.1_f32, 0.2, 0.3, 0.4, 0.5, 0.6]).unwrap();
        let w = Tensor::from_vec([3, 3], vec![1.0_f32, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
        let y = eval_graph(&narrow, &[x, w]).unwrap().remove(0).to_f64_vec();
        assert!((y[0] - 0.1_f64.exp()).abs() < 1e-3);
    }

    #[test]
    fn elements_of_the_caller_stay_wide_up_to_a_product() {
        let text = r#"graph "g"(%0 "x": f32[2,3], %1 "w": f32[3,3]) {
  %2 = unary.exp(%0) {alpha=0.0, beta=0.0} : f32[2,3]
  %3 = concat(%2, %0) {axis=0} : f32[4,3]
  %4 = matmul(%3, %1) {transpose_a=false, transpose_b=false} : f32[4,3]
  return "y" %4
}
"#;
        // One for each operand of the product, one for the result.
        check(text, 3);
    }

    #[test]
    fn ops_that_need_the_bits_stay_wide() {
        let text = r#"graph "g"(%0 "x": f32[2,3], %1 "w": f32[3,3]) {
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[2,3]
  %3 = reduce.sum(%2) {axes=[1], keep_dims=false} : f32[2]
  %4 = unary.neg(%3) {alpha=0.0, beta=0.0} : f32[2]
  return "y" %4
}
"#;
        // Two into the product, one before the sum, which may be larger than 16 bits hold.
        check(text, 3);
    }

    #[test]
    fn large_constants_stay_finite() {
        let tensor = Tensor::from_vec([2], vec![-3.4e38_f32, 1.0]).unwrap();
        assert_eq!(narrowed(&tensor, DType::F16).unwrap().to_f64_vec(), [-65504.0, 1.0]);
    }
}
