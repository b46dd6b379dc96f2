//! What happens to a result before it is stored for good: bias, residual, activation and what comes after it.

use crate::isa::Isa;
use crate::simd::{MulAdd, multiversion};

/// A function applied to every element of a result.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Activation {
    /// x
    #[default]
    None,
    /// max(x, 0)
    Relu,
    /// x limited to lo..=hi
    Clamp {
        /// The least result.
        lo: f32,
        /// The greatest result.
        hi: f32,
    },
    /// x where x ≥ 0, else alpha·x
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// 1 / (1 + e^-x)
    Sigmoid,
    /// x·sigmoid(x)
    Silu,
    /// x·clamp(x/6 + 1/2, 0, 1)
    HardSwish,
    /// clamp(alpha·x + beta, 0, 1)
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Value at zero.
        beta: f32,
    },
    /// x·(1 + erf(x/√2))/2
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// tanh(x)
    Tanh,
}

/// Values added to a matrix, one for each row or for each column.
#[derive(Clone, Copy, Debug, Default)]
pub enum Bias<'a> {
    /// Nothing is added.
    #[default]
    None,
    /// One value for each row; for convolutions, for each output channel.
    Rows(&'a [f32]),
    /// One value for each column.
    Columns(&'a [f32]),
}

impl<'a> Bias<'a> {
    /// The bias of a convolution. Panics when it is one of columns.
    pub(crate) fn of_channels(self) -> Option<&'a [f32]> {
        match self {
            Bias::None => None,
            Bias::Rows(bias) => Some(bias),
            Bias::Columns(_) => panic!("the bias of a convolution is one value for each output channel"),
        }
    }
}

/// x·scale + shift, with two roundings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Affine {
    /// The factor.
    pub scale: f32,
    /// Added last.
    pub shift: f32,
}

/// Where in an epilogue the residual is added.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum ResidualPlace {
    /// Before the activation.
    #[default]
    First,
    /// After everything else.
    Last,
}

/// Applied to a product before it is stored: product + bias + residual, then the activation, then the affine function.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to rows or columns.
    pub bias: Bias<'a>,
    /// Added element by element; laid out like the result.
    pub residual: Option<&'a [f32]>,
    /// When the residual is added.
    pub residual_place: ResidualPlace,
    /// Applied to the sum.
    pub activation: Activation,
    /// Applied after the activation.
    pub affine: Option<Affine>,
}

impl<'a> Epilogue<'a> {
    /// The part after the first residual, if a few instructions compute it.
    pub(crate) fn light(&self) -> Option<Light> {
        let (lo, hi, is_swish) = match self.activation {
            Activation::None => (f32::NEG_INFINITY, f32::INFINITY, false),
            Activation::Relu => (0.0, f32::INFINITY, false),
            Activation::Clamp { lo, hi } => (lo, hi, false),
            Activation::HardSwish => (f32::NEG_INFINITY, f32::INFINITY, true),
            Activation::LeakyRelu { .. }
            | Activation::Sigmoid
            | Activation::Silu
            | Activation::HardSigmoid { .. }
            | Activation::Gelu
            | Activation::GeluTanh
            | Activation::Tanh => return None,
        };
        Some(Light { lo, hi, is_swish, affine: self.affine })
    }

    /// The residual, if it is added before the activation.
    pub(crate) fn first_residual(&self) -> Option<&'a [f32]> {
        self.residual.filter(|_| self.residual_place == ResidualPlace::First)
    }

    /// The residual, if it is added last.
    pub(crate) fn last_residual(&self) -> Option<&'a [f32]> {
        self.residual.filter(|_| self.residual_place == ResidualPlace::Last)
    }

    /// Does everything after the bias to a row that starts at element `start` of the result.
    pub(crate) fn end_row(&self, isa: Isa, start: usize, row: &mut [f32]) {
        if let Some(residual) = self.first_residual() {
            add_residual(isa, &residual[start..start + row.len()], row);
        }
        self.finish_row(isa, start, row);
    }

    /// Does everything after the first residual to a row that starts at element `start` of the result.
    pub(crate) fn finish_row(&self, isa: Isa, start: usize, row: &mut [f32]) {
        crate::math::activate(isa, self.activation, row);
        if let Some(affine) = self.affine {
            apply_affine(isa, affine, row);
        }
        if let Some(residual) = self.last_residual() {
            add_residual(isa, &residual[start..start + row.len()], row);
        }
    }
}

/// An activation of a few instructions and what follows it: kernels apply it to what they hold in registers.
#[derive(Clone, Copy)]
pub(crate) struct Light {
    lo: f32,
    hi: f32,
    is_swish: bool,
    affine: Option<Affine>,
}

