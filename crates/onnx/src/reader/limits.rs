//! Budgets a model file must stay inside, counted before anything is allocated for it.
//!
//! One table declares each budget: its field, its default, the key that sets it in a limits file, and the words an
//! error uses. The defaults are far above real models and far below what would exhaust a machine.

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

macro_rules! budgets {
    ($($(#[$doc:meta])* $variant:ident $field:ident = $default:expr, $flag:literal, $noun:literal;)*) => {
        /// The largest value allowed for each [`Budget`].
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// One thing that is counted and limited.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Budget {
            $($(#[$doc])* $variant,)*
        }

        impl Default for Limits {
            fn default() -> Limits {
                Limits { $($field: $default,)* }
            }
        }

        impl Limits {
            /// The limit of one budget.
            pub fn get(&self, budget: Budget) -> u64 {
                match budget { $(Budget::$variant => self.$field,)* }
            }

            /// Changes the limit of one budget.
            pub fn set(&mut self, budget: Budget, limit: u64) {
                match budget { $(Budget::$variant => self.$field = limit,)* }
            }
        }

        impl Budget {
            /// Every budget, in the order of the table.
            pub const ALL: &'static [Budget] = &[$(Budget::$variant,)*];

            /// The key that sets this budget in a limits file.
            pub fn flag(self) -> &'static str {
                match self { $(Budget::$variant => $flag,)* }
            }

            /// What is counted, as an error names it.
            pub fn noun(self) -> &'static str {
                match self { $(Budget::$variant => $noun,)* }
            }
        }
    };
}

budgets! {
    /// Bytes of the ONNX file; protobuf itself ends at 2 GiB.
    ModelBytes model_bytes = 2 * GIB, "model-bytes", "bytes in the ONNX file";
    /// Bytes of all external data files of a model together.
    ExternalBytes external_bytes = 256 * GIB, "external-bytes", "bytes of external data";
    /// Nodes of the graph, its subgraphs and its functions.
    Nodes nodes = 200_000, "nodes", "nodes";
    /// Node outputs and declared values.
    Values values = 1_000_000, "values", "values";
    /// Attributes of all nodes and functions.
    Attributes attributes = 1_000_000, "attributes", "attributes";
    /// Messages of any kind: an empty one is two bytes in the file and hundreds in memory.
    Messages messages = 8_000_000, "messages", "protobuf messages";
    /// Elements of attribute lists and string tensors: one byte each in the file, up to 32 in memory.
    ListValues list_values = 64 << 20, "list-values", "elements of attribute lists and string tensors";
    /// Tensors anywhere: initializers, sparse parts, attributes.
    Tensors tensors = 100_000, "tensors", "tensors";
    /// Dimensions of one tensor or declared type.
    Rank rank = 16, "rank", "dimensions of one tensor";
    /// One dimension of a tensor.
    Dim dim = 1 << 40, "dim", "as one dimension";
    /// Bytes of one tensor in memory.
    TensorBytes tensor_bytes = 64 * GIB, "tensor-bytes", "bytes in one tensor";
    /// Bytes of one sparse tensor once dense: the file may hold none of them.
    SparseBytes sparse_bytes = GIB, "sparse-bytes", "bytes in one sparse tensor made dense";
    /// Graphs inside attributes inside graphs.
    SubgraphDepth subgraph_depth = 16, "subgraph-depth", "nested subgraphs";
    /// Messages inside messages. The decoder has a limit of its own, 100.
    MessageDepth message_depth = 64, "message-depth", "nested messages";
    /// Bytes of one name.
    Name name = 4 * KIB, "name", "bytes in one name";
    /// Memory taken by all names and other text.
    Names names = 256 * MIB, "names", "bytes of names and text";
    /// Bytes of the model's own metadata.
    Metadata metadata_bytes = MIB, "metadata-bytes", "bytes of metadata";
    /// Functions of a model.
    Functions functions = 4096, "functions", "functions";
    /// Nodes after functions are inlined.
    InlinedNodes inlined_nodes = 1_000_000, "inlined-nodes", "nodes after inlining functions";
}

impl Budget {
    /// The budget that a limits file calls `flag`.
    pub fn from_flag(flag: &str) -> Option<Budget> {
        Budget::ALL.iter().copied().find(|budget| budget.flag() == flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_unique_and_found_again() {
        for &budget in Budget::ALL {
            assert_eq!(Budget::from_flag(budget.flag()), Some(budget));
        }
        assert_eq!(Budget::from_flag("nodez"), None);
    }

    #[test]
    fn set_changes_what_get_returns() {
        let mut limits = Limits::default();
        for (limit, &budget) in (1..).zip(Budget::ALL) {
            limits.set(budget, limit);
        }
        assert_eq!((limits.model_bytes, limits.external_bytes, limits.nodes), (1, 2, 3));
        assert_eq!(limits.get(Budget::InlinedNodes), limits.inlined_nodes);
    }
}
