//! Nodes of one element after the other.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{ANY, BOOL, Call, FLOATS, Growing, INTEGERS, Known, NUMBERS, SIGNED, UNSIGNED, Wanted};
use crate::fuzz::messages::{float, int, number_of, string};

pub const MAKERS: &[Maker] = &[
    on("Abs", 13, exact_number),
    on("Acos", 7, inside_unit),
    on("Acosh", 9, from_one),
    on("Add", 14, arithmetic),
    on("And", 7, logic),
    on("Asin", 7, inside_unit),
    on("Asinh", 9, smooth),
    on("Atan", 7, smooth),
    on("Atanh", 9, inside_unit),
    on("BitCast", 26, bit_cast),
    on("BitShift", 11, bit_shift),
    on("BitwiseAnd", 18, bitwise),
    on("BitwiseNot", 18, bitwise_not),
    on("BitwiseOr", 18, bitwise),
    on("BitwiseXor", 18, bitwise),
    on("Cast", 13, cast),
    on("CastLike", 15, cast_like),
    on("Ceil", 13, jump),
    on("Celu", 12, smooth),
    on("Clip", 13, clip),
    on("Cos", 7, smooth),
    on("Cosh", 9, small),
    on("Div", 14, divide),
    on("Dropout", 13, dropout),
    on("Elu", 6, smooth),
    on("Equal", 13, compare),
    on("Erf", 13, smooth),
    on("Exp", 13, small),
    on("Floor", 13, jump),
    on("Gelu", 20, smooth),
    on("Greater", 13, compare),
    on("GreaterOrEqual", 16, compare),
    on("HardSigmoid", 6, smooth),
    on("HardSwish", 14, smooth),
    on("Identity", 16, identity),
    on("IsInf", 20, is_special),
    on("IsNaN", 13, is_special),
    on("LeakyRelu", 16, smooth),
    on("Less", 13, compare),
    on("LessOrEqual", 16, compare),
    on("Log", 13, positive),
    on("Max", 13, several),
    on("Mean", 13, several),
    on("Min", 13, several),
    on("Mish", 18, smooth),
    on("Mod", 13, modulo),
    on("Mul", 14, arithmetic),
    on("Neg", 13, signed),
    on("Not", 1, not),
    on("Or", 7, logic),
    on("PRelu", 16, prelu),
    on("Pow", 15, power),
    on("Reciprocal", 13, positive),
    on("Relu", 14, signed),
    on("Round", 11, jump),
    on("Selu", 6, smooth),
    on("Shrink", 9, rough),
    on("Sigmoid", 13, smooth),
    on("Sign", 13, jump),
    on("Sin", 7, smooth),
    on("Sinh", 9, small),
    on("Softplus", 1, smooth),
    on("Softsign", 1, smooth),
    on("Sqrt", 13, positive),
    on("Sub", 14, arithmetic),
    on("Sum", 13, several),
    on("SwiGLU", 28, swiglu),
    on("Swish", 24, smooth),
    on("Tan", 7, inside_unit),
    on("Tanh", 13, smooth),
    on("ThresholdedRelu", 10, rough),
    on("Where", 16, select),
    on("Xor", 7, logic),
];

fn exact_number(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

fn signed(growing: &mut Growing, operator: &str) -> Made {
    let dtypes: Vec<DType> = FLOATS.iter().chain(SIGNED).copied().collect();
    let x = growing.pick(&Wanted::of(&dtypes));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

fn identity(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

/// A function that keeps a last bit one.
fn smooth(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let attributes = match operator {
        "LeakyRelu" | "Elu" | "Celu" | "Swish" if growing.random.once_in(2) => vec![float("alpha", 0.75)],
        "Selu" if growing.random.once_in(2) => vec![float("alpha", 1.25), float("gamma", 0.5)],
        "HardSigmoid" if growing.random.once_in(2) => vec![float("alpha", 0.25), float("beta", 0.375)],
        "Gelu" => vec![string("approximate", growing.choose(&["none", "tanh"]))],
        _ => vec![],
    };
    let call = Call::of(operator, &[&x]).with(attributes);
    // Their constants, 0.044715 and 1/6, are f32 in onnxruntime.
    let is_judged_in_f32 = matches!(operator, "Gelu" | "HardSwish");
    growing.add(if is_judged_in_f32 { call.judged_in_f32() } else { call }).map(drop)
}

/// A function that grows fast.
fn small(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).within(-3.0, 3.0));
    growing.add(Call::of(operator, &[&x])).map(drop)
}

fn positive(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).within(0.25, 40.0));
    growing.add(Call::of(operator, &[&x])).map(drop)
}

