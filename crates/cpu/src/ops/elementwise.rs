//! Elementwise nodes, alone or fused, as one pointwise program.

use precast_ir::op::{BinaryFn, CompareFn, UnaryFn};
use precast_ir::{Definition, Graph, Node, Op, ValueId};
use precast_kernels::pointwise::{
    BinaryKernel, CompareKernel, InputSpec, Instruction, Lane, OutputSpec, PointwiseProgram, Register, Scalar,
    UnaryKernel,
};
use precast_tensor::{DType, Tensor};

use crate::ops::broadcast_strides;
use crate::step::{Lowered, StepNode};

/// Operands that one program may have: more would not fit the array that `run` gathers them in.
const OPERANDS_MAX: usize = 16;

/// One elementwise node.
pub fn lower(step: &StepNode) -> Result<Option<Lowered>, String> {
    let mut body = Graph::new("");
    let inputs: Vec<ValueId> = (0..step.input_count())
        .map(|input| match step.inline(input) {
            Some(tensor) if tensor.len() == 1 => body.add_constant(tensor.clone()),
            _ => body.add_input("", step.ty(input).clone()),
        })
        .collect();
    let output = body.add(step.op().clone(), &inputs, &Default::default()).map_err(|error| error.to_string())?;
    body.add_output("", output);
    let operands: Vec<usize> =
        (0..step.input_count()).filter(|&input| body.constant(inputs[input]).is_none()).collect();
    Ok(lower_program(step, &body, &operands, step.op().name()))
}

/// A body of elementwise nodes; its inputs are the step's inputs `operands`, in order.
pub fn lower_program(step: &StepNode, body: &Graph, operands: &[usize], name: &str) -> Option<Lowered> {
    let shape = step.output_shape(0);
    if operands.len() > OPERANDS_MAX || step.output_count() != 1 {
        return None;
    }
    let program = compile(body, &shape)?;
    let count = operands.len();
    let reads = operands.iter().map(|&operand| crate::step::Read::Input(operand)).collect();
    Some(Lowered {
        kernel: format!("pointwise.{name}"),
        reads,
        scratch_bytes: 0,
        run: Box::new(move |args, exec| {
            let mut inputs: [&[u8]; OPERANDS_MAX] = [&[]; OPERANDS_MAX];
            for (position, input) in inputs.iter_mut().enumerate().take(count) {
                *input = args.read::<u8>(position);
            }
            let output = args.write::<u8>(0);
            program.run(&exec, &inputs[..count], &mut [output]);
            Ok(())
        }),
    })
}

fn compile(body: &Graph, shape: &[usize]) -> Option<PointwiseProgram> {
    let mut compiler = Compiler { body, instructions: Vec::new(), registers: vec![None; body.values().len()] };
    let mut specs = Vec::new();
    for (position, &input) in body.inputs().iter().enumerate() {
        let ty = body.ty(input);
        let strides = broadcast_strides(&ty.shape()?, shape);
        specs.push(InputSpec { lane: lane(ty.dtype).or_else(|| cast_input(body, input))?, strides });
        let register = compiler.push(Instruction::Load { input: position });
        compiler.registers[input.0 as usize] = Some(register);
    }
    for node in body.nodes() {
        let register = compiler.node(node)?;
        compiler.registers[node.outputs[0].0 as usize] = Some(register);
    }
    let [output] = body.outputs() else { return None };
    let result = compiler.register(output.value)?;
    compiler.push(Instruction::Store { src: result, output: 0 });
    let outputs = [OutputSpec { lane: lane(body.ty(output.value).dtype).or_else(|| cast_output(body, output.value))? }];
    PointwiseProgram::new(shape, &specs, &outputs, compiler.instructions).ok()
}

struct Compiler<'a> {
    body: &'a Graph,
    instructions: Vec<Instruction>,
    registers: Vec<Option<Register>>,
}

