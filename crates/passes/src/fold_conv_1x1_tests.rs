//! The sums of §4.1 against reference evaluation in f64, the legality table against draws with one condition broken, and
//! the profit model against the table of §4.4.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use precast_ir::eval::eval_graph;
use precast_ir::op::{Binary, Unary, UnaryFn};
use precast_tensor::{DType, Type};

use super::*;

const POSITIVE_DRAWS: usize = 10_000;
const MIRROR_DRAWS: usize = 2_000;
const PADDED_DRAWS: usize = 3_000;
const NEGATIVE_DRAWS: usize = 1_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }

    fn from(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn is_so(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick(&mut self, list: &[usize]) -> usize {
        list[self.below(list.len())]
    }

    /// Never zero, so that no broken sum hides behind one.
    fn floats(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| (self.below(1000) + 1) as f64 / 500.0 * if self.is_so() { 1.0 } else { -1.0 }).collect()
    }
}

/// Everything that decides a pair.
#[derive(Clone, Debug)]
struct Draw {
    dtype: DType,
    size: Vec<usize>,
    channels: [usize; 3],
    groups: [usize; 2],
    /// Filters of the inner and of the outer one.
    k: [Vec<usize>; 2],
    stride: [Vec<usize>; 2],
    dilation: [Vec<usize>; 2],
    pad: [[Vec<usize>; 2]; 2],
    has_bias: [bool; 2],
    seed: u64,
}

fn divisors(a: usize, b: usize) -> Vec<usize> {
    (1..=a.min(b)).filter(|d| a.is_multiple_of(*d) && b.is_multiple_of(*d)).collect()
}

/// A legal pair whose outer filter is 1, or, mirrored, whose inner filter is.
fn draw(random: &mut Random, is_mirrored: bool) -> Draw {
    let rank = random.pick(&[1, 1, 2, 2, 2, 3]);
    let channels_max = if rank == 3 { 6 } else { random.pick(&[4, 8, 24]) };
    let channels: [usize; 3] = std::array::from_fn(|_| random.from(1, channels_max));
    let groups = [random.pick(&divisors(channels[0], channels[1])), random.pick(&divisors(channels[1], channels[2]))];
    let mut axes = |low: usize, high: usize| -> Vec<usize> { (0..rank).map(|_| random.from(low, high)).collect() };
    let (one, zero) = (vec![1; rank], vec![0; rank]);
    let filter = axes(1, 3);
    let (wide, narrow) = ([axes(1, 3), axes(1, 3)], axes(1, 2));
    let (pads, stretch) = ([axes(0, 3), axes(0, 3)], axes(0, 3));
    let mut draw = Draw {
        dtype: DType::F64,
        size: stretch,
        channels,
        groups,
        k: [filter.clone(), one.clone()],
        stride: wide,
        dilation: [narrow.clone(), axes(1, 2)],
        pad: [pads.clone(), [zero.clone(), zero.clone()]],
        has_bias: [random.is_so(), random.is_so()],
        seed: random.below(1 << 30) as u64,
    };
    if is_mirrored {
        draw.k = [one.clone(), filter.clone()];
        draw.stride[0] = one;
        draw.dilation = [draw.dilation[1].clone(), narrow];
        let is_padded = !draw.has_bias[0];
        draw.pad = [[zero.clone(), zero.clone()], if is_padded { pads } else { [zero.clone(), zero] }];
    }
    // Large enough for one window at least.
    for axis in 0..rank {
        let reach = (draw.k[0][axis] - 1) * draw.dilation[0][axis] + (draw.k[1][axis] - 1) * draw.dilation[1][axis] + 1;
        draw.size[axis] += reach;
    }
    draw
}

impl Draw {
    fn conv(&self, which: usize) -> Conv {
        let dims = |pads: &[usize]| pads.iter().map(|&pad| Dim::from(pad)).collect();
        Conv {
            stride: self.stride[which].clone(),
            pad_lo: dims(&self.pad[which][0]),
            pad_hi: dims(&self.pad[which][1]),
            dilation: self.dilation[which].clone(),
            groups: self.groups[which],
        }
    }

