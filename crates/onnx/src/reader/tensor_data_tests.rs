//! Every element type from every field it may be in, and every way shape, type and data can disagree.

use bytes::Bytes;
use precast_tensor::{DType, Tensor};

use super::error::{ReadError, ReadErrorKind};
use super::limits::{Budget, Limits};
use super::{sparse_tensor_without_model, tensor_without_model};
use crate::proto::*;

fn proto(data_type: DataType, dims: &[i64]) -> TensorProto {
    TensorProto { name: "w".into(), data_type: data_type.into(), dims: dims.to_vec(), ..Default::default() }
}

fn raw(data_type: DataType, dims: &[i64], bytes: &[u8]) -> TensorProto {
    TensorProto { raw_data: Some(Bytes::copy_from_slice(bytes)), ..proto(data_type, dims) }
}

fn int32(data_type: DataType, dims: &[i64], values: &[i32]) -> TensorProto {
    TensorProto { int32_data: values.to_vec(), ..proto(data_type, dims) }
}

fn read(proto: &TensorProto) -> Result<Tensor, ReadError> {
    tensor_without_model(proto, &Limits::default())
}

fn message(proto: &TensorProto) -> String {
    read(proto).unwrap_err().to_string()
}

#[track_caller]
fn assert_reads(proto: &TensorProto, dtype: DType, shape: &[usize], bytes: &[u8]) {
    let tensor = read(proto).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), &tensor.bytes()[..]), (dtype, shape, bytes));
}

#[test]
fn raw_data_is_shared_not_copied() {
    let proto = raw(DataType::Float, &[2], &[0, 0, 128, 63, 0, 0, 0, 64]);
    let tensor = read(&proto).unwrap();
    assert_eq!(tensor.bytes().as_ptr(), proto.raw_data.unwrap().as_ptr());
}

#[test]
fn every_whole_byte_type_reads_its_raw_data() {
    let types = [
        (DataType::Float, DType::F32),
        (DataType::Uint8, DType::U8),
        (DataType::Int8, DType::I8),
        (DataType::Uint16, DType::U16),
        (DataType::Int16, DType::I16),
        (DataType::Int32, DType::I32),
        (DataType::Int64, DType::I64),
        (DataType::Bool, DType::Bool),
        (DataType::Float16, DType::F16),
        (DataType::Double, DType::F64),
        (DataType::Uint32, DType::U32),
        (DataType::Uint64, DType::U64),
        (DataType::Bfloat16, DType::BF16),
        (DataType::Float8e4m3fn, DType::F8E4M3Fn),
        (DataType::Float8e4m3fnuz, DType::F8E4M3FnUz),
        (DataType::Float8e5m2, DType::F8E5M2),
        (DataType::Float8e5m2fnuz, DType::F8E5M2FnUz),
        (DataType::Float8e8m0, DType::F8E8M0),
    ];
    for (data_type, dtype) in types {
        let bytes = vec![1; 6 * dtype.size_bytes()];
        assert_reads(&raw(data_type, &[2, 3], &bytes), dtype, &[2, 3], &bytes);
        let short = message(&raw(data_type, &[2, 3], &bytes[1..]));
        let (found, expected) = (bytes.len() - 1, bytes.len());
        assert_eq!(short, format!("tensor 'w': {found} bytes of data, expected {expected} for {dtype} [2, 3]"));
        assert_reads(&proto(data_type, &[0, 3]), dtype, &[0, 3], &[]);
    }
}

#[test]
fn typed_fields_are_narrowed_to_their_element_type() {
    let float = TensorProto { float_data: vec![1.0, -2.0], ..proto(DataType::Float, &[2]) };
    assert_reads(&float, DType::F32, &[2], &[0, 0, 128, 63, 0, 0, 0, 192]);
    let double = TensorProto { double_data: vec![1.0], ..proto(DataType::Double, &[]) };
    assert_reads(&double, DType::F64, &[], &1f64.to_le_bytes());
    let int64 = TensorProto { int64_data: vec![-2], ..proto(DataType::Int64, &[1]) };
    assert_reads(&int64, DType::I64, &[1], &(-2i64).to_le_bytes());
    let uint64 = |data_type, value| TensorProto { uint64_data: vec![value], ..proto(data_type, &[1]) };
    assert_reads(&uint64(DataType::Uint64, u64::MAX), DType::U64, &[1], &[255; 8]);
    assert_reads(&uint64(DataType::Uint32, 7), DType::U32, &[1], &[7, 0, 0, 0]);

    assert_reads(&int32(DataType::Int32, &[1], &[-2]), DType::I32, &[1], &[254, 255, 255, 255]);
    assert_reads(&int32(DataType::Int16, &[1], &[-2]), DType::I16, &[1], &[254, 255]);
    assert_reads(&int32(DataType::Int8, &[1], &[-2]), DType::I8, &[1], &[254]);
    assert_reads(&int32(DataType::Uint16, &[1], &[65535]), DType::U16, &[1], &[255, 255]);
    assert_reads(&int32(DataType::Uint8, &[1], &[255]), DType::U8, &[1], &[255]);
    assert_reads(&int32(DataType::Bool, &[2], &[1, 0]), DType::Bool, &[2], &[1, 0]);
    assert_reads(&int32(DataType::Float16, &[1], &[0x3c00]), DType::F16, &[1], &[0, 0x3c]);
    assert_reads(&int32(DataType::Bfloat16, &[1], &[0x3f80]), DType::BF16, &[1], &[0x80, 0x3f]);
    assert_reads(&int32(DataType::Float8e5m2, &[1], &[0x3c]), DType::F8E5M2, &[1], &[0x3c]);

    let wide = message(&int32(DataType::Uint8, &[2], &[1, 300]));
    assert_eq!(wide, "tensor 'w': int32_data[1] is 300, expected bits of u8");
    let wide = message(&uint64(DataType::Uint32, 1 << 32));
    assert_eq!(wide, "tensor 'w': uint64_data[0] is 4294967296, expected bits of u32");
}

