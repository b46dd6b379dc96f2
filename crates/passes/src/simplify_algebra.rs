//! Functions that undo or repeat one another, and divisions by powers of two (A1, A2, A5, A7 as far as they keep every bit).

use precast_ir::graph::{GraphCopy, GraphError};
use precast_ir::op::{Binary, BinaryFn, Clamp, Unary, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::log::Log;
use crate::pattern::{is_number, made_by_unary};
use crate::pipeline::{Class, Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "simplify_algebra",
    doc: "−(−x), ¬¬x, max(x, x), select(c, x, x) → x; |−x| → |x|; f(f(x)) → f(x), f relu, abs, ceil, floor or round; \
          clamp(clamp(x)) → clamp(x); x · (−1), x / (−1) → −x; x / 2ᵏ → x · 2⁻ᵏ",
    class: Class::Exact,
    run: Run::Plain(simplify_algebra),
};

/// What stands for a node.
enum Simpler {
    /// A value of the new Graph.
    Same(ValueId),
    /// Another op of these values of the new Graph.
    Node(Box<Op>, Vec<ValueId>),
    /// The value times a number.
    Times(ValueId, Tensor),
}

fn simplify_algebra(graph: &Graph, log: &mut Log) -> Result<Graph, GraphError> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        let inputs = copy.get_all(&node.inputs);
        // A node that broadcasts is more than its function.
        let keeps_type = |value: ValueId| copy.new.ty(value) == graph.ty(node.outputs[0]);
        let Some(simpler) = simpler(&copy.new, node, &inputs, &keeps_type) else {
            copy.node(node)?;
            continue;
        };
        log.fired(node);
        let output = match simpler {
            Simpler::Same(value) => value,
            Simpler::Node(op, inputs) => copy.new.add(*op, &inputs, &node.provenance)?,
            Simpler::Times(value, number) => {
                let number = copy.new.add_constant(number);
                copy.new.add(Binary { func: BinaryFn::Mul }, &[value, number], &node.provenance)?
            }
        };
        copy.set(node.outputs[0], output);
    }
    Ok(copy.finish())
}

fn simpler(new: &Graph, node: &Node, inputs: &[ValueId], keeps_type: &dyn Fn(ValueId) -> bool) -> Option<Simpler> {
    match &node.op {
        Op::Unary(op) => of_unary(new, op, inputs[0]),
        Op::Binary(op) => of_binary(new, op.func, inputs[0], inputs[1], keeps_type),
        Op::Clamp(op) => of_clamp(new, op, inputs[0]),
        Op::Select(_) if inputs[1] == inputs[2] && keeps_type(inputs[1]) => Some(Simpler::Same(inputs[1])),
        _ => None,
    }
}

fn of_unary(new: &Graph, op: &Unary, x: ValueId) -> Option<Simpler> {
    match op.func {
        UnaryFn::Neg | UnaryFn::Not | UnaryFn::BitNot => made_by_unary(new, x, op.func).map(Simpler::Same),
        UnaryFn::Relu | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round => {
            made_by_unary(new, x, op.func).map(|_| Simpler::Same(x))
        }
        UnaryFn::Abs if made_by_unary(new, x, UnaryFn::Abs).is_some() => Some(Simpler::Same(x)),
        UnaryFn::Abs => {
            let inner = made_by_unary(new, x, UnaryFn::Neg)?;
            // The least integer is its own negative, and its magnitude that of itself.
            Some(Simpler::Node(Box::new(Op::Unary(op.clone())), vec![inner]))
        }
        _ => None,
    }
}

fn of_binary(
    new: &Graph,
    func: BinaryFn,
    a: ValueId,
    b: ValueId,
    keeps_type: &dyn Fn(ValueId) -> bool,
) -> Option<Simpler> {
    let negative =
        |x: ValueId| Simpler::Node(Box::new(Op::Unary(Unary { func: UnaryFn::Neg, alpha: 0.0, beta: 0.0 })), vec![x]);
    let is_float = new.ty(a).dtype.is_float();
    match func {
        BinaryFn::Max | BinaryFn::Min if a == b => Some(Simpler::Same(a)),
        BinaryFn::Mul if is_float && is_number(new, b, -1.0) && keeps_type(a) => Some(negative(a)),
        BinaryFn::Mul if is_float && is_number(new, a, -1.0) && keeps_type(b) => Some(negative(b)),
        BinaryFn::Div if is_float && is_number(new, b, -1.0) && keeps_type(a) => Some(negative(a)),
        BinaryFn::Div => Some(Simpler::Times(a, inverse_of_power(new.constant(b)?)?)),
        _ => None,
    }
}

/// 1/c for powers of two c, if both are normal: multiplying by it rounds exactly as dividing by c does.
fn inverse_of_power(divisor: &Tensor) -> Option<Tensor> {
    let mantissa_is_zero = |value: f64| value.to_bits() & ((1 << 52) - 1) == 0;
    // Wide enough that the inverse of a normal power of two is normal again.
    let range = match divisor.dtype() {
        DType::F32 => -126..=126,
        DType::F64 => -1022..=1022,
        _ => return None,
    };
    let elements = divisor.to_f64_vec();
    let is_power = |&value: &f64| {
        let exponent = ((value.to_bits() >> 52) & 0x7ff) as i64 - 1023;
        value.is_normal() && mantissa_is_zero(value) && range.contains(&exponent)
    };
    if elements.is_empty() || !elements.iter().all(is_power) {
        return None;
    }
    let inverses: Vec<f64> = elements.iter().map(|value| 1.0 / value).collect();
    Tensor::from_f64(divisor.dtype(), divisor.shape().to_vec(), &inverses, false).ok()
}

/// Two clamps as one: the limits of the outer one, limited by the inner one's.
fn of_clamp(new: &Graph, outer: &Clamp, x: ValueId) -> Option<Simpler> {
    let (source, _) = new.producer(x)?;
    let Op::Clamp(inner) = &source.op else { return None };
    let is_ordered = |clamp: &Clamp| clamp.lo <= clamp.hi;
    if !is_ordered(outer) || !is_ordered(inner) {
        return None;
    }
    let within = |value: f64| value.max(outer.lo).min(outer.hi);
    // Zeros of both signs compare equal but are not the same.
    let is_zero = |clamp: &Clamp| clamp.lo == 0.0 || clamp.hi == 0.0;
    if is_zero(outer)
        && is_zero(inner)
        && (outer.lo.to_bits(), outer.hi.to_bits()) != (inner.lo.to_bits(), inner.hi.to_bits())
    {
        return None;
    }
    let joined = Clamp { lo: within(inner.lo), hi: within(inner.hi) };
    Some(Simpler::Node(Box::new(Op::Clamp(joined)), vec![source.inputs[0]]))
}
