//! H8: onnxruntime's sparse path: checks that some places of a tensor skip. Every place goes through the same door.

use precast::{ErrorKind, Model};

use crate::h01_paths_out_of_the_folder::ways_out;
use crate::model::{at_every_place, external};
use crate::{Bench, REFUSED};

#[test]
fn a_way_out_is_refused_wherever_a_tensor_can_be() {
    let bench = Bench::new();
    let outside = bench.outer().join("outside").display().to_string();
    for location in ["../outside", outside.as_str()] {
        for (place, bytes) in at_every_place(&external(&[("location", location)])) {
            let stderr = bench.refusal(&bytes, REFUSED);
            assert!(stderr.contains("location"), "{place}: {stderr}");
        }
    }
}

/// Each spelling of H1 at each place.
#[test]
fn every_spelling_is_refused_at_every_place() {
    let bench = Bench::new();
    for way in ways_out(&bench) {
        for (place, bytes) in at_every_place(&external(&[("location", &way)])) {
            std::fs::write(bench.path("m.onnx"), bytes).unwrap();
            let error = Model::open(&bench.path("m.onnx")).and_then(|model| model.symbolic_graph()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit, "{place}, {way:?}: {error}");
            assert!(error.to_string().contains("location"), "{place}, {way:?}: {error}");
        }
    }
}
