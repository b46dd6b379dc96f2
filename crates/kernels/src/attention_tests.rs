//! Attention against f64, and against the separate kernels bit for bit.

use super::*;
use crate::gemm::{BatchB, BatchedGemm, BatchedOperand, Epilogue, Packing, gemm_batched, gemm_batched_scratch_len};
use crate::softmax::softmax;
use crate::test_data::{Lcg, assert_close, for_each_exec};

/// Heads beside each other in rows of `heads · size`, as projections leave them.
fn joint(heads: usize, queries: usize, keys: usize, depth: usize, width: usize) -> AttentionShape {
    let rows = |stride: usize| Layout { order: Order::Rows, stride };
    AttentionShape {
        queries,
        keys,
        depth,
        width,
        q: rows(heads * depth),
        // Keys lie as rows; the product reads them as columns.
        k: Layout { order: Order::Columns, stride: heads * depth },
        v: rows(heads * width),
        output: rows(heads * width),
        scale: 0.25,
        divisor: 1.0,
        mask: None,
        clears_nan: false,
        heads: (0..heads)
            .map(|head| Head { q: head * depth, k: head * depth, v: head * width, mask: 0, output: head * width })
            .collect(),
    }
}

/// Index of element (row, column).
fn at(layout: Layout, start: usize, row: usize, column: usize) -> usize {
    match layout.order {
        Order::Rows => start + row * layout.stride + column,
        Order::Columns => start + column * layout.stride + row,
    }
}

fn naive(shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32], mask: Option<&[f32]>, len: usize) -> Vec<f64> {
    let mut output = vec![0.0; len];
    for head in &shape.heads {
        for query in 0..shape.queries {
            let scores: Vec<f64> = (0..shape.keys)
                .map(|key| {
                    let product = |d: usize| {
                        f64::from(q[at(shape.q, head.q, query, d)]) * f64::from(k[at(shape.k, head.k, d, key)])
                    };
                    let sum: f64 = (0..shape.depth).map(product).sum();
                    let added = shape.mask.zip(mask).map_or(0.0, |(layout, mask)| {
                        let column = if layout.is_by_key { key } else { 0 };
                        f64::from(mask[head.mask + query * layout.query_stride + column])
                    });
                    sum * f64::from(shape.scale) / f64::from(shape.divisor) + added
                })
                .collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for column in 0..shape.width {
                let weight = |key: usize| {
                    let weight = (scores[key] - max).exp() / sum;
                    if weight.is_nan() && shape.clears_nan { 0.0 } else { weight }
                };
                let value = |key: usize| f64::from(v[at(shape.v, head.v, key, column)]);
                output[at(shape.output, head.output, query, column)] =
                    (0..shape.keys).map(|key| weight(key) * value(key)).sum();
            }
        }
    }
    output
}

fn check(shape: &AttentionShape, lens: [usize; 5], seed: u64) {
    let mut lcg = Lcg::new(seed);
    let [q, k, v] = [lens[0], lens[1], lens[2]].map(|len| lcg.floats(len));
    let mask = shape.mask.map(|_| lcg.floats(lens[3]));
    let expected = naive(shape, &q, &k, &v, mask.as_deref(), lens[4]);
    let mut first: Vec<(Isa, Vec<f32>)> = Vec::new();
    for_each_exec(|exec| {
        let attention = Attention::new(shape.clone(), lens[4]).expect("heads write apart");
        let mut output = vec![0.0; lens[4]];
        let mut scratch = vec![f32::NAN; attention.scratch_len(exec.isa(), exec.threads())];
        attention.run(*exec, &q, &k, &v, mask.as_deref(), &mut output, &mut scratch);
        assert_close(&output, &expected, 1e-5, 1e-5, "attention");
        match first.iter().find(|(isa, _)| *isa == exec.isa()) {
            Some((_, same)) => assert_eq!(&output, same, "bits with {} threads", exec.threads()),
            None => first.push((exec.isa(), output)),
        }
    });
}

#[test]
fn joint_projections_match_f64() {
    for (heads, queries, keys, depth, width) in [
        (2, 5, 7, 3, 4),
        (1, 1, 1, 1, 1),
        (3, 70, 64, 32, 32),
        (2, 1, 300, 16, 24),
        (1, 45, 600, 8, 40),
        (8, 8, 8, 15, 15),
    ] {
        let shape = joint(heads, queries, keys, depth, width);
        let lens = [queries * heads * depth, keys * heads * depth, keys * heads * width, 0, queries * heads * width];
        check(&shape, lens, 3);
    }
}

#[test]
fn masks_and_divisors_match_f64() {
    let lens = [9 * 6, 11 * 6, 11 * 8, 2 * 9 * 11, 9 * 8];
    for (query_stride, is_by_key, head_stride) in [(11, true, 99), (0, true, 0), (1, false, 9), (0, true, 11)] {
        let mut shape = joint(2, 9, 11, 3, 4);
        shape.mask = Some(MaskLayout { query_stride, is_by_key });
        (shape.scale, shape.divisor) = (1.0, 1.7);
        for (index, head) in shape.heads.iter_mut().enumerate() {
            head.mask = index * head_stride;
        }
        check(&shape, lens, 4);
    }
    let mut shape = joint(2, 9, 11, 3, 4);
    shape.divisor = 3.0;
    check(&shape, lens, 5);
}

