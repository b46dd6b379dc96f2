//! Fused elementwise chains: the instructions of a short vector program over one output shape.
//!
//! A program is a list in which each instruction may use the results of those before it; `Register(i)` is the result
//! of instruction `i`. `PointwiseProgram` runs it a tile at a time, so that intermediate values stay in the first
//! cache.

use std::fmt;

pub use crate::pointwise_program::PointwiseProgram;

/// The element type of a register, an input or an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// 32-bit float.
    F32,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// A byte that is 0 or 1.
    Bool,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Half-precision float: of inputs and outputs only; registers hold it as `F32`.
    F16,
    /// Brain float: of inputs and outputs only; registers hold it as `F32`.
    Bf16,
}

impl Lane {
    /// Bytes of one element in memory.
    pub fn bytes(self) -> usize {
        match self {
            Lane::F32 | Lane::I32 => 4,
            Lane::I64 => 8,
            Lane::Bool | Lane::U8 | Lane::I8 => 1,
            Lane::F16 | Lane::Bf16 => 2,
        }
    }

    /// The lane that holds it in a register.
    pub fn in_register(self) -> Lane {
        match self {
            Lane::F16 | Lane::Bf16 => Lane::F32,
            Lane::F32 | Lane::I32 | Lane::I64 | Lane::Bool | Lane::U8 | Lane::I8 => self,
        }
    }
}

/// The result of the instruction with this index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register(pub usize);

/// One value of a lane.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// For `Lane::F32`.
    F32(f32),
    /// For `Lane::I32`.
    I32(i32),
    /// For `Lane::I64`.
    I64(i64),
    /// For `Lane::Bool`.
    Bool(bool),
    /// For `Lane::U8`.
    U8(u8),
    /// For `Lane::I8`.
    I8(i8),
}

impl Scalar {
    /// The lane of the value.
    pub fn lane(self) -> Lane {
        match self {
            Scalar::F32(_) => Lane::F32,
            Scalar::I32(_) => Lane::I32,
            Scalar::I64(_) => Lane::I64,
            Scalar::Bool(_) => Lane::Bool,
            Scalar::U8(_) => Lane::U8,
            Scalar::I8(_) => Lane::I8,
        }
    }
}

/// A function of one value. `F32` has all but `Not` and `BitNot`; integers have `Abs`, `Neg`, `Sign`, `Relu` and
/// `BitNot`; `Bool` has `Not`. `alpha` and `beta` mean what ONNX calls so, else what is said here.
#[allow(missing_docs, reason = "the names are the ONNX functions")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryKernel {
    Abs,
    Neg,
    Sign,
    Recip,
    Sqrt,
    Rsqrt,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Ceil,
    Floor,
    /// Half to even.
    Round,
    Not,
    BitNot,
    /// Gives `Bool`.
    IsNan,
    /// Gives `Bool`: +∞ counts if `alpha` is not 0, -∞ if `beta` is not 0.
    IsInf,
    Relu,
    /// Slope `alpha` below zero.
    Leaky,
    Elu,
    /// `beta` is ONNX's gamma.
    Selu,
    Celu,
    GeluErf,
    GeluTanh,
    /// `x · sigmoid(alpha · x)`.
    QuickGelu,
    Silu,
    Mish,
    Sigmoid,
    /// `Sigmoid` where only the absolute error matters.
    Logistic,
    HardSigmoid,
    HardSwish,
    Softplus,
    Softsign,
    /// `x < -alpha`: `x + beta`; `x > alpha`: `x - beta`; else 0. (`alpha` is ONNX's lambd, `beta` its bias.)
    Shrink,
    /// `x > alpha`: `x`, else 0.
    Thresholded,
}

/// A function of two values of one lane. `F32`: the first nine and `Prelu`. Integers: all but `Prelu`, `And`, `Or`,
/// `Xor`; results wrap, a division by zero gives 0, a shift by the width or more gives 0. `Bool`: `And`, `Or`, `Xor`.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinaryKernel {
    Add,
    Sub,
    Mul,
    /// Integers truncate.
    Div,
    Pow,
    /// Takes the sign of the divisor.
    Mod,
    /// Takes the sign of the dividend.
    Fmod,
    /// NaN if either is.
    Min,
    /// NaN if either is.
    Max,
    /// `a < 0`: `a · b`, else `a`.
    Prelu,
    And,
    Or,
    Xor,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
}

