//! Compiled models: what comes back is what was saved, and what is damaged is refused.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use precast_onnx::proto::*;

use super::*;
use crate::model::Model;

/// y = x + w, with x of [n, 4].
fn model() -> Model {
    let dim = |value| DimensionProto { value: Some(value), ..Default::default() };
    let dims = vec![dim(DimensionValue::DimParam("n".into())), dim(DimensionValue::DimValue(4))];
    let tensor = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: dims }) };
    let ty = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..Default::default() };
    let value = |name: &str| ValueInfoProto { name: name.into(), r#type: Some(ty.clone()), ..Default::default() };
    let raw_data = Some(Bytes::from([1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()));
    let weight = TensorProto { name: "w".into(), data_type: 1, dims: vec![4], raw_data, ..Default::default() };
    let node = NodeProto {
        op_type: "Add".into(),
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let graph = GraphProto {
        node: vec![node],
        initializer: vec![weight],
        input: vec![value("x")],
        output: vec![value("y")],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
    Model::from_message(ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..Default::default() }).unwrap()
}

fn compiled(buckets: &str) -> Result<CompiledModel, Error> {
    let options = OpenOptions { buckets: buckets.parse().unwrap(), ..OpenOptions::default() };
    CompiledModel::of(&ModelSession::open(&model(), &options).unwrap())
}

#[test]
fn a_compiled_model_answers_every_size_that_its_buckets_cover_without_the_model() {
    let saved = compiled("1,3").unwrap();
    let read = CompiledModel::from_bytes(saved.bytes().clone()).unwrap();
    let form = read.open(&OpenOptions::default()).unwrap();
    for rows in 1..=4usize {
        let x = Tensor::from_vec([rows, 4], vec![0.5f32; rows * 4]).unwrap();
        let (outputs, _) = form.session().run(&[x]).unwrap();
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [1.5, 2.5, 3.5, 4.5].repeat(rows));
    }
    assert_eq!(form.session().counters().compiles(), 0);
    assert_eq!(saved.bytes(), compiled("1,3").unwrap().bytes());
}

#[test]
fn dims_without_number_or_buckets_cannot_be_saved() {
    let error = compiled("exact").err().unwrap().to_string();
    assert_eq!(error, "these dims have no number and no Buckets: n");
}

#[test]
fn a_changed_or_missing_byte_is_found() {
    let bytes = compiled("2").unwrap().bytes().to_vec();
    for place in [0, 9, HEADER_BYTES + 3, bytes.len() / 2, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[place] ^= 1;
        assert!(CompiledModel::from_bytes(changed.into()).is_err(), "byte {place}");
    }
    for length in [0, 7, HEADER_BYTES, bytes.len() - 1] {
        assert!(CompiledModel::from_bytes(bytes[..length].to_vec().into()).is_err(), "{length} bytes");
    }
}

#[test]
fn a_compiled_model_says_what_it_fits() {
    let description = compiled("2").unwrap().description().unwrap();
    assert_eq!(CompiledModel::fit(&description), CompiledFit::Optimal);
    let (machine, compiler) = description.split_once(" by ").unwrap();
    let target = TargetDescription::parse(machine).unwrap();
    let fit =
        |target: &TargetDescription, compiler: &str| CompiledModel::fit(&format!("{} by {compiler}", target.machine()));
    let threads = target.threads + 1;
    assert_eq!(fit(&TargetDescription { threads, ..target.clone() }, compiler), CompiledFit::Recompile);
    let features = "abacus".to_string();
    assert_eq!(fit(&TargetDescription { features, ..target.clone() }, compiler), CompiledFit::Unsupported);
    assert_eq!(fit(&target, "precast 0.0.0"), CompiledFit::Unsupported);
    assert_eq!(CompiledModel::fit("something else"), CompiledFit::Unsupported);
}
