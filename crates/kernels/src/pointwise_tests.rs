//! Programs against loops in f64 and plain integers: shapes, broadcasts, functions, lanes, errors.

use super::*;
use crate::isa::Exec;
use crate::test_data::{Lcg, assert_close, erf, floats_of, for_each_exec, to_bytes};

fn load(input: usize) -> Instruction {
    Instruction::Load { input }
}

fn store(src: usize, output: usize) -> Instruction {
    Instruction::Store { src: Register(src), output }
}

fn unary(func: UnaryKernel, src: usize, alpha: f32, beta: f32) -> Instruction {
    Instruction::Unary { func, src: Register(src), alpha, beta }
}

fn binary(func: BinaryKernel, a: usize, b: usize) -> Instruction {
    Instruction::Binary { func, a: Register(a), b: Register(b) }
}

fn dense(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect()
}

fn spec(lane: Lane, strides: Vec<usize>) -> InputSpec {
    InputSpec { lane, strides }
}

fn run(exec: &Exec, program: &PointwiseProgram, inputs: &[&[u8]], output_bytes: &[usize]) -> Vec<Vec<u8>> {
    let mut outputs: Vec<Vec<u8>> = output_bytes.iter().map(|&bytes| vec![0xee; bytes]).collect();
    let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    program.run(exec, inputs, &mut slices);
    outputs
}

/// A one-instruction program over dense inputs of one lane.
fn run_flat(exec: &Exec, lane: Lane, result: Lane, instruction: Instruction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let len = inputs[0].len() / lane.bytes();
    let specs: Vec<InputSpec> = inputs.iter().map(|_| spec(lane, vec![1])).collect();
    let mut instructions: Vec<Instruction> = (0..inputs.len()).map(load).collect();
    instructions.extend([instruction, store(inputs.len(), 0)]);
    let program = PointwiseProgram::new(&[len], &specs, &[OutputSpec { lane: result }], instructions).unwrap();
    let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    run(exec, &program, &slices, &[len * result.bytes()]).remove(0)
}

#[test]
fn random_broadcasts_match_index_arithmetic() {
    let mut lcg = Lcg::new(7);
    for round in 0..60 {
        let rank = lcg.below(5);
        let shape: Vec<usize> = (0..rank)
            .map(|d| if round % 7 == 0 && d + 1 == rank { 300 + lcg.below(2000) } else { lcg.below(9) })
            .collect();
        let count: usize = shape.iter().product();
        let strides: Vec<Vec<usize>> = (0..3)
            .map(|_| {
                dense(&shape)
                    .iter()
                    .map(|&stride| if lcg.below(2) == 0 { 0 } else { stride * (1 + lcg.below(2)) })
                    .collect()
            })
            .collect();
        let data = lcg.floats(2 * count.max(1) + 1);
        let inputs: Vec<InputSpec> = strides.iter().map(|s| spec(Lane::F32, s.clone())).collect();
        let instructions = vec![
            load(0),
            load(1),
            binary(BinaryKernel::Mul, 0, 1),
            load(2),
            binary(BinaryKernel::Add, 2, 3),
            store(4, 0),
            unary(UnaryKernel::Relu, 4, 0.0, 0.0),
            store(6, 1),
        ];
        let outputs = [OutputSpec { lane: Lane::F32 }; 2];
        let program = PointwiseProgram::new(&shape, &inputs, &outputs, instructions).unwrap();
        let element = |strides: &[usize], mut flat: usize| {
            let mut offset = 0;
            for d in (0..rank).rev() {
                offset += flat % shape[d] * strides[d];
                flat /= shape[d];
            }
            data[offset]
        };
        let sums: Vec<f32> =
            (0..count).map(|i| element(&strides[0], i) * element(&strides[1], i) + element(&strides[2], i)).collect();
        let relus: Vec<f32> = sums.iter().map(|x| x.max(0.0)).collect();
        // At an odd address, so that nothing can be read in place.
        let mut shifted = vec![0_u8];
        shifted.extend(to_bytes(&data));
        for_each_exec(|exec| {
            for bytes in [&to_bytes(&data)[..], &shifted[1..]] {
                let results = run(exec, &program, &[bytes; 3], &[count * 4; 2]);
                assert_eq!(floats_of(&results[0]), sums, "shape {shape:?} strides {strides:?}");
                assert_eq!(floats_of(&results[1]), relus, "shape {shape:?} strides {strides:?}");
            }
        });
    }
}

