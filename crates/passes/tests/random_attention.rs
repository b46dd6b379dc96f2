//! Random attentions, as exporters write them, mean the same after every pass and after the pipeline; and the pass that
//! looks for them finds every one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod meaning;

use meaning::Random;
use precast_ir::op::{Binary, BinaryFn, Matmul, Op, Reshape, Select, Slice, Softmax, Transpose, Unary, UnaryFn};
use precast_ir::{Graph, ValueId};
use precast_passes::{CANONICAL, FUSED, PassOptions, run_passes};
use precast_tensor::{DType, Dim, Tensor, Type};

const GRAPHS: u64 = 300;

#[test]
fn attentions_of_every_spelling_are_found_and_keep_their_meaning() {
    for seed in 0..GRAPHS {
        let graph = random_attention(&mut Random(seed * 6151 + 3));
        for pass in CANONICAL.iter().chain(FUSED) {
            let changed = run_passes(&graph, std::slice::from_ref(pass), &PassOptions::default()).unwrap();
            meaning::assert_same(&graph, &changed, format!("seed {seed}, pass {}", pass.name));
        }
        let canonical = run_passes(&graph, CANONICAL, &PassOptions::default()).unwrap();
        let fused = run_passes(&canonical, FUSED, &PassOptions::default()).unwrap();
        meaning::assert_same(&graph, &fused, format!("seed {seed}, pipeline"));
        let has_softmax = fused.nodes().iter().any(|node| matches!(node.op, Op::Softmax(_)));
        assert!(!has_softmax, "seed {seed}: an attention stays apart\n{fused}");
    }
}

/// Projections, heads, scale, mask, softmax, values and back, each in one of the ways that exporters have.
fn random_attention(random: &mut Random) -> Graph {
    let mut graph = Graph::new("attention");
    let [batch, tokens, heads] = std::array::from_fn(|_| 1 + random.next(3) as usize);
    let size = 1 + random.next(4) as usize;
    let model = heads * size;
    let x = graph.add_input("x", Type::new(DType::F32, [batch, tokens, model]));
    let parts = if random.next(2) == 0 {
        let joint = project(&mut graph, random, x, model, 3 * model);
        [0, 1, 2].map(|part| {
            let slice = Slice {
                start: [0, 0, part * model].map(Dim::from).to_vec(),
                step: vec![1; 3],
                size: [batch, tokens, model].map(Dim::from).to_vec(),
            };
            graph.add(slice, &[joint], &Default::default()).unwrap()
        })
    } else {
        [0, 1, 2].map(|_| project(&mut graph, random, x, model, model))
    };
    let scale = Tensor::scalar(0.5f32);
    let is_scaled_before = random.next(3) == 0;
    let is_key_turned = random.next(2) == 0;
    let [q, k, v] = [0, 1, 2].map(|part| {
        let mut value = parts[part];
        if part == 0 && is_scaled_before {
            let factor = graph.add_constant(scale.clone());
            value = graph.add(Binary { func: BinaryFn::Mul }, &[value, factor], &Default::default()).unwrap();
        }
        let shape = [batch, tokens, heads, size].map(Dim::from).to_vec();
        let value = graph.add(Reshape { shape }, &[value], &Default::default()).unwrap();
        let perm = if part == 1 && is_key_turned { vec![0, 2, 3, 1] } else { vec![0, 2, 1, 3] };
        graph.add(Transpose { perm }, &[value], &Default::default()).unwrap()
    });
    let product = Matmul { transpose_a: false, transpose_b: !is_key_turned };
    let mut scores = graph.add(product, &[q, k], &Default::default()).unwrap();
    if !is_scaled_before && random.next(3) > 0 {
        let func = if random.next(2) == 0 { BinaryFn::Mul } else { BinaryFn::Div };
        let factor = graph.add_constant(scale);
        scores = graph.add(Binary { func }, &[scores, factor], &Default::default()).unwrap();
    }
    let masks: [&[usize]; 4] =
        [&[batch, 1, 1, tokens], &[tokens, tokens], &[batch, heads, tokens, tokens], &[1, 1, tokens, tokens]];
    if random.next(2) == 0 {
        let shape = masks[random.next(4) as usize].iter().copied();
        let mask = graph.add_input("mask", Type::new(DType::F32, shape));
        let operands = if random.next(2) == 0 { [scores, mask] } else { [mask, scores] };
        scores = graph.add(Binary { func: BinaryFn::Add }, &operands, &Default::default()).unwrap();
    }
    let mut weights = graph.add(Softmax { axis: 3, log: false }, &[scores], &Default::default()).unwrap();
    if random.next(3) == 0 {
        let isnan = Unary { func: UnaryFn::IsNan, alpha: 0.0, beta: 0.0 };
        let isnan = graph.add(isnan, &[weights], &Default::default()).unwrap();
        let zero = graph.add_constant(Tensor::scalar(0f32));
        weights = graph.add(Select {}, &[isnan, zero, weights], &Default::default()).unwrap();
    }
    let product = Matmul { transpose_a: false, transpose_b: false };
    let result = graph.add(product, &[weights, v], &Default::default()).unwrap();
    let result = graph.add(Transpose { perm: vec![0, 2, 1, 3] }, &[result], &Default::default()).unwrap();
    let shape = [batch, tokens, model].map(Dim::from).to_vec();
    let y = graph.add(Reshape { shape }, &[result], &Default::default()).unwrap();
    graph.add_output("y", y);
    graph
}

/// x·W, sometimes plus a bias.
fn project(graph: &mut Graph, random: &mut Random, x: ValueId, from: usize, to: usize) -> ValueId {
    let weights = random.tensor(&Type::new(DType::F32, [from, to]));
    let weights = graph.add_constant(weights);
    let product = Matmul { transpose_a: false, transpose_b: false };
    let product = graph.add(product, &[x, weights], &Default::default()).unwrap();
    if random.next(3) == 0 {
        return product;
    }
    let bias = random.tensor(&Type::new(DType::F32, [to]));
    let bias = graph.add_constant(bias);
    graph.add(Binary { func: BinaryFn::Add }, &[product, bias], &Default::default()).unwrap()
}
