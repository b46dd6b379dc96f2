//! Whole files: zero copy, versions, operator sets, truncation.

use bytes::Bytes;
use prost::Message;

use super::error::ReadErrorKind;
use super::{Limits, ModelFile, ReadError};
use crate::proto::*;

fn import(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.into(), version }
}

fn model() -> ModelProto {
    let raw_data = Some(Bytes::from(vec![7; 400]));
    let weight = TensorProto { name: "w".into(), data_type: 1, dims: vec![10, 10], raw_data, ..Default::default() };
    let node = NodeProto {
        op_type: "Add".into(),
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    let graph = GraphProto { node: vec![node], initializer: vec![weight], ..Default::default() };
    let opset_import = vec![import("ai.onnx", 17), import("com.microsoft", 1)];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..Default::default() }
}

fn from_model(model: &ModelProto) -> Result<ModelFile, ReadError> {
    ModelFile::from_bytes(model.encode_to_vec().into(), None, &Limits::default())
}

#[test]
fn raw_data_of_a_decoded_model_lies_inside_the_file_bytes() {
    let bytes = Bytes::from(model().encode_to_vec());
    let file = ModelFile::from_bytes(bytes.clone(), None, &Limits::default()).unwrap();
    let tensor = file.tensor(&file.graph().initializer[0]).unwrap();
    assert_eq!(tensor.shape(), [10, 10]);
    assert!(bytes.as_ptr_range().contains(&tensor.bytes().as_ptr()));
    assert_eq!(file.proto(), &model());
}

#[test]
fn a_file_on_disk_reads_the_same_as_its_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("model.onnx");
    std::fs::write(&path, model().encode_to_vec()).unwrap();
    let file = ModelFile::open(&path, &Limits::default()).unwrap();
    assert_eq!(file.proto(), &model());
    assert_eq!(file.digest(), from_model(&model()).unwrap().digest());
    // Two tensors of one file share its bytes: the copy of a slice would lie elsewhere.
    let raw_data = file.graph().initializer[0].raw_data.as_ref().unwrap();
    assert_eq!(file.tensor(&file.graph().initializer[0]).unwrap().bytes().as_ptr(), raw_data.as_ptr());
}

#[test]
fn a_message_is_a_model_that_shares_its_bytes_and_is_told_from_another() {
    let from_message = |model: ModelProto| ModelFile::from_message(model, &Limits::default()).unwrap();
    let file = from_message(model());
    let raw_data = file.graph().initializer[0].raw_data.as_ref().unwrap();
    assert_eq!(file.tensor(&file.graph().initializer[0]).unwrap().bytes().as_ptr(), raw_data.as_ptr());
    assert!(file.is_self_contained());
    assert_eq!(file.digest(), from_message(model()).digest());
    let changed = |change: fn(&mut GraphProto)| {
        let mut model = model();
        change(model.graph.as_mut().unwrap());
        from_message(model).digest()
    };
    assert_ne!(file.digest(), changed(|graph| graph.initializer[0].raw_data = Some(Bytes::from(vec![8; 400]))));
    assert_ne!(file.digest(), changed(|graph| graph.node[0].op_type = "Sub".into()));
    assert!(ModelFile::from_message(ModelProto::default(), &Limits::default()).is_err());
}

#[test]
fn what_is_not_a_model_file_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let open = |name: &str| ModelFile::open(&temp.path().join(name), &Limits::default()).unwrap_err();
    assert_eq!(open("absent").kind(), ReadErrorKind::Io);
    assert!(open("").to_string().ends_with("expected a regular file"));
    std::fs::write(temp.path().join("empty"), "").unwrap();
    assert_eq!(open("empty").to_string(), "not a valid ONNX model: ir_version is 0, expected 3 or more");
    std::fs::write(temp.path().join("page"), "<html>not found</html>").unwrap();
    assert_eq!(open("page").kind(), ReadErrorKind::Malformed);
    let small = Limits { model_bytes: 10, ..Limits::default() };
    std::fs::write(temp.path().join("large"), [0; 11]).unwrap();
    let error = ModelFile::open(&temp.path().join("large"), &small).unwrap_err();
    assert!(error.to_string().contains("11 bytes in the ONNX file is over the limit of 10"), "{error}");
    assert_eq!(error.kind(), ReadErrorKind::Refused);
}

#[test]
fn the_empty_domain_is_ai_onnx() {
    let file = from_model(&model()).unwrap();
    assert_eq!((file.opset(""), file.opset("ai.onnx")), (Some(17), Some(17)));
    assert_eq!((file.opset("com.microsoft"), file.opset("ai.onnx.ml")), (Some(1), None));
}

#[test]
fn versions_and_imports_are_checked() {
    let message = |change: fn(&mut ModelProto)| {
        let mut model = model();
        change(&mut model);
        from_model(&model).unwrap_err().to_string()
    };
    assert_eq!(message(|model| model.ir_version = 2), "the model: IR version 2 is not supported, expected 3 or more");
    assert_eq!(message(|model| model.graph = None), "not a valid ONNX model: it has no graph");
    assert_eq!(
        message(|model| model.opset_import.clear()),
        "not a valid ONNX model: it imports no operator set, expected at least one"
    );
    assert_eq!(
        message(|model| model.opset_import.push(import("", 18))),
        "not a valid ONNX model: the model imports domain 'ai.onnx' as both 17 and 18"
    );
    assert_eq!(
        message(|model| {
            let opset_import = vec![import("a", 1), import("a", 2)];
            model.functions.push(FunctionProto { name: "f".into(), opset_import, ..Default::default() });
        }),
        "not a valid ONNX model: function 'f' imports domain 'a' as both 1 and 2"
    );
    assert!(message(|model| model.opset_import = vec![import("a", 1); 257]).contains("257 operator sets"));
    let mut same_twice = model();
    same_twice.opset_import.push(import("", 17));
    assert!(from_model(&same_twice).is_ok());
}

#[test]
fn every_truncation_is_an_error() {
    let mut model = model();
    model.opset_import.truncate(1);
    let bytes = Bytes::from(model.encode_to_vec());
    // The operator set is the last field, so no prefix is whole.
    for length in 0..bytes.len() {
        let result = ModelFile::from_bytes(bytes.slice(..length), None, &Limits::default());
        assert!(result.is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn a_name_that_is_not_utf8_is_an_error() {
    let mut bytes = model().encode_to_vec();
    let at = bytes.windows(3).position(|window| window == b"Add").unwrap();
    bytes[at] = 0xff;
    let error = ModelFile::from_bytes(bytes.into(), None, &Limits::default()).unwrap_err();
    assert_eq!(error.kind(), ReadErrorKind::Malformed);
}
