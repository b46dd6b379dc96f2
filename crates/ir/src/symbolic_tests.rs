use super::*;
use crate::op::{Broadcast, Cast, Concat, DimValue, Gather, Reshape, Select};
use crate::ops::test_tensor::dims;

/// Elements of an op's output as text; inputs are a Type and, where known, elements.
fn run(op: impl Into<Op>, inputs: &[(&str, Option<&[&str]>)]) -> Option<Vec<String>> {
    let op = op.into();
    let types: Vec<Type> = inputs.iter().map(|(ty, _)| ty.parse().unwrap()).collect();
    let types: Vec<&Type> = types.iter().collect();
    let contents: Vec<Option<Vec<Dim>>> = inputs.iter().map(|(_, content)| content.map(dims)).collect();
    let output = op.infer(&types).unwrap().remove(0);
    Some(content(&op, &contents, &types, &output)?.iter().map(Dim::to_string).collect())
}

fn some(texts: &[&str]) -> Option<Vec<String>> {
    Some(texts.iter().map(|text| text.to_string()).collect())
}

#[test]
fn a_dim_value_is_its_dim() {
    assert_eq!(run(DimValue { dim: Dim::symbol("n") }, &[]), some(&["n"]));
}

#[test]
fn a_shape_put_together_from_dims_is_followed() {
    let n: (&str, Option<&[&str]>) = ("i64[]", Some(&["n"]));
    assert_eq!(run(Reshape { shape: dims(&["1"]) }, &[n]), some(&["n"]));
    let parts: [(&str, Option<&[&str]>); 2] = [("i64[1]", Some(&["n"])), ("i64[2]", Some(&["3", "m"]))];
    assert_eq!(run(Concat { axis: 0 }, &parts), some(&["n", "3", "m"]));
    let last = [("i64[3]", Some(&["n", "3", "m"][..])), ("i64[]", Some(&["-1"][..]))];
    assert_eq!(run(Gather { axis: 0 }, &last), some(&["m"]));
    let slice = Slice { start: dims(&["2"]), step: vec![-2], size: dims(&["2"]) };
    assert_eq!(run(slice, &last[..1]), some(&["m", "n"]));
    assert_eq!(run(Broadcast { shape: dims(&["2"]) }, &[n]), some(&["n", "n"]));
    let matrix = [("i64[2,2]", Some(&["a", "b", "c", "d"][..]))];
    assert_eq!(run(Transpose { perm: vec![1, 0] }, &matrix), some(&["a", "c", "b", "d"]));
}

#[test]
fn arithmetic_on_dims_is_dim_arithmetic() {
    let cases = [
        (BinaryFn::Add, "n", "1", Some("n + 1")),
        (BinaryFn::Sub, "n", "n", Some("0")),
        (BinaryFn::Mul, "n", "2", Some("2*n")),
        (BinaryFn::Div, "4*n", "2", Some("2*n")),
        (BinaryFn::Div, "-7", "2", Some("-3")),
        (BinaryFn::Mod, "-7", "3", Some("2")),
        (BinaryFn::Fmod, "-7", "3", Some("-1")),
        (BinaryFn::Max, "n", "0", Some("n")),
        (BinaryFn::Min, "3", "5", Some("3")),
        (BinaryFn::Pow, "n", "2", None),
    ];
    for (func, a, b, expected) in cases {
        let found = run(Binary { func }, &[("i64[]", Some(&[a])), ("i64[1]", Some(&[b]))]);
        assert_eq!(found, expected.and_then(|text| some(&[text])), "{}({a}, {b})", func.name());
    }
}

#[test]
fn numbers_that_would_wrap_are_not_followed() {
    let add = Binary { func: BinaryFn::Add };
    let most = "9223372036854775807";
    assert_eq!(run(add.clone(), &[("i64[]", Some(&[most])), ("i64[]", Some(&["1"]))]), None);
    assert_eq!(run(add, &[("i8[]", Some(&["127"])), ("i8[]", Some(&["1"]))]), None);
    // Moving the number is no arithmetic: it stands for "to the end" in slices.
    assert_eq!(run(Reshape { shape: dims(&["1"]) }, &[("i64[]", Some(&[most]))]), some(&[most]));
}

