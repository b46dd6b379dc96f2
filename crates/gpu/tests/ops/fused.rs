//! Fused bodies that are not elementwise run node by node.

use precast_gpu::kernel::STREAM_MMA;
use precast_ir::op::{
    Binary, BinaryFn, Concat, Dequantize, Gather, LayerNorm, Matmul, Op, Reduce, ReduceFn, RmsNorm, ScatterFn,
    ScatterNd, Softmax, Transpose, Unary, UnaryFn, Unpack,
};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, check_none, launch_count, numbers, of_values, texts};

struct Body {
    graph: Graph,
    inputs: Vec<Tensor>,
}

impl Body {
    fn new(inputs: &[Tensor]) -> Body {
        let mut graph = Graph::new("");
        for input in inputs {
            graph.add_input("", input.type_());
        }
        Body { graph, inputs: inputs.to_vec() }
    }

    fn add(&mut self, op: impl Into<Op>, operands: &[u32]) -> u32 {
        let operands: Vec<ValueId> = operands.iter().map(|&operand| ValueId(operand)).collect();
        self.graph.add(op, &operands, &Default::default()).unwrap().0
    }

    fn finish(mut self, name: &str, outputs: &[u32]) -> Case {
        for &output in outputs {
            self.graph.add_output("", ValueId(output));
        }
        Case::fused(name, self.graph, &self.inputs)
    }
}

#[test]
fn bodies_run_node_by_node() {
    let x = |shape: &[usize], seed| numbers(DType::F32, shape, seed, -1.0, 1.0);
    let indices = numbers(DType::I64, &[5], 3, 0.0, 4.0);

    let mut body = Body::new(&[x(&[4, 8], 1), x(&[4, 6], 2), indices.clone()]);
    let first = body.add(Gather { axis: 0 }, &[0, 2]);
    let second = body.add(Gather { axis: 0 }, &[1, 2]);
    let joined = body.add(Concat { axis: 1 }, &[first, second]);
    let lookups = body.finish("lookups", &[joined]);

    let mut body = Body::new(&[x(&[2, 3, 4, 4], 1), x(&[4], 2)]);
    let mean = body.add(Reduce { func: ReduceFn::Mean, axes: vec![2], keep_dims: true }, &[0]);
    let shifted = body.add(Binary { func: BinaryFn::Sub }, &[0, mean]);
    let normal = body.add(LayerNorm { axis: 3, epsilon: 1e-5 }, &[shifted, 1]);
    let soft = body.add(Softmax { axis: 1, log: false }, &[normal]);
    let turned = body.add(Transpose { perm: vec![0, 1, 3, 2] }, &[soft]);
    let chain = body.finish("chain", &[turned, shifted]);

    let mut body = Body::new(&[x(&[4, 8], 1), indices, x(&[5, 8], 2)]);
    let rows = body.graph.add_constant(of_values(DType::I64, &[5, 1], &[0.0, 1.0, 1.0, 3.0, 1.0])).0;
    let scattered = body.add(ScatterNd { func: ScatterFn::Replace }, &[0, rows, 2]);
    let picked = body.add(Gather { axis: 0 }, &[scattered, 1]);
    let scatter = body.finish("scatter", &[picked]);

    let cases = [lookups, chain.clone(), chain.channels_last(), scatter];
    check(&cases, PLAIN);
    check(&cases, WIDE);
    check(&cases, INDIRECT);
}

#[test]
fn a_body_that_returns_its_input_has_no_kernel() {
    let mut body = Body::new(&[numbers(DType::F32, &[3], 1, 0.0, 1.0)]);
    let sum = body.add(Reduce { func: ReduceFn::Sum, axes: vec![0], keep_dims: true }, &[0]);
    let root = body.add(Unary { func: UnaryFn::Sqrt, alpha: 0.0, beta: 0.0 }, &[sum]);
    check_none(&body.finish("same", &[root, 0]));
}

/// A body of a decoder's step: rows that may be normed, one product or two, and what follows.
fn stream_case(dtype: DType, [m, n, k]: [usize; 3], is_normed: bool, is_gated: bool, transpose_b: bool) -> Case {
    let shape = if transpose_b { [n, k] } else { [k, n] };
    let mut inputs = vec![numbers(dtype, &[1, m, k], 1, -1.0, 1.0), numbers(dtype, &[k], 2, 0.5, 1.5)];
    inputs.extend([3, 4].map(|seed| numbers(dtype, &shape, seed, -0.5, 0.5)));
    inputs.push(numbers(dtype, &[1, m, n], 5, -1.0, 1.0));
    let mut body = Body::new(&inputs);
    let x = if is_normed { body.add(RmsNorm { axis: 2, epsilon: 1e-5 }, &[0, 1]) } else { 0 };
    let matmul = || Matmul { transpose_a: false, transpose_b };
    let mut y = body.add(matmul(), &[x, 2]);
    if is_gated {
        let other = body.add(matmul(), &[x, 3]);
        let gate = body.add(Unary { func: UnaryFn::Silu, alpha: 1.0, beta: 0.0 }, &[y]);
        y = body.add(Binary { func: BinaryFn::Mul }, &[gate, other]);
    } else {
        y = body.add(Binary { func: BinaryFn::Add }, &[y, 4]);
    }
    body.graph.add_output("", ValueId(y));
    let name = format!("stream {dtype} {m}x{n}x{k} normed {is_normed} gated {is_gated} turned {transpose_b}");
    Case::fused_with_constants(&name, body.graph, &inputs, &[1, 2, 3])
}

