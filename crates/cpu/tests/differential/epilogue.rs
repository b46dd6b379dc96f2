//! The product of what ends in an epilogue (convolutions of every kind, products) and of epilogues. The passes must
//! make one step of each.

use precast_ir::op::{Binary, BinaryFn, Clamp, Conv, Matmul, Unary, UnaryFn};
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{DType, Dim, Tensor, Type};

use crate::case::{Case, Expects};
use crate::value::{Fill, Random};

/// What comes before the epilogue.
#[derive(Clone, Copy, Debug)]
enum Root {
    Conv,
    Winograd,
    Conv1x1,
    Depthwise,
    Grouped,
    Conv1d,
    Line,
    Column,
    Gemm,
    GemmOfRows,
}

const ROOTS: [Root; 10] = [
    Root::Conv,
    Root::Winograd,
    Root::Conv1x1,
    Root::Depthwise,
    Root::Grouped,
    Root::Conv1d,
    Root::Line,
    Root::Column,
    Root::Gemm,
    Root::GemmOfRows,
];

/// Activations that kernels apply to what they hold in registers.
fn activations() -> Vec<Option<Op>> {
    let unary = |func, alpha, beta| Some(Op::Unary(Unary { func, alpha, beta }));
    vec![
        None,
        unary(UnaryFn::Relu, 0.0, 0.0),
        Some(Op::Clamp(Clamp { lo: 0.0, hi: 6.0 })),
        unary(UnaryFn::Leaky, 0.1, 0.0),
        unary(UnaryFn::Sigmoid, 0.0, 0.0),
        unary(UnaryFn::Silu, 1.0, 0.0),
        unary(UnaryFn::HardSwish, 0.0, 0.0),
        unary(UnaryFn::HardSigmoid, 0.2, 0.5),
        unary(UnaryFn::GeluErf, 0.0, 0.0),
        unary(UnaryFn::GeluTanh, 0.0, 0.0),
        unary(UnaryFn::Tanh, 0.0, 0.0),
    ]
}

/// What follows an activation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum After {
    Mul,
    Add,
    Residual,
}

/// Every root with every activation, with and without a residual, on either side of the addition; and what may follow
/// an activation.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for root in ROOTS {
        for activation in activations() {
            for residual in [None, Some(0), Some(1)] {
                cases.push(case(root, activation.clone(), residual, &[]));
            }
            if activation.is_some() {
                for after in [&[After::Mul][..], &[After::Add], &[After::Residual], &[After::Mul, After::Add]] {
                    cases.push(case(root, activation.clone(), None, after));
                }
                cases.push(case(root, activation.clone(), Some(1), &[After::Mul, After::Add]));
                cases.push(case(root, activation.clone(), None, &[After::Mul, After::Add, After::Residual]));
            }
        }
    }
    cases
}

fn case(root: Root, activation: Option<Op>, residual: Option<usize>, after: &[After]) -> Case {
    let words = activation.as_ref().map_or("none".to_string(), |op| format!("{}{:?}", op.name(), op.attributes()));
    let name = format!("{root:?} with activation {words}, residual {residual:?}, then {after:?}");
    let mut builder = Builder { graph: Graph::new(""), inputs: Vec::new(), random: Random::new(&name) };
    let mut value = builder.root(root);
    if let Some(side) = residual {
        let other = builder.input(&builder.graph.ty(value).clone());
        let operands = if side == 0 { [other, value] } else { [value, other] };
        value = builder.node(Binary { func: BinaryFn::Add }, &operands);
    }
    if let Some(op) = activation {
        value = builder.node(op, &[value]);
    }
    for step in after {
        let func = if *step == After::Mul { BinaryFn::Mul } else { BinaryFn::Add };
        let other = match step {
            After::Residual => builder.input(&builder.graph.ty(value).clone()),
            After::Mul | After::Add => builder.constant(&[1]),
        };
        value = builder.node(Binary { func }, &[value, other]);
    }
    builder.graph.add_output("y", value);
    Case { name, graph: builder.graph, inputs: builder.inputs, expects: Expects::StepsAfterPasses(1) }
}

struct Builder {
    graph: Graph,
    inputs: Vec<Tensor>,
    random: Random,
}

impl Builder {
    fn input(&mut self, ty: &Type) -> ValueId {
        self.inputs.push(self.random.tensor(ty, Fill::Plain));
        self.graph.add_input(format!("x{}", self.inputs.len()), ty.clone())
    }

    fn node(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> ValueId {
        self.graph.add(op, operands, &Default::default()).expect("the node is well typed")
    }

    fn root(&mut self, root: Root) -> ValueId {
        match root {
            Root::Conv => self.conv(&[2, 3, 7, 9], &[5, 3, 3, 3], 1),
            Root::Winograd => self.conv(&[1, 16, 16, 15], &[20, 16, 3, 3], 1),
            Root::Conv1x1 => self.conv(&[1, 5, 6, 3], &[9, 5, 1, 1], 1),
            Root::Depthwise => self.conv(&[1, 6, 9, 7], &[6, 1, 3, 3], 6),
            Root::Grouped => self.conv(&[1, 6, 5, 5], &[4, 3, 3, 3], 2),
            Root::Conv1d => self.conv(&[2, 4, 13], &[6, 4, 3], 1),
            Root::Line => self.conv(&[2, 32, 90], &[40, 32, 5], 1),
            Root::Column => self.conv(&[1, 32, 150, 1], &[40, 32, 3, 1], 1),
            Root::Gemm => self.gemm(&[5, 9]),
            Root::GemmOfRows => self.gemm(&[2, 3, 9]),
        }
    }

    fn constant(&mut self, shape: &[usize]) -> ValueId {
        let tensor = self.random.tensor(&Type::new(DType::F32, shape.iter().copied()), Fill::Plain);
        self.graph.add_constant(tensor)
    }

    /// A convolution that keeps the size of its image, with a bias.
    fn conv(&mut self, x: &[usize], filter: &[usize], groups: usize) -> ValueId {
        let x = self.input(&Type::new(DType::F32, x.iter().copied()));
        let (weights, bias) = (self.constant(filter), self.constant(&filter[..1]));
        let pads: Vec<Dim> = filter[2..].iter().map(|&size| Dim::from(size / 2)).collect();
        let ones = vec![1; pads.len()];
        let conv = Conv { stride: ones.clone(), pad_lo: pads.clone(), pad_hi: pads, dilation: ones, groups };
        self.node(conv, &[x, weights, bias])
    }

    fn gemm(&mut self, x: &[usize]) -> ValueId {
        let x = self.input(&Type::new(DType::F32, x.iter().copied()));
        let (weights, bias) = (self.constant(&[9, 19]), self.constant(&[19]));
        let product = self.node(Matmul { transpose_a: false, transpose_b: false }, &[x, weights]);
        self.node(Binary { func: BinaryFn::Add }, &[product, bias])
    }
}
