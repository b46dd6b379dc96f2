//! Sequences, optionals and strings: what they leave of themselves in a Graph.

use std::sync::Arc;

use precast_onnx::import::Structure;
use precast_onnx::proto::AttributeProto;
use precast_tensor::{DType, Dim, Tensor};

use crate::model::{Model, body, floats, int, int_tensor, ops, text, texts};

/// Strings as the constant `name`.
fn constant_strings(model: Model, name: &str, strings: &[&'static str]) -> Model {
    model.node("Constant", "", name, &[texts("value_strings", strings)])
}

fn table(texts: &[&str]) -> Arc<[String]> {
    texts.iter().map(|text| text.to_string()).collect()
}

/// The texts of a model's only output, which is constant strings.
fn texts_of(model: Model) -> Vec<String> {
    let imported = model.import("y").unwrap();
    let Structure::Strings(table) = &imported.outputs[0].1 else { panic!("{:?}", imported.outputs) };
    let places = imported.graph.constant(imported.graph.outputs()[0].value).unwrap().to_i64_vec().unwrap();
    places.into_iter().map(|place| table[place as usize].clone()).collect()
}

#[test]
fn a_sequence_is_gone_once_its_elements_are_used() {
    let model = Model::new(13).input("x", DType::F32, &["6", "2"]).ints("sizes", &[1, 2, 3]).ints("at", &[-1]);
    let model = model
        .node("SplitToSequence", "x sizes", "s", &[int("axis", 0)])
        .node("SequenceErase", "s at", "t", &[])
        .node("SequenceInsert", "t x at", "u", &[])
        .node("SequenceAt", "u at", "last", &[])
        .node("ConcatFromSequence", "u", "all", &[int("axis", 0)])
        .node("SequenceLength", "u", "n", &[]);
    let graph = model.clone().graph("last all n");
    assert!(ops(&graph).iter().all(|op| ["slice", "concat"].contains(op)), "{:?}", ops(&graph));
    let x = floats(&[6, 2], &(0..12).map(|i| i as f32).collect::<Vec<_>>());
    let outputs = model.eval("last all n", &[x.clone()]);
    // [0..1], x, [1..3]: a place of -1 is before the last element.
    let all = [&[0.0, 1.0][..], &x.to_f64_vec(), &[2.0, 3.0, 4.0, 5.0]].concat();
    assert_eq!(outputs[0].to_f64_vec(), [2.0, 3.0, 4.0, 5.0]);
    assert_eq!(outputs[1].to_f64_vec(), all);
    assert_eq!(outputs[2], Tensor::scalar(3i64));
}

#[test]
fn a_loop_over_a_sequence_becomes_its_rounds() {
    let grow = Model::default()
        .input("i", DType::I64, &[])
        .input("c", DType::Bool, &[])
        .input("s", DType::F32, &[])
        .node("Cast", "i", "f", &[int("to", 1)])
        .node("SequenceInsert", "s f", "t", &[]);
    let model = Model::new(13).input("n", DType::I64, &[]).node("SequenceEmpty", "", "e", &[]);
    let model = model.node("Loop", "n _ e", "y", &[body("body", grow.body("c t"))]);
    let model = model.node("ConcatFromSequence", "y", "z", &[int("axis", 0), int("new_axis", 1)]);
    let refusal = model.clone().refusal("z");
    assert!(refusal.contains("the number of rounds of a loop over sequences must be known"), "{refusal}");
    let mut frozen = model;
    frozen.options.freeze.insert("n".to_string(), Tensor::scalar(3i64));
    assert_eq!(frozen.eval("z", &[]), [floats(&[3], &[0.0, 1.0, 2.0])]);
}

#[test]
fn an_optional_is_its_element_or_nothing() {
    let model = Model::new(18).input("x", DType::F32, &["1"]).node("Optional", "", "none", &[]);
    let model = model
        .node("Optional", "x", "some", &[])
        .node("OptionalHasElement", "none", "a", &[])
        .node("OptionalHasElement", "some", "b", &[])
        .node("OptionalGetElement", "some", "y", &[]);
    let outputs = model.clone().eval("a b y", &[floats(&[1], &[5.0])]);
    assert_eq!(outputs.iter().map(Tensor::to_f64_vec).collect::<Vec<_>>(), [[0.0], [1.0], [5.0]]);
    let refusal = model.node("OptionalGetElement", "none", "z", &[]).refusal("z");
    assert!(refusal.contains("the optional has no element"), "{refusal}");
}

#[test]
fn the_length_of_a_sequence_input_is_part_of_the_request() {
    let mut model = Model::new(13);
    model.sequence_input("s", DType::F32);
    model.options.structures.insert("s".into(), Structure::Sequence(vec![Structure::Tensor; 2]));
    for name in ["s[0]", "s[1]"] {
        model.options.shapes.insert(name.into(), vec![Dim::from(1)]);
    }
    let model = model.node("ConcatFromSequence", "s", "y", &[int("axis", 0)]);
    let inputs = [floats(&[1], &[1.0]), floats(&[1], &[2.0])];
    assert_eq!(model.eval("y", &inputs), [floats(&[2], &[1.0, 2.0])]);
}

#[test]
fn strings_are_places_in_a_table_until_their_texts_matter() {
    let mut model = Model::new(20).string_input("x");
    model.options.structures.insert("x".into(), Structure::Strings(table(&["a", "b", "c"])));
    model.options.shapes.insert("x".into(), vec![Dim::from(2)]);
    let model = constant_strings(model, "k", &["b", "z"]);
    let model = model.node("Concat", "x k", "j", &[int("axis", 0)]).node("StringConcat", "x k", "p", &[]);
    let model = model.node("Equal", "x k", "e", &[]);
    let imported = model.clone().import("j p").unwrap();
    assert_eq!(imported.outputs[0].1, Structure::Strings(table(&["a", "b", "c", "z"])));
    let pairs: Vec<String> = ["ab", "az", "bb", "bz", "cb", "cz"].iter().map(|text| text.to_string()).collect();
    assert_eq!(imported.outputs[1].1, Structure::Strings(pairs.into()));
    let places = int_tensor(&[2], &[1, 2]);
    let outputs = model.clone().eval("j p e", &[places]);
    assert_eq!(outputs[..2], [int_tensor(&[4], &[1, 2, 1, 3]), int_tensor(&[2], &[2, 5])]);
    assert_eq!(outputs[2].to_bools().unwrap(), [true, false]);
    let refusal = model.node("StringSplit", "x", "s n", &[]).refusal("s");
    assert!(refusal.contains("it depends on input 'x'"), "{refusal}");
}

#[test]
fn words_are_split_normalised_and_matched() {
    let words = || constant_strings(Model::new(20), "x", &["Monday is ", " tuesday"]);
    assert_eq!(texts_of(words().node("StringSplit", "x", "y n", &[])), ["Monday", "is", "tuesday", ""]);
    let only = |attributes: &[AttributeProto]| {
        let model = constant_strings(Model::new(20), "x", &["Monday", "tuesday"]);
        texts_of(model.node("StringNormalizer", "x", "y", attributes))
    };
    assert_eq!(only(&[texts("stopwords", &["MONDAY"]), text("case_change_action", "UPPER")]), ["TUESDAY"]);
    assert_eq!(only(&[texts("stopwords", &["MONDAY"]), int("is_case_sensitive", 1)]), ["Monday", "tuesday"]);
    assert_eq!(only(&[texts("stopwords", &["monday", "tuesday"])]), [""]);
    let model = words().node("RegexFullMatch", "x", "y", &[text("pattern", " t.*y|M")]);
    assert_eq!(model.eval("y", &[])[0].to_bools().unwrap(), [false, true]);
}

#[test]
fn strings_where_only_numbers_make_sense_are_refused_by_name() {
    let model = constant_strings(Model::new(20), "x", &["a"]);
    let refusal = model.node("Abs", "x", "y", &[]).refusal("y");
    assert!(refusal.contains("strings are not covered as an input"), "{refusal}");
    let model = constant_strings(Model::new(20), "x", &["2", "-1e3", "x"]);
    let refusal = model.node("Cast", "x", "y", &[int("to", 1)]).refusal("y");
    assert!(refusal.contains("the string 'x' is not a number"), "{refusal}");
}
