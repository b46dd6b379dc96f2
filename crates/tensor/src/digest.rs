//! The blake3 digest that names a tensor by its content.

use std::fmt;
use std::str::FromStr;

/// 32 bytes of blake3, printed as hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

/// A text that is not 64 hex digits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("digest `{text}`: expected 64 lower-case hex digits")]
pub struct ParseDigestError {
    /// The text.
    pub text: String,
}

impl Digest {
    /// The digest of some bytes alone.
    pub fn of_bytes(bytes: &[u8]) -> Digest {
        Digest(blake3::hash(bytes).into())
    }
}

/// Makes the digest of bytes that come in parts: that of all of them in a row.
#[derive(Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Adds the next part.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// The digest of the parts so far.
    pub fn finish(&self) -> Digest {
        self.0.finalize().into()
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Digest {
        Digest(hash.into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = ParseDigestError;
    fn from_str(text: &str) -> Result<Digest, ParseDigestError> {
        let error = || ParseDigestError { text: text.chars().take(80).collect() };
        let is_lower_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 64 || !is_lower_hex {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| error())?;
        }
        Ok(Digest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_parses_back() {
        let digest = Digest::of_bytes(b"precast");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert!("00".parse::<Digest>().is_err());
        assert!("é".repeat(32).parse::<Digest>().is_err());
        assert!(digest.to_string().to_uppercase().parse::<Digest>().is_err());
    }
}
