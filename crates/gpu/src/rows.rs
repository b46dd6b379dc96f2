//! Moving rows on the device between a caller's buffers and a Program's: padded on the way in, without the padding on the way
//! out, and for buffers that kernels cannot take as they are. One launch moves all buffers of a side. What it moves stands in
//! the table beside the addresses, so that one capture serves any buffers and any number of rows. A second kernel copies a few
//! bytes between pinned and device memory. Where kernels take buffers with fewer rows, nothing is moved: the table says where
//! their rows end.

use precast_driver::LaunchShape;
use precast_program::{BoxCopy, ConstantRef, Program};

/// Names of the kernels.
pub(crate) const ENTRY: &str = "move_rows";
pub(crate) const COPY_ENTRY: &str = "copy_units";
/// Threads of a block.
pub(crate) const THREADS: u32 = 256;
/// Axes of a move beside its items.
const AXES_MAX: usize = 4;
/// Words of a move: source, target, units in all, bytes of a unit as a power of two, units of an item, and for each axis,
/// outermost first, items to copy, items to write, and both strides.
pub(crate) const MOVE_WORDS: usize = 5 + 4 * AXES_MAX;
/// Most blocks for one buffer: more would only wait for each other.
const BLOCKS_MAX: u64 = 1024;
/// Bytes that a thread moves at once where everything is aligned.
const UNIT_BYTES_MAX: u64 = 16;

/// Words of a caller's buffer in the table: its address, the bytes that it has, and those that it lacks (`CallersRows`).
pub(crate) const ENTRY_WORDS: usize = 3;
/// The bytes that a whole buffer is said to have: more than anyone reads, and whole elements of any size.
const WHOLE_BYTES: u64 = 1 << 62;

/// The words of a buffer that has all rows.
pub(crate) fn whole(address: u64) -> [u64; ENTRY_WORDS] {
    [address, WHOLE_BYTES, 0]
}

/// The first rows of a Port in a caller's buffer, where they lie as the Port has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FirstRows {
    /// Where they begin in the caller's buffer.
    pub(crate) start: u64,
    /// Bytes that there are, and those of the rows that are missing.
    bytes: u64,
    missing: u64,
}

impl FirstRows {
    /// What a copy into a Port (or out of it) brings, if kernels can do without it: the Port's first rows in one piece, at least
    /// as many as are missing, all in multiples of `row_bytes`.
    pub(crate) fn of(copy: &BoxCopy, is_input: bool, port_bytes: u64, row_bytes: u64) -> Option<FirstRows> {
        let (starts, (mut axes, item_bytes)) = (copy.starts(), copy.nest());
        let (own_start, port_start) = if is_input { starts } else { (starts.1, starts.0) };
        let bytes = match (axes.next(), is_input) {
            (Some(axis), true) => {
                let is_dense = axis.source_stride == item_bytes && axis.target_stride == item_bytes;
                let is_filled = ((axis.count + axis.pad) * item_bytes) as u64 == port_bytes;
                (is_dense && is_filled && axes.next().is_none()).then_some(axis.count * item_bytes)?
            }
            (None, true) if item_bytes as u64 == port_bytes => item_bytes,
            (None, false) => item_bytes,
            (Some(_), false) | (None, true) => return None,
        } as u64;
        let missing = port_bytes.checked_sub(bytes)?;
        let is_whole = row_bytes > 0 && bytes.is_multiple_of(row_bytes) && missing.is_multiple_of(row_bytes);
        (port_start == 0 && missing <= bytes && is_whole).then_some(FirstRows {
            start: own_start as u64,
            bytes,
            missing,
        })
    }

    /// The words of a buffer whose rows begin at this address.
    pub(crate) fn words(&self, address: u64) -> [u64; ENTRY_WORDS] {
        [address, self.bytes, self.missing]
    }
}

/// The most bytes that a kernel copies from or to pinned memory. A copy engine is as fast with more bytes, but handing over to
/// it and back costs several µs of a capture that else consists of kernels.
pub(crate) const KERNEL_COPY_BYTES_MAX: usize = 128 << 10;

