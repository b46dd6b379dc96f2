//! A Target compiles a Graph to a Program. It needs no hardware and is a pure function of its description, the Graph,
//! the Bucket and the options.

use precast_ir::Graph;
use precast_ir::graph::GraphError;
use precast_passes::{Numerics, PassError, PassReport};

use crate::bucket::Bucket;
use crate::program::Program;
use crate::store::{ArtifactStore, StoreError};

/// What a Target compiles for: found by a door, read by the compiler, part of every key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetDescription {
    /// Kind: "cpu", "cuda" or "hip".
    pub kind: String,
    /// Instruction set or architecture.
    pub features: String,
    /// Threads that a run uses.
    pub threads: usize,
    /// Which liberties it takes with numbers.
    pub numerics: Numerics,
}

impl TargetDescription {
    /// The machine alone: `cpu:avx2 threads=2`. Keys hold the numerics in fields of their own.
    pub fn machine(&self) -> String {
        format!("{}:{} threads={}", self.kind, self.features, self.threads)
    }

    /// Reads what `Display` printed; `None` if it is something else.
    pub fn parse(text: &str) -> Option<TargetDescription> {
        let (features, threads) = text.split_once(" threads=")?;
        let (kind, features) = features.split_once(':')?;
        let (features, numerics) = features.split_at(features.find('+').unwrap_or(features.len()));
        Some(TargetDescription {
            kind: kind.to_string(),
            features: features.to_string(),
            threads: threads.parse().ok()?,
            numerics: numerics.parse().ok()?,
        })
    }
}

/// The machine, with the numerics after its features where they are not the default: `cpu:avx2+strict threads=2`.
impl std::fmt::Display for TargetDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}{} threads={}", self.kind, self.features, self.numerics, self.threads)
    }
}

/// Compiles Graphs to Programs.
pub trait Target: Send + Sync {
    /// What it compiles for.
    fn description(&self) -> &TargetDescription;
    /// The Graph as the steps will compute it; hands on what each pass did.
    fn optimise_with(&self, graph: &Graph, report: &mut dyn FnMut(PassReport)) -> Result<Graph, PassError>;
    /// Compiles a Graph as it is, without the target's passes. Its dims are all numbers. Constants that the Program needs
    /// go to the store.
    fn compile_optimised(
        &self,
        graph: &Graph,
        bucket: &Bucket,
        store: &dyn ArtifactStore,
    ) -> Result<Program, CompileError>;

    /// The Graph as the steps will compute it.
    fn optimise(&self, graph: &Graph) -> Result<Graph, PassError> {
        self.optimise_with(graph, &mut |_| {})
    }

    /// Compiles a Graph whose dims are all numbers.
    fn compile(&self, graph: &Graph, bucket: &Bucket, store: &dyn ArtifactStore) -> Result<Program, CompileError> {
        let optimised = self.optimise(graph)?;
        // Passes have read constants that are folded into others by now.
        graph.release_pages();
        self.compile_optimised(&optimised, bucket, store)
    }
}

/// Why a Graph did not become a Program.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The numerics contradict one another, or the target has no kernels for them.
    #[error("{0}")]
    Numerics(String),
    /// A dim is still symbolic.
    #[error("value %{value} has the Type {ty}; every dim must be a number to compile")]
    Unbound {
        /// The value.
        value: u32,
        /// Its Type.
        ty: String,
    },
    /// A value is larger than any machine's memory.
    #[error("value %{value} has the Type {ty}; no value may have more than {limit} bytes")]
    TooLarge {
        /// The value.
        value: u32,
        /// Its Type.
        ty: String,
        /// The most bytes.
        limit: usize,
    },
    /// A pass failed, or broke the Graph.
    #[error(transparent)]
    Pass(#[from] PassError),
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

#[cfg(test)]
mod tests {
    use super::*;
    use precast_passes::WeightPrecision;

    #[test]
    fn descriptions_read_as_they_print() {
        let numerics = Numerics { weights: WeightPrecision::Bf16, ..Numerics::default() };
        let (kind, features) = ("cpu".to_string(), "avx512-vnni".to_string());
        let description = TargetDescription { kind, features, threads: 2, numerics };
        assert_eq!(description.to_string(), "cpu:avx512-vnni+bf16 threads=2");
        assert_eq!(description.machine(), "cpu:avx512-vnni threads=2");
        assert_eq!(TargetDescription::parse(&description.to_string()), Some(description));
        for bad in ["cpu:avx2", "avx2 threads=1", "cpu:avx2+fp8 threads=1", "cpu:avx2 threads=x"] {
            assert_eq!(TargetDescription::parse(bad), None, "{bad}");
        }
    }
}
