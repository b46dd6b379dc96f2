//! `Type`: an element type with dims, and its text form `f32[n,3,224,224]`.

use std::fmt;
use std::str::FromStr;

use crate::{Bindings, DType, Dim, ParseDimError, Ranges};

/// Element type and dims of a value.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Type {
    /// The type of each element.
    pub dtype: DType,
    /// The sizes, outermost first; empty for a scalar.
    pub dims: Vec<Dim>,
}

/// Why a text is not a Type.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseTypeError {
    /// The element type is unknown.
    #[error("type `{text}`: unknown element type `{name}`")]
    DType {
        /// The whole text.
        text: String,
        /// The name found.
        name: String,
    },
    /// Something other than the expected character.
    #[error("type `{text}`: expected {expected} at byte {offset}")]
    Expected {
        /// The whole text.
        text: String,
        /// Byte offset of the problem.
        offset: usize,
        /// What was expected there.
        expected: &'static str,
    },
    /// A dim does not parse.
    #[error("type `{text}`: {source}")]
    Dim {
        /// The whole text.
        text: String,
        /// What is wrong with the dim.
        source: ParseDimError,
    },
}

impl Type {
    /// A type of these dims: `Type::new(DType::F32, [2, 3])`.
    pub fn new<I>(dtype: DType, dims: I) -> Type
    where
        I: IntoIterator,
        I::Item: Into<Dim>,
    {
        Type { dtype, dims: dims.into_iter().map(Into::into).collect() }
    }

    /// A type without dims.
    pub fn scalar(dtype: DType) -> Type {
        Type { dtype, dims: Vec::new() }
    }

    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The sizes, if all are numbers and none is negative.
    pub fn shape(&self) -> Option<Vec<usize>> {
        self.dims.iter().map(Dim::as_usize).collect()
    }

    /// Number of elements; 1 for a scalar.
    pub fn element_count(&self) -> Dim {
        self.dims.iter().product()
    }

    /// Bytes in memory of a type whose sizes are numbers; none otherwise or beyond `usize`.
    pub fn size_bytes(&self) -> Option<usize> {
        let shape = self.shape()?;
        // A zero anywhere makes it empty, whatever the product of the others.
        if shape.contains(&0) {
            return Some(0);
        }
        shape.into_iter().try_fold(self.dtype.size_bytes(), usize::checked_mul)
    }

    /// This type with the bound symbols replaced.
    pub fn bind(&self, bindings: &Bindings) -> Type {
        Type::new(self.dtype, self.dims.iter().map(|dim| dim.bind(bindings)))
    }

    /// This type with each dim simplified.
    pub fn simplify(&self, ranges: &Ranges) -> Type {
        Type::new(self.dtype, self.dims.iter().map(|dim| dim.simplify(ranges)))
    }

    /// The same dims with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type { dtype, dims: self.dims.clone() }
    }

    /// Reads a Type at the start of a text; also returns the offset just after it.
    pub fn parse_prefix(text: &str) -> Result<(Type, usize), ParseTypeError> {
        let expected = |offset, expected| ParseTypeError::Expected { text: text.to_owned(), offset, expected };
        let name_end = text.find(|next: char| !next.is_ascii_alphanumeric()).unwrap_or(text.len());
        let name = &text[..name_end];
        let Some(dtype) = DType::from_name(name) else {
            return Err(ParseTypeError::DType { text: text.to_owned(), name: name.to_owned() });
        };
        if !text[name_end..].starts_with('[') {
            return Err(expected(name_end, "`[`"));
        }
        let mut offset = name_end + 1;
        let mut dims = Vec::new();
        if text[offset..].starts_with(']') {
            return Ok((Type { dtype, dims }, offset + 1));
        }
        loop {
            let (dim, length) = Dim::parse_prefix(&text[offset..])
                .map_err(|source| ParseTypeError::Dim { text: text.to_owned(), source })?;
            dims.push(dim);
            offset += length;
            match text[offset..].chars().next() {
                Some(',') => offset += 1,
                Some(']') => return Ok((Type { dtype, dims }, offset + 1)),
                _ => return Err(expected(offset, "`,` or `]`")),
            }
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}[", self.dtype)?;
        for (index, dim) in self.dims.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(formatter, "{separator}{dim}")?;
        }
        formatter.write_str("]")
    }
}

impl FromStr for Type {
    type Err = ParseTypeError;
    fn from_str(text: &str) -> Result<Type, ParseTypeError> {
        let (parsed, end) = Type::parse_prefix(text)?;
        if end == text.len() {
            return Ok(parsed);
        }
        Err(ParseTypeError::Expected { text: text.to_owned(), offset: end, expected: "the end" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_parses_back() {
        for text in ["f32[n,3,224,224]", "f32[]", "i64[0]", "bf16[min(n,4),\"a b\",2*n + 1]", "f8e4m3fn[n floordiv 2]"]
        {
            assert_eq!(text.parse::<Type>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        let message = |text: &str| text.parse::<Type>().unwrap_err().to_string();
        assert_eq!(message("float[2]"), "type `float[2]`: unknown element type `float`");
        assert_eq!(message("f32"), "type `f32`: expected `[` at byte 3");
        assert_eq!(message("f32[2"), "type `f32[2`: expected `,` or `]` at byte 5");
        assert_eq!(message("f32[2] x"), "type `f32[2] x`: expected the end at byte 6");
        assert_eq!(
            message("f32[2,]"),
            "type `f32[2,]`: dim `]`: expected a number, a symbol or `(`, found `]` at byte 0"
        );
    }

    #[test]
    fn shape_needs_numbers_that_are_not_negative() {
        assert_eq!(Type::new(DType::F32, [2, 0]).shape(), Some(vec![2, 0]));
        assert_eq!(Type::new(DType::F32, [-1]).shape(), None);
        let symbolic = Type::new(DType::F16, [Dim::symbol("n"), 3.into()]);
        assert_eq!(symbolic.shape(), None);
        assert_eq!(symbolic.element_count().to_string(), "3*n");
        let bound = symbolic.bind(&[("n", 4)].into_iter().collect());
        assert_eq!(bound, Type::new(DType::F16, [4, 3]));
        assert_eq!(bound.size_bytes(), Some(24));
        assert_eq!(Type::scalar(DType::F16).element_count(), Dim::ONE);
    }
}
