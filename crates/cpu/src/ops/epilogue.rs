//! What a fused body does to the result of its convolution or product: scale, bias, residual, activation and what follows it.

use precast_ir::op::{BinaryFn, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_kernels::epilogue::{self, Activation, Affine, Bias, ResidualPlace};

use crate::step::StepNode;

/// The end of a convolution or product. Positions are those of the step's inputs.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// A number that a product of computed operands is multiplied by.
    pub scale: Option<usize>,
    /// A vector added to the columns of a product.
    pub bias: Option<usize>,
    /// A tensor of the result's shape added to it.
    pub residual: Option<usize>,
    /// When it is added.
    pub residual_place: ResidualPlace,
    /// Applied to the sum.
    pub activation: Activation,
    /// Numbers that the result of the activation is multiplied by, and that are then added.
    pub affine: [Option<usize>; 2],
}

impl Default for Epilogue {
    fn default() -> Epilogue {
        Epilogue {
            scale: None,
            bias: None,
            residual: None,
            residual_place: ResidualPlace::First,
            activation: Activation::None,
            affine: [None; 2],
        }
    }
}

impl Epilogue {
    /// Reads the nodes after the first of a fused body.
    pub fn of(body: &Graph) -> Option<Epilogue> {
        Epilogue::after(body, 1)
    }

    /// Reads the nodes after the first `root_len` of a fused body, the last of which makes what the epilogue ends.
    pub fn after(body: &Graph, root_len: usize) -> Option<Epilogue> {
        let (root, rest) = body.nodes().split_at_checked(root_len)?;
        let (epilogue, value) = Epilogue::of_nodes(body, root.last()?.outputs[0], rest)?;
        (body.outputs().len() == 1 && body.outputs()[0].value == value).then_some(epilogue)
    }

    /// Reads nodes of a fused body that follow `value`; also gives the result of the last.
    pub fn of_nodes(body: &Graph, mut value: ValueId, nodes: &[Node]) -> Option<(Epilogue, ValueId)> {
        let mut epilogue = Epilogue::default();
        for node in nodes {
            let is_active = !matches!(epilogue.activation, Activation::None);
            if !node.inputs.contains(&value) || epilogue.residual_place == ResidualPlace::Last {
                return None;
            }
            match &node.op {
                Op::Binary(op) if is_active => epilogue.follow(body, node, op.func, value)?,
                Op::Binary(op) if op.func == BinaryFn::Add => epilogue.add(body, node, value)?,
                Op::Binary(op) if op.func == BinaryFn::Mul && node.inputs[0] != node.inputs[1] => {
                    epilogue.multiply(body, node, value)?;
                }
                _ if is_active => return None,
                _ => epilogue.activation = activation(&node.op)?,
            }
            value = node.outputs[0];
        }
        Some((epilogue, value))
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

    /// What comes after the activation: a factor, a number added, or the residual.
    fn follow(&mut self, body: &Graph, node: &Node, func: BinaryFn, value: ValueId) -> Option<()> {
        let position = other_input(body, node, value)?;
        let is_number = body.ty(body.inputs()[position]).dims.iter().all(|dim| dim.as_usize() == Some(1));
        match (func, self.affine) {
            (BinaryFn::Mul, [None, None]) if is_number => self.affine[0] = Some(position),
            (BinaryFn::Add, [_, None]) if is_number => self.affine[1] = Some(position),
            (BinaryFn::Add, _) if self.residual.is_none() => {
                self.residual = Some(position);
                self.residual_place = ResidualPlace::Last;
            }
            _ => return None,
        }
        Some(())
    }

    /// What is known of it while compiling, for the kernel; bias and residual are added when it runs. `None` if a number is
    /// not.
    pub fn constant_part(&self, step: &StepNode) -> Option<epilogue::Epilogue<'static>> {
        let number = |input: Option<usize>, absent: f32| match input {
            None => Some(absent),
            Some(input) => Some(step.inline(input).filter(|number| number.len() == 1)?.to_f64_vec()[0] as f32),
        };
        let (scale, shift) = (number(self.affine[0], 1.0)?, number(self.affine[1], 0.0)?);
        let affine = (self.affine != [None; 2]).then_some(Affine { scale, shift });
        let (residual_place, activation) = (self.residual_place, self.activation);
        Some(epilogue::Epilogue { bias: Bias::None, residual: None, residual_place, activation, affine })
    }

    /// The inputs of the step that are part of the kernel's code.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.affine.into_iter().flatten()
    }

    /// Words for what it costs: the same for epilogues that differ in numbers alone.
    pub fn kind(&self) -> String {
        let activation = match self.activation {
            Activation::None => "none",
            Activation::Relu => "relu",
            Activation::Clamp { .. } => "clamp",
            Activation::LeakyRelu { .. } => "leaky",
            Activation::Sigmoid => "sigmoid",
            Activation::Silu => "silu",
            Activation::HardSwish => "hard_swish",
            Activation::HardSigmoid { .. } => "hard_sigmoid",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Tanh => "tanh",
        };
        let affine = if self.affine == [None; 2] { "" } else { "+affine" };
        let residual = match (self.residual, self.residual_place) {
            (None, _) => ["", ""],
            (Some(_), ResidualPlace::First) => ["add+", ""],
            (Some(_), ResidualPlace::Last) => ["", "+add"],
        };
        format!("{}{activation}{affine}{}", residual[0], residual[1])
    }

    /// Words for the kernel's name.
    pub fn suffix(&self) -> &'static str {
        let is_last = self.residual_place == ResidualPlace::Last;
        match (self.residual.is_some(), matches!(self.activation, Activation::None)) {
            (false, true) => "",
            (false, false) => "+act",
            (true, true) => "+add",
            (true, false) if is_last => "+act+add",
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