    /// The pair as a Graph, with `between` in the middle. The middle value comes second.
    fn graph(&self, between: impl Fn(&mut Graph, ValueId) -> ValueId) -> (Graph, ValueId) {
        let mut random = Random(self.seed);
        let mut graph = Graph::new("");
        let shape: Vec<usize> = [2, self.channels[0]].into_iter().chain(self.size.iter().copied()).collect();
        let mut value = graph.add_input("x", Type::new(self.dtype, shape));
        let mut middle = value;
        for which in 0..2 {
            let (c, o) = (self.channels[which], self.channels[which + 1]);
            let shape: Vec<usize> = [o, c / self.groups[which]].into_iter().chain(self.k[which].clone()).collect();
            let elements = random.floats(shape.iter().product());
            let mut operands = vec![value];
            operands.push(graph.add_constant(Tensor::from_f64(self.dtype, shape, &elements, true).unwrap()));
            if self.has_bias[which] {
                let elements = random.floats(o);
                operands.push(graph.add_constant(Tensor::from_f64(self.dtype, [o], &elements, true).unwrap()));
            }
            value = graph.add(self.conv(which), &operands, &Default::default()).unwrap();
            if which == 0 {
                middle = value;
                value = between(&mut graph, value);
            }
        }
        graph.add_output("y", value);
        (graph, middle)
    }

    fn input(&self) -> Tensor {
        let shape: Vec<usize> = [2, self.channels[0]].into_iter().chain(self.size.iter().copied()).collect();
        let elements = Random(self.seed ^ 77).floats(shape.iter().product());
        Tensor::from_f64(self.dtype, shape, &elements, true).unwrap()
    }
}

fn plain(draw: &Draw) -> Graph {
    draw.graph(|_, value| value).0
}

fn pair_of(graph: &Graph) -> Pair<'_> {
    let outer = graph.nodes().last().unwrap();
    candidate(graph, graph, outer, &outer.inputs).unwrap().unwrap_or_else(|reason| panic!("{reason}"))
}

/// The one convolution of a pair, whatever it costs.
fn joined(graph: &Graph, op: Conv) -> Option<Graph> {
    let product = multiply(&pair_of(graph), op.groups)?;
    let mut joined = Graph::new("");
    let x = joined.add_input("x", graph.ty(graph.inputs()[0]).clone());
    let mut operands = vec![x, joined.add_constant(product.filter)];
    operands.extend(product.bias.map(|bias| joined.add_constant(bias)));
    let y = joined.add(op, &operands, &Default::default()).ok()?;
    joined.add_output("y", y);
    Some(joined)
}

fn is_equal(draw: &Draw, graph: &Graph, joined: &Graph) -> bool {
    let expected = eval_graph(graph, &[draw.input()]).unwrap();
    let found = eval_graph(joined, &[draw.input()]).unwrap();
    let size = expected[0].to_f64_vec().iter().fold(1.0, |size: f64, element| size.max(element.abs()));
    expected[0].type_() == found[0].type_()
        && expected[0].to_f64_vec().iter().zip(found[0].to_f64_vec()).all(|(a, b)| (a - b).abs() <= 1e-11 * size)
}

fn reasons(graph: &Graph, costs: &StepCosts) -> Vec<Reason> {
    let mut log = Log::default();
    fold_conv_1x1(graph, costs, &mut log).unwrap();
    crate::log::PassReport::of(PASS.name, log).refused.into_iter().map(|(reason, _)| reason).collect()
}

#[test]
fn every_legal_pair_is_one_convolution() {
    let mut random = Random(1);
    for _ in 0..POSITIVE_DRAWS {
        let draw = draw(&mut random, false);
        let graph = plain(&draw);
        let op = legal(&pair_of(&graph)).unwrap_or_else(|reason| panic!("{reason}: {draw:?}"));
        assert!(is_equal(&draw, &graph, &joined(&graph, op).unwrap()), "{draw:?}");
    }
}

#[test]
fn a_1x1_that_comes_first_folds_too() {
    let mut random = Random(2);
    for _ in 0..MIRROR_DRAWS {
        let draw = draw(&mut random, true);
        let graph = plain(&draw);
        let op = legal(&pair_of(&graph)).unwrap_or_else(|reason| panic!("{reason}: {draw:?}"));
        assert!(is_equal(&draw, &graph, &joined(&graph, op).unwrap()), "{draw:?}");
    }
}

