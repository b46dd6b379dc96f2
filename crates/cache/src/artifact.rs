//! The artifact: one file for one Program. Magic, format, Manifest, its signature if any, Program bytes, and a digest over
//! all of it. The same KeyRecord and Program give the same bytes: no time, host or user is inside. Read as hostile input.

use std::collections::BTreeSet;
use std::sync::Arc;

use precast_program::{ConstantRef, FileError, Program};
use precast_tensor::Digest;
use serde::{Deserialize, Serialize};

use crate::key::{FieldDiff, KeyRecord, ProgramKey};
use crate::miss::Miss;
use crate::sign::{SIGNATURE_BYTES, Signed, Signing};

/// First bytes of an artifact.
pub const MAGIC: [u8; 8] = *b"PRECASTP";
/// Changes with every change of the layout; there is no migration.
pub const FORMAT: u32 = 3;
const DIGEST_BYTES: usize = 32;
/// Magic, format, length of the Manifest and its digest.
const HEADER_BYTES: usize = 8 + 4 + 8 + DIGEST_BYTES;

/// What a Program needs from the machine that loads it. Not part of the key: a driver update must not invalidate code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requires {
    /// Lowest version of the driver, as dotted numbers.
    pub driver_min: Option<String>,
    /// Features that must be there.
    pub features: BTreeSet<String>,
    /// Memory of the device.
    pub memory_bytes: u64,
}

/// What a machine offers; the counterpart of `Requires`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provides {
    /// Version of the driver, as dotted numbers.
    pub driver: Option<String>,
    /// Features that are there.
    pub features: BTreeSet<String>,
    /// Memory of the device; unknown means that it is not checked.
    pub memory_bytes: Option<u64>,
}

/// What compiling gives: a Program and what it needs to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The Program; whoever made it may be using it already.
    pub program: Arc<Program>,
    /// What it needs.
    pub requires: Requires,
}

impl From<Program> for Compiled {
    fn from(program: Program) -> Compiled {
        Arc::new(program).into()
    }
}

impl From<Arc<Program>> for Compiled {
    fn from(program: Arc<Program>) -> Compiled {
        Compiled { program, requires: Requires::default() }
    }
}

/// A constant that a Program names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestConstant {
    /// Digest of element type, shape and bytes.
    digest: [u8; DIGEST_BYTES],
    /// Size.
    pub bytes: u64,
}

impl ManifestConstant {
    /// Its digest.
    pub fn digest(&self) -> Digest {
        Digest(self.digest)
    }
}

/// What an artifact says about its Program. Pins every other byte by digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Canonical bytes of the KeyRecord.
    record: Vec<u8>,
    /// Length of the Program bytes.
    pub program_bytes: u64,
    program_digest: [u8; DIGEST_BYTES],
    /// Constants in the Program's order.
    pub constants: Vec<ManifestConstant>,
    /// What loading needs.
    pub requires: Requires,
}

impl Manifest {
    /// The KeyRecord.
    pub fn record(&self) -> Result<KeyRecord, Miss> {
        KeyRecord::from_canonical_bytes(&self.record)
            .map_err(|reason| Miss::corrupt("manifest", "a KeyRecord in canonical form", reason))
    }

    /// Digest of the Program bytes.
    pub fn program_digest(&self) -> Digest {
        Digest(self.program_digest)
    }

