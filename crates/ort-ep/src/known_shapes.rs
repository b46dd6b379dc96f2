//! Output types of requests that were seen before. A run must say what it writes before it runs; asking the Session for
//! it costs as much as a small model, so the last few answers are kept.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use precast::{Argument, DType};

use crate::error::EpError;
use crate::placement::Placement;

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

/// The outputs of runs on inputs of the same shapes, and what was found out about them.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) types: Vec<OutputType>,
    /// Whether the element types are those that the runtime expects.
    pub(crate) are_checked: AtomicBool,
    pub(crate) placement: Placement,
}

impl Outputs {
    /// Outputs that nothing else is known of.
    pub(crate) fn new(types: Vec<OutputType>) -> Outputs {
        Outputs { types, are_checked: AtomicBool::new(false), placement: Placement::default() }
    }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Known {
    /// The rank and the sizes of each input, one after the other.
    inputs: Vec<usize>,
    pub(crate) outputs: Outputs,
}

impl Known {
    fn new(inputs: &[Argument<'_>], outputs: Outputs) -> Known {
        let inputs =
            inputs.iter().flat_map(|input| std::iter::once(input.shape.len()).chain(input.shape.iter().copied()));
        Known { inputs: inputs.collect(), outputs }
    }

    fn is_of(&self, inputs: &[Argument<'_>]) -> bool {
        let mut known = self.inputs.iter();
        let mut is_next = |size: usize| known.next() == Some(&size);
        let is_of =
            inputs.iter().all(|input| is_next(input.shape.len()) && input.shape.iter().all(|&size| is_next(size)));
        is_of && known.next().is_none()
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
        let known = Arc::new(Known::new(inputs, Outputs::new(ask()?)));
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
            assert_eq!(known.unwrap().outputs.types[0].shape, [size as i64, 2]);
        };
        ask(1);
        ask(1);
        assert_eq!(asked.get(), 1);
        (2..2 + KEPT).for_each(ask);
        ask(1);
        assert_eq!(asked.get(), 2 + KEPT);
    }

    #[test]
    fn shapes_are_told_apart_by_ranks_too() {
        let of = |shapes: &[&[usize]]| {
            let inputs: Vec<Argument<'_>> =
                shapes.iter().map(|&shape| Argument { dtype: DType::F32, shape, bytes: &[] }).collect();
            Known::new(&inputs, Outputs::new(Vec::new())).is_of(&[rows(&[2, 3]), rows(&[4])].concat())
        };
        assert!(of(&[&[2, 3], &[4]]));
        assert!(!of(&[&[2], &[3, 4]]) && !of(&[&[2, 3]]) && !of(&[&[2, 3], &[4], &[]]) && !of(&[&[2, 3], &[5]]));
    }
}
