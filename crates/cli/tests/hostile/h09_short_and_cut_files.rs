//! H9: onnxruntime #27721, #27699, #27950: a file of a few bytes, or a whole one that was cut, read out of bounds.

use std::fs;
use std::path::Path;

use precast::Model;
use precast_onnx::proto::ModelProto;
use prost::Message;

use crate::Bench;
use crate::model::{at_every_place, external};

/// Words of a linear congruential sequence: any numbers do, and these are the same every time.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }
}

#[test]
fn a_million_short_files_are_errors() {
    let mut words = Words(9);
    for _ in 0..1_000_000 {
        let length = (words.next() % 17) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| words.next() as u8).collect();
        assert!(Model::from_bytes(bytes.clone().into()).is_err(), "{bytes:?}");
    }
}

#[test]
fn every_cut_of_a_model_is_an_error_or_a_model_that_lacks_its_end() {
    for (place, bytes) in at_every_place(&external(&[("location", "data")])) {
        for length in 0..bytes.len() {
            if let Ok(model) = Model::from_bytes(bytes[..length].to_vec().into()) {
                assert!(model.symbolic_graph().is_err(), "{place}: {length} of {} bytes", bytes.len());
            }
        }
    }
}

/// Models of the fuzzer's corpus, which have every operator between them. What is cut behind the whole graph may be a model.
#[test]
fn every_cut_of_twenty_models_is_an_error_or_has_the_whole_graph() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/onnx");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 20);
    for path in &paths[..20] {
        let bytes = fs::read(path).unwrap();
        let whole = ModelProto::decode(&bytes[..]).unwrap();
        for length in 0..bytes.len() {
            let cut = &bytes[..length];
            if Model::from_bytes(cut.to_vec().into()).and_then(|model| model.symbolic_graph()).is_ok() {
                let is_whole = ModelProto::decode(cut).is_ok_and(|model| model.graph == whole.graph);
                assert!(is_whole, "{}: {length} of {} bytes", path.display(), bytes.len());
            }
        }
    }
}

#[test]
fn the_door_answers_with_a_sentence() {
    let bench = Bench::new();
    let files: [&[u8]; 7] = [b"", b"\0", b"\x08", b"\x08\x08\x3a", b"\x3a\xff\xff\xff\xff\x0f", b"<html>", &[0xff; 16]];
    for bytes in files {
        let outcome = bench.run_model(bytes);
        assert_eq!(outcome.exit, crate::MODEL, "{bytes:?}: {}", outcome.stderr);
        assert!(outcome.stderr.starts_with("error: "), "{}", outcome.stderr);
    }
}