    /// Bytes of all constants, each counted once.
    pub fn constants_bytes(&self) -> u64 {
        let distinct: BTreeSet<([u8; DIGEST_BYTES], u64)> =
            self.constants.iter().map(|constant| (constant.digest, constant.bytes)).collect();
        distinct.into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// A KeyRecord with its canonical bytes and key, computed once a request.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) record: KeyRecord,
    pub(crate) bytes: std::sync::Arc<[u8]>,
    pub(crate) key: ProgramKey,
    pub(crate) bits: u16,
}

impl Wanted {
    pub(crate) fn new(record: &KeyRecord, bits: u16) -> Wanted {
        let bytes: std::sync::Arc<[u8]> = record.canonical_bytes().into();
        let key = ProgramKey::of(&bytes, bits);
        Wanted { record: record.clone(), bytes, key, bits }
    }
}

/// The bytes of an artifact, or the constant of the Program whose digest is not one.
pub(crate) fn encode(
    record: &[u8],
    program: &Program,
    requires: &Requires,
    signing: &Signing,
) -> Result<Vec<u8>, String> {
    let body = precast_program::encode(program);
    let manifest = Manifest {
        record: record.to_vec(),
        program_bytes: body.len() as u64,
        program_digest: blake3::hash(&body).into(),
        constants: constants_of(&program.constants)?,
        requires: requires.clone(),
    };
    let manifest = postcard::to_stdvec(&manifest).map_err(|error| format!("the Manifest does not encode: {error}"))?;
    let signature = signing.sign(Signed::Manifest, &manifest);
    let signature = signature.as_ref().map_or(&[][..], |signature| &signature[..]);
    let length = HEADER_BYTES + manifest.len() + 1 + signature.len() + body.len() + DIGEST_BYTES;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&manifest).as_bytes());
    bytes.extend_from_slice(&manifest);
    bytes.push(signature.len() as u8);
    bytes.extend_from_slice(signature);
    bytes.extend_from_slice(&body);
    let trailer = blake3::hash(&bytes);
    bytes.extend_from_slice(trailer.as_bytes());
    Ok(bytes)
}

fn constants_of(constants: &[ConstantRef]) -> Result<Vec<ManifestConstant>, String> {
    let read = |constant: &ConstantRef| {
        let digest: Digest = constant.digest.parse().map_err(|error| format!("constant: {error}"))?;
        Ok(ManifestConstant { digest: digest.0, bytes: constant.bytes })
    };
    constants.iter().map(read).collect()
}

/// An artifact whose header and Manifest are sound; the Program is not looked at yet.
pub(crate) struct Opened<'a> {
    pub(crate) manifest: Manifest,
    manifest_bytes: &'a [u8],
    signature: Option<&'a [u8; SIGNATURE_BYTES]>,
    bytes: &'a [u8],
    body: &'a [u8],
}

/// Checks header, lengths and the digest of the Manifest.
pub(crate) fn open(bytes: &[u8]) -> Result<Opened<'_>, Miss> {
    let short = |section: &str| Miss::corrupt(section, "more bytes", format!("a file of {} bytes", bytes.len()));
    let header = bytes.get(..HEADER_BYTES).ok_or_else(|| short("header"))?;
    if header[..8] != MAGIC {
        return Err(Miss::corrupt("magic", hex(&MAGIC), hex(&header[..8])));
    }
    let format = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if format != FORMAT {
        // Every format ends in a digest of all that goes before, so another format can be told from a damaged one.
        check_trailer(bytes)?;
        let (want, have) = (FORMAT.to_string(), format.to_string());
        return Err(Miss::Incompatible { field: "schema".to_string(), want, have });
    }
    let mut length = [0; 8];
    length.copy_from_slice(&header[12..20]);
    let end = usize::try_from(u64::from_le_bytes(length)).ok().and_then(|length| length.checked_add(HEADER_BYTES));
    let manifest = end.and_then(|end| bytes.get(HEADER_BYTES..end)).ok_or_else(|| short("manifest"))?;
    check_digest("manifest", manifest, &header[20..])?;
    let unreadable = |error: String| Miss::corrupt("manifest", "a Manifest", error);
    let (parsed, rest): (Manifest, &[u8]) =
        postcard::take_from_bytes(manifest).map_err(|error| unreadable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(unreadable(format!("{} bytes more", rest.len())));
    }
    let (signature, body) =
        split_signature(&bytes[HEADER_BYTES + manifest.len()..]).ok_or_else(|| short("signature"))?;
    let body = body.len().checked_sub(DIGEST_BYTES).map(|end| &body[..end]).ok_or_else(|| short("trailer"))?;
    if body.len() as u64 != parsed.program_bytes {
        return Err(Miss::corrupt("program", format!("{} bytes", parsed.program_bytes), format!("{}", body.len())));
    }
    Ok(Opened { manifest: parsed, manifest_bytes: manifest, signature, bytes, body })
}

/// The signature, if there is one, and what follows it.
fn split_signature(bytes: &[u8]) -> Option<(Option<&[u8; SIGNATURE_BYTES]>, &[u8])> {
    const SIGNED: u8 = SIGNATURE_BYTES as u8;
    match bytes.split_first()? {
        (0, rest) => Some((None, rest)),
        (&SIGNED, rest) => rest.split_first_chunk().map(|(signature, rest)| (Some(signature), rest)),
        _ => None,
    }
}

