//! H10: OpenVINO #34070: offset + length wraps around and passes the check.

use precast_onnx::{Limits, ModelFile, ReadErrorKind};

use crate::model::{external, of_initializer};
use crate::{Bench, REFUSED};

#[test]
fn no_pair_of_offset_and_length_reaches_beyond_the_file() {
    let bench = Bench::new();
    let edges: Vec<u64> =
        [0, 1, 2, 99, 100, 101, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 99, u64::MAX - 1, u64::MAX]
            .into_iter()
            .chain([u64::MAX / 2, i64::MAX as u64 - 99])
            .collect();
    let mut pairs = 0;
    for &offset in &edges {
        for &length in &edges {
            if offset.checked_add(length).is_some_and(|end| end <= 100) && length == 100 {
                continue;
            }
            let (offset, length) = (offset.to_string(), length.to_string());
            let entries = [("location", "data"), ("offset", &offset), ("length", &length)];
            let bytes = of_initializer(external(&entries)).into();
            let file = ModelFile::from_bytes(bytes, Some(bench.path("")), &Limits::default()).unwrap();
            let error = file.tensor(&file.graph().initializer[0]).unwrap_err();
            assert_eq!(error.kind(), ReadErrorKind::Refused, "{offset} {length}: {error}");
            pairs += 1;
        }
    }
    assert!(pairs >= 200);
}

#[test]
fn the_pair_of_the_report_is_refused_by_the_door() {
    let bench = Bench::new();
    let entries = [("location", "data"), ("offset", "18446744073709551615"), ("length", "2")];
    bench.refusal(&of_initializer(external(&entries)), REFUSED);
}