#[test]
fn channels_first_operands_match_f64() {
    // [heads, size, positions], as vision models leave them.
    let (heads, positions, depth, width) = (2, 50, 5, 6);
    let columns = Layout { order: Order::Columns, stride: positions };
    let rows = Layout { order: Order::Rows, stride: positions };
    for output in [columns, Layout { order: Order::Rows, stride: width }] {
        let shape = AttentionShape {
            queries: positions,
            keys: positions,
            q: columns,
            k: rows,
            v: columns,
            output,
            heads: (0..heads)
                .map(|head| Head {
                    q: head * depth * positions,
                    k: head * depth * positions,
                    v: head * width * positions,
                    mask: 0,
                    output: head * width * positions,
                })
                .collect(),
            ..joint(heads, positions, positions, depth, width)
        };
        let (narrow, wide) = (heads * depth * positions, heads * width * positions);
        check(&shape, [narrow, narrow, wide, 0, wide], 6);
    }
}

#[test]
fn rows_that_are_masked_whole_are_cleared_where_asked() {
    let mut shape = joint(1, 2, 3, 2, 2);
    shape.mask = Some(MaskLayout { query_stride: 3, is_by_key: true });
    let mask = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
    for_each_exec(|exec| {
        for clears_nan in [false, true] {
            let attention =
                Attention::new(AttentionShape { clears_nan, ..shape.clone() }, 4).expect("heads write apart");
            let mut output = [9.0; 4];
            let mut scratch = vec![0.0; attention.scratch_len(exec.isa(), exec.threads())];
            let (q, k, v) = ([1.0, 2.0, 0.0, 0.0], [1.0; 6], [1.0, 2.0, 7.0, 8.0, 3.0, 4.0]);
            attention.run(*exec, &q, &k, &v, Some(&mask), &mut output, &mut scratch);
            assert_eq!(output[2..], [2.0, 3.0]);
            assert!(if clears_nan { output[..2] == [0.0, 0.0] } else { output[..2].iter().all(|x| x.is_nan()) });
        }
    });
}

#[test]
fn heads_that_write_the_same_place_are_refused() {
    let mut shape = joint(2, 3, 3, 2, 2);
    assert!(Attention::new(shape.clone(), 12).is_some());
    assert!(Attention::new(shape.clone(), 11).is_none());
    shape.heads[1].output = 1;
    assert!(Attention::new(shape, 12).is_none());
}

#[test]
fn bits_are_those_of_the_separate_kernels() {
    let (heads, queries, keys, size) = (3, 37, 290, 16);
    let mut lcg = Lcg::new(9);
    let [q, k, v] = [queries, keys, keys].map(|rows| lcg.floats(heads * rows * size));
    // Heads one behind the other, as the separate kernels want them.
    let shape = AttentionShape {
        q: Layout { order: Order::Rows, stride: size },
        k: Layout { order: Order::Columns, stride: size },
        v: Layout { order: Order::Rows, stride: size },
        output: Layout { order: Order::Rows, stride: size },
        heads: (0..heads)
            .map(|head| Head {
                q: head * queries * size,
                k: head * keys * size,
                v: head * keys * size,
                mask: 0,
                output: head * queries * size,
            })
            .collect(),
        ..joint(heads, queries, keys, size, size)
    };
    for_each_exec(|exec| {
        let operand = |order, stride, rows: usize| BatchedOperand { order, stride, batch_stride: rows * size };
        let mut batched = BatchedGemm {
            batch: heads,
            m: queries,
            n: keys,
            k: size,
            a: operand(Order::Rows, size, queries),
            b: operand(Order::Columns, size, keys),
            c_stride: keys,
            c_batch_stride: queries * keys,
            alpha: 0.25,
        };
        let run = |batched: &BatchedGemm, a: &[f32], b: &[f32], len: usize| {
            let mut scratch = vec![0.0; gemm_batched_scratch_len(exec.isa(), exec.threads(), batched, Packing::Plain)];
            let mut c = vec![0.0; len];
            gemm_batched(*exec, batched, a, BatchB::Plain(b), &mut c, &Epilogue::default(), &mut scratch);
            c
        };
        let scores = run(&batched, &q, &k, heads * queries * keys);
        let mut weights = vec![0.0; scores.len()];
        softmax(exec, heads * queries, keys, &scores, &mut weights);
        batched.a = BatchedOperand { order: Order::Rows, stride: keys, batch_stride: queries * keys };
        batched.b = operand(Order::Rows, size, keys);
        (batched.n, batched.k, batched.alpha) = (size, keys, 1.0);
        (batched.c_stride, batched.c_batch_stride) = (size, queries * size);
        let expected = run(&batched, &weights, &v, heads * queries * size);
        let attention = Attention::new(shape.clone(), expected.len()).expect("heads write apart");
        let mut output = vec![0.0; expected.len()];
        let mut scratch = vec![0.0; attention.scratch_len(exec.isa(), exec.threads())];
        attention.run(*exec, &q, &k, &v, None, &mut output, &mut scratch);
        assert_eq!(output, expected, "{:?}", exec.isa());
    });
}