#[test]
fn casts_between_integers_keep_sizes() {
    let cast = |to| Cast { to, saturate: true };
    assert_eq!(run(cast(DType::I32), &[("i64[2]", Some(&["n", "5"]))]), some(&["n", "5"]));
    assert_eq!(run(cast(DType::I8), &[("i64[1]", Some(&["n"]))]), None);
    assert_eq!(run(cast(DType::I8), &[("i64[1]", Some(&["100"]))]), some(&["100"]));
    assert_eq!(run(cast(DType::U32), &[("i64[1]", Some(&["n - 1"]))]), None);
    assert_eq!(run(cast(DType::Bool), &[("i64[2]", Some(&["n + 1", "0"]))]), some(&["1", "0"]));
    assert_eq!(run(cast(DType::Bool), &[("i64[1]", Some(&["n"]))]), None);
    assert_eq!(run(cast(DType::F32), &[("i64[1]", Some(&["n"]))]), None);
}

#[test]
fn comparisons_are_followed_where_sizes_decide_them() {
    let cases = [
        (CompareFn::Eq, "n", "-1", Some("0")),
        (CompareFn::Eq, "n", "n", Some("1")),
        (CompareFn::Eq, "n", "2", None),
        (CompareFn::Lt, "n", "0", Some("0")),
        (CompareFn::Le, "n", "n + 1", Some("1")),
        (CompareFn::Gt, "n + 1", "0", Some("1")),
        (CompareFn::Ge, "n", "m", None),
    ];
    for (func, a, b, expected) in cases {
        let found = run(Compare { func }, &[("i64[]", Some(&[a])), ("i64[]", Some(&[b]))]);
        assert_eq!(found, expected.and_then(|text| some(&[text])), "{a} {} {b}", func.name());
    }
}

#[test]
fn the_expand_idiom_selects_the_known_shape() {
    let shape = ("i64[2]", Some(&["n", "3"][..]));
    let ones = ("i64[]", Some(&["1"][..]));
    assert_eq!(run(Select {}, &[("bool[2]", Some(&["0", "1"])), ones, shape]), some(&["n", "1"]));
    assert_eq!(run(Select {}, &[("bool[2]", None), ones, shape]), None);
    assert_eq!(run(Select {}, &[("bool[2]", None), shape, shape]), some(&["n", "3"]));
}

#[test]
fn reductions_and_unary_functions_of_dims() {
    let reduce = |func| Reduce { func, axes: vec![0], keep_dims: false };
    let shape: [(&str, Option<&[&str]>); 1] = [("i64[3]", Some(&["n", "2", "3"]))];
    assert_eq!(run(reduce(ReduceFn::Prod), &shape), some(&["6*n"]));
    assert_eq!(run(reduce(ReduceFn::Sum), &shape), some(&["n + 5"]));
    assert_eq!(run(reduce(ReduceFn::Min), &[("i64[2]", Some(&["4", "2"]))]), some(&["2"]));
    assert_eq!(run(reduce(ReduceFn::Prod), &[("i64[0]", Some(&[]))]), some(&["1"]));
    assert_eq!(run(reduce(ReduceFn::Max), &[("i64[0]", Some(&[]))]), None);
    let unary = |func| Unary { func, alpha: 0.0, beta: 0.0 };
    assert_eq!(run(unary(UnaryFn::Neg), &shape), some(&["-n", "-2", "-3"]));
    assert_eq!(run(unary(UnaryFn::Abs), &[("i64[]", Some(&["-2"]))]), some(&["2"]));
    assert_eq!(run(Clamp { lo: 0.0, hi: 1.0 }, &[("i64[]", Some(&["7"]))]), some(&["1"]));
}

#[test]
fn iota_of_a_constant_length_is_known() {
    let iota = |length: &str| Iota {
        to: DType::I64,
        start: Dim::symbol("n"),
        step: 2.into(),
        length: Dim::parse(length).unwrap(),
    };
    assert_eq!(run(iota("2"), &[]), some(&["n", "n + 2"]));
    assert_eq!(run(iota("n"), &[]), None);
    assert_eq!(run(iota("65"), &[]), None);
    assert_eq!(run(iota("9223372036854775807"), &[]), None);
}

#[test]
fn unknown_inputs_give_unknown_outputs() {
    assert_eq!(run(Concat { axis: 0 }, &[("i64[1]", Some(&["n"])), ("i64[1]", None)]), None);
    let indices_unknown = [("i64[2]", Some(&["n", "m"][..])), ("i64[]", Some(&["i"][..]))];
    assert_eq!(run(Gather { axis: 0 }, &indices_unknown), None);
}
