//! Which liberties a compile may take with numbers. By default floats stay as wide as the model has them and passes may
//! change rounding only; every other liberty is asked for by name, and is part of the key and of the Program.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::fast_math::FastMath;
use crate::pipeline::{Class, Liberty};

/// Which liberties a compile may take with numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Round as the ops are written: no pass of class R, no kernel that sums in another form.
    pub is_strict: bool,
    /// Rewrites of class F that may run.
    pub fast_math: FastMath,
    /// What constant f32 weights are held and multiplied as.
    pub weights: WeightPrecision,
    /// What f32 values between a model's inputs and outputs are held as.
    pub floats: FloatPrecision,
    /// What rows are multiplied as with weights of few bits that have a scale for each block of them.
    pub activations: ActivationPrecision,
}

/// What f32 values between a model's inputs and outputs are held as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FloatPrecision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to f16 where the op's meaning allows it; sums and statistics in f32.
    F16,
}

impl FloatPrecision {
    /// Name in keys and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            FloatPrecision::F32 => "f32",
            FloatPrecision::F16 => "fp16",
        }
    }
}

/// What rows are multiplied as with weights of few bits that have a scale for each block of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationPrecision {
    /// As they are.
    #[default]
    F32,
    /// Signed bytes with a scale for each few of them, found when they are known.
    Int8,
}

impl ActivationPrecision {
    /// Every precision.
    pub const ALL: [ActivationPrecision; 2] = [ActivationPrecision::F32, ActivationPrecision::Int8];

    /// Name in keys and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            ActivationPrecision::F32 => "f32",
            ActivationPrecision::Int8 => "int8",
        }
    }
}

impl FromStr for ActivationPrecision {
    type Err = String;

    fn from_str(text: &str) -> Result<ActivationPrecision, String> {
        let named = ActivationPrecision::ALL.into_iter().find(|precision| precision.name() == text);
        named.ok_or_else(|| format!("'{text}' is no precision of activations; f32 or int8 is expected"))
    }
}

/// What constant f32 weights are held and multiplied as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightPrecision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, products summed in f32.
    Bf16,
    /// Signed bytes with a scale a column, times rows that are quantised when they are known.
    Int8,
}

impl WeightPrecision {
    /// Name in keys and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            WeightPrecision::F32 => "f32",
            WeightPrecision::Bf16 => "bf16",
            WeightPrecision::Int8 => "int8",
        }
    }
}

/// Words of the text form.
const STRICT: &str = "strict";
const FAST_MATH: &str = "fast-math=";
const INT8_ACTIVATIONS: &str = "int8-activations";

impl Numerics {
    /// Whether a pass of this class may run.
    pub fn admits(&self, class: Class) -> bool {
        match class {
            Class::Exact => true,
            Class::Rounding => !self.is_strict,
            Class::Fast(_) if self.is_strict => false,
            Class::Fast(Liberty::Math(rewrite)) => self.fast_math.contains(rewrite),
            Class::Fast(Liberty::Int8) => self.weights == WeightPrecision::Int8,
        }
    }

    /// Refuses liberties that contradict one another.
    pub fn check(&self) -> Result<(), String> {
        if self.is_strict && !self.fast_math.is_empty() {
            let names = &self.fast_math;
            return Err(format!("strict numerics round as the model is written; fast-math {names} does not"));
        }
        if self.is_strict && self.weights != WeightPrecision::F32 {
            let weights = self.weights.name();
            return Err(format!("strict numerics round as the model is written; {weights} weights do not"));
        }
        if self.is_strict && self.floats != FloatPrecision::F32 {
            let floats = self.floats.name();
            return Err(format!("strict numerics round as the model is written; {floats} values do not"));
        }
        if self.is_strict && self.activations != ActivationPrecision::F32 {
            let activations = self.activations.name();
            return Err(format!("strict numerics round as the model is written; {activations} activations do not"));
        }
        Ok(())
    }

