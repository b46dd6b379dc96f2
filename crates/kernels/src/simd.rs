//! One body, three instruction sets: the `multiversion!` table and the fused multiply-add the bodies use.
//!
//! A body is plain Rust that the compiler vectorises. Each copy is compiled with the features of one `Isa`; the copy
//! is chosen once a call, so bodies should cover a row or a tile, not an element.

/// How a body multiplies and adds: fused where the instruction set has it, in two roundings where it has not.
pub trait MulAdd: Copy {
    /// `a * b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// One rounding; only inside functions that enable FMA, elsewhere it is a library call.
#[derive(Clone, Copy)]
pub struct Fused;

/// Two roundings; compiles to plain instructions everywhere.
#[derive(Clone, Copy)]
pub struct Plain;

impl MulAdd for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl MulAdd for Plain {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Turns `fn name<F: MulAdd>(args) { body }` into `fn name(isa: Isa, args)`, which calls the copy of the body that
/// was compiled for `isa`, with `F` as `Fused` or `Plain`.
macro_rules! multiversion {
    ($(
        $(#[$meta:meta])*
        $visibility:vis fn $name:ident<F: MulAdd $(, const $constant:ident: $of:ty)*>(
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, clippy::extra_unused_type_parameters)]
        $visibility fn $name<$(const $constant: $of),*>(
            isa: $crate::isa::Isa, $($argument: $type),*
        ) $(-> $result)? {
            #[inline(always)]
            fn body<F: $crate::simd::MulAdd $(, const $constant: $of)*>($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2<$(const $constant: $of),*>($($argument: $type),*) $(-> $result)? {
                body::<$crate::simd::Fused $(, $constant)*>($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512<$(const $constant: $of),*>($($argument: $type),*) $(-> $result)? {
                body::<$crate::simd::Fused $(, $constant)*>($($argument),*)
            }

            match isa {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` reaches a kernel only through `Exec`, which checked that this machine has it.
                $crate::isa::Isa::Avx2 => unsafe { avx2::<$($constant),*>($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Isa::Avx512 | $crate::isa::Isa::Avx512Vnni => unsafe {
                    avx512::<$($constant),*>($($argument),*)
                },
                _ => body::<$crate::simd::Plain $(, $constant)*>($($argument),*),
            }
        }
    )*};
}
pub(crate) use multiversion;

/// Work below this many elements stays on the calling thread: about 20 µs of simple arithmetic.
pub(crate) const ELEMENTS_PER_TASK_MIN: usize = 16 * 1024;

/// How many rows of `row_len` elements one task takes, so that a task is worth handing over. `weight` is the cost of
/// an element relative to an addition. Depends on the shape only.
pub(crate) fn rows_per_task(rows: usize, row_len: usize, weight: usize) -> usize {
    let row_work = (row_len.max(1)).saturating_mul(weight.max(1));
    (ELEMENTS_PER_TASK_MIN.div_ceil(row_work)).clamp(1, rows.max(1))
}
