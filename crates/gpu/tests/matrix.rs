//! Products, convolutions and attentions on the host, against reference evaluation.

mod host;

use host::{Case, INDIRECT, PLAIN, WIDE, check, check_with, numbers};
use precast_gpu::tactics::{Tactic, candidates, lower_with};
use precast_ir::op::{Binary, BinaryFn, Conv, Matmul, Unary, UnaryFn};
use precast_ir::{Graph, ValueId};
use precast_tensor::{DType, Dim, Tensor};

fn matmul(transpose_a: bool, transpose_b: bool) -> Matmul {
    Matmul { transpose_a, transpose_b }
}

fn random(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    numbers(dtype, shape, seed, -1.0, 1.0)
}

/// A product of m × k and k × n.
fn product(dtype: DType, [m, n, k]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Case {
    let a = if transpose_a { [k, m] } else { [m, k] };
    let b = if transpose_b { [n, k] } else { [k, n] };
    Case::new(matmul(transpose_a, transpose_b), &[random(dtype, &a, 1), random(dtype, &b, 2)])
}

/// The names of all tactics of a case.
fn tactics(case: &Case) -> Vec<Tactic> {
    let arch = host::arch(32);
    let node = case.graph.nodes().last().expect("a case has a node");
    let site = precast_gpu::site::Site { graph: &case.graph, node, arch: &arch, layouts: &case.layouts };
    candidates(&site)
}

/// Every tactic of every case.
fn check_tactics(cases: &[Case]) {
    for case in cases {
        let tactics = tactics(case);
        assert!(tactics.len() > 2, "{}: {} tactics", case.name, tactics.len());
        for tactic in &tactics {
            let mut case = case.clone();
            case.name = format!("{} by {}", case.name, tactic.name());
            check_with(&[case], PLAIN, &|site| Ok(lower_with(site, tactic)));
        }
    }
}

#[test]
fn products_of_odd_sizes() {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::I32] {
        for sizes in [[1, 1, 1], [9, 17, 5], [33, 40, 24], [70, 66, 130], [16, 100, 256]] {
            for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
                cases.push(product(dtype, sizes, transpose_a, transpose_b));
            }
        }
    }
    check(&cases, PLAIN);
}
