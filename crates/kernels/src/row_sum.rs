//! Sums over rows, in many short chains: no f32 accumulator takes more than 256 successive additions, and the sums of
//! blocks are added in f64. The order depends on the length only.
//!
//! Where other runtimes agree on an order, as in softmax and layer norm, it is theirs: a quantised model rounds what
//! follows to integers, and one that is off by one grows from layer to layer.

/// Independent accumulators of a row: two vectors of 512 bits.
pub(crate) const LANES: usize = 32;
/// Most additions to one accumulator before it is folded.
pub(crate) const CHAIN_MAX: usize = 256;
/// Elements that go to one set of accumulators.
const BLOCK: usize = LANES * CHAIN_MAX;
/// Accumulators of `narrow_sum`.
const NARROW_LANES: usize = 8;
/// Elements up to which `narrow_sum` is one block; beyond, the order of others is too inaccurate to follow.
pub(crate) const NARROW_MAX: usize = NARROW_LANES * CHAIN_MAX;

/// The sum of `term` over a row.
#[inline(always)]
pub(crate) fn sum_of(row: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in row.chunks(BLOCK) {
        let mut lanes = [0.0; LANES];
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane += term(x);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += term(x);
        }
        total += f64::from(fold(lanes, |a, b| a + b));
    }
    total
}

/// Writes `term` of each element and gives the sum of what it wrote, in the order of softmax: one vector of 512 bits.
#[inline(always)]
pub(crate) fn write_sum_of(row: &[f32], target: &mut [f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for (block, target) in row.chunks(SOFTMAX_LANES * CHAIN_MAX).zip(target.chunks_mut(SOFTMAX_LANES * CHAIN_MAX)) {
        let mut lanes = [0.0; SOFTMAX_LANES];
        let (groups, rest) = block.as_chunks::<SOFTMAX_LANES>();
        let (target_groups, target_rest) = target.as_chunks_mut::<SOFTMAX_LANES>();
        for (group, target) in groups.iter().zip(target_groups) {
            for ((lane, &x), y) in lanes.iter_mut().zip(group).zip(target) {
                let value = term(x);
                *y = value;
                *lane += value;
            }
        }
        for ((lane, &x), y) in lanes.iter_mut().zip(rest).zip(target_rest) {
            let value = term(x);
            *y = value;
            *lane += value;
        }
        total += fold_softmax(&lanes);
    }
    total
}

/// `write_sum_of` in place: the same bits.
#[inline(always)]
pub(crate) fn replace_sum_of(row: &mut [f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in row.chunks_mut(SOFTMAX_LANES * CHAIN_MAX) {
        let mut lanes = [0.0; SOFTMAX_LANES];
        let (groups, rest) = block.as_chunks_mut::<SOFTMAX_LANES>();
        for group in groups {
            for (lane, x) in lanes.iter_mut().zip(group) {
                *x = term(*x);
                *lane += *x;
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *x = term(*x);
            *lane += *x;
        }
        total += fold_softmax(&lanes);
    }
    total
}

/// Accumulators of a softmax.
const SOFTMAX_LANES: usize = 16;

#[inline(always)]
fn fold_softmax(lanes: &[f32; SOFTMAX_LANES]) -> f64 {
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + SOFTMAX_LANES / 2]);
    f64::from(((a + b) + (c + d)) + ((e + f) + (g + h)))
}

/// The sum of a row in f64, as the mean of a layer norm needs it: an error of the mean comes back in every difference.
#[inline(always)]
pub(crate) fn wide_sum(row: &[f32]) -> f64 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    let (groups, rest) = row.as_chunks::<LANES>();
    for group in groups {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane += f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x);
    }
    lanes.iter().sum()
}

/// A sum in the order of layer norm and of short reductions: one vector of 256 bits. `add` adds an element to a sum.
#[inline(always)]
pub(crate) fn narrow_sum(row: &[f32], add: impl Fn(f32, f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in row.chunks(NARROW_MAX) {
        let mut lanes = [0.0; NARROW_LANES];
        let (groups, rest) = block.as_chunks::<NARROW_LANES>();
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane = add(*lane, x);
            }
        }
        let [a, b, c, d] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + NARROW_LANES / 2]);
        total += f64::from(rest.iter().fold((a + c) + (b + d), |sum, &x| add(sum, x)));
    }
    total
}

/// Combines all elements of a row with an operation that may be done in any order (maximum, product).
#[inline(always)]
pub(crate) fn combine<T: Copy>(row: &[T], start: T, operation: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let (groups, rest) = row.as_chunks::<LANES>();
    for group in groups {
        for (lane, &x) in lanes.iter_mut().zip(group) {
            *lane = operation(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = operation(*lane, x);
    }
    fold(lanes, operation)
}

/// The lanes as one value, by halves.
#[inline(always)]
fn fold<T: Copy>(mut lanes: [T; LANES], operation: impl Fn(T, T) -> T) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for index in 0..width {
            lanes[index] = operation(lanes[index], lanes[index + width]);
        }
        width /= 2;
    }
    lanes[0]
}
