//! Products, convolutions and attentions on the host, against reference evaluation.

mod host;

use host::{Case, INDIRECT, LARGE, PLAIN, WIDE, check, check_with, numbers};
use precast_gpu::kernel::Arch;
use precast_gpu::tactics::{Tactic, candidates, lower_with};
use precast_ir::op::{
    Binary, BinaryFn, Conv, ConvTranspose, Matmul, Op, Reshape, Slice, Softmax, Transpose, Unary, UnaryFn,
};
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
    let arch = Arch { shared_bytes_max: LARGE.shared_bytes_max, ..host::arch(32) };
    let node = case.graph.nodes().last().expect("a case has a node");
    let site = precast_gpu::site::Site { graph: &case.graph, node, arch: &arch, layouts: &case.layouts };
    candidates(&site)
}

/// Every tactic of every case.
fn check_tactics(cases: &[Case]) {
    let (mut all, mut chosen) = (Vec::new(), Vec::new());
    for case in cases {
        let tactics = tactics(case);
        let names: std::collections::BTreeSet<String> = tactics.iter().map(Tactic::name).collect();
        assert_eq!(names.len(), tactics.len(), "{}: two tactics have one name", case.name);
        assert!(tactics.len() > 2, "{}: {} tactics", case.name, tactics.len());
        // One number of splits by each way is enough.
        for tactic in tactics.into_iter().filter(|tactic| matches!(tactic.splits, 1 | 4)) {
            let mut case = case.clone();
            case.name = format!("{} by {}", case.name, tactic.name());
            all.push(case);
            chosen.push(tactic);
        }
    }
    // Cases are lowered in order, one node each.
    let next = std::cell::Cell::new(0);
    check_with(&all, LARGE, &|site| {
        let tactic = &chosen[next.replace(next.get() + 1)];
        Ok(lower_with(site, tactic))
    });
}

#[test]
fn products_of_odd_sizes() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32, DType::U8] {
        for sizes in [[1, 1, 1], [9, 17, 5], [3, 4, 0], [70, 66, 130], [16, 40, 256]] {
            let is_float = matches!(dtype, DType::F16 | DType::F32);
            let turns = [(false, false), (true, true), (false, true), (true, false)];
            for (transpose_a, transpose_b) in turns.into_iter().take(if is_float { 4 } else { 2 }) {
                cases.push(product(dtype, sizes, transpose_a, transpose_b));
            }
        }
    }
    check(&cases, PLAIN);
}

#[test]
fn every_tactic_of_a_product() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        cases.push(product(dtype, [40, 72, 328], false, false));
        cases.push(product(dtype, [72, 40, 323], true, true));
    }
    cases.push(product(DType::BF16, [40, 136, 264], false, true));
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
        (vec![2, 3, 11, 12], vec![9, 3, 7, 7], conv(2, [3, 3], 1, 1, 2)),
        (vec![1, 4, 6, 10], vec![8, 2, 5, 5], conv(2, [2, 2], 1, 2, 2)),
        (vec![1, 8, 7, 7], vec![16, 8, 1, 1], conv(1, [0, 0], 1, 1, 2)),
        (vec![1, 16, 7, 6], vec![24, 16, 3, 3], conv(1, [1, 2], 1, 1, 2)),
        (vec![2, 16, 9, 9], vec![8, 16, 1, 1], conv(2, [0, 0], 1, 1, 2)),
        (vec![1, 12, 11, 8], vec![10, 6, 3, 2], conv(1, [2, 1], 2, 2, 2)),
        (vec![1, 32, 6, 6], vec![16, 8, 3, 3], conv(1, [1, 1], 1, 4, 2)),
        (vec![2, 6, 20], vec![7, 6, 5], conv(2, [2, 2], 1, 1, 1)),
        (vec![1, 4, 5, 6, 7], vec![6, 4, 2, 3, 3], conv(1, [1, 1], 1, 1, 3)),
        (vec![2, 16, 9, 8], vec![16, 1, 3, 3], conv(2, [1, 1], 1, 16, 2)),
        (vec![1, 6, 9, 8], vec![12, 1, 5, 3], conv(1, [2, 1], 1, 6, 2)),
        (vec![2, 3, 16, 24], vec![24, 3, 8, 8], conv(8, [0, 0], 1, 1, 2)),
        (vec![1, 3, 12, 8], vec![16, 3, 4, 4], conv(4, [4, 4], 1, 1, 2)),
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

/// A convolution, channels last, of channel counts that kernels take as parameters.
fn conv_of_whole_channels(x: [usize; 4], out_channels: usize, kernel: usize, stride: usize) -> Case {
    let filter = random(DType::F16, &[out_channels, x[1], kernel, kernel], 2);
    let bias = random(DType::F16, &[out_channels], 3);
    let op = conv(stride, [kernel / 2; 2], 1, 1, 2);
    constant_conv(op, &random(DType::F16, &x, 1), filter, Some(bias)).channels_last()
}

