//! What a fused body does to the result of its convolution or product: scale, bias, residual and activation.

use precast_ir::op::{BinaryFn, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_kernels::epilogue::Activation;

/// The end of a convolution or product. Positions are those of the step's inputs.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// A number that a product of computed operands is multiplied by.
    pub scale: Option<usize>,
    /// A vector added to the columns of a product.
    pub bias: Option<usize>,
    /// A tensor of the result's shape added to it.
    pub residual: Option<usize>,
    /// Applied last.
    pub activation: Activation,
}

impl Default for Epilogue {
    fn default() -> Epilogue {
        Epilogue { scale: None, bias: None, residual: None, activation: Activation::None }
    }
}

impl Epilogue {
    /// Reads the nodes after the first of a fused body.
    pub fn of(body: &Graph) -> Option<Epilogue> {
        let (root, rest) = body.nodes().split_first()?;
        let mut epilogue = Epilogue::default();
        let mut value = root.outputs[0];
        for node in rest {
            if !node.inputs.contains(&value) || !matches!(epilogue.activation, Activation::None) {
                return None;
            }
            match &node.op {
                Op::Binary(op) if op.func == BinaryFn::Add => epilogue.add(body, node, value)?,
                Op::Binary(op) if op.func == BinaryFn::Mul && node.inputs[0] != node.inputs[1] => {
                    epilogue.multiply(body, node, value)?;
                }
                _ => epilogue.activation = activation(&node.op)?,
            }
            value = node.outputs[0];
        }
        (body.outputs().len() == 1 && body.outputs()[0].value == value).then_some(epilogue)
    }

    fn multiply(&mut self, body: &Graph, node: &Node, value: ValueId) -> Option<()> {
        let position = other_input(body, node, value)?;
        let is_first = self.scale.is_none() && self.bias.is_none() && self.residual.is_none();
        self.scale = Some(position);
        is_first.then_some(())
    }

    fn add(&mut self, body: &Graph, node: &Node, value: ValueId) -> Option<()> {
        let position = other_input(body, node, value)?;
        let other = body.inputs()[position];
        if body.ty(other) == body.ty(value) && self.residual.is_none() {
            self.residual = Some(position);
        } else if self.bias.is_none() && self.residual.is_none() {
            self.bias = Some(position);
        } else {
            return None;
        }
        Some(())
    }

    /// Words for the kernel's name.
    pub fn suffix(&self) -> &'static str {
        match (self.residual.is_some(), matches!(self.activation, Activation::None)) {
            (false, true) => "",
            (false, false) => "+act",
            (true, true) => "+add",
            (true, false) => "+add+act",
        }
    }
}

/// The input of the body that a node of two operands reads beside `value`.
fn other_input(body: &Graph, node: &Node, value: ValueId) -> Option<usize> {
    let other = if node.inputs[0] == value { node.inputs[1] } else { node.inputs[0] };
    body.inputs().iter().position(|&input| input == other)
}

/// The kernel's activation of an op.
fn activation(op: &Op) -> Option<Activation> {
    Some(match op {
        Op::Clamp(clamp) => Activation::Clamp { lo: clamp.lo as f32, hi: clamp.hi as f32 },
        Op::Unary(unary) => match unary.func {
            UnaryFn::Relu => Activation::Relu,
            UnaryFn::Leaky => Activation::LeakyRelu { alpha: unary.alpha as f32 },
            UnaryFn::Sigmoid => Activation::Sigmoid,
            UnaryFn::Silu if unary.alpha == 1.0 => Activation::Silu,
            UnaryFn::HardSwish => Activation::HardSwish,
            UnaryFn::HardSigmoid => Activation::HardSigmoid { alpha: unary.alpha as f32, beta: unary.beta as f32 },
            UnaryFn::GeluErf => Activation::Gelu,
            UnaryFn::GeluTanh => Activation::GeluTanh,
            UnaryFn::Tanh => Activation::Tanh,
            _ => return None,
        },
        _ => return None,
    })
}