#[test]
fn sub_byte_elements_are_spread_low_bits_first() {
    // 0x21 holds 1 then 2; 0x0f holds -1 then padding.
    assert_reads(&raw(DataType::Uint4, &[3], &[0x21, 0x0f]), DType::U4, &[3], &[1, 2, 15]);
    assert_reads(&raw(DataType::Int4, &[3], &[0x81, 0x0f]), DType::I4, &[3], &[1, 0xf8, 0xff]);
    assert_reads(&raw(DataType::Float4e2m1, &[2], &[0xf1]), DType::F4E2M1, &[2], &[1, 15]);
    assert_reads(&raw(DataType::Uint2, &[5], &[0b1110_0100, 2]), DType::U2, &[5], &[0, 1, 2, 3, 2]);
    assert_reads(&raw(DataType::Int2, &[4], &[0b1110_0100]), DType::I2, &[4], &[0, 1, 0xfe, 0xff]);
    assert_reads(&int32(DataType::Int4, &[3], &[0x81, 0x0f]), DType::I4, &[3], &[1, 0xf8, 0xff]);
    let long = message(&raw(DataType::Uint4, &[3], &[0; 3]));
    assert_eq!(long, "tensor 'w': 3 bytes of data, expected 2 for u4 [3]");
    let long = message(&int32(DataType::Uint2, &[5], &[0; 5]));
    assert_eq!(long, "tensor 'w': 5 values in int32_data, expected 2 for u2 [5]");
}

#[test]
fn complex_elements_become_a_last_dimension_of_two() {
    let complex = TensorProto { float_data: vec![1.0, 0.0, 0.0, 1.0], ..proto(DataType::Complex64, &[2]) };
    let tensor = read(&complex).unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 2][..]));
    assert_reads(&raw(DataType::Complex128, &[], &[7; 16]), DType::F64, &[2], &[7; 16]);
}

#[test]
fn disagreeing_data_is_an_error_that_names_the_tensor() {
    let both = TensorProto { float_data: vec![1.0], ..raw(DataType::Float, &[1], &[0; 4]) };
    assert_eq!(message(&both), "tensor 'w': both raw_data and float_data hold data, expected one");
    let wrong = TensorProto { int64_data: vec![1], ..proto(DataType::Float, &[1]) };
    assert_eq!(message(&wrong), "tensor 'w': data in int64_data, expected float_data for f32");
    let two = TensorProto { int64_data: vec![1], float_data: vec![1.0], ..proto(DataType::Float, &[1]) };
    assert_eq!(message(&two), "tensor 'w': data in float_data and int64_data, expected float_data for f32");
    let few = TensorProto { float_data: vec![1.0], ..proto(DataType::Float, &[2, 2]) };
    assert_eq!(message(&few), "tensor 'w': 1 values in float_data, expected 4 for f32 [2, 2]");
    let none = proto(DataType::Float, &[2]);
    assert_eq!(message(&none), "tensor 'w': 0 bytes of data, expected 8 for f32 [2]");
    let bools = raw(DataType::Bool, &[3], &[0, 1, 2]);
    assert_eq!(message(&bools), "tensor 'w': bool[3]: element 2 is the byte 0x02, which is no bool");
    let untyped = proto(DataType::Undefined, &[1]);
    assert_eq!(message(&untyped), "tensor 'w': the element type is missing");
    let unknown = TensorProto { data_type: 77, ..proto(DataType::Float, &[1]) };
    assert_eq!(message(&unknown), "tensor 'w': element type 77 is not one of ONNX");
    let marked = TensorProto { external_data: vec![Default::default()], ..raw(DataType::Uint8, &[1], &[0]) };
    assert_eq!(message(&marked), "tensor 'w': external_data is given, but data_location is not EXTERNAL");
}

