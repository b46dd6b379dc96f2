//! Attributes of ops: how each kind prints, reads back, and has its symbols bound. Printing and reading are inverse.

use std::collections::BTreeSet;

use precast_tensor::{Bindings, DType, Digest, Dim, Symbol, Tensor};
use thiserror::Error;

use crate::graph::Graph;

/// A value that an op's attribute may have.
pub trait Attr: Sized {
    /// As the text form prints it.
    fn print(&self) -> String;
    /// From exactly what `print` gives; constants of bodies come from `constants`.
    fn read(text: &str, constants: &dyn ConstantSource) -> Option<Self>;
    /// The same with symbols replaced by numbers.
    fn bind(&self, _bindings: &Bindings) -> Self
    where
        Self: Clone,
    {
        self.clone()
    }
    /// Adds the symbols it mentions.
    fn collect_symbols(&self, _symbols: &mut BTreeSet<Symbol>) {}
    /// The graph, if the attribute is one.
    fn as_body(&self) -> Option<&Graph> {
        None
    }
}

/// Where a parser finds the constants that the text form names by digest.
pub trait ConstantSource {
    /// The tensor with this digest.
    fn constant(&self, digest: &Digest) -> Option<Tensor>;
}

/// A source without constants: only inline ones parse.
pub struct NoConstants;

impl ConstantSource for NoConstants {
    fn constant(&self, _digest: &Digest) -> Option<Tensor> {
        None
    }
}

/// An attribute list of the text form that does not give an op.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AttrError(pub String);

/// Yields the attributes of one op as its struct asks for them, in table order.
pub struct AttrReader<'a> {
    op: &'a str,
    pairs: &'a [(String, String)],
    constants: &'a dyn ConstantSource,
    next: usize,
}

impl<'a> AttrReader<'a> {
    /// A reader over `name=text` pairs.
    pub fn new(op: &'a str, pairs: &'a [(String, String)], constants: &'a dyn ConstantSource) -> AttrReader<'a> {
        AttrReader { op, pairs, constants, next: 0 }
    }

    /// The next attribute, which must be called `name`.
    pub fn read<T: Attr>(&mut self, name: &str) -> Result<T, AttrError> {
        let op = self.op;
        let Some((found, text)) = self.pairs.get(self.next) else {
            return Err(AttrError(format!("{op}: attribute '{name}' is missing")));
        };
        if found != name {
            return Err(AttrError(format!("{op}: attribute '{found}' found where '{name}' was expected")));
        }
        self.next += 1;
        T::read(text, self.constants).ok_or_else(|| AttrError(format!("{op}: attribute '{name}' cannot be '{text}'")))
    }

    /// The error for a name that is not in the table.
    pub fn unknown_op(&self, name: &str) -> AttrError {
        AttrError(format!("there is no op '{name}'"))
    }

    /// The error for attributes that the op does not have, if any are left.
    pub fn finish(&self) -> Result<(), AttrError> {
        match self.pairs.get(self.next) {
            None => Ok(()),
            Some((name, _)) => Err(AttrError(format!("{}: there is no attribute '{name}'", self.op))),
        }
    }
}

macro_rules! plain_attrs {
    ($($ty:ty),+) => { $( impl Attr for $ty {
        fn print(&self) -> String { self.to_string() }
        fn read(text: &str, _: &dyn ConstantSource) -> Option<$ty> { text.parse().ok() }
    } )+ };
}
plain_attrs!(i64, usize, bool);

impl Attr for f64 {
    // `{:?}` is the shortest decimal that parses back to the same bits; NaN keeps its bits.
    fn print(&self) -> String {
        if self.is_nan() { format!("nan:{:016x}", self.to_bits()) } else { format!("{self:?}") }
    }
    fn read(text: &str, _: &dyn ConstantSource) -> Option<f64> {
        match text.strip_prefix("nan:") {
            Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
            None => text.parse().ok(),
        }
    }
}

impl Attr for DType {
    fn print(&self) -> String {
        self.name().to_string()
    }
    fn read(text: &str, _: &dyn ConstantSource) -> Option<DType> {
        DType::from_name(text)
    }
}

impl Attr for Dim {
    fn print(&self) -> String {
        self.to_string()
    }
    fn read(text: &str, _: &dyn ConstantSource) -> Option<Dim> {
        Dim::parse(text).ok()
    }
    fn bind(&self, bindings: &Bindings) -> Dim {
        Dim::bind(self, bindings)
    }
    fn collect_symbols(&self, symbols: &mut BTreeSet<Symbol>) {
        symbols.extend(self.symbols());
    }
}

impl<T: Attr + Clone> Attr for Vec<T> {
    fn print(&self) -> String {
        let items: Vec<String> = self.iter().map(Attr::print).collect();
        format!("[{}]", items.join(", "))
    }
    fn read(text: &str, constants: &dyn ConstantSource) -> Option<Vec<T>> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        if inner.trim().is_empty() {
            return Some(Vec::new());
        }
        split_top_level(inner).into_iter().map(|item| T::read(item.trim(), constants)).collect()
    }
    fn bind(&self, bindings: &Bindings) -> Vec<T> {
        self.iter().map(|item| item.bind(bindings)).collect()
    }
    fn collect_symbols(&self, symbols: &mut BTreeSet<Symbol>) {
        for item in self {
            item.collect_symbols(symbols);
        }
    }
}

impl Attr for Graph {
    fn print(&self) -> String {
        crate::text::print_body(self)
    }
    fn read(text: &str, constants: &dyn ConstantSource) -> Option<Graph> {
        crate::text::parse_body(text, constants)
    }
    fn bind(&self, bindings: &Bindings) -> Graph {
        self.bind_symbols(bindings)
    }
    fn collect_symbols(&self, symbols: &mut BTreeSet<Symbol>) {
        symbols.extend(self.symbols());
    }
    fn as_body(&self) -> Option<&Graph> {
        Some(self)
    }
}

/// Splits at commas that stand outside brackets and quotes.
pub fn split_top_level(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut escaped, mut start, mut items) = (0usize, false, false, 0, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match byte {
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'(' | b'[' | b'{' if !quoted => depth += 1,
            b')' | b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            b',' if depth == 0 && !quoted => {
                items.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&text[start..]);
    items
}
