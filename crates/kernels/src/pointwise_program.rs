//! `PointwiseProgram`: checks a list of instructions, gives each result a place in the tile buffer, and simplifies the
//! shape. What `new` accepts, `run` (in `pointwise_tiles.rs`) executes with length checks only.

use crate::pointwise::{BinaryKernel, InputSpec, Instruction, Lane, OutputSpec, PointwiseError, Register, UnaryKernel};

/// Bytes of the buffer that holds the registers of one tile: most of a first-level cache of 32 KiB.
pub(crate) const BUFFER_BYTES: usize = 24 * 1024;
/// Most elements of a tile: beyond this nothing is gained by fewer dispatches.
const TILE_MAX: usize = 1024;
/// Tiles are a multiple of this, so that a register starts on a cache line.
const TILE_STEP: usize = 64;
/// Most instructions of a program; bounds the table of register addresses on the stack.
pub(crate) const INSTRUCTIONS_MAX: usize = 128;
/// Rows at least this long are cut into tiles one by one, so that an input that is broadcast along rows is read in
/// place; shorter rows are gathered.
const ROW_MIN: usize = 256;

/// A checked program over one output shape.
#[derive(Clone, Debug)]
pub struct PointwiseProgram {
    /// The output shape with compatible neighbours merged; empty when it has one element.
    pub(crate) extents: Vec<usize>,
    pub(crate) element_count: usize,
    pub(crate) inputs: Vec<Input>,
    pub(crate) output_lanes: Vec<Lane>,
    pub(crate) instructions: Vec<Instruction>,
    /// What each instruction gives; unused for a store.
    pub(crate) lanes: Vec<Lane>,
    /// The part of the tile buffer for each result.
    pub(crate) slots: Vec<usize>,
    pub(crate) slot_count: usize,
    pub(crate) slot_bytes: usize,
    /// The output that a result is written to directly; its store is then done.
    pub(crate) direct_outputs: Vec<Option<usize>>,
    /// Most elements of a tile.
    pub(crate) tile: usize,
    /// No tile crosses a multiple of this.
    pub(crate) row: usize,
    /// Cost of an element relative to an addition.
    pub(crate) weight: usize,
}

/// One input over the merged shape.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) lane: Lane,
    pub(crate) strides: Vec<usize>,
    /// Elements from the first to the last one read.
    pub(crate) reach: usize,
    pub(crate) access: Access,
}

/// How an input is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Every element is the first one.
    Scalar,
    /// In the order of the output.
    Contiguous,
    /// By strides, a stretch of the last dimension at a time.
    Strided,
}

impl PointwiseProgram {
    /// Checks that `instructions` read only what exists, with the right lanes, and store each output once.
    pub fn new(
        shape: &[usize],
        inputs: &[InputSpec],
        outputs: &[OutputSpec],
        instructions: Vec<Instruction>,
    ) -> Result<PointwiseProgram, PointwiseError> {
        if instructions.len() > INSTRUCTIONS_MAX {
            let (needed, limit) = (instructions.len(), INSTRUCTIONS_MAX);
            return Err(PointwiseError::TooManyRegisters { needed, limit });
        }
        let element_count = shape.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent));
        // Bytes must fit too; 8 is the widest lane.
        let element_count =
            element_count.filter(|count| *count <= isize::MAX as usize / 8).ok_or(PointwiseError::TooLarge)?;
        let (extents, strides) = merge_dimensions(shape, inputs)?;
        let inputs = (inputs.iter().zip(strides))
            .map(|(spec, strides)| Input::new(spec.lane, strides, &extents))
            .collect::<Result<Vec<Input>, PointwiseError>>()?;
        let input_lanes: Vec<Lane> = inputs.iter().map(|input| input.lane).collect();
        let output_lanes: Vec<Lane> = outputs.iter().map(|output| output.lane).collect();
        let lanes = check_lanes(&instructions, &input_lanes, &output_lanes)?;
        let (slots, slot_count) = assign_slots(&instructions, &inputs);
        let width = lanes.iter().map(|lane| lane.bytes()).max().unwrap_or(1);
        let tile = BUFFER_BYTES / (slot_count.max(1) * width) / TILE_STEP * TILE_STEP;
        if tile == 0 {
            let limit = BUFFER_BYTES / (width * TILE_STEP);
            return Err(PointwiseError::TooManyRegisters { needed: slot_count, limit });
        }
        let tile = tile.min(TILE_MAX).min(element_count.next_multiple_of(TILE_STEP).max(TILE_STEP));
        let row = extents.last().copied().filter(|&extent| extent >= ROW_MIN).unwrap_or(element_count.max(1));
        let direct_outputs = find_direct_outputs(&instructions, &inputs, &lanes, &output_lanes);
        let weight = instructions.iter().map(weight).sum::<usize>().max(1);
        Ok(PointwiseProgram {
            extents,
            element_count,
            inputs,
            output_lanes,
            instructions,
            lanes,
            slots,
            slot_count,
            slot_bytes: tile * width,
            direct_outputs,
            tile,
            row,
            weight,
        })
    }

    /// How many elements each output has.
    pub fn element_count(&self) -> usize {
        self.element_count
    }
}

