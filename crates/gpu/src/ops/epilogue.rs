//! What follows a product or convolution in one kernel: an expression of each f32 sum before it is stored, whose other
//! operands are read by their strides.

use std::fmt::Write as _;

use precast_ir::op::{BinaryFn, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::DType;

use crate::kernel::Operand;
use crate::ops::c_text::{broadcast_strides, f32_text, offset_text, type_name};
use crate::site::Site;

/// A node that multiplies, alone or as the first one of a fused body.
#[derive(Clone, Copy)]
pub struct Root<'a> {
    /// The node, or the fused node around it.
    pub site: &'a Site<'a>,
    /// The body of the fused node.
    pub body: Option<&'a Graph>,
    /// What multiplies.
    pub node: &'a Node,
}

impl<'a> Root<'a> {
    /// A node that is alone.
    pub fn alone(site: &'a Site<'a>) -> Root<'a> {
        Root { site, body: None, node: site.node }
    }

    /// The first node of a fused body.
    pub fn of_body(site: &'a Site<'a>, body: &'a Graph) -> Option<Root<'a>> {
        let node = body.nodes().first()?;
        let is_outside = node.inputs.iter().all(|input| body.inputs().contains(input));
        is_outside.then_some(Root { site, body: Some(body), node })
    }

    /// Position of the root's operand among the operands of the site.
    pub fn input(&self, operand: usize) -> usize {
        match self.body {
            None => operand,
            Some(body) => {
                let value = self.node.inputs[operand];
                body.inputs().iter().position(|&input| input == value).expect("a root reads inputs of its body")
            }
        }
    }

    /// Sizes of the root's result.
    pub fn out_shape(&self) -> Vec<usize> {
        let graph = self.body.unwrap_or(self.site.graph);
        graph.ty(self.node.outputs[0]).shape().expect("dims are numbers when a node is lowered")
    }
}

/// How the axes of a result are rows and columns of a product: `row` counts all axes but one in order.
pub struct Coordinates {
    /// Sizes of the result.
    pub shape: Vec<usize>,
    /// Its strides.
    pub strides: Vec<usize>,
    /// Which axis the columns are.
    pub column_axis: usize,
}

impl Coordinates {
    /// The offset at `row` and `column` of something with these strides along the result's axes.
    pub fn offset(&self, strides: &[usize]) -> String {
        let rows: Vec<(usize, usize)> = (0..self.shape.len())
            .filter(|&axis| axis != self.column_axis)
            .map(|axis| (self.shape[axis], strides[axis]))
            .collect();
        let column = match strides[self.column_axis] {
            0 => String::new(),
            1 => " + column".to_string(),
            stride => format!(" + (i64)column * {stride}"),
        };
        format!("{}{column}", offset_text("row", &rows))
    }

    /// The offset of a result.
    pub fn place(&self) -> String {
        self.offset(&self.strides)
    }

    /// Whether neighbouring columns are neighbours in memory.
    pub fn is_by_columns(&self) -> bool {
        self.strides[self.column_axis] == 1 || self.shape[self.column_axis] == 1
    }
}

/// The printed epilogue of a product.
pub struct Epilogue {
    /// `struct Epilogue`, with a pointer for each operand.
    pub text: String,
    /// What the pointers are.
    pub operands: Vec<(Operand, DType)>,
    /// Words for the kernel's name.
    pub suffix: String,
}

/// An operand or constant that the expression reads.
struct Reader<'a> {
    site: &'a Site<'a>,
    coordinates: &'a Coordinates,
    operands: Vec<(Operand, DType)>,
    loads: String,
    locals: String,
}

impl Reader<'_> {
    /// The name of an operand's element; `column` if it has one number for each column whatever its shape.
    fn element(&mut self, input: usize, is_column: bool) -> Option<String> {
        if let Some(tensor) = self.site.constant(input).filter(|tensor| tensor.len() == 1) {
            return Some(f32_text(tensor.to_f64_vec()[0]));
        }
        let dtype = self.site.dtype(input);
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
            return None;
        }
        let coordinates = self.coordinates;
        let strides = if is_column {
            (0..coordinates.shape.len()).map(|axis| usize::from(axis == coordinates.column_axis)).collect()
        } else {
            broadcast_strides(&self.site.shape(input), &self.site.strides(input), &coordinates.shape)?
        };
        let position = self.operands.len();
        self.operands.push((Operand::Read(input as u32), dtype));
        let name = type_name(dtype)?;
        let column_stride = strides[coordinates.column_axis];
        let is_same =
            (0..strides.len()).all(|axis| coordinates.shape[axis] == 1 || strides[axis] == coordinates.strides[axis]);
        let offset = if is_same { "at".to_string() } else { coordinates.offset(&strides) };
        if column_stride == 0 {
            let _ = writeln!(self.loads, "        f32 q{position} = to_f32(p{position}[{offset}]);");
            return Some(format!("q{position}"));
        }
        if column_stride == 1 {
            let _ = writeln!(self.loads, "        Vec<{name}, W> q{position} = load_vec<W>(p{position} + {offset});");
        } else {
            let _ = write!(
                self.loads,
                "        Vec<{name}, W> q{position};\n        UNROLL for (int i = 0; i < W; i++) q{position}.at[i] = \
                 p{position}[{offset} + i * {column_stride}];\n"
            );
        }
        let _ = writeln!(self.locals, "            f32 o{position} = to_f32(q{position}.at[i]);");
        Some(format!("o{position}"))
    }
}