/// The kernels, after the prelude. Rows beyond the source's are copies of its last.
pub(crate) fn text() -> String {
    format!(
        r#"template <class T> DEVICE void move_units(const u64 (&move)[{MOVE_WORDS}]) {{
    u32 total = (u32)move[2], unit_log = (u32)move[3], item_units = (u32)move[4];
    for (u32 at = blockIdx.x * {THREADS}u + threadIdx.x; at < total; at += gridDim.x * {THREADS}u) {{
        u32 rest = at / item_units;
        u64 inside = (u64)(at - rest * item_units) << unit_log;
        u64 from = move[0] + inside, to = move[1] + inside;
        UNROLL for (int axis = {AXES_MAX} - 1; axis >= 0; axis--) {{
            u32 count = (u32)move[5 + 4 * axis], extent = (u32)move[6 + 4 * axis];
            if (extent == 1) continue;
            u32 outer = rest / extent, item = rest - outer * extent;
            rest = outer;
            from += (item < count ? item : count - 1) * move[7 + 4 * axis];
            to += item * move[8 + 4 * axis];
        }}
        *(T *)to = *(const T *)from;
    }}
}}
KERNEL_FLAT({ENTRY}, {THREADS}, const u64 *moves) {{
    start_next();
    // The table was written before the first launch of the run, so it can be read while the last one still runs; and all of it
    // at once, since each read that waits for another costs as much as the move itself.
    u64 move[{MOVE_WORDS}];
    UNROLL for (int word = 0; word < {MOVE_WORDS}; word++) move[word] = moves[blockIdx.y * {MOVE_WORDS} + word];
    wait_for_last();
    u32 unit_log = (u32)move[3];
    if (unit_log == 4) move_units<Vec<u32, 4>>(move);
    else if (unit_log == 3) move_units<u64>(move);
    else if (unit_log == 2) move_units<u32>(move);
    else if (unit_log == 1) move_units<u16>(move);
    else move_units<u8>(move);
}}
KERNEL_FLAT({COPY_ENTRY}, {THREADS}, const Vec<u32, 4> *from, Vec<u32, 4> *to, u64 count) {{
    start_next();
    wait_for_last();
    u64 at = (u64)blockIdx.x * {THREADS} + threadIdx.x;
    if (at < count) to[at] = from[at];
}}
"#
    )
}

/// The machine code of the kernels: the last constant of every Program.
pub(crate) fn code_of(program: &Program) -> Option<&ConstantRef> {
    program.constants.last()
}

/// Blocks of a launch that moves these buffers, by the bytes of the largest.
pub(crate) fn grid(bytes_max: u64, buffers: usize) -> [u32; 3] {
    let blocks = bytes_max.div_ceil(UNIT_BYTES_MAX * u64::from(THREADS)).clamp(1, BLOCKS_MAX);
    [blocks as u32, buffers as u32, 1]
}

/// A launch of one of the kernels, which wait themselves for the launch before.
pub(crate) fn shape(grid: [u32; 3]) -> LaunchShape {
    LaunchShape { grid, block: [THREADS, 1, 1], shared_bytes: 0, is_overlapping: true, is_clustered: false }
}

/// Blocks and words of a launch that copies this many bytes, rounded up to whole units.
pub(crate) fn copy_launch(from: u64, to: u64, bytes: usize) -> ([u32; 3], [u64; 3]) {
    let units = (bytes as u64).div_ceil(UNIT_BYTES_MAX);
    ([units.div_ceil(u64::from(THREADS)) as u32, 1, 1], [from, to, units])
}

/// The words of a move of nothing.
pub(crate) const NOTHING: [u64; MOVE_WORDS] = {
    let mut words = [1; MOVE_WORDS];
    words[2] = 0;
    words
};

/// The words of a move of this many bytes.
pub(crate) fn plain(from: u64, to: u64, bytes: u64) -> Result<[u64; MOVE_WORDS], String> {
    words(from, to, &[], bytes)
}

/// The words of a copy of rows.
pub(crate) fn boxed(from: u64, to: u64, copy: &BoxCopy) -> Result<[u64; MOVE_WORDS], String> {
    let (starts, (nest, item_bytes)) = (copy.starts(), copy.nest());
    let mut axes = [[1, 1, 0, 0]; AXES_MAX];
    let mut count = 0;
    for axis in nest {
        let Some(place) = axes.get_mut(count) else {
            return Err(format!("rows lie in more than {AXES_MAX} axes; fewer dims must be padded at once"));
        };
        let extent = axis.count + axis.pad;
        *place = [axis.count, extent, axis.source_stride, axis.target_stride].map(|number| number as u64);
        count += 1;
    }
    words(from + starts.0 as u64, to + starts.1 as u64, &axes[..count], item_bytes as u64)
}

