//! 8-bit weights on every instruction set and number of threads: the kernel against the meaning of its nodes, near what
//! f32 gives, and every row by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::eval::eval_graph;
use precast_ir::op::{Binary, BinaryFn, Matmul, Unary, UnaryFn};
use precast_ir::{Graph, Op, ValueId};
use precast_passes::{Numerics, PassOptions, WeightPrecision};
use precast_program::{Bucket, Device, MemoryStore, Target, decode, encode};
use precast_tensor::{DType, Tensor, Type};

const DEPTH: usize = 70;
const HIDDEN: usize = 130;
const COLUMNS: usize = 40;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn input(rows: usize) -> Vec<f32> {
    // Rows of different sizes: one scale for all would lose the small ones.
    numbers(rows * DEPTH, 3).iter().enumerate().map(|(at, x)| x * (1 + at / DEPTH % 7) as f32).collect()
}

/// tanh(x · V) · W + b + r as exporters write it, with rows on two axes.
fn graph(rows: usize) -> Graph {
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [1, rows, DEPTH]));
    let r = graph.add_input("r", Type::new(DType::F32, [1, rows, COLUMNS]));
    let v = graph.add_constant(Tensor::from_vec([HIDDEN, DEPTH], numbers(DEPTH * HIDDEN, 1)).unwrap());
    let w = graph.add_constant(Tensor::from_vec([HIDDEN, COLUMNS], numbers(HIDDEN * COLUMNS, 2)).unwrap());
    let b = graph.add_constant(Tensor::from_vec([COLUMNS], numbers(COLUMNS, 4)).unwrap());
    let mut add = |op: Op, inputs: &[ValueId]| graph.add(op, inputs, &Default::default()).unwrap();
    let hidden = add(Matmul { transpose_a: false, transpose_b: true }.into(), &[x, v]);
    let hidden = add(Unary { func: UnaryFn::Tanh, alpha: 0.0, beta: 0.0 }.into(), &[hidden]);
    let product = add(Matmul { transpose_a: false, transpose_b: false }.into(), &[hidden, w]);
    let sum = add(Binary { func: BinaryFn::Add }.into(), &[product, b]);
    let y = add(Binary { func: BinaryFn::Add }.into(), &[sum, r]);
    graph.add_output("y", y);
    graph
}

fn target(isa: Isa, threads: usize, weights: WeightPrecision) -> CpuTarget {
    let numerics = Numerics { weights, ..Numerics::default() };
    CpuTarget::new(isa, threads, PassOptions { numerics, ..PassOptions::default() })
}

/// What a Program computes, by way of its file.
fn run(graph: &Graph, isa: Isa, threads: usize, x: &[f32], r: &[f32]) -> Vec<f32> {
    let store = MemoryStore::default();
    let program = target(isa, threads, WeightPrecision::Int8).compile(graph, &Bucket::default(), &store).unwrap();
    let kernels: Vec<&str> = program.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(kernels, ["gemm_dynamic+act", "gemm_dynamic+add"]);
    assert_eq!(program.target, format!("cpu:{}+int8 threads={threads}", isa.name()));
    let program = Arc::new(decode(&encode(&program)).unwrap());
    let device = CpuDevice::new(threads);
    let loaded = device.load(&program, &store).unwrap();
    let mut y = vec![f32::NAN; r.len()];
    let inputs: [&[u8]; 2] = [bytemuck::cast_slice(x), bytemuck::cast_slice(r)];
    let mut context = device.context(program.arena_bytes);
    context.run(&*loaded, &inputs, &mut [bytemuck::cast_slice_mut(&mut y)]).unwrap();
    y
}

fn relative_error(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = found.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    (apart / wanted.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

#[test]
fn the_kernel_computes_what_its_nodes_mean() {
    for rows in [1, 6, 31] {
        let graph = graph(rows);
        let (x, r) = (input(rows), numbers(rows * COLUMNS, 5));
        let tensors = [
            Tensor::from_vec([1, rows, DEPTH], x.clone()).unwrap(),
            Tensor::from_vec([1, rows, COLUMNS], r.clone()).unwrap(),
        ];
        let plain = eval_graph(&graph, &tensors).unwrap()[0].to_vec::<f32>().unwrap();
        let lowered = target(Isa::Portable, 1, WeightPrecision::Int8).optimise(&graph).unwrap();
        let meaning = eval_graph(&lowered, &tensors).unwrap()[0].to_vec::<f32>().unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for threads in [1, 2] {
                let found = run(&graph, isa, threads, &x, &r);
                // A tanh that rounds otherwise may move an element to the next of 255 levels.
                assert!(relative_error(&found, &meaning) < 1e-3, "{} {rows}", isa.name());
                assert!(relative_error(&found, &plain) < 2e-2, "{} {rows}", isa.name());
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let rows = 9;
    let (x, r) = (input(rows), numbers(rows * COLUMNS, 5));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
        let together = run(&graph(rows), isa, 2, &x, &r);
        for row in 0..rows {
            let (own_x, own_r) = (&x[row * DEPTH..][..DEPTH], &r[row * COLUMNS..][..COLUMNS]);
            let alone = run(&graph(1), isa, 2, own_x, own_r);
            assert_eq!(alone, together[row * COLUMNS..][..COLUMNS], "{} {row}", isa.name());
        }
    }
}

#[test]
fn without_the_option_nothing_is_narrowed() {
    let store = MemoryStore::default();
    let program =
        target(Isa::Portable, 1, WeightPrecision::F32).compile(&graph(3), &Bucket::default(), &store).unwrap();
    let same = CpuTarget::new(Isa::Portable, 1, PassOptions::default());
    assert_eq!(program, same.compile(&graph(3), &Bucket::default(), &store).unwrap());
    let kernels: Vec<&str> = program.steps.iter().map(|step| step.kernel.as_str()).collect();
    assert_eq!(kernels, ["gemm+act", "gemm+add"]);
    assert_eq!(program.target, "cpu:portable threads=1");
}
