//! Attention of new tokens behind cached ones, which lie in a ring for each row or in pages. Sums are f64; results are rounded
//! once, keys after they are turned.

use precast_tensor::{DType, Dim, Tensor, Type};

use super::shape::{check_same_dtype, dtype_error, infer_shapes, read_floats, read_ints, same_dim, write_floats};
use crate::error::{EvalError, InferError};
use crate::op::{CachedAttention, Operation, RotaryFn};

const CACHED_ATTENTION: &str = "cached_attention";

/// Inputs that are always there: the projections, cached keys, cached values, lengths.
const REQUIRED: usize = 4;

impl Operation for CachedAttention {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let parts = self.parts(inputs)?;
        let (joint, dtype) = (parts.joint, parts.joint.dtype);
        if !dtype.is_float() {
            return Err(dtype_error(CACHED_ATTENTION, dtype));
        }
        let [rows, length, width] = joint.dims.as_slice() else {
            return Err(refuse(format!("{joint} found where [B,L,width] is expected")));
        };
        let [_, _, slots, size] = parts.keys.dims.as_slice() else {
            return Err(refuse(format!("cached keys {} found where [B,H,S,D] is expected", parts.keys)));
        };
        let (heads, kv_heads) = (Dim::from(self.heads), Dim::from(self.kv_heads));
        let outermost = if self.paged { &parts.keys.dims[0] } else { rows };
        let cache = [outermost.clone(), kv_heads.clone(), slots.clone(), size.clone()];
        check_part("queries, keys and values", width, &(size * (&heads + &kv_heads * 2)))?;
        check_dims("cached keys", parts.keys, dtype, &cache)?;
        check_dims("cached values", parts.values, dtype, &cache)?;
        check_dims("lengths", parts.lengths, DType::I32, std::slice::from_ref(rows))?;
        if let Some([cosines, sines]) = parts.tables {
            check_same_dtype(CACHED_ATTENTION, cosines, joint)?;
            check_dims("the table of sines", sines, dtype, &cosines.dims)?;
            let half = cosines.dims.last().and_then(Dim::as_usize);
            let is_within = size.as_usize().zip(half).is_none_or(|(size, half)| 2 * half <= size);
            if cosines.dims.len() != 2 || !is_within {
                return Err(refuse(format!("tables {cosines} cannot turn heads of {size}")));
            }
        }
        if let Some(positions) = parts.positions {
            check_dims("positions", positions, DType::I64, &[rows.clone(), length.clone()])?;
        }
        if let Some(sinks) = parts.sinks {
            check_dims("sinks", sinks, dtype, std::slice::from_ref(&heads))?;
        }
        if let Some(pages) = parts.pages {
            check_pages(CACHED_ATTENTION, pages, rows)?;
        }
        let new = Type { dtype, dims: vec![rows.clone(), kv_heads, length.clone(), size.clone()] };
        let y = Type { dtype, dims: vec![rows.clone(), length.clone(), heads * size] };
        Ok(vec![y, new.clone(), new])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let shapes = infer_shapes(CACHED_ATTENTION, self, inputs)?;
        let tokens = Tokens::read(self, inputs)?;
        let (mut y, mut new_keys, mut new_values) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..tokens.rows {
            for kv_head in 0..self.kv_heads {
                for step in 0..tokens.length {
                    new_keys.extend(tokens.turned(row, step, self.heads + kv_head));
                    new_values.extend_from_slice(tokens.projected(row, step, self.heads + self.kv_heads + kv_head));
                }
            }
        }
        let new_keys = write_floats(CACHED_ATTENTION, shapes[1].0, &shapes[1].1, &new_keys)?;
        let new_values = write_floats(CACHED_ATTENTION, shapes[2].0, &shapes[2].1, &new_values)?;
        let (keys, values) = (read_floats(&new_keys), read_floats(&new_values));
        for row in 0..tokens.rows {
            for step in 0..tokens.length {
                for head in 0..self.heads {
                    y.extend(tokens.attend(row, step, head, &keys, &values));
                }
            }
        }
        Ok(vec![write_floats(CACHED_ATTENTION, shapes[0].0, &shapes[0].1, &y)?, new_keys, new_values])
    }
}

/// The inputs by their meaning.
struct Parts<T> {
    joint: T,
    keys: T,
    values: T,
    lengths: T,
    tables: Option<[T; 2]>,
    positions: Option<T>,
    sinks: Option<T>,
    pages: Option<T>,
}