#[test]
fn hostile_dims_are_refused_for_every_type_without_allocating() {
    for code in 1..=26 {
        let Ok(data_type) = DataType::try_from(code) else { panic!("{code} is a type") };
        if data_type == DataType::String {
            continue;
        }
        let negative = message(&raw(data_type, &[-1], &[0; 8]));
        assert!(negative.starts_with("tensor 'w': dimension -1 of [-1"), "{negative}");
        let product = message(&raw(data_type, &[1 << 40, 1 << 40], &[0; 8]));
        assert!(product.starts_with("tensor 'w': the product of dims"), "{product}");
        let huge = read(&raw(data_type, &[(1 << 62) + 2], &[0; 8])).unwrap_err();
        assert!(matches!(huge, ReadError::OverLimit { budget: Budget::Dim, .. }), "{huge}");
        let large = read(&raw(data_type, &[1 << 38], &[0; 8])).unwrap_err();
        assert!(matches!(large, ReadError::OverLimit { budget: Budget::TensorBytes, .. }), "{large}");
        let absent = message(&proto(data_type, &[1 << 30]));
        assert!(absent.starts_with("tensor 'w': 0 bytes of data, expected "), "{absent}");
    }
}

#[test]
fn strings_and_segments_are_unsupported_not_malformed() {
    let strings = TensorProto { string_data: vec!["a".into()], ..proto(DataType::String, &[1]) };
    let error = read(&strings).unwrap_err();
    assert_eq!(error.kind(), ReadErrorKind::Unsupported);
    assert_eq!(error.to_string(), "tensor 'w': string tensors are not supported; expected numbers");
    let segment = TensorProto { segment: Some(Default::default()), ..raw(DataType::Uint8, &[1], &[0]) };
    assert_eq!(read(&segment).unwrap_err().kind(), ReadErrorKind::Unsupported);
}

fn sparse(dims: &[i64], values: &[u8], index_dims: &[i64], indices: &[i64]) -> SparseTensorProto {
    let index_bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
    SparseTensorProto {
        values: Some(raw(DataType::Uint8, &[values.len() as i64], values)),
        indices: Some(raw(DataType::Int64, index_dims, &index_bytes)),
        dims: dims.to_vec(),
    }
}

#[test]
fn sparse_tensors_become_dense() {
    let dense = |proto: &SparseTensorProto| sparse_tensor_without_model(proto, &Limits::default()).unwrap();
    let linear = dense(&sparse(&[2, 3], &[7, 8, 9], &[3], &[0, 2, 5]));
    let rows = dense(&sparse(&[2, 3], &[7, 8, 9], &[3, 2], &[0, 0, 0, 2, 1, 2]));
    for tensor in [linear, rows] {
        assert_eq!((tensor.shape(), &tensor.bytes()[..]), (&[2, 3][..], &[7, 0, 8, 0, 0, 9][..]));
    }
    assert_eq!(&dense(&sparse(&[2], &[], &[0], &[])).bytes()[..], &[0, 0]);
    assert_eq!(&dense(&sparse(&[], &[5], &[1], &[0])).bytes()[..], &[5]);
}

#[test]
fn bad_sparse_tensors_are_errors_that_name_them() {
    let message =
        |proto: &SparseTensorProto| sparse_tensor_without_model(proto, &Limits::default()).unwrap_err().to_string();
    let outside = "is outside the shape [2, 3]";
    assert_eq!(message(&sparse(&[2, 3], &[7], &[1], &[6])), format!("tensor 'w': sparse index [6] {outside}"));
    assert_eq!(message(&sparse(&[2, 3], &[7], &[1], &[-1])), format!("tensor 'w': sparse index [-1] {outside}"));
    assert_eq!(message(&sparse(&[2, 3], &[7], &[1, 2], &[0, 3])), format!("tensor 'w': sparse index [0, 3] {outside}"));
    assert_eq!(message(&sparse(&[2, 3], &[7, 8], &[2], &[1, 1])), "tensor 'w': sparse index [1] does not ascend");
    assert_eq!(
        message(&sparse(&[2, 3], &[7, 8], &[1], &[1])),
        "tensor 'w': sparse indices are i64 [1], expected i64 [2] or [2, 2]"
    );
    assert!(message(&sparse(&[1 << 31], &[7], &[1], &[0])).contains("the limit 'sparse-bytes' raises it"));
    assert!(message(&sparse(&[-3], &[7], &[1], &[0])).contains("dimension -3"));
    assert!(message(&sparse(&[], &[7], &[1, 0], &[])).contains("without coordinates"));
    assert_eq!(message(&SparseTensorProto::default()), "tensor '': a sparse tensor without values");
}