fn inside_unit(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).within(-0.875, 0.875));
    growing.add(Call::of(operator, &[&x])).map(drop)
}

fn from_one(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).within(1.25, 40.0));
    growing.add(Call::of(operator, &[&x])).map(drop)
}

/// A function of floats that jumps between exact values.
fn jump(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).exact());
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

/// A function with a jump.
fn rough(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).exact());
    let attributes = match operator {
        "Shrink" => vec![float("lambd", 0.75), float("bias", *growing.random.pick(&[0.0, 0.25]))],
        _ => vec![float("alpha", 0.5)],
    };
    growing.add(Call::of(operator, &[&x]).with(attributes)).map(drop)
}

fn is_special(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let attributes = match operator {
        "IsInf" => vec![int("detect_negative", 0)],
        _ => vec![],
    };
    growing.add(Call::of(operator, &[&x]).with(attributes).exact()).map(drop)
}

fn not(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BOOL));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

fn bitwise_not(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(INTEGERS));
    growing.add(Call::of(operator, &[&x]).exact()).map(drop)
}

/// Two operands that broadcast, either first.
fn pair(growing: &mut Growing, wanted: &Wanted, is_exact: bool) -> (Known, Known) {
    let x = growing.pick(wanted);
    let y = growing.broadcast_operand(x.dtype(), x.shape(), is_exact);
    if growing.random.once_in(2) { (x, y) } else { (y, x) }
}

fn arithmetic(growing: &mut Growing, operator: &str) -> Made {
    let (x, y) = pair(growing, &Wanted::of(NUMBERS), false);
    growing.add(Call::of(operator, &[&x, &y])).map(drop)
}

fn bitwise(growing: &mut Growing, operator: &str) -> Made {
    let (x, y) = pair(growing, &Wanted::of(INTEGERS), true);
    growing.add(Call::of(operator, &[&x, &y]).exact()).map(drop)
}

fn logic(growing: &mut Growing, operator: &str) -> Made {
    let (x, y) = pair(growing, &Wanted::of(BOOL), true);
    growing.add(Call::of(operator, &[&x, &y]).exact()).map(drop)
}

fn compare(growing: &mut Growing, operator: &str) -> Made {
    let dtypes = if operator == "Equal" { ANY } else { NUMBERS };
    let (x, y) = pair(growing, &Wanted::of(dtypes).exact(), true);
    growing.add(Call::of(operator, &[&x, &y]).exact()).map(drop)
}

fn bit_shift(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(UNSIGNED));
    let count = growing.operand_within(x.dtype(), x.shape(), 0.0, 6.0);
    let direction = *growing.random.pick(&["LEFT", "RIGHT"]);
    growing.add(Call::of(operator, &[&x, &count]).with(vec![string("direction", direction)]).exact()).map(drop)
}

fn divide(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS));
    let (lo, hi) = if x.dtype().is_float() { (0.5, 3.0) } else { (1.0, 9.0) };
    let shape = x.shape().to_vec();
    let divisor = match x.dtype().is_float() && growing.random.once_in(2) {
        true => growing.pick(&Wanted::of(&[x.dtype()]).ranks(0..=0).within(0.5, 40.0)),
        false => growing.operand_within(x.dtype(), &shape, lo, hi),
    };
    if !divisor.lies_in(0.25, f64::INFINITY) {
        return None;
    }
    growing.add(Call::of(operator, &[&x, &divisor])).map(drop)
}

fn modulo(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS).exact());
    let shape = x.shape().to_vec();
    let divisor = growing.operand_within(x.dtype(), &shape, 1.0, 2.0);
    if divisor.tensor.to_f64_vec().contains(&0.0) {
        return None;
    }
    let fmod = i64::from(x.dtype().is_float() || growing.random.once_in(3));
    growing.add(Call::of(operator, &[&x, &divisor]).with(vec![int("fmod", fmod)])).map(drop)
}

