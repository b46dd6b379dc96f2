//! What happens to a result before it is stored for good: bias, residual and activation.

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

impl Activation {
    /// The limits to which this activation is a clamp, or `None` when it is something else. A NaN passes a clamp.
    pub(crate) fn limits(self) -> Option<(f32, f32)> {
        match self {
            Activation::None => Some((f32::NEG_INFINITY, f32::INFINITY)),
            Activation::Relu => Some((0.0, f32::INFINITY)),
            Activation::Clamp { lo, hi } => Some((lo, hi)),
            Activation::LeakyRelu { .. }
            | Activation::Sigmoid
            | Activation::Silu
            | Activation::HardSwish
            | Activation::HardSigmoid { .. }
            | Activation::Gelu
            | Activation::GeluTanh
            | Activation::Tanh => None,
        }
    }
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

/// Applied to a product before it is stored: product + bias + residual, then the activation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to rows or columns.
    pub bias: Bias<'a>,
    /// Added element by element; laid out like the result.
    pub residual: Option<&'a [f32]>,
    /// Applied last.
    pub activation: Activation,
}
