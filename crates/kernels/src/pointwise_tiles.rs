//! Runs a `PointwiseProgram`: cuts the output into tiles and executes the instructions on each.
//!
//! A register is an address: a slot of the tile buffer, a stretch of an input that can be read in place, or a stretch
//! of an output that is computed in place. Inputs and outputs may lie at any address; those that are not aligned go
//! through a slot.

use std::mem::MaybeUninit;

use crate::copy::OutputStart;
use crate::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::isa::{Exec, Isa};
use crate::pointwise::{Instruction, Lane, Register, Scalar, UnaryKernel};
use crate::pointwise_lanes::{self as lanes, Values, ValuesMut};
use crate::pointwise_program::{Access, BUFFER_BYTES, INSTRUCTIONS_MAX, Input, PointwiseProgram, is_uniform};
use crate::simd::{ELEMENTS_PER_TASK_MIN, multiversion};

/// The registers of one task.
#[repr(align(64))]
struct TileBuffer([MaybeUninit<u8>; BUFFER_BYTES]);

impl PointwiseProgram {
    /// Computes every output. Panics if an input is shorter than its strides reach or an output has another size.
    pub fn run(&self, exec: &Exec, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        assert_eq!(inputs.len(), self.inputs.len(), "number of inputs");
        assert_eq!(outputs.len(), self.output_lanes.len(), "number of outputs");
        for (index, (bytes, input)) in inputs.iter().zip(&self.inputs).enumerate() {
            let needed = input.reach * input.lane.bytes();
            assert!(bytes.len() >= needed, "input {index}: {} bytes, {needed} are read", bytes.len());
        }
        for (index, (bytes, lane)) in outputs.iter().zip(&self.output_lanes).enumerate() {
            let expected = self.element_count * lane.bytes();
            assert_eq!(bytes.len(), expected, "bytes of output {index}");
        }
        if self.element_count == 0 || outputs.is_empty() {
            return;
        }
        let mut starts = [OutputStart::new(std::ptr::null_mut()); INSTRUCTIONS_MAX];
        for (start, output) in starts.iter_mut().zip(outputs.iter_mut()) {
            *start = OutputStart::new(output.as_mut_ptr());
        }
        let work = self.element_count.saturating_mul(self.weight);
        let task_count = (work / ELEMENTS_PER_TASK_MIN).clamp(1, exec.threads());
        // Whole cache lines to a task, so that two threads never write the same one.
        let task_len = self.element_count.div_ceil(task_count).next_multiple_of(64);
        let task_count = self.element_count.div_ceil(task_len);
        exec.pool().run(task_count, &|task| {
            let start = task * task_len;
            let end = (start + task_len).min(self.element_count);
            Task::run(self, exec.isa(), inputs, &starts, start, end);
        });
    }
}

/// One thread's share of a run.
struct Task<'a> {
    program: &'a PointwiseProgram,
    isa: Isa,
    inputs: &'a [&'a [u8]],
    outputs: &'a [OutputStart],
    buffer: *mut u8,
    /// Where each register of the current tile lies.
    registers: [*const u8; INSTRUCTIONS_MAX],
}

