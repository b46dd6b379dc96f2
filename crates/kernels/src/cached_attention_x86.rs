//! Scores of many keys at once by vectors of 512 bits: the sums of sixteen keys are folded together.

use std::arch::x86_64::*;

/// Keys whose sums are folded together.
pub(crate) const KEYS: usize = 16;

/// As `score_keys` of `KEYS` keys, whose size is a multiple of 16: the same bits.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) fn score_sixteen(query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32; KEYS]) {
    let size = query.len();
    assert!(keys.len() >= KEYS * size, "{KEYS} keys of {size} in {}", keys.len());
    let mut sums = [_mm512_setzero_ps(); KEYS];
    for (at, query) in query.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: sixteen floats.
        let query = unsafe { _mm512_loadu_ps(query.as_ptr()) };
        for (key, sum) in sums.iter_mut().enumerate() {
            // SAFETY: sixteen floats of one of `KEYS` keys, which the assertion found there.
            let lanes = unsafe { _mm512_loadu_ps(keys.as_ptr().add(key * size + 16 * at)) };
            *sum = _mm512_fmadd_ps(query, lanes, *sum);
        }
    }
    // Lane 4q + i of the result is the part q of the i-th fold below.
    let parts: [__m512; 4] = std::array::from_fn(|first| {
        let halves = fold_to_eight(sums[first], sums[first + 4]);
        fold_to_four(halves, fold_to_eight(sums[first + 8], sums[first + 12]))
    });
    let sums = fold_to_one(fold_to_two(parts[0], parts[1]), fold_to_two(parts[2], parts[3]));
    // SAFETY: sixteen floats.
    unsafe { _mm512_storeu_ps(scores.as_mut_ptr(), _mm512_mul_ps(sums, _mm512_set1_ps(scale))) };
}

/// Lanes l and l + 8 of two vectors, eight sums each.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_to_eight(a: __m512, b: __m512) -> __m512 {
    let (low, high) = (_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
    _mm512_add_ps(low, high)
}

/// Of four vectors in two, four sums each.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_to_four(a: __m512, b: __m512) -> __m512 {
    let (low, high) = (_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
    _mm512_add_ps(low, high)
}

/// Of eight vectors in two, two sums each.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_to_two(a: __m512, b: __m512) -> __m512 {
    let (low, high) = (_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
    _mm512_add_ps(low, high)
}

/// Of sixteen vectors in two, one sum each.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_to_one(a: __m512, b: __m512) -> __m512 {
    let (low, high) = (_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
    _mm512_add_ps(low, high)
}