impl Compiler<'_> {
    fn push(&mut self, instruction: Instruction) -> Register {
        self.instructions.push(instruction);
        Register(self.instructions.len() - 1)
    }

    fn register(&mut self, value: ValueId) -> Option<Register> {
        if let Some(register) = self.registers[value.0 as usize] {
            return Some(register);
        }
        let Definition::Constant(tensor) = &self.body.value(value).definition else { return None };
        let register = self.push(Instruction::Constant { value: scalar(tensor)? });
        self.registers[value.0 as usize] = Some(register);
        Some(register)
    }

    fn node(&mut self, node: &Node) -> Option<Register> {
        let operands: Vec<Register> =
            node.inputs.iter().map(|&input| self.register(input)).collect::<Option<Vec<Register>>>()?;
        let dtype = self.body.ty(*node.inputs.first()?).dtype;
        let instruction = match &node.op {
            Op::Unary(op) => {
                let func = unary_kernel(op.func, op.alpha)?;
                Instruction::Unary { func, src: operands[0], alpha: op.alpha as f32, beta: op.beta as f32 }
            }
            Op::Binary(op) => {
                if self.body.ty(node.inputs[1]).dtype != dtype {
                    return None;
                }
                Instruction::Binary { func: binary_kernel(op.func, dtype)?, a: operands[0], b: operands[1] }
            }
            Op::Compare(op) => Instruction::Compare { func: compare_kernel(op.func), a: operands[0], b: operands[1] },
            Op::Select(_) => {
                Instruction::Select { condition: operands[0], on_true: operands[1], on_false: operands[2] }
            }
            Op::Clamp(op) => {
                let (low, high) = (limit(dtype, op.lo, f64::ceil)?, limit(dtype, op.hi, f64::floor)?);
                Instruction::Clamp { src: operands[0], low, high }
            }
            Op::Cast(op) => {
                if op.to == dtype {
                    return Some(operands[0]);
                }
                // Registers hold half floats as f32: what is loaded is exact, and what is stored is rounded then.
                if half_lane(op.to).is_some() {
                    return cast_output(self.body, node.outputs[0]).map(|_| operands[0]);
                }
                if half_lane(dtype).is_some() && op.to == DType::F32 {
                    return Some(operands[0]);
                }
                Instruction::Cast { src: operands[0], to: lane(op.to)? }
            }
            _ => return None,
        };
        Some(self.push(instruction))
    }
}

/// Types whose elements a register holds as they are. Half floats would be rounded once a program, not once a node.
fn lane(dtype: DType) -> Option<Lane> {
    match dtype {
        DType::F32 => Some(Lane::F32),
        DType::I32 => Some(Lane::I32),
        DType::I64 => Some(Lane::I64),
        DType::Bool => Some(Lane::Bool),
        DType::U8 => Some(Lane::U8),
        DType::I8 => Some(Lane::I8),
        _ => None,
    }
}

fn half_lane(dtype: DType) -> Option<Lane> {
    match dtype {
        DType::F16 => Some(Lane::F16),
        DType::BF16 => Some(Lane::Bf16),
        _ => None,
    }
}

/// The lane of half floats that are cast and nothing else.
fn cast_input(body: &Graph, input: ValueId) -> Option<Lane> {
    let is_cast = |node: &Node| !node.inputs.contains(&input) || matches!(node.op, Op::Cast(_));
    let is_output = body.outputs().iter().any(|output| output.value == input);
    half_lane(body.ty(input).dtype).filter(|_| !is_output && body.nodes().iter().all(is_cast))
}

/// The lane of half floats that f32 ones are cast to, behind which nothing is computed.
fn cast_output(body: &Graph, value: ValueId) -> Option<Lane> {
    let is_maker = |node: &Node| {
        let is_f32 = node.inputs.first().is_some_and(|&input| body.ty(input).dtype == DType::F32);
        node.outputs.contains(&value) && matches!(node.op, Op::Cast(_)) && is_f32
    };
    let is_output = body.outputs().iter().any(|output| output.value == value);
    let is_read = body.nodes().iter().any(|node| node.inputs.contains(&value));
    half_lane(body.ty(value).dtype).filter(|_| is_output && !is_read && body.nodes().iter().any(is_maker))
}

fn scalar(tensor: &Tensor) -> Option<Scalar> {
    if tensor.len() != 1 {
        return None;
    }
    Some(match tensor.dtype() {
        DType::F32 => Scalar::F32(tensor.to_vec::<f32>().ok()?[0]),
        DType::I32 => Scalar::I32(tensor.to_vec::<i32>().ok()?[0]),
        DType::I64 => Scalar::I64(tensor.to_vec::<i64>().ok()?[0]),
        DType::Bool => Scalar::Bool(tensor.as_bytes()[0] != 0),
        DType::U8 => Scalar::U8(tensor.as_bytes()[0]),
        DType::I8 => Scalar::I8(tensor.as_bytes()[0] as i8),
        _ => return None,
    })
}

/// A bound of a clamp as the element type holds it: for integers rounded by `round`, and what lies beyond the type is
/// its end.
fn limit(dtype: DType, bound: f64, round: fn(f64) -> f64) -> Option<Scalar> {
    let bound = if dtype == DType::F32 { bound } else { round(bound) };
    Some(match dtype {
        DType::F32 => Scalar::F32(bound as f32),
        DType::I32 => Scalar::I32(bound as i32),
        DType::I64 => Scalar::I64(bound as i64),
        DType::U8 => Scalar::U8(bound as u8),
        DType::I8 => Scalar::I8(bound as i8),
        _ => return None,
    })
}

fn compare_kernel(func: CompareFn) -> CompareKernel {
    match func {
        CompareFn::Eq => CompareKernel::Eq,
        CompareFn::Lt => CompareKernel::Lt,
        CompareFn::Le => CompareKernel::Le,
        CompareFn::Gt => CompareKernel::Gt,
        CompareFn::Ge => CompareKernel::Ge,
    }
}