#[test]
fn convolutions_of_whole_channels_take_their_sizes_as_parameters() {
    check_tactics(&[
        conv_of_whole_channels([2, 64, 3, 5], 128, 3, 1),
        conv_of_whole_channels([1, 128, 5, 4], 64, 1, 1),
    ]);
    let others = [
        conv_of_whole_channels([1, 128, 6, 7], 64, 3, 2),
        conv_of_whole_channels([3, 64, 9, 4], 64, 1, 2),
        conv_of_whole_channels([1, 192, 1, 3], 128, 3, 1),
        conv_of_whole_channels([2, 64, 1, 1], 192, 1, 1),
    ];
    check(&others, LARGE);
    check(&others, INDIRECT);
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
    check_tactics(&[product(DType::F16, [5, 30, 72], false, true), product(DType::F32, [3, 9, 72], false, true)]);
}

#[test]
fn transposed_convolutions_in_both_orders() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for (x, filter, stride, pad, dilation, groups) in [
            (vec![2, 4, 5, 6], vec![4, 3, 3, 3], 2, 1, 1, 1),
            (vec![1, 6, 4, 5], vec![6, 2, 2, 3], 1, 0, 2, 3),
            (vec![1, 5, 9], vec![5, 4, 4], 3, 1, 1, 1),
        ] {
            let rank = x.len() - 2;
            let op = ConvTranspose {
                stride: vec![stride; rank],
                pad_lo: vec![Dim::from(pad); rank],
                pad_hi: vec![Dim::from(pad); rank],
                output_pad: vec![stride - 1; rank],
                dilation: vec![dilation; rank],
                groups,
            };
            let bias = random(dtype, &[filter[1] * groups], 3);
            let case = Case::new(op, &[random(dtype, &x, 1), random(dtype, &filter, 2), bias]);
            cases.push(case.clone().channels_last());
            cases.push(case);
        }
    }
    check(&cases, PLAIN);
}

fn add(graph: &mut Graph, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
    graph.add(op, inputs, &Default::default()).expect("the node fits")
}

fn unary(func: UnaryFn) -> Unary {
    Unary { func, alpha: 1.0, beta: 0.0 }
}

fn binary(func: BinaryFn) -> Binary {
    Binary { func }
}

#[test]
fn epilogues_are_part_of_the_kernel() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        for (m, n) in [(40, 24), (7, 33)] {
            let k = 70;
            let inputs = [
                random(dtype, &[2, m, k], 1),
                random(dtype, &[k, n], 2),
                random(dtype, &[n], 3),
                random(dtype, &[2, m, n], 4),
                random(dtype, &[2, 1, 1], 5),
            ];
            let mut body = Graph::new("");
            let v: Vec<ValueId> = inputs.iter().map(|input| body.add_input("", input.type_())).collect();
            let x = add(&mut body, matmul(false, false), &v[..2]);
            let x = add(&mut body, binary(BinaryFn::Add), &[x, v[2]]);
            let x = add(&mut body, unary(UnaryFn::GeluErf), &[x]);
            let x = add(&mut body, binary(BinaryFn::Add), &[v[3], x]);
            let half = body.add_constant(host::of_values(dtype, &[1], &[0.5]));
            let x = add(&mut body, binary(BinaryFn::Mul), &[x, half]);
            let x = add(&mut body, binary(BinaryFn::Mul), &[x, v[4]]);
            body.add_output("", x);
            cases.push(Case::fused("a product, bias, gelu, residual and factors", body, &inputs).with_slack(2e-3));
        }
        let inputs = [
            random(dtype, &[2, 16, 5, 6], 1),
            random(dtype, &[24, 16, 3, 3], 2),
            random(dtype, &[24], 3),
            random(dtype, &[2, 24, 5, 6], 4),
            random(dtype, &[24, 1, 1], 5),
        ];
        let mut body = Graph::new("");
        let v: Vec<ValueId> = inputs.iter().map(|input| body.add_input("", input.type_())).collect();
        let x = add(&mut body, conv(1, [1, 1], 1, 1, 2), &v[..3]);
        let x = add(&mut body, binary(BinaryFn::Mul), &[x, v[4]]);
        let x = add(&mut body, binary(BinaryFn::Add), &[x, v[3]]);
        let x = add(&mut body, unary(UnaryFn::Relu), &[x]);
        body.add_output("", x);
        let case = Case::fused("a convolution, scale, residual and relu", body, &inputs).with_slack(2e-3);
        cases.push(case.clone());
        cases.push(case.clone().channels_last());
        cases.push(case.channels_last_values(&[5]));
    }
    check(&cases, PLAIN);
    check(&cases, WIDE);
    check_tactics(&cases[..1]);
    check_tactics(&cases[3..4]);
}

