use super::*;
use crate::ops::test_tensor::{bools, eval, eval_error, f32s, floats, i64s, infer, ints};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn reduce(func: ReduceFn, axes: &[usize]) -> Reduce {
    Reduce { func, axes: axes.to_vec(), keep_dims: false }
}

#[test]
fn reductions_of_floats_have_their_values() {
    let cases: &[(ReduceFn, &[f64], f64)] = &[
        (ReduceFn::Sum, &[1.0, 2.0, 4.0], 7.0),
        (ReduceFn::Sum, &[1e300, 1.0, -1e300], 1.0),
        (ReduceFn::Mean, &[1.0, 2.0, 6.0], 3.0),
        (ReduceFn::Prod, &[2.0, -3.0], -6.0),
        (ReduceFn::Max, &[1.0, NAN, 3.0], NAN),
        (ReduceFn::Min, &[1.0, NAN, 3.0], NAN),
        (ReduceFn::Max, &[-INF, -2.0], -2.0),
        (ReduceFn::L1, &[-1.0, 2.0], 3.0),
        (ReduceFn::L2, &[-3.0, 4.0], 5.0),
        (ReduceFn::SumSq, &[-3.0, 4.0], 25.0),
        (ReduceFn::LogSum, &[0.5, 0.5], 0.0),
        (ReduceFn::LogSumExp, &[1000.0], 1000.0),
        (ReduceFn::LogSumExp, &[-INF, -INF], -INF),
        (ReduceFn::LogSumExp, &[INF, 0.0], INF),
        (ReduceFn::LogSumExp, &[NAN, 0.0], NAN),
    ];
    for (func, values, expected) in cases {
        let found = eval(reduce(*func, &[0]), &[floats(DType::F64, &[values.len()], values)]).to_f64_vec()[0];
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{} of {values:?}", func.name());
    }
}

#[test]
fn reductions_of_nothing_give_the_neutral_element() {
    let cases = [
        (ReduceFn::Sum, 0.0),
        (ReduceFn::Prod, 1.0),
        (ReduceFn::Max, -INF),
        (ReduceFn::Min, INF),
        (ReduceFn::LogSumExp, -INF),
    ];
    for (func, expected) in cases {
        assert_eq!(eval(reduce(func, &[1]), &[f32s(&[2, 0], &[])]), f32s(&[2], &[expected; 2]));
    }
    let empty = ints(DType::I8, &[0], &[]);
    assert_eq!(eval(reduce(ReduceFn::Max, &[0]), std::slice::from_ref(&empty)), ints(DType::I8, &[], &[-128]));
    assert_eq!(eval(reduce(ReduceFn::Min, &[0]), std::slice::from_ref(&empty)), ints(DType::I8, &[], &[127]));
    assert_eq!(eval(reduce(ReduceFn::Mean, &[0]), &[empty]), ints(DType::I8, &[], &[0]));
    assert_eq!(eval(reduce(ReduceFn::All, &[0]), &[bools(&[0], &[])]), bools(&[], &[1]));
    assert_eq!(eval(reduce(ReduceFn::Max, &[0]), &[bools(&[0], &[])]), bools(&[], &[0]));
}

#[test]
fn integers_wrap_and_their_mean_truncates() {
    let x = ints(DType::I8, &[2], &[-128, -1]);
    let cases = [
        (ReduceFn::Sum, 127),
        (ReduceFn::Mean, -64),
        (ReduceFn::Prod, -128),
        (ReduceFn::L1, -127),
        (ReduceFn::Max, -1),
        (ReduceFn::L2, 127),
    ];
    for (func, expected) in cases {
        let found = eval(reduce(func, &[0]), std::slice::from_ref(&x));
        assert_eq!(found, ints(DType::I8, &[], &[expected]), "{}", func.name());
    }
}

#[test]
fn any_axes_can_go_and_may_stay_as_ones() {
    let x = i64s(&[2, 3, 2], &(0..12).collect::<Vec<_>>());
    assert_eq!(eval(reduce(ReduceFn::Sum, &[0, 2]), std::slice::from_ref(&x)), i64s(&[3], &[14, 22, 30]));
    let kept = Reduce { func: ReduceFn::Sum, axes: vec![1], keep_dims: true };
    assert_eq!(eval(kept, std::slice::from_ref(&x)), i64s(&[2, 1, 2], &[6, 9, 24, 27]));
    assert_eq!(eval(reduce(ReduceFn::Sum, &[]), std::slice::from_ref(&x)), x);
    assert_eq!(eval(reduce(ReduceFn::Sum, &[]), &[f32s(&[], &[3.0])]), f32s(&[], &[3.0]));
}

#[test]
fn f16_sums_are_rounded_only_at_the_end() {
    let x = floats(DType::F16, &[3], &[2048.0, 1.0, 1.0]);
    assert_eq!(eval(reduce(ReduceFn::Sum, &[0]), &[x]), floats(DType::F16, &[], &[2050.0]));
}

#[test]
fn bools_have_any_all_max_and_min() {
    let x = bools(&[2], &[0, 1]);
    for (func, expected) in [(ReduceFn::Any, 1), (ReduceFn::All, 0), (ReduceFn::Max, 1), (ReduceFn::Min, 0)] {
        assert_eq!(eval(reduce(func, &[0]), std::slice::from_ref(&x)), bools(&[], &[expected]));
    }
}