    /// Every field by name, defaults written out, as keys hold them.
    pub fn fields(&self) -> BTreeMap<String, String> {
        let rounding = if self.is_strict { STRICT } else { "default" };
        let fields = [
            ("rounding", rounding.to_string()),
            ("fast_math", self.fast_math.to_string()),
            ("weights", self.weights.name().to_string()),
            ("floats", self.floats.name().to_string()),
            ("activations", self.activations.name().to_string()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }
}

/// What differs from the default, each with a plus before it: `+fast-math=gelu,zero+bf16`. Nothing for the default.
impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_strict {
            write!(f, "+{STRICT}")?;
        }
        if !self.fast_math.is_empty() {
            write!(f, "+{FAST_MATH}{}", self.fast_math)?;
        }
        if self.floats != FloatPrecision::F32 {
            write!(f, "+{}", self.floats.name())?;
        }
        match self.weights {
            WeightPrecision::F32 => {}
            WeightPrecision::Bf16 | WeightPrecision::Int8 => write!(f, "+{}", self.weights.name())?,
        }
        match self.activations {
            ActivationPrecision::F32 => Ok(()),
            ActivationPrecision::Int8 => write!(f, "+{INT8_ACTIVATIONS}"),
        }
    }
}

impl FromStr for Numerics {
    type Err = String;

    /// What `Display` printed, and nothing else.
    fn from_str(text: &str) -> Result<Numerics, String> {
        let mut numerics = Numerics::default();
        for word in text.split('+').skip(1) {
            match word {
                STRICT => numerics.is_strict = true,
                "fp16" => numerics.floats = FloatPrecision::F16,
                "bf16" => numerics.weights = WeightPrecision::Bf16,
                "int8" => numerics.weights = WeightPrecision::Int8,
                INT8_ACTIVATIONS => numerics.activations = ActivationPrecision::Int8,
                _ => match word.strip_prefix(FAST_MATH) {
                    Some(names) => numerics.fast_math = names.parse()?,
                    None => return Err(format!("'{word}' is no numeric option of this build")),
                },
            }
        }
        if numerics.to_string() == text { Ok(numerics) } else { Err(format!("'{text}' is not in its plain form")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast_math::FastRewrite;

    #[test]
    fn what_is_printed_reads_back() {
        let bf16 = Numerics { weights: WeightPrecision::Bf16, ..Numerics::default() };
        let strict = Numerics { is_strict: true, ..Numerics::default() };
        let fast_math = FastMath::of([FastRewrite::Zero, FastRewrite::LogExp]);
        let two = Numerics { fast_math, ..bf16.clone() };
        let cases = [
            (Numerics::default(), ""),
            (strict, "+strict"),
            (bf16, "+bf16"),
            (Numerics { weights: WeightPrecision::Int8, ..Numerics::default() }, "+int8"),
            (Numerics { floats: FloatPrecision::F16, ..Numerics::default() }, "+fp16"),
            (Numerics { activations: ActivationPrecision::Int8, ..Numerics::default() }, "+int8-activations"),
            (
                Numerics { activations: ActivationPrecision::Int8, ..two.clone() },
                "+fast-math=zero,log-exp+bf16+int8-activations",
            ),
            (two, "+fast-math=zero,log-exp+bf16"),
        ];
        for (numerics, text) in cases {
            assert_eq!(numerics.to_string(), text);
            assert_eq!(text.parse(), Ok(numerics));
        }
        for bad in
            ["strict", "+fp8", "+strict+strict", "+", "+bf16+strict", "+bf16+int8", "+fast-math=all", "+fast-math=none"]
        {
            assert!(bad.parse::<Numerics>().is_err(), "{bad}");
        }
    }

    #[test]
    fn strict_numerics_take_no_other_liberty() {
        assert_eq!(Numerics::default().check(), Ok(()));
        let both = Numerics { is_strict: true, weights: WeightPrecision::Bf16, ..Numerics::default() };
        assert!(both.check().unwrap_err().contains("bf16 weights"));
        let fast = Numerics { is_strict: true, fast_math: FastMath::all(), ..Numerics::default() };
        assert!(fast.check().unwrap_err().contains("fast-math gelu,zero,log-exp,pow-sqrt"));
        let bytes = Numerics { is_strict: true, activations: ActivationPrecision::Int8, ..Numerics::default() };
        assert!(bytes.check().unwrap_err().contains("int8 activations"));
        assert!(!fast.admits(Class::Fast(Liberty::Math(FastRewrite::Zero))));
    }
}
