//! Whether two graphs mean the same, on random inputs by reference evaluation.

use precast_ir::Graph;
use precast_ir::eval::eval_graph;
use precast_tensor::{DType, Tensor, Type};

/// A small generator, so that a failing case repeats.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    pub fn tensor(&mut self, ty: &Type) -> Tensor {
        // Symbols stand for any size: 3 is one.
        let shape: Vec<usize> = ty.dims.iter().map(|dim| dim.as_usize().unwrap_or(3)).collect();
        let count: usize = shape.iter().product();
        if ty.dtype.is_float() {
            let elements: Vec<f64> = (0..count).map(|_| self.next(4001) as f64 / 1000.0 - 2.0).collect();
            Tensor::from_f64(ty.dtype, shape, &elements, true).unwrap()
        } else {
            let limit = if ty.dtype == DType::Bool { 2 } else { 3 };
            let elements: Vec<i128> = (0..count).map(|_| i128::from(self.next(limit))).collect();
            Tensor::from_i128(ty.dtype, shape, &elements).unwrap()
        }
    }
}

/// Relative error that rewrites of class R may have on graphs of a few nodes.
const ROUNDING: f64 = 1e-5;

/// Panics unless both graphs give the same outputs.
pub fn assert_same(before: &Graph, after: &Graph, name: String) {
    assert_near(before, after, name, ROUNDING);
}

/// Panics unless the outputs of both graphs differ by no more than a relative error.
pub fn assert_near(before: &Graph, after: &Graph, name: String, tolerance: f64) {
    let mut random = Random(7);
    for _ in 0..3 {
        let inputs: Vec<Tensor> = before.inputs().iter().map(|&input| random.tensor(before.ty(input))).collect();
        let expected = eval_graph(before, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = eval_graph(after, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.type_(), expected.type_(), "{name}");
            for (a, b) in found.to_f64_vec().into_iter().zip(expected.to_f64_vec()) {
                let is_near = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
                assert!(is_near, "{name}: {a} found where {b} is expected");
            }
        }
    }
}