fn power(growing: &mut Growing, operator: &str) -> Made {
    let base = growing.pick(&Wanted::of(&[DType::F32, DType::F32, DType::F16, DType::F64, DType::I32, DType::I64]));
    let exponents: &[f64] = match base.lies_in(0.25, 40.0) && base.dtype().is_float() {
        true => &[0.0, 0.5, -0.5, 1.0, 1.5, 2.0, -1.0, 3.0],
        false => &[0.0, 1.0, 2.0, 3.0],
    };
    let value = *growing.random.pick(exponents);
    let kinds = [base.dtype(), DType::F32];
    let dtype = growing.pick_type(&kinds);
    let exponent = growing.scalar(dtype, value);
    growing.add(Call::of(operator, &[&base, &exponent])).map(drop)
}

fn prelu(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=4));
    let shape = x.shape().to_vec();
    let from = growing.random.below(shape.len() + 1);
    let slope = growing.operand(x.dtype(), &shape[from..]);
    growing.add(Call::of(operator, &[&x, &slope])).map(drop)
}

fn several(growing: &mut Growing, operator: &str) -> Made {
    let is_choice = matches!(operator, "Max" | "Min");
    let x = growing.pick(&Wanted::of(if is_choice { NUMBERS } else { FLOATS }));
    let mut inputs = vec![x.clone()];
    for _ in 0..growing.random.below(4) {
        inputs.push(growing.broadcast_operand(x.dtype(), x.shape(), false));
    }
    let call = Call::of(operator, &inputs.iter().collect::<Vec<&Known>>());
    growing.add(if is_choice { call.exact() } else { call }).map(drop)
}

fn clip(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(NUMBERS));
    let (lo, hi) = (growing.scalar(x.dtype(), 0.0), growing.scalar(x.dtype(), 1.0));
    let absent = Known::absent();
    let bounds = match growing.random.below(4) {
        0 => [&absent, &absent],
        1 => [&lo, &absent],
        2 => [&absent, &hi],
        _ => [&lo, &hi],
    };
    growing.add(Call::of(operator, &[&x, bounds[0], bounds[1]]).exact()).map(drop)
}

/// The types that a value can become without leaving the range of the type.
fn cast_targets(x: &Known) -> Vec<DType> {
    let is_whole = !x.dtype().is_float();
    let fits = |dtype: DType| match dtype {
        DType::Bool | DType::F32 | DType::F64 | DType::F16 | DType::BF16 => true,
        _ if is_whole => true,
        _ if UNSIGNED.contains(&dtype) => x.lies_in(0.0, 127.0),
        _ => x.lies_in(-127.0, 127.0),
    };
    ANY.iter().chain(INTEGERS).copied().filter(|&dtype| fits(dtype)).collect()
}

fn cast(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).exact());
    let to = growing.pick_type(&cast_targets(&x));
    growing.add(Call::of(operator, &[&x]).with(vec![int("to", number_of(to))])).map(drop)
}

fn cast_like(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY).exact());
    let like = growing.pick(&Wanted::of(&cast_targets(&x)));
    growing.add(Call::of(operator, &[&x, &like])).map(drop)
}

fn bit_cast(growing: &mut Growing, operator: &str) -> Made {
    let (from, to) =
        *growing.random.pick(&[(DType::I32, DType::U32), (DType::U8, DType::I8), (DType::I64, DType::U64)]);
    let x = growing.pick(&Wanted::of(&[from]).within(0.0, 100.0));
    growing.add(Call::of(operator, &[&x]).with(vec![int("to", number_of(to))]).exact()).map(drop)
}

fn dropout(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let outputs = 1 + growing.random.below(2);
    growing.add_all(Call::of(operator, &[&x]).outputs(outputs).exact()).map(drop)
}

fn select(growing: &mut Growing, operator: &str) -> Made {
    let (x, y) = pair(growing, &Wanted::of(ANY), false);
    let shape = if x.rank() > y.rank() { x.shape().to_vec() } else { y.shape().to_vec() };
    let condition = growing.broadcast_operand(DType::Bool, &shape, true);
    growing.add(Call::of(operator, &[&condition, &x, &y]).exact()).map(drop)
}

fn swiglu(growing: &mut Growing, operator: &str) -> Made {
    let gate = growing.pick(&Wanted::of(FLOATS));
    let linear = growing.operand(gate.dtype(), gate.shape());
    growing.add(Call::of(operator, &[&gate, &linear])).map(drop)
}