#[test]
fn long_chains_give_the_same_bits_for_any_thread_count() {
    let mut lcg = Lcg::new(3);
    let shape = [37, 2, 1031];
    let count: usize = shape.iter().product();
    let (x, bias) = (to_bytes(&lcg.floats(count)), to_bytes(&lcg.floats(1031)));
    let inputs = [spec(Lane::F32, dense(&shape)), spec(Lane::F32, vec![0, 0, 1])];
    let instructions = vec![
        load(0),
        load(1),
        binary(BinaryKernel::Add, 0, 1),
        unary(UnaryKernel::Silu, 2, 0.0, 0.0),
        Instruction::Constant { value: Scalar::F32(0.5) },
        binary(BinaryKernel::Mul, 3, 4),
        Instruction::Compare { func: CompareKernel::Gt, a: Register(5), b: Register(2) },
        Instruction::Select { condition: Register(6), on_true: Register(5), on_false: Register(0) },
        store(7, 0),
    ];
    let program = PointwiseProgram::new(&shape, &inputs, &[OutputSpec { lane: Lane::F32 }], instructions).unwrap();
    let mut first: Vec<(crate::isa::Isa, Vec<u8>)> = Vec::new();
    for_each_exec(|exec| {
        let result = run(exec, &program, &[&x, &bias], &[count * 4]).remove(0);
        match first.iter().find(|(isa, _)| *isa == exec.isa()) {
            Some((_, expected)) => assert_eq!(&result, expected),
            None => first.push((exec.isa(), result)),
        }
    });
}

