//! Reference evaluation of large constants, some rows at a time. It computes in f64 and i128, so an op that takes a large
//! tensor at once would need many times the memory of its result.

use precast_tensor::{Tensor, TensorError};

use crate::error::EvalError;
use crate::op::Op;

/// Elements of the result that are computed at once.
const PART_ELEMENTS: usize = 1 << 18;

/// What `op.eval` gives. Where each element of the result depends on elements of its own place only, rows are evaluated
/// some at a time.
pub fn eval_in_parts(op: &Op, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    match parts(op, inputs) {
        Some(parts) => Ok(vec![parts.eval(op, inputs)?]),
        None => op.eval(inputs),
    }
}

/// How the result of an op is cut.
struct Parts {
    shape: Vec<usize>,
    /// Rows of the result, and of a part.
    rows: usize,
    part_rows: usize,
    /// A row is one element: operands have the shape of the result, or one element.
    is_flat: bool,
}

/// How to evaluate an op in parts, if that is possible and worth it.
fn parts(op: &Op, inputs: &[Tensor]) -> Option<Parts> {
    if !is_elementwise(op) {
        return None;
    }
    let types: Vec<_> = inputs.iter().map(Tensor::type_).collect();
    let output = op.infer(&types.iter().collect::<Vec<_>>()).ok()?;
    let shape = output.first()?.shape()?;
    let is_flat = inputs.iter().all(|input| input.shape() == shape || input.len() == 1);
    let count: usize = shape.iter().product();
    let rows = if is_flat { count } else { *shape.first()? };
    let part_rows = PART_ELEMENTS / count.checked_div(rows)?.max(1);
    (part_rows > 0 && part_rows < rows).then_some(Parts { shape, rows, part_rows, is_flat })
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Cast(_))
}

impl Parts {
    fn eval(&self, op: &Op, inputs: &[Tensor]) -> Result<Tensor, EvalError> {
        let fault = |error: TensorError| EvalError::value(op.name(), error.to_string());
        let (mut bytes, mut dtype) = (Vec::new(), None);
        for start in (0..self.rows).step_by(self.part_rows) {
            let end = self.rows.min(start + self.part_rows);
            let part = |tensor: &Tensor| self.rows_of(tensor, start, end).map_err(fault);
            let inputs: Vec<Tensor> = inputs.iter().map(part).collect::<Result<_, EvalError>>()?;
            for result in op.eval(&inputs)? {
                if bytes.is_empty() {
                    bytes.reserve_exact(result.as_bytes().len() / (end - start) * self.rows);
                }
                bytes.extend_from_slice(result.as_bytes());
                dtype = Some(result.dtype());
            }
        }
        let dtype = dtype.expect("a result that is worth cutting has rows");
        Tensor::new(dtype, self.shape.clone(), bytes.into()).map_err(fault)
    }

    /// The part of an operand that these rows of the result need: all of it where it is broadcast along them.
    fn rows_of(&self, tensor: &Tensor, start: usize, end: usize) -> Result<Tensor, TensorError> {
        if self.is_flat && tensor.len() == 1 {
            return tensor.reshaped([]);
        }
        if !self.is_flat && (tensor.rank() < self.shape.len() || tensor.shape()[0] != self.rows) {
            return Ok(tensor.clone());
        }
        let row_bytes = tensor.as_bytes().len() / self.rows;
        let mut shape = if self.is_flat { vec![0] } else { tensor.shape().to_vec() };
        shape[0] = end - start;
        Tensor::new(tensor.dtype(), shape, tensor.bytes().slice(start * row_bytes..end * row_bytes))
    }
}

#[cfg(test)]
mod tests {
    use precast_tensor::DType;

    use super::*;
    use crate::op::{Binary, BinaryFn, Cast};

    fn assert_same(op: impl Into<Op>, inputs: &[Tensor]) {
        let op = op.into();
        assert!(parts(&op, inputs).is_some(), "{op:?} is not cut");
        assert_eq!(eval_in_parts(&op, inputs).unwrap(), op.eval(inputs).unwrap());
    }

    #[test]
    fn parts_are_the_whole() {
        let (rows, columns) = (1003, 601);
        let bytes: Vec<u8> = (0..rows * columns).map(|index| (index * 7 % 251) as u8).collect();
        let x = Tensor::from_vec([rows, columns], bytes).unwrap();
        assert_same(Cast { to: DType::F32, saturate: true }, std::slice::from_ref(&x));
        let multiply = || Binary { func: BinaryFn::Mul };
        let vector = |shape: [usize; 2]| {
            Tensor::from_vec(shape, (0..shape[0] * shape[1]).map(|index| (index % 5) as u8).collect()).unwrap()
        };
        assert_same(multiply(), &[x.clone(), vector([rows, 1])]);
        assert_same(multiply(), &[vector([1, columns]), x.clone()]);
        assert_same(multiply(), &[x.clone(), vector([1, columns]).reshaped([columns]).unwrap()]);
        assert_same(multiply(), &[x, Tensor::scalar(3_u8)]);
        assert_same(multiply(), &[vector([rows, 1]), vector([1, columns])]);
    }

    #[test]
    fn few_long_rows_are_cut_too() {
        let x = Tensor::from_vec([2, 1, 300_000], (0..600_000).map(|index| (index % 17) as f32).collect()).unwrap();
        let multiply = || Binary { func: BinaryFn::Mul };
        assert_same(multiply(), &[x.clone(), Tensor::scalar(0.5_f32)]);
        assert_same(multiply(), &[Tensor::from_vec([1, 1, 1], vec![0.5_f32]).unwrap(), x.clone()]);
        assert_same(multiply(), &[x.clone(), x.clone()]);
        assert_same(Cast { to: DType::I32, saturate: true }, &[x]);
    }

    #[test]
    fn what_is_small_is_evaluated_at_once() {
        let cast = Op::from(Cast { to: DType::F32, saturate: true });
        for shape in [vec![], vec![0, 5], vec![4, 4]] {
            let x = Tensor::zeros(DType::U8, shape).unwrap();
            assert!(parts(&cast, std::slice::from_ref(&x)).is_none());
            assert_eq!(eval_in_parts(&cast, std::slice::from_ref(&x)).unwrap(), cast.eval(&[x]).unwrap());
        }
    }
}
