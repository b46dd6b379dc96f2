//! Every file of `graphs/` is a test: the pass it names turns the first graph into the second, or leaves it `unchanged`.
//! Each pass must also change nothing when it runs again, and keep the meaning on random inputs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod meaning;

use std::path::{Path, PathBuf};

use precast_ir::attr::NoConstants;
use precast_ir::{Graph, text};
use precast_passes::pipeline::Class;
use precast_passes::{CANONICAL, FUSED, FastMath, Numerics, Pass, PassOptions, WeightPrecision, run_passes};

/// Relative error that rewrites of class F may have on graphs of a few nodes and numbers of ordinary size.
const FAST: f64 = 1e-3;

/// Passes whose graphs have larger constants than a file can hold, or that other machines want: the passes' own tests have them.
const CHANGED_ELSEWHERE: [&str; 3] = ["quantise_weights", "fuse_streams", "fuse_unpacks"];

fn pass(name: &str) -> &'static Pass {
    let passes = CANONICAL.iter().chain(FUSED);
    passes.into_iter().find(|pass| pass.name == name).unwrap_or_else(|| panic!("no pass '{name}'"))
}

fn apply(pass: &'static Pass, graph: &Graph) -> Graph {
    let numerics = Numerics { fast_math: FastMath::all(), weights: WeightPrecision::Int8, ..Numerics::default() };
    let options = PassOptions { numerics, ..PassOptions::default() };
    run_passes(graph, std::slice::from_ref(pass), &options).unwrap()
}

fn check(path: &Path) {
    let content = std::fs::read_to_string(path).unwrap();
    let (head, rest) = content.split_once('\n').unwrap();
    let pass = pass(head.strip_prefix("pass ").unwrap_or_else(|| panic!("{}: first line", path.display())));
    let (before, after) = rest.split_once("=>\n").unwrap_or_else(|| panic!("{}: no '=>'", path.display()));
    let graph = text::parse(before, &NoConstants).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let changed = apply(pass, &graph);
    let expected = if after.trim() == "unchanged" { before } else { after };
    assert_eq!(text::print(&changed).trim(), expected.trim(), "{}", path.display());
    assert_eq!(apply(pass, &changed), changed, "{}: the pass is not idempotent", path.display());
    let name = path.display().to_string();
    match pass.class {
        Class::Exact | Class::Rounding => meaning::assert_same(&graph, &changed, name),
        Class::Fast(_) => {
            meaning::assert_near(&graph, &changed, name, FAST);
            let plain = run_passes(&graph, std::slice::from_ref(pass), &PassOptions::default()).unwrap();
            assert_eq!(plain, graph, "{}: the pass runs without its option", path.display());
        }
    }
}

/// The files of the folder itself; those of its folders belong to other tests.
fn graph_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths
}

#[test]
fn every_graph_file_shows_what_its_pass_does() {
    let paths = graph_files();
    assert!(paths.len() >= 18, "found {}", paths.len());
    for path in paths {
        check(&path);
    }
}

#[test]
fn every_pass_has_a_graph_it_changes_and_one_it_leaves_alone() {
    let files: Vec<String> = graph_files().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    for pass in CANONICAL.iter().chain(FUSED) {
        let head = format!("pass {}\n", pass.name);
        let own: Vec<&String> = files.iter().filter(|file| file.starts_with(&head)).collect();
        let is_unchanged = |file: &&&String| file.trim_end().ends_with("unchanged");
        assert!(own.iter().any(|file| is_unchanged(&file)), "{} has no graph it leaves alone", pass.name);
        let is_in_files = own.iter().any(|file| !is_unchanged(&file));
        assert!(is_in_files || CHANGED_ELSEWHERE.contains(&pass.name), "{} has no graph it changes", pass.name);
    }
}