#[test]
fn unary_functions_match_f64() {
    type Reference = fn(f64) -> f64;
    let cases: &[(UnaryKernel, f32, f32, Reference)] = &[
        (UnaryKernel::Abs, 0.0, 0.0, f64::abs),
        (UnaryKernel::Neg, 0.0, 0.0, |x| -x),
        (UnaryKernel::Sign, 0.0, 0.0, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        (UnaryKernel::Recip, 0.0, 0.0, |x| 1.0 / x),
        (UnaryKernel::Sqrt, 0.0, 0.0, f64::sqrt),
        (UnaryKernel::Rsqrt, 0.0, 0.0, |x| 1.0 / x.sqrt()),
        (UnaryKernel::Exp, 0.0, 0.0, f64::exp),
        (UnaryKernel::Expm1, 0.0, 0.0, f64::exp_m1),
        (UnaryKernel::Log, 0.0, 0.0, f64::ln),
        (UnaryKernel::Log1p, 0.0, 0.0, f64::ln_1p),
        (UnaryKernel::Sin, 0.0, 0.0, f64::sin),
        (UnaryKernel::Cos, 0.0, 0.0, f64::cos),
        (UnaryKernel::Tan, 0.0, 0.0, f64::tan),
        (UnaryKernel::Asin, 0.0, 0.0, f64::asin),
        (UnaryKernel::Acos, 0.0, 0.0, f64::acos),
        (UnaryKernel::Atan, 0.0, 0.0, f64::atan),
        (UnaryKernel::Sinh, 0.0, 0.0, f64::sinh),
        (UnaryKernel::Cosh, 0.0, 0.0, f64::cosh),
        (UnaryKernel::Tanh, 0.0, 0.0, f64::tanh),
        (UnaryKernel::Asinh, 0.0, 0.0, f64::asinh),
        (UnaryKernel::Acosh, 0.0, 0.0, f64::acosh),
        (UnaryKernel::Atanh, 0.0, 0.0, f64::atanh),
        (UnaryKernel::Erf, 0.0, 0.0, erf),
        (UnaryKernel::Ceil, 0.0, 0.0, f64::ceil),
        (UnaryKernel::Floor, 0.0, 0.0, f64::floor),
        (UnaryKernel::Round, 0.0, 0.0, f64::round_ties_even),
        (UnaryKernel::Relu, 0.0, 0.0, |x| x.max(0.0)),
        (UnaryKernel::Leaky, 0.25, 0.0, |x| if x < 0.0 { 0.25 * x } else { x }),
        (UnaryKernel::Elu, 0.5, 0.0, |x| if x < 0.0 { 0.5 * x.exp_m1() } else { x }),
        (UnaryKernel::Selu, 0.5, 2.0, |x| 2.0 * if x < 0.0 { 0.5 * x.exp_m1() } else { x }),
        (UnaryKernel::Celu, 0.5, 0.0, |x| if x < 0.0 { 0.5 * (x / 0.5).exp_m1() } else { x }),
        (UnaryKernel::GeluErf, 0.0, 0.0, |x| 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt()))),
        (UnaryKernel::GeluTanh, 0.0, 0.0, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }),
        (UnaryKernel::QuickGelu, 1.5, 0.0, |x| x / (1.0 + (-1.5 * x).exp())),
        (UnaryKernel::Silu, 0.0, 0.0, |x| x / (1.0 + (-x).exp())),
        (UnaryKernel::Mish, 0.0, 0.0, |x| x * x.exp().ln_1p().tanh()),
        (UnaryKernel::Sigmoid, 0.0, 0.0, |x| 1.0 / (1.0 + (-x).exp())),
        (UnaryKernel::Logistic, 0.0, 0.0, |x| 1.0 / (1.0 + (-x).exp())),
        (UnaryKernel::HardSigmoid, 0.25, 0.5, |x| (0.25 * x + 0.5).clamp(0.0, 1.0)),
        (UnaryKernel::HardSwish, 0.0, 0.0, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        (UnaryKernel::Softplus, 0.0, 0.0, |x| x.exp().ln_1p()),
        (UnaryKernel::Softsign, 0.0, 0.0, |x| x / (1.0 + x.abs())),
        (UnaryKernel::Shrink, 0.5, 0.25, |x| {
            if x < -0.5 {
                x + 0.25
            } else if x > 0.5 {
                x - 0.25
            } else {
                0.0
            }
        }),
        (UnaryKernel::Thresholded, 0.5, 0.0, |x| if x > 0.5 { x } else { 0.0 }),
    ];
    let values: Vec<f32> = (-700..=700).map(|step| step as f32 / 100.0).collect();
    for_each_exec(|exec| {
        for &(func, alpha, beta, reference) in cases {
            let result = run_flat(exec, Lane::F32, Lane::F32, unary(func, 0, alpha, beta), &[to_bytes(&values)]);
            let expected: Vec<f64> = values.iter().map(|&x| reference(f64::from(x))).collect();
            assert_close(&floats_of(&result), &expected, 2e-6, 2e-6, &format!("{func:?}"));
        }
    });
}

#[test]
fn float_binaries_follow_onnx() {
    let nan = f32::NAN;
    let a = [5.5, -5.5, 5.5, -5.5, nan, 1.0, 0.0, -2.0];
    let b = [2.0, 2.0, -2.0, -2.0, 1.0, nan, 0.0, 3.0];
    type Reference = fn(f64, f64) -> f64;
    let cases: &[(BinaryKernel, Reference)] = &[
        (BinaryKernel::Add, |x, y| x + y),
        (BinaryKernel::Sub, |x, y| x - y),
        (BinaryKernel::Mul, |x, y| x * y),
        (BinaryKernel::Div, |x, y| x / y),
        (BinaryKernel::Pow, f64::powf),
        (BinaryKernel::Mod, |x, y| if y == 0.0 { f64::NAN } else { x - (x / y).floor() * y }),
        (BinaryKernel::Fmod, |x, y| x % y),
        (BinaryKernel::Min, |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }),
        (BinaryKernel::Max, |x, y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }),
        (BinaryKernel::Prelu, |x, y| if x < 0.0 { x * y } else { x }),
    ];
    for_each_exec(|exec| {
        for &(func, reference) in cases {
            let result = run_flat(exec, Lane::F32, Lane::F32, binary(func, 0, 1), &[to_bytes(&a), to_bytes(&b)]);
            let expected: Vec<f64> = a.iter().zip(&b).map(|(&x, &y)| reference(x.into(), y.into())).collect();
            assert_close(&floats_of(&result), &expected, 1e-6, 0.0, &format!("{func:?}"));
        }
    });
}