impl Epilogue {
    /// What follows the root: `bias` is an operand with one number a column. `None` if a node has no expression here.
    pub fn of(root: &Root, coordinates: &Coordinates, bias: Option<usize>) -> Option<Epilogue> {
        let site = root.site;
        let (operands, loads, locals) = (Vec::new(), String::new(), String::new());
        let mut reader = Reader { site, coordinates, operands, loads, locals };
        let mut steps = String::new();
        let mut value = "v0".to_string();
        if let Some(bias) = bias {
            let bias = reader.element(bias, true)?;
            let _ = writeln!(steps, "            f32 vb = v0 + {bias};");
            value = "vb".to_string();
        }
        let mut suffix = String::new();
        if let Some(body) = root.body {
            let mut names: Vec<(ValueId, String)> = vec![(root.node.outputs[0], value.clone())];
            for (position, node) in body.nodes().iter().enumerate().skip(1) {
                let expression = expression(body, node, &mut names, &mut reader)?;
                value = format!("v{position}");
                let _ = writeln!(steps, "            f32 {value} = {expression};");
                names.push((node.outputs[0], value.clone()));
            }
            let [output] = body.outputs() else { return None };
            let is_last = names.last().is_some_and(|(last, _)| *last == output.value);
            if !is_last || body.ty(output.value).shape()? != root.out_shape() {
                return None;
            }
            suffix = suffix_of(&body.nodes()[1..]);
        }
        let members: String = reader.operands.iter().enumerate().fold(String::new(), |mut text, (at, (_, dtype))| {
            let _ = writeln!(text, "    const {} *p{at};", type_name(*dtype).unwrap_or("u8"));
            text
        });
        let Reader { operands, loads, locals, .. } = reader;
        let body = if value == "v0" {
            String::new()
        } else {
            format!(
                "{loads}        UNROLL for (int i = 0; i < W; i++) {{\n            f32 v0 = x[i];\n{locals}{steps}            \
                 x[i] = {value};\n        }}\n"
            )
        };
        let text = format!(
            "struct Epilogue {{\n{members}    template <int W> DEVICE_MEMBER void apply(Acc (&x)[W], i64 row, int column, \
             i64 at) const {{\n{body}    }}\n}};\n"
        );
        Some(Epilogue { text, operands, suffix })
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        !self.text.contains("x[i] =")
    }
}

fn suffix_of(nodes: &[Node]) -> String {
    nodes.iter().fold(String::new(), |mut text, node| {
        let name = match &node.op {
            Op::Unary(op) => op.func.name(),
            Op::Binary(op) => op.func.name(),
            other => other.name(),
        };
        let _ = write!(text, "+{name}");
        text
    })
}

/// A node of the body as an expression of f32.
fn expression(body: &Graph, node: &Node, names: &mut Vec<(ValueId, String)>, reader: &mut Reader) -> Option<String> {
    let is_float = |value: ValueId| matches!(body.ty(value).dtype, DType::F16 | DType::BF16 | DType::F32);
    if !node.inputs.iter().chain(&node.outputs).all(|&value| is_float(value)) {
        return None;
    }
    let mut inputs = Vec::new();
    for &input in &node.inputs {
        let name = match names.iter().find(|(value, _)| *value == input) {
            Some((_, name)) => name.clone(),
            None => {
                let name = match body.inputs().iter().position(|&outer| outer == input) {
                    Some(position) => reader.element(position, false)?,
                    None => f32_text(*body.constant(input).filter(|tensor| tensor.len() == 1)?.to_f64_vec().first()?),
                };
                names.push((input, name.clone()));
                name
            }
        };
        inputs.push(name);
    }
    Some(match &node.op {
        Op::Unary(op) => unary(op.func, op.alpha, op.beta, &inputs[0])?,
        Op::Binary(op) => binary(op.func, &inputs[0], &inputs[1])?,
        Op::Clamp(op) => {
            format!("fminf(fmaxf({}, {}), {})", inputs[0], f32_text(op.lo), f32_text(op.hi))
        }
        Op::Cast(_) => inputs[0].clone(),
        _ => return None,
    })
}

fn unary(func: UnaryFn, alpha: f64, beta: f64, x: &str) -> Option<String> {
    let (a, b) = (f32_text(alpha), f32_text(beta));
    Some(match func {
        UnaryFn::Relu => format!("({x} < 0.0f ? 0.0f : {x})"),
        UnaryFn::Leaky => format!("({x} < 0.0f ? {x} * {a} : {x})"),
        UnaryFn::Sigmoid | UnaryFn::Logistic => format!("1.0f / (1.0f + expf(-{x}))"),
        UnaryFn::Silu => format!("{x} / (1.0f + expf(-{a} * {x}))"),
        UnaryFn::HardSigmoid => format!("fminf(fmaxf({a} * {x} + {b}, 0.0f), 1.0f)"),
        UnaryFn::GeluErf => format!("0.5f * {x} * (1.0f + erff({x} * 0.70710678118654752f))"),
        UnaryFn::Tanh => format!("tanhf({x})"),
        UnaryFn::Exp => format!("expf({x})"),
        UnaryFn::Sqrt => format!("sqrtf({x})"),
        UnaryFn::Neg => format!("-{x}"),
        UnaryFn::Abs => format!("fabsf({x})"),
        _ => return None,
    })
}

fn binary(func: BinaryFn, x: &str, y: &str) -> Option<String> {
    Some(match func {
        BinaryFn::Add => format!("{x} + {y}"),
        BinaryFn::Sub => format!("{x} - {y}"),
        BinaryFn::Mul => format!("{x} * {y}"),
        BinaryFn::Div => format!("{x} / {y}"),
        _ => return None,
    })
}
