//! H7: onnxruntime #28709: a location that means "the data is at this address". Here every location is the name of a file.

use crate::model::{external, of_initializer};
use crate::{Bench, MODEL};

#[test]
fn markers_are_plain_names_of_files_that_are_not_there() {
    let bench = Bench::new();
    let markers = [
        "*/_ORT_MEM_ADDR_/*",
        "*/_ORT_MEM_ADDR_",
        "_ORT_MEM_ADDR_",
        "_MEM_ADDR_",
        "__in_memory__",
        "memory",
        "0x7fff0000",
        "tag=data",
        "<in-memory>",
        "inline",
        ":memory:",
    ];
    for marker in markers {
        let entries = [("location", marker), ("offset", "140737488355328"), ("length", "100")];
        let outcome = bench.run_model(&of_initializer(external(&entries)));
        let is_plain = outcome.exit == MODEL && outcome.stderr.contains("No such file");
        // A drive letter or scheme is refused before anything is opened.
        let is_scheme = outcome.exit == crate::REFUSED && marker.contains(':');
        assert!(is_plain || is_scheme, "{marker}: {} {}", outcome.exit, outcome.stderr);
    }
}