#[test]
fn reduce_types_follow_axes_and_function() {
    let kept = Reduce { func: ReduceFn::Max, axes: vec![0], keep_dims: true };
    assert_eq!(infer(kept, &["f32[n,m]"]), "f32[1,m]");
    assert_eq!(infer(reduce(ReduceFn::Max, &[0]), &["f32[n,m]"]), "f32[m]");
    assert_eq!(infer(reduce(ReduceFn::Max, &[2]), &["f32[n,m]"]), "reduce: axis 2 is out of range for rank 2");
    assert_eq!(infer(reduce(ReduceFn::Max, &[1, 1]), &["f32[n,m]"]), "reduce: axis 1 is given twice");
    assert_eq!(infer(reduce(ReduceFn::Sum, &[0]), &["bool[n]"]), "reduce: 'sum' has no meaning for bool");
    assert_eq!(infer(reduce(ReduceFn::Any, &[0]), &["f32[n]"]), "reduce: 'any' has no meaning for f32");
}

fn arg(func: ArgFn, last: bool) -> ArgReduce {
    ArgReduce { func, axis: 0, keep_dims: false, last }
}

#[test]
fn arg_reduce_finds_the_first_or_last_and_takes_nan_for_the_largest() {
    let ties = f32s(&[4], &[1.0, 3.0, 3.0, 1.0]);
    let cases = [(ArgFn::Max, false, 1), (ArgFn::Max, true, 2), (ArgFn::Min, false, 0), (ArgFn::Min, true, 3)];
    for (func, last, expected) in cases {
        assert_eq!(eval(arg(func, last), std::slice::from_ref(&ties)), i64s(&[], &[expected]));
    }
    let nans = f32s(&[4], &[NAN, INF, NAN, -INF]);
    let cases = [(ArgFn::Max, false, 0), (ArgFn::Max, true, 2), (ArgFn::Min, false, 3)];
    for (func, last, expected) in cases {
        assert_eq!(eval(arg(func, last), std::slice::from_ref(&nans)), i64s(&[], &[expected]));
    }
    let zeros = f32s(&[2], &[-0.0, 0.0]);
    assert_eq!(eval(arg(ArgFn::Max, false), &[zeros]), i64s(&[], &[0]));
}

#[test]
fn arg_reduce_keeps_other_axes_and_refuses_empty_ones() {
    let x = i64s(&[2, 2], &[5, 1, 2, 9]);
    let kept = ArgReduce { func: ArgFn::Max, axis: 1, keep_dims: true, last: false };
    assert_eq!(eval(kept, &[x]), i64s(&[2, 1], &[0, 1]));
    assert_eq!(eval_error(arg(ArgFn::Max, false), &[f32s(&[0, 2], &[])]), "arg_reduce: axis 0 is empty");
    assert_eq!(eval(arg(ArgFn::Max, false), &[f32s(&[0, 0], &[])]), i64s(&[0], &[]));
}

#[test]
fn cumulate_runs_either_way_with_or_without_its_own_element() {
    let x = i64s(&[3], &[1, 2, 3]);
    let cases = [
        (CumulateFn::Sum, false, false, [1, 3, 6]),
        (CumulateFn::Sum, true, false, [0, 1, 3]),
        (CumulateFn::Sum, false, true, [6, 5, 3]),
        (CumulateFn::Sum, true, true, [5, 3, 0]),
        (CumulateFn::Prod, false, false, [1, 2, 6]),
        (CumulateFn::Prod, true, true, [6, 3, 1]),
    ];
    for (func, exclusive, reverse, expected) in cases {
        let op = Cumulate { func, axis: 0, exclusive, reverse };
        assert_eq!(eval(op, std::slice::from_ref(&x)), i64s(&[3], &expected));
    }
}

#[test]
fn cumulate_runs_along_its_axis() {
    let op = |axis| Cumulate { func: CumulateFn::Sum, axis, exclusive: false, reverse: false };
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(eval(op(0), std::slice::from_ref(&x)), f32s(&[2, 2], &[1.0, 2.0, 4.0, 6.0]));
    assert_eq!(eval(op(1), &[x]), f32s(&[2, 2], &[1.0, 3.0, 3.0, 7.0]));
    assert_eq!(eval(op(0), &[f32s(&[2, 0], &[])]), f32s(&[2, 0], &[]));
}

#[test]
fn an_empty_tensor_with_huge_axes_costs_nothing() {
    let huge = f32s(&[0, 1 << 40, 1 << 40], &[]);
    assert_eq!(eval(reduce(ReduceFn::Sum, &[1, 2]), std::slice::from_ref(&huge)), f32s(&[0], &[]));
    assert!(eval_error(reduce(ReduceFn::Sum, &[0]), std::slice::from_ref(&huge)).contains("more elements"));
    let cumulate = Cumulate { func: CumulateFn::Sum, axis: 0, exclusive: false, reverse: false };
    assert_eq!(eval(cumulate, std::slice::from_ref(&huge)), huge);
}
