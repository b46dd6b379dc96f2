//! Functions of elements, alone and as fused bodies.

use precast_ir::Graph;
use precast_ir::op::{Binary, BinaryFn, Cast, Clamp, Compare, CompareFn, Op, Select, Unary, UnaryFn};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, numbers, of_values, texts};

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
const INTS: [DType; 8] = [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];

fn specials(dtype: DType) -> Tensor {
    let values = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.7, -3.7, 20.0, -20.0, 100.0, -100.0, 1e-3, -1e-3];
    let infinite = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let all: Vec<f64> = values.into_iter().chain(infinite).collect();
    of_values(dtype, &[all.len()], &all)
}

fn ints(dtype: DType, seed: u64) -> Tensor {
    let (least, most) = dtype.int_range().unwrap();
    let ends = [least, most, 0, 1, least + 1, most - 1, 2, 3, most / 2, 7];
    let random = numbers(dtype, &[22], seed, 0.0, 20.0).to_i128_vec().unwrap();
    let signed = random.iter().map(|&x| if least < 0 && x % 3 == 0 { -x } else { x });
    let mut all: Vec<i128> = ends.into_iter().chain(signed).collect();
    let turn = (seed as usize * 5) % all.len();
    all.rotate_left(turn);
    Tensor::from_i128(dtype, vec![all.len()], &all).unwrap()
}

fn unary(func: UnaryFn, alpha: f64, beta: f64) -> Unary {
    Unary { func, alpha, beta }
}

#[test]
fn unary_functions_of_floats() {
    let mut cases = Vec::new();
    for &func in UnaryFn::ALL {
        if matches!(func, UnaryFn::Not | UnaryFn::BitNot) {
            continue;
        }
        for dtype in FLOATS {
            let op = unary(func, 0.75, 1.25);
            cases.push(Case::new(op.clone(), &[specials(dtype)]).with_slack(if dtype == DType::F64 {
                1e-14
            } else {
                0.0
            }));
            if dtype == DType::F32 {
                cases.push(Case::new(op, &[numbers(dtype, &[3, 37], 3, -4.0, 4.0)]));
            }
        }
    }
    check(&cases, PLAIN);
}

#[test]
fn unary_functions_of_integers_and_bools() {
    let mut cases = vec![Case::new(unary(UnaryFn::Not, 0.0, 0.0), &[numbers(DType::Bool, &[33], 1, 0.0, 2.0)])];
    for func in [UnaryFn::Abs, UnaryFn::Neg, UnaryFn::Sign, UnaryFn::BitNot, UnaryFn::Ceil, UnaryFn::Relu] {
        cases.extend(INTS.map(|dtype| Case::new(unary(func, 0.0, 0.0), &[ints(dtype, 1)])));
    }
    for dtype in [DType::I8, DType::I32, DType::U16] {
        cases.push(Case::new(unary(UnaryFn::Shrink, 2.0, 1.0), &[ints(dtype, 1)]));
        cases.push(Case::new(unary(UnaryFn::Shrink, 2.0, 1.5), &[ints(dtype, 1)]));
    }
    check(&cases, PLAIN);
}

const ARITHMETIC: [BinaryFn; 10] = [
    BinaryFn::Add,
    BinaryFn::Sub,
    BinaryFn::Mul,
    BinaryFn::Div,
    BinaryFn::Pow,
    BinaryFn::Mod,
    BinaryFn::Fmod,
    BinaryFn::Min,
    BinaryFn::Max,
    BinaryFn::Prelu,
];

#[test]
fn binary_functions_of_floats() {
    let mut cases = Vec::new();
    for func in ARITHMETIC {
        for dtype in FLOATS {
            let a = specials(dtype);
            let b = of_values(dtype, &[a.len(), 1], &a.to_f64_vec());
            cases.push(Case::new(Binary { func }, &[a, b]).with_slack(if dtype == DType::F64 { 1e-14 } else { 0.0 }));
        }
    }
    check(&cases, PLAIN);
}

#[test]
fn binary_functions_of_integers_and_bools() {
    let mut cases = Vec::new();
    let bits = [BinaryFn::BitAnd, BinaryFn::BitOr, BinaryFn::BitXor, BinaryFn::Shl, BinaryFn::Shr];
    for func in ARITHMETIC.into_iter().chain(bits) {
        for dtype in INTS {
            let b = ints(dtype, 2);
            let b = Tensor::from_i128(dtype, vec![b.len(), 1], &b.to_i128_vec().unwrap()).unwrap();
            cases.push(Case::new(Binary { func }, &[ints(dtype, 1), b]));
        }
    }
    for func in [BinaryFn::And, BinaryFn::Or, BinaryFn::Xor] {
        let bools = |seed| numbers(DType::Bool, &[40], seed, 0.0, 2.0);
        cases.push(Case::new(Binary { func }, &[bools(1), bools(2)]));
    }
    check(&cases, PLAIN);
}