impl CachedAttention {
    fn parts<'a, T>(&self, inputs: &[&'a T]) -> Result<Parts<&'a T>, InferError> {
        if self.heads == 0 || self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(refuse(format!("{} query heads cannot share {} key heads", self.heads, self.kv_heads)));
        }
        let is_turned = self.rotary != RotaryFn::None;
        let single = [self.positions, self.sinks, self.paged].into_iter().filter(|&is_there| is_there).count();
        let expected = REQUIRED + 2 * usize::from(is_turned) + single;
        let (&[joint, keys, values, lengths, ref optional @ ..], true) = (inputs, inputs.len() == expected) else {
            return Err(refuse(format!("{} inputs given where {expected} are expected", inputs.len())));
        };
        let mut optional = optional.iter().copied();
        let tables = if is_turned { optional.next().zip(optional.next()).map(|(a, b)| [a, b]) } else { None };
        let positions = if self.positions { optional.next() } else { None };
        let sinks = if self.sinks { optional.next() } else { None };
        let pages = if self.paged { optional.next() } else { None };
        Ok(Parts { joint, keys, values, lengths, tables, positions, sinks, pages })
    }
}

fn refuse(reason: String) -> InferError {
    InferError::new(CACHED_ATTENTION, reason)
}

/// Refuses what cannot be the pages of rows.
pub(super) fn check_pages(op: &'static str, pages: &Type, rows: &Dim) -> Result<(), InferError> {
    match &pages.dims[..] {
        [found, _] if pages.dtype == DType::I32 && same_dim(found, rows).is_some() => Ok(()),
        _ => Err(InferError::new(op, format!("pages of rows: {pages} found where i32[{rows},W] is expected"))),
    }
}

fn check_part(name: &str, found: &Dim, expected: &Dim) -> Result<(), InferError> {
    match same_dim(found, expected) {
        Some(_) => Ok(()),
        None => Err(refuse(format!("{name} have a width of {found}; {expected} was expected"))),
    }
}

fn check_dims(name: &str, found: &Type, dtype: DType, dims: &[Dim]) -> Result<(), InferError> {
    let fits = found.dims.len() == dims.len() && found.dims.iter().zip(dims).all(|(a, b)| same_dim(a, b).is_some());
    if found.dtype == dtype && fits {
        return Ok(());
    }
    let expected = Type { dtype, dims: dims.to_vec() };
    Err(refuse(format!("{name}: {found} found where {expected} is expected")))
}

/// All inputs as numbers.
struct Tokens<'a> {
    op: &'a CachedAttention,
    rows: usize,
    length: usize,
    /// Slots of a row, or tokens of a page.
    slots: usize,
    size: usize,
    joint: Vec<f64>,
    keys: Vec<f64>,
    values: Vec<f64>,
    lengths: Vec<usize>,
    /// Cosines, sines, and how many of each there are for a position.
    tables: Option<(Vec<f64>, Vec<f64>, usize)>,
    positions: Option<Vec<i128>>,
    sinks: Option<Vec<f64>>,
    /// Pages of each row, where tokens lie in pages.
    pages: Option<Pages>,
}

