//! 8-bit activations on every instruction set and number of threads: only where asked, the same bits everywhere, near what f32
//! gives, and every row by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_ir::op::{Binary, BinaryFn, Dequantize, Matmul};
use precast_passes::{ActivationPrecision, Numerics, PassOptions};
use precast_program::{Bucket, Device, MemoryStore, Program, Target, decode, encode};
use precast_tensor::{DType, Tensor, Type};

const DEPTH: usize = 128;
const HIDDEN: usize = 600;
const COLUMNS: usize = 40;
const BLOCK: usize = 32;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729 + 13) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn input(rows: usize) -> Vec<f32> {
    // Rows of different sizes: one scale for all would lose the small ones.
    numbers(rows * DEPTH, 3).iter().enumerate().map(|(at, x)| x * (1 + at / DEPTH % 7) as f32).collect()
}

/// x · V · W + b: V is f32 on a grid of 16 levels, W has 8 bits in blocks.
fn graph(rows: usize) -> Graph {
    let levels = |count: usize| (0..count).map(|at| (at * 7919 % 255) as u8 as i8).collect::<Vec<i8>>();
    let on_grid = (0..HIDDEN * DEPTH).map(|at| if at % BLOCK == 0 { -1.0 } else { (at * 31 % 16) as f32 / 8.0 - 1.0 });
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [rows, DEPTH]));
    let v = graph.add_constant(Tensor::from_vec([HIDDEN, DEPTH], on_grid.collect::<Vec<f32>>()).unwrap());
    let w = graph.add_constant(Tensor::from_vec([COLUMNS, HIDDEN], levels(COLUMNS * HIDDEN)).unwrap());
    let blocks = HIDDEN.div_ceil(BLOCK);
    let scales = numbers(COLUMNS * blocks, 4).iter().map(|x| x / 100.0).collect::<Vec<f32>>();
    let scales = graph.add_constant(Tensor::from_vec([COLUMNS, blocks], scales).unwrap());
    let b = graph.add_constant(Tensor::from_vec([COLUMNS], numbers(COLUMNS, 5)).unwrap());
    let turned = Matmul { transpose_a: false, transpose_b: true };
    let hidden = graph.add(turned.clone(), &[x, v], &Default::default()).unwrap();
    let to_floats = Dequantize { to: DType::F32, axis: 1, block: BLOCK };
    let w = graph.add(to_floats, &[w, scales], &Default::default()).unwrap();
    let product = graph.add(turned, &[hidden, w], &Default::default()).unwrap();
    let y = graph.add(Binary { func: BinaryFn::Add }, &[product, b], &Default::default()).unwrap();
    graph.add_output("y", y);
    graph
}

fn compile(rows: usize, isa: Isa, threads: usize, activations: ActivationPrecision, store: &MemoryStore) -> Program {
    let numerics = Numerics { activations, ..Numerics::default() };
    let target = CpuTarget::new(isa, threads, PassOptions { numerics, ..PassOptions::default() });
    target.compile(&graph(rows), &Bucket::default(), store).unwrap()
}

fn kernels(program: &Program) -> Vec<&str> {
    program.steps.iter().map(|step| step.kernel.as_str()).collect()
}

/// What a Program computes, by way of its file.
fn run(rows: usize, isa: Isa, threads: usize, x: &[f32]) -> Vec<f32> {
    let store = MemoryStore::default();
    let program = compile(rows, isa, threads, ActivationPrecision::Int8, &store);
    assert_eq!(kernels(&program), ["gemm_exact.4bit+int8_rows", "gemm_blocks.8bit+int8_rows"]);
    assert_eq!(program.target, format!("cpu:{}+int8-activations threads={threads}", isa.name()));
    let program = Arc::new(decode(&encode(&program)).unwrap());
    let device = CpuDevice::new(threads);
    let loaded = device.load(&program, &store).unwrap();
    let mut y = vec![f32::NAN; rows * COLUMNS];
    let mut context = device.context(program.arena_bytes);
    context.run(&*loaded, &[bytemuck::cast_slice(x)], &mut [bytemuck::cast_slice_mut(&mut y)]).unwrap();
    y
}

fn relative_error(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = found.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    (apart / wanted.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

#[test]
fn results_are_near_and_the_same_bits_everywhere() {
    for rows in [1, 6, 31, 70] {
        let x = input(rows);
        let tensors = [Tensor::from_vec([rows, DEPTH], x.clone()).unwrap()];
        let plain = eval_graph(&graph(rows), &tensors).unwrap()[0].to_vec::<f32>().unwrap();
        let first = run(rows, Isa::Portable, 1, &x);
        let error = relative_error(&first, &plain);
        // Rows of so regular numbers cancel much of each other in the sums.
        assert!(error < 5e-2, "{rows} rows: {error}");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            for threads in [1, 2] {
                assert_eq!(run(rows, isa, threads, &x), first, "{} {rows}", isa.name());
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let rows = 9;
    let x = input(rows);
    let together = run(rows, Isa::detect(), 2, &x);
    for row in 0..rows {
        let alone = run(1, Isa::detect(), 2, &x[row * DEPTH..][..DEPTH]);
        assert_eq!(alone, together[row * COLUMNS..][..COLUMNS], "{row}");
    }
}

#[test]
fn without_the_option_nothing_is_narrowed() {
    let store = MemoryStore::default();
    let program = compile(3, Isa::Portable, 1, ActivationPrecision::F32, &store);
    assert_eq!(kernels(&program), ["gemm_exact.4bit", "gemm_blocks.8bit"]);
    assert_eq!(program.target, "cpu:portable threads=1");
}
