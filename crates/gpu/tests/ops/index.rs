//! Ops that read and write at computed places.

use precast_ir::Graph;
use precast_ir::op::{
    Concat, Gather, GatherElements, GatherNd, NonZero, Reshape, ScatterElements, ScatterFn, ScatterNd, Topk,
};
use precast_tensor::{DType, Dim, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, WIDE, check, check_none, launch_count, numbers, of_values, texts};

fn x(dtype: DType, shape: &[usize]) -> Tensor {
    numbers(dtype, shape, 31, 0.0, 3.0)
}

/// Indices from -extent to extent - 1.
fn indices(dtype: DType, shape: &[usize], extent: usize, seed: u64) -> Tensor {
    let low = if dtype.is_signed() { -(extent as f64) } else { 0.0 };
    numbers(dtype, shape, seed, low, extent as f64)
}

#[test]
fn gathers() {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool] {
        for (shape, axis, index_shape) in [
            (vec![10, 8], 0, vec![2, 3]),
            (vec![10, 7], 0, vec![5]),
            (vec![3, 10, 4], 1, vec![6]),
            (vec![3, 4, 10], 2, vec![2, 2]),
            (vec![10], 0, vec![]),
            (vec![2, 5, 3, 4], 1, vec![3]),
            (vec![3, 4], 1, vec![0]),
        ] {
            for index in [DType::I64, DType::I32, DType::U8] {
                let inputs = [x(dtype, &shape), indices(index, &index_shape, shape[axis], 4)];
                cases.push(Case::new(Gather { axis }, &inputs));
                if shape.len() > 3 {
                    cases.push(Case::new(Gather { axis }, &inputs).channels_last());
                    cases.push(Case::new(Gather { axis }, &inputs).channels_last_values(&[0]));
                }
            }
        }
        for (shape, axis, index_shape) in
            [(vec![5, 6], 0, vec![3, 6]), (vec![5, 6], 1, vec![4, 9]), (vec![2, 4, 3], 1, vec![2, 2, 3])]
        {
            let inputs = [x(dtype, &shape), indices(DType::I64, &index_shape, shape[axis], 5)];
            cases.push(Case::new(GatherElements { axis }, &inputs));
            cases.push(Case::new(GatherElements { axis }, &inputs).channels_last());
        }
        for (shape, batch_axes, index_shape, extent) in [
            (vec![3, 3, 4], 0, vec![5, 2], 3),
            (vec![3, 3, 4], 0, vec![2, 2, 1], 3),
            (vec![2, 3, 3, 4], 1, vec![2, 4, 2], 3),
            (vec![3, 3], 0, vec![4, 2], 3),
            (vec![3, 3], 0, vec![4, 0], 3),
        ] {
            let inputs = [x(dtype, &shape), indices(DType::I64, &index_shape, extent, 6)];
            cases.push(Case::new(GatherNd { batch_axes }, &inputs));
            cases.push(Case::new(GatherNd { batch_axes }, &inputs).channels_last());
        }
    }
    check(&cases, PLAIN);
    check(&cases[..6], INDIRECT);
}

/// What makes a part of every row of a concatenation.
enum Part {
    /// Rows of a table of so many rows, by indices of this type and shape.
    Table(usize, DType, Vec<usize>),
    /// An operand.
    Rows,
}

/// A concatenation of parts of these shapes, as one fused node.
fn lookups(name: &str, dtype: DType, axis: usize, parts: &[(Vec<usize>, Part)]) -> Case {
    let (mut body, mut inputs, mut joined) = (Graph::new(""), Vec::new(), Vec::new());
    for (at, (shape, part)) in parts.iter().enumerate() {
        let seed = at as u64 + 1;
        let Part::Table(rows, index, index_shape) = part else {
            let x = numbers(dtype, shape, seed, 0.0, 9.0);
            joined.push(body.add_input("", x.type_()));
            inputs.push(x);
            continue;
        };
        let width = shape[axis..].iter().product::<usize>();
        let operands = [numbers(dtype, &[*rows, width], seed, 0.0, 9.0), indices(*index, index_shape, *rows, seed)];
        let values = [&operands[0], &operands[1]].map(|operand| body.add_input("", operand.type_()));
        inputs.extend(operands);
        let mut y = body.add(Gather { axis: 0 }, &values, &Default::default()).unwrap();
        if body.ty(y).shape().unwrap() != *shape {
            let shape = shape.iter().map(|&size| Dim::from(size)).collect();
            y = body.add(Reshape { shape }, &[y], &Default::default()).unwrap();
        }
        joined.push(y);
    }
    let y = body.add(Concat { axis }, &joined, &Default::default()).unwrap();
    body.add_output("", y);
    Case::fused(&format!("{name} of {}", dtype.name()), body, &inputs)
}

