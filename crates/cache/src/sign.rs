//! Signatures over Manifests, for caches that others may write (spec C25). A Manifest pins every other byte of its entry by
//! digest, so its signature vouches for code and constants alike. Keys are the PEM files that OpenSSL makes.

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::miss::{CacheError, Miss};

/// Bytes of a signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;
/// What a signature is of. Its words go before the bytes that are signed, so that no other use of a key, and no signature of
/// the other kind, can be taken for one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signed {
    /// The Manifest of an artifact.
    Manifest,
    /// A note.
    Note,
}

impl Signed {
    fn context(self) -> &'static [u8] {
        match self {
            Signed::Manifest => b"precast Manifest, signature 1\0",
            Signed::Note => b"precast note, signature 1\0",
        }
    }
}

/// First words of a PEM block.
const PEM_BEGIN: &str = "-----BEGIN";

/// Who signs what is published, and whose signature is asked for.
#[derive(Clone, Debug, Default)]
pub struct Signing {
    /// Signs what is published here.
    pub key: Option<SignKey>,
    /// Only Programs signed by one of these are loaded; nothing is asked for if there is no list.
    pub require: Option<Vec<PublicKey>>,
}

/// A key that signs.
#[derive(Clone)]
pub struct SignKey(SigningKey);

impl std::fmt::Debug for SignKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SignKey(of {:?})", self.public())
    }
}

/// A key that signatures are checked by.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublicKey(")?;
        self.0.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

impl SignKey {
    /// Reads an Ed25519 private key: PKCS #8 in PEM, as `openssl genpkey -algorithm ed25519` writes it.
    pub fn from_pem(pem: &str) -> Result<SignKey, CacheError> {
        let key = SigningKey::from_pkcs8_pem(pem);
        key.map(SignKey).map_err(|error| CacheError::Key { reason: format!("no Ed25519 private key: {error}") })
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// A key of these bytes.
    #[cfg(test)]
    pub(crate) fn of_seed(seed: u8) -> SignKey {
        SignKey(SigningKey::from_bytes(&[seed; 32]))
    }

    fn sign(&self, signed: Signed, bytes: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.0.sign(&message(signed, bytes)).to_bytes()
    }
}

impl PublicKey {
    /// Reads all Ed25519 public keys of a PEM file, as `openssl pkey -pubout` writes them.
    pub fn all_from_pem(pem: &str) -> Result<Vec<PublicKey>, CacheError> {
        let refused = |reason: String| CacheError::Key { reason };
        let starts: Vec<usize> = pem.match_indices(PEM_BEGIN).map(|(at, _)| at).collect();
        let ends = starts.iter().skip(1).copied().chain([pem.len()]);
        let read = |(start, end): (&usize, usize)| {
            let key = VerifyingKey::from_public_key_pem(pem[*start..end].trim());
            key.map(PublicKey).map_err(|error| refused(format!("no Ed25519 public key: {error}")))
        };
        let keys = starts.iter().zip(ends).map(read).collect::<Result<Vec<PublicKey>, CacheError>>()?;
        if keys.is_empty() { Err(refused("no public key is in the file".to_string())) } else { Ok(keys) }
    }
}

impl Signing {
    /// The signature of what is published here, if it is signed.
    pub(crate) fn sign(&self, signed: Signed, bytes: &[u8]) -> Option<[u8; SIGNATURE_BYTES]> {
        self.key.as_ref().map(|key| key.sign(signed, bytes))
    }

    /// Whether this cache would load what it publishes; otherwise publishing only takes room.
    pub(crate) fn accepts_own(&self) -> bool {
        let own = self.key.as_ref().map(SignKey::public);
        self.require.as_ref().is_none_or(|keys| own.is_some_and(|own| keys.contains(&own)))
    }

    /// Checks the signature of a Manifest or a note, where one is asked for.
    pub(crate) fn check(
        &self,
        signed: Signed,
        bytes: &[u8],
        signature: Option<&[u8; SIGNATURE_BYTES]>,
    ) -> Result<(), Miss> {
        let Some(keys) = &self.require else { return Ok(()) };
        let wrong = |have: &str| {
            let want = format!("of one of {} keys", keys.len());
            Err(Miss::Incompatible { field: "signature".to_string(), want, have: have.to_string() })
        };
        let Some(signature) = signature else { return wrong("none") };
        let (signature, message) = (Signature::from_bytes(signature), message(signed, bytes));
        // Strict: a signature that only some verifiers accept is none.
        let is_signed = keys.iter().any(|key| key.0.verify_strict(&message, &signature).is_ok());
        if is_signed { Ok(()) } else { wrong("of none of them") }
    }
}

fn message(signed: Signed, bytes: &[u8]) -> Vec<u8> {
    [signed.context(), bytes].concat()
}

#[cfg(test)]
#[path = "sign_tests.rs"]
mod tests;