fn binary_kernel(func: BinaryFn, dtype: DType) -> Option<BinaryKernel> {
    Some(match func {
        BinaryFn::Add => BinaryKernel::Add,
        BinaryFn::Sub => BinaryKernel::Sub,
        BinaryFn::Mul => BinaryKernel::Mul,
        BinaryFn::Div => BinaryKernel::Div,
        BinaryFn::Pow => BinaryKernel::Pow,
        BinaryFn::Mod => BinaryKernel::Mod,
        BinaryFn::Fmod => BinaryKernel::Fmod,
        BinaryFn::Min if dtype == DType::Bool => BinaryKernel::And,
        BinaryFn::Max if dtype == DType::Bool => BinaryKernel::Or,
        BinaryFn::Min => BinaryKernel::Min,
        BinaryFn::Max => BinaryKernel::Max,
        BinaryFn::And => BinaryKernel::And,
        BinaryFn::Or => BinaryKernel::Or,
        BinaryFn::Xor => BinaryKernel::Xor,
        BinaryFn::BitAnd => BinaryKernel::BitAnd,
        BinaryFn::BitOr => BinaryKernel::BitOr,
        BinaryFn::BitXor => BinaryKernel::BitXor,
        BinaryFn::Shl => BinaryKernel::Shl,
        BinaryFn::Shr => BinaryKernel::Shr,
        BinaryFn::Prelu if dtype == DType::F32 => BinaryKernel::Prelu,
        BinaryFn::Prelu => return None,
    })
}

fn unary_kernel(func: UnaryFn, alpha: f64) -> Option<UnaryKernel> {
    Some(match func {
        UnaryFn::Abs => UnaryKernel::Abs,
        UnaryFn::Neg => UnaryKernel::Neg,
        UnaryFn::Sign => UnaryKernel::Sign,
        UnaryFn::Recip => UnaryKernel::Recip,
        UnaryFn::Sqrt => UnaryKernel::Sqrt,
        UnaryFn::Rsqrt => UnaryKernel::Rsqrt,
        UnaryFn::Exp => UnaryKernel::Exp,
        UnaryFn::Expm1 => UnaryKernel::Expm1,
        UnaryFn::Log => UnaryKernel::Log,
        UnaryFn::Log1p => UnaryKernel::Log1p,
        UnaryFn::Sin => UnaryKernel::Sin,
        UnaryFn::Cos => UnaryKernel::Cos,
        UnaryFn::Tan => UnaryKernel::Tan,
        UnaryFn::Asin => UnaryKernel::Asin,
        UnaryFn::Acos => UnaryKernel::Acos,
        UnaryFn::Atan => UnaryKernel::Atan,
        UnaryFn::Sinh => UnaryKernel::Sinh,
        UnaryFn::Cosh => UnaryKernel::Cosh,
        UnaryFn::Tanh => UnaryKernel::Tanh,
        UnaryFn::Asinh => UnaryKernel::Asinh,
        UnaryFn::Acosh => UnaryKernel::Acosh,
        UnaryFn::Atanh => UnaryKernel::Atanh,
        UnaryFn::Erf => UnaryKernel::Erf,
        UnaryFn::Ceil => UnaryKernel::Ceil,
        UnaryFn::Floor => UnaryKernel::Floor,
        UnaryFn::Round => UnaryKernel::Round,
        UnaryFn::Not => UnaryKernel::Not,
        UnaryFn::BitNot => UnaryKernel::BitNot,
        UnaryFn::IsNan => UnaryKernel::IsNan,
        UnaryFn::IsInf => UnaryKernel::IsInf,
        UnaryFn::Relu => UnaryKernel::Relu,
        UnaryFn::Leaky => UnaryKernel::Leaky,
        UnaryFn::Elu => UnaryKernel::Elu,
        UnaryFn::Selu => UnaryKernel::Selu,
        UnaryFn::Celu => UnaryKernel::Celu,
        UnaryFn::GeluErf => UnaryKernel::GeluErf,
        UnaryFn::GeluTanh => UnaryKernel::GeluTanh,
        UnaryFn::QuickGelu => UnaryKernel::QuickGelu,
        UnaryFn::Silu if alpha == 1.0 => UnaryKernel::Silu,
        UnaryFn::Silu => UnaryKernel::QuickGelu,
        UnaryFn::Mish => UnaryKernel::Mish,
        UnaryFn::Sigmoid => UnaryKernel::Sigmoid,
        UnaryFn::Logistic => UnaryKernel::Logistic,
        UnaryFn::HardSigmoid => UnaryKernel::HardSigmoid,
        UnaryFn::HardSwish => UnaryKernel::HardSwish,
        UnaryFn::Softplus => UnaryKernel::Softplus,
        UnaryFn::Softsign => UnaryKernel::Softsign,
        UnaryFn::Shrink => UnaryKernel::Shrink,
        UnaryFn::Thresholded => UnaryKernel::Thresholded,
        // Only recurrent cells have these.
        UnaryFn::Affine | UnaryFn::ScaledTanh => return None,
    })
}
