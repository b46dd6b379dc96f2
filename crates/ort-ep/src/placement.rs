//! Where the tensors of a run lie: an output that is written over an input, two outputs in one place, memory that is not
//! aligned. Callers bind the same buffers again and again, so what was found out about a set of addresses is kept.

use std::sync::Mutex;

use precast::Argument;

use crate::error::EpError;
use crate::known_shapes::OutputType;

/// The last addresses of inputs and outputs that were found to lie apart and aligned, for tensors of given types.
#[derive(Debug, Default)]
pub(crate) struct Placement(Mutex<Vec<usize>>);

impl Placement {
    /// Calls `write` with the inputs and with the bytes of outputs of these types. An input that an output is written over
    /// is copied first, and outputs that are not aligned are written elsewhere and copied.
    pub(crate) fn with_buffers<T>(
        &self,
        inputs: &[Argument<'_>],
        spans: &[Span],
        types: &[OutputType],
        write: impl FnOnce(&[Argument<'_>], &mut [&mut [u8]]) -> Result<T, EpError>,
    ) -> Result<T, EpError> {
        let addresses = || {
            let inputs = inputs.iter().map(|input| input.bytes.as_ptr().addr());
            inputs.chain(spans.iter().map(|span| span.start.addr()))
        };
        // Where another run looks at them, looking again costs less than waiting.
        if self.0.try_lock().is_ok_and(|known| known.iter().copied().eq(addresses())) {
            return write(inputs, &mut buffers(spans));
        }
        let copies = copies_of_overwritten(inputs, &WrittenRanges::new(spans)?);
        let is_aligned = types.iter().zip(spans).all(|(ty, span)| span.start.addr() % ty.dtype.size_bytes() == 0);
        if copies.is_empty()
            && is_aligned
            && let Ok(mut known) = self.0.try_lock()
        {
            known.clear();
            known.extend(addresses());
        }
        let replaced = with_copies(inputs, &copies);
        let inputs = replaced.as_deref().unwrap_or(inputs);
        let mut buffers = buffers(spans);
        match is_aligned {
            true => write(inputs, &mut buffers),
            false => write_through(&mut buffers, |staged| write(inputs, staged)),
        }
    }
}

/// The bytes of outputs, which must have been found to lie apart from each other and from inputs that are still read.
fn buffers<'a>(spans: &[Span]) -> Vec<&'a mut [u8]> {
    spans.iter().map(Span::bytes_mut).collect()
}

/// Memory of an output.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

impl Span {
    fn range(&self) -> (usize, usize) {
        (self.start.addr(), self.start.addr() + self.bytes)
    }

    fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            // Aligned for every element type, as bytes that exist are.
            return bytemuck::cast_slice_mut::<u64, u8>(&mut []);
        }
        // SAFETY: the runtime made room for the output's type, which was compared; outputs were found to lie apart and
        // no input that is still read lies there. Nobody else writes it until the run ends.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Writes into aligned memory, and copies it to where a caller has bound outputs otherwise.
fn write_through<T>(
    outputs: &mut [&mut [u8]],
    write: impl FnOnce(&mut [&mut [u8]]) -> Result<T, EpError>,
) -> Result<T, EpError> {
    let words = |output: &&mut [u8]| vec![0u64; output.len().div_ceil(size_of::<u64>())];
    let mut staged: Vec<Vec<u64>> = outputs.iter().map(words).collect();
    let bytes = staged.iter_mut().zip(outputs.iter());
    let mut slices: Vec<&mut [u8]> =
        bytes.map(|(words, output)| &mut bytemuck::cast_slice_mut(&mut words[..])[..output.len()]).collect();
    let written = write(&mut slices)?;
    for (output, staged) in outputs.iter_mut().zip(&staged) {
        let bytes = output.len();
        output.copy_from_slice(&bytemuck::cast_slice(staged)[..bytes]);
    }
    Ok(written)
}

/// Addresses that outputs are written to, in order and apart.
struct WrittenRanges(Vec<(usize, usize)>);

impl WrittenRanges {
    /// Refuses outputs that lie in one place: a caller may have bound two to one buffer.
    fn new(spans: &[Span]) -> Result<WrittenRanges, EpError> {
        let mut ranges: Vec<(usize, usize)> = spans.iter().filter(|span| span.bytes > 0).map(Span::range).collect();
        ranges.sort_unstable();
        match ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            true => Err(EpError::other("two outputs are bound to the same memory")),
            false => Ok(WrittenRanges(ranges)),
        }
    }

    /// Whether some of these bytes are written.
    fn overlap(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        let first = self.0.partition_point(|&(_, end)| end <= start);
        !bytes.is_empty() && self.0.get(first).is_some_and(|&(from, _)| from < start + bytes.len())
    }
}

/// Inputs that an output is written over, copied: a caller may have bound both to one buffer.
fn copies_of_overwritten(inputs: &[Argument<'_>], written: &WrittenRanges) -> Vec<(usize, Vec<u64>)> {
    let overwritten = inputs.iter().enumerate().filter(|(_, input)| written.overlap(input.bytes));
    let copy = |(place, input): (usize, &Argument<'_>)| {
        let mut copy = vec![0u64; input.bytes.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut copy)[..input.bytes.len()].copy_from_slice(input.bytes);
        (place, copy)
    };
    overwritten.map(copy).collect()
}

/// The inputs with copies in the place of those that were copied; none where nothing was.
fn with_copies<'a>(inputs: &[Argument<'a>], copies: &'a [(usize, Vec<u64>)]) -> Option<Vec<Argument<'a>>> {
    if copies.is_empty() {
        return None;
    }
    let mut inputs = inputs.to_vec();
    for (place, copy) in copies {
        let bytes = inputs[*place].bytes.len();
        inputs[*place].bytes = &bytemuck::cast_slice(copy)[..bytes];
    }
    Some(inputs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use precast::DType;

    use super::*;

    fn spans(memory: &mut [u8], ranges: &[(usize, usize)]) -> Vec<Span> {
        let start = memory.as_mut_ptr();
        ranges.iter().map(|&(from, bytes)| Span { start: start.wrapping_add(from), bytes }).collect()
    }

    #[test]
    fn what_is_written_over_is_found_and_nothing_else_is() {
        let mut memory = vec![0; 64];
        let written = WrittenRanges::new(&spans(&mut memory, &[(32, 8), (8, 8), (50, 0)])).unwrap();
        let overlap = |from: usize, to: usize| written.overlap(&memory[from..to]);
        assert!(overlap(0, 9) && overlap(15, 16) && overlap(10, 12) && overlap(0, 64) && overlap(39, 64));
        assert!(!overlap(0, 8) && !overlap(16, 32) && !overlap(40, 64) && !overlap(33, 33));
    }

    #[test]
    fn outputs_in_one_place_are_refused() {
        let mut memory = vec![0; 64];
        assert!(WrittenRanges::new(&spans(&mut memory, &[(0, 8), (8, 8)])).is_ok());
        assert!(WrittenRanges::new(&spans(&mut memory, &[(4, 8), (0, 5)])).is_err());
    }

    #[test]
    fn copies_take_the_place_of_what_is_overwritten() {
        let mut memory = vec![7; 16];
        let written = WrittenRanges::new(&spans(&mut memory, &[(8, 8)])).unwrap();
        let argument = |bytes| Argument { dtype: DType::U8, shape: &[8], bytes };
        let inputs = [argument(&memory[..8]), argument(&memory[8..])];
        let copies = copies_of_overwritten(&inputs, &written);
        let replaced = with_copies(&inputs, &copies).unwrap();
        assert_eq!(replaced[0].bytes.as_ptr(), memory.as_ptr());
        assert_ne!(replaced[1].bytes.as_ptr(), memory[8..].as_ptr());
        assert_eq!(replaced[1].bytes, [7; 8]);
    }

    #[test]
    fn addresses_that_were_found_fit_are_looked_at_again_when_they_change() {
        let placement = Placement::default();
        let mut memory = vec![0u8; 64];
        let start = memory.as_mut_ptr();
        let run = |from: usize, to: usize| {
            let bytes: &[u8] = bytemuck::cast_slice(&[1u32, 2]);
            // SAFETY: no output of this test is written over while an input lies there.
            unsafe { start.add(from).copy_from(bytes.as_ptr(), 8) };
            // SAFETY: both lie within the memory.
            let input = unsafe { std::slice::from_raw_parts(start.add(from), 8) };
            let inputs = [Argument { dtype: DType::U32, shape: &[2], bytes: input }];
            let spans = [Span { start: start.wrapping_add(to), bytes: 8 }];
            let types = [OutputType::new(DType::U32, &[2])];
            let written = placement.with_buffers(&inputs, &spans, &types, |inputs, outputs| {
                // Written before it is read: right only if the input lies elsewhere.
                outputs[0].fill(7);
                Ok((outputs[0].as_ptr().addr() % 4, inputs[0].bytes.to_vec()))
            });
            assert_eq!(written.unwrap(), (0, bytes.to_vec()), "input at {from}, output at {to}");
        };
        // Apart, again, one over the other, not aligned, apart again.
        [(0, 16), (0, 16), (4, 8), (0, 0), (0, 17), (0, 16)].into_iter().for_each(|(from, to)| run(from, to));
    }
}
