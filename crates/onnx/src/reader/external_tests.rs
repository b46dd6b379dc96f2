//! External data: what is read, and every way out of the model's folder that must stay shut.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::error::ReadErrorKind;
use super::{Limits, ModelFile, ReadError};
use crate::proto::*;

/// A model of one u8 tensor `w` with `size` elements and these external data entries.
fn model(size: i64, entries: &[(&str, &str)]) -> Vec<u8> {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto { key: key.into(), value: value.into() };
    let weight = TensorProto {
        name: "w".into(),
        data_type: DataType::Uint8.into(),
        dims: vec![size],
        data_location: Some(DataLocation::External.into()),
        external_data: entries.iter().map(entry).collect(),
        ..Default::default()
    };
    let graph = GraphProto { initializer: vec![weight], ..Default::default() };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 20 }];
    ModelProto { ir_version: 9, graph: Some(graph), opset_import, ..Default::default() }.encode_to_vec()
}

/// outside, model/data (0..100), model/sub/data
fn tree() -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("model");
    fs::create_dir_all(folder.join("sub")).unwrap();
    fs::write(temp.path().join("outside"), [1; 4]).unwrap();
    fs::write(folder.join("data"), (0..100).collect::<Vec<u8>>()).unwrap();
    fs::write(folder.join("sub/data"), [2; 4]).unwrap();
    temp
}

fn first_tensor(file: &ModelFile) -> Result<Bytes, ReadError> {
    file.tensor(&file.graph().initializer[0]).map(|tensor| Bytes::copy_from_slice(tensor.bytes()))
}

fn read(temp: &Path, size: i64, entries: &[(&str, &str)]) -> Result<Bytes, ReadError> {
    let folder = Some(temp.join("model"));
    first_tensor(&ModelFile::from_bytes(model(size, entries).into(), folder, &Limits::default()).unwrap())
}

fn message(temp: &Path, size: i64, entries: &[(&str, &str)]) -> String {
    let error = read(temp, size, entries).unwrap_err();
    assert_eq!(error.kind(), ReadErrorKind::Refused, "{error}");
    error.to_string()
}

#[test]
fn ranges_of_files_beneath_the_folder_are_read() {
    let temp = tree();
    let range = [("location", "data"), ("offset", "10"), ("length", "3")];
    assert_eq!(read(temp.path(), 3, &range).unwrap(), [10, 11, 12][..]);
    assert_eq!(read(temp.path(), 3, &[("location", "data"), ("offset", "97")]).unwrap(), [97, 98, 99][..]);
    assert_eq!(read(temp.path(), 4, &[("location", "sub/data")]).unwrap(), [2; 4][..]);
    assert_eq!(read(temp.path(), 4, &[("location", "./sub/./data")]).unwrap(), [2; 4][..]);
    assert_eq!(read(temp.path(), 0, &[("location", "data"), ("length", "0"), ("offset", "100")]).unwrap(), [][..]);
}

#[test]
fn tensors_of_one_file_share_one_mapping() {
    let temp = tree();
    let folder = temp.path().join("model");
    fs::set_permissions(folder.join("data"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(folder.join("m.onnx"), model(100, &[("location", "data")])).unwrap();
    let file = ModelFile::open(&folder.join("m.onnx"), &Limits::default()).unwrap();
    let read = || file.tensor(&file.graph().initializer[0]).unwrap();
    assert_eq!(read().bytes().as_ptr(), read().bytes().as_ptr());
}

#[test]
fn a_file_others_can_write_is_read_into_our_memory() {
    let temp = tree();
    let data = temp.path().join("model/data");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o666)).unwrap();
    let entries = [("location", "data"), ("offset", "10"), ("length", "3")];
    let file = ModelFile::from_bytes(model(3, &entries).into(), Some(temp.path().join("model")), &Limits::default());
    let file = file.unwrap();
    let tensor = file.tensor(&file.graph().initializer[0]).unwrap();
    fs::write(&data, [0; 100]).unwrap();
    assert_eq!(&tensor.bytes()[..], &[10, 11, 12]);
    fs::write(&data, [0; 5]).unwrap();
    assert_eq!(first_tensor(&file).unwrap_err().kind(), ReadErrorKind::Io);
}

