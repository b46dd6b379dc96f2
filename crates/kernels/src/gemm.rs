//! f32 matrix products with a fused epilogue: one product, or a batch of equal shape.
//!
//! Weights are packed once with `pack_a` or `pack_b`; operands that are not packed are packed a cache block at a time
//! into the caller's scratch.

pub use crate::arithmetic::Arithmetic;
pub use crate::epilogue::{Activation, Bias, Epilogue};
use crate::gemm_drive::{Completion, DriveShape, Item, SourceB, drive, drive_scratch_len};
pub use crate::gemm_pack::{
    MatrixA, MatrixB, pack_a, pack_a_words, pack_b, pack_b_columns, pack_b_rows, pack_b_words, packed_b_len,
    panel_columns,
};
use crate::isa::{Exec, Isa};

/// Whether an operand was packed before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// Rows or columns of a plain matrix.
    Plain,
    /// The result of `pack_a` or `pack_b`.
    Packed,
}

impl MatrixA<'_> {
    /// Whether this operand was packed before.
    pub fn packing(self) -> Packing {
        match self {
            MatrixA::Rows { .. } | MatrixA::Columns { .. } => Packing::Plain,
            MatrixA::Packed(_) => Packing::Packed,
        }
    }
}

impl MatrixB<'_> {
    /// Whether this operand was packed before.
    pub fn packing(self) -> Packing {
        match self {
            MatrixB::Rows { .. } | MatrixB::Columns { .. } => Packing::Plain,
            MatrixB::Packed(_) => Packing::Packed,
        }
    }
}

/// Elements of scratch that `gemm` needs with a pool of this many threads; 0 when both operands are packed.
pub fn gemm_scratch_len(isa: Isa, threads: usize, m: usize, n: usize, k: usize, a: Packing, b: Packing) -> usize {
    gemm_scratch_len_in(Arithmetic::F32, isa, threads, [m, n, k], a, b)
}

/// The same for `gemm_in`.
pub fn gemm_scratch_len_in(
    arithmetic: Arithmetic,
    isa: Isa,
    threads: usize,
    [m, n, k]: [usize; 3],
    a: Packing,
    b: Packing,
) -> usize {
    let shape = DriveShape { items: 1, m, n, k, c_stride: n, arithmetic };
    drive_scratch_len(isa, threads, &shape, a == Packing::Plain, b == Packing::Plain)
}

/// C = activation(A·B + bias + residual), m × n, rows of C `c_stride` apart. Panics when a slice is too short.
pub fn gemm(
    exec: Exec,
    m: usize,
    n: usize,
    k: usize,
    a: MatrixA,
    b: MatrixB,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &Epilogue,
    scratch: &mut [f32],
) {
    gemm_in(Arithmetic::F32, exec, [m, n, k], a, b, c, c_stride, epilogue, scratch);
}

/// The same with another arithmetic, for which packed operands were packed.
pub fn gemm_in(
    arithmetic: Arithmetic,
    exec: Exec,
    [m, n, k]: [usize; 3],
    a: MatrixA,
    b: MatrixB,
    c: &mut [f32],
    c_stride: usize,
    epilogue: &Epilogue,
    scratch: &mut [f32],
) {
    let shape = DriveShape { items: 1, m, n, k, c_stride, arithmetic };
    let item = |_| Item { a, b: SourceB::Matrix(b), c_start: 0, bias: epilogue.bias };
    let completion = Completion { scale: 1.0, epilogue };
    let (packs_a, packs_b) = (a.packing() == Packing::Plain, b.packing() == Packing::Plain);
    drive(exec, &shape, &item, packs_a, packs_b, &completion, c, scratch);
}

/// How the matrices of a batched operand are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Element (row, column) is at `row * stride + column`.
    Rows,
    /// Element (row, column) is at `column * stride + row`.
    Columns,
}

/// Where the matrices of one operand of a batch lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchedOperand {
    /// Rows or columns.
    pub order: Order,
    /// From one row (or column) to the next.
    pub stride: usize,
    /// From one matrix to the next; 0 when all share one.
    pub batch_stride: usize,
}

/// A batch of products of one shape: C[i] = activation(alpha·A[i]·B[i] + bias + residual).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BatchedGemm {
    /// How many products.
    pub batch: usize,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// The left matrices, m × k.
    pub a: BatchedOperand,
    /// The right matrices, k × n.
    pub b: BatchedOperand,
    /// From one row of C to the next.
    pub c_stride: usize,
    /// From one C to the next; at least one whole C, since they must not overlap.
    pub c_batch_stride: usize,
    /// Factor of the products.
    pub alpha: f32,
}

/// The right operand of a batch.
#[derive(Clone, Copy, Debug)]
pub enum BatchB<'a> {
    /// Plain matrices, as `BatchedGemm::b` says.
    Plain(&'a [f32]),
    /// One matrix for all products, the result of `pack_b`.
    Packed(&'a [f32]),
}

/// Elements of scratch that `gemm_batched` needs with a pool of this many threads.
pub fn gemm_batched_scratch_len(isa: Isa, threads: usize, batched: &BatchedGemm, b: Packing) -> usize {
    drive_scratch_len(isa, threads, &batched.drive_shape(), true, b == Packing::Plain)
}

/// Computes a batch of products. The bias is the same for each; the residual is laid out like `c`. Panics when a
/// slice is too short or the results overlap.
pub fn gemm_batched(
    exec: Exec,
    batched: &BatchedGemm,
    a: &[f32],
    b: BatchB,
    c: &mut [f32],
    epilogue: &Epilogue,
    scratch: &mut [f32],
) {
    let BatchedGemm { batch, m, n, .. } = *batched;
    if batch > 1 && m > 0 {
        assert!(batched.c_batch_stride >= (m - 1) * batched.c_stride + n, "the results of a batch overlap");
    }
    let item = |index: usize| {
        let data = &a[(index * batched.a.batch_stride).min(a.len())..];
        let stride = batched.a.stride;
        let a = match batched.a.order {
            Order::Rows => MatrixA::Rows { data, stride },
            Order::Columns => MatrixA::Columns { data, stride },
        };
        let b = match b {
            BatchB::Packed(data) => MatrixB::Packed(data),
            BatchB::Plain(data) => {
                let data = &data[(index * batched.b.batch_stride).min(data.len())..];
                let stride = batched.b.stride;
                match batched.b.order {
                    Order::Rows => MatrixB::Rows { data, stride },
                    Order::Columns => MatrixB::Columns { data, stride },
                }
            }
        };
        Item { a, b: SourceB::Matrix(b), c_start: index * batched.c_batch_stride, bias: epilogue.bias }
    };
    let completion = Completion { scale: batched.alpha, epilogue };
    let packs_b = matches!(b, BatchB::Plain(_));
    drive(exec, &batched.drive_shape(), &item, true, packs_b, &completion, c, scratch);
}

impl BatchedGemm {
    fn drive_shape(&self) -> DriveShape {
        let arithmetic = Arithmetic::F32;
        DriveShape { items: self.batch, m: self.m, n: self.n, k: self.k, c_stride: self.c_stride, arithmetic }
    }
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