#[test]
fn integer_binaries_wrap_and_never_trap() {
    let a = [7_i32, -7, 7, -7, i32::MIN, 5, i32::MAX, 2, 1, -1];
    let b = [3_i32, 3, -3, -3, -1, 0, 1, 10, 40, -3];
    let cases: &[(BinaryKernel, [i32; 10])] = &[
        (BinaryKernel::Add, [10, -4, 4, -10, i32::MAX, 5, i32::MIN, 12, 41, -4]),
        (BinaryKernel::Mul, [21, -21, -21, 21, i32::MIN, 0, i32::MAX, 20, 40, 3]),
        (BinaryKernel::Div, [2, -2, -2, 2, i32::MIN, 0, i32::MAX, 0, 0, 0]),
        (BinaryKernel::Mod, [1, 2, -2, -1, 0, 0, 0, 2, 1, -1]),
        (BinaryKernel::Fmod, [1, -1, 1, -1, 0, 0, 0, 2, 1, -1]),
        (BinaryKernel::Min, [3, -7, -3, -7, i32::MIN, 0, 1, 2, 1, -3]),
        (BinaryKernel::Pow, [343, -343, 0, 0, 0, 1, i32::MAX, 1024, 1, -1]),
        (BinaryKernel::Shl, [56, -56, 0, 0, 0, 5, -2, 2048, 0, 0]),
        (BinaryKernel::Shr, [0, -1, 0, -1, -1, 5, i32::MAX >> 1, 0, 0, -1]),
        (BinaryKernel::BitXor, [4, -6, -6, 4, i32::MAX, 5, i32::MAX - 1, 8, 41, 2]),
    ];
    for_each_exec(|exec| {
        for (func, expected) in cases {
            let result = run_flat(exec, Lane::I32, Lane::I32, binary(*func, 0, 1), &[to_bytes(&a), to_bytes(&b)]);
            assert_eq!(result, to_bytes(expected), "{func:?}");
            let (wide_a, wide_b) = (a.map(i64::from), b.map(i64::from));
            if matches!(func, BinaryKernel::Mod | BinaryKernel::Fmod | BinaryKernel::Min) {
                let result =
                    run_flat(exec, Lane::I64, Lane::I64, binary(*func, 0, 1), &[to_bytes(&wide_a), to_bytes(&wide_b)]);
                assert_eq!(result, to_bytes(&expected.map(i64::from)), "{func:?} of I64");
            }
        }
        let bytes = [vec![250_u8, 3, 255], vec![10_u8, 5, 255]];
        assert_eq!(run_flat(exec, Lane::U8, Lane::U8, binary(BinaryKernel::Add, 0, 1), &bytes), [4, 8, 254]);
        assert_eq!(run_flat(exec, Lane::U8, Lane::U8, binary(BinaryKernel::Sub, 0, 1), &bytes), [240, 254, 0]);
        assert_eq!(run_flat(exec, Lane::I8, Lane::I8, binary(BinaryKernel::Max, 0, 1), &bytes), [10, 5, 255]);
        let abs = run_flat(exec, Lane::I8, Lane::I8, unary(UnaryKernel::Abs, 0, 0.0, 0.0), &[vec![0x80, 0xff, 3]]);
        assert_eq!(abs, [0x80, 1, 3]);
    });
}

