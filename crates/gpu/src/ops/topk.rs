//! The largest or smallest elements along an axis, sorted; of equal elements the lower index comes first. One block has a line.
//!
//! Of a long line of small elements it finds the last one that is kept, eight bits at a time (`text/topk_select.h`), and sorts
//! those before it. Of other lines it keeps the best in shared memory and joins further elements to them by bitonic sorts.

use std::fmt::Write as _;

use precast_ir::op::Topk;

use crate::element::{is_narrow, load, memory_type, value_type, word_type};
use crate::kernel::{Lowered, TOPK_SELECT};
use crate::nest::{Kernel, Param, index_type, signed};
use crate::site::Site;
use crate::team::Rows;

/// Elements that a block sorts at once: their values and places fill half of the shared memory.
const SORTED_MAX: usize = 2048;
/// Threads of a block that selects.
const SELECTING_THREADS: usize = 512;
/// Elements below which sorting more of them at once is no slower.
const SORTED_MIN: usize = 64;

/// The kernel of a node; `None` where k is too large to sort in shared memory.
pub fn lower(site: &Site, op: &Topk) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype).filter(|_| !is_narrow(dtype))?;
    let shape = site.shape(0);
    let (length, kept) = (shape[op.axis], site.out_shape(0)[op.axis]);
    let (own, values, places) = (site.strides(0), site.out_strides(0), site.out_strides(1));
    let whole = length.next_power_of_two().max(SORTED_MIN);
    let sorted = if whole <= SORTED_MAX { whole } else { SORTED_MAX };
    let half = sorted / 2;
    if length > sorted && kept > half {
        return None;
    }
    if length > sorted && kept > 0 && dtype.size_bytes() <= 4 {
        return select(site, op);
    }
    let strides = [signed(&own), signed(&values), signed(&places)];
    let rows = Rows::new(&shape, &[op.axis], &values, &strides);
    let index = index_type(&[shape.iter().product(), site.out_shape(0).iter().product()]);
    // NaN is the largest and equals itself.
    let (wins, loses) = if op.largest { ("a", "b") } else { ("b", "a") };
    let declarations = format!(
        "// A place of `none` stands for no element, which comes after all.
DEVICE bool is_before({ty} a, i32 a_place, {ty} b, i32 b_place) {{
    const i32 none = 0x7fffffff;
    if (a_place == none || b_place == none) return a_place != none;
    if ({wins} > {loses} || ({wins} != {wins} && {loses} == {loses})) return true;
    if ({loses} > {wins} || ({loses} != {loses} && {wins} == {wins})) return false;
    return a_place < b_place;
}}
DEVICE void sort({ty} *keys, i32 *places, u32 threads) {{
    for (u32 run = 2; run <= {sorted}u; run <<= 1)
        for (u32 step = run >> 1; step > 0; step >>= 1) {{
            for (u32 at = threadIdx.x; at < {sorted}u; at += threads) {{
                const u32 other = at ^ step;
                if (other <= at) continue;
                const bool is_rising = (at & run) == 0;
                const bool is_swapped = is_rising ? is_before(keys[other], places[other], keys[at], places[at])
                                                  : is_before(keys[at], places[at], keys[other], places[other]);
                if (!is_swapped) continue;
                const {ty} key = keys[at];
                keys[at] = keys[other];
                keys[other] = key;
                const i32 place = places[at];
                places[at] = places[other];
                places[other] = place;
            }}
            sync_block();
        }}
}}
"
    );
    let threads = (sorted / 2).clamp(64, 512);
    let mut body = rows.outer.indices("i", "row", index);
    let [from, to_value, to_place] = [0, 1, 2].map(|operand| rows.outer.offset("i", operand, index));
    let (x_stride, value_stride, place_stride) = (own[op.axis], values[op.axis], places[op.axis]);
    let x = load(dtype, &format!("x[from + (u32)element * ({index}){x_stride}]"));
    let fill = format!(
        "const bool is_inside = element < {length};
keys[at] = is_inside ? {x} : ({ty})0;
found[at] = is_inside ? element : 0x7fffffff;
"
    );
    let _ = write!(
        body,
        "const {index} from = {from};
for (u32 at = threadIdx.x; at < {sorted}u; at += {threads}u) {{
    const i32 element = (i32)at;
{}}}
sync_block();
sort(keys, found, {threads}u);
",
        crate::nest::indent(&fill)
    );
    if length > sorted {
        let _ = write!(
            body,
            "for (i32 first = {sorted}; first < {length}; first += {half}) {{
    if (threadIdx.x == 0) has_better[0] = 0;
    sync_block();
    for (u32 at = {half}u + threadIdx.x; at < {sorted}u; at += {threads}u) {{
        const i32 element = first + (i32)at - {half};
{}        if (is_before(keys[at], found[at], keys[{last}], found[{last}])) has_better[0] = 1;
    }}
    sync_block();
    const bool is_needed = has_better[0] != 0;
    sync_block();
    if (is_needed) sort(keys, found, {threads}u);
}}
",
            crate::nest::indent(&crate::nest::indent(&fill)),
            last = kept - 1,
        );
    }
    let _ = write!(
        body,
        "for (u32 at = threadIdx.x; at < {kept}u; at += {threads}u) {{
    const {index} element = ({index})found[at];
    values[{to_value} + at * ({index}){value_stride}] = words[from + element * ({index}){x_stride}];
    indices[{to_place} + at * ({index}){place_stride}] = (i64)element;
}}
sync_block();
"
    );
    let text = format!(
        "const {word} *words = (const {word} *)x;\nSHARED({ty}, keys, {sorted});\nSHARED(i32, found, {sorted});\nSHARED(u32, has_better, 1);\nfor ({index} row = blockIdx.x; row < ({index})rows; row += gridDim.x) {{\n{}}}\n",
        crate::nest::indent(&body),
        word = word_type(dtype),
    );
    let params = vec![
        Param::read(0, "x", memory_type(dtype)?),
        Param::write(0, "values", word_type(dtype)),
        Param::write(1, "indices", "i64"),
    ];
    let count = rows.outer.count();
    let kernel = Kernel::new("topk", params).scalar("rows", count).declare(declarations);
    Some(Lowered::one("topk", kernel.blocks(count, threads as u32, &text)))
}

