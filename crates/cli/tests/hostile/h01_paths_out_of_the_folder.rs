//! H1: onnx CVE-2022-25882, CVE-2024-27318, CVE-2026-27489: a location that leaves the model's folder.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify;

use crate::model::{external, of_initializer};
use crate::{Bench, MODEL, REFUSED};

/// Spellings of a way out: with the file that is there, with none, through what exists and through what does not.
pub(crate) fn ways_out(bench: &Bench) -> Vec<String> {
    let outside = bench.outer().join("outside").display().to_string();
    let mut ways: Vec<String> = [
        "",
        ".",
        "./",
        "./.",
        "..",
        "../",
        "../outside",
        "./../outside",
        ".//../outside",
        "..//outside",
        "../../outside",
        "sub/../../outside",
        "sub/./../../outside",
        "sub//../../outside",
        "absent/../../outside",
        "sub/..",
        "sub/../..",
        "data/../../outside",
        "../model/../outside",
        "../model/data",
        "/",
        "//",
        "/etc/passwd",
        "//etc/passwd",
        "///etc/passwd",
        "data/",
        "sub/",
        "sub//data",
        "..\\outside",
        "sub\\..\\..\\outside",
        "C:\\outside",
        "C:/outside",
        "c:outside",
        "\\\\host\\share",
        "file:outside",
        "file:///etc/passwd",
        "http://host/x",
        "s3://bucket/x",
        "../outside\0",
        "\0",
        "sub/\0/data",
    ]
    .map(str::to_string)
    .to_vec();
    ways.push(outside.clone());
    ways.push(format!("/{outside}"));
    ways.push(format!("sub/../{outside}"));
    ways
}

/// Sees whether anybody opens a file.
struct Watch(OwnedFd);

impl Watch {
    fn new(path: &Path) -> Watch {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, path, inotify::WatchFlags::OPEN).unwrap();
        Watch(watch)
    }

    fn was_opened(&self) -> bool {
        inotify::Reader::new(&self.0, &mut [MaybeUninit::uninit(); 512]).next().is_ok()
    }
}

#[test]
fn forty_spellings_of_a_way_out_are_refused() {
    let bench = Bench::new();
    let ways = ways_out(&bench);
    assert!(ways.len() >= 40);
    let outside = bench.outer().join("outside");
    let watch = Watch::new(&outside);
    for way in ways {
        let stderr = bench.refusal(&of_initializer(external(&[("location", &way)])), REFUSED);
        assert!(stderr.contains("location"), "{way:?}: {stderr}");
        assert!(!watch.was_opened(), "{way:?} opened the file outside");
    }
    std::fs::read(&outside).unwrap();
    assert!(watch.was_opened(), "the watch sees what is opened");
}

#[test]
fn names_that_only_look_like_a_way_out_are_names_of_files() {
    let bench = Bench::new();
    for name in ["%2e%2e%2foutside", "...", "..data", "data..", "~", "$HOME", "data.", " data", "．．"] {
        let outcome = bench.run_model(&of_initializer(external(&[("location", name)])));
        assert_eq!(outcome.exit, MODEL, "{name}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("No such file"), "{name}: {}", outcome.stderr);
    }
    let outcome = bench.run_model(&of_initializer(external(&[("location", "sub/data")])));
    assert_eq!(outcome.exit, 0, "{}", outcome.stderr);
}
