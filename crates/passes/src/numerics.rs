//! Which liberties a compile may take with numbers. By default floats stay as wide as the model has them and passes may
//! change rounding only; every other liberty is asked for by name, and is part of the key and of the Program.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::pipeline::Class;

/// Which liberties a compile may take with numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Round as the ops are written: no pass of class R, no kernel that sums in another form.
    pub is_strict: bool,
    /// What constant f32 weights are held and multiplied as.
    pub weights: WeightPrecision,
}

/// What constant f32 weights are held and multiplied as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightPrecision {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, products summed in f32.
    Bf16,
}

impl WeightPrecision {
    /// Name in keys and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            WeightPrecision::F32 => "f32",
            WeightPrecision::Bf16 => "bf16",
        }
    }
}

/// Words of the text form.
const STRICT: &str = "strict";

impl Numerics {
    /// Whether a pass of this class may run.
    pub fn admits(&self, class: Class) -> bool {
        match class {
            Class::Exact => true,
            Class::Rounding => !self.is_strict,
        }
    }

    /// Refuses liberties that contradict one another.
    pub fn check(&self) -> Result<(), String> {
        if self.is_strict && self.weights != WeightPrecision::F32 {
            let weights = self.weights.name();
            return Err(format!("strict numerics round as the model is written; {weights} weights do not"));
        }
        Ok(())
    }

    /// Every field by name, defaults written out, as keys hold them.
    pub fn fields(&self) -> BTreeMap<String, String> {
        let rounding = if self.is_strict { STRICT } else { "default" };
        let fields = [("rounding", rounding.to_string()), ("weights", self.weights.name().to_string())];
        fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }
}

/// What differs from the default, each with a plus before it: `+strict`. Nothing for the default.
impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_strict {
            write!(f, "+{STRICT}")?;
        }
        match self.weights {
            WeightPrecision::F32 => Ok(()),
            WeightPrecision::Bf16 => write!(f, "+{}", self.weights.name()),
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
                "bf16" => numerics.weights = WeightPrecision::Bf16,
                _ => return Err(format!("'{word}' is no numeric option of this build")),
            }
        }
        if numerics.to_string() == text { Ok(numerics) } else { Err(format!("'{text}' is not in its plain form")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back() {
        let bf16 = Numerics { weights: WeightPrecision::Bf16, ..Numerics::default() };
        let strict = Numerics { is_strict: true, ..Numerics::default() };
        for (numerics, text) in [(Numerics::default(), ""), (strict, "+strict"), (bf16, "+bf16")] {
            assert_eq!(numerics.to_string(), text);
            assert_eq!(text.parse(), Ok(numerics));
        }
        for bad in ["strict", "+fp8", "+strict+strict", "+", "+bf16+strict"] {
            assert!(bad.parse::<Numerics>().is_err(), "{bad}");
        }
    }

    #[test]
    fn strict_numerics_take_no_other_liberty() {
        assert_eq!(Numerics::default().check(), Ok(()));
        let both = Numerics { is_strict: true, weights: WeightPrecision::Bf16 };
        assert!(both.check().unwrap_err().contains("bf16 weights"));
    }
}
