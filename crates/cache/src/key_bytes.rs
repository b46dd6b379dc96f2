//! Canonical bytes of a KeyRecord: one encoding for each record and one record for each encoding (spec C1). Lengths are
//! written before everything, so no two lists of parts run into the same bytes; absent differs from empty.

use std::collections::BTreeMap;
use std::fmt;

use precast_tensor::Digest;

use crate::key::ABSENT;

/// Value of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Not given.
    Absent,
    /// A text.
    Text(String),
    /// A digest.
    Digest(Digest),
    /// Texts whose order counts.
    List(Vec<String>),
    /// Texts by name, sorted by name.
    Map(BTreeMap<String, String>),
}

const LENGTH_BYTES: usize = size_of::<u64>();

impl Value {
    fn kind(&self) -> u8 {
        match self {
            Value::Absent => 0,
            Value::Text(_) => 1,
            Value::Digest(_) => 2,
            Value::List(_) => 3,
            Value::Map(_) => 4,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        match self {
            Value::Absent => {}
            Value::Text(text) => payload.extend_from_slice(text.as_bytes()),
            Value::Digest(digest) => payload.extend_from_slice(&digest.0),
            Value::List(texts) => texts.iter().for_each(|text| put_text(&mut payload, text)),
            Value::Map(texts) => {
                for (name, text) in texts {
                    put_text(&mut payload, name);
                    put_text(&mut payload, text);
                }
            }
        }
        payload
    }

    fn read(kind: u8, payload: &[u8]) -> Result<Value, String> {
        match kind {
            0 if payload.is_empty() => Ok(Value::Absent),
            0 => Err("an absent field has a payload".to_string()),
            1 => Ok(Value::Text(text_of(payload)?)),
            2 => {
                let digest = payload.try_into().map_err(|_| format!("a digest has {} bytes", payload.len()))?;
                Ok(Value::Digest(Digest(digest)))
            }
            3 => Ok(Value::List(texts_of(payload)?)),
            4 => {
                let mut texts = texts_of(payload)?.into_iter();
                let mut map = BTreeMap::new();
                while let Some(name) = texts.next() {
                    let text = texts.next().ok_or_else(|| format!("'{name}' has no value"))?;
                    map.insert(name, text);
                }
                Ok(Value::Map(map))
            }
            other => Err(format!("kind {other} is unknown")),
        }
    }

    /// This as a text.
    pub(crate) fn text(self, field: &str) -> Result<String, String> {
        if let Value::Text(text) = self { Ok(text) } else { Err(wrong_kind(field, "a text")) }
    }

    /// This as a digest.
    pub(crate) fn digest(self, field: &str) -> Result<Digest, String> {
        if let Value::Digest(digest) = self { Ok(digest) } else { Err(wrong_kind(field, "a digest")) }
    }

    /// This as a list.
    pub(crate) fn list(self, field: &str) -> Result<Vec<String>, String> {
        if let Value::List(texts) = self { Ok(texts) } else { Err(wrong_kind(field, "a list")) }
    }

    /// This as a map.
    pub(crate) fn map(self, field: &str) -> Result<BTreeMap<String, String>, String> {
        if let Value::Map(texts) = self { Ok(texts) } else { Err(wrong_kind(field, "a map")) }
    }

    /// Nothing if this is absent.
    pub(crate) fn optional<T>(self, read: impl FnOnce(Value) -> Result<T, String>) -> Result<Option<T>, String> {
        if self == Value::Absent { Ok(None) } else { read(self).map(Some) }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Absent => f.write_str(ABSENT),
            Value::Text(text) => f.write_str(text),
            Value::Digest(digest) => write!(f, "{digest}"),
            Value::List(texts) => f.write_str(&texts.join(", ")),
            Value::Map(texts) => {
                let parts: Vec<String> = texts.iter().map(|(name, text)| format!("{name}={text}")).collect();
                f.write_str(&parts.join(", "))
            }
        }
    }
}

/// Values in order; the tag of each is its position, from 1.
pub(crate) fn encode(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, value) in (1_u16..).zip(values) {
        let payload = value.payload();
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.push(value.kind());
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&payload);
    }
    bytes
}

/// The values in these bytes. Sortedness of maps is left to the caller, who encodes again and compares.
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Vec<Value>, String> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let tag = values.len() + 1;
        let found = u16::from_le_bytes(take(&mut bytes)?);
        if usize::from(found) != tag {
            return Err(format!("tag {found} where {tag} belongs"));
        }
        let [kind] = take::<1>(&mut bytes)?;
        let payload = take_counted(&mut bytes)?;
        values.push(Value::read(kind, payload).map_err(|reason| format!("tag {tag}: {reason}"))?);
    }
    Ok(values)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn texts_of(mut payload: &[u8]) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    while !payload.is_empty() {
        texts.push(text_of(take_counted(&mut payload)?)?);
    }
    Ok(texts)
}

fn text_of(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8".to_string())
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or_else(ends_early)?;
    *bytes = rest;
    Ok(*head)
}

fn take_counted<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = usize::try_from(u64::from_le_bytes(take::<LENGTH_BYTES>(bytes)?)).map_err(|_| ends_early())?;
    let (head, rest) = bytes.split_at_checked(length).ok_or_else(ends_early)?;
    *bytes = rest;
    Ok(head)
}

fn ends_early() -> String {
    "the bytes end inside a field".to_string()
}

fn wrong_kind(field: &str, expected: &str) -> String {
    format!("field '{field}' is not {expected}")
}