#[test]
fn outer_padding_folds_where_nothing_real_lies_under_it_and_nowhere_else() {
    let mut random = Random(3);
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..PADDED_DRAWS {
        let mut draw = draw(&mut random, false);
        draw.pad[1] = std::array::from_fn(|_| draw.size.iter().map(|_| random.below(3)).collect());
        draw.has_bias[0] = random.below(4) == 0;
        if draw.pad[1].iter().flatten().all(|&pad| pad == 0) {
            continue;
        }
        let graph = plain(&draw);
        let pair = pair_of(&graph);
        match legal(&pair) {
            Ok(op) => {
                accepted += 1;
                assert!(is_equal(&draw, &graph, &joined(&graph, op).unwrap()), "{draw:?}");
            }
            Err(reason) => {
                rejected += 1;
                assert_eq!(reason, OUTER_PADDING);
                let (inner, outer) = (draw.conv(0), draw.conv(1));
                let pads = |inner: &[Dim], outer: &[Dim]| -> Vec<Dim> {
                    let each = inner.iter().zip(outer).zip(&draw.stride[0]);
                    each.map(|((p, q), &stride)| p + q * stride as i64).collect()
                };
                let forced = Conv {
                    stride: draw.stride[0].iter().zip(&draw.stride[1]).map(|(a, b)| a * b).collect(),
                    pad_lo: pads(&inner.pad_lo, &outer.pad_lo),
                    pad_hi: pads(&inner.pad_hi, &outer.pad_hi),
                    dilation: inner.dilation,
                    groups: gcd(draw.groups[0], draw.groups[1]),
                };
                assert!(!is_equal(&draw, &graph, &joined(&graph, forced).unwrap()), "idle guard: {draw:?}");
            }
        }
    }
    assert!(accepted > 300 && rejected > 300, "{accepted} accepted, {rejected} rejected");
}

/// Refused with this reason in every draw, and wrong in at least one if it is done all the same.
fn check_refused(
    reason: Reason,
    seed: u64,
    is_mirrored: bool,
    change: impl Fn(&mut Draw),
    between: impl Fn(&mut Graph, ValueId) -> ValueId,
    force: impl Fn(&Draw, &Graph) -> Option<Graph>,
) {
    let mut random = Random(seed);
    let mut wrong = 0;
    for _ in 0..NEGATIVE_DRAWS {
        let mut draw = draw(&mut random, is_mirrored);
        change(&mut draw);
        let (graph, _) = draw.graph(&between);
        assert_eq!(reasons(&graph, &StepCosts::CORES), [reason], "{draw:?}");
        wrong += usize::from(force(&draw, &graph).is_none_or(|forced| !is_equal(&draw, &graph, &forced)));
    }
    assert!(wrong > 0, "the guard {reason} is idle");
}

fn same(_: &mut Graph, value: ValueId) -> ValueId {
    value
}

/// The convolution that a pair would be if nothing stood in the way.
fn forced_op(draw: &Draw) -> Conv {
    let stride = draw.stride[0].iter().zip(&draw.stride[1]).map(|(a, b)| a * b).collect();
    Conv { stride, groups: gcd(draw.groups[0], draw.groups[1]), ..draw.conv(0) }
}

#[test]
fn an_activation_between_is_refused() {
    let relu = |graph: &mut Graph, value| {
        graph.add(Unary { func: UnaryFn::Relu, alpha: 0.0, beta: 0.0 }, &[value], &Default::default()).unwrap()
    };
    let force = |draw: &Draw, _: &Graph| joined(&plain(draw), forced_op(draw));
    check_refused(BETWEEN_NOT_BIAS, 4, false, |_| {}, relu, force);
}

#[test]
fn a_residual_between_is_refused() {
    let twice = |graph: &mut Graph, value| {
        graph.add(Binary { func: BinaryFn::Add }, &[value, value], &Default::default()).unwrap()
    };
    let force = |draw: &Draw, _: &Graph| joined(&plain(draw), forced_op(draw));
    check_refused(BETWEEN_NOT_BIAS, 5, false, |_| {}, twice, force);
}