impl Input {
    fn new(lane: Lane, strides: Vec<usize>, extents: &[usize]) -> Result<Input, PointwiseError> {
        let mut last = 0_usize;
        for (&extent, &stride) in extents.iter().zip(&strides) {
            let distance = extent.saturating_sub(1).checked_mul(stride);
            last = distance.and_then(|distance| last.checked_add(distance)).ok_or(PointwiseError::TooLarge)?;
        }
        if last >= isize::MAX as usize / 8 {
            return Err(PointwiseError::TooLarge);
        }
        let reach = if extents.contains(&0) { 0 } else { last + 1 };
        let mut dense = 1;
        let mut is_dense = true;
        for (&extent, &stride) in extents.iter().zip(&strides).rev() {
            is_dense &= stride == dense;
            dense *= extent;
        }
        let access = if strides.iter().all(|&stride| stride == 0) {
            Access::Scalar
        } else if is_dense {
            Access::Contiguous
        } else {
            Access::Strided
        };
        Ok(Input { lane, strides, reach, access })
    }
}

/// Drops dimensions of extent 1 and merges neighbours that every input steps through alike.
fn merge_dimensions(shape: &[usize], inputs: &[InputSpec]) -> Result<(Vec<usize>, Vec<Vec<usize>>), PointwiseError> {
    for (input, spec) in inputs.iter().enumerate() {
        if spec.strides.len() != shape.len() {
            let (strides, rank) = (spec.strides.len(), shape.len());
            return Err(PointwiseError::StridesRank { input, strides, rank });
        }
    }
    let mut extents: Vec<usize> = Vec::new();
    let mut strides: Vec<Vec<usize>> = vec![Vec::new(); inputs.len()];
    for (dimension, &extent) in shape.iter().enumerate() {
        if extent == 1 {
            continue;
        }
        let steps = |input: usize| inputs[input].strides[dimension];
        let can_merge = !extents.is_empty()
            && (0..inputs.len()).all(|input| strides[input].last().copied() == steps(input).checked_mul(extent));
        if can_merge {
            // The element count was checked, so the product of extents fits.
            *extents.last_mut().expect("not empty") *= extent;
        } else {
            extents.push(extent);
        }
        for (input, merged) in strides.iter_mut().enumerate() {
            if can_merge {
                merged.pop();
            }
            merged.push(steps(input));
        }
    }
    Ok((extents, strides))
}

