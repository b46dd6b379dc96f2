//! Caches of keys and values with new tokens put behind the cached ones.

use precast_tensor::{DType, Tensor, Type};

use super::attention::{Pages, check_pages};
use super::shape::{check_same_dtype, infer_shapes, read_ints, same_dim};
use crate::error::{EvalError, InferError};
use crate::op::{AppendToCache, Operation};

const APPEND_TO_CACHE: &str = "append_to_cache";

/// Inputs before the caches, and before the pages of rows where there are any: cached tokens and new tokens of each row.
const COUNTS: usize = 2;

impl Operation for AppendToCache {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let (counts, rest) = inputs.split_at_checked(COUNTS).unwrap_or((inputs, &[]));
        let (pages, pairs) = rest.split_at_checked(usize::from(self.paged)).unwrap_or((rest, &[]));
        if counts.len() < COUNTS || pairs.is_empty() || pairs.len() % 2 != 0 {
            let expected = if self.paged { "two counts, pages and pairs" } else { "two counts and pairs" };
            return Err(refuse(format!("{} inputs given where {expected} are expected", inputs.len())));
        }
        for pair in pairs.chunks_exact(2) {
            let (cache, new) = (pair[0], pair[1]);
            check_same_dtype(APPEND_TO_CACHE, cache, new)?;
            let ([rows, heads, _, size], [new_rows, new_heads, _, new_size]) = (&cache.dims[..], &new.dims[..]) else {
                return Err(refuse(format!("{cache} and {new} found where [B,H,S,D] and [B,H,L,D] are expected")));
            };
            let rows = if self.paged { new_rows } else { rows };
            pages.iter().try_for_each(|pages| check_pages(APPEND_TO_CACHE, pages, rows))?;
            let is_equal = [(rows, new_rows), (heads, new_heads), (size, new_size)]
                .into_iter()
                .chain(counts.iter().filter_map(|count| Some((rows, count.dims.first()?))))
                .all(|(a, b)| same_dim(a, b).is_some());
            let are_counts = counts.iter().all(|count| count.dtype == DType::I32 && count.dims.len() == 1);
            if !is_equal || !are_counts {
                let [cached, added] = [counts[0], counts[1]];
                return Err(refuse(format!("tokens {new} counted by {cached} and {added} do not fit a cache {cache}")));
            }
        }
        Ok(pairs.iter().step_by(2).map(|cache| (*cache).clone()).collect())
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        infer_shapes(APPEND_TO_CACHE, self, inputs)?;
        let count = |input: &Tensor| -> Result<Vec<usize>, EvalError> {
            let count = |count: i128| {
                let wrong = |_| EvalError::value(APPEND_TO_CACHE, format!("a row has {count} tokens"));
                usize::try_from(count).map_err(wrong)
            };
            read_ints(APPEND_TO_CACHE, input)?.into_iter().map(count).collect()
        };
        let (cached, added) = (count(&inputs[0])?, count(&inputs[1])?);
        let (pages, pairs) = inputs[COUNTS..].split_at(usize::from(self.paged));
        let append = |pair: &[Tensor]| match pages {
            [pages] => append_to_pages(&pair[0], &pair[1], pages, &cached, &added),
            _ => append(&pair[0], &pair[1], &cached, &added),
        };
        pairs.chunks_exact(2).map(append).collect()
    }
}

/// One cache with its new tokens.
fn append(cache: &Tensor, new: &Tensor, cached: &[usize], added: &[usize]) -> Result<Tensor, EvalError> {
    let (heads, slots, length) = (cache.shape()[1], cache.shape()[2], new.shape()[2]);
    let mut places = Vec::new();
    for (row, (&cached, &added)) in cached.iter().zip(added).enumerate() {
        // Of more tokens than there are slots the last ones stay.
        for token in added.min(length).saturating_sub(slots)..added.min(length) {
            for head in row * heads..(row + 1) * heads {
                places.push((head * slots + (cached + token) % slots, head * length + token));
            }
        }
    }
    with_tokens(cache, new, &places)
}

/// The pages of one cache with their new tokens.
fn append_to_pages(
    cache: &Tensor,
    new: &Tensor,
    pages: &Tensor,
    cached: &[usize],
    added: &[usize],
) -> Result<Tensor, EvalError> {
    let (heads, page_tokens, length) = (cache.shape()[1], cache.shape()[2], new.shape()[2]);
    let pages = Pages::read(APPEND_TO_CACHE, pages, cache.shape())?;
    let mut places = Vec::new();
    for (row, (&cached, &added)) in cached.iter().zip(added).enumerate() {
        for token in 0..added.min(length) {
            let position = cached + token;
            let Some(page) = pages.page(row, position) else { continue };
            for head in 0..heads {
                let to = (page * heads + head) * page_tokens + position % page_tokens;
                places.push((to, (row * heads + head) * length + token));
            }
        }
    }
    with_tokens(cache, new, &places)
}

