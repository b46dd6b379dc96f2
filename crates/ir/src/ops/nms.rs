//! Greedy non-maximum suppression, the box op of the index family: of overlapping boxes of one class only the one with
//! the highest score is kept.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::index::check_found;
use super::reduce::float_order;
use super::shape::{check_arity, dtype_error, extent, print_dims, read_floats, same_dim, write_ints};
use crate::error::{EvalError, InferError};
use crate::op::{Nms, Operation};

impl Operation for Nms {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity("nms", inputs, 2..=2)?;
        let (boxes, scores) = (inputs[0], inputs[1]);
        for input in [boxes, scores] {
            if !input.dtype.is_float() {
                return Err(dtype_error("nms", input.dtype));
            }
        }
        let fits = match (boxes.dims.as_slice(), scores.dims.as_slice()) {
            ([batch, count, corners], [score_batch, _, score_count]) => {
                same_dim(batch, score_batch).is_some()
                    && same_dim(count, score_count).is_some()
                    && same_dim(corners, &Dim::from(4)).is_some()
            }
            _ => false,
        };
        if !fits {
            let (found_boxes, found_scores) = (print_dims(&boxes.dims), print_dims(&scores.dims));
            let reason = format!("shapes {found_boxes} and {found_scores} where [B,N,4] and [B,C,N] are expected");
            return Err(InferError::new("nms", reason));
        }
        Ok(vec![Type { dtype: DType::I64, dims: vec![self.count.clone(), Dim::from(3)] }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let types: Vec<Type> =
            inputs.iter().map(|input| Type::new(input.dtype(), input.shape().iter().copied())).collect();
        self.infer(&types.iter().collect::<Vec<_>>())?;
        let boxes_max = extent("nms", &self.boxes_max)?;
        let (batches, classes, count) = (inputs[1].shape()[0], inputs[1].shape()[1], inputs[1].shape()[2]);
        let scores = read_floats(&inputs[1]);
        let numbers = read_floats(&inputs[0]);
        let boxes: Vec<Rectangle> = numbers.chunks_exact(4).map(|edges| self.rectangle(edges)).collect();
        let mut found = Vec::new();
        for batch in 0..batches {
            for class in 0..classes {
                let first = (batch * classes + class) * count;
                let kept = self.keep(&boxes[batch * count..][..count], &scores[first..][..count], boxes_max);
                found.extend(kept.into_iter().flat_map(|at| [batch as i128, class as i128, at as i128]));
            }
        }
        check_found("nms", &self.count, found.len() / 3)?;
        Ok(vec![write_ints("nms", DType::I64, &[found.len() / 3, 3], &found)?])
    }
}

/// A box by its lower and upper corner.
#[derive(Clone, Copy)]
struct Rectangle {
    lo: [f64; 2],
    hi: [f64; 2],
}

impl Rectangle {
    fn area(&self) -> f64 {
        (self.hi[0] - self.lo[0]) * (self.hi[1] - self.lo[1])
    }

    /// Intersection over union; 0 for boxes without area.
    fn overlap(&self, other: &Rectangle) -> f64 {
        let side = |axis: usize| (self.hi[axis].min(other.hi[axis]) - self.lo[axis].max(other.lo[axis])).max(0.0);
        let shared = side(0) * side(1);
        if self.area() <= 0.0 || other.area() <= 0.0 {
            return 0.0;
        }
        shared / (self.area() + other.area() - shared)
    }
}

impl Nms {
    /// From two corners in any order, or from centre and size.
    fn rectangle(&self, edges: &[f64]) -> Rectangle {
        let (a, b) = ([edges[0], edges[1]], [edges[2], edges[3]]);
        if self.center_point {
            return Rectangle {
                lo: [a[0] - b[0] / 2.0, a[1] - b[1] / 2.0],
                hi: [a[0] + b[0] / 2.0, a[1] + b[1] / 2.0],
            };
        }
        Rectangle { lo: [a[0].min(b[0]), a[1].min(b[1])], hi: [a[0].max(b[0]), a[1].max(b[1])] }
    }

    /// Indices of the kept boxes, best score first; of equal scores the lower index first.
    fn keep(&self, boxes: &[Rectangle], scores: &[f64], boxes_max: usize) -> Vec<usize> {
        let mut candidates: Vec<usize> =
            (0..boxes.len()).filter(|&at| !self.has_score_threshold || scores[at] > self.score_threshold).collect();
        candidates.sort_by(|&a, &b| float_order(&scores[b], &scores[a]));
        let mut kept: Vec<usize> = Vec::new();
        for at in candidates {
            if kept.len() == boxes_max {
                break;
            }
            if !kept.iter().any(|&other| boxes[at].overlap(&boxes[other]) > self.iou_threshold) {
                kept.push(at);
            }
        }
        kept
    }
}
