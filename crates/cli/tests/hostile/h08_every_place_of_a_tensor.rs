//! H8: onnxruntime's sparse path: checks that some places of a tensor skip. Every place goes through the same door.

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
