//! The vectors that Winograd transforms work on: one lane for each image tile.
//!
//! A transform is written once over `Lanes`; its entry points carry the target features, and everything below them is
//! inlined into them.

/// Tiles that are transformed together: the lanes of the widest vector, or several of the narrower ones.
pub(crate) const GROUP: usize = 16;

/// A vector of f32.
pub(crate) trait Lanes: Copy {
    /// How many lanes it has; divides `GROUP`.
    const WIDTH: usize;

    /// # Safety
    /// `WIDTH` values can be read.
    unsafe fn load(source: *const f32) -> Self;
    /// # Safety
    /// `WIDTH` values can be written.
    unsafe fn store(self, target: *mut f32);
    fn splat(value: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    /// `self · factor + other`.
    fn mul_add(self, factor: f32, other: Self) -> Self;
}

/// Eight plain numbers.
#[derive(Clone, Copy)]
pub(crate) struct Plain8([f32; 8]);

impl Lanes for Plain8 {
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Plain8 {
        // SAFETY: the promise of the caller; an array of f32 needs no more alignment than f32.
        Plain8(unsafe { source.cast::<[f32; 8]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the promise of the caller.
        unsafe { target.cast::<[f32; 8]>().write(self.0) };
    }

    #[inline(always)]
    fn splat(value: f32) -> Plain8 {
        Plain8([value; 8])
    }

    #[inline(always)]
    fn add(self, other: Plain8) -> Plain8 {
        Plain8(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    fn sub(self, other: Plain8) -> Plain8 {
        Plain8(std::array::from_fn(|lane| self.0[lane] - other.0[lane]))
    }

    #[inline(always)]
    fn mul_add(self, factor: f32, other: Plain8) -> Plain8 {
        Plain8(std::array::from_fn(|lane| self.0[lane] * factor + other.0[lane]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    /// AVX2. Values of this type exist only inside functions that enable it.
    impl Lanes for __m256 {
        const WIDTH: usize = 8;

        #[inline(always)]
        unsafe fn load(source: *const f32) -> __m256 {
            // SAFETY: the promise of the caller.
            unsafe { _mm256_loadu_ps(source) }
        }

        #[inline(always)]
        unsafe fn store(self, target: *mut f32) {
            // SAFETY: the promise of the caller.
            unsafe { _mm256_storeu_ps(target, self) };
        }

        #[inline(always)]
        fn splat(value: f32) -> __m256 {
            // SAFETY: a value of this type exists only where AVX2 and FMA are enabled; so below.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn add(self, other: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_add_ps(self, other) }
        }

        #[inline(always)]
        fn sub(self, other: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_sub_ps(self, other) }
        }

        #[inline(always)]
        fn mul_add(self, factor: f32, other: __m256) -> __m256 {
            // SAFETY: as above.
            unsafe { _mm256_fmadd_ps(self, _mm256_set1_ps(factor), other) }
        }
    }

    /// AVX-512. Values of this type exist only inside functions that enable it.
    impl Lanes for __m512 {
        const WIDTH: usize = 16;

        #[inline(always)]
        unsafe fn load(source: *const f32) -> __m512 {
            // SAFETY: the promise of the caller.
            unsafe { _mm512_loadu_ps(source) }
        }

        #[inline(always)]
        unsafe fn store(self, target: *mut f32) {
            // SAFETY: the promise of the caller.
            unsafe { _mm512_storeu_ps(target, self) };
        }

        #[inline(always)]
        fn splat(value: f32) -> __m512 {
            // SAFETY: a value of this type exists only where AVX-512 is enabled; so below.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn add(self, other: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_add_ps(self, other) }
        }

        #[inline(always)]
        fn sub(self, other: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_sub_ps(self, other) }
        }

        #[inline(always)]
        fn mul_add(self, factor: f32, other: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(self, _mm512_set1_ps(factor), other) }
        }
    }
}
