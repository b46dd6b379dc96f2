//! The flags that say which liberties a compile may take with numbers, and how the door shows them.

use std::path::Path;

use clap::{Args, ValueEnum};
use precast::{ActivationPrecision, FastMath, FloatPrecision, Numerics, Program, TargetDescription, WeightPrecision};
use serde_json::{Value, json};

use crate::exit::Failure;

/// Flags for liberties with numbers.
#[derive(Args)]
pub struct NumericsArgs {
    /// How sums round: default may reorder them, strict keeps them as the model is written
    #[arg(long, global = true, value_enum, default_value_t = Rounding::Default)]
    pub numerics: Rounding,
    /// Rewrites that may change NaN, infinities or overflow, or approximate: gelu, zero, log-exp, pow-sqrt, or all
    #[arg(long, global = true, value_name = "NAMES", value_parser = str::parse::<FastMath>)]
    pub fast_math: Option<FastMath>,
    /// Hold constant f32 weights as bf16
    #[arg(long, global = true, conflicts_with = "int8")]
    pub bf16: bool,
    /// Hold f32 values between inputs and outputs as f16; for GPUs
    #[arg(long, global = true)]
    pub fp16: bool,
    /// Multiply large constant f32 weights as 8-bit integers, the other operand quantised row by row
    #[arg(long, global = true)]
    pub int8: bool,
    /// Multiply weights of 4 or 8 bits that have a scale a block with rows quantised to 8 bits, a scale for each few values
    #[arg(long, global = true)]
    pub int8_activations: bool,
}

/// How sums round.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Rounding {
    /// Passes and kernels may change rounding
    Default,
    /// Every sum rounds as it is written
    Strict,
}

impl NumericsArgs {
    /// What the flags say.
    pub fn numerics(&self) -> Numerics {
        let weights = match (self.bf16, self.int8) {
            (true, _) => WeightPrecision::Bf16,
            (false, true) => WeightPrecision::Int8,
            (false, false) => WeightPrecision::F32,
        };
        let fast_math = self.fast_math.clone().unwrap_or_default();
        let floats = if self.fp16 { FloatPrecision::F16 } else { FloatPrecision::F32 };
        let activations = if self.int8_activations { ActivationPrecision::Int8 } else { ActivationPrecision::F32 };
        Numerics { is_strict: self.numerics == Rounding::Strict, fast_math, weights, floats, activations }
    }

    /// Refuses flags that contradict one another.
    pub fn check(&self) -> Result<(), Failure> {
        self.numerics().check().map_err(Failure::usage)
    }

    /// Refuses flags for a Program, whose numbers were decided when it was compiled.
    pub fn refuse_for_program(&self, path: &Path) -> Result<(), Failure> {
        if self.numerics() == Numerics::default() {
            return Ok(());
        }
        let flags = "--numerics, --fast-math, --bf16, --fp16, --int8 and --int8-activations";
        Err(Failure::usage(format!("'{}' is a Program file, compiled already; {flags} are for models", path.display())))
    }
}

/// The numerics of a Program in a line, for people.
pub fn numerics_text(program: &Program) -> String {
    let Some(target) = TargetDescription::parse(&program.target) else { return "unknown".to_string() };
    let fields: Vec<String> = target.numerics.fields().iter().map(|(name, value)| format!("{name} {value}")).collect();
    fields.join(" · ").replace('_', "-")
}

/// The numerics of a Program, for machines.
pub fn numerics_json(program: &Program) -> Value {
    TargetDescription::parse(&program.target).map_or(Value::Null, |target| json!(target.numerics.fields()))
}