#[test]
fn paths_that_leave_the_folder_are_refused() {
    let temp = tree();
    let absolute = temp.path().join("outside");
    let cases = [
        "",
        ".",
        "./",
        "..",
        "../outside",
        "sub/../../outside",
        "./../outside",
        ".//../outside",
        "sub//data",
        "/",
        absolute.to_str().unwrap(),
        "//etc/passwd",
        "data/",
        "sub/..",
        "..\\outside",
        "C:\\x",
        "C:/x",
        "c:x",
        "file:outside",
        "file:///etc/passwd",
        "http://host/x",
        "data\0",
        "sub/\0/data",
    ];
    for location in cases {
        let error = message(temp.path(), 4, &[("location", location)]);
        assert!(error.starts_with("tensor 'w': external data '") && error.contains("': location "), "{error}");
    }
    let error = message(temp.path(), 4, &[("location", "../outside")]);
    let expected = "location has a '..' component, expected a path inside the model's folder";
    assert_eq!(error, format!("tensor 'w': external data '../outside': {expected}"));
    // Plain names that look odd, among them another runtime's marker, are plain names that do not exist.
    for location in ["*/_ORT_MEM_ADDR_/*", "%2e%2e/outside", "...", "~/x", "$HOME/x", "absent"] {
        let error = read(temp.path(), 4, &[("location", location)]).unwrap_err();
        assert_eq!(error.kind(), ReadErrorKind::Io, "{error}");
        assert!(error.to_string().starts_with("cannot open the data of tensor 'w' in '"), "{error}");
    }
}

