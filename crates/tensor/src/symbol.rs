//! Names of sizes that are not known yet, and the numbers bound to them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The name of a free size. Any text is a name; printing quotes what would not parse back bare.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Symbol(Arc<str>);

/// Words of the Dim grammar, which a symbol may be named after only in quotes.
const RESERVED: [&str; 10] = ["floordiv", "ceildiv", "mod", "min", "max", "floor", "ceil", "ceiling", "Min", "Max"];

impl Symbol {
    /// A symbol with this name.
    pub fn new(name: impl Into<Arc<str>>) -> Symbol {
        Symbol(name.into())
    }

    /// The name without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn prints_bare(&self) -> bool {
        let mut chars = self.0.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|rest| rest.is_ascii_alphanumeric() || rest == '_' || rest == '.')
            && !RESERVED.contains(&self.as_str())
    }
}

impl From<&str> for Symbol {
    fn from(name: &str) -> Symbol {
        Symbol::new(name)
    }
}

impl From<String> for Symbol {
    fn from(name: String) -> Symbol {
        Symbol::new(name)
    }
}

impl From<&Symbol> for Symbol {
    fn from(symbol: &Symbol) -> Symbol {
        symbol.clone()
    }
}

impl AsRef<str> for Symbol {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Symbol {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prints_bare() {
            return formatter.write_str(&self.0);
        }
        formatter.write_str("\"")?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(formatter, "\\{character}")?,
                '\n' => formatter.write_str("\\n")?,
                other => write!(formatter, "{other}")?,
            }
        }
        formatter.write_str("\"")
    }
}

/// A number for each of some symbols.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Bindings(BTreeMap<Symbol, i64>);

impl Bindings {
    /// No bindings.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// The number bound to a symbol.
    pub fn get(&self, symbol: &Symbol) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// Binds a symbol; returns the number it had before.
    pub fn insert(&mut self, symbol: impl Into<Symbol>, value: i64) -> Option<i64> {
        self.0.insert(symbol.into(), value)
    }

    /// All bindings in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&Symbol, i64)> {
        self.0.iter().map(|(symbol, value)| (symbol, *value))
    }

    /// Number of bound symbols.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is bound.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S: Into<Symbol>> FromIterator<(S, i64)> for Bindings {
    fn from_iter<I: IntoIterator<Item = (S, i64)>>(bindings: I) -> Bindings {
        Bindings(bindings.into_iter().map(|(symbol, value)| (symbol.into(), value)).collect())
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (symbol, value)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(formatter, "{separator}{symbol}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_grammar_are_quoted() {
        assert_eq!(Symbol::from("batch.0_x").to_string(), "batch.0_x");
        assert_eq!(Symbol::from("batch size").to_string(), "\"batch size\"");
        assert_eq!(Symbol::from("0").to_string(), "\"0\"");
        assert_eq!(Symbol::from("").to_string(), "\"\"");
        assert_eq!(Symbol::from("mod").to_string(), "\"mod\"");
        assert_eq!(Symbol::from("a\"\\").to_string(), "\"a\\\"\\\\\"");
    }

    #[test]
    fn bindings_print_in_order_of_name() {
        let bindings: Bindings = [("n", 4), ("b", 2)].into_iter().collect();
        assert_eq!(bindings.to_string(), "b=2,n=4");
        assert_eq!(bindings.get(&"n".into()), Some(4));
        assert_eq!(bindings.get(&"m".into()), None);
    }
}
