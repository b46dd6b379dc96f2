//! Adapter files: one that onnxruntime wrote, and what becomes of it when bytes are missing or wrong.

use bytes::Bytes;
use precast_tensor::{DType, Tensor};

use super::adapter_file::AdapterFile;
use super::error::ReadError;
use super::limits::Limits;

/// What `onnxruntime.AdapterFormat` wrote: adapter 3 for model 7, with `a.weight` f32 [2, 3], `empty` f32 [4, 0] and `half`
/// f16 [2, 3].
const FILE: &[u8] = include_bytes!("adapter_file_tests.onnx_adapter");

fn read(bytes: &[u8]) -> Result<AdapterFile, ReadError> {
    AdapterFile::from_bytes(Bytes::copy_from_slice(bytes), &Limits::default())
}

/// The error of the file with other bytes at a place.
fn error_with(place: usize, bytes: &[u8]) -> String {
    let mut file = FILE.to_vec();
    file[place..place + bytes.len()].copy_from_slice(bytes);
    read(&file).unwrap_err().to_string()
}

#[test]
fn a_file_of_onnxruntime_gives_its_parameters() {
    let AdapterFile { adapter_version, model_version, parameters } = read(FILE).unwrap();
    assert_eq!((adapter_version, model_version), (3, 7));
    let numbers = [0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    let weight = Tensor::from_vec([2, 3], numbers.to_vec()).unwrap();
    let by_name: std::collections::BTreeMap<&str, &Tensor> =
        parameters.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    assert_eq!(by_name.keys().copied().collect::<Vec<_>>(), ["a.weight", "empty", "half"]);
    assert_eq!(by_name["a.weight"], &weight);
    assert_eq!((by_name["empty"].dtype(), by_name["empty"].shape()), (DType::F32, &[4, 0][..]));
    assert_eq!((by_name["half"].dtype(), by_name["half"].to_f64_vec()), (DType::F16, numbers.map(f64::from).to_vec()));
}

#[test]
fn what_is_wrong_is_said_with_the_parameter_and_the_expectation() {
    let found = [
        error_with(4, b"ORTM"),
        error_with(0x10, &2_i32.to_le_bytes()),
        error_with(0, &0x7fff_fff0_u32.to_le_bytes()),
        error_with(0x20, &u32::MAX.to_le_bytes()),
        error_with(0x68, &u32::MAX.to_le_bytes()),
        error_with(0x6c, b"\xff"),
        error_with(0x3c, &9_i32.to_le_bytes()),
        error_with(0x3c, &77_i32.to_le_bytes()),
        error_with(0x58, &(-2_i64).to_le_bytes()),
        error_with(0x58, &(1_i64 << 41).to_le_bytes()),
        error_with(0x58, &7_i64.to_le_bytes()),
    ];
    let expected = [
        "not a valid adapter file: the file: it does not begin as an adapter; 'TORT' was expected at byte 4",
        "the adapter file: its format has version 2; 1 was expected",
        "not a valid adapter file: the file: its first table lies outside of it",
        "not a valid adapter file: the file: its field parameters lies outside of the file",
        "not a valid adapter file: parameter 2: its field name lies outside of the file",
        "not a valid adapter file: parameter 2: its name is not UTF-8",
        "not a valid adapter file: parameter 'half': element type 9 is not one of adapters; floats and integers of whole \
         bytes are",
        "not a valid adapter file: parameter 'half': element type 77 is not one of ONNX",
        "tensor 'half': dimension -2 of [-2, 3] is negative",
        "tensor 'half': 2199023255552 as one dimension is over the limit of 1099511627776; the limit 'dim' raises it",
        "not a valid adapter file: parameter 'half': raw_data has 12 bytes; 42 were expected for f16 [7, 3]",
    ];
    assert_eq!(found, expected);
    let mut twice = FILE.to_vec();
    twice[0x100] = 4;
    twice[0x104..0x10c].copy_from_slice(b"half\0\0\0\0");
    assert_eq!(read(&twice).unwrap_err().to_string(), "not a valid adapter file: parameter 'half': it is there twice");
}

#[test]
fn limits_hold_for_names_and_counts() {
    let with = |limits: &Limits| AdapterFile::from_bytes(Bytes::from_static(FILE), limits).unwrap_err().to_string();
    let tensors = with(&Limits { tensors: 2, ..Limits::default() });
    assert_eq!(tensors, "the adapter file: 3 tensors is over the limit of 2; the limit 'tensors' raises it");
    let name = with(&Limits { name: 5, ..Limits::default() });
    assert_eq!(name, "parameter 0: 8 bytes in one name is over the limit of 5; the limit 'name' raises it");
    let rank = with(&Limits { rank: 1, ..Limits::default() });
    assert!(rank.contains("2 dimensions of one tensor is over the limit of 1"), "{rank}");
}

#[test]
fn a_file_that_ends_early_is_an_error_at_every_byte() {
    // Behind the zero that ends the last name nothing is read.
    for length in 0..FILE.len() - 3 {
        assert!(read(&FILE[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn every_byte_may_be_any_other_and_nothing_panics() {
    for place in 0..FILE.len() {
        for byte in [0, 1, 4, 0x7f, 0x80, 0xff, FILE[place].wrapping_add(1), FILE[place] ^ 0x10] {
            let mut file = FILE.to_vec();
            file[place] = byte;
            if let Ok(adapter) = read(&file) {
                assert!(adapter.parameters.iter().all(|(name, tensor)| !name.is_empty() && tensor.rank() <= 16));
            }
        }
    }
}