/// Weights in blocks: how levels lie, whether they have zero points, and their blocks.
#[derive(Clone, Copy, Debug)]
struct Levels {
    /// The type that bytes are unpacked to; none has them one a byte.
    unpack: Option<DType>,
    dtype: DType,
    has_zeros: bool,
    block: usize,
}

/// A body of a decoder's step whose weights are blocks of few bits: rows that may be normed, one product or two, and what follows.
fn block_case(dtype: DType, [m, n, k]: [usize; 3], levels: Levels, is_normed: bool, is_gated: bool) -> Case {
    let Levels { unpack, dtype: level, has_zeros, block } = levels;
    let per_byte = unpack.map_or(1, |to| 8 / to.bits() as usize);
    let source = |seed| match unpack {
        Some(_) => numbers(DType::U8, &[n, k / per_byte], seed, 0.0, 255.0),
        None => {
            let (least, most) = level.int_range().unwrap();
            numbers(level, &[n, k], seed, least as f64, most as f64)
        }
    };
    let scale = 2.0 / f64::from(1 << level.bits());
    let mut inputs = vec![numbers(dtype, &[1, m, k], 1, -1.0, 1.0), numbers(dtype, &[k], 2, 0.5, 1.5)];
    inputs.push(numbers(dtype, &[1, m, n], 5, -1.0, 1.0));
    for seed in [3, 4] {
        inputs.extend([source(seed), numbers(dtype, &[n, k / block], seed + 10, scale / 4.0, scale)]);
        inputs.push(numbers(level, &[n, k / block], seed + 20, 0.0, 7.0));
    }
    let mut body = Body::new(&inputs);
    let x = if is_normed { body.add(RmsNorm { axis: 2, epsilon: 1e-5 }, &[0, 1]) } else { 0 };
    let product = |body: &mut Body, first: u32| {
        let levels = unpack.map_or(first, |to| body.add(Unpack { to }, &[first]));
        let parts = [levels, first + 1, first + 2];
        let op = Dequantize { to: dtype, axis: 1, block };
        let weights = body.add(op, if has_zeros { &parts } else { &parts[..2] });
        body.add(Matmul { transpose_a: false, transpose_b: true }, &[x, weights])
    };
    let mut y = product(&mut body, 3);
    if is_gated {
        let other = product(&mut body, 6);
        let gate = body.add(Unary { func: UnaryFn::Silu, alpha: 1.0, beta: 0.0 }, &[y]);
        y = body.add(Binary { func: BinaryFn::Mul }, &[gate, other]);
    } else {
        y = body.add(Binary { func: BinaryFn::Add }, &[y, 2]);
    }
    body.graph.add_output("", ValueId(y));
    let name = format!("blocks {dtype} {m}x{n}x{k} {levels:?} normed {is_normed} gated {is_gated}");
    Case::fused_with_constants(&name, body.graph, &inputs, &[1, 3, 4, 5, 6, 7, 8])
}

/// The ways in which levels of weights lie.
const LEVELS: [Levels; 7] = [
    Levels { unpack: Some(DType::I4), dtype: DType::I4, has_zeros: false, block: 32 },
    Levels { unpack: Some(DType::U4), dtype: DType::U4, has_zeros: true, block: 16 },
    Levels { unpack: Some(DType::I8), dtype: DType::I8, has_zeros: false, block: 32 },
    Levels { unpack: None, dtype: DType::U8, has_zeros: true, block: 32 },
    Levels { unpack: None, dtype: DType::I8, has_zeros: false, block: 16 },
    Levels { unpack: Some(DType::I4), dtype: DType::I4, has_zeros: false, block: 64 },
    Levels { unpack: None, dtype: DType::I4, has_zeros: false, block: 32 },
];