#[test]
fn two_wide_filters_are_refused() {
    let change = |draw: &mut Draw| {
        for (axis, size) in draw.size.iter_mut().enumerate() {
            draw.k[0][axis] = 2;
            draw.k[1][axis] = 2;
            *size += 16;
        }
    };
    check_refused(OUTER_FILTER_NOT_1, 6, false, change, same, |draw, graph| {
        let filter = pair_of(graph).outer.filter.unwrap().clone();
        // As if the outer filter were its first element.
        let mut narrow = draw.clone();
        narrow.k[1] = vec![1; draw.size.len()];
        assert_ne!(filter.shape()[2..], narrow.k[1][..]);
        joined(&plain(&narrow), forced_op(draw))
    });
}

#[test]
fn outer_padding_over_a_bias_is_refused() {
    let change = |draw: &mut Draw| {
        draw.has_bias[0] = true;
        draw.stride[1] = vec![1; draw.size.len()];
        draw.pad[1][0] = vec![1; draw.size.len()];
    };
    check_refused(OUTER_PADDING, 7, false, change, same, |draw, graph| {
        let mut op = forced_op(draw);
        for (pad, &stride) in op.pad_lo.iter_mut().zip(&draw.stride[0]) {
            *pad = &*pad + stride as i64;
        }
        joined(graph, op)
    });
}

#[test]
fn a_1x1_that_comes_first_and_strides_or_pads_is_refused() {
    let change = |draw: &mut Draw| {
        // Not 1 on every axis, or it would be the other form.
        draw.k[1] = vec![2; draw.size.len()];
        draw.stride[0] = vec![2; draw.size.len()];
        draw.size.iter_mut().for_each(|size| *size += 16);
    };
    check_refused(INNER_STRIDE_OR_PADDING, 8, true, change, same, |draw, graph| {
        joined(graph, Conv { groups: gcd(draw.groups[0], draw.groups[1]), ..draw.conv(1) })
    });
}

#[test]
fn padding_after_a_biased_1x1_is_refused() {
    let change = |draw: &mut Draw| {
        draw.k[1] = vec![2; draw.size.len()];
        draw.has_bias[0] = true;
        draw.pad[1][0] = vec![1; draw.size.len()];
        draw.size.iter_mut().for_each(|size| *size += 4);
    };
    check_refused(OUTER_PADDING, 9, true, change, same, |draw, graph| {
        joined(graph, Conv { groups: gcd(draw.groups[0], draw.groups[1]), ..draw.conv(1) })
    });
}

#[test]
fn products_out_of_range_are_refused() {
    for element in [300.0, 1e-5] {
        let mut graph = Graph::new("");
        let mut value = graph.add_input("x", Type::new(DType::F16, [1usize, 1, 4]));
        for _ in 0..2 {
            let filter = Tensor::from_f64(DType::F16, [1usize, 1, 1], &[element], true).unwrap();
            let filter = graph.add_constant(filter);
            let conv = Conv {
                stride: vec![1],
                pad_lo: vec![Dim::ZERO],
                pad_hi: vec![Dim::ZERO],
                dilation: vec![1],
                groups: 1,
            };
            value = graph.add(conv, &[value, filter], &Default::default()).unwrap();
        }
        graph.add_output("y", value);
        assert_eq!(reasons(&graph, &StepCosts::CORES), [RANGE], "{element}");
    }
}

#[test]
fn pairs_that_something_else_reads_or_computes_are_refused() {
    let mut random = Random(10);
    for _ in 0..NEGATIVE_DRAWS {
        let draw = draw(&mut random, false);
        let (mut graph, middle) = draw.graph(same);
        graph.add_output("middle", middle);
        assert_eq!(reasons(&graph, &StepCosts::CORES), [MULTIPLE_USES], "{draw:?}");
    }
    let mut graph = Graph::new("");
    let ty = Type::new(DType::F32, [1usize, 1, 4]);
    let (x, filter) = (graph.add_input("x", ty), graph.add_input("w", Type::new(DType::F32, [1usize, 1, 1])));
    let conv = Conv { stride: vec![1], pad_lo: vec![Dim::ZERO], pad_hi: vec![Dim::ZERO], dilation: vec![1], groups: 1 };
    let middle = graph.add(conv.clone(), &[x, filter], &Default::default()).unwrap();
    let y = graph.add(conv, &[middle, filter], &Default::default()).unwrap();
    graph.add_output("y", y);
    assert_eq!(reasons(&graph, &StepCosts::CORES), [WEIGHTS_NOT_CONSTANT]);
}

