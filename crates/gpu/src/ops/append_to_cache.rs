//! New tokens of all caches of a decoder, put behind the cached ones by one launch. A result may be the cache itself, of which
//! then nothing else is read or written.

use std::fmt::Write as _;

use precast_ir::op::AppendToCache;

use crate::kernel::{APPEND_TO_CACHE, Launch, Lowered, Operand};
use crate::site::{Site, dense_strides};

/// Name of the kernel in a Program's steps, of caches of rows and of pages.
const NAME: &str = "append_to_cache";
const NAME_OF_PAGES: &str = "append_to_pages";
/// Inputs that count tokens.
const COUNTS: usize = 2;
/// Threads of a block.
const THREADS: u32 = 128;
/// Caches of one launch: a launch has 4 KiB of parameters, and each cache has three.
const CACHES_MAX: usize = 128;

/// Inputs before the caches, of a kernel that may write results where the caches lie; none for other kernels.
pub fn inputs_before_caches(kernel: &str) -> Option<usize> {
    match kernel {
        NAME => Some(COUNTS),
        NAME_OF_PAGES => Some(COUNTS + 1),
        _ => None,
    }
}

/// The kernels of a node; `None` for layouts that they do not read.
pub fn lower(site: &Site, op: &AppendToCache) -> Option<Lowered> {
    let is_dense = |input: usize| site.strides(input) == dense_strides(&site.shape(input), false);
    let is_written = |output: usize| site.out_strides(output) == dense_strides(&site.out_shape(output), false);
    if !(0..site.node.inputs.len()).all(is_dense) || !(0..site.node.outputs.len()).all(is_written) {
        return None;
    }
    let caches: Vec<usize> = (0..site.node.outputs.len()).collect();
    let launches = caches.chunks(CACHES_MAX).map(|caches| launch(site, op, caches)).collect::<Option<Vec<Launch>>>()?;
    let name = if op.paged { NAME_OF_PAGES } else { NAME };
    Some(Lowered { name: name.to_string(), launches, scratch_bytes: Vec::new(), packed: Vec::new() })
}

/// The launch for some of the caches.
fn launch(site: &Site, op: &AppendToCache, caches: &[usize]) -> Option<Launch> {
    let first = COUNTS + usize::from(op.paged);
    let shape = |cache: usize| site.shape(first + 2 * cache);
    let token_bytes = |cache: usize| shape(cache)[3] * site.dtype(first + 2 * cache).size_bytes();
    let word =
        [16, 8, 4, 2].into_iter().find(|word| caches.iter().all(|&cache| token_bytes(cache).is_multiple_of(*word)));
    let ty = match word {
        Some(16) => "Vec<u32, 4>",
        Some(8) => "u64",
        Some(4) => "u32",
        Some(2) => "u16",
        _ => "u8",
    };
    let (rows, length) = (site.shape(0)[0], site.shape(first + 1 + 2 * caches[0])[2]);
    let heads_max = caches.iter().map(|&cache| shape(cache)[1]).max()?;
    let mut parameters = "Arg<const i32, 0> cached, Arg<const i32, 1> added".to_string();
    let mut operands = vec![Operand::Read(0), Operand::Read(1)];
    if op.paged {
        parameters.push_str(", Arg<const i32, 2> pages");
        operands.push(Operand::Read(COUNTS as u32));
    }
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
            (at - first) / 3,
            at + 1,
            at + 2,
        );
        operands.extend([
            Operand::Read((first + 2 * cache) as u32),
            Operand::Read((first + 1 + 2 * cache) as u32),
            Operand::Write(cache as u32),
        ]);
    }
    let (append, scalars) = match op.paged {
        false => (APPEND_TO_ROW.to_string(), Vec::new()),
        true => {
            parameters.push_str(", i64 rows, i64 page_count");
            let page_count = shape(caches[0])[0];
            if caches.iter().any(|&cache| shape(cache)[0] != page_count) || i32::try_from(page_count).is_err() {
                return None;
            }
            let width = site.shape(COUNTS)[1];
            (append_to_pages(width), vec![rows as i64, page_count as i64])
        }
    };
    let text = format!(
        "typedef {ty} W;\nconstexpr int LENGTH = {length}, THREADS = {THREADS};\n{APPEND_TO_CACHE}\
         KERNEL(append, THREADS, {parameters}) {{\n    start_next();\n    wait_for_last();\n    \
         Chosen<const W> cache, tokens;\n    Chosen<W> out;\n    int slots = 1, heads = 1, words = 1, head = blockIdx.x;\n    \
         i64 row = blockIdx.z;\n    switch (blockIdx.y) {{\n{choices}    }}\n    if (head >= heads) return;\n{append}}}\n"
    );
    Some(Launch {
        entry: "append".to_string(),
        text,
        grid: [heads_max as u32, caches.len() as u32, u32::try_from(rows).ok().filter(|&rows| rows <= 65535)?],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        operands,
        scalars,
        row_bytes: Vec::new(),
    })
}

/// What a block does where each row has its cache.
const APPEND_TO_ROW: &str = "    i64 at = row * heads + head;\n    \
    append_tokens(cache.get() + at * slots * words, tokens.get() + at * LENGTH * words, out.get() + at * slots * words,\n        \
    cached.get()[row], added.get()[row], slots, words);\n";

/// What a block does where each row has so many pages.
fn append_to_pages(width: usize) -> String {
    format!(
        "    append_to_pages(cache.get(), tokens.get(), out.get(), pages.get(), {width}, cached.get(), added.get(), (int)row,\n        \
         (int)rows, head, heads, slots, words, page_count);\n"
    )
}
