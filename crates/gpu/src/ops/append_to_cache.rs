//! New tokens of all caches of a decoder, put behind the cached ones by one launch. A result may be the cache itself, of which
//! then nothing else is read or written.

use std::fmt::Write as _;

use crate::kernel::{APPEND_TO_CACHE, Launch, Lowered, Operand};
use crate::site::{Site, dense_strides};

/// Name of the kernel in a Program's steps.
pub const NAME: &str = "append_to_cache";
/// Inputs before the caches.
pub const COUNTS: usize = 2;
/// Threads of a block.
const THREADS: u32 = 128;
/// Caches of one launch: a launch has 4 KiB of parameters, and each cache has three.
const CACHES_MAX: usize = 128;

/// The kernels of a node; `None` for layouts that they do not read.
pub fn lower(site: &Site) -> Option<Lowered> {
    let is_dense = |input: usize| site.strides(input) == dense_strides(&site.shape(input), false);
    let is_written = |output: usize| site.out_strides(output) == dense_strides(&site.out_shape(output), false);
    if !(0..site.node.inputs.len()).all(is_dense) || !(0..site.node.outputs.len()).all(is_written) {
        return None;
    }
    let caches: Vec<usize> = (0..site.node.outputs.len()).collect();
    let launches = caches.chunks(CACHES_MAX).map(|caches| launch(site, caches)).collect::<Option<Vec<Launch>>>()?;
    Some(Lowered { name: NAME.to_string(), launches, scratch_bytes: Vec::new(), packed: Vec::new() })
}

/// The launch for some of the caches.
fn launch(site: &Site, caches: &[usize]) -> Option<Launch> {
    let shape = |cache: usize| site.shape(COUNTS + 2 * cache);
    let token_bytes = |cache: usize| shape(cache)[3] * site.dtype(COUNTS + 2 * cache).size_bytes();
    let word =
        [16, 8, 4, 2].into_iter().find(|word| caches.iter().all(|&cache| token_bytes(cache).is_multiple_of(*word)));
    let ty = match word {
        Some(16) => "Vec<u32, 4>",
        Some(8) => "u64",
        Some(4) => "u32",
        Some(2) => "u16",
        _ => "u8",
    };
    let (rows, length) = (shape(caches[0])[0], site.shape(COUNTS + 1 + 2 * caches[0])[2]);
    let heads_max = caches.iter().map(|&cache| shape(cache)[1]).max()?;
    let mut parameters = "Arg<const i32, 0> cached, Arg<const i32, 1> added".to_string();
    let mut operands = vec![Operand::Read(0), Operand::Read(1)];
    let mut choices = String::new();
    for &cache in caches {
        let at = operands.len();
        let _ = write!(
            parameters,
            ", Arg<const W, {at}> a{at}, Arg<const W, {}> a{}, Arg<W, {}> a{}",
            at + 1,
            at + 1,
            at + 2,
            at + 2
        );
        let (slots, heads, words) = (shape(cache)[2], shape(cache)[1], token_bytes(cache) / word.unwrap_or(1));
        let _ = writeln!(
            choices,
            "    case {}: cache = a{at}.choose(), tokens = a{}.choose(), out = a{}.choose(), slots = {slots}, heads = {heads}, \
             words = {words}; break;",
            (at - COUNTS) / 3,
            at + 1,
            at + 2,
        );
        operands.extend([
            Operand::Read((COUNTS + 2 * cache) as u32),
            Operand::Read((COUNTS + 1 + 2 * cache) as u32),
            Operand::Write(cache as u32),
        ]);
    }
    let text = format!(
        "typedef {ty} W;\nconstexpr int LENGTH = {length}, THREADS = {THREADS};\n{APPEND_TO_CACHE}\
         KERNEL(append, THREADS, {parameters}) {{\n    start_next();\n    wait_for_last();\n    \
         Chosen<const W> cache, tokens;\n    Chosen<W> out;\n    int slots = 1, heads = 1, words = 1, head = blockIdx.x;\n    \
         i64 row = blockIdx.z;\n    switch (blockIdx.y) {{\n{choices}    }}\n    if (head >= heads) return;\n    \
         i64 at = row * heads + head;\n    \
         append_tokens(cache.get() + at * slots * words, tokens.get() + at * LENGTH * words, out.get() + at * slots * words,\n        \
         cached.get()[row], added.get()[row], slots, words);\n}}\n"
    );
    Some(Launch {
        entry: "append".to_string(),
        text,
        grid: [heads_max as u32, caches.len() as u32, u32::try_from(rows).ok().filter(|&rows| rows <= 65535)?],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        operands,
        scalars: Vec::new(),
        row_bytes: Vec::new(),
    })
}