impl<'a> Tokens<'a> {
    fn read(op: &'a CachedAttention, inputs: &[Tensor]) -> Result<Tokens<'a>, EvalError> {
        let parts = op.parts(&inputs.iter().collect::<Vec<_>>())?;
        let (joint, cache) = (parts.joint.shape(), parts.keys.shape());
        let lengths = read_ints(CACHED_ATTENTION, parts.lengths)?;
        let length = |&length: &i128| {
            usize::try_from(length)
                .map_err(|_| EvalError::value(CACHED_ATTENTION, format!("{length} tokens are cached")))
        };
        let tables =
            parts.tables.map(|[cosines, sines]| (read_floats(cosines), read_floats(sines), cosines.shape()[1]));
        Ok(Tokens {
            op,
            rows: joint[0],
            length: joint[1],
            slots: cache[2],
            size: cache[3],
            joint: read_floats(parts.joint),
            keys: read_floats(parts.keys),
            values: read_floats(parts.values),
            lengths: lengths.iter().map(length).collect::<Result<_, _>>()?,
            tables,
            positions: parts.positions.map(|positions| read_ints(CACHED_ATTENTION, positions)).transpose()?,
            sinks: parts.sinks.map(read_floats),
            pages: parts.pages.map(|pages| Pages::read(CACHED_ATTENTION, pages, cache)).transpose()?,
        })
    }

    /// A head of the projections: queries, then keys, then values.
    fn projected(&self, row: usize, step: usize, head: usize) -> &[f64] {
        let heads = self.op.heads + 2 * self.op.kv_heads;
        &self.joint[((row * self.length + step) * heads + head) * self.size..][..self.size]
    }

    /// A query or key turned by its position.
    fn turned(&self, row: usize, step: usize, head: usize) -> Vec<f64> {
        let mut turned = self.projected(row, step, head).to_vec();
        let Some((cosines, sines, half)) = &self.tables else { return turned };
        let last = (cosines.len() / half.max(&1)).saturating_sub(1) as i128;
        let own = (self.lengths[row] + step) as i128;
        let position = self.positions.as_ref().map_or(own, |positions| positions[row * self.length + step]);
        let position = position.clamp(0, last) as usize;
        for pair in 0..*half {
            let (a, b) = match self.op.rotary {
                RotaryFn::Interleaved => (2 * pair, 2 * pair + 1),
                RotaryFn::Half | RotaryFn::None => (pair, half + pair),
            };
            let (cosine, sine) = (cosines[position * half + pair], sines[position * half + pair]);
            let (x, y) = (turned[a], turned[b]);
            (turned[a], turned[b]) = (x * cosine - y * sine, y * cosine + x * sine);
        }
        turned
    }

    /// One head of one result.
    fn attend(&self, row: usize, step: usize, head: usize, new_keys: &[f64], new_values: &[f64]) -> Vec<f64> {
        let query = self.turned(row, step, head);
        let kv_head = head / (self.op.heads / self.op.kv_heads);
        let at = |of: &[f64], token: usize| of[token * self.size..][..self.size].to_vec();
        let cached = self.seen_places(row, step, kv_head).into_iter();
        let new = (0..=step).filter(|&other| self.op.window == 0 || other + self.op.window > step);
        let new = new.map(|step| (row * self.op.kv_heads + kv_head) * self.length + step);
        let seen: Vec<(Vec<f64>, Vec<f64>)> = cached
            .map(|place| (at(&self.keys, place), at(&self.values, place)))
            .chain(new.map(|place| (at(new_keys, place), at(new_values, place))))
            .collect();
        let scores: Vec<f64> = seen.iter().map(|(key, _)| self.score(&query, key)).collect();
        let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
        let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| libm::exp(score - largest)).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| libm::exp(sink - largest));
        let mut result = vec![0.0; self.size];
        for (weight, (_, value)) in weights.iter().zip(&seen) {
            result.iter_mut().zip(value).for_each(|(result, value)| *result += weight / sum * value);
        }
        result
    }

    fn score(&self, query: &[f64], key: &[f64]) -> f64 {
        let score = query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() * self.op.scale;
        if self.op.softcap == 0.0 { score } else { self.op.softcap * libm::tanh(score / self.op.softcap) }
    }

    /// Where the cached tokens that a query sees lie, among all tokens of all heads.
    fn seen_places(&self, row: usize, step: usize, kv_head: usize) -> Vec<usize> {
        let (kv_heads, slots) = (self.op.kv_heads, self.slots);
        let Some(pages) = &self.pages else {
            let seen = (0..slots).filter(|&slot| self.sees_slot(row, step, slot));
            return seen.map(|slot| (row * kv_heads + kv_head) * slots + slot).collect();
        };
        let cached = self.lengths[row];
        let is_seen = |&token: &usize| self.op.window == 0 || token + self.op.window > cached + step;
        let place = |token: usize| Some((pages.page(row, token)? * kv_heads + kv_head) * slots + token % slots);
        (0..cached.min(pages.tokens())).filter(is_seen).filter_map(place).collect()
    }

    /// Whether a slot holds a token that a query sees. A slot holds the last token that it was written for.
    fn sees_slot(&self, row: usize, step: usize, slot: usize) -> bool {
        let (cached, slots) = (self.lengths[row] as i64, self.slots as i64);
        let token = cached - 1 - (cached - 1 - slot as i64).rem_euclid(slots);
        token >= 0 && (self.op.window == 0 || token + self.op.window as i64 > cached + step as i64)
    }
}

/// The pages of rows.
pub(super) struct Pages {
    numbers: Vec<i128>,
    /// Pages of a row, tokens of a page, and pages that there are.
    width: usize,
    page_tokens: usize,
    count: usize,
}

impl Pages {
    /// From the input that says which they are and the sizes of what they are pages of.
    pub(super) fn read(op: &'static str, pages: &Tensor, cache: &[usize]) -> Result<Pages, EvalError> {
        let (width, page_tokens, count) = (pages.shape()[1], cache[2], cache[0]);
        Ok(Pages { numbers: read_ints(op, pages)?, width, page_tokens, count })
    }

    /// Tokens of a row that its pages have room for.
    pub(super) fn tokens(&self) -> usize {
        self.width * self.page_tokens
    }

    /// The page that a token of a row lies in, if there is one.
    pub(super) fn page(&self, row: usize, token: usize) -> Option<usize> {
        let number = (token < self.tokens()).then(|| self.numbers[row * self.width + token / self.page_tokens])?;
        usize::try_from(number).ok().filter(|&page| page < self.count)
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
