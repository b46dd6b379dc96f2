//! TfIdfVectorizer: how often each n-gram of a pool occurs in a row of tokens. Every n-gram is compared with every place
//! at once, token by token, for each length and number of skipped tokens.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, ReduceFn, ScatterElements, ScatterFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[Import::onnx("TfIdfVectorizer", 9, 3, tf_idf_vectorizer)];

type Outputs = Result<Vec<ValueId>, Fault>;

/// The n-grams of one length: their tokens one after the other, and which entries of `ngram_indexes` they are.
struct Pool {
    length: usize,
    tokens: Vec<i64>,
    first: usize,
}

fn tf_idf_vectorizer(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let tokens = cx
        .ints("pool_int64s")?
        .ok_or_else(|| Fault::Invalid("attribute 'pool_int64s' is missing for a pool of integers".to_string()))?;
    let x = cx.input(0)?;
    Ok(vec![count_ngrams(cx, x, &tokens)?])
}

/// Counts of the n-grams over `tokens`, weighted as `mode` says, in x, which has one row of tokens or is one.
pub(super) fn count_ngrams(cx: &mut NodeCx<'_, '_>, x: ValueId, tokens: &[i64]) -> Result<ValueId, Fault> {
    let pools = read_pools(cx, tokens)?;
    let coordinates = cx.ints("ngram_indexes")?.unwrap_or_default();
    let width = coordinates.iter().max().map_or(0, |&last| last + 1);
    let grams: usize = pools.iter().map(|pool| pool.tokens.len() / pool.length).sum();
    if coordinates.len() != grams || coordinates.iter().any(|&at| at < 0) {
        return Err(Fault::Invalid(format!("{grams} n-grams in the pool have {} coordinates", coordinates.len())));
    }
    let dims = cx.dims(x);
    let (leading, length) = match &dims[..] {
        [length] => (Vec::new(), length.clone()),
        [rows, length] => (vec![rows.clone()], length.clone()),
        _ => return Err(Fault::Invalid(format!("the input has rank {}; 1 or 2 was expected", dims.len()))),
    };
    let rows = leading.first().cloned().unwrap_or(Dim::ONE);
    let length = cx.number(&length, "the number of tokens")?;
    let x = cx.cast(x, DType::I64)?;
    let x = cx.reshape(x, vec![rows.clone(), Dim::from(length)])?;
    let (lengths, skips) = read_lengths(cx)?;
    let mut counts = Vec::new();
    for pool in pools {
        if lengths.contains(&pool.length) {
            counts.push((count_pool(cx, x, length, &pool, skips, &rows)?, pool));
        }
    }
    let weighted = weigh(cx, counts, &coordinates, &rows, width)?;
    let mut shape = leading;
    shape.push(Dim::from(width));
    cx.reshape(weighted, shape)
}

fn read_lengths(cx: &NodeCx<'_, '_>) -> Result<(std::ops::RangeInclusive<usize>, usize), Fault> {
    let read = |name: &str| {
        let number = cx.int(name, 0)?;
        usize::try_from(number).map_err(|_| Fault::Invalid(format!("attribute '{name}' is {number}")))
    };
    Ok((read("min_gram_length")?.max(1)..=read("max_gram_length")?, read("max_skip_count")?))
}

/// `ngram_counts` says where the n-grams of each length begin among the tokens.
fn read_pools(cx: &NodeCx<'_, '_>, tokens: &[i64]) -> Result<Vec<Pool>, Fault> {
    let starts = cx.sizes("ngram_counts")?.unwrap_or_default();
    let mut pools = Vec::new();
    let mut first = 0;
    for (at, &start) in starts.iter().enumerate() {
        let (length, end) = (at + 1, starts.get(at + 1).copied().unwrap_or(tokens.len()));
        let part = tokens.get(start..end).filter(|part| part.len().is_multiple_of(length));
        let part = part.ok_or_else(|| {
            Fault::Invalid(format!("n-grams of length {length} cannot be tokens {start} to {end} of {}", tokens.len()))
        })?;
        pools.push(Pool { length, tokens: part.to_vec(), first });
        first += part.len() / length;
    }
    Ok(pools)
}

/// Counts [rows, n-grams] of one length over all numbers of skipped tokens.
fn count_pool(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    length: usize,
    pool: &Pool,
    skips: usize,
    rows: &Dim,
) -> Result<ValueId, Fault> {
    let grams = pool.tokens.len() / pool.length;
    let mut total = cx.scalar(DType::F32, 0.0)?;
    total = cx.broadcast(total, vec![rows.clone(), Dim::from(grams)])?;
    // There is nothing to skip inside of one token.
    let skips = if pool.length == 1 { 0 } else { skips };
    for stride in 1..=skips + 1 {
        let Some(places) = length.checked_sub((pool.length - 1) * stride).filter(|&places| places > 0) else { break };
        let mut is_found: Option<ValueId> = None;
        for at in 0..pool.length {
            let token = cx.slice_axis(x, 1, Dim::from(at * stride), Dim::from(places))?;
            let token = cx.unsqueeze(token, &[2])?;
            let wanted: Vec<i64> = pool.tokens.iter().skip(at).step_by(pool.length).copied().collect();
            let wanted = cx.int_vector(&wanted)?;
            let agrees = cx.compare(CompareFn::Eq, token, wanted)?;
            is_found = Some(match is_found {
                Some(before) => cx.binary(BinaryFn::And, before, agrees)?,
                None => agrees,
            });
        }
        if let Some(is_found) = is_found {
            let ones = cx.cast(is_found, DType::F32)?;
            let found = cx.reduce(ReduceFn::Sum, ones, vec![1], false)?;
            total = cx.binary(BinaryFn::Add, total, found)?;
        }
    }
    Ok(total)
}

/// The counts at their coordinates [rows, width].
fn weigh(
    cx: &mut NodeCx<'_, '_>,
    counts: Vec<(ValueId, Pool)>,
    coordinates: &[i64],
    rows: &Dim,
    width: i64,
) -> Result<ValueId, Fault> {
    let weights = cx.attributes().floats("weights")?;
    let (is_capped, is_weighted) = match cx.string("mode", "TF")?.as_str() {
        "TF" => (false, false),
        "IDF" => (true, true),
        "TFIDF" => (false, true),
        other => return Err(Fault::Invalid(format!("attribute 'mode' is '{other}'; TF, IDF or TFIDF was expected"))),
    };
    let zero = cx.scalar(DType::F32, 0.0)?;
    let mut sums = cx.broadcast(zero, vec![rows.clone(), Dim::from(width)])?;
    for (mut counted, pool) in counts {
        let grams = pool.tokens.len() / pool.length;
        let own = pool.first..pool.first + grams;
        if is_capped {
            let one = cx.scalar(DType::F32, 1.0)?;
            counted = cx.binary(BinaryFn::Min, counted, one)?;
        }
        if let Some(weights) = weights.as_ref().filter(|_| is_weighted) {
            let weights = weights.get(own.clone()).ok_or_else(|| {
                Fault::Invalid(format!("attribute 'weights' has {} entries; {} were expected", weights.len(), own.end))
            })?;
            let weights = cx.float_tensor(DType::F32, vec![grams], weights)?;
            counted = cx.binary(BinaryFn::Mul, counted, weights)?;
        }
        let places = cx.int_vector(&coordinates[own])?;
        let places = cx.broadcast(places, vec![rows.clone(), Dim::from(grams)])?;
        sums = cx.add(ScatterElements { func: ScatterFn::Add, axis: 1 }, &[sums, places, counted])?;
    }
    Ok(sums)
}