/// The kernel for long lines of elements of up to 32 bits.
fn select(site: &Site, op: &Topk) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let shape = site.shape(0);
    let (length, kept) = (shape[op.axis], site.out_shape(0)[op.axis]);
    let (own, values, places) = (site.strides(0), site.out_strides(0), site.out_strides(1));
    let rows = Rows::new(&shape, &[op.axis], &values, &[signed(&own), signed(&values), signed(&places)]);
    let index = index_type(&[shape.iter().product(), site.out_shape(0).iter().product()]);
    let sorted = kept.next_power_of_two().max(SORTED_MIN);
    let declarations = format!(
        "constexpr int LENGTH = {length}, KEPT = {kept}, SORTED = {sorted}, THREADS = {SELECTING_THREADS};
constexpr bool IS_LARGEST = {};
{TOPK_SELECT}",
        op.largest
    );
    let [from, to_value, to_place] = [0, 1, 2].map(|operand| rows.outer.offset("i", operand, index));
    let (x_stride, value_stride, place_stride) = (own[op.axis], values[op.axis], places[op.axis]);
    let x = load(dtype, &format!("x[from + (u32)element * ({index}){x_stride}]"));
    let body = format!(
        "{}const {index} from = {from};
select_line(shared, [&](i32 element) {{ return order_of({x}); }});
for (u32 at = threadIdx.x; at < KEPT; at += THREADS) {{
    const {index} element = ({index})place_of(shared.keys[at]);
    values[{to_value} + at * ({index}){value_stride}] = words[from + element * ({index}){x_stride}];
    indices[{to_place} + at * ({index}){place_stride}] = (i64)element;
}}
sync_block();
",
        rows.outer.indices("i", "row", index)
    );
    let word = word_type(dtype);
    let text = format!(
        "const {word} *words = (const {word} *)x;\nSHARED(Selection, selections, 1);\nSelection &shared = selections[0];\nfor ({index} row = blockIdx.x; row < ({index})rows; row += gridDim.x) {{\n{}}}\n",
        crate::nest::indent(&body)
    );
    let params = vec![
        Param::read(0, "x", memory_type(dtype)?),
        Param::write(0, "values", word),
        Param::write(1, "indices", "i64"),
    ];
    let count = rows.outer.count();
    let kernel = Kernel::new("topk", params).scalar("rows", count).declare(declarations);
    Some(Lowered::one("topk.select", kernel.blocks(count, SELECTING_THREADS as u32, &text)))
}
