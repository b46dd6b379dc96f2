//! Shape arithmetic on symbolic dims, and sizes that only a run knows.

use precast_onnx::import::ImportError;
use precast_tensor::{DType, Tensor};

use crate::model::{Model, bools, floats, int, int_tensor, ints, ops, output_type};

/// The usual way exporters merge heads: [n, s, 2, 3] as [n, s, 6] by way of Shape.
#[test]
fn shape_gather_concat_reshape_becomes_one_reshape() {
    let model = Model::new(13)
        .input("x", DType::F32, &["n", "s", "2", "3"])
        .constant("zero", Tensor::scalar(0i64))
        .constant("one", Tensor::scalar(1i64))
        .ints("first", &[0])
        .ints("rest", &[-1])
        .node("Shape", "x", "shape", &[])
        .node("Gather", "shape zero", "n", &[int("axis", 0)])
        .node("Gather", "shape one", "s", &[])
        .node("Unsqueeze", "n first", "n1", &[])
        .node("Unsqueeze", "s first", "s1", &[])
        .node("Concat", "n1 s1 rest", "to", &[int("axis", 0)])
        .node("Reshape", "x to", "y", &[]);
    let graph = model.graph("y");
    assert_eq!((ops(&graph), output_type(&graph).as_str()), (vec!["reshape"], "f32[n,s,6]"));
}

#[test]
fn a_mask_of_ones_is_one_broadcast() {
    let model = Model::new(13).input("x", DType::F32, &["n", "s"]).node("Shape", "x", "shape", &[]);
    let graph = model.node("ConstantOfShape", "shape", "y", &[]).graph("y");
    assert_eq!((ops(&graph), output_type(&graph).as_str()), (vec!["broadcast"], "f32[n,s]"));
}

#[test]
fn a_range_over_a_dim_is_one_iota_in_any_element_type() {
    let model = |dtype: DType| {
        let number = |value: i64| match dtype {
            DType::F32 => Tensor::scalar(value as f32),
            _ => Tensor::scalar(value),
        };
        Model::new(13)
            .input("x", DType::F32, &["n"])
            .constant("start", number(1))
            .constant("delta", number(2))
            .node("Size", "x", "size", &[])
            .node("Cast", "size", "limit", &[int("to", crate::model::number_of(dtype).into())])
            .node("Range", "start limit delta", "y", &[])
    };
    assert_eq!(ops(&model(DType::I64).graph("y")), ["iota"]);
    assert_eq!(ops(&model(DType::F32).graph("y")), ["iota"]);
    let x = floats(&[6], &[0.0; 6]);
    assert_eq!(model(DType::I64).eval("y", std::slice::from_ref(&x)), [int_tensor(&[3], &[1, 3, 5])]);
    assert_eq!(model(DType::F32).eval("y", &[x]), [floats(&[3], &[1.0, 3.0, 5.0])]);
}

#[test]
fn a_slice_that_keeps_everything_is_no_node() {
    let model = Model::new(13).input("x", DType::F32, &["n", "4"]).ints("s", &[0]).ints("e", &[i64::MAX]);
    let graph = model.node("Slice", "x s e", "y", &[]).graph("y");
    assert_eq!(graph.nodes().len(), 0);
}

#[test]
fn a_slice_of_a_symbolic_axis_is_right_for_every_size() {
    let model = Model::new(13).input("x", DType::F32, &["n"]).ints("s", &[-3]).ints("e", &[-1]);
    let model = model.node("Slice", "x s e", "y", &[]);
    for size in 0..6usize {
        let all: Vec<f32> = (0..size).map(|at| at as f32).collect();
        let kept = &all[size.saturating_sub(3)..size.saturating_sub(1)];
        assert_eq!(model.clone().eval("y", &[floats(&[size], &all)]), [floats(&[kept.len()], kept)], "size {size}");
    }
}

#[test]
fn a_slice_at_run_time_values_is_right_for_every_sign() {
    let model = Model::new(13)
        .input("x", DType::F32, &["4"])
        .input("s", DType::I64, &["1"])
        .input("e", DType::I64, &["1"])
        .node("Slice", "x s e", "y", &[]);
    let all = [0.0, 1.0, 2.0, 3.0];
    let position = |at: i64| (if at < 0 { at + 4 } else { at }).clamp(0, 4) as usize;
    for start in -6..=6 {
        for end in -6..=6 {
            let kept = all.get(position(start)..position(end)).unwrap_or_default();
            let inputs = [floats(&[4], &all), int_tensor(&[1], &[start]), int_tensor(&[1], &[end])];
            assert_eq!(model.clone().eval("y", &inputs), [floats(&[kept.len()], kept)], "{start}..{end}");
        }
    }
}

#[test]
fn a_shape_that_is_an_input_must_be_frozen() {
    let model = Model::new(13).input("x", DType::F32, &["n"]).input("s", DType::I64, &["2"]);
    let mut model = model.node("Reshape", "x s", "y", &[]);
    match model.clone().import("y") {
        Err(ImportError::NeedsInputs { inputs, .. }) => assert_eq!(inputs.into_iter().collect::<Vec<_>>(), ["s"]),
        other => panic!("{other:?}"),
    }
    model.options.freeze.insert("s".to_string(), int_tensor(&[2], &[2, -1]));
    assert_eq!(output_type(&model.graph("y")), "f32[2,n floordiv 2]");
}

