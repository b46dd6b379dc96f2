//! Attention behind a cache.

use precast_ir::op::{CachedAttention, RotaryFn};
use precast_kernels::cached_attention::{self, Inputs, Outputs, Pairs, Rotation};
use precast_tensor::DType;

use crate::step::{Lowered, Machine, Read, StepNode};

/// Inputs before the tables.
const REQUIRED: usize = 4;

/// The kernel of a cached attention of f32 behind caches of rows; engines on the CPU have no others.
pub fn lower(step: &StepNode, op: &CachedAttention, machine: Machine) -> Option<Lowered> {
    if step.dtype(0) != DType::F32 || op.paged {
        return None;
    }
    let [rows, length, _] = step.shape(0)[..] else { return None };
    let [_, _, slots, size] = step.shape(1)[..] else { return None };
    let pairs = match op.rotary {
        RotaryFn::None => None,
        RotaryFn::Half => Some(Pairs::Halves),
        RotaryFn::Interleaved => Some(Pairs::Neighbours),
    };
    let rotation = pairs.map(|pairs| {
        let table = step.shape(REQUIRED);
        Rotation { pairs, half: table[1], positions: table[0] }
    });
    let attention = cached_attention::CachedAttention {
        rows,
        length,
        heads: op.heads,
        kv_heads: op.kv_heads,
        size,
        slots,
        scale: op.scale as f32,
        softcap: op.softcap as f32,
        window: op.window,
        rotation,
    };
    if rotation.is_some_and(|rotation| rotation.positions == 0) {
        return None;
    }
    let positions = REQUIRED + if rotation.is_some() { 2 } else { 0 };
    let sinks = positions + usize::from(op.positions);
    let (has_positions, has_sinks) = (op.positions, op.sinks);
    let scratch_bytes = attention.scratch_len(machine.isa, machine.threads) * size_of::<f32>();
    Some(Lowered {
        kernel: if length == 1 { "cached_attention.decode" } else { "cached_attention" }.to_string(),
        reads: (0..step.input_count()).map(Read::Input).collect(),
        scratch_bytes,
        run: Box::new(move |args, exec| {
            let lengths = args.read::<i32>(3);
            if let Some(length) = lengths.iter().find(|&&length| length < 0) {
                return Err(format!("{length} tokens of a row are said to be cached"));
            }
            let inputs = Inputs {
                joint: args.read(0),
                keys: args.read(1),
                values: args.read(2),
                lengths,
                tables: rotation.map(|_| (args.read(REQUIRED), args.read(REQUIRED + 1))),
                positions: has_positions.then(|| args.read(positions)),
                sinks: has_sinks.then(|| args.read(sinks)),
            };
            let outputs = Outputs { y: args.write(0), keys: args.write(1), values: args.write(2) };
            let scratch: &mut [f32] = if scratch_bytes > 0 { args.write(3) } else { &mut [] };
            attention.run(exec, &inputs, outputs, scratch);
            Ok(())
        }),
    })
}