#[test]
fn comparisons_logic_and_clamps() {
    let (a, b) = ([1.0_f32, 2.0, f32::NAN], [2.0_f32, 2.0, f32::NAN]);
    let compare = |func| Instruction::Compare { func, a: Register(0), b: Register(1) };
    let cases = [
        (CompareKernel::Eq, [0, 1, 0]),
        (CompareKernel::Lt, [1, 0, 0]),
        (CompareKernel::Le, [1, 1, 0]),
        (CompareKernel::Gt, [0, 0, 0]),
        (CompareKernel::Ge, [0, 1, 0]),
    ];
    for_each_exec(|exec| {
        for (func, expected) in cases {
            let result = run_flat(exec, Lane::F32, Lane::Bool, compare(func), &[to_bytes(&a), to_bytes(&b)]);
            assert_eq!(result, expected, "{func:?}");
        }
        let signed = [to_bytes(&[-1_i8, 3]), to_bytes(&[1_i8, 2])];
        assert_eq!(run_flat(exec, Lane::I8, Lane::Bool, compare(CompareKernel::Lt), &signed), [1, 0]);
        let wide = [to_bytes(&[i64::MIN, 3]), to_bytes(&[1_i64, 3])];
        assert_eq!(run_flat(exec, Lane::I64, Lane::Bool, compare(CompareKernel::Ge), &wide), [0, 1]);
        let truths = [vec![0_u8, 0, 1, 1], vec![0_u8, 1, 0, 1]];
        assert_eq!(run_flat(exec, Lane::Bool, Lane::Bool, binary(BinaryKernel::And, 0, 1), &truths), [0, 0, 0, 1]);
        assert_eq!(run_flat(exec, Lane::Bool, Lane::Bool, binary(BinaryKernel::Or, 0, 1), &truths), [0, 1, 1, 1]);
        assert_eq!(run_flat(exec, Lane::Bool, Lane::Bool, binary(BinaryKernel::Xor, 0, 1), &truths), [0, 1, 1, 0]);
        let not = unary(UnaryKernel::Not, 0, 0.0, 0.0);
        assert_eq!(run_flat(exec, Lane::Bool, Lane::Bool, not, &truths[..1]), [1, 1, 0, 0]);
        let clamp = Instruction::Clamp { src: Register(0), low: Scalar::I64(-2), high: Scalar::I64(2) };
        let clamped = run_flat(exec, Lane::I64, Lane::I64, clamp, &[to_bytes(&[-9_i64, 1, 9])]);
        assert_eq!(clamped, to_bytes(&[-2_i64, 1, 2]));
        let special = to_bytes(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0]);
        let is_inf = unary(UnaryKernel::IsInf, 0, 0.0, 1.0);
        assert_eq!(run_flat(exec, Lane::F32, Lane::Bool, is_inf, std::slice::from_ref(&special)), [0, 1, 0, 0]);
        let is_nan = unary(UnaryKernel::IsNan, 0, 0.0, 0.0);
        assert_eq!(run_flat(exec, Lane::F32, Lane::Bool, is_nan, &[special]), [0, 0, 1, 0]);
    });
}

#[test]
fn casts_truncate_saturate_and_wrap() {
    let cast = |to| Instruction::Cast { src: Register(0), to };
    let floats = to_bytes(&[1.9_f32, -1.9, 300.0, -300.0, f32::NAN, 3e10, 0.5]);
    for_each_exec(|exec| {
        let floats = [floats.clone()];
        let run = |lane, to, inputs: &[Vec<u8>]| run_flat(exec, lane, to, cast(to), inputs);
        let as_i32 = run(Lane::F32, Lane::I32, &floats);
        assert_eq!(as_i32, to_bytes(&[1_i32, -1, 300, -300, 0, i32::MAX, 0]));
        assert_eq!(run(Lane::F32, Lane::I64, &floats), to_bytes(&[1_i64, -1, 300, -300, 0, 3e10_f32 as i64, 0]));
        assert_eq!(run(Lane::F32, Lane::U8, &floats), [1, 0, 255, 0, 0, 255, 0]);
        assert_eq!(run(Lane::F32, Lane::I8, &floats), to_bytes(&[1_i8, -1, 127, -128, 0, 127, 0]));
        assert_eq!(run(Lane::F32, Lane::Bool, &floats), [1, 1, 1, 1, 1, 1, 1]);
        let wide = [to_bytes(&[0_i64, 256, 257, -1, 1 << 40])];
        assert_eq!(run(Lane::I64, Lane::U8, &wide), [0, 0, 1, 255, 0]);
        assert_eq!(run(Lane::I64, Lane::Bool, &wide), [0, 1, 1, 1, 1]);
        assert_eq!(run(Lane::I64, Lane::F32, &wide), to_bytes(&[0.0_f32, 256.0, 257.0, -1.0, 1_099_511_627_776.0]));
        assert_eq!(run(Lane::I8, Lane::I64, &[vec![255, 1]]), to_bytes(&[-1_i64, 1]));
        assert_eq!(run(Lane::Bool, Lane::F32, &[vec![0, 1]]), to_bytes(&[0.0_f32, 1.0]));
    });
}