#[test]
fn powers_of_mixed_types() {
    let pow = Binary { func: BinaryFn::Pow };
    let exponents = |dtype| of_values(dtype, &[6], &[0.0, 1.0, 2.0, 3.0, 0.5, 5.0]);
    let mut cases = Vec::new();
    for base in [DType::F32, DType::F64, DType::F16, DType::I32, DType::I64] {
        for exponent in [DType::F32, DType::F64, DType::I32, DType::I64] {
            let a = numbers(base, &[6], 4, 1.0, 6.0);
            cases.push(Case::new(pow.clone(), &[a, exponents(exponent)]).with_slack(1e-15));
        }
    }
    let negative = of_values(DType::F32, &[6], &[-1.0, -2.0, -3.0, 2.0, 0.0, -1.0]);
    cases.push(Case::new(pow, &[of_values(DType::I32, &[6], &[2.0, 1.0, -1.0, -3.0, 0.0, 0.0]), negative]));
    check(&cases, PLAIN);
}

#[test]
fn comparisons_selections_and_limits() {
    let mut cases = Vec::new();
    for &func in CompareFn::ALL {
        for dtype in [DType::F32, DType::F16, DType::I64, DType::U8, DType::Bool] {
            let (a, b) = if dtype.is_float() {
                (specials(dtype), of_values(dtype, &[20, 1], &specials(dtype).to_f64_vec()))
            } else {
                (numbers(dtype, &[20], 1, 0.0, 2.0), numbers(dtype, &[20, 1], 2, 0.0, 2.0))
            };
            cases.push(Case::new(Compare { func }, &[a, b]));
        }
    }
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
        let condition = numbers(DType::Bool, &[2, 1, 8], 3, 0.0, 2.0);
        let (x, y) = (numbers(dtype, &[3, 8], 1, 0.0, 9.0), numbers(dtype, &[1], 2, 0.0, 9.0));
        cases.push(Case::new(Select {}, &[condition, x, y]));
    }
    for dtype in FLOATS {
        cases.push(Case::new(Clamp { lo: -1.0, hi: f64::INFINITY }, &[specials(dtype)]));
        cases.push(Case::new(Clamp { lo: 1.0, hi: 0.5 }, &[specials(dtype)]));
    }
    cases.extend(INTS.map(|dtype| Case::new(Clamp { lo: -1.5, hi: 100.5 }, &[ints(dtype, 1)])));
    cases.push(Case::new(Clamp { lo: f64::NEG_INFINITY, hi: 1e30 }, &[ints(DType::I64, 1)]));
    check(&cases, PLAIN);
}