/// The lane of each result.
fn check_lanes(instructions: &[Instruction], inputs: &[Lane], outputs: &[Lane]) -> Result<Vec<Lane>, PointwiseError> {
    let mut lanes: Vec<Lane> = Vec::with_capacity(instructions.len());
    let mut store_counts = vec![0; outputs.len()];
    for (index, instruction) in instructions.iter().enumerate() {
        let undefined = |operand: String| PointwiseError::Undefined { instruction: index, operand };
        let mismatch = |detail: String| PointwiseError::LaneMismatch { instruction: index, detail };
        let lane_of = |Register(register): Register| match instructions.get(register) {
            Some(Instruction::Store { .. }) | None => Err(undefined(format!("register {register}"))),
            Some(_) => lanes.get(register).copied().ok_or_else(|| undefined(format!("register {register}"))),
        };
        let same = |a: Register, b: Register| {
            let (a, b) = (lane_of(a)?, lane_of(b)?);
            if a == b { Ok(a) } else { Err(mismatch(format!("operands of lanes {a:?} and {b:?}"))) }
        };
        let lane = match *instruction {
            Instruction::Load { input } => {
                inputs.get(input).copied().ok_or_else(|| undefined(format!("input {input}")))?.in_register()
            }
            Instruction::Constant { value } => value.lane(),
            Instruction::Unary { func, src, .. } => {
                let lane = lane_of(src)?;
                unary_result(func, lane).ok_or_else(|| mismatch(format!("{func:?} of lane {lane:?}")))?
            }
            Instruction::Binary { func, a, b } => {
                let lane = same(a, b)?;
                let is_known = binary_takes(func, lane);
                if is_known { lane } else { Err(mismatch(format!("{func:?} of lane {lane:?}")))? }
            }
            Instruction::Compare { a, b, .. } => same(a, b).map(|_| Lane::Bool)?,
            Instruction::Select { condition, on_true, on_false } => {
                let lane = lane_of(condition)?;
                if lane != Lane::Bool {
                    return Err(mismatch(format!("condition of lane {lane:?}, expected Bool")));
                }
                same(on_true, on_false)?
            }
            Instruction::Clamp { src, low, high } => {
                let lane = lane_of(src)?;
                if lane == Lane::Bool || low.lane() != lane || high.lane() != lane {
                    return Err(mismatch(format!("limits {low:?} and {high:?} for lane {lane:?}")));
                }
                lane
            }
            Instruction::Cast { src, to } => {
                lane_of(src)?;
                if to != to.in_register() {
                    return Err(mismatch(format!("cast to {to:?}, which registers do not hold")));
                }
                to
            }
            Instruction::Store { src, output } => {
                let lane = lane_of(src)?;
                let target = outputs.get(output).copied().ok_or_else(|| undefined(format!("output {output}")))?;
                if target.in_register() != lane {
                    return Err(mismatch(format!("store of lane {lane:?} to an output of {target:?}")));
                }
                store_counts[output] += 1;
                lane
            }
        };
        lanes.push(lane);
    }
    match store_counts.iter().position(|&count| count != 1) {
        Some(output) => Err(PointwiseError::StoreCount { output, count: store_counts[output] }),
        None => Ok(lanes),
    }
}

fn unary_result(func: UnaryKernel, lane: Lane) -> Option<Lane> {
    let is_float_only = !matches!(
        func,
        UnaryKernel::Abs
            | UnaryKernel::Neg
            | UnaryKernel::Sign
            | UnaryKernel::Relu
            | UnaryKernel::BitNot
            | UnaryKernel::Not
    );
    match (func, lane) {
        (UnaryKernel::Not, Lane::Bool) => Some(Lane::Bool),
        (UnaryKernel::Not, _) | (_, Lane::Bool) | (UnaryKernel::BitNot, Lane::F32) => None,
        (UnaryKernel::IsNan | UnaryKernel::IsInf, Lane::F32) => Some(Lane::Bool),
        (_, Lane::F32) => Some(Lane::F32),
        _ => (!is_float_only).then_some(lane),
    }
}

fn binary_takes(func: BinaryKernel, lane: Lane) -> bool {
    let is_logical = matches!(func, BinaryKernel::And | BinaryKernel::Or | BinaryKernel::Xor);
    let is_bitwise = matches!(
        func,
        BinaryKernel::BitAnd | BinaryKernel::BitOr | BinaryKernel::BitXor | BinaryKernel::Shl | BinaryKernel::Shr
    );
    match lane {
        Lane::Bool => is_logical,
        Lane::F32 => !is_logical && !is_bitwise,
        Lane::I32 | Lane::I64 | Lane::U8 | Lane::I8 => !is_logical && func != BinaryKernel::Prelu,
        Lane::F16 | Lane::Bf16 => false,
    }
}

