//! Products, convolutions and attentions on the host, against reference evaluation.

mod host;

use host::{Case, INDIRECT, PLAIN, WIDE, check, check_with, numbers};
use precast_gpu::tactics::{Tactic, candidates, lower_with};
use precast_ir::op::{Binary, BinaryFn, Conv, Matmul, Unary, UnaryFn};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Dim, Tensor};

fn matmul(transpose_a: bool, transpose_b: bool) -> Matmul {
    Matmul { transpose_a, transpose_b }
}

fn random(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    numbers(dtype, shape, seed, -1.0, 1.0)
}

/// A product of m × k and k × n.
fn product(dtype: DType, [m, n, k]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Case {
    let a = if transpose_a { [k, m] } else { [m, k] };
    let b = if transpose_b { [n, k] } else { [k, n] };
    Case::new(matmul(transpose_a, transpose_b), &[random(dtype, &a, 1), random(dtype, &b, 2)])
}

/// The names of all tactics of a case.
fn tactics(case: &Case) -> Vec<Tactic> {
    let arch = host::arch(32);
    let node = case.graph.nodes().last().expect("a case has a node");
    let site = precast_gpu::site::Site { graph: &case.graph, node, arch: &arch, layouts: &case.layouts };
    candidates(&site)
}

/// Every tactic of every case.
fn check_tactics(cases: &[Case]) {
    let (mut all, mut chosen) = (Vec::new(), Vec::new());
    for case in cases {
        let tactics = tactics(case);
        assert!(tactics.len() > 2, "{}: {} tactics", case.name, tactics.len());
        for tactic in tactics {
            let mut case = case.clone();
            case.name = format!("{} by {}", case.name, tactic.name());
            all.push(case);
            chosen.push(tactic);
        }
    }
    // Cases are lowered in order, one node each.
    let next = std::cell::Cell::new(0);
    check_with(&all, PLAIN, &|site| {
        let tactic = &chosen[next.replace(next.get() + 1)];
        Ok(lower_with(site, tactic))
    });
}

#[test]
fn products_of_odd_sizes() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32] {
        for sizes in [[1, 1, 1], [9, 17, 5], [33, 40, 24], [70, 66, 130], [16, 100, 256]] {
            for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
                cases.push(product(dtype, sizes, transpose_a, transpose_b));
            }
        }
    }
    check(&cases, PLAIN);
}

#[test]
fn every_tactic_of_a_product() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        cases.push(product(dtype, [40, 72, 520], false, false));
        cases.push(product(dtype, [72, 40, 515], true, true));
    }
    check_tactics(&cases);
}

#[test]
fn batches_are_broadcast() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for (a, b) in [
            (vec![2, 3, 5, 8], vec![3, 8, 16]),
            (vec![2, 1, 5, 8], vec![1, 3, 8, 16]),
            (vec![2, 3, 5, 8], vec![8, 16]),
            (vec![5, 8], vec![4, 8, 6]),
            (vec![2, 3, 5, 8], vec![2, 1, 8, 16]),
        ] {
            cases.push(Case::new(matmul(false, false), &[random(dtype, &a, 1), random(dtype, &b, 2)]));
        }
    }
    check(&cases, PLAIN);
    check(&cases, INDIRECT);
    check(&cases, WIDE);
}

fn conv(stride: usize, pads: [usize; 2], dilation: usize, groups: usize, rank: usize) -> Conv {
    Conv {
        stride: vec![stride; rank],
        pad_lo: vec![Dim::from(pads[0]); rank],
        pad_hi: vec![Dim::from(pads[1]); rank],
        dilation: vec![dilation; rank],
        groups,
    }
}

/// A convolution whose filter and bias are constants.
fn constant_conv(op: Conv, x: &Tensor, filter: Tensor, bias: Option<Tensor>) -> Case {
    let mut graph = Graph::new("");
    let mut inputs = vec![graph.add_input("x", x.type_())];
    let name = format!("conv {:?} of {} and {}", op, x.type_(), filter.type_());
    inputs.push(graph.add_constant(filter));
    inputs.extend(bias.map(|bias| graph.add_constant(bias)));
    let y = graph.add(op, &inputs, &Default::default()).expect("the convolution fits");
    graph.add_output("y", y);
    Case::of_graph(&name, graph, std::slice::from_ref(x))
}

