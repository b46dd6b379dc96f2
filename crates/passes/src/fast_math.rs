//! Rewrites of class F: each may change NaN, infinities or overflow, or approximates, and runs only where it is named.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// One rewrite of class F.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FastRewrite {
    /// GELU by erf becomes GELU by tanh.
    Gelu,
    /// x · 0 and 0 / x become 0, for NaN and infinities too.
    Zero,
    /// log(exp x) becomes x, log(a / b) becomes log a − log b.
    LogExp,
    /// pow(x, ½) becomes sqrt(x), which differs at −0 and −∞.
    PowSqrt,
}

impl FastRewrite {
    /// All of them, in order.
    pub const ALL: [FastRewrite; 4] = [FastRewrite::Gelu, FastRewrite::Zero, FastRewrite::LogExp, FastRewrite::PowSqrt];

    /// Name in options, keys and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            FastRewrite::Gelu => "gelu",
            FastRewrite::Zero => "zero",
            FastRewrite::LogExp => "log-exp",
            FastRewrite::PowSqrt => "pow-sqrt",
        }
    }
}

/// The rewrites of class F that may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FastMath(BTreeSet<FastRewrite>);

/// The name that stands for every rewrite.
const ALL: &str = "all";

impl FastMath {
    /// Every rewrite.
    pub fn all() -> FastMath {
        FastMath::of(FastRewrite::ALL)
    }

    /// These rewrites.
    pub fn of(rewrites: impl IntoIterator<Item = FastRewrite>) -> FastMath {
        FastMath(rewrites.into_iter().collect())
    }

    /// Whether a rewrite may run.
    pub fn contains(&self, rewrite: FastRewrite) -> bool {
        self.0.contains(&rewrite)
    }

    /// Whether no rewrite may run.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Names with commas between them, `none` without any.
impl fmt::Display for FastMath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|rewrite| rewrite.name()).collect();
        f.write_str(if names.is_empty() { "none".to_string() } else { names.join(",") }.as_str())
    }
}

impl FromStr for FastMath {
    type Err = String;

    /// Names with commas between them, or `all`.
    fn from_str(text: &str) -> Result<FastMath, String> {
        if text == ALL {
            return Ok(FastMath::all());
        }
        let rewrite = |word: &str| {
            let found = FastRewrite::ALL.into_iter().find(|rewrite| rewrite.name() == word);
            found.ok_or_else(|| {
                let names: Vec<&str> = FastRewrite::ALL.iter().map(|rewrite| rewrite.name()).collect();
                format!("'{word}' is no fast-math rewrite; there are {}, and {ALL}", names.join(", "))
            })
        };
        text.split(',').map(|word| rewrite(word.trim())).collect::<Result<_, String>>().map(FastMath)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_order_and_printed_in_one() {
        let two: FastMath = "zero, gelu".parse().unwrap();
        assert_eq!(two, FastMath::of([FastRewrite::Gelu, FastRewrite::Zero]));
        assert_eq!(two.to_string(), "gelu,zero");
        assert_eq!("all".parse(), Ok(FastMath::all()));
        assert_eq!(FastMath::default().to_string(), "none");
    }

    #[test]
    fn a_wrong_name_is_told_with_the_right_ones() {
        let error = "gelu,flush".parse::<FastMath>().unwrap_err();
        assert_eq!(error, "'flush' is no fast-math rewrite; there are gelu, zero, log-exp, pow-sqrt, and all");
        for bad in ["", "none", "GELU", "gelu,,zero"] {
            assert!(bad.parse::<FastMath>().is_err(), "{bad}");
        }
    }
}
