//! Where the elements of a view lie in the dense value it was made from: reshape, transpose, broadcast and slice as an
//! offset and a stride for each axis. A kernel that reads with strides needs no copy of such a view.

use precast_ir::Op;
use precast_ir::op::Slice;

/// A view of a dense value: element [i, j, ..] is at `offset + i · strides[0] + j · strides[1] + ..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedView {
    /// Where the first element lies.
    pub offset: usize,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Distance of neighbours along each axis, in elements.
    pub strides: Vec<usize>,
}

impl StridedView {
    /// The whole value in row-major order.
    pub fn dense(shape: &[usize]) -> StridedView {
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        StridedView { offset: 0, shape: shape.to_vec(), strides }
    }

    /// This view after a node that only moves elements; `shape` is that of the node's result. None where the result has
    /// no strides, or the op does more.
    pub fn after(&self, op: &Op, shape: &[usize]) -> Option<StridedView> {
        match op {
            Op::Reshape(_) => self.reshaped(shape),
            Op::Transpose(op) => Some(self.transposed(&op.perm)),
            Op::Broadcast(_) => self.broadcast(shape),
            Op::Slice(op) => self.sliced(op, shape),
            _ => None,
        }
    }

    /// Output axis i is axis perm[i].
    pub fn transposed(&self, perm: &[usize]) -> StridedView {
        let pick = |list: &[usize]| perm.iter().map(|&axis| list[axis]).collect();
        StridedView { offset: self.offset, shape: pick(&self.shape), strides: pick(&self.strides) }
    }

    /// The view whose transpose by `perm` is this one.
    pub fn transposed_back(&self, perm: &[usize]) -> StridedView {
        let mut back = self.clone();
        for (axis, &from) in perm.iter().enumerate() {
            back.shape[from] = self.shape[axis];
            back.strides[from] = self.strides[axis];
        }
        back
    }

    /// Axes of size 1 repeated, and new ones in front.
    pub fn broadcast(&self, shape: &[usize]) -> Option<StridedView> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; shape.len()];
        for (axis, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            let target = shape[axis + missing];
            if size != target && size != 1 {
                return None;
            }
            strides[axis + missing] = if size == target { stride } else { 0 };
        }
        Some(StridedView { offset: self.offset, shape: shape.to_vec(), strides })
    }

    fn sliced(&self, op: &Slice, shape: &[usize]) -> Option<StridedView> {
        let mut view = StridedView { shape: shape.to_vec(), ..self.clone() };
        for (axis, &stride) in self.strides.iter().enumerate() {
            view.offset += op.start[axis].as_usize()? * stride;
            view.strides[axis] = usize::try_from(op.step[axis]).ok()? * stride;
        }
        (!shape.contains(&0)).then_some(view)
    }

    /// The same elements under another shape, if they have strides there: runs of old axes that lie one behind the other
    /// are cut into runs of new ones.
    pub fn reshaped(&self, shape: &[usize]) -> Option<StridedView> {
        let count: usize = shape.iter().product();
        if count == 0 || count != self.shape.iter().product() {
            return None;
        }
        let old: Vec<(usize, usize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
        let (mut strides, mut next_old, mut axis) = (vec![0; shape.len()], 0, 0);
        while axis < shape.len() {
            if shape[axis] == 1 {
                axis += 1;
                continue;
            }
            // The shortest runs of both with one size.
            let (first_old, first) = (next_old, axis);
            let (mut old_size, mut size) = (old.get(next_old)?.0, shape[axis]);
            next_old += 1;
            axis += 1;
            while old_size != size {
                if old_size < size {
                    old_size *= old.get(next_old)?.0;
                    next_old += 1;
                } else {
                    size *= shape.get(axis)?;
                    axis += 1;
                }
            }
            let run = &old[first_old..next_old];
            if run.windows(2).any(|pair| pair[0].1 != pair[1].1 * pair[1].0) {
                return None;
            }
            let mut stride = run.last()?.1;
            for at in (first..axis).rev() {
                strides[at] = stride;
                stride *= shape[at];
            }
        }
        Some(StridedView { offset: self.offset, shape: shape.to_vec(), strides })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(view: &StridedView) -> Vec<usize> {
        let count: usize = view.shape.iter().product();
        (0..count)
            .map(|index| {
                let (mut rest, mut at) = (index, view.offset);
                for axis in (0..view.shape.len()).rev() {
                    at += rest % view.shape[axis] * view.strides[axis];
                    rest /= view.shape[axis];
                }
                at
            })
            .collect()
    }

    #[test]
    fn reshaping_keeps_the_order_of_elements_or_gives_none() {
        let mut seed = 1u64;
        let mut next = |limit: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % limit
        };
        let shapes: [&[usize]; 8] =
            [&[2, 3, 4], &[24], &[1, 6, 4], &[4, 6], &[2, 12], &[2, 3, 2, 2], &[3, 8, 1], &[1, 2, 1, 12]];
        let mut found = 0;
        for _ in 0..2000 {
            let mut view = StridedView::dense(shapes[next(shapes.len())]);
            let mut perm: Vec<usize> = (0..view.shape.len()).collect();
            perm.rotate_left(next(3) % view.shape.len());
            view = view.transposed(&perm);
            let shape = shapes[next(shapes.len())];
            if let Some(reshaped) = view.reshaped(shape) {
                found += 1;
                assert_eq!(elements(&reshaped), elements(&view));
                assert_eq!(reshaped.shape, shape);
                let back = reshaped.transposed(&(0..shape.len()).rev().collect::<Vec<_>>());
                assert_eq!(back.transposed_back(&(0..shape.len()).rev().collect::<Vec<_>>()), reshaped);
            }
        }
        assert!(found > 500, "{found}");
        assert_eq!(StridedView::dense(&[2, 3]).transposed(&[1, 0]).reshaped(&[6]), None);
    }

    #[test]
    fn heads_of_a_joint_projection_have_strides() {
        let joint = StridedView::dense(&[1, 8, 360]);
        let heads = joint.reshaped(&[1, 8, 3, 8, 15]).unwrap().transposed(&[2, 0, 3, 1, 4]);
        assert_eq!((heads.shape, heads.strides), (vec![3, 1, 8, 8, 15], vec![120, 0, 15, 360, 1]));
    }
}