#[test]
fn halves_are_computed_in_f32() {
    use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
    let mut lcg = Lcg::new(11);
    let (a, b) = (lcg.floats(777), lcg.floats(777));
    let a_bits: Vec<u16> = a.iter().map(|&x| f32_to_f16(x)).collect();
    let b_bits: Vec<u16> = b.iter().map(|&x| f32_to_bf16(x)).collect();
    let inputs = [spec(Lane::F16, vec![1]), spec(Lane::Bf16, vec![1])];
    let outputs = [OutputSpec { lane: Lane::F16 }, OutputSpec { lane: Lane::Bf16 }];
    let instructions = vec![load(0), load(1), binary(BinaryKernel::Mul, 0, 1), store(2, 0), store(2, 1)];
    let program = PointwiseProgram::new(&[777], &inputs, &outputs, instructions).unwrap();
    let products: Vec<f32> = a_bits.iter().zip(&b_bits).map(|(&a, &b)| f16_to_f32(a) * bf16_to_f32(b)).collect();
    let as_f16: Vec<u16> = products.iter().map(|&x| f32_to_f16(x)).collect();
    let as_bf16: Vec<u16> = products.iter().map(|&x| f32_to_bf16(x)).collect();
    for_each_exec(|exec| {
        let results = run(exec, &program, &[&to_bytes(&a_bits), &to_bytes(&b_bits)], &[777 * 2; 2]);
        assert_eq!(results, [to_bytes(&as_f16), to_bytes(&as_bf16)]);
    });
}

#[test]
fn wrong_programs_are_named() {
    let input = [spec(Lane::F32, vec![1])];
    let output = [OutputSpec { lane: Lane::F32 }];
    let error = |instructions: Vec<Instruction>| {
        PointwiseProgram::new(&[4], &input, &output, instructions).unwrap_err().to_string()
    };
    assert_eq!(error(vec![load(0)]), "output 0 is stored 0 times, expected once");
    assert_eq!(error(vec![load(1)]), "instruction 0: input 1 does not exist");
    assert_eq!(error(vec![load(0), store(1, 0)]), "instruction 1: register 1 does not exist");
    assert_eq!(error(vec![load(0), unary(UnaryKernel::BitNot, 0, 0.0, 0.0)]), "instruction 1: BitNot of lane F32");
    let flag = Instruction::Compare { func: CompareKernel::Eq, a: Register(0), b: Register(0) };
    assert_eq!(error(vec![load(0), flag, store(1, 0)]), "instruction 2: store of lane Bool to an output of F32");
    let ranks = PointwiseProgram::new(&[4, 4], &input, &output, vec![]).unwrap_err();
    assert_eq!(ranks.to_string(), "input 0: 1 strides for a shape of rank 2");
    let huge = PointwiseProgram::new(&[usize::MAX, 2], &[], &output, vec![]).unwrap_err();
    assert_eq!(huge, PointwiseError::TooLarge);
    let far = [spec(Lane::F32, vec![usize::MAX / 2])];
    assert_eq!(PointwiseProgram::new(&[4], &far, &output, vec![]).unwrap_err(), PointwiseError::TooLarge);
}

#[test]
fn many_live_registers_shrink_the_tile() {
    // 60 values that are all alive until they are added up.
    let input = [spec(Lane::F32, vec![1])];
    let mut instructions = vec![load(0)];
    instructions.extend((0..59).map(|_| unary(UnaryKernel::Neg, 0, 0.0, 0.0)));
    let mut sum = 0;
    for register in 1..60 {
        instructions.push(binary(BinaryKernel::Sub, sum, register));
        sum = instructions.len() - 1;
    }
    instructions.push(store(sum, 0));
    let program = PointwiseProgram::new(&[1000], &input, &[OutputSpec { lane: Lane::F32 }], instructions).unwrap();
    let values: Vec<f32> = (0..1000).map(|x| x as f32).collect();
    let expected: Vec<f32> = values.iter().map(|x| x * 60.0).collect();
    for_each_exec(|exec| {
        let result = run(exec, &program, &[&to_bytes(&values)], &[4000]).remove(0);
        assert_eq!(floats_of(&result), expected);
    });
}