impl<'a> Task<'a> {
    fn run(
        program: &'a PointwiseProgram,
        isa: Isa,
        inputs: &'a [&'a [u8]],
        outputs: &'a [OutputStart],
        start: usize,
        end: usize,
    ) {
        let mut buffer = TileBuffer([MaybeUninit::uninit(); BUFFER_BYTES]);
        let used_bytes = program.slot_count * program.slot_bytes;
        buffer.0[..used_bytes].fill(MaybeUninit::new(0));
        let mut task = Task {
            program,
            isa,
            inputs,
            outputs,
            buffer: buffer.0.as_mut_ptr().cast::<u8>(),
            registers: [std::ptr::null(); INSTRUCTIONS_MAX],
        };
        for (index, instruction) in program.instructions.iter().enumerate() {
            if is_uniform(instruction, &program.inputs) {
                task.fill_uniform(index, instruction);
            }
        }
        let mut position = start;
        while position < end {
            let to_row_end = program.row - position % program.row;
            let len = program.tile.min(to_row_end).min(end - position);
            for (index, instruction) in program.instructions.iter().enumerate() {
                if !is_uniform(instruction, &program.inputs) {
                    task.execute(index, instruction, position, len);
                }
            }
            position += len;
        }
    }

    fn slot(&self, index: usize) -> *mut u8 {
        // SAFETY: `PointwiseProgram::new` made slots · slot_bytes fit the buffer.
        unsafe { self.buffer.add(self.program.slots[index] * self.program.slot_bytes) }
    }

    /// Fills the slot of a register whose elements are all equal.
    fn fill_uniform(&mut self, index: usize, instruction: &Instruction) {
        let slot = self.slot(index);
        self.registers[index] = slot;
        let len = self.program.tile;
        match *instruction {
            Instruction::Constant { value } => {
                // SAFETY: the slot holds `tile` elements of the lane of the instruction, which is that of the value.
                let values = unsafe { values_mut(slot, self.program.lanes[index], len) };
                match (value, values) {
                    (Scalar::F32(value), ValuesMut::F32(values)) => values.fill(value),
                    (Scalar::I32(value), ValuesMut::I32(values)) => values.fill(value),
                    (Scalar::I64(value), ValuesMut::I64(values)) => values.fill(value),
                    (Scalar::Bool(value), ValuesMut::U8(values)) => values.fill(u8::from(value)),
                    (Scalar::U8(value), ValuesMut::U8(values)) => values.fill(value),
                    (Scalar::I8(value), ValuesMut::I8(values)) => values.fill(value),
                    _ => unreachable!("the lane of a constant is that of its value"),
                }
            }
            Instruction::Load { input } => {
                let lane = self.program.inputs[input].lane;
                // SAFETY: `run` checked that the input has the element; the slot holds `tile` elements.
                unsafe { load_stretch(self.isa, lane, self.inputs[input].as_ptr(), 0, slot, len) };
            }
            _ => unreachable!("only constants and scalars are uniform"),
        }
    }

    fn execute(&mut self, index: usize, instruction: &Instruction, position: usize, len: usize) {
        if let Instruction::Load { input } = *instruction {
            self.registers[index] = self.load(index, input, position, len);
            return;
        }
        if let Instruction::Store { src, output } = *instruction {
            self.store(src, output, position, len);
            return;
        }
        let lane = self.program.lanes[index];
        let start = self.direct_output(index, position).unwrap_or_else(|| self.slot(index));
        self.registers[index] = start;
        // SAFETY: `start` is this instruction's slot, which no live register shares (`assign_slots`), or this tile's
        // stretch of an output, which only this task touches; both hold `len` elements of `lane`, aligned.
        let dst = unsafe { values_mut(start, lane, len) };
        let isa = self.isa;
        match *instruction {
            Instruction::Unary { func, src, alpha, beta } => match (self.values(src, len), dst) {
                (Values::F32(src), ValuesMut::F32(dst)) => lanes::unary_f32(isa, func, alpha, beta, src, dst),
                (Values::F32(src), ValuesMut::U8(dst)) => lanes::classify(isa, func, alpha, beta, src, dst),
                (Values::I32(src), ValuesMut::I32(dst)) => lanes::unary_i32(isa, func, src, dst),
                (Values::I64(src), ValuesMut::I64(dst)) => lanes::unary_i64(isa, func, src, dst),
                (Values::U8(src), ValuesMut::U8(dst)) if func == UnaryKernel::Not => lanes::not_bool(isa, src, dst),
                (Values::U8(src), ValuesMut::U8(dst)) => lanes::unary_u8(isa, func, src, dst),
                (Values::I8(src), ValuesMut::I8(dst)) => lanes::unary_i8(isa, func, src, dst),
                _ => unreachable!("lanes are checked by new"),
            },
            Instruction::Binary { func, a, b } => match (self.values(a, len), self.values(b, len), dst) {
                (Values::F32(a), Values::F32(b), ValuesMut::F32(dst)) => lanes::binary_f32(isa, func, a, b, dst),
                (Values::I32(a), Values::I32(b), ValuesMut::I32(dst)) => lanes::binary_i32(isa, func, a, b, dst),
                (Values::I64(a), Values::I64(b), ValuesMut::I64(dst)) => lanes::binary_i64(isa, func, a, b, dst),
                (Values::U8(a), Values::U8(b), ValuesMut::U8(dst)) if lane == Lane::Bool => {
                    lanes::binary_bool(isa, func, a, b, dst);
                }
                (Values::U8(a), Values::U8(b), ValuesMut::U8(dst)) => lanes::binary_u8(isa, func, a, b, dst),
                (Values::I8(a), Values::I8(b), ValuesMut::I8(dst)) => lanes::binary_i8(isa, func, a, b, dst),
                _ => unreachable!("lanes are checked by new"),
            },
            Instruction::Compare { func, a, b } => {
                lanes::compare(isa, func, self.values(a, len), self.values(b, len), bytes_mut(dst));
            }
            Instruction::Select { condition, on_true, on_false } => {
                let Values::U8(condition) = self.values(condition, len) else {
                    unreachable!("lanes are checked by new");
                };
                lanes::select(isa, condition, self.values(on_true, len), self.values(on_false, len), dst);
            }
            Instruction::Clamp { src, low, high } => lanes::clamp(isa, low, high, self.values(src, len), dst),
            Instruction::Cast { src, to: Lane::Bool } => {
                lanes::cast_bool(isa, self.values(src, len), bytes_mut(dst));
            }
            Instruction::Cast { src, .. } => lanes::cast(isa, self.values(src, len), dst),
            Instruction::Load { .. } | Instruction::Store { .. } | Instruction::Constant { .. } => {
                unreachable!("done above and by fill_uniform")
            }
        }
    }

    /// The values of a register of this tile.
    fn values(&self, Register(register): Register, len: usize) -> Values<'_> {
        // SAFETY: the register was written or bound earlier in this tile (or is uniform) with at least `len` elements
        // of its lane at an aligned address, and `assign_slots` keeps its slot until its last use.
        unsafe { values(self.registers[register], self.program.lanes[register], len) }
    }

    /// The stretch of the output that a result is computed into, if it has one and that is aligned.
    fn direct_output(&self, index: usize, position: usize) -> Option<*mut u8> {
        let output = self.program.direct_outputs[index]?;
        let start = self.output_at(output, position);
        let is_aligned = (start as usize).is_multiple_of(self.program.output_lanes[output].bytes());
        is_aligned.then_some(start)
    }

    fn output_at(&self, output: usize, position: usize) -> *mut u8 {
        let start = self.outputs[output].get();
        // SAFETY: `run` checked that the output has all elements of the shape; `position` is one of them.
        unsafe { start.add(position * self.program.output_lanes[output].bytes()) }
    }

    /// Binds or fills the register of a load; gives its address.
    fn load(&self, index: usize, input: usize, position: usize, len: usize) -> *const u8 {
        let Input { lane, strides, access, .. } = &self.program.inputs[input];
        let base = self.inputs[input].as_ptr();
        let bytes = lane.bytes();
        let slot = self.slot(index);
        let is_register = lane.in_register() == *lane;
        let can_view = |start: *const u8| is_register && (start as usize).is_multiple_of(bytes);
        if *access == Access::Contiguous {
            // SAFETY: `run` checked that the input has all elements of the output shape.
            let start = unsafe { base.add(position * bytes) };
            if !can_view(start) {
                // SAFETY: as above; the slot holds a tile.
                unsafe { load_stretch(self.isa, *lane, start, 1, slot, len) };
                return slot;
            }
            return start;
        }
        let extents = &self.program.extents;
        let rank = extents.len();
        let inner_extent = extents[rank - 1];
        let inner_stride = strides[rank - 1];
        let mut inner = position % inner_extent;
        let mut outer = position / inner_extent;
        let mut done = 0;
        while done < len {
            let stretch = (inner_extent - inner).min(len - done);
            let offset = offset_of(outer, &extents[..rank - 1], strides) + inner * inner_stride;
            // SAFETY: the indices are inside the shape, and `run` checked the largest offset they give.
            let start = unsafe { base.add(offset * bytes) };
            if stretch == len && inner_stride == 1 && can_view(start) {
                return start;
            }
            // SAFETY: `done + stretch` is at most `len`, which fits the slot.
            let target = unsafe { slot.add(done * lane.in_register().bytes()) };
            // SAFETY: the stretch lies inside the input as above, and its target inside the slot.
            unsafe { load_stretch(self.isa, *lane, start, inner_stride, target, stretch) };
            done += stretch;
            inner = 0;
            outer += 1;
        }
        slot
    }

    fn store(&self, src: Register, output: usize, position: usize, len: usize) {
        let start = self.output_at(output, position);
        if std::ptr::eq(self.registers[src.0], start) {
            return;
        }
        let lane = self.program.output_lanes[output];
        // SAFETY: this tile's stretch of the output: `len` elements that only this task touches.
        let target = unsafe { std::slice::from_raw_parts_mut(start, len * lane.bytes()) };
        match (self.values(src, len), lane) {
            (Values::F32(values), Lane::F16) => store_halves(self.isa, values, target, false),
            (Values::F32(values), Lane::Bf16) => store_halves(self.isa, values, target, true),
            _ => {
                let source = self.registers[src.0];
                // SAFETY: the register has `len` elements of the output's lane and is another buffer than the output.
                unsafe { std::ptr::copy_nonoverlapping(source, start, len * lane.bytes()) };
            }
        }
    }
}

