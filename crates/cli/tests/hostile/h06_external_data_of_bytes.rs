//! H6: onnxruntime #27430: a model given as bytes has no folder, so none of its locations means anything.

use precast::{ErrorKind, Model};

use crate::model::{at_every_place, external};

#[test]
fn external_data_of_a_model_in_memory_is_refused_wherever_it_is() {
    for location in ["data", "../outside", "/etc/passwd"] {
        for (place, bytes) in at_every_place(&external(&[("location", location)])) {
            let error = Model::from_bytes(bytes.into()).and_then(|model| model.symbolic_graph()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit, "{place}: {error}");
        }
    }
}
