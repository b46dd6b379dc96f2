//! Biases on the scores of attention that depend on how far apart two tokens are: RelativePositionBias and
//! GatedRelativePositionBias of com.microsoft.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim};

use super::packed::spread_tokens;
use super::{Outputs, split_heads};
use crate::import::{Fault, NodeCx};

/// Distances that a table of buckets may have: far beyond those of any model.
const DISTANCE_MAX: i64 = 1 << 20;

/// A bias [1, heads, queries, keys] from a table by the bucket of each distance, as T5 has it. The table says that it has the
/// shape [buckets, heads], but the numbers of a head follow one another.
pub(super) fn relative_position_bias(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let table = cx.input(0)?;
    let [buckets, heads] = cx.dims_of(table, "the table")?;
    let count = cx.number(&buckets, "the number of buckets")? as i64;
    let (is_bidirectional, distance_max) = (cx.flag("is_bidirectional", false)?, cx.int("max_distance", 0)?);
    let sides = if is_bidirectional { 2 } else { 1 };
    if count / sides < 2 || !(1..=DISTANCE_MAX).contains(&distance_max) {
        return Err(Fault::Invalid(format!(
            "{count} buckets for distances up to {distance_max}: 2 or more a side and 1 to {DISTANCE_MAX} were expected"
        )));
    }
    let (queries, keys) = (cx.input(1)?, cx.input(2)?);
    let (queries, keys) = (cx.require_size(queries, "query_length")?, cx.require_size(keys, "key_length")?);
    let rows = cx.iota(Dim::ZERO, queries)?;
    let rows = cx.unsqueeze(rows, &[1])?;
    let columns = cx.iota(Dim::ZERO, keys)?;
    let ahead = cx.binary(BinaryFn::Sub, columns, rows)?;
    let distance = match is_bidirectional {
        true => cx.unary(UnaryFn::Abs, ahead)?,
        false => {
            let behind = cx.unary(UnaryFn::Neg, ahead)?;
            cx.binary_scalar(BinaryFn::Max, behind, 0.0)?
        }
    };
    let numbers: Vec<i64> =
        (0..=distance_max).map(|distance| bucket_of(distance, count / sides, distance_max)).collect();
    let numbers = cx.int_vector(&numbers)?;
    let distance = cx.binary_scalar(BinaryFn::Min, distance, distance_max as f64)?;
    let mut bucket = cx.gather(numbers, distance, 0)?;
    if is_bidirectional {
        let zero = cx.scalar(DType::I64, 0.0)?;
        let is_ahead = cx.compare(CompareFn::Gt, ahead, zero)?;
        let later = cx.binary_scalar(BinaryFn::Add, bucket, (count / sides) as f64)?;
        bucket = cx.select(is_ahead, later, bucket)?;
    }
    let of_heads = cx.reshape(table, vec![heads, buckets])?;
    let bias = cx.gather(of_heads, bucket, 1)?;
    Ok(vec![cx.unsqueeze(bias, &[0])?])
}

/// The bucket of a distance: small distances have one each, larger ones share them by their logarithm, up to the last. Computed
/// in f32, since models were trained with such buckets.
fn bucket_of(distance: i64, buckets: i64, distance_max: i64) -> i64 {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    let steps = (distance as f32 / exact as f32).ln() / (distance_max as f32 / exact as f32).ln();
    let beyond = steps * (buckets - exact) as f32;
    // Where all distances have a bucket of their own the logarithm is 0 or less, and the last bucket takes the rest.
    let beyond = if beyond.is_finite() { beyond as i64 } else { buckets };
    (exact + beyond.max(0)).min(buckets - 1)
}

/// rel_pos [1, heads, length, length] times a gate for each query of each head, a function of the query itself.
pub(super) fn gated_relative_position_bias(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let count = cx.int("num_heads", 0)?;
    let (mut query, bias) = (cx.input(0)?, cx.input(1)?);
    if let Some(offsets) = cx.optional(6) {
        query = spread_tokens(cx, query, offsets)?;
    }
    let query = cx.binary(BinaryFn::Add, query, bias)?;
    let query = split_heads(cx, query, count)?;
    let linear = cx.matmul(query, cx.input(3)?)?;
    let linear = cx.binary(BinaryFn::Add, linear, cx.input(4)?)?;
    let [batch, heads, length, width] = cx.dims_of(linear, "the gates")?;
    let half = cx.divide_exact(&width, 2, "the width of the gates")?;
    let halves = cx.reshape(linear, vec![batch, heads, length, Dim::from(2), half])?;
    let sums = cx.reduce(ReduceFn::Sum, halves, vec![4], false)?;
    let gates = cx.unary(UnaryFn::Sigmoid, sums)?;
    let (update, reset) = (gate(cx, gates, 0)?, gate(cx, gates, 1)?);
    let scaled = cx.binary(BinaryFn::Mul, reset, cx.input(5)?)?;
    let scaled = cx.binary_scalar(BinaryFn::Sub, scaled, 1.0)?;
    let gated = cx.binary(BinaryFn::Mul, update, scaled)?;
    let gated = cx.binary_scalar(BinaryFn::Add, gated, 2.0)?;
    Ok(vec![cx.binary(BinaryFn::Mul, gated, cx.input(2)?)?])
}

/// One of two gates [batch, heads, length, 2], as [batch, heads, length, 1].
fn gate(cx: &mut NodeCx<'_, '_>, gates: ValueId, at: usize) -> Result<ValueId, Fault> {
    cx.slice_axis(gates, 3, Dim::from(at), Dim::ONE)
}

#[cfg(test)]
mod tests {
    use super::bucket_of;

    /// What Hugging Face's T5 gives for 32 buckets and 128, one way: 0 to 15 alone, then ever wider ones.
    #[test]
    fn buckets_are_those_of_t5() {
        let found = [0, 7, 15, 16, 18, 19, 20, 21, 23, 24, 26, 27, 31, 40, 64, 100, 113, 127, 128]
            .map(|n| bucket_of(n, 32, 128));
        assert_eq!(found, [0, 7, 15, 16, 16, 17, 17, 18, 18, 19, 19, 20, 21, 23, 26, 30, 31, 31, 31]);
    }
}
