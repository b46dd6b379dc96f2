//! What a Program is found by: the `KeyRecord` (everything its code depends on) and the `ProgramKey` (its digest).
//! The digest only finds a candidate; a hit is a record that is equal byte for byte. Nothing here reads a clock, a path
//! or the environment, so a key can be computed on any machine and without a Device.

use std::collections::BTreeMap;
use std::fmt;

use precast_program::Bucket;
use precast_tensor::Digest;

use crate::key_bytes::{self, Value};

/// Changes with every change of the canonical bytes of a KeyRecord.
pub const KEY_SCHEMA: u32 = 1;
/// Domain of the digest; names the schema, so two schemas never share a key.
const KEY_CONTEXT: &str = "precast ProgramKey, schema 1";
/// Bits that a ProgramKey keeps. Only tests ask for fewer, to force collisions.
pub const KEY_BITS: u16 = 256;

/// Everything the code of a Program depends on. There is no `Default`: a field that a caller could forget would be a
/// key that is too narrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Versions of the key, the artifact and the Program file: `KeyRecord::current_schema()`.
    pub schema: String,
    /// Build id of the compiler: version, commit, features that change code.
    pub compiler: String,
    /// Digest of the canonical Graph: ops, attributes, edges, Types, names and order of inputs and outputs.
    pub graph: Digest,
    /// Digest over every constant of the model, external and attribute tensors included.
    pub weights: Digest,
    /// Every Dim and its extent.
    pub bucket: Bucket,
    /// Types of inputs, then of outputs, after the Bucket is bound, in order.
    pub types: Vec<String>,
    /// Numeric policy by name: float type, quantisation, accumulators, fast-math, batch invariance.
    pub precision: BTreeMap<String, String>,
    /// Digest and format of the calibration bytes, if any were used.
    pub calibration: Option<String>,
    /// Every other option that changes code, by name, defaults written out. Floats are written as bit patterns.
    pub options: BTreeMap<String, String>,
    /// Digest of the immutable tuning table that the compiler read, if any.
    pub tuning: Option<Digest>,
    /// The target as its description prints: kind, features, threads, limits that code depends on.
    pub target: String,
    /// Identity and version of outside code generators and device libraries.
    pub toolchain: String,
    /// Version of the driver, only where the Target says that its code depends on it.
    pub driver: Option<String>,
    /// Build id of each plug-in op, by name.
    pub custom_ops: BTreeMap<String, String>,
    /// What the user vouched for, by name (`pad.<dim>`).
    pub assertions: BTreeMap<String, String>,
}

/// One field in which two KeyRecords differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDiff {
    /// Name of the field; parts of a field are named after a dot (`options.fast_math`).
    pub field: String,
    /// Value that was asked for.
    pub want: String,
    /// Value that was found.
    pub have: String,
}

impl fmt::Display for FieldDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: want {}, have {}", self.field, self.want, self.have)
    }
}

/// Digest of a KeyRecord: the only key of the memory, disk and remote tiers. Printed as hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramKey([u8; 32]);

impl ProgramKey {
    /// The one constructor. `bits` below `KEY_BITS` is for tests that force collisions.
    pub(crate) fn of(record: &[u8], bits: u16) -> ProgramKey {
        let mut digest: [u8; 32] = blake3::Hasher::new_derive_key(KEY_CONTEXT).update(record).finalize().into();
        for (index, byte) in digest.iter_mut().enumerate() {
            let kept = usize::from(bits).saturating_sub(index * 8).min(8) as u32;
            *byte &= u8::MAX.checked_shl(8 - kept).unwrap_or(0);
        }
        ProgramKey(digest)
    }
}

impl fmt::Display for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProgramKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramKey({self})")
    }
}

impl KeyRecord {
    /// The schema that this build writes.
    pub fn current_schema() -> String {
        let (artifact, program) = (crate::artifact::FORMAT, precast_program::file::FORMAT);
        format!("key={KEY_SCHEMA} artifact={artifact} program={program}")
    }

    /// The key.
    pub fn key(&self) -> ProgramKey {
        ProgramKey::of(&self.canonical_bytes(), KEY_BITS)
    }