#[test]
fn casts() {
    let floats =
        [0.0, -0.0, 0.5, -0.9, 1.5, 127.5, -128.5, 255.9, -1.0, 65504.0, 65519.0, 65520.0, 3e9, -3e9, 1e19, 2e19];
    let more =
        [2049.0, 2051.0, 1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 2048.0 + 1e-12, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let floats: Vec<f64> = floats.into_iter().chain(more).collect();
    let narrow = [DType::U4, DType::I4, DType::U2, DType::I2];
    let mut cases = Vec::new();
    for from in FLOATS {
        let x = of_values(from, &[floats.len()], &floats);
        for to in FLOATS.into_iter().chain(INTS).chain(narrow).chain([DType::Bool]).filter(|&to| to != from) {
            cases.push(Case::new(Cast { to, saturate: true }, std::slice::from_ref(&x)));
        }
    }
    for from in INTS.into_iter().chain(narrow) {
        for to in FLOATS.into_iter().chain(INTS).chain(narrow).chain([DType::Bool]).filter(|&to| to != from) {
            cases.push(Case::new(Cast { to, saturate: true }, &[ints(from, 1)]));
        }
    }
    let large: Vec<i128> =
        (0..63).flat_map(|bit| [(1i128 << bit) + 1, (1 << bit) + (1 << (bit / 2)), -(3 << bit) / 2 - 1]).collect();
    let x = Tensor::from_i128(DType::I64, vec![large.len()], &large).unwrap();
    cases.extend(FLOATS.map(|to| Case::new(Cast { to, saturate: true }, std::slice::from_ref(&x))));
    for to in [DType::F32, DType::F16, DType::I64, DType::U8] {
        cases.push(Case::new(Cast { to, saturate: true }, &[numbers(DType::Bool, &[9], 1, 0.0, 2.0)]));
    }
    check(&cases, PLAIN);
}

#[test]
fn shapes_and_layouts() {
    let add = Binary { func: BinaryFn::Add };
    let x = |dtype, shape: &[usize], seed| numbers(dtype, shape, seed, -2.0, 2.0);
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I8] {
        for (a, b) in [
            (vec![], vec![]),
            (vec![1], vec![7]),
            (vec![0, 3], vec![1, 3]),
            (vec![4, 3, 8], vec![8]),
            (vec![4, 3, 8], vec![3, 1]),
            (vec![4, 3, 8], vec![4, 1, 1]),
            (vec![4, 1, 8], vec![1, 6, 1]),
            (vec![2, 16, 5, 4], vec![1, 16, 1, 1]),
            (vec![2, 16, 5, 4], vec![2, 16, 5, 4]),
            (vec![3, 5, 7], vec![5, 7]),
            (vec![700, 3], vec![3]),
        ] {
            cases.push(Case::new(add.clone(), &[x(dtype, &a, 1), x(dtype, &b, 2)]));
            if a.len() > 2 {
                cases.push(Case::new(add.clone(), &[x(dtype, &a, 1), x(dtype, &b, 2)]).channels_last());
                cases.push(Case::new(add.clone(), &[x(dtype, &a, 1), x(dtype, &b, 2)]).channels_last_values(&[0]));
                cases.push(Case::new(add.clone(), &[x(dtype, &a, 1), x(dtype, &b, 2)]).channels_last_values(&[2]));
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..8], WIDE);
    check(&cases[..8], INDIRECT);
}

/// A body from nodes over inputs of these Types; each node reads values by number.
fn body(inputs: &[Tensor], nodes: Vec<(Op, Vec<usize>)>, outputs: &[usize]) -> Graph {
    let mut graph = Graph::new("");
    let mut values: Vec<_> = inputs.iter().map(|input| graph.add_input("", input.type_())).collect();
    for (op, operands) in nodes {
        let operands: Vec<_> = operands.iter().map(|&operand| values[operand]).collect();
        values.push(graph.add(op, &operands, &Default::default()).unwrap());
    }
    for &output in outputs {
        graph.add_output("", values[output]);
    }
    graph
}

#[test]
fn fused_bodies() {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        let inputs = [
            numbers(dtype, &[2, 8, 3, 4], 1, -2.0, 2.0),
            numbers(dtype, &[8, 1, 1], 2, -2.0, 2.0),
            numbers(dtype, &[2, 8, 3, 4], 3, -2.0, 2.0),
        ];
        let nodes = || {
            vec![
                (Binary { func: BinaryFn::Add }.into(), vec![0, 1]),
                (unary(UnaryFn::Silu, 1.0, 0.0).into(), vec![3]),
                (Binary { func: BinaryFn::Mul }.into(), vec![4, 2]),
                (Compare { func: CompareFn::Gt }.into(), vec![5, 0]),
                (Select {}.into(), vec![6, 5, 2]),
            ]
        };
        let name = |suffix: &str| format!("fused {} {suffix}", dtype.name());
        cases.push(Case::fused(&name("one"), body(&inputs, nodes(), &[7]), &inputs).with_slack(1e-15));
        cases.push(Case::fused(&name("two"), body(&inputs, nodes(), &[5, 6]), &inputs).with_slack(1e-15));
        cases.push(Case::fused(&name("last"), body(&inputs, nodes(), &[7]), &inputs).with_slack(1e-15).channels_last());
    }
    let inputs = [numbers(DType::F32, &[5, 8], 1, -300.0, 300.0), numbers(DType::I64, &[8], 2, 0.0, 9.0)];
    let nodes = vec![
        (Cast { to: DType::I64, saturate: true }.into(), vec![0]),
        (Binary { func: BinaryFn::Mod }.into(), vec![2, 1]),
        (Cast { to: DType::U8, saturate: true }.into(), vec![3]),
    ];
    cases.push(Case::fused("fused integers", body(&inputs, nodes, &[3, 4]), &inputs));
    check(&cases, PLAIN);
    check(&cases[..4], WIDE);
    check(&cases[..4], INDIRECT);
}

#[test]
fn a_constant_of_one_element_is_part_of_the_text() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::F64, DType::I64, DType::I8] {
        let values = if dtype.is_float() { vec![0.125, -0.0, f64::NAN, f64::NEG_INFINITY] } else { vec![3.0, -128.0] };
        for value in values {
            let mut graph = Graph::new("");
            let input = numbers(dtype, &[3, 16], 1, -2.0, 2.0);
            let x = graph.add_input("", input.type_());
            let constant = graph.add_constant(of_values(dtype, &[1, 1], &[value]));
            let y = graph.add(Binary { func: BinaryFn::Max }, &[x, constant], &Default::default()).unwrap();
            graph.add_output("", y);
            let case = Case::of_graph("limited", graph, &[input]);
            assert_eq!(texts(&case)[0].matches("OwnRows x").count(), 1);
            cases.push(case);
        }
    }
    check(&cases, PLAIN);
}