/// A row of the table of §4.4: filter, channels, groups, strides, output size and the CPU-like and GPU-like ratios of times.
type ProfitRow = (usize, [usize; 3], [usize; 2], [usize; 2], usize, [f64; 2]);

#[test]
fn the_profit_model_gives_the_ratios_of_the_specification() {
    let rows: [ProfitRow; 10] = [
        (3, [64, 64, 256], [1, 1], [1, 1], 56, [2.51, 0.92]),
        (3, [256, 256, 64], [1, 1], [1, 1], 28, [0.24, 0.34]),
        (3, [64, 256, 64], [1, 1], [1, 1], 56, [0.22, 0.30]),
        (3, [128, 128, 128], [1, 1], [1, 1], 28, [0.89, 0.56]),
        (3, [128, 128, 128], [1, 1], [1, 2], 28, [0.23, 0.34]),
        (1, [256, 64, 256], [1, 1], [1, 1], 56, [1.50, 0.66]),
        (1, [64, 256, 64], [1, 1], [1, 1], 56, [0.20, 0.35]),
        (3, [128, 128, 128], [128, 1], [1, 1], 80, [4.28, 1.08]),
        (3, [128, 128, 128], [128, 1], [2, 1], 20, [2.28, 0.59]),
        (3, [256, 256, 256], [4, 8], [1, 1], 28, [0.81, 0.53]),
    ];
    let cpu_like = StepCosts { dense_per_ns: 1000, depthwise_per_ns: 500, bytes_per_ns: 60, ..StepCosts::CORES };
    let gpu_like = StepCosts {
        dense_per_ns: 100_000,
        depthwise_per_ns: 10_000,
        bytes_per_ns: 1000,
        element_bytes: Some(2),
        step_ns: 2000,
        multiplies_blocks: false,
        streamed_rows: 0,
        streamed_short_rows: 0,
        joins_depthwise: false,
    };
    for (k, channels, groups, strides, output, expected) in rows {
        let size = output * strides[0] * strides[1];
        let draw = Draw {
            dtype: DType::F32,
            size: vec![size; 2],
            channels,
            groups,
            k: [vec![k; 2], vec![1; 2]],
            stride: strides.map(|stride| vec![stride; 2]),
            dilation: [vec![1; 2], vec![1; 2]],
            pad: [[vec![k / 2; 2], vec![k / 2; 2]], [vec![0; 2], vec![0; 2]]],
            has_bias: [false, false],
            seed: 1,
        };
        let graph = at_batch_one(&draw);
        let pair = pair_of(&graph);
        for (costs, expected) in [&cpu_like, &gpu_like].into_iter().zip(expected) {
            let times = times(&pair, &legal(&pair).unwrap(), costs).unwrap();
            let ratio = times.fused / times.separate;
            let is_close = (ratio - expected).abs() <= 0.02 * expected.max(1.0);
            assert!(is_close, "{ratio} where {expected} is expected: {draw:?}");
            assert_eq!(reasons(&graph, costs).is_empty(), expected < 1.0, "{draw:?}");
        }
        assert_eq!(reasons(&graph, &StepCosts::CORES).is_empty(), expected[0] < 1.0, "{draw:?}");
    }
}

#[test]
fn a_narrow_middle_stays_where_its_product_is_more_work() {
    let draw = Draw {
        dtype: DType::F32,
        size: vec![112; 2],
        channels: [32, 16, 96],
        groups: [1, 1],
        k: [vec![1; 2], vec![1; 2]],
        stride: [vec![1; 2], vec![1; 2]],
        dilation: [vec![1; 2], vec![1; 2]],
        pad: [[vec![0; 2], vec![0; 2]], [vec![0; 2], vec![0; 2]]],
        has_bias: [true, true],
        seed: 1,
    };
    assert_eq!(reasons(&at_batch_one(&draw), &StepCosts::CORES), [NOT_PROFITABLE]);
}

fn at_batch_one(draw: &Draw) -> Graph {
    let graph = plain(draw);
    let mut ty = graph.ty(graph.inputs()[0]).clone();
    ty.dims[0] = Dim::ONE;
    graph.bind(&Default::default(), &[(0, ty)].into()).unwrap()
}
