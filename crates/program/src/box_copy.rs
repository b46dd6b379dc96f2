//! Copying between a request's tensor and the larger or smaller box of a Bucket: rows in with padding, rows out without
//! it. A plan is made once for a Binding; carrying it out allocates nothing.

use std::ops::Range;

/// One axis of a copy, outermost first in its plan. Offsets of its items are counted in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxAxis {
    /// Items to copy.
    pub count: usize,
    /// Items to add after them, each like the last.
    pub pad: usize,
    /// Bytes from an item to the next in the source.
    pub source_stride: usize,
    /// Bytes from an item to the next in the target.
    pub target_stride: usize,
}

/// What rows beyond a request's own hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PadContent {
    /// Copies of the last real row.
    #[default]
    LastRow,
    /// The same byte everywhere. Only tests ask for it, to show that a dim judged independent is: 0xff makes every float
    /// a NaN and every index -1.
    Poison(u8),
}

/// A copy of a box of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxCopy {
    axes: Vec<BoxAxis>,
    source_start: usize,
    target_start: usize,
    /// Bytes copied at once at the innermost place.
    run_bytes: usize,
    /// Rows added after each run, and the bytes of one.
    run_pad: usize,
    row_bytes: usize,
    /// Bytes that the source and the target must have.
    reach: (usize, usize),
}

/// An axis as the two sides see it: items of both sides, which of them are copied, and how many are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisSpan {
    /// Items of the source.
    pub source: usize,
    /// Items of the target.
    pub target: usize,
    /// First item copied.
    pub source_start: usize,
    /// Where it goes.
    pub target_start: usize,
    /// Items copied.
    pub count: usize,
    /// Items added after them.
    pub pad: usize,
}

impl AxisSpan {
    /// An axis that both sides have whole.
    pub fn whole(items: usize) -> AxisSpan {
        AxisSpan { source: items, target: items, source_start: 0, target_start: 0, count: items, pad: 0 }
    }
}

impl BoxCopy {
    /// The copy of these spans, outermost first, of elements of this size.
    pub fn new(spans: &[AxisSpan], element_bytes: usize) -> BoxCopy {
        let mut axes = Vec::new();
        let (mut source_stride, mut target_stride) = (element_bytes, element_bytes);
        let (mut source_start, mut target_start) = (0, 0);
        let (mut run_bytes, mut run_pad, mut row_bytes) = (element_bytes, 0, element_bytes);
        for span in spans.iter().rev() {
            source_start += span.source_start * source_stride;
            target_start += span.target_start * target_stride;
            // Whole inner axes, and the copied part of the first that is not, are one run.
            let is_run = axes.is_empty() && run_pad == 0 && source_stride == run_bytes && target_stride == run_bytes;
            if is_run {
                (row_bytes, run_pad) = (run_bytes, span.pad);
                run_bytes *= span.count;
            } else if span.count != 1 || span.pad != 0 {
                axes.push(BoxAxis { count: span.count, pad: span.pad, source_stride, target_stride });
            }
            source_stride *= span.source;
            target_stride *= span.target;
        }
        axes.reverse();
        let mut copy = BoxCopy { axes, source_start, target_start, run_bytes, run_pad, row_bytes, reach: (0, 0) };
        copy.reach = copy.find_reach();
        copy
    }

    /// Whether all of these spans together are one run of bytes on both sides, with nothing added: no copy is needed
    /// then, since the source can be read, or the target written, in place. Gives the runs' starts and length.
    pub fn as_one_run(&self) -> Option<(usize, usize, usize)> {
        let is_one = self.axes.is_empty() && self.run_pad == 0;
        is_one.then_some((self.source_start, self.target_start, self.run_bytes))
    }

    /// Where the first byte is read and where it goes.
    pub fn starts(&self) -> (usize, usize) {
        (self.source_start, self.target_start)
    }

    /// Bytes that the source and the target must have.
    pub fn reach(&self) -> (usize, usize) {
        self.reach
    }

    fn find_reach(&self) -> (usize, usize) {
        let (axes, item_bytes) = self.nest();
        let (mut source, mut target) = self.starts();
        let mut is_empty = item_bytes == 0;
        for axis in axes {
            is_empty |= axis.count == 0;
            source += axis.count.saturating_sub(1) * axis.source_stride;
            target += (axis.count + axis.pad).saturating_sub(1) * axis.target_stride;
        }
        if is_empty { (0, 0) } else { (source + item_bytes, target + item_bytes) }
    }

