//! Parsing Dims: the grammar that printing uses, and the spellings found in ONNX `dim_param`s.
//!
//! `/` truncates, except inside `floor(..)` and `ceil(..)`, where it makes fractions that the function rounds
//! once: exporters write `floor(s0/2 - 1/2)`. Also read: `//`, `%`, `**`, `Min`, `Max`, `ceiling`.

use std::str::FromStr;

use crate::dim::{Extreme, extreme};
use crate::{Dim, Symbol};

/// Why a text is not a Dim, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("dim `{text}`: {reason} at byte {offset}")]
pub struct ParseDimError {
    /// The text, cut short if long.
    pub text: String,
    /// Byte offset of the problem.
    pub offset: usize,
    /// What was expected there.
    pub reason: String,
}

/// Bounds the recursion on text from outside.
const NESTING_MAX: u32 = 200;
/// Powers are written out as products.
const EXPONENT_MAX: i64 = 16;
/// How much of a long text an error repeats.
const ERROR_TEXT_CHARS: usize = 80;

impl Dim {
    /// Reads a whole text as one Dim.
    pub fn parse(text: &str) -> Result<Dim, ParseDimError> {
        let (dim, end) = Dim::parse_prefix(text)?;
        if end < text.trim_end().len() {
            let reason = format!("expected an operator or the end, found `{}`", shorten(&text[end..]));
            return Err(ParseDimError { text: shorten(text), offset: end, reason });
        }
        Ok(dim)
    }

    /// Reads the longest Dim at the start of a text; also returns the offset after it and any spaces.
    pub fn parse_prefix(text: &str) -> Result<(Dim, usize), ParseDimError> {
        let mut parser = Parser { text, offset: 0, nesting: 0, is_rational: false };
        let dim = parser.sum()?.numerator;
        Ok((dim, parser.offset))
    }
}

impl FromStr for Dim {
    type Err = ParseDimError;
    fn from_str(text: &str) -> Result<Dim, ParseDimError> {
        Dim::parse(text)
    }
}

/// `numerator / denominator`; the denominator is 1 outside `floor` and `ceil`.
struct Fraction {
    numerator: Dim,
    denominator: Dim,
}

impl From<Dim> for Fraction {
    fn from(numerator: Dim) -> Fraction {
        Fraction { numerator, denominator: Dim::ONE }
    }
}

struct Parser<'a> {
    text: &'a str,
    offset: usize,
    nesting: u32,
    is_rational: bool,
}

type Parsed<T> = Result<T, ParseDimError>;

impl<'a> Parser<'a> {
    fn sum(&mut self) -> Parsed<Fraction> {
        let mut left = self.product()?;
        loop {
            let sign = match self.peek() {
                Some('+') => 1,
                Some('-') => -1,
                _ => return Ok(left),
            };
            self.take_symbol();
            let right = self.product()?;
            self.check_weight([&left.numerator, &right.numerator])?;
            let numerator = if left.denominator == right.denominator {
                left.numerator + right.numerator * sign
            } else {
                left.numerator * &right.denominator + right.numerator * &left.denominator * sign
            };
            let is_shared = left.denominator == right.denominator;
            let denominator = if is_shared { left.denominator } else { left.denominator * right.denominator };
            left = Fraction { numerator, denominator };
        }
    }

    fn product(&mut self) -> Parsed<Fraction> {
        let mut left = self.power()?;
        loop {
            let operator = match self.peek() {
                Some('*') => "*",
                Some('/') if self.rest().starts_with("//") => "//",
                Some('/') => "/",
                Some('%') => "%",
                Some(first) if first.is_ascii_alphabetic() => match self.word() {
                    "floordiv" => "floordiv",
                    "ceildiv" => "ceildiv",
                    "mod" => "mod",
                    _ => return Ok(left),
                },
                _ => return Ok(left),
            };
            let start = self.offset;
            self.offset += operator.len();
            let right = self.power()?;
            self.check_weight([&left.numerator, &right.numerator])?;
            left = match operator {
                "*" => Fraction {
                    numerator: left.numerator * right.numerator,
                    denominator: left.denominator * right.denominator,
                },
                "/" if self.is_rational => Fraction {
                    numerator: left.numerator * right.denominator,
                    denominator: left.denominator * right.numerator,
                },
                _ => self.divide(operator, start, left, right)?.into(),
            };
        }
    }

