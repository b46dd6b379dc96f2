//! H2: onnx CVE-2026-34447, CVE-2026-34446: a link, or a file that is no plain file, in the place of data.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::{external, of_initializer};
use crate::{Bench, REFUSED};

#[test]
fn links_pipes_devices_and_folders_are_refused_without_waiting() {
    let bench = Bench::new();
    symlink(bench.outer().join("outside"), bench.path("final")).unwrap();
    symlink(bench.path("data"), bench.path("inside")).unwrap();
    symlink(bench.outer(), bench.path("middle")).unwrap();
    symlink("loop", bench.path("loop")).unwrap();
    symlink("/dev/zero", bench.path("zero")).unwrap();
    fs::hard_link(bench.outer().join("outside"), bench.path("hard")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.path("pipe")).status().unwrap().success());
    // Only root may make a device; the link to one is refused for everybody.
    let device = Command::new("mknod").arg(bench.path("device")).args(["c", "1", "5"]).stderr(Stdio::null()).status();
    let is_made = device.is_ok_and(|status| status.success());
    let devices: &[&str] = if is_made { &["device"] } else { &[] };
    for name in ["final", "inside", "middle/outside", "loop", "zero", "hard", "pipe", "sub"].iter().chain(devices) {
        let stderr = bench.refusal(&of_initializer(external(&[("location", name)])), REFUSED);
        assert!(stderr.contains(name), "{name}: {stderr}");
    }
}

/// A name that is now a file and now a link out gives the file's bytes or a refusal, never the secret.
#[test]
fn a_name_that_changes_between_check_and_use_gives_nothing_away() {
    let bench = Bench::new();
    fs::write(bench.path("m.onnx"), of_initializer(external(&[("location", "swapped")]))).unwrap();
    let (plain, link) = (bench.path("plain"), bench.path("link"));
    let swapped = bench.path("swapped");
    let outside = bench.outer().join("outside");
    let is_done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                fs::write(&plain, [7; 100]).unwrap();
                fs::rename(&plain, &swapped).unwrap();
                symlink(&outside, &link).unwrap();
                fs::rename(&link, &swapped).unwrap();
            }
        });
        for _ in 0..20 {
            let outcome = bench.run("run m.onnx --output out");
            if outcome.exit == 0 {
                let bytes = fs::read(bench.path("out/y.npy")).unwrap();
                assert!(bytes.ends_with(&[7; 100]), "bytes of another file");
            } else {
                assert!([REFUSED, crate::MODEL].contains(&outcome.exit), "{}", outcome.stderr);
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