#[test]
fn lookups_of_a_concatenation_take_one_launch() {
    use DType::{I32, I64, U32};
    let table = |rows: usize, index: DType, shape: &[usize]| Part::Table(rows, index, shape.to_vec());
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
        let even = [
            (vec![5, 8], table(10, I64, &[5])),
            (vec![5, 16], table(3, I32, &[5, 1])),
            (vec![5, 8], Part::Rows),
            (vec![5, 24], table(7, U32, &[5])),
        ];
        cases.push(lookups("even widths", dtype, 1, &even));
        let odd = [
            (vec![6, 3], Part::Rows),
            (vec![6, 1], table(1, I32, &[6])),
            (vec![6, 7], table(9, I64, &[6, 1])),
            (vec![6, 5], table(4, I32, &[2, 3])),
            (vec![6, 0], table(4, I64, &[6])),
        ];
        cases.push(lookups("odd widths", dtype, 1, &odd));
        let deep = [
            (vec![2, 3, 2, 6], table(5, I64, &[2, 3])),
            (vec![2, 3, 1, 6], Part::Rows),
            (vec![2, 3, 3, 6], table(8, I32, &[6])),
        ];
        cases.push(lookups("rows of two axes", dtype, 2, &deep));
    }
    for case in &cases {
        assert!(matches!(&texts(case)[..], [text] if text.contains("gather_concat")), "{}", case.name);
    }
    check(&cases, PLAIN);
    check(&cases[..3], WIDE);
    check(&cases[..3], INDIRECT);
    // The addresses of 200 tables and their indices do not fit into the parameters of one kernel.
    let many: Vec<_> = (0..200).map(|at| (vec![3, 1 + at % 3], table(4, I64, &[3]))).collect();
    let many = lookups("many tables", DType::F32, 1, &many);
    assert_eq!(launch_count(&many), 2);
    check(&[many], PLAIN);
}