/// A cache with new tokens at these places: of each where it lies among all tokens of the cache, and among the new ones.
fn with_tokens(cache: &Tensor, new: &Tensor, places: &[(usize, usize)]) -> Result<Tensor, EvalError> {
    let token_bytes = cache.shape()[3] * cache.dtype().size_bytes();
    let mut bytes = cache.as_bytes().to_vec();
    for &(to, from) in places {
        let from = &new.as_bytes()[from * token_bytes..][..token_bytes];
        bytes[to * token_bytes..][..token_bytes].copy_from_slice(from);
    }
    Tensor::new(cache.dtype(), cache.shape().to_vec(), bytes.into())
        .map_err(|error| EvalError::value(APPEND_TO_CACHE, error.to_string()))
}

fn refuse(reason: String) -> InferError {
    InferError::new(APPEND_TO_CACHE, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::ops::test_tensor::{f32s, infer, ints};

    fn counts(counts: &[i128]) -> Tensor {
        ints(DType::I32, &[counts.len()], counts)
    }

    #[test]
    fn tokens_lie_behind_those_of_their_row_and_filler_nowhere() {
        let cache = f32s(&[2, 1, 3, 1], &[1.0, 0.0, 0.0, 4.0, 5.0, 0.0]);
        let new = f32s(&[2, 1, 2, 1], &[7.0, 8.0, 9.0, 99.0]);
        let appended =
            Op::from(AppendToCache { paged: false }).eval(&[counts(&[1, 2]), counts(&[2, 1]), cache, new]).unwrap();
        assert_eq!(appended[0].to_f64_vec(), [1.0, 7.0, 8.0, 4.0, 5.0, 9.0]);
    }

    #[test]
    fn a_ring_keeps_the_last_tokens() {
        // Slots hold tokens 3, 4 and 2; of tokens 5 to 8 the last three stay, 6, 7 and 8.
        let cache = f32s(&[1, 1, 3, 1], &[3.0, 4.0, 2.0]);
        let new = f32s(&[1, 1, 4, 1], &[5.0, 6.0, 7.0, 8.0]);
        let appended =
            Op::from(AppendToCache { paged: false }).eval(&[counts(&[5]), counts(&[4]), cache, new]).unwrap();
        assert_eq!(appended[0].to_f64_vec(), [6.0, 7.0, 8.0]);
    }

    #[test]
    fn tokens_lie_in_the_pages_of_their_rows_and_nowhere_without_one() {
        let pages = |pages: &[i128]| ints(DType::I32, &[2, pages.len() / 2], pages);
        let cache = f32s(&[3, 1, 2, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let new = f32s(&[2, 1, 2, 1], &[7.0, 8.0, 9.0, 99.0]);
        let append = |cached: &[i128], added: &[i128], own: &[i128]| {
            let inputs = [counts(cached), counts(added), pages(own), cache.clone(), new.clone()];
            Op::from(AppendToCache { paged: true }).eval(&inputs).unwrap()[0].to_f64_vec()
        };
        // The first row goes on in its second page; the second row has one token.
        assert_eq!(append(&[1, 0], &[2, 1], &[2, 0, 1, -1]), [8.0, 2.0, 9.0, 4.0, 5.0, 7.0]);
        // A row that is filler, and tokens behind the pages of a row or in pages that there are not, are not kept.
        assert_eq!(append(&[0, 3], &[0, 2], &[0, 1, 0, 2]), [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]);
        assert_eq!(append(&[0, 2], &[2, 1], &[-1, 0, 0, 3]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let types = ["i32[b]", "i32[b]", "f32[b,2,s,8]", "f32[b,2,l,8]"];
        assert_eq!(infer(AppendToCache { paged: false }, &types), "f32[b,2,s,8]");
        let wrong = ["i32[b]", "i32[b]", "f32[b,2,s,8]", "f32[b,1,l,8]"];
        assert!(infer(AppendToCache { paged: false }, &wrong).contains("do not fit a cache f32[b,2,s,8]"));
        assert!(infer(AppendToCache { paged: false }, &types[..3]).contains("two counts and pairs"));
        let paged = ["i32[b]", "i32[b]", "i32[b,w]", "f32[n,2,s,8]", "f32[b,2,l,8]"];
        assert_eq!(infer(AppendToCache { paged: true }, &paged), "f32[n,2,s,8]");
        let wrong = ["i32[b]", "i32[b]", "i64[b,w]", "f32[n,2,s,8]", "f32[b,2,l,8]"];
        assert!(infer(AppendToCache { paged: true }, &wrong).contains("i32[b,W] is expected"));
    }
}