#[test]
fn products_of_few_rows_read_weights_of_few_bits_as_they_lie() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (at, levels) in LEVELS.into_iter().enumerate() {
            let (is_normed, is_gated) = (at % 2 == 0, at % 3 == 0);
            cases.push(block_case(dtype, [1, 40, 192], levels, is_normed, is_gated));
            cases.push(block_case(dtype, [3, 9, 64], levels, !is_normed, is_gated));
        }
        // Rows that are too long for shared memory, and columns enough for several of each warp.
        cases.push(block_case(dtype, [8, 5, 2304], LEVELS[0], false, false));
        cases.push(block_case(dtype, [2, 150, 1088], LEVELS[1], true, true));
    }
    for case in &cases {
        assert_eq!(launch_count(case), 1, "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..16], WIDE);
    check(&cases[..4], INDIRECT);
}

#[test]
fn bytes_become_floats_in_one_launch() {
    let mut cases = Vec::new();
    for (to, shape, block, has_zeros) in [
        (DType::I4, [3, 16], 16, false),
        (DType::U4, [5, 32], 32, true),
        (DType::I8, [4, 48], 16, false),
        (DType::U2, [2, 16], 16, true),
    ] {
        let [n, k] = shape;
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let inputs = [
                numbers(DType::U8, &[n, k * to.bits() as usize / 8], 1, 0.0, 255.0),
                numbers(dtype, &[n, k / block], 2, 0.1, 1.0),
                numbers(to, &[n, k / block], 3, 0.0, 3.0),
            ];
            let mut body = Body::new(&inputs);
            let levels = body.add(Unpack { to }, &[0]);
            let parts = [levels, 1, 2];
            let y = body.add(Dequantize { to: dtype, axis: 1, block }, if has_zeros { &parts } else { &parts[..2] });
            cases.push(body.finish(&format!("{to} to {dtype}"), &[y]));
        }
    }
    for case in &cases {
        assert_eq!(launch_count(case), 1, "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases, INDIRECT);
}

#[test]
fn products_of_few_rows_take_along_what_is_around_them() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for (mnk, transpose_b) in [([1, 40, 72], false), ([2, 70, 520], true), ([8, 9, 33], false)] {
            for (is_normed, is_gated) in [(true, true), (true, false), (false, true), (false, false)] {
                cases.push(stream_case(dtype, mnk, is_normed, is_gated, transpose_b));
            }
        }
        // Columns enough for several of each warp.
        cases.push(stream_case(dtype, [1, 300, 16], true, false, true));
        cases.push(stream_case(dtype, [3, 150, 2304], true, true, true));
    }
    for case in &cases {
        let is_alone = case.name.contains("f32") && case.name.contains("normed false gated false");
        assert!(is_alone || launch_count(case) == 1, "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..14], WIDE);
    check(&cases[..4], INDIRECT);
}

/// Where the texts of a case multiply: on matrix instructions or not.
fn is_on_matrix_instructions(case: &Case) -> bool {
    texts(case).iter().all(|text| text.contains(STREAM_MMA))
}

#[test]
fn several_rows_take_matrix_instructions() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        // Every number of tiles of rows; columns and inner axes that are and are not whole tiles, spans and shares of warps.
        for (mnk, transpose_b) in [
            ([2, 40, 72], false),
            ([8, 17, 1024], true),
            ([7, 272, 264], true),
            ([16, 70, 520], true),
            ([9, 530, 32], false),
            ([17, 33, 2304], true),
            ([24, 64, 8], true),
            ([32, 300, 128], true),
            ([31, 15, 544], false),
        ] {
            for (is_normed, is_gated) in [(true, true), (true, false), (false, true), (false, false)] {
                cases.push(stream_case(dtype, mnk, is_normed, is_gated, transpose_b));
            }
        }
        // Columns enough for four tiles of a warp.
        cases.push(stream_case(dtype, [5, 1040, 96], true, false, true));
        cases.push(stream_case(dtype, [16, 520, 96], false, true, true));
    }
    for case in &cases {
        assert!(launch_count(case) == 1 && is_on_matrix_instructions(case), "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..4], INDIRECT);
}

#[test]
fn matrix_instructions_take_weights_of_4_bits_as_they_lie() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        for (at, levels) in [0, 1, 5].into_iter().map(|at| LEVELS[at]).enumerate() {
            for (mnk, is_normed) in
                [([1, 40, 192], true), ([8, 17, 2304], false), ([17, 280, 64], true), ([32, 9, 1088], false)]
            {
                cases.push(block_case(dtype, mnk, levels, is_normed, at == 1));
            }
        }
        let short = Levels { block: 8, ..LEVELS[0] };
        cases.push(block_case(dtype, [3, 20, 72], short, true, true));
        cases.push(block_case(dtype, [2, 1040, 128], LEVELS[1], true, false));
    }
    for case in &cases {
        assert!(launch_count(case) == 1 && is_on_matrix_instructions(case), "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..4], INDIRECT);
}

#[test]
fn streams_without_matrix_instructions() {
    let lanes = [
        stream_case(DType::BF16, [1, 40, 72], true, false, true),
        stream_case(DType::BF16, [3, 40, 70], true, false, true),
        stream_case(DType::F32, [3, 40, 72], true, false, true),
        block_case(DType::BF16, [3, 40, 64], LEVELS[2], true, false),
    ];
    for case in &lanes {
        assert!(launch_count(case) == 1 && !is_on_matrix_instructions(case), "{}", case.name);
    }
    // Too many rows for any stream: node by node.
    assert!(launch_count(&stream_case(DType::F32, [9, 40, 72], true, false, true)) > 1);
    assert!(launch_count(&stream_case(DType::BF16, [33, 40, 72], true, false, true)) > 1);
}