impl Light {
    /// Leaves every value as it is.
    pub(crate) const NOTHING: Light = Light { lo: f32::NEG_INFINITY, hi: f32::INFINITY, is_swish: false, affine: None };

    /// Whether it is no more than limits.
    pub(crate) fn is_clamp(&self) -> bool {
        !self.is_swish && self.affine.is_none()
    }

    /// Whether it is HardSwish, perhaps with something after it.
    pub(crate) fn is_swish(&self) -> bool {
        self.is_swish
    }

    /// One value; the same operations as the vector forms.
    #[inline(always)]
    pub(crate) fn apply<F: MulAdd>(&self, value: f32) -> f32 {
        let value = match self.is_swish {
            true => crate::math::hard_swish::<F>(value),
            false => crate::math::clamp(value, self.lo, self.hi),
        };
        match self.affine {
            Some(Affine { scale, shift }) => value * scale + shift,
            None => value,
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Affine, Light};
    use std::arch::x86_64::*;

    /// A `Light` in registers, for loops over many vectors.
    #[derive(Clone, Copy)]
    pub(crate) struct SpreadLight {
        lo: __m512,
        hi: __m512,
        scale: __m512,
        shift: __m512,
    }

    impl SpreadLight {
        /// The limits alone.
        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(crate) fn clamp(&self, value: __m512) -> __m512 {
            // max and min give their second operand when either is NaN.
            _mm512_min_ps(self.hi, _mm512_max_ps(self.lo, value))
        }

        /// HardSwish and what follows it.
        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(crate) fn swish(&self, value: __m512) -> __m512 {
            _mm512_add_ps(_mm512_mul_ps(hard_swish_avx512(value), self.scale), self.shift)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn hard_swish_avx512(value: __m512) -> __m512 {
        let gate = _mm512_fmadd_ps(_mm512_set1_ps(1.0 / 6.0), value, _mm512_set1_ps(0.5));
        let gate = _mm512_max_ps(_mm512_setzero_ps(), gate);
        _mm512_mul_ps(value, _mm512_min_ps(_mm512_set1_ps(1.0), gate))
    }

    impl Light {
        /// Once for many vectors. Without an affine function its factor is 1 and its shift -0, which change nothing.
        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(crate) fn spread_avx512(&self) -> SpreadLight {
            let Affine { scale, shift } = self.affine.unwrap_or(Affine { scale: 1.0, shift: -0.0 });
            SpreadLight {
                lo: _mm512_set1_ps(self.lo),
                hi: _mm512_set1_ps(self.hi),
                scale: _mm512_set1_ps(scale),
                shift: _mm512_set1_ps(shift),
            }
        }

        #[inline]
        #[target_feature(enable = "avx512f")]
        pub(crate) fn apply_avx512(&self, value: __m512) -> __m512 {
            let value = if self.is_swish { hard_swish_avx512(value) } else { self.spread_avx512().clamp(value) };
            match self.affine {
                Some(Affine { scale, shift }) => {
                    _mm512_add_ps(_mm512_mul_ps(value, _mm512_set1_ps(scale)), _mm512_set1_ps(shift))
                }
                None => value,
            }
        }

        #[inline]
        #[target_feature(enable = "avx2,fma")]
        pub(crate) fn apply_avx2(&self, value: __m256) -> __m256 {
            let value = if self.is_swish {
                let gate = _mm256_fmadd_ps(_mm256_set1_ps(1.0 / 6.0), value, _mm256_set1_ps(0.5));
                let gate = _mm256_max_ps(_mm256_setzero_ps(), gate);
                _mm256_mul_ps(value, _mm256_min_ps(_mm256_set1_ps(1.0), gate))
            } else {
                _mm256_min_ps(_mm256_set1_ps(self.hi), _mm256_max_ps(_mm256_set1_ps(self.lo), value))
            };
            match self.affine {
                Some(Affine { scale, shift }) => {
                    _mm256_add_ps(_mm256_mul_ps(value, _mm256_set1_ps(scale)), _mm256_set1_ps(shift))
                }
                None => value,
            }
        }
    }
}

multiversion! {
    fn apply_affine<F: MulAdd>(affine: Affine, row: &mut [f32]) {
        for value in row {
            *value = *value * affine.scale + affine.shift;
        }
    }
}

multiversion! {
    /// `row[i] += residual[i]`.
    pub(crate) fn add_residual<F: MulAdd>(residual: &[f32], row: &mut [f32]) {
        for (value, residual) in row.iter_mut().zip(residual) {
            *value += *residual;
        }
    }
}
