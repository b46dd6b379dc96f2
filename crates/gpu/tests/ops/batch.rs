//! Buckets that differ in the outermost extent share kernels: it is an argument, not part of the text.

use precast_ir::op::{
    ArgFn, ArgReduce, Binary, BinaryFn, Broadcast, Concat, Cumulate, CumulateFn, Dequantize, Gather, GatherElements,
    GroupNorm, LayerNorm, Op, Pad, PadFn, Pool, PoolFn, Quantize, Reduce, ReduceFn, Slice, Softmax, Topk, Transpose,
    Unary, UnaryFn,
};
use precast_tensor::{DType, Dim, Tensor};

use crate::host::{Case, numbers, texts};

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

/// Ops on x [n, 8, 6, 6] and further operands.
fn ops(batch: usize) -> Vec<(Op, Vec<Tensor>)> {
    let n = batch as i64;
    let f32s = |shape: &[usize]| numbers(DType::F32, shape, 1, 0.1, 1.0);
    let bytes = |shape: &[usize]| numbers(DType::U8, shape, 1, 0.0, 9.0);
    let slice = Slice { start: dims(&[0, 2, 0, 1]), step: vec![1, 1, 2, 1], size: dims(&[n, 4, 3, 5]) };
    let pool = Pool {
        func: PoolFn::Avg,
        window: vec![2, 2],
        stride: vec![2, 2],
        pad_lo: dims(&[0, 0]),
        pad_hi: dims(&[0, 0]),
        dilation: vec![1, 1],
        output: dims(&[3, 3]),
        count_pad: false,
        p: 2,
    };
    vec![
        (Unary { func: UnaryFn::Exp, alpha: 0.0, beta: 0.0 }.into(), vec![]),
        (Binary { func: BinaryFn::Add }.into(), vec![f32s(&[8, 1, 1])]),
        (Binary { func: BinaryFn::Add }.into(), vec![f32s(&[batch, 1, 1, 6])]),
        (Reduce { func: ReduceFn::Sum, axes: vec![2, 3], keep_dims: false }.into(), vec![]),
        (Reduce { func: ReduceFn::LogSumExp, axes: vec![1], keep_dims: false }.into(), vec![]),
        (ArgReduce { func: ArgFn::Max, axis: 3, keep_dims: false, last: false }.into(), vec![]),
        (Cumulate { func: CumulateFn::Sum, axis: 2, exclusive: false, reverse: false }.into(), vec![]),
        (Softmax { axis: 3, log: false }.into(), vec![]),
        (Softmax { axis: 1, log: false }.into(), vec![]),
        (LayerNorm { axis: 2, epsilon: 1e-5 }.into(), vec![f32s(&[6, 6])]),
        (GroupNorm { groups: 2, epsilon: 1e-5 }.into(), vec![f32s(&[8]), f32s(&[8])]),
        (Gather { axis: 1 }.into(), vec![numbers(DType::I64, &[3], 1, 0.0, 8.0)]),
        (GatherElements { axis: 3 }.into(), vec![numbers(DType::I64, &[batch, 8, 6, 2], 1, 0.0, 6.0)]),
        (Topk { axis: 1, k: 3i64.into(), largest: true }.into(), vec![]),
        (Transpose { perm: vec![0, 2, 3, 1] }.into(), vec![]),
        (Broadcast { shape: dims(&[n, 8, 6, 6]) }.into(), vec![]),
        (slice.into(), vec![]),
        (Concat { axis: 1 }.into(), vec![f32s(&[batch, 4, 6, 6])]),
        (Pad { func: PadFn::Reflect, lo: dims(&[0, 0, 1, 1]), hi: dims(&[0, 0, 2, 2]) }.into(), vec![]),
        (pool.into(), vec![]),
        (
            Quantize { to: DType::U8, axis: 1, block: 0, saturate: true, precision: DType::F32 }.into(),
            vec![f32s(&[8]), bytes(&[8])],
        ),
        (Dequantize { to: DType::F32, axis: 1, block: 0 }.into(), vec![f32s(&[8])]),
    ]
}

fn case(op: Op, others: &[Tensor], batch: usize) -> Case {
    let dtype = if matches!(op, Op::Dequantize(_)) { DType::U8 } else { DType::F32 };
    let x = numbers(dtype, &[batch, 8, 6, 6], 1, 0.1, 1.0);
    Case::new(op, &[&[x], others].concat())
}

#[test]
fn texts_do_not_depend_on_the_batch() {
    for ((op, others), (other_op, other_others)) in ops(2).into_iter().zip(ops(5)) {
        let (case, other) = (case(op, &others, 2), case(other_op, &other_others, 5));
        assert_eq!(texts(&case), texts(&other), "{}", case.name);
        assert_eq!(texts(&case.clone().channels_last()), texts(&other.channels_last()), "{}", case.name);
    }
}
