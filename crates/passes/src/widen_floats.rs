//! Holds 16-bit floats in f32: matmul(x, w) → matmul(x, cast(w)), with inputs and outputs of f32. For machines whose kernels are
//! of f32: nothing is rounded to 16 bits on the way, so results are nearer to those of real numbers. Ops whose meaning needs
//! the bits stay in 16, with casts around them.

use precast_ir::graph::{GraphError, Provenance, SizeRead};
use precast_ir::op::{Cast, Dequantize, Iota};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Type};

/// The graph with its f16 and bf16 values held as f32, those of its inputs and outputs too.
pub fn widen_floats(graph: &Graph) -> Result<Graph, GraphError> {
    let mut new = Graph::new(graph.name.clone());
    new.ranges = graph.ranges.clone();
    let none = vec![None; graph.values().len()];
    let mut widening = Widening { old: graph, new, wide: none.clone(), narrow: none };
    for &input in graph.inputs() {
        let Type { dtype, dims } = graph.ty(input).clone();
        let value = widening.new.add_input(graph.input_name(input), Type::new(widened(dtype), dims));
        widening.wide[input.0 as usize] = Some(value);
    }
    for node in graph.nodes() {
        widening.node(node)?;
    }
    for output in graph.outputs() {
        let value = widening.value(output.value, true)?;
        widening.new.add_output(output.name.clone(), value);
    }
    for size in &graph.sizes {
        let value = widening.value(size.value, true)?;
        widening.new.sizes.push(SizeRead { value, ..size.clone() });
    }
    Ok(widening.new)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn widened(dtype: DType) -> DType {
    if is_narrow(dtype) { DType::F32 } else { dtype }
}

/// A graph on its way to wide values. Of each 16-bit value there may be both forms; others are in `wide`.
struct Widening<'a> {
    old: &'a Graph,
    new: Graph,
    wide: Vec<Option<ValueId>>,
    narrow: Vec<Option<ValueId>>,
}

impl Widening<'_> {
    /// The new value of an old one; narrow ones are of the type that they had.
    fn value(&mut self, old: ValueId, is_wide: bool) -> Result<ValueId, GraphError> {
        let (at, dtype) = (old.0 as usize, self.old.ty(old).dtype);
        let is_wide = is_wide || !is_narrow(dtype);
        if let Some(value) = if is_wide { self.wide[at] } else { self.narrow[at] } {
            return Ok(value);
        }
        let value = match self.old.constant(old) {
            // A constant becomes wide where passes fold the cast, in parts.
            Some(tensor) if !is_wide || !is_narrow(dtype) => self.new.add_constant(tensor.clone()),
            _ => {
                let other = self.value(old, !is_wide)?;
                let to = if is_wide { DType::F32 } else { dtype };
                self.new.add(Cast { to, saturate: true }, &[other], &Provenance::default())?
            }
        };
        *(if is_wide { &mut self.wide[at] } else { &mut self.narrow[at] }) = Some(value);
        Ok(value)
    }

    fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let is_wide = !self.stays_narrow(node);
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.push(self.value(input, is_wide)?);
        }
        let op = if is_wide { wide_op(&node.op) } else { node.op.clone() };
        let outputs = self.new.add_node(op, &inputs, &node.provenance)?;
        for (&old, new) in node.outputs.iter().zip(outputs) {
            let is_wide = is_wide || !is_narrow(self.old.ty(old).dtype);
            *(if is_wide { &mut self.wide[old.0 as usize] } else { &mut self.narrow[old.0 as usize] }) = Some(new);
        }
        Ok(())
    }

    /// Whether an op means something else on f32, or reads few elements of a constant table, which then keeps its size.
    fn stays_narrow(&self, node: &Node) -> bool {
        match &node.op {
            Op::Bitcast(_) | Op::Quantize(_) | Op::Unpack(_) | Op::Uniform(_) | Op::Normal(_) => true,
            Op::If(_) | Op::Loop(_) | Op::Fused(_) => true,
            Op::Gather(_) => self.old.constant(node.inputs[0]).is_some(),
            _ => false,
        }
    }
}

/// An op that names the type of its result, with the wide one.
fn wide_op(op: &Op) -> Op {
    match op {
        Op::Cast(cast) => Op::Cast(Cast { to: widened(cast.to), ..cast.clone() }),
        Op::Iota(iota) => Op::Iota(Iota { to: widened(iota.to), ..iota.clone() }),
        Op::Dequantize(dequantize) => Op::Dequantize(Dequantize { to: widened(dequantize.to), ..dequantize.clone() }),
        op => op.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use precast_ir::attr::NoConstants;
    use precast_ir::text;

    /// The graph of a text, widened.
    fn widen(before: &str) -> Graph {
        let wide = widen_floats(&text::parse(before, &NoConstants).unwrap()).unwrap();
        precast_ir::verify::verify(&wide).unwrap();
        wide
    }

    fn narrow_values(graph: &Graph) -> usize {
        graph.values().iter().filter(|value| is_narrow(value.ty.dtype)).count()
    }

    #[test]
    fn inputs_values_and_outputs_are_f32() {
        let wide = widen(
            r#"graph "g"(%0 "x": f16[2,3], %1 "w": f16[3,3], %2 "i": i64[2]) {
  %3 = matmul(%0, %1) {transpose_a=false, transpose_b=false} : f16[2,3]
  %4 = cast(%2) {to=f16, saturate=true} : f16[2]
  %5 = cast(%3) {to=f32, saturate=true} : f32[2,3]
  return "y" %3, "z" %4, "t" %5
}
"#,
        );
        assert_eq!(narrow_values(&wide), 0, "{}", text::print(&wide));
        assert!(wide.outputs().iter().all(|output| wide.ty(output.value).dtype == DType::F32));
    }

    #[test]
    fn ops_that_need_the_bits_stay_narrow() {
        let wide = widen(
            r#"graph "g"(%0 "x": bf16[2]) {
  %1 = unary.exp(%0) {alpha=0.0, beta=0.0} : bf16[2]
  %2 = bitcast(%1) {to=u16} : u16[2]
  return "y" %2
}
"#,
        );
        // What is read as bits is cast for that alone.
        assert_eq!(narrow_values(&wide), 1, "{}", text::print(&wide));
    }

    #[test]
    fn graphs_of_f32_stay_what_they_are() {
        let before = r#"graph "g"(%0 "x": f32[2]) {
  %1 = unary.exp(%0) {alpha=0.0, beta=0.0} : f32[2]
  return "y" %1
}
"#;
        assert_eq!(text::print(&widen(before)), before);
    }
}
