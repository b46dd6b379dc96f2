//! The largest or smallest elements along an axis, in order. Of equal elements the first comes first; NaN is the largest
//! and equals itself, −0 equals 0.

use crate::isa::Exec;
use crate::pool::{SharedMut, share};

/// Which elements are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extreme {
    /// The largest, in descending order.
    Largest,
    /// The smallest, in ascending order.
    Smallest,
}

/// Lines along an axis and how many elements of each are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopkShape {
    /// Product of the sizes before the axis.
    pub outer: usize,
    /// Size of the axis.
    pub axis: usize,
    /// Product of the sizes after the axis.
    pub inner: usize,
    /// Elements that are taken of each line; at most `axis`.
    pub k: usize,
}

impl TopkShape {
    /// Whether `topk_f32` covers it: positions must fit into half of a rank.
    pub fn is_covered(&self) -> bool {
        self.k <= self.axis && u32::try_from(self.axis).is_ok()
    }

    fn lines(&self) -> usize {
        self.outer * self.inner
    }

    fn parts(&self, threads: usize) -> usize {
        // A part of less than this many elements is not worth a hand-over.
        const PART_ELEMENTS_MIN: usize = 4096;
        threads.min(self.lines()).min(self.lines() * self.axis / PART_ELEMENTS_MIN).max(1)
    }

    /// Elements of scratch that `topk_f32` needs on up to this many threads.
    pub fn scratch_len(&self, threads: usize) -> usize {
        self.parts(threads) * self.axis
    }
}

/// A number that is larger the earlier an element comes: its value as an unsigned integer of the same order, then the places
/// behind it.
fn rank(extreme: Extreme, value: f32, position: usize) -> u64 {
    const SIGN: u32 = 1 << 31;
    // Adding 0 makes 0 of −0.
    let bits = (value + 0.0).to_bits();
    let ascending = if value.is_nan() {
        u32::MAX
    } else if bits & SIGN == 0 {
        bits | SIGN
    } else {
        !bits
    };
    let order = if extreme == Extreme::Largest { ascending } else { !ascending };
    u64::from(order) << 32 | u64::from(!(position as u32))
}

fn position_of(rank: u64) -> usize {
    !(rank as u32) as usize
}

/// Writes the elements that are taken of each line and their positions along the axis. Panics when a slice is too short or the
/// shape is not covered.
pub fn topk_f32(
    exec: &Exec,
    extreme: Extreme,
    shape: &TopkShape,
    src: &[f32],
    scratch: &mut [u64],
    values: &mut [f32],
    positions: &mut [i64],
) {
    let TopkShape { axis, inner, k, .. } = *shape;
    if shape.lines() == 0 || k == 0 {
        return;
    }
    assert!(shape.is_covered(), "{shape:?}");
    assert!(src.len() >= shape.lines() * axis, "{} elements for {shape:?}", src.len());
    let parts = shape.parts(exec.threads());
    let (scratch, values, positions) = (SharedMut::new(scratch), SharedMut::new(values), SharedMut::new(positions));
    exec.pool().run(parts, &|part| {
        // SAFETY: every part has its own stretch of the scratch.
        let ranks = unsafe { scratch.slice(part * axis, axis) };
        for line in share(shape.lines(), parts, part) {
            let (outer, inner_at) = (line / inner, line % inner);
            let elements = src[outer * axis * inner + inner_at..].iter().step_by(inner);
            for ((position, rank_of), value) in ranks.iter_mut().enumerate().zip(elements) {
                *rank_of = rank(extreme, *value, position);
            }
            if k < axis {
                ranks.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
            }
            let taken = &mut ranks[..k];
            taken.sort_unstable_by(|a, b| b.cmp(a));
            for (place, rank) in taken.iter().enumerate() {
                let position = position_of(*rank);
                let target = (outer * k + place) * inner + inner_at;
                // SAFETY: every place of every line belongs to one part.
                let (value, index) = unsafe { (values.slice(target, 1), positions.slice(target, 1)) };
                value[0] = src[(outer * axis + position) * inner + inner_at];
                index[0] = position as i64;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::pool::ThreadPool;
    use crate::test_data::Lcg;

    fn run(extreme: Extreme, shape: &TopkShape, src: &[f32], threads: usize) -> (Vec<f32>, Vec<i64>) {
        let pool = ThreadPool::new(threads);
        let exec = Exec::new(Isa::detect(), &pool).unwrap();
        let count = shape.outer * shape.k * shape.inner;
        let (mut values, mut positions) = (vec![f32::NAN; count], vec![-1; count]);
        let mut scratch = vec![0; shape.scratch_len(threads)];
        topk_f32(&exec, extreme, shape, src, &mut scratch, &mut values, &mut positions);
        (values, positions)
    }

    #[test]
    fn ties_zeros_and_nans_are_in_order() {
        let src = [1.0, f32::NAN, -0.0, 3.0, 0.0, -f32::NAN, f32::INFINITY, -2.0, 3.0];
        let shape = TopkShape { outer: 1, axis: 9, inner: 1, k: 9 };
        let (_, positions) = run(Extreme::Largest, &shape, &src, 1);
        assert_eq!(positions, [1, 5, 6, 3, 8, 0, 2, 4, 7]);
        let (values, positions) = run(Extreme::Smallest, &shape, &src, 1);
        assert_eq!(positions, [7, 2, 4, 0, 3, 8, 6, 1, 5]);
        assert!(values[1].is_sign_negative() && values[2].is_sign_positive(), "elements keep their bits");
    }

    #[test]
    fn every_line_is_that_of_a_stable_sort() {
        let mut lcg = Lcg::new(4);
        for (outer, axis, inner, k) in
            [(1, 20_000, 1, 300), (3, 50, 1, 50), (4, 6000, 1, 1), (2, 9, 5, 4), (5, 0, 2, 0)]
        {
            let shape = TopkShape { outer, axis, inner, k };
            // Few different values, so that there are ties.
            let src: Vec<f32> = lcg.floats(outer * axis * inner).iter().map(|x| (x * 100.0).round()).collect();
            for extreme in [Extreme::Largest, Extreme::Smallest] {
                let first = run(extreme, &shape, &src, 1);
                for line in 0..outer * inner {
                    let at = |position: usize| src[(line / inner * axis + position) * inner + line % inner];
                    let mut order: Vec<usize> = (0..axis).collect();
                    order.sort_by(|&a, &b| match extreme {
                        Extreme::Largest => at(b).total_cmp(&at(a)),
                        Extreme::Smallest => at(a).total_cmp(&at(b)),
                    });
                    for (place, &position) in order.iter().take(k).enumerate() {
                        let target = (line / inner * k + place) * inner + line % inner;
                        assert_eq!((first.0[target], first.1[target]), (at(position), position as i64), "{shape:?}");
                    }
                }
                assert_eq!(run(extreme, &shape, &src, 3), first);
            }
        }
    }
}