fn words(from: u64, to: u64, axes: &[[u64; 4]], item_bytes: u64) -> Result<[u64; MOVE_WORDS], String> {
    if item_bytes == 0 || axes.iter().any(|[count, ..]| *count == 0) {
        return Ok(NOTHING);
    }
    let strides = axes.iter().filter(|[_, extent, ..]| *extent > 1).fold(0, |all, [_, _, from, to]| all | from | to);
    let unit_log = (from | to | item_bytes | strides | UNIT_BYTES_MAX).trailing_zeros();
    let item_units = item_bytes >> unit_log;
    let total = axes.iter().fold(item_units, |total, [_, extent, ..]| total.saturating_mul(*extent));
    // The last step of the kernel's loop must not overflow either.
    if total > u64::from(u32::MAX) - BLOCKS_MAX * u64::from(THREADS) {
        return Err(format!("{total} units of {} bytes are more than one launch moves", 1 << unit_log));
    }
    let mut words = NOTHING;
    words[..5].copy_from_slice(&[from, to, total, u64::from(unit_log), item_units]);
    for (place, axis) in words[5..].chunks_exact_mut(4).zip(axes) {
        place.copy_from_slice(axis);
    }
    Ok(words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use precast_program::AxisSpan;

    #[test]
    fn units_are_as_wide_as_everything_is_aligned() {
        for (from, to, bytes, unit_log, total) in
            [(0x100, 0x200, 64, 4, 4), (0x108, 0x200, 64, 3, 8), (0x100, 0x200, 6, 1, 3), (0x101, 0x200, 64, 0, 64)]
        {
            let words = plain(from, to, bytes).unwrap();
            assert_eq!(words[..5], [from, to, total, unit_log, total]);
            assert!(words[5..].iter().all(|&word| word == 1), "no axis is walked");
        }
        assert_eq!(plain(0x100, 0x200, 0).unwrap(), NOTHING);
    }

    #[test]
    fn rows_are_axes_around_items() {
        let rows = AxisSpan { source: 3, target: 4, source_start: 0, target_start: 0, count: 3, pad: 1 };
        let copy = BoxCopy::new(&[AxisSpan::whole(2), rows, AxisSpan::whole(8)], 4);
        let words = boxed(0x1000, 0x2000, &copy).unwrap();
        assert_eq!(words[..13], [0x1000, 0x2000, 16, 4, 2, 2, 2, 96, 128, 3, 4, 32, 32]);
    }

    #[test]
    fn first_rows_in_one_piece_need_no_move() {
        let padded = |count: usize, extent: usize| AxisSpan {
            source: count,
            target: extent,
            source_start: 0,
            target_start: 0,
            count,
            pad: extent - count,
        };
        let taken =
            |count: usize, extent: usize| AxisSpan { pad: 0, target: count, source: extent, ..padded(count, extent) };
        let input = |count: usize| BoxCopy::new(&[padded(count, 4), AxisSpan::whole(8)], 4);
        let rows = FirstRows { start: 0, bytes: 96, missing: 32 };
        assert_eq!(FirstRows::of(&input(3), true, 128, 4), Some(rows));
        assert_eq!(FirstRows::of(&input(3), true, 128, 32), Some(rows));
        assert_eq!(rows.words(0x100), [0x100, 96, 32]);
        let output = BoxCopy::new(&[taken(3, 4), AxisSpan::whole(8)], 4);
        assert_eq!(FirstRows::of(&output, false, 128, 4), Some(rows));
        // Rows of a longer request.
        let later = AxisSpan { source: 7, source_start: 4, ..padded(3, 4) };
        let later = BoxCopy::new(&[later, AxisSpan::whole(8)], 4);
        assert_eq!(FirstRows::of(&later, true, 128, 4), Some(FirstRows { start: 128, ..rows }));
        assert_eq!(FirstRows::of(&input(4), true, 128, 4), Some(FirstRows { bytes: 128, missing: 0, ..rows }));
        // Kernels that need whole buffers or larger pieces, more rows missing than there are, rows that are not outermost.
        assert_eq!(FirstRows::of(&input(3), true, 128, 0), None);
        assert_eq!(FirstRows::of(&input(3), true, 128, 64), None);
        assert_eq!(FirstRows::of(&input(1), true, 128, 4), None);
        let inner = BoxCopy::new(&[AxisSpan::whole(2), padded(3, 4), AxisSpan::whole(8)], 4);
        assert_eq!(FirstRows::of(&inner, true, 256, 4), None);
        let inner = BoxCopy::new(&[AxisSpan::whole(2), taken(3, 4), AxisSpan::whole(8)], 4);
        assert_eq!(FirstRows::of(&inner, false, 256, 4), None);
    }

    #[test]
    fn what_the_kernel_cannot_move_is_said() {
        let row = AxisSpan { source: 2, target: 3, source_start: 0, target_start: 0, count: 2, pad: 1 };
        let copy = BoxCopy::new(&[row, AxisSpan::whole(2), row, AxisSpan::whole(2), row], 4);
        assert!(boxed(0, 0, &copy).unwrap_err().contains("4 axes"));
        assert!(plain(1, 0, 1 << 33).unwrap_err().contains("one launch"));
    }
}