    /// The copy as whoever carries it out elsewhere needs it: axes, outermost first, around items of so many bytes, which
    /// lie together on both sides.
    pub fn nest(&self) -> (impl Iterator<Item = BoxAxis> + '_, usize) {
        let rows = BoxAxis {
            count: self.run_bytes.checked_div(self.row_bytes).unwrap_or(0),
            pad: self.run_pad,
            source_stride: self.row_bytes,
            target_stride: self.row_bytes,
        };
        let is_plain = self.run_pad == 0;
        let item_bytes = if is_plain { self.run_bytes } else { self.row_bytes };
        (self.axes.iter().copied().chain((!is_plain).then_some(rows)), item_bytes)
    }

    /// Copies.
    pub fn copy(&self, source: &[u8], target: &mut [u8], content: PadContent) {
        if self.run_bytes > 0 {
            self.copy_axes(&self.axes, &source[self.source_start..], &mut target[self.target_start..], content);
        }
    }

    fn copy_axes(&self, axes: &[BoxAxis], source: &[u8], target: &mut [u8], content: PadContent) {
        let Some((axis, inner)) = axes.split_first() else {
            target[..self.run_bytes].copy_from_slice(&source[..self.run_bytes]);
            pad(target, self.run_bytes, self.row_bytes, self.run_pad, content);
            return;
        };
        for item in 0..axis.count {
            let target = &mut target[item * axis.target_stride..];
            self.copy_axes(inner, &source[item * axis.source_stride..], target, content);
        }
        if axis.count > 0 {
            pad(target, axis.count * axis.target_stride, axis.target_stride, axis.pad, content);
        }
    }
}

/// Adds `count` items of this size from `end` on.
fn pad(target: &mut [u8], end: usize, item_bytes: usize, count: usize, content: PadContent) {
    let padding = end..end + count * item_bytes;
    match content {
        PadContent::Poison(byte) => target[padding].fill(byte),
        PadContent::LastRow => match item_bytes {
            4 => repeat::<4>(target, padding),
            8 => repeat::<8>(target, padding),
            _ => repeat_any(target, padding, item_bytes),
        },
    }
}

/// Fills a range with the item before it, read once: reading back what was just written would wait for the stores.
fn repeat<const BYTES: usize>(target: &mut [u8], range: Range<usize>) {
    let mut item = [0; BYTES];
    item.copy_from_slice(&target[range.start - BYTES..range.start]);
    target[range].as_chunks_mut().0.fill(item);
}

