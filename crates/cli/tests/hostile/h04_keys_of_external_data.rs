//! H4: onnx CVE-2026-34445: keys of external data used as names of fields, and a length that is allocated.

use std::fs;

use precast::Model;

use crate::model::{external, of_initializer};
use crate::{Bench, REFUSAL_BYTES_MAX, REFUSED};

#[test]
fn unknown_and_repeated_keys_and_numbers_that_are_none_are_refused() {
    let bench = Bench::new();
    let entries: [&[(&str, &str)]; 12] = [
        &[("location", "data"), ("__class__", "x")],
        &[("location", "data"), ("basepath", "/")],
        &[("location", "data"), ("Location", "data")],
        &[("location", "data"), ("location", "sub/data")],
        &[("location", "data"), ("length", "100"), ("length", "100")],
        &[("location", "data"), ("offset", "-1")],
        &[("location", "data"), ("offset", "0x10")],
        &[("location", "data"), ("length", "1e2")],
        &[("location", "data"), ("length", " 100")],
        &[("location", "data"), ("length", "")],
        &[("offset", "0")],
        &[("", "")],
    ];
    for entries in entries {
        bench.refusal(&of_initializer(external(entries)), REFUSED);
    }
}

#[test]
fn a_length_that_no_file_has_is_refused_before_memory_is_asked_for() {
    let bench = Bench::new();
    for length in ["9223372036854775808", "9223372036854775807", "18446744073709551615", "99999999999999999999"] {
        let bytes = of_initializer(external(&[("location", "data"), ("length", length)]));
        bench.refusal(&bytes, REFUSED);
        fs::write(bench.path("m.onnx"), &bytes).unwrap();
        let mut is_refused = false;
        let allocated = allocation_counter::measure(|| {
            is_refused = Model::open(&bench.path("m.onnx")).and_then(|model| model.symbolic_graph()).is_err();
        });
        assert!(is_refused && allocated.bytes_max < REFUSAL_BYTES_MAX, "{length}: {} bytes", allocated.bytes_max);
    }
}