/// The convolutions of a type: strides, pads, dilations, groups, ranks and channel counts.
fn convs(dtype: DType) -> Vec<Case> {
    let mut cases = Vec::new();
    for (x, filter, op) in [
        (vec![2, 3, 9, 10], vec![5, 3, 3, 3], conv(2, [1, 1], 1, 1, 2)),
        (vec![1, 8, 7, 7], vec![16, 8, 1, 1], conv(1, [0, 0], 1, 1, 2)),
        (vec![1, 16, 7, 6], vec![24, 16, 3, 3], conv(1, [1, 2], 1, 1, 2)),
        (vec![2, 16, 9, 9], vec![8, 16, 1, 1], conv(2, [0, 0], 1, 1, 2)),
        (vec![1, 12, 11, 8], vec![10, 6, 3, 2], conv(1, [2, 1], 2, 2, 2)),
        (vec![1, 32, 6, 6], vec![16, 8, 3, 3], conv(1, [1, 1], 1, 4, 2)),
        (vec![2, 6, 20], vec![7, 6, 5], conv(2, [2, 2], 1, 1, 1)),
        (vec![1, 4, 5, 6, 7], vec![6, 4, 2, 3, 3], conv(1, [1, 1], 1, 1, 3)),
        (vec![2, 16, 9, 8], vec![16, 1, 3, 3], conv(2, [1, 1], 1, 16, 2)),
        (vec![1, 6, 9, 8], vec![12, 1, 5, 3], conv(1, [2, 1], 1, 6, 2)),
    ] {
        let bias = random(dtype, &filter[..1], 3);
        let (x, filter) = (random(dtype, &x, 1), random(dtype, &filter, 2));
        cases.push(constant_conv(op.clone(), &x, filter.clone(), Some(bias)));
        cases.push(Case::new(op, &[x, filter]));
    }
    cases
}

#[test]
fn convolutions_in_both_orders() {
    for dtype in [DType::F16, DType::F32] {
        let cases = convs(dtype);
        check(&cases, PLAIN);
        let last: Vec<Case> = cases.iter().cloned().map(Case::channels_last).collect();
        check(&last, PLAIN);
        check(&last, WIDE);
    }
    let first_to_last: Vec<Case> = convs(DType::BF16)
        .into_iter()
        .map(|case| {
            let output = case.graph.outputs()[0].value.0;
            case.channels_last_values(&[output])
        })
        .collect();
    check(&first_to_last, INDIRECT);
}

#[test]
fn every_tactic_of_a_convolution() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        let (x, filter) = (random(dtype, &[1, 72, 5, 9], 1), random(dtype, &[40, 72, 3, 3], 2));
        let bias = random(dtype, &[40], 3);
        let case = constant_conv(conv(1, [1, 1], 1, 1, 2), &x, filter, Some(bias));
        cases.push(case.clone());
        cases.push(case.channels_last());
    }
    check_tactics(&cases);
}

#[test]
fn products_of_few_rows() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (m, n, k) in [(1, 70, 300), (3, 33, 512), (8, 5, 77), (2, 9, 1028)] {
            cases.push(product(dtype, [m, n, k], false, true));
            let mut graph = Graph::new("");
            let x = random(dtype, &[m, k], 1);
            let inputs = [graph.add_input("x", x.type_()), graph.add_constant(random(dtype, &[k, n], 2))];
            let y = graph.add(matmul(false, false), &inputs, &Default::default()).expect("the product fits");
            graph.add_output("y", y);
            cases.push(Case::of_graph("a product with constant weights", graph, &[x]));
        }
    }
    check(&cases, PLAIN);
    check(&cases, WIDE);
}