    /// The bytes that are digested, stored and compared: per field tag u16, kind u8, length u64, payload.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        key_bytes::encode(&self.fields().map(|field| field.value))
    }

    /// The record in canonical bytes; anything that `canonical_bytes` would not write is refused.
    pub fn from_canonical_bytes(bytes: &[u8]) -> Result<KeyRecord, String> {
        let mut values = key_bytes::decode(bytes)?.into_iter();
        let mut next = |name: &str| values.next().ok_or_else(|| format!("field '{name}' is missing"));
        let record = KeyRecord {
            schema: next("schema")?.text("schema")?,
            compiler: next("compiler")?.text("compiler")?,
            graph: next("graph")?.digest("graph")?,
            weights: next("weights")?.digest("weights")?,
            bucket: bucket_of(next("bucket")?.map("bucket")?)?,
            types: next("types")?.list("types")?,
            precision: next("precision")?.map("precision")?,
            calibration: next("calibration")?.optional(|value| value.text("calibration"))?,
            options: next("options")?.map("options")?,
            tuning: next("tuning")?.optional(|value| value.digest("tuning"))?,
            target: next("target")?.text("target")?,
            toolchain: next("toolchain")?.text("toolchain")?,
            driver: next("driver")?.optional(|value| value.text("driver"))?,
            custom_ops: next("custom_ops")?.map("custom_ops")?,
            assertions: next("assertions")?.map("assertions")?,
        };
        if record.canonical_bytes() != bytes {
            return Err("the bytes are not in canonical form".to_string());
        }
        Ok(record)
    }

    /// Fields in which a found record differs from this, the wanted one, in the order of the fields.
    pub fn diff(&self, have: &KeyRecord) -> Vec<FieldDiff> {
        let pairs = self.fields().into_iter().zip(have.fields());
        pairs.flat_map(|(want, have)| field_diffs(want.name, &want.value, &have.value)).collect()
    }

    /// Names and values of all fields, for people.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        self.fields().into_iter().map(|field| (field.name, field.value.to_string())).collect()
    }

    /// All fields in the order of their tags. Everything else about the fields is derived from this list.
    fn fields(&self) -> [Field; 15] {
        let field = |name, value| Field { name, value };
        let bucket = self.bucket.dims().map(|(symbol, number)| (symbol.to_string(), number.to_string())).collect();
        [
            field("schema", Value::Text(self.schema.clone())),
            field("compiler", Value::Text(self.compiler.clone())),
            field("graph", Value::Digest(self.graph)),
            field("weights", Value::Digest(self.weights)),
            field("bucket", Value::Map(bucket)),
            field("types", Value::List(self.types.clone())),
            field("precision", Value::Map(self.precision.clone())),
            field("calibration", self.calibration.clone().map_or(Value::Absent, Value::Text)),
            field("options", Value::Map(self.options.clone())),
            field("tuning", self.tuning.map_or(Value::Absent, Value::Digest)),
            field("target", Value::Text(self.target.clone())),
            field("toolchain", Value::Text(self.toolchain.clone())),
            field("driver", self.driver.clone().map_or(Value::Absent, Value::Text)),
            field("custom_ops", Value::Map(self.custom_ops.clone())),
            field("assertions", Value::Map(self.assertions.clone())),
        ]
    }
}

struct Field {
    name: &'static str,
    value: Value,
}

fn bucket_of(dims: BTreeMap<String, String>) -> Result<Bucket, String> {
    let parse = |(symbol, number): (String, String)| {
        let extent = number.parse().map_err(|_| format!("bucket.{symbol}: '{number}' is not a number"))?;
        Ok((symbol, extent))
    };
    Ok(Bucket::new(dims.into_iter().map(parse).collect::<Result<Vec<_>, String>>()?))
}

fn field_diffs(name: &str, want: &Value, have: &Value) -> Vec<FieldDiff> {
    if want == have {
        return Vec::new();
    }
    let (Value::Map(want), Value::Map(have)) = (want, have) else {
        return vec![FieldDiff { field: name.to_string(), want: want.to_string(), have: have.to_string() }];
    };
    let names: std::collections::BTreeSet<&String> = want.keys().chain(have.keys()).collect();
    let text = |map: &BTreeMap<String, String>, part: &String| map.get(part).map_or(ABSENT, String::as_str).to_string();
    let differing = names.into_iter().filter(|part| want.get(*part) != have.get(*part));
    differing
        .map(|part| FieldDiff { field: format!("{name}.{part}"), want: text(want, part), have: text(have, part) })
        .collect()
}

/// How an absent value prints.
pub(crate) const ABSENT: &str = "(absent)";

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
