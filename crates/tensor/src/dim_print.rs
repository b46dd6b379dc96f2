//! Printing Dims in the grammar that `dim_parse` reads back to the same Dim.

use std::fmt::{self, Display, Formatter};

use crate::Dim;
use crate::dim::{Atom, Division, Extreme, Term};

impl Display for Dim {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.as_const() {
            return write!(formatter, "{value}");
        }
        for (index, term) in self.terms().iter().enumerate() {
            print_sign(formatter, term.coefficient, index == 0)?;
            print_term(formatter, term, index == 0)?;
        }
        if self.constant() != 0 {
            print_sign(formatter, self.constant(), false)?;
            print_magnitude(formatter, self.constant())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, formatter)
    }
}

fn print_sign(formatter: &mut Formatter<'_>, value: i64, is_first: bool) -> fmt::Result {
    formatter.write_str(match (is_first, value) {
        // The magnitude of i64::MIN is not a literal of the grammar, so that it keeps its sign.
        (true, i64::MIN) => "",
        (false, i64::MIN) => " + ",
        (true, ..0) => "-",
        (false, ..0) => " - ",
        (true, _) => "",
        (false, _) => " + ",
    })
}

fn print_magnitude(formatter: &mut Formatter<'_>, value: i64) -> fmt::Result {
    write!(formatter, "{}", value.checked_abs().unwrap_or(value))
}

fn print_term(formatter: &mut Formatter<'_>, term: &Term, is_first: bool) -> fmt::Result {
    let has_coefficient = !matches!(term.coefficient, 1 | -1);
    if has_coefficient {
        print_magnitude(formatter, term.coefficient)?;
        formatter.write_str("*")?;
    }
    // A sign or another factor would bind to the first operand of a bare division.
    let is_alone = term.product.0.len() == 1 && !has_coefficient && !(is_first && term.coefficient < 0);
    for (index, atom) in term.product.0.iter().enumerate() {
        if index > 0 {
            formatter.write_str("*")?;
        }
        let is_operation = matches!(atom, Atom::Divide(..) | Atom::Unexpanded(..));
        if is_operation && !is_alone {
            write!(formatter, "({})", PrintAtom(atom))?;
        } else {
            write!(formatter, "{}", PrintAtom(atom))?;
        }
    }
    Ok(())
}

struct PrintAtom<'a>(&'a Atom);

impl Display for PrintAtom<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Atom::Symbol(symbol) => write!(formatter, "{symbol}"),
            Atom::Divide(division, dividend, divisor) => {
                let word = match division {
                    Division::Floor => "floordiv",
                    Division::Ceil => "ceildiv",
                    Division::Trunc => "/",
                    Division::Mod => "mod",
                };
                write!(formatter, "{} {word} {}", PrintOperand(dividend), PrintOperand(divisor))
            }
            Atom::Extreme(kind, arguments) => {
                formatter.write_str(match kind {
                    Extreme::Min => "min(",
                    Extreme::Max => "max(",
                })?;
                for (index, argument) in arguments.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "," };
                    write!(formatter, "{separator}{argument}")?;
                }
                formatter.write_str(")")
            }
            Atom::Unexpanded(left, right) => write!(formatter, "({left})*({right})"),
        }
    }
}

struct PrintOperand<'a>(&'a Dim);

impl Display for PrintOperand<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let is_bare = match self.0.as_const() {
            Some(value) => value >= 0,
            None => matches!(self.0.as_atom(), Some(Atom::Symbol(_) | Atom::Extreme(..))),
        };
        if is_bare { write!(formatter, "{}", self.0) } else { write!(formatter, "({})", self.0) }
    }
}
