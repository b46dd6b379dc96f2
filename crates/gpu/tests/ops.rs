//! Kernels of every family, run on the host and compared with reference evaluation.

mod host;

use host::{Case, PLAIN, check};
use precast_ir::op::Transpose;
use precast_tensor::DType;

#[test]
#[ignore = "not written yet"]
fn transposes() {
    check(&[Case::new(Transpose { perm: vec![1, 0] }, &[host::numbers(DType::F32, &[2, 3], 1, -1.0, 1.0)])], PLAIN);
}