/// A comparison of two values of one lane.
#[allow(missing_docs, reason = "the names say it")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompareKernel {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
}

/// One step of a program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Instruction {
    /// The elements of an input, broadcast by its strides.
    Load {
        /// Index of the input.
        input: usize,
    },
    /// The same value everywhere.
    Constant {
        /// The value.
        value: Scalar,
    },
    /// A function of one register.
    Unary {
        /// The function.
        func: UnaryKernel,
        /// Its argument.
        src: Register,
        /// First parameter of the function.
        alpha: f32,
        /// Second parameter of the function.
        beta: f32,
    },
    /// A function of two registers of one lane.
    Binary {
        /// The function.
        func: BinaryKernel,
        /// First argument.
        a: Register,
        /// Second argument.
        b: Register,
    },
    /// A `Bool` from two registers of one lane.
    Compare {
        /// The comparison.
        func: CompareKernel,
        /// Left side.
        a: Register,
        /// Right side.
        b: Register,
    },
    /// One of two registers of one lane, by a `Bool`.
    Select {
        /// The `Bool`.
        condition: Register,
        /// Taken where the condition is true.
        on_true: Register,
        /// Taken where it is false.
        on_false: Register,
    },
    /// Limits a register to a range; NaN stays.
    Clamp {
        /// The register.
        src: Register,
        /// Lower limit, of the register's lane.
        low: Scalar,
        /// Upper limit; wins where the limits cross.
        high: Scalar,
    },
    /// Converts: float to integer truncates and saturates (NaN gives 0), integer to integer wraps, to `Bool` is `≠ 0`.
    Cast {
        /// The register.
        src: Register,
        /// The new lane; not `F16` or `Bf16`.
        to: Lane,
    },
    /// Writes a register to an output. Has no result.
    Store {
        /// The register.
        src: Register,
        /// Index of the output.
        output: usize,
    },
}

/// How an input lies in memory.
#[derive(Clone, PartialEq, Debug)]
pub struct InputSpec {
    /// Element type.
    pub lane: Lane,
    /// Distance in elements between neighbours along each dimension of the output shape; 0 broadcasts.
    pub strides: Vec<usize>,
}

/// An output: dense and row-major.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OutputSpec {
    /// Element type.
    pub lane: Lane,
}

/// Why a list of instructions is not a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PointwiseError {
    /// An input's strides do not match the rank of the shape.
    StridesRank {
        /// The input.
        input: usize,
        /// How many strides it has.
        strides: usize,
        /// How many dimensions the shape has.
        rank: usize,
    },
    /// The shape or the extent of an input does not fit the address space.
    TooLarge,
    /// More instructions or live registers than a program may have.
    TooManyRegisters {
        /// How many the program needs.
        needed: usize,
        /// How many there are.
        limit: usize,
    },
    /// An instruction names an input, output or register that does not exist (yet).
    Undefined {
        /// The instruction.
        instruction: usize,
        /// What it names.
        operand: String,
    },
    /// An instruction does not take operands of this lane.
    LaneMismatch {
        /// The instruction.
        instruction: usize,
        /// What it got and what it expects.
        detail: String,
    },
    /// An output is stored never or more than once.
    StoreCount {
        /// The output.
        output: usize,
        /// How often it is stored.
        count: usize,
    },
}

impl fmt::Display for PointwiseError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            PointwiseError::StridesRank { input, strides, rank } => {
                write!(f, "input {input}: {strides} strides for a shape of rank {rank}")
            }
            PointwiseError::TooLarge => write!(f, "the shape exceeds the address space"),
            PointwiseError::TooManyRegisters { needed, limit } => {
                write!(f, "the program needs {needed} registers, the limit is {limit}")
            }
            PointwiseError::Undefined { instruction, operand } => {
                write!(f, "instruction {instruction}: {operand} does not exist")
            }
            PointwiseError::LaneMismatch { instruction, detail } => write!(f, "instruction {instruction}: {detail}"),
            PointwiseError::StoreCount { output, count } => {
                write!(f, "output {output} is stored {count} times, expected once")
            }
        }
    }
}

impl std::error::Error for PointwiseError {}

#[cfg(test)]
#[path = "pointwise_tests.rs"]
mod tests;
