use super::*;
use crate::op::{Nms, ScatterElements, ScatterFn, ScatterNd};
use crate::ops::test_tensor::{bools, eval, eval_error, f32s, floats, i64s, infer, ints};

const NAN: f64 = f64::NAN;

#[test]
fn gather_takes_slices_along_its_axis() {
    let x = i64s(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let indices = ints(DType::I32, &[2], &[-1, 0]);
    assert_eq!(eval(Gather { axis: 1 }, &[x.clone(), indices]), i64s(&[2, 2], &[3, 1, 6, 4]));
    assert_eq!(eval(Gather { axis: 0 }, &[x.clone(), i64s(&[], &[1])]), i64s(&[3], &[4, 5, 6]));
    assert_eq!(eval(Gather { axis: 0 }, &[x.clone(), i64s(&[0], &[])]), i64s(&[0, 3], &[]));
    let error = eval_error(Gather { axis: 1 }, &[x, i64s(&[], &[3])]);
    assert_eq!(error, "gather: index 3 is out of range for extent 3");
}

#[test]
fn gather_types_put_the_indices_in_place_of_the_axis() {
    assert_eq!(infer(Gather { axis: 1 }, &["f16[a,b,c]", "i64[n,2]"]), "f16[a,n,2,c]");
    let float_indices = "gather: indices have element type f32, not an integer one";
    assert_eq!(infer(Gather { axis: 0 }, &["f16[a]", "f32[n]"]), float_indices);
}

#[test]
fn gather_elements_takes_one_element_for_each_index() {
    let x = i64s(&[2, 2], &[1, 2, 3, 4]);
    let indices = i64s(&[2, 2], &[0, 0, -1, 0]);
    assert_eq!(eval(GatherElements { axis: 1 }, &[x.clone(), indices.clone()]), i64s(&[2, 2], &[1, 1, 4, 3]));
    assert_eq!(eval(GatherElements { axis: 0 }, &[x.clone(), indices]), i64s(&[2, 2], &[1, 2, 3, 2]));
    let error = eval_error(GatherElements { axis: 0 }, &[x, i64s(&[1, 1], &[-3])]);
    assert_eq!(error, "gather_elements: index -3 is out of range for extent 2");
    let beyond = "gather_elements: indices of shape [2,3] do not fit within [2,2]";
    assert_eq!(infer(GatherElements { axis: 0 }, &["f32[2,2]", "i64[2,3]"]), beyond);
    assert_eq!(infer(GatherElements { axis: 1 }, &["f32[2,2]", "i64[2,3]"]), "f32[2,3]");
}

#[test]
fn gather_nd_takes_slices_at_tuples() {
    let x = i64s(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    let gather =
        |batch_axes, shape: &[usize], values: &[i128]| eval(GatherNd { batch_axes }, &[x.clone(), i64s(shape, values)]);
    assert_eq!(gather(0, &[2, 3], &[0, 0, 1, -1, -1, -1]), i64s(&[2], &[1, 7]));
    assert_eq!(gather(0, &[1, 1], &[1]), i64s(&[1, 2, 2], &[4, 5, 6, 7]));
    assert_eq!(gather(1, &[2, 1], &[1, 0]), i64s(&[2, 2], &[2, 3, 4, 5]));
}

#[test]
fn gather_nd_types_need_the_tuple_length() {
    let op = |batch_axes| GatherNd { batch_axes };
    assert_eq!(infer(op(0), &["f32[a,b,c]", "i64[n,2]"]), "f32[n,c]");
    assert_eq!(infer(op(1), &["f32[4,b,c]", "i64[n,m,1]"]), "f32[4,m,c]");
    assert_eq!(infer(op(0), &["f32[a]", "i64[n,k]"]), "gather_nd: tuple length k is not a number");
    let long = "gather_nd: 0 batch axes and tuples of 2 do not fit shape [a]";
    assert_eq!(infer(op(0), &["f32[a]", "i64[n,2]"]), long);
    assert!(infer(op(0), &["f32[a]", "i64[]"]).contains("rank 0"));
}

#[test]
fn scatter_elements_writes_or_combines_in_order() {
    let x = i64s(&[3], &[10, 20, 30]);
    let (indices, updates) = (i64s(&[3], &[1, -2, 0]), i64s(&[3], &[2, 3, 4]));
    let cases = [
        (ScatterFn::Replace, [4, 3, 30]),
        (ScatterFn::Add, [14, 25, 30]),
        (ScatterFn::Mul, [40, 120, 30]),
        (ScatterFn::Min, [4, 2, 30]),
        (ScatterFn::Max, [10, 20, 30]),
    ];
    for (func, expected) in cases {
        let found = eval(ScatterElements { func, axis: 0 }, &[x.clone(), indices.clone(), updates.clone()]);
        assert_eq!(found, i64s(&[3], &expected), "{}", func.name());
    }
}

#[test]
fn scatter_elements_works_along_any_axis_and_with_nothing_to_write() {
    let op = ScatterElements { func: ScatterFn::Replace, axis: 1 };
    let x = f32s(&[2, 2], &[0.0; 4]);
    let found = eval(op.clone(), &[x.clone(), i64s(&[2, 1], &[1, 0]), f32s(&[2, 1], &[5.0, 6.0])]);
    assert_eq!(found, f32s(&[2, 2], &[0.0, 5.0, 6.0, 0.0]));
    assert_eq!(eval(op.clone(), &[x.clone(), i64s(&[0, 0], &[]), f32s(&[0, 0], &[])]), x);
    let error = eval_error(op, &[x, i64s(&[1, 1], &[2]), f32s(&[1, 1], &[5.0])]);
    assert_eq!(error, "scatter_elements: index 2 is out of range for extent 2");
}

#[test]
fn f16_updates_are_added_before_rounding_and_nan_wins_over_max() {
    let half = |values: &[f64]| floats(DType::F16, &[values.len()], values);
    let twice = i64s(&[2], &[0, 0]);
    let add = ScatterElements { func: ScatterFn::Add, axis: 0 };
    assert_eq!(eval(add, &[half(&[2048.0]), twice.clone(), half(&[1.0, 1.0])]), half(&[2050.0]));
    let max = ScatterElements { func: ScatterFn::Max, axis: 0 };
    assert!(eval(max, &[half(&[1.0]), twice, half(&[NAN, 2.0])]).to_f64_vec()[0].is_nan());
}

#[test]
fn scatter_nd_writes_slices() {
    let x = i64s(&[3, 2], &[0; 6]);
    let indices = i64s(&[3, 1], &[-1, 0, 0]);
    let updates = i64s(&[3, 2], &[1, 2, 3, 4, 5, 6]);
    let replaced = eval(ScatterNd { func: ScatterFn::Replace }, &[x.clone(), indices.clone(), updates.clone()]);
    assert_eq!(replaced, i64s(&[3, 2], &[5, 6, 0, 0, 1, 2]));
    let added = eval(ScatterNd { func: ScatterFn::Add }, &[x, indices, updates]);
    assert_eq!(added, i64s(&[3, 2], &[8, 10, 0, 0, 1, 2]));
}

#[test]
fn scatter_types_check_the_updates() {
    let op = ScatterNd { func: ScatterFn::Add };
    assert_eq!(infer(op.clone(), &["f32[n,3]", "i64[m,1]", "f32[m,3]"]), "f32[n,3]");
    let wrong = "scatter_nd: updates have shape [m,4] where [m,3] is expected";
    assert_eq!(infer(op.clone(), &["f32[n,3]", "i64[m,1]", "f32[m,4]"]), wrong);
    let without_meaning = "scatter_nd: 'add' has no meaning for bool";
    assert_eq!(infer(op, &["bool[n]", "i64[m,1]", "bool[m]"]), without_meaning);
}

fn topk(k: i64, largest: bool, x: Tensor) -> (Tensor, Tensor) {
    let mut outputs = crate::op::Op::from(Topk { axis: 0, k: k.into(), largest }).eval(&[x]).unwrap();
    let indices = outputs.pop().unwrap();
    (outputs.pop().unwrap(), indices)
}

#[test]
fn topk_sorts_with_ties_by_lower_index() {
    let x = i64s(&[5], &[3, 1, 3, 2, 1]);
    assert_eq!(topk(3, true, x.clone()), (i64s(&[3], &[3, 3, 2]), i64s(&[3], &[0, 2, 3])));
    assert_eq!(topk(3, false, x.clone()), (i64s(&[3], &[1, 1, 2]), i64s(&[3], &[1, 4, 3])));
    assert_eq!(topk(0, true, x), (i64s(&[0], &[]), i64s(&[0], &[])));
}

#[test]
fn topk_takes_nan_for_the_largest() {
    let x = f32s(&[3], &[1.0, NAN, f64::INFINITY]);
    assert_eq!(topk(3, true, x.clone()).1, i64s(&[3], &[1, 2, 0]));
    assert_eq!(topk(3, false, x).1, i64s(&[3], &[0, 2, 1]));
}

#[test]
fn topk_works_along_any_axis_and_within_it() {
    let x = i64s(&[2, 2], &[1, 4, 3, 2]);
    assert_eq!(topk(1, true, x.clone()), (i64s(&[1, 2], &[3, 4]), i64s(&[1, 2], &[1, 0])));
    let outputs = crate::op::Op::from(Topk { axis: 1, k: 1.into(), largest: true }).eval(&[x]).unwrap();
    assert_eq!(outputs, [i64s(&[2, 1], &[4, 3]), i64s(&[2, 1], &[1, 0])]);
    let op = |k: &str| Topk { axis: 0, k: Dim::parse(k).unwrap(), largest: true };
    assert_eq!(infer(op("k"), &["f32[n,2]"]), "f32[k,2] i64[k,2]");
    assert_eq!(infer(op("4"), &["f32[3]"]), "topk: k = 4 is not within extent 3");
    assert_eq!(infer(op("n + 1"), &["f32[n]"]), "topk: k = n + 1 is not within extent n");
}

#[test]
fn nonzero_lists_tuples_as_columns() {
    let op = NonZero { count: Dim::symbol("found") };
    let x = f32s(&[2, 2], &[0.0, NAN, -0.0, 2.0]);
    assert_eq!(eval(op.clone(), &[x]), i64s(&[2, 2], &[0, 1, 1, 1]));
    assert_eq!(eval(op.clone(), &[bools(&[2], &[0, 0])]), i64s(&[1, 0], &[]));
    assert_eq!(eval(op.clone(), &[i64s(&[], &[3])]), i64s(&[0, 1], &[]));
    assert_eq!(infer(op, &["f32[n,2]"]), "i64[2,found]");
    let error = eval_error(NonZero { count: 2.into() }, &[i64s(&[2], &[0, 1])]);
    assert_eq!(error, "nonzero: 1 found where 2 were declared");
}

fn nms() -> Nms {
    Nms {
        count: Dim::symbol("kept"),
        center_point: false,
        boxes_max: 10.into(),
        iou_threshold: 0.5,
        score_threshold: 0.0,
        has_score_threshold: false,
    }
}

/// Two boxes that overlap by two thirds, given by opposite corners, and one apart.
fn boxes() -> Tensor {
    f32s(&[1, 3, 4], &[0.0, 0.0, 1.0, 1.0, 1.2, 1.0, 0.2, 0.0, 5.0, 5.0, 6.0, 6.0])
}

fn scores(values: &[f64]) -> Tensor {
    f32s(&[1, 1, 3], values)
}

#[test]
fn nms_keeps_the_best_of_overlapping_boxes() {
    let found = eval(nms(), &[boxes(), scores(&[0.5, 0.9, 0.7])]);
    assert_eq!(found, i64s(&[2, 3], &[0, 0, 1, 0, 0, 2]));
    let loose = Nms { iou_threshold: 0.7, ..nms() };
    assert_eq!(eval(loose, &[boxes(), scores(&[0.5, 0.9, 0.7])]), i64s(&[3, 3], &[0, 0, 1, 0, 0, 2, 0, 0, 0]));
}

#[test]
fn nms_limits_count_and_score() {
    let inputs = [boxes(), scores(&[0.5, 0.9, 0.7])];
    assert_eq!(eval(Nms { boxes_max: 1.into(), ..nms() }, &inputs), i64s(&[1, 3], &[0, 0, 1]));
    assert_eq!(eval(Nms { boxes_max: 0.into(), ..nms() }, &inputs), i64s(&[0, 3], &[]));
    let threshold = Nms { score_threshold: 0.9, has_score_threshold: true, ..nms() };
    assert_eq!(eval(threshold, &[boxes(), scores(&[0.5, 0.95, 0.5])]), i64s(&[1, 3], &[0, 0, 1]));
}

#[test]
fn nms_suppresses_only_beyond_the_threshold_and_equal_scores_by_index() {
    let halves = f32s(&[1, 2, 4], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2.0]);
    let equal = f32s(&[1, 1, 2], &[0.5, 0.5]);
    assert_eq!(eval(nms(), &[halves.clone(), equal.clone()]), i64s(&[2, 3], &[0, 0, 0, 0, 0, 1]));
    let tight = Nms { iou_threshold: 0.499, ..nms() };
    assert_eq!(eval(tight, &[halves, equal]), i64s(&[1, 3], &[0, 0, 0]));
}

#[test]
fn nms_reads_boxes_by_their_centre_when_told() {
    let centred = f32s(&[1, 2, 4], &[0.5, 0.5, 1.0, 1.0, 0.5, 0.6, 1.0, 1.0]);
    let found = eval(Nms { center_point: true, ..nms() }, &[centred, f32s(&[1, 1, 2], &[0.1, 0.2])]);
    assert_eq!(found, i64s(&[1, 3], &[0, 0, 1]));
}

#[test]
fn nms_treats_classes_apart_and_accepts_no_boxes() {
    let one = f32s(&[1, 1, 4], &[0.0, 0.0, 1.0, 1.0]);
    let found = eval(nms(), &[one, f32s(&[1, 2, 1], &[0.1, 0.2])]);
    assert_eq!(found, i64s(&[2, 3], &[0, 0, 0, 0, 1, 0]));
    assert_eq!(eval(nms(), &[f32s(&[1, 0, 4], &[]), f32s(&[1, 2, 0], &[])]), i64s(&[0, 3], &[]));
    assert_eq!(infer(nms(), &["f32[b,n,4]", "f32[b,c,n]"]), "i64[kept,3]");
    let wrong = "nms: shapes [b,n,5] and [b,c,n] where [B,N,4] and [B,C,N] are expected";
    assert_eq!(infer(nms(), &["f32[b,n,5]", "f32[b,c,n]"]), wrong);
}

#[test]
fn an_empty_tensor_with_huge_axes_costs_nothing() {
    let huge = f32s(&[0, 1 << 40, 1 << 40], &[]);
    assert_eq!(eval(Gather { axis: 0 }, &[huge.clone(), i64s(&[0], &[])]), huge);
    assert_eq!(topk(0, true, huge.clone()).0, huge);
    let nothing = [huge.clone(), i64s(&[0, 1], &[]), huge.clone()];
    assert_eq!(eval(ScatterNd { func: ScatterFn::Replace }, &nothing), huge);
}
