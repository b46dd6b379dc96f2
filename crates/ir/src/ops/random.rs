//! Random samples from a counter-based generator (Philox 4x32-10): element i depends on the key and on i alone, so every
//! target gives the same samples in any order. Rounding to a narrow type may give the upper end of a uniform range.

use precast_tensor::{DType, Dim, Tensor, Type, philox};

use super::shape::{check_arity, count, dtype_error, infer_shape, write_floats};
use crate::error::{EvalError, InferError};
use crate::op::{Normal, Operation, Uniform};

const UNIFORM: &str = "uniform";
const NORMAL: &str = "normal";

impl Operation for Uniform {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        infer_samples(UNIFORM, inputs, self.to, &self.shape)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(UNIFORM, self, inputs)?;
        let sample = |at: usize| self.low + (self.high - self.low) * uniforms(self.key, at).0;
        let samples: Vec<f64> = (0..count(&shape)).map(sample).collect();
        Ok(vec![write_floats(UNIFORM, dtype, &shape, &samples)?])
    }
}

impl Operation for Normal {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        infer_samples(NORMAL, inputs, self.to, &self.shape)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(NORMAL, self, inputs)?;
        // Box-Muller; the radius takes 1 - u, which is never 0.
        let sample = |at: usize| {
            let (radius, angle) = uniforms(self.key, at);
            let radius = (-2.0 * libm::log(1.0 - radius)).sqrt();
            self.mean + self.deviation * radius * libm::cos(2.0 * std::f64::consts::PI * angle)
        };
        let samples: Vec<f64> = (0..count(&shape)).map(sample).collect();
        Ok(vec![write_floats(NORMAL, dtype, &shape, &samples)?])
    }
}

fn infer_samples(op: &'static str, inputs: &[&Type], to: DType, shape: &[Dim]) -> Result<Vec<Type>, InferError> {
    check_arity(op, inputs, 0..=0)?;
    if !to.is_float() {
        return Err(dtype_error(op, to));
    }
    Ok(vec![Type { dtype: to, dims: shape.to_vec() }])
}

/// Two uniform samples in 0..1 for an element, of 53 bits each: words 0 and 1 make the first, words 2 and 3 the second,
/// low word first.
fn uniforms(key: i64, at: usize) -> (f64, f64) {
    let (key, at) = (key as u64, at as u64);
    let words = philox([at as u32, (at >> 32) as u32, 0, 0], [key as u32, (key >> 32) as u32]);
    let uniform = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)) >> 11;
    let unit = 1.0 / (1u64 << 53) as f64;
    (uniform(words[0], words[1]) as f64 * unit, uniform(words[2], words[3]) as f64 * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_samples_lie_in_their_range_and_have_its_mean() {
        let op = Uniform { to: DType::F64, shape: vec![Dim::from(4096)], low: -1.0, high: 3.0, key: 7 };
        let samples = op.eval(&[]).unwrap()[0].to_f64_vec();
        assert!(samples.iter().all(|sample| (-1.0..3.0).contains(sample)));
        let mean = samples.iter().sum::<f64>() / 4096.0;
        assert!((mean - 1.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn normal_samples_have_their_mean_and_deviation() {
        let op = Normal { to: DType::F64, shape: vec![Dim::from(4096)], mean: 2.0, deviation: 0.5, key: -3 };
        let samples = op.eval(&[]).unwrap()[0].to_f64_vec();
        let mean = samples.iter().sum::<f64>() / 4096.0;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / 4096.0;
        assert!((mean - 2.0).abs() < 0.05 && (variance.sqrt() - 0.5).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn another_key_gives_other_samples_and_an_empty_shape_none() {
        let sample = |key, length: i64| {
            Normal { to: DType::F32, shape: vec![Dim::from(length)], mean: 0.0, deviation: 1.0, key }.eval(&[]).unwrap()
        };
        assert_eq!(sample(1, 3), sample(1, 3));
        assert_ne!(sample(1, 3), sample(2, 3));
        assert_eq!(sample(1, 0)[0].shape(), [0]);
    }
}
