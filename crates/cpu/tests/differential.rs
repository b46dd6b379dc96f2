//! Every kernel against the reference evaluation, on cases that are data: `cases/*.cases` for single nodes,
//! `graphs/*.ir` for whole graphs, and products of functions, types and epilogues made in code. Each case runs with and
//! without the passes, on every instruction set of this machine, on one thread and on two, and allocates nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "differential/case.rs"]
mod case;
#[path = "differential/elementwise.rs"]
mod elementwise;
#[path = "differential/epilogue.rs"]
mod epilogue;
#[path = "differential/run.rs"]
mod run;
#[path = "differential/value.rs"]
mod value;

use std::collections::BTreeSet;

use precast_ir::Op;

use case::{Expects, read_cases, read_graphs};
use run::Judge;

fn check_file(stem: &str) {
    let mut judge = Judge::new();
    for case in read_cases(stem) {
        judge.check(&case);
    }
    judge.finish();
}

/// Files of single nodes.
const STEMS: [&str; 11] = [
    "attention",
    "conv",
    "elementwise",
    "index",
    "layout",
    "matmul",
    "norm",
    "quantize",
    "reduce",
    "sequence",
    "window",
];

macro_rules! file_tests {
    ($($test:ident $stem:literal)+) => { $(
        #[test]
        fn $test() {
            assert!(STEMS.contains(&$stem));
            check_file($stem);
        }
    )+ };
}

file_tests! {
    attention_behind_caches_equals_the_reference "attention"
    convolutions_equal_the_reference "conv"
    broadcasts_and_selects_equal_the_reference "elementwise"
    gathers_and_scatters_equal_the_reference "index"
    layouts_equal_the_reference "layout"
    matrix_products_equal_the_reference "matmul"
    norms_equal_the_reference "norm"
    quantisation_equals_the_reference "quantize"
    reductions_equal_the_reference "reduce"
    recurrent_layers_equal_the_reference "sequence"
    windows_equal_the_reference "window"
}

#[test]
fn functions_of_every_type_equal_the_reference() {
    let mut judge = Judge::new();
    for case in elementwise::functions() {
        judge.check(&case);
    }
    judge.finish();
}

#[test]
fn casts_equal_the_reference() {
    let mut judge = Judge::new();
    for case in elementwise::casts() {
        judge.check(&case);
    }
    judge.finish();
}

#[test]
fn fused_epilogues_equal_the_reference() {
    let mut judge = Judge::new();
    for case in epilogue::cases() {
        judge.check(&case);
    }
    judge.finish();
}

#[test]
fn whole_graphs_equal_the_reference() {
    let mut judge = Judge::new();
    for case in read_graphs() {
        judge.check(&case);
    }
    judge.finish();
}

/// Ops without a kernel of their own: views, what the host does, and what always runs by reference. `fused` is what the
/// passes make of whole graphs.
const WITHOUT_KERNEL: [&str; 15] = [
    "append_to_cache",
    "bitcast",
    "dim_value",
    "grid_sample",
    "if",
    "iota",
    "loop",
    "nms",
    "nonzero",
    "normal",
    "pool_indices",
    "reshape",
    "roi_align",
    "uniform",
    "fused",
];

#[test]
fn every_op_with_a_kernel_has_a_case() {
    let files = STEMS.iter().flat_map(|stem| read_cases(stem)).chain(elementwise::functions());
    let covered: BTreeSet<&str> = files
        .filter(|case| case.expects == Expects::Kernels)
        .flat_map(|case| case.graph.nodes().iter().map(|node| node.op.name()).collect::<Vec<_>>())
        .collect();
    let missing: Vec<&str> = Op::TABLE.iter().map(|info| info.name).filter(|name| !covered.contains(name)).collect();
    let unexpected: Vec<&&str> = missing.iter().filter(|name| !WITHOUT_KERNEL.contains(name)).collect();
    assert!(unexpected.is_empty(), "ops without a case: {unexpected:?}");
}