    fn divide(&self, operator: &str, start: usize, left: Fraction, right: Fraction) -> Parsed<Dim> {
        let left = self.whole(left, start)?;
        let right = self.whole(right, start)?;
        Ok(match operator {
            "//" | "floordiv" => left.floor_div(&right),
            "ceildiv" => left.ceil_div(&right),
            "mod" | "%" => left.modulo(&right),
            _ => left.trunc_div(&right),
        })
    }

    fn power(&mut self) -> Parsed<Fraction> {
        let base = self.unary()?;
        self.skip_spaces();
        if !self.rest().starts_with("**") {
            return Ok(base);
        }
        let start = self.offset;
        self.offset += 2;
        let exponent = self.unary()?;
        let base = self.whole(base, start)?;
        match exponent.numerator.as_const() {
            Some(exponent @ 0..=EXPONENT_MAX) => Ok((0..exponent).map(|_| &base).product::<Dim>().into()),
            _ => Err(self.error_at(start, format!("expected an exponent from 0 to {EXPONENT_MAX}"))),
        }
    }

    fn unary(&mut self) -> Parsed<Fraction> {
        if self.peek() != Some('-') {
            return self.primary();
        }
        self.take_symbol();
        if self.peek().is_some_and(|next| next.is_ascii_digit()) {
            return Ok(self.integer("-")?.into());
        }
        self.enter()?;
        let Fraction { numerator, denominator } = self.unary()?;
        self.nesting -= 1;
        Ok(Fraction { numerator: -numerator, denominator })
    }

    fn primary(&mut self) -> Parsed<Fraction> {
        match self.peek() {
            Some('(') => {
                self.take_symbol();
                self.enter()?;
                let inner = self.sum()?;
                self.nesting -= 1;
                self.expect(')')?;
                Ok(inner)
            }
            Some('"') => Ok(self.quoted()?.into()),
            Some(first) if first.is_ascii_digit() => Ok(self.integer("")?.into()),
            Some(first) if first.is_ascii_alphabetic() || first == '_' => self.named(),
            Some(other) => Err(self.error(format!("expected a number, a symbol or `(`, found `{other}`"))),
            None => Err(self.error("expected a number, a symbol or `(`, found the end".to_owned())),
        }
    }

    fn named(&mut self) -> Parsed<Fraction> {
        let word = self.word();
        let start = self.offset;
        self.offset += word.len();
        let is_call = self.peek() == Some('(');
        match word {
            "floordiv" | "ceildiv" | "mod" => Err(self.error_at(start, format!("expected an operand before `{word}`"))),
            "min" | "Min" if is_call => self.extreme_call(Extreme::Min),
            "max" | "Max" if is_call => self.extreme_call(Extreme::Max),
            "floor" if is_call => self.rounding_call(Dim::floor_div),
            "ceil" | "ceiling" if is_call => self.rounding_call(Dim::ceil_div),
            name => Ok(Dim::symbol(name).into()),
        }
    }

    fn extreme_call(&mut self, kind: Extreme) -> Parsed<Fraction> {
        self.enter()?;
        let mut arguments = Vec::new();
        self.expect('(')?;
        loop {
            let start = self.offset;
            let argument = self.sum()?;
            arguments.push(self.whole(argument, start)?);
            self.check_weight(&arguments)?;
            if self.peek() != Some(',') {
                break;
            }
            self.take_symbol();
        }
        self.expect(')')?;
        self.nesting -= 1;
        Ok(extreme(kind, &arguments).into())
    }

