//! H5: onnx hub CVE-2026-28500: trust in what was downloaded. There is no way to name a model that is not a file here; what
//! comes from a store needs a signature (`an_unsigned_program_of_a_store_is_not_fetched` in the cache room).

use crate::Bench;

/// The exit code of arguments that name nothing.
const USAGE: i32 = 2;

#[test]
fn an_address_is_the_name_of_a_file_that_is_not_there() {
    let bench = Bench::new();
    for address in ["https://host.invalid/m.onnx", "hub:resnet", "file:///etc/passwd", "s3://bucket/m.onnx"] {
        let outcome = bench.run(&format!("run {address}"));
        assert_eq!(outcome.exit, USAGE, "{address}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("No such file"), "{address}: {}", outcome.stderr);
    }
}