/// softmax(q·kᵀ / 4 + mask)·v.
fn attention(dtype: DType, batch: &[usize], [queries, keys, depth, width]: [usize; 4], mask: Option<&[usize]>) -> Case {
    let of = |rows: usize, columns: usize, seed: u64| {
        let shape: Vec<usize> = batch.iter().copied().chain([rows, columns]).collect();
        random(dtype, &shape, seed)
    };
    let mut inputs = vec![of(queries, depth, 1), of(keys, depth, 2), of(keys, width, 3)];
    inputs.extend(mask.map(|shape| numbers(dtype, shape, 4, -3.0, 0.0)));
    let mut body = Graph::new("");
    let v: Vec<ValueId> = inputs.iter().map(|input| body.add_input("", input.type_())).collect();
    let x = add(&mut body, matmul(false, true), &v[..2]);
    let scale = body.add_constant(host::of_values(dtype, &[1], &[0.25]));
    let mut x = add(&mut body, binary(BinaryFn::Mul), &[x, scale]);
    if v.len() > 3 {
        x = add(&mut body, binary(BinaryFn::Add), &[x, v[3]]);
    }
    let axis = batch.len() + 1;
    let x = add(&mut body, Softmax { axis, log: false }, &[x]);
    let x = add(&mut body, matmul(false, false), &[x, v[2]]);
    body.add_output("", x);
    let slack = if dtype == DType::BF16 { 2e-2 } else { 4e-3 };
    let name = format!("attention {dtype:?} of {batch:?} {queries} {keys} {depth} {width} {mask:?}");
    Case::fused(&name, body, &inputs).with_slack(slack)
}

#[test]
fn attentions_of_many_sizes() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        cases.push(attention(dtype, &[2], [17, 40, 32, 32], None));
        cases.push(attention(dtype, &[1, 3], [5, 130, 64, 64], Some(&[1, 1, 1, 130])));
        cases.push(attention(dtype, &[2, 2], [70, 33, 40, 24], Some(&[2, 1, 70, 33])));
        cases.push(attention(dtype, &[1], [3, 9, 7, 5], None));
        cases.push(attention(dtype, &[1], [16, 50, 128, 80], None));
    }
    check(&cases, PLAIN);
    check(&cases[..10], WIDE);
}

#[test]
fn every_tactic_of_an_attention() {
    let mask: &[usize] = &[2, 1, 1, 150];
    check_tactics(&[attention(DType::F16, &[2, 1], [37, 150, 24, 48], Some(mask))]);
}

/// Heads of a joint projection [batch, tokens, 3 · heads · depth], joined again after the attention.
fn joint_attention(dtype: DType, [batch, tokens, heads, depth]: [usize; 4]) -> Case {
    let projection = random(dtype, &[batch, tokens, 3 * heads * depth], 1);
    let mut body = Graph::new("");
    let joint = body.add_input("", projection.type_());
    let dims = |list: &[usize]| list.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>();
    let mut part = |which: usize, perm: [usize; 4]| {
        let slice = Slice {
            start: dims(&[0, 0, which * heads * depth]),
            step: vec![1; 3],
            size: dims(&[batch, tokens, heads * depth]),
        };
        let x = add(&mut body, slice, &[joint]);
        let x = add(&mut body, Reshape { shape: dims(&[batch, tokens, heads, depth]) }, &[x]);
        add(&mut body, Transpose { perm: perm.to_vec() }, &[x])
    };
    let (q, k, v) = (part(0, [0, 2, 1, 3]), part(1, [0, 2, 3, 1]), part(2, [0, 2, 1, 3]));
    let x = add(&mut body, matmul(false, false), &[q, k]);
    let divisor = body.add_constant(host::of_values(dtype, &[1], &[4.0]));
    let x = add(&mut body, binary(BinaryFn::Div), &[x, divisor]);
    let x = add(&mut body, Softmax { axis: 3, log: false }, &[x]);
    let x = add(&mut body, matmul(false, false), &[x, v]);
    let x = add(&mut body, Transpose { perm: vec![0, 2, 1, 3] }, &[x]);
    let x = add(&mut body, Reshape { shape: dims(&[batch, tokens, heads * depth]) }, &[x]);
    body.add_output("", x);
    Case::fused("attention of a joint projection", body, &[projection]).with_slack(4e-3)
}