#[test]
fn scatters() {
    let mut cases = Vec::new();
    for &func in ScatterFn::ALL {
        for dtype in [DType::F32, DType::F16, DType::I64, DType::I8, DType::Bool] {
            if dtype == DType::Bool && matches!(func, ScatterFn::Add | ScatterFn::Mul) {
                continue;
            }
            let updates = |shape: &[usize]| numbers(dtype, shape, 8, 0.0, 3.0);
            for (shape, axis, index_shape) in [
                (vec![5, 6], 0, vec![7, 6]),
                (vec![5, 6], 1, vec![4, 9]),
                (vec![2, 4, 3], 1, vec![2, 5, 3]),
                (vec![3], 0, vec![0]),
            ] {
                let inputs =
                    [x(dtype, &shape), indices(DType::I64, &index_shape, shape[axis], 5), updates(&index_shape)];
                cases.push(Case::new(ScatterElements { func, axis }, &inputs));
                cases.push(Case::new(ScatterElements { func, axis }, &inputs).channels_last());
            }
            for (shape, index_shape, update_shape, extent) in [
                (vec![3, 3, 4], vec![9, 2], vec![9, 4], 3),
                (vec![3, 3, 4], vec![2, 3, 1], vec![2, 3, 3, 4], 3),
                (vec![3, 3], vec![20, 2], vec![20], 3),
                (vec![4], vec![0, 1], vec![0], 3),
                (vec![3, 2], vec![2, 0], vec![2, 3, 2], 3),
                (vec![5, 8], vec![1, 1], vec![1, 8], 5),
            ] {
                let inputs = [x(dtype, &shape), indices(DType::I64, &index_shape, extent, 6), updates(&update_shape)];
                cases.push(Case::new(ScatterNd { func }, &inputs));
                cases.push(Case::new(ScatterNd { func }, &inputs).channels_last());
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..20], INDIRECT);
}

#[test]
fn constant_tuples_that_differ_take_one_pass() {
    for (numbers_of, launches) in [([0.0, 2.0], 2), ([0.0, -3.0], 4)] {
        let mut graph = Graph::new("");
        let inputs = [x(DType::F32, &[3, 4]), x(DType::F32, &[2, 4])];
        let values: Vec<_> = inputs.iter().map(|input| graph.add_input("", input.type_())).collect();
        let indices = graph.add_constant(of_values(DType::I64, &[2, 1], &numbers_of));
        let op = ScatterNd { func: ScatterFn::Replace };
        let y = graph.add(op, &[values[0], indices, values[1]], &Default::default()).unwrap();
        graph.add_output("", y);
        let case = Case::of_graph("scatter", graph, &inputs);
        assert_eq!(launch_count(&case), launches);
        check(&[case], PLAIN);
    }
}

#[test]
fn top_elements() {
    let topk = |axis: usize, k: usize, largest: bool| Topk { axis, k: Dim::from(k), largest };
    let mut cases = Vec::new();
    for largest in [true, false] {
        for dtype in [DType::F32, DType::F16, DType::F64, DType::I32, DType::I64, DType::U8] {
            cases.push(Case::new(topk(1, 5, largest), &[numbers(dtype, &[3, 40], 3, 0.0, 9.0)]));
            cases.push(Case::new(topk(0, 100, largest), &[numbers(dtype, &[100, 2], 3, 0.0, 9.0)]));
        }
        let special = [1.0, f64::NAN, 0.0, -0.0, f64::NAN, f64::NEG_INFINITY, 0.0, f64::INFINITY];
        cases.push(Case::new(topk(0, 8, largest), &[of_values(DType::F32, &[8], &special)]));
        cases.push(Case::new(topk(1, 3, largest), &[numbers(DType::F32, &[2, 5, 3, 2], 3, 0.0, 9.0)]).channels_last());
        cases.push(Case::new(topk(0, 0, largest), &[numbers(DType::F32, &[8], 3, 0.0, 9.0)]));
        cases.push(Case::new(topk(0, 1, largest), &[numbers(DType::F32, &[1], 3, 0.0, 9.0)]));
        cases.push(Case::new(topk(1, 50, largest), &[numbers(DType::F32, &[2, 9000], 3, 0.0, 9.0)]));
        cases.push(Case::new(topk(1, 300, largest), &[numbers(DType::F32, &[2, 3000], 5, -9.0, 9.0)]));
        cases.push(Case::new(topk(0, 70, largest), &[numbers(DType::I32, &[2500, 2], 5, -9.0, 9.0)]));
        cases.push(Case::new(topk(0, 3, largest), &[numbers(DType::U8, &[2100], 5, 0.0, 9.0)]));
        cases.push(Case::new(topk(0, 0, largest), &[numbers(DType::F32, &[2100], 5, 0.0, 9.0)]));
        cases.push(Case::new(topk(0, 9, largest), &[numbers(DType::I64, &[2100], 5, -9.0, 9.0)]));
        let repeated: Vec<f64> = special.iter().copied().cycle().take(2400).collect();
        cases.push(Case::new(topk(0, 1000, largest), &[of_values(DType::F32, &[2400], &repeated)]));
        cases.push(Case::new(topk(1, 1024, largest), &[numbers(DType::F16, &[1, 5000], 3, 0.0, 9.0)]));
    }
    check(&cases, PLAIN);
    check(&cases[..2], WIDE);
    check(&cases[..2], INDIRECT);
    check_none(&Case::new(topk(0, 1025, true), &[x(DType::F32, &[4000])]));
    check_none(&Case::new(NonZero { count: Dim::from(3usize) }, &[x(DType::F32, &[4])]));
}
