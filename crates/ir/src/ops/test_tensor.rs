//! Short ways to write tensors and to run one op, for the tests of this room.

use precast_tensor::{DType, Dim, Tensor, Type};

use crate::error::EvalError;
use crate::op::Op;

/// An f32 tensor.
pub fn f32s(shape: &[usize], values: &[f64]) -> Tensor {
    floats(DType::F32, shape, values)
}

/// A tensor of a float type, values rounded.
pub fn floats(dtype: DType, shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(dtype, shape, values, true).unwrap()
}

/// An i64 tensor.
pub fn i64s(shape: &[usize], values: &[i128]) -> Tensor {
    ints(DType::I64, shape, values)
}

/// A tensor of an integer type or bool.
pub fn ints(dtype: DType, shape: &[usize], values: &[i128]) -> Tensor {
    Tensor::from_i128(dtype, shape, values).unwrap()
}

/// A bool tensor from 0 and 1.
pub fn bools(shape: &[usize], values: &[i128]) -> Tensor {
    ints(DType::Bool, shape, values)
}

/// The only output of an op.
pub fn eval(op: impl Into<Op>, inputs: &[Tensor]) -> Tensor {
    let mut outputs = op.into().eval(inputs).unwrap();
    assert_eq!(outputs.len(), 1);
    outputs.remove(0)
}

/// The sentence with which an op refuses its inputs.
pub fn eval_error(op: impl Into<Op>, inputs: &[Tensor]) -> String {
    op.into().eval(inputs).unwrap_err().to_string()
}

/// How an evaluation fails.
pub fn eval_failure(op: impl Into<Op>, inputs: &[Tensor]) -> EvalError {
    op.into().eval(inputs).unwrap_err()
}

/// The outputs' Types as the text form prints them; for an error its sentence.
pub fn infer(op: impl Into<Op>, inputs: &[&str]) -> String {
    let types: Vec<Type> = inputs.iter().map(|text| text.parse().unwrap()).collect();
    match op.into().infer(&types.iter().collect::<Vec<_>>()) {
        Ok(outputs) => outputs.iter().map(Type::to_string).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

/// Dims from their text form.
pub fn dims(texts: &[&str]) -> Vec<Dim> {
    texts.iter().map(|text| Dim::parse(text).unwrap()).collect()
}