    fn rounding_call(&mut self, round: fn(&Dim, &Dim) -> Dim) -> Parsed<Fraction> {
        self.enter()?;
        self.expect('(')?;
        let was_rational = std::mem::replace(&mut self.is_rational, true);
        let Fraction { numerator, denominator } = self.sum()?;
        self.is_rational = was_rational;
        self.expect(')')?;
        self.nesting -= 1;
        Ok(round(&numerator, &denominator).into())
    }

    fn integer(&mut self, sign: &str) -> Parsed<Dim> {
        let start = self.offset;
        let digits = self.take_while(|character| character.is_ascii_digit());
        // `0batch` is no number followed by a symbol.
        if self.rest().starts_with(|next: char| next.is_ascii_alphabetic() || next == '_') {
            return Err(self.error_at(start, "expected a number, or a symbol in quotes".to_owned()));
        }
        let value: Result<i64, _> = format!("{sign}{digits}").parse();
        value.map(Dim::from).map_err(|_| self.error_at(start, "expected a number that fits 64 bits".to_owned()))
    }

    fn quoted(&mut self) -> Parsed<Dim> {
        let start = self.offset;
        self.offset += 1;
        let mut name = String::new();
        let mut characters = self.rest().char_indices();
        while let Some((position, character)) = characters.next() {
            match character {
                '"' => {
                    self.offset += position + 1;
                    return Ok(Dim::symbol(Symbol::from(name)));
                }
                '\\' => match characters.next() {
                    Some((_, 'n')) => name.push('\n'),
                    Some((_, escaped)) => name.push(escaped),
                    None => break,
                },
                other => name.push(other),
            }
        }
        Err(self.error_at(start, "expected a closing quote".to_owned()))
    }

    /// The Dim itself, where a fraction makes no sense.
    fn whole(&self, fraction: Fraction, offset: usize) -> Parsed<Dim> {
        if fraction.denominator == Dim::ONE {
            return Ok(fraction.numerator);
        }
        Err(self.error_at(offset, "expected a whole number, found a fraction".to_owned()))
    }

    /// Refuses before building what would be too heavy to work with.
    fn check_weight<'d>(&self, operands: impl IntoIterator<Item = &'d Dim>) -> Parsed<()> {
        let weight = operands.into_iter().map(Dim::weight).fold(0, u64::saturating_add);
        if weight > Dim::WEIGHT_MAX {
            return Err(self.error(format!("expected at most {} operands", Dim::WEIGHT_MAX)));
        }
        Ok(())
    }

    fn enter(&mut self) -> Parsed<()> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return Err(self.error(format!("expected at most {NESTING_MAX} levels of nesting")));
        }
        Ok(())
    }

    fn expect(&mut self, wanted: char) -> Parsed<()> {
        match self.peek() {
            Some(found) if found == wanted => {
                self.take_symbol();
                Ok(())
            }
            Some(found) => Err(self.error(format!("expected `{wanted}`, found `{found}`"))),
            None => Err(self.error(format!("expected `{wanted}`, found the end"))),
        }
    }

    /// The next character that is not a space; takes the spaces before it.
    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.rest().chars().next()
    }

    fn skip_spaces(&mut self) {
        self.offset += self.rest().len() - self.rest().trim_start().len();
    }

    /// Takes the one-byte symbol that `peek` saw.
    fn take_symbol(&mut self) {
        self.offset += 1;
    }

    fn word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|next: char| !(next.is_ascii_alphanumeric() || next == '_' || next == '.'));
        &rest[..end.unwrap_or(rest.len())]
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|next| !keep(next)).unwrap_or(rest.len());
        self.offset += end;
        &rest[..end]
    }

    fn rest(&self) -> &'a str {
        &self.text[self.offset..]
    }

    fn error(&self, reason: String) -> ParseDimError {
        self.error_at(self.offset, reason)
    }

    fn error_at(&self, offset: usize, reason: String) -> ParseDimError {
        ParseDimError { text: shorten(self.text), offset, reason }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(ERROR_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