#[test]
fn links_pipes_and_folders_are_refused_with_the_flag_that_helps() {
    let temp = tree();
    let folder = temp.path().join("model");
    symlink("../outside", folder.join("out")).unwrap();
    symlink("data", folder.join("final")).unwrap();
    symlink("sub", folder.join("middle")).unwrap();
    fs::hard_link(temp.path().join("outside"), folder.join("hard")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let message = |location: &str| message(temp.path(), 4, &[("location", location)]);
    for location in ["out", "final", "middle/data"] {
        let error = message(location);
        assert!(error.contains("a link, or a path through one; --model-root DIR allows"), "{error}");
    }
    assert!(message("hard").contains("several hard links; --model-root DIR allows"));
    assert_eq!(message("pipe"), "tensor 'w': external data 'pipe': not a regular file");
    assert_eq!(message("sub"), "tensor 'w': external data 'sub': not a regular file");
}

#[test]
fn a_model_root_allows_links_that_stay_beneath_it() {
    let temp = tree();
    let folder = temp.path().join("model");
    symlink("../outside", folder.join("out")).unwrap();
    fs::hard_link(temp.path().join("outside"), folder.join("hard")).unwrap();
    let read_within = |root: &Path, location: &str| {
        fs::write(folder.join("m.onnx"), model(4, &[("location", location)])).unwrap();
        let file = ModelFile::open_within(&folder.join("m.onnx"), root, &Limits::default())?;
        first_tensor(&file)
    };
    assert_eq!(read_within(temp.path(), "out").unwrap(), [1; 4][..]);
    assert_eq!(read_within(temp.path(), "hard").unwrap(), [1; 4][..]);
    let error = read_within(&folder, "out").unwrap_err().to_string();
    assert_eq!(error, "tensor 'w': external data 'out': a link that leaves the model root");
    assert_eq!(read_within(&folder.join("sub"), "out").unwrap_err().kind(), ReadErrorKind::Io);
}

#[test]
fn keys_and_numbers_are_a_closed_list() {
    let temp = tree();
    let message = |entries: &[(&str, &str)]| message(temp.path(), 4, entries);
    let prefix = "tensor 'w': external data 'data': ";
    let expected = "unknown key '__class__', expected location, offset, length or checksum";
    assert_eq!(message(&[("location", "data"), ("__class__", "x")]), format!("{prefix}{expected}"));
    assert_eq!(
        message(&[("location", "data"), ("offset", "1"), ("offset", "2")]),
        format!("{prefix}key 'offset' is given twice")
    );
    for number in ["", "-1", "+1", "0x10", "1.0", " 1", "18446744073709551616"] {
        let error = message(&[("location", "data"), ("length", number)]);
        assert_eq!(error, format!("{prefix}length is '{number}', expected a decimal number below 2^64"));
    }
    assert!(message(&[("offset", "0")]).ends_with("location is missing"));
    assert!(message(&[]).ends_with("location is missing"));
}

#[test]
fn ranges_outside_the_file_or_unlike_the_tensor_are_refused() {
    let temp = tree();
    let message = |offset: &str, length: &str| {
        message(temp.path(), 4, &[("location", "data"), ("offset", offset), ("length", length)])
    };
    let prefix = "tensor 'w': external data 'data': ";
    assert_eq!(message("97", "4"), format!("{prefix}4 bytes at offset 97, but the file has 100 bytes"));
    let last = u64::MAX.to_string();
    for (offset, length) in
        [(last.as_str(), "2"), ("4", &last), (&last, &last), ("101", "0"), ("9223372036854775808", "4")]
    {
        assert!(message(offset, length).ends_with("but the file has 100 bytes"));
    }
    assert_eq!(message("0", "5"), format!("{prefix}5 bytes, expected 4 for the tensor's type and dims"));
    let open_end = super::external_tests::message(temp.path(), 4, &[("location", "data"), ("offset", "10")]);
    assert_eq!(open_end, format!("{prefix}90 bytes, expected 4 for the tensor's type and dims"));
    let beyond = super::external_tests::message(temp.path(), 4, &[("location", "data"), ("offset", "101")]);
    assert_eq!(beyond, format!("{prefix}0 bytes at offset 101, but the file has 100 bytes"));
}

#[test]
fn the_checksum_is_compared_for_mapped_and_unmapped_files() {
    let temp = tree();
    // SHA-1 of the bytes 0 to 99.
    let good = "1e6634bfaebc0348298105923d0f26e47aa33ff5";
    let wrong = good.replace('0', "1");
    fn entries(checksum: &str) -> [(&str, &str); 4] {
        [("location", "data"), ("offset", "0"), ("length", "4"), ("checksum", checksum)]
    }
    for mode in [0o644, 0o666] {
        fs::set_permissions(temp.path().join("model/data"), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read(temp.path(), 4, &entries(good)).unwrap(), [0, 1, 2, 3][..]);
        let other = message(temp.path(), 4, &entries(&wrong));
        assert!(other.ends_with("its SHA-1 differs from the checksum in the model"));
    }
    for checksum in ["", "00", "zz", &"0".repeat(41), &"g".repeat(40)] {
        assert!(message(temp.path(), 4, &entries(checksum)).ends_with("40 hexadecimal digits of SHA-1"));
    }
}

#[test]
fn limits_and_missing_folders_are_refusals() {
    let temp = tree();
    let bytes = Bytes::from(model(100, &[("location", "data")]));
    let file = ModelFile::from_bytes(bytes.clone(), None, &Limits::default()).unwrap();
    let error = first_tensor(&file).unwrap_err().to_string();
    assert_eq!(error, "tensor 'w': external data 'data': refused, because a model given as bytes has no folder");
    let limits = Limits { external_bytes: 99, ..Limits::default() };
    let file = ModelFile::from_bytes(bytes, Some(temp.path().join("model")), &limits).unwrap();
    assert!(
        first_tensor(&file).unwrap_err().to_string().contains("100 bytes of external data is over the limit of 99")
    );
}