#[test]
fn attentions_read_the_parts_of_a_projection() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::F32] {
        cases.push(joint_attention(dtype, [2, 20, 3, 32]));
        cases.push(joint_attention(dtype, [1, 35, 2, 20]));
    }
    check(&cases, PLAIN);
    check(&cases, INDIRECT);
    check(&cases, WIDE);
}

/// The texts of a case by its tactic of this name.
fn texts(case: &Case, name: &str) -> Vec<String> {
    let arch = Arch { shared_bytes_max: LARGE.shared_bytes_max, ..host::arch(32) };
    let node = case.graph.nodes().last().expect("a case has a node");
    let site = precast_gpu::site::Site { graph: &case.graph, node, arch: &arch, layouts: &case.layouts };
    let tactic = candidates(&site).into_iter().find(|tactic| tactic.name() == name).expect("the tactic is there");
    let lowered = lower_with(&site, &tactic).expect("the tactic has kernels");
    lowered.launches.into_iter().map(|launch| launch.text).collect()
}

#[test]
fn buckets_share_their_kernels() {
    let rows = |m: usize| product(DType::F16, [m, 64, 256], false, false);
    let images = |n: usize| {
        let (x, filter) = (random(DType::F16, &[n, 16, 6, 6], 1), random(DType::F16, &[32, 16, 3, 3], 2));
        constant_conv(conv(1, [1, 1], 1, 1, 2), &x, filter, None).channels_last()
    };
    for name in ["mma.64x64x64", "mma.32x32x64k4.cluster2", "mma.64x32x64k2.split2"] {
        assert_eq!(texts(&rows(40), name), texts(&rows(130), name));
        assert_eq!(texts(&images(1), name), texts(&images(7), name));
    }
}

/// A convolution of whole channels with what follows it in a network: another operand that is added, and a relu.
fn conv_with_end(x: [usize; 4], out_channels: usize, kernel: usize, adds: bool, has_relu: bool) -> Case {
    let dtype = DType::F16;
    let inputs = [
        random(dtype, &x, 1),
        random(dtype, &[out_channels, x[1], kernel, kernel], 2),
        random(dtype, &[out_channels], 3),
        random(dtype, &[x[0], out_channels, x[2], x[3]], 4),
    ];
    let mut body = Graph::new("");
    let v: Vec<ValueId> = inputs.iter().map(|input| body.add_input("", input.type_())).collect();
    let mut y = add(&mut body, conv(1, [kernel / 2; 2], 1, 1, 2), &v[..3]);
    if adds {
        y = add(&mut body, binary(BinaryFn::Add), &[y, v[3]]);
    }
    if has_relu {
        y = add(&mut body, unary(UnaryFn::Relu), &[y]);
    }
    body.add_output("", y);
    Case::fused("a convolution, residual and relu", body, &inputs).with_slack(2e-3).channels_last()
}

#[test]
fn a_relu_of_a_convolution_is_a_parameter() {
    let ends = [(false, false), (false, true), (true, true)];
    let cases: Vec<Case> = [([2, 64, 5, 3], 1), ([1, 64, 4, 6], 3)]
        .into_iter()
        .flat_map(|(x, kernel)| ends.map(|(adds, has_relu)| conv_with_end(x, 128, kernel, adds, has_relu)))
        .collect();
    check(&cases, LARGE);
    check_tactics(&cases[1..3]);
    for (first, name) in [(0, "mma.64x64x64"), (3, "mma.32x32x64k4.cluster2")] {
        let text = texts(&cases[first], name);
        assert_eq!(texts(&cases[first + 1], name), text, "{name}");
        assert_ne!(texts(&cases[first + 2], name), text, "{name}");
    }
}

#[test]
fn convolutions_of_other_sizes_share_their_kernels() {
    for kernel in [1, 3] {
        let one = conv_of_whole_channels([1, 128, 8, 6], 128, kernel, 1);
        for stride in [1, 2] {
            let other = conv_of_whole_channels([4, 256, 5, 9], 64, kernel, stride);
            for name in ["mma.64x64x64", "mma.32x32x64k4.cluster2", "wgmma.128x128x64s6"] {
                assert_eq!(texts(&one, name), texts(&other, name), "{name}");
            }
        }
        let deep = conv_of_whole_channels([1, 256, 8, 6], 64, kernel, 1);
        let [two, four] = ["mma.32x32x64k4.cluster2", "mma.32x32x64k4.cluster4"].map(|name| texts(&deep, name));
        assert_eq!(two, four, "the launch says how many blocks a cluster has");
    }
    let small = |channels: usize| conv_of_whole_channels([1, channels, 8, 6], 64, 3, 1);
    assert_ne!(texts(&small(16), "mma.64x64x64"), texts(&small(32), "mma.64x64x64"), "small ones have their own");
}