/// The registers an instruction reads.
fn operands(instruction: &Instruction) -> [Option<Register>; 3] {
    match *instruction {
        Instruction::Load { .. } | Instruction::Constant { .. } => [None; 3],
        Instruction::Unary { src, .. }
        | Instruction::Clamp { src, .. }
        | Instruction::Cast { src, .. }
        | Instruction::Store { src, .. } => [Some(src), None, None],
        Instruction::Binary { a, b, .. } | Instruction::Compare { a, b, .. } => [Some(a), Some(b), None],
        Instruction::Select { condition, on_true, on_false } => [Some(condition), Some(on_true), Some(on_false)],
    }
}

/// Whether the result is the same for every element, so that it is computed once a task, not once a tile.
pub(crate) fn is_uniform(instruction: &Instruction, inputs: &[Input]) -> bool {
    match *instruction {
        Instruction::Constant { .. } => true,
        Instruction::Load { input } => inputs[input].access == Access::Scalar,
        _ => false,
    }
}

/// A slot for each result: taken before those of its operands are given back, so that no instruction writes what it
/// reads. Uniform results keep theirs, since they outlive the tile.
fn assign_slots(instructions: &[Instruction], inputs: &[Input]) -> (Vec<usize>, usize) {
    let mut last_uses: Vec<usize> = (0..instructions.len()).collect();
    for (index, instruction) in instructions.iter().enumerate() {
        for Register(register) in operands(instruction).into_iter().flatten() {
            last_uses[register] = index;
        }
    }
    let mut free: Vec<usize> = Vec::new();
    let mut slot_count = 0;
    let mut slots = vec![0; instructions.len()];
    let mut take = |free: &mut Vec<usize>| {
        free.pop().unwrap_or_else(|| {
            slot_count += 1;
            slot_count - 1
        })
    };
    let uniform: Vec<bool> = instructions.iter().map(|instruction| is_uniform(instruction, inputs)).collect();
    for index in (0..instructions.len()).filter(|&index| uniform[index]) {
        slots[index] = take(&mut free);
    }
    for (index, instruction) in instructions.iter().enumerate() {
        let is_store = matches!(instruction, Instruction::Store { .. });
        if !uniform[index] && !is_store {
            slots[index] = take(&mut free);
        }
        for register in 0..=index {
            let is_value = !matches!(instructions[register], Instruction::Store { .. });
            if last_uses[register] == index && is_value && !uniform[register] {
                free.push(slots[register]);
            }
        }
    }
    (slots, slot_count)
}

/// For each result the output that it may be computed into: stored as it is, and not a view or a uniform value.
fn find_direct_outputs(
    instructions: &[Instruction],
    inputs: &[Input],
    lanes: &[Lane],
    output_lanes: &[Lane],
) -> Vec<Option<usize>> {
    let mut direct_outputs = vec![None; instructions.len()];
    for instruction in instructions {
        let Instruction::Store { src: Register(register), output } = *instruction else {
            continue;
        };
        let is_loaded = matches!(instructions[register], Instruction::Load { .. });
        let is_computed = !is_loaded && !is_uniform(&instructions[register], inputs);
        if is_computed && output_lanes[output] == lanes[register] && direct_outputs[register].is_none() {
            direct_outputs[register] = Some(output);
        }
    }
    direct_outputs
}

/// Rough cost of an instruction relative to an addition of two tiles.
fn weight(instruction: &Instruction) -> usize {
    match instruction {
        Instruction::Unary { func, .. } => match func {
            UnaryKernel::Abs
            | UnaryKernel::Neg
            | UnaryKernel::Sign
            | UnaryKernel::Ceil
            | UnaryKernel::Floor
            | UnaryKernel::Round
            | UnaryKernel::Not
            | UnaryKernel::BitNot
            | UnaryKernel::IsNan
            | UnaryKernel::IsInf
            | UnaryKernel::Relu
            | UnaryKernel::Leaky
            | UnaryKernel::HardSigmoid
            | UnaryKernel::HardSwish
            | UnaryKernel::Shrink
            | UnaryKernel::Thresholded => 1,
            _ => 6,
        },
        Instruction::Binary { func: BinaryKernel::Pow | BinaryKernel::Mod | BinaryKernel::Fmod, .. } => 16,
        _ => 1,
    }
}
