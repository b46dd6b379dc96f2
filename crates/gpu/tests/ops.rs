//! Kernels of every family, run on the host and compared with reference evaluation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod host;

#[path = "ops/attention.rs"]
mod attention;
#[path = "ops/batch.rs"]
mod batch;
#[path = "ops/elementwise.rs"]
mod elementwise;
#[path = "ops/fused.rs"]
mod fused;
#[path = "ops/index.rs"]
mod index;
#[path = "ops/layout.rs"]
mod layout;
#[path = "ops/norm.rs"]
mod norm;
#[path = "ops/quantize.rs"]
mod quantize;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/sequence.rs"]
mod sequence;
#[path = "ops/window.rs"]
mod window;

use host::device::{self, Rig};
use host::{Content, INDIRECT, PLAIN, Plan, run_plans};
use precast_fake_driver::Fake;
use precast_gpu::kernel::Launch;
use precast_tensor::DType;

/// A kernel that does `action` with `x`, an operand of 4 bytes, and `y`, a result of 4 bytes.
fn action_plan(action: &str) -> Plan {
    let text = format!(
        "KERNEL(act, 64, Arg<i32, 0> x_arg, Arg<i32, 1> y_arg) {{ i32 *x = x_arg.get(), *y = y_arg.get(); {action} }}"
    );
    let launch = Launch {
        entry: "act".to_string(),
        text,
        grid: [1, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 0,
        operands: Vec::new(),
        scalars: Vec::new(),
        row_bytes: Vec::new(),
    };
    Plan {
        name: "action".to_string(),
        buffers: vec![Content::Bytes(vec![7, 0, 0, 0]), Content::Unset(4)],
        launches: vec![(launch, vec![0, 1])],
        outputs: vec![(1, DType::I32, vec![1], false)],
    }
}

fn run_action(action: &str) -> Result<Vec<f64>, String> {
    Ok(run_plans(&[action_plan(action)], PLAIN)?[0][0].to_f64_vec())
}

#[test]
fn the_harness_finds_what_kernels_do_wrong() {
    if device::asked().is_some() {
        // A device has other ways to say so, and may wait for ever at a barrier.
        return;
    }
    assert_eq!(run_action("if (threadIdx.x == 0) y[0] = x[0];"), Ok(vec![7.0]));
    assert_eq!(run_action(""), Ok(vec![-1.0]));
    let message = |action: &str| run_action(action).unwrap_err();
    assert!(message("y[1] = 0;").contains("buffer 1 of 4 bytes has been written at 4"));
    assert!(message("y[-1] = 0;").contains("has been written at -4"));
    assert!(message("x[0] = 0;").contains("operand 0 has been written"));
    assert!(message("if (threadIdx.x < 8) sync_block(); else sync_warp();").contains("wait at different barriers"));
    assert!(message("y[0] = missing;").contains("missing"));
}

#[test]
fn cases_run_on_a_device_as_on_the_host() {
    if device::asked().is_some() {
        // All other tests say so.
        return;
    }
    let fake = Fake::new(1);
    let rig = Rig::open(precast_driver::Vendor::Cuda, Some(fake.path())).unwrap();
    let run = |action: &str, mode| Ok(rig.run(&[action_plan(action)], mode)?[0][0].to_f64_vec());
    for mode in [PLAIN, INDIRECT] {
        assert_eq!(run("if (threadIdx.x == 0) y[0] = x[0];", mode), Ok(vec![7.0]));
        assert_eq!(run("", mode), Ok(vec![-1.0]));
        assert_eq!(run("if (threadIdx.x == 0) x[0] = 0;", mode), Err("action: operand 0 has been written".to_string()));
    }
    drop(rig);
    fake.assert_clean();
}