/// The offset of row `outer`, counted over all dimensions but the last.
fn offset_of(outer: usize, extents: &[usize], strides: &[usize]) -> usize {
    let mut rest = outer;
    let mut offset = 0;
    for (&extent, &stride) in extents.iter().zip(strides).rev() {
        offset += rest % extent * stride;
        rest /= extent;
    }
    offset
}

fn bytes_mut(values: ValuesMut<'_>) -> &mut [u8] {
    match values {
        ValuesMut::U8(bytes) => bytes,
        _ => unreachable!("lanes are checked by new"),
    }
}

/// A register as values.
///
/// # Safety
/// `start` has `len` readable elements of `lane`, aligned, that nothing writes while the result is used.
unsafe fn values<'a>(start: *const u8, lane: Lane, len: usize) -> Values<'a> {
    match lane {
        // SAFETY: the promise of the caller; every bit pattern is a value.
        Lane::F32 => Values::F32(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
        // SAFETY: as above.
        Lane::I32 => Values::I32(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
        // SAFETY: as above.
        Lane::I64 => Values::I64(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
        // SAFETY: as above.
        Lane::Bool | Lane::U8 => Values::U8(unsafe { std::slice::from_raw_parts(start, len) }),
        // SAFETY: as above.
        Lane::I8 => Values::I8(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
        Lane::F16 | Lane::Bf16 => unreachable!("registers hold them as F32"),
    }
}

/// A register as values to write.
///
/// # Safety
/// `start` has `len` initialised elements of `lane`, aligned, that nothing else uses while the result is used.
unsafe fn values_mut<'a>(start: *mut u8, lane: Lane, len: usize) -> ValuesMut<'a> {
    match lane {
        // SAFETY: the promise of the caller; every bit pattern is a value.
        Lane::F32 => ValuesMut::F32(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
        // SAFETY: as above.
        Lane::I32 => ValuesMut::I32(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
        // SAFETY: as above.
        Lane::I64 => ValuesMut::I64(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
        // SAFETY: as above.
        Lane::Bool | Lane::U8 => ValuesMut::U8(unsafe { std::slice::from_raw_parts_mut(start, len) }),
        // SAFETY: as above.
        Lane::I8 => ValuesMut::I8(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
        Lane::F16 | Lane::Bf16 => unreachable!("registers hold them as F32"),
    }
}

/// Reads `len` elements of `lane`, `stride` elements apart, into a register; halves become floats.
///
/// # Safety
/// The elements are readable, at any address; `target` has room for them, aligned.
unsafe fn load_stretch(isa: Isa, lane: Lane, start: *const u8, stride: usize, target: *mut u8, len: usize) {
    // SAFETY: the promise of the caller, for the element type of the lane.
    unsafe {
        match lane {
            Lane::F32 | Lane::I32 => load_elements::<u32>(start.cast(), stride, target.cast(), len),
            Lane::I64 => load_elements::<u64>(start.cast(), stride, target.cast(), len),
            Lane::Bool | Lane::U8 | Lane::I8 => load_elements::<u8>(start, stride, target, len),
            Lane::F16 => load_halves(isa, start.cast(), stride, target.cast(), len, false),
            Lane::Bf16 => load_halves(isa, start.cast(), stride, target.cast(), len, true),
        }
    }
}

/// # Safety
/// As for `load_stretch`.
unsafe fn load_elements<T: Copy>(start: *const T, stride: usize, target: *mut T, len: usize) {
    // SAFETY: the promise of the caller.
    let target = unsafe { std::slice::from_raw_parts_mut(target, len) };
    match stride {
        // SAFETY: the promise of the caller.
        0 => target.fill(unsafe { start.read_unaligned() }),
        1 => {
            let bytes = len * size_of::<T>();
            // SAFETY: the promise of the caller; a register and an input never overlap.
            unsafe { std::ptr::copy_nonoverlapping(start.cast::<u8>(), target.as_mut_ptr().cast(), bytes) };
        }
        _ => {
            for (index, element) in target.iter_mut().enumerate() {
                // SAFETY: the promise of the caller.
                *element = unsafe { start.add(index * stride).read_unaligned() };
            }
        }
    }
}

/// # Safety
/// As for `load_stretch`.
unsafe fn load_halves(isa: Isa, start: *const [u8; 2], stride: usize, target: *mut f32, len: usize, is_brain: bool) {
    // SAFETY: the promise of the caller.
    let target = unsafe { std::slice::from_raw_parts_mut(target, len) };
    if stride == 1 {
        // SAFETY: the promise of the caller; pairs of bytes need no alignment.
        let source = unsafe { std::slice::from_raw_parts(start, len) };
        widen_halves(isa, source, target, is_brain);
        return;
    }
    for (index, value) in target.iter_mut().enumerate() {
        // SAFETY: the promise of the caller.
        let bits = u16::from_ne_bytes(unsafe { *start.add(index * stride) });
        *value = if is_brain { bf16_to_f32(bits) } else { f16_to_f32(bits) };
    }
}

multiversion! {
    fn widen_halves<F: MulAdd>(source: &[[u8; 2]], target: &mut [f32], is_brain: bool) {
        for (value, &bytes) in target.iter_mut().zip(source) {
            let bits = u16::from_ne_bytes(bytes);
            *value = if is_brain { bf16_to_f32(bits) } else { f16_to_f32(bits) };
        }
    }

    fn store_halves<F: MulAdd>(values: &[f32], target: &mut [u8], is_brain: bool) {
        for (bytes, &value) in target.as_chunks_mut::<2>().0.iter_mut().zip(values) {
            *bytes = (if is_brain { f32_to_bf16(value) } else { f32_to_f16(value) }).to_ne_bytes();
        }
    }
}
