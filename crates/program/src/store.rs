//! Constants by digest. Programs name them; a store keeps each once for all Buckets.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use precast_tensor::{Digest, Tensor};

/// Put and get by digest.
pub trait ArtifactStore: Send + Sync {
    /// Keeps a tensor and gives its digest.
    fn put(&self, tensor: &Tensor) -> Result<Digest, StoreError>;
    /// The tensor with this digest.
    fn get(&self, digest: &Digest) -> Result<Tensor, StoreError>;
}

/// Why a store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing has this digest.
    #[error("the store has no constant {0}; compile the model again")]
    Missing(String),
    /// What is there does not have the digest it is filed under.
    #[error("constant {0} is damaged: its bytes have another digest")]
    Corrupt(String),
    /// Reading or writing failed.
    #[error("constant {digest}: {source}")]
    Io {
        /// Which one.
        digest: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A store in memory.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<RwLock<BTreeMap<Digest, Tensor>>>);

impl MemoryStore {
    /// Every tensor, by digest.
    pub fn tensors(&self) -> Vec<(Digest, Tensor)> {
        let tensors = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        tensors.iter().map(|(digest, tensor)| (*digest, tensor.clone())).collect()
    }
}

impl ArtifactStore for MemoryStore {
    fn put(&self, tensor: &Tensor) -> Result<Digest, StoreError> {
        let digest = tensor.digest();
        let mut tensors = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        tensors.entry(digest).or_insert_with(|| tensor.clone());
        Ok(digest)
    }

    fn get(&self, digest: &Digest) -> Result<Tensor, StoreError> {
        let tensors = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        tensors.get(digest).cloned().ok_or_else(|| StoreError::Missing(digest.to_string()))
    }
}