#[test]
fn a_shape_of_found_elements_is_read_at_run_time() {
    // The elements above zero, as a column.
    let model = Model::new(13)
        .input("x", DType::F32, &["n"])
        .constant("zero", Tensor::scalar(0.0f32))
        .ints("one", &[1])
        .node("Greater", "x zero", "is", &[])
        .node("Compress", "x is", "kept", &[int("axis", 0)])
        .node("Shape", "kept", "count", &[])
        .node("Concat", "count one", "to", &[int("axis", 0)])
        .node("Reshape", "kept to", "y", &[]);
    let outputs = model.eval("y", &[floats(&[4], &[1.0, -1.0, 2.0, 3.0])]);
    assert_eq!(outputs, [floats(&[3, 1], &[1.0, 2.0, 3.0])]);
}

#[test]
fn sizes_computed_from_data_become_size_reads() {
    // As many ones as the largest element says.
    let model = Model::new(13).input("x", DType::I64, &["n"]).node("ReduceMax", "x", "most", &[]).node(
        "ConstantOfShape",
        "most",
        "y",
        &[],
    );
    assert_eq!(model.clone().graph("y").sizes.len(), 1);
    assert_eq!(model.eval("y", &[int_tensor(&[3], &[1, 4, 2])]), [floats(&[4], &[0.0; 4])]);
}

#[test]
fn equal_parts_of_a_symbolic_axis_need_its_number() {
    let model = Model::new(13).input("x", DType::F32, &["n"]);
    let refusal = model.node("Split", "x", "a b", &[]).refusal("a");
    assert_eq!(
        refusal,
        "Split 'Split_0': axis 0, split into 2 equal parts depends on the dim 'n', which has no number yet"
    );
    let even = Model::new(13).input("x", DType::F32, &["n"]).constant("two", floats(&[2, 1], &[1.0, 1.0]));
    let even = even.node("Mul", "x two", "m", &[]).ints("s", &[-1]).node("Reshape", "m s", "f", &[]);
    assert_eq!(output_type(&even.node("Split", "f", "a b", &[]).graph("a")), "f32[n]");
}

#[test]
fn tile_and_expand_follow_dims() {
    let model = Model::new(13)
        .input("x", DType::F32, &["n", "1"])
        .input("like", DType::F32, &["n", "m"])
        .ints("twice", &[2, 1])
        .node("Shape", "like", "shape", &[])
        .node("Expand", "x shape", "wide", &[])
        .node("Tile", "wide twice", "y", &[]);
    let graph = model.clone().graph("y");
    assert_eq!(
        (ops(&graph), output_type(&graph).as_str()),
        (vec!["broadcast", "reshape", "broadcast", "reshape"], "f32[2*n,m]")
    );
    let outputs = model.eval("y", &[floats(&[1, 1], &[5.0]), floats(&[1, 2], &[0.0, 0.0])]);
    assert_eq!(outputs, [floats(&[2, 2], &[5.0; 4])]);
}

#[test]
fn names_that_mean_nothing_are_symbols_of_their_own() {
    let model = Model::new(13).input("x", DType::F32, &["?", "?"]).node("Relu", "x", "y", &[]);
    assert_eq!(output_type(&model.graph("y")), "f32[x.0,x.1]");
}

#[test]
fn declared_sums_follow_their_symbols_and_declared_quotients_do_not() {
    let model = Model::new(13).input("a", DType::F32, &["n"]).input("b", DType::F32, &["n + 1"]);
    let joined = model.node("Concat", "a b", "y", &[int("axis", 0)]);
    assert_eq!(output_type(&joined.graph("y")), "f32[2*n + 1]");
    let half = Model::new(13).input("x", DType::F32, &["n / 2"]).node("Relu", "x", "y", &[]);
    assert_eq!(output_type(&half.clone().graph("y")), "f32[\"n / 2\"]");
    assert_eq!(half.eval("y", &[floats(&[3], &[1.0; 3])]), [floats(&[3], &[1.0; 3])]);
}

#[test]
fn squeezing_all_axes_of_size_1_asks_for_symbolic_ones() {
    let model = Model::new(11).input("x", DType::F32, &["n", "1"]).node("Squeeze", "x", "y", &[]);
    assert!(model.refusal("y").contains("whether axis 0 is squeezed depends on the dim 'n'"));
    let named = Model::new(11).input("x", DType::F32, &["n", "1"]).node("Squeeze", "x", "y", &[ints("axes", &[1])]);
    assert_eq!(output_type(&named.graph("y")), "f32[n]");
}

#[test]
fn a_condition_on_a_vector_compresses_rows() {
    let model = Model::new(11).input("x", DType::F32, &["3", "2"]).input("is", DType::Bool, &["m"]);
    let model = model.node("Compress", "x is", "y", &[int("axis", 0)]);
    let x = floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(model.eval("y", &[x, bools(&[2], &[false, true])]), [floats(&[1, 2], &[3.0, 4.0])]);
}
