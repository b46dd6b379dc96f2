//! Output types of requests that were seen before. A run must say what it writes before it runs; asking the Session for
//! it costs as much as a small model, so the last few answers are kept.

use std::sync::{Arc, PoisonError, RwLock};

use precast::{Argument, DType};

use crate::error::EpError;

/// Answers that are kept.
const KEPT: usize = 16;

/// An output of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputType {
    pub(crate) dtype: DType,
    /// As the runtime takes it.
    pub(crate) shape: Vec<i64>,
    pub(crate) bytes: usize,
}

impl OutputType {
    /// The type of an output of this shape, whose bytes fit into memory since the output does.
    pub(crate) fn new(dtype: DType, shape: &[usize]) -> OutputType {
        let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        OutputType { dtype, shape: shape.iter().map(|&size| size as i64).collect(), bytes }
    }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Known {
    inputs: Vec<Vec<usize>>,
    pub(crate) outputs: Vec<OutputType>,
}

impl Known {
    fn is_of(&self, inputs: &[Argument<'_>]) -> bool {
        self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(|(known, input)| known == input.shape)
    }
}

/// The last answers, newest first.
#[derive(Debug, Default)]
pub(crate) struct KnownShapes(RwLock<Vec<Arc<Known>>>);

impl KnownShapes {
    /// What is known of these inputs, or what `ask` says of them.
    pub(crate) fn get_or(
        &self,
        inputs: &[Argument<'_>],
        ask: impl FnOnce() -> Result<Vec<OutputType>, EpError>,
    ) -> Result<Arc<Known>, EpError> {
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.iter().find(|known| known.is_of(inputs)) {
            return Ok(known.clone());
        }
        drop(kept);
        let shapes = inputs.iter().map(|input| input.shape.to_vec()).collect();
        let known = Arc::new(Known { inputs: shapes, outputs: ask()? });
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.insert(0, known.clone());
        Ok(known)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn rows(shape: &[usize]) -> [Argument<'_>; 1] {
        [Argument { dtype: DType::F32, shape, bytes: &[] }]
    }

    #[test]
    fn an_answer_is_asked_for_once_until_others_have_driven_it_out() {
        let (shapes, asked) = (KnownShapes::default(), std::cell::Cell::new(0));
        let ask = |size: usize| {
            let known = shapes.get_or(&rows(&[size]), || {
                asked.set(asked.get() + 1);
                Ok(vec![OutputType::new(DType::F32, &[size, 2])])
            });
            assert_eq!(known.unwrap().outputs[0].shape, [size as i64, 2]);
        };
        ask(1);
        ask(1);
        assert_eq!(asked.get(), 1);
        (2..2 + KEPT).for_each(ask);
        ask(1);
        assert_eq!(asked.get(), 2 + KEPT);
    }
}
