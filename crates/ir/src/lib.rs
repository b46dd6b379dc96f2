//! What a model means: the closed set of operations, graphs of them, their text form, the verifier and the
//! reference evaluation that every other part of Precast is checked against.
//!
//! Knows nothing of ONNX, devices, addresses, threads or files.
#![forbid(unsafe_code)]

pub mod attr;
pub mod error;
pub mod eval;
pub mod eval_parts;
pub mod graph;
pub mod op;
pub mod ops;
pub mod symbolic;
pub mod text;
pub mod verify;
pub mod work;

pub use error::{EvalError, InferError};
pub use graph::{Definition, Graph, Node, NodeId, SizeRead, Value, ValueId};
pub use op::{Family, Op, OpInfo, Operation};
