//! Signals and closed pipes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Bench, models};

#[test]
fn a_signal_ends_the_process_within_a_second_and_leaves_no_files() {
    for (signal, exit) in [("-INT", 130), ("-TERM", 143)] {
        let bench = Bench::with_model("m.onnx", &models::affine());
        let mut command = bench.command("perf m.onnx --duration 600");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(exit));
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(bench.names(), ["m.onnx"]);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let bench = Bench::with_model("m.onnx", &models::affine());
    let mut command = bench.command("inspect m.onnx --text");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let outcome = child.wait_with_output().unwrap();
    assert_eq!((outcome.status.code(), outcome.stderr), (Some(0), Vec::new()));
}
