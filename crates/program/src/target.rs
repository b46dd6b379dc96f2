//! A Target compiles a Graph to a Program. It needs no hardware and is a pure function of its description, the Graph,
//! the Bucket and the options.

use precast_ir::Graph;
use precast_ir::graph::GraphError;
use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::program::Program;
use crate::store::{ArtifactStore, StoreError};

/// What a Target compiles for: found by a door, read by the compiler, part of every key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TargetDescription {
    /// Kind: "cpu", "cuda" or "hip".
    pub kind: String,
    /// Instruction set or architecture.
    pub features: String,
    /// Threads that a run uses.
    pub threads: usize,
}

impl std::fmt::Display for TargetDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} threads={}", self.kind, self.features, self.threads)
    }
}

/// Compiles Graphs to Programs.
pub trait Target: Send + Sync {
    /// What it compiles for.
    fn description(&self) -> &TargetDescription;
    /// Compiles a Graph whose dims are all numbers. Constants that the Program needs go to the store.
    fn compile(&self, graph: &Graph, bucket: &Bucket, store: &dyn ArtifactStore) -> Result<Program, CompileError>;
}

/// Why a Graph did not become a Program.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A dim is still symbolic.
    #[error("value %{value} has the Type {ty}; every dim must be a number to compile")]
    Unbound {
        /// The value.
        value: u32,
        /// Its Type.
        ty: String,
    },
    /// A pass failed, or broke the Graph.
    #[error("pass {pass}: {reason}")]
    Pass {
        /// Which pass.
        pass: &'static str,
        /// What it did.
        reason: String,
    },
    /// A node was refused while the Graph was rebuilt.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A constant could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The target cannot compile a node.
    #[error("node '{node}' ({op}): {reason}")]
    Node {
        /// Source nodes.
        node: String,
        /// Name of the op.
        op: &'static str,
        /// Why.
        reason: String,
    },
}
