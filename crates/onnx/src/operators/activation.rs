//! Activations that operators name by a string: in RNN, GRU and LSTM, and in the fused operators of com.microsoft.

use precast_ir::ValueId;
use precast_ir::op::UnaryFn;

use crate::import::{Fault, NodeCx};

/// An activation with the parameters it is applied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Activation {
    pub func: UnaryFn,
    pub alpha: f64,
    pub beta: f64,
}

/// One name: its function, and alpha and beta where the function has them, with their defaults.
struct Row {
    name: &'static str,
    func: UnaryFn,
    alpha: Option<f64>,
    beta: Option<f64>,
}

/// Names of the ONNX text for RNN, GRU and LSTM. Defaults are those of the operators of the same name.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { name: "Affine", func: UnaryFn::Affine, alpha: Some(1.0), beta: Some(0.0) },
    Row { name: "Elu", func: UnaryFn::Elu, alpha: Some(1.0), beta: None },
    Row { name: "HardSigmoid", func: UnaryFn::HardSigmoid, alpha: Some(0.2), beta: Some(0.5) },
    Row { name: "LeakyRelu", func: UnaryFn::Leaky, alpha: Some(0.01), beta: None },
    Row { name: "Relu", func: UnaryFn::Relu, alpha: None, beta: None },
    Row { name: "ScaledTanh", func: UnaryFn::ScaledTanh, alpha: Some(1.0), beta: Some(1.0) },
    Row { name: "Sigmoid", func: UnaryFn::Sigmoid, alpha: None, beta: None },
    Row { name: "Softplus", func: UnaryFn::Softplus, alpha: None, beta: None },
    Row { name: "Softsign", func: UnaryFn::Softsign, alpha: None, beta: None },
    Row { name: "Tanh", func: UnaryFn::Tanh, alpha: None, beta: None },
    Row { name: "ThresholdedRelu", func: UnaryFn::Thresholded, alpha: Some(1.0), beta: None },
];

/// Activations by name. `alphas` and `betas` are consumed in order, each by the next activation that has one; when a
/// list runs out the defaults hold.
pub(super) fn named_activations(names: &[String], alphas: &[f64], betas: &[f64]) -> Result<Vec<Activation>, Fault> {
    let (mut alphas, mut betas) = (alphas.iter().copied(), betas.iter().copied());
    names
        .iter()
        .map(|name| {
            // ONNX Runtime ignores case here, and files rely on it.
            let row = ROWS
                .iter()
                .find(|row| row.name.eq_ignore_ascii_case(name))
                .ok_or_else(|| Fault::Unsupported(format!("activation '{name}' is not covered")))?;
            let alpha = row.alpha.map_or(0.0, |default| alphas.next().unwrap_or(default));
            let beta = row.beta.map_or(0.0, |default| betas.next().unwrap_or(default));
            Ok(Activation { func: row.func, alpha, beta })
        })
        .collect()
}

/// x after the activation that a fused operator names, with its parameters in the order that operator gives them.
pub(super) fn fused_activation(
    cx: &mut NodeCx<'_, '_>,
    name: &str,
    parameters: &[f64],
    x: ValueId,
) -> Result<ValueId, Fault> {
    if name.is_empty() {
        return Ok(x);
    }
    if name == "Clip" {
        let [lo, hi] = parameters[..] else {
            return Err(Fault::Invalid(format!(
                "activation 'Clip' has {} parameters; two were expected",
                parameters.len()
            )));
        };
        return cx.clamp(x, lo, hi);
    }
    let alphas = &parameters[..parameters.len().min(1)];
    let betas = &parameters[alphas.len()..];
    let activations = named_activations(&[name.to_string()], alphas, betas)?;
    cx.unary_with(activations[0].func, activations[0].alpha, activations[0].beta, x)
}