impl Opened<'_> {
    /// Checks that this is the artifact that was asked for: the record is equal byte for byte, and what it requires is
    /// there. A whole artifact under another record's name is damage; an equal key of another record is a collision.
    pub(crate) fn check(&self, wanted: &Wanted, provides: &Provides) -> Result<(), Miss> {
        if *self.manifest.record != *wanted.bytes {
            let own = ProgramKey::of(&self.manifest.record, wanted.bits);
            if own != wanted.key {
                return Err(Miss::corrupt("name", wanted.key, own));
            }
            let diffs = wanted.record.diff(&self.manifest.record()?);
            let unlike = FieldDiff { field: "schema".into(), want: wanted.record.schema.clone(), have: "other".into() };
            return Err(Miss::incompatible(diffs.into_iter().next().unwrap_or(unlike)));
        }
        check_requires(&self.manifest.requires, provides)
    }

    /// Checks the signature, where one is asked for. It comes before anything that the artifact says is believed.
    pub(crate) fn check_signature(&self, signing: &Signing) -> Result<(), Miss> {
        signing.check(Signed::Manifest, self.manifest_bytes, self.signature)
    }

    /// The Program, after every digest.
    pub(crate) fn program(&self) -> Result<Program, Miss> {
        check_digest("program", self.body, &self.manifest.program_digest)?;
        check_trailer(self.bytes)?;
        let program = precast_program::decode(self.body).map_err(|error| match error {
            FileError::Build { found } => {
                let want = precast_program::program::BUILD.to_string();
                Miss::Incompatible { field: "compiler".to_string(), want, have: found }
            }
            FileError::Format { found } => {
                let want = precast_program::file::FORMAT.to_string();
                Miss::Incompatible { field: "schema".to_string(), want, have: found.to_string() }
            }
            FileError::Magic | FileError::Damaged(_) => Miss::corrupt("program", "a Program", error),
        })?;
        let named = constants_of(&program.constants).map_err(|reason| Miss::corrupt("program", "digests", reason))?;
        if named != self.manifest.constants {
            return Err(Miss::corrupt("manifest", "the constants of the Program", "others"));
        }
        Ok(program)
    }
}

/// Everything that can be checked about an artifact without its constants.
pub(crate) fn verify(
    bytes: &[u8],
    wanted: &Wanted,
    provides: &Provides,
    signing: &Signing,
) -> Result<(Manifest, Program), Miss> {
    let opened = open(bytes)?;
    opened.check_signature(signing)?;
    opened.check(wanted, provides)?;
    let program = opened.program()?;
    Ok((opened.manifest, program))
}

fn check_requires(requires: &Requires, provides: &Provides) -> Result<(), Miss> {
    let lacks = |field: &str, want: String, have: String| Miss::Incompatible { field: field.to_string(), want, have };
    if let Some(least) = &requires.driver_min {
        let have = provides.driver.as_deref();
        if have.is_none_or(|have| version(have) < version(least)) {
            return Err(lacks("driver", format!("at least {least}"), have.unwrap_or("unknown").to_string()));
        }
    }
    if let Some(feature) = requires.features.difference(&provides.features).next() {
        let have: Vec<&str> = provides.features.iter().map(String::as_str).collect();
        return Err(lacks("features", feature.clone(), have.join(" ")));
    }
    match provides.memory_bytes {
        Some(memory_bytes) if memory_bytes < requires.memory_bytes => {
            Err(lacks("memory", requires.memory_bytes.to_string(), memory_bytes.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The numbers of a dotted version; other characters separate.
fn version(text: &str) -> Vec<u64> {
    let parts = text.split(|character: char| !character.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().unwrap_or(u64::MAX)).collect()
}

fn check_trailer(bytes: &[u8]) -> Result<(), Miss> {
    let at = bytes.len().saturating_sub(DIGEST_BYTES);
    check_digest("trailer", &bytes[..at], &bytes[at..])
}

fn check_digest(section: &str, bytes: &[u8], expected: &[u8]) -> Result<(), Miss> {
    let got = blake3::hash(bytes);
    if got.as_bytes() == expected { Ok(()) } else { Err(Miss::corrupt(section, hex(expected), hex(got.as_bytes()))) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "artifact_tests.rs"]
mod tests;