/// Fills a range with the item of any size before it; each copy doubles what there is to copy from.
fn repeat_any(target: &mut [u8], range: Range<usize>, item_bytes: usize) {
    let first = range.start - item_bytes;
    let mut filled = range.start;
    while filled < range.end {
        let bytes = (filled - first).min(range.end - filled);
        target.copy_within(first..first + bytes, filled);
        filled += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(count: usize, target: usize) -> AxisSpan {
        AxisSpan { source: count, target, source_start: 0, target_start: 0, count, pad: target - count }
    }

    fn copied(spans: &[AxisSpan], source: &[u8], content: PadContent) -> Vec<u8> {
        let mut target = vec![77; spans.iter().map(|span| span.target).product()];
        BoxCopy::new(spans, 1).copy(source, &mut target, content);
        target
    }

    #[test]
    fn padding_copies_the_last_row_of_every_block() {
        let spans = [AxisSpan::whole(2), padded(2, 3), AxisSpan::whole(1)];
        assert_eq!(copied(&spans, &[0, 1, 2, 3], PadContent::LastRow), [0, 1, 1, 2, 3, 3]);
        assert_eq!(copied(&spans, &[0, 1, 2, 3], PadContent::Poison(9)), [0, 1, 9, 2, 3, 9]);
    }

    #[test]
    fn two_axes_may_be_padded_at_once() {
        let spans = [padded(2, 3), padded(1, 2)];
        assert_eq!(copied(&spans, &[5, 6], PadContent::LastRow), [5, 5, 6, 6, 6, 6]);
    }

    #[test]
    fn many_rows_are_added_to_few() {
        let mut expected = vec![1, 2, 3, 4, 5, 6];
        expected.extend([4, 5, 6].repeat(9));
        assert_eq!(copied(&[padded(2, 11), AxisSpan::whole(3)], &[1, 2, 3, 4, 5, 6], PadContent::LastRow), expected);
        assert_eq!(BoxCopy::new(&[padded(2, 11), AxisSpan::whole(3)], 4).as_one_run(), None);
    }

    #[test]
    fn rows_are_taken_out_of_every_block() {
        let rows = AxisSpan { source: 3, target: 2, source_start: 0, target_start: 0, count: 2, pad: 0 };
        assert_eq!(copied(&[AxisSpan::whole(2), rows], &[0, 1, 9, 2, 3, 9], PadContent::LastRow), [0, 1, 2, 3]);
    }

    #[test]
    fn a_chunk_of_outer_rows_is_one_run() {
        let rows = AxisSpan { source: 5, target: 2, source_start: 3, target_start: 0, count: 2, pad: 0 };
        let copy = BoxCopy::new(&[rows, AxisSpan::whole(4)], 2);
        assert_eq!(copy.as_one_run(), Some((24, 0, 16)));
        let inner = BoxCopy::new(&[AxisSpan::whole(2), rows], 2);
        assert_eq!(inner.as_one_run(), None);
    }

    #[test]
    fn every_small_box_is_copied_as_one_element_at_a_time() {
        for (outer, rows, inner, start, bucket) in [
            (1, 4, 3, 0, 4),
            (2, 3, 2, 1, 4),
            (3, 5, 1, 2, 3),
            (1, 1, 1, 0, 8),
            (2, 2, 5, 0, 3),
            (1, 3, 4, 0, 9),
            (2, 3, 8, 1, 6),
        ] {
            let count = (rows - start).min(bucket);
            let span = AxisSpan {
                source: rows,
                target: bucket,
                source_start: start,
                target_start: 0,
                count,
                pad: bucket - count,
            };
            let source: Vec<u8> = (0..outer * rows * inner).map(|at| at as u8).collect();
            let mut expected = Vec::new();
            for block in 0..outer {
                for row in 0..bucket {
                    let row = (start + row).min(start + count - 1);
                    expected.extend((0..inner).map(|at| source[(block * rows + row) * inner + at]));
                }
            }
            let spans = [AxisSpan::whole(outer), span, AxisSpan::whole(inner)];
            assert_eq!(copied(&spans, &source, PadContent::LastRow), expected);
        }
    }

    #[test]
    fn the_nest_of_axes_says_the_same_as_the_copy() {
        let row = AxisSpan { source: 5, target: 4, source_start: 1, target_start: 0, count: 3, pad: 1 };
        for spans in [
            vec![row],
            vec![row, AxisSpan::whole(3)],
            vec![AxisSpan::whole(2), row, AxisSpan::whole(3)],
            vec![AxisSpan::whole(2), row, AxisSpan::whole(3), padded(2, 3), AxisSpan::whole(2)],
            vec![AxisSpan::whole(7)],
        ] {
            let source: Vec<u8> =
                (0..spans.iter().map(|span| span.source).product::<usize>()).map(|at| at as u8).collect();
            let copy = BoxCopy::new(&spans, 1);
            let mut target = vec![77; spans.iter().map(|span| span.target).product()];
            let (axes, item_bytes) = copy.nest();
            assert!(copy.reach().0 <= source.len() && copy.reach().1 == target.len(), "{:?}", copy.reach());
            let mut offsets = vec![copy.starts()];
            for axis in axes {
                let items = |(from, to): (usize, usize)| {
                    let item = move |at: usize| {
                        (from + at.min(axis.count - 1) * axis.source_stride, to + at * axis.target_stride)
                    };
                    (0..axis.count + axis.pad).map(item)
                };
                offsets = offsets.into_iter().flat_map(items).collect();
            }
            for (from, to) in offsets {
                target[to..to + item_bytes].copy_from_slice(&source[from..from + item_bytes]);
            }
            assert_eq!(target, copied(&spans, &source, PadContent::LastRow), "{spans:?}");
        }
    }

    #[test]
    fn empty_boxes_copy_nothing() {
        let spans = [AxisSpan::whole(0), padded(2, 3)];
        assert_eq!(copied(&spans, &[], PadContent::LastRow), Vec::<u8>::new());
    }
}
