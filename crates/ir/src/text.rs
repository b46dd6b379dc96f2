//! The text form of graphs, for printing, file tests, hashing and dumps. Printing and parsing are inverse:
//! `parse(print(g)) == g`, and `print(parse(s)) == s` for every `s` that `print` gives.
//!
//! ```text
//! graph "stem"(%0 "input": f32[n,3,224,224]) where n in 1..=64, s = %3[0] {
//!   %1 = constant f32[64,3,7,7] @blake3:<64 hex digits>
//!   %2 = conv(%0, %1) {stride=[2, 2], ..} : f32[n,64,112,112]  # "conv1"
//!   %3 = constant i64[1] [7]
//!   %4, %5 = topk(%2) {axis=1, k=s, largest=true} : f32[n,s,112,112], i64[n,s,112,112]
//!   %6 = unary.relu(%4) {alpha=0.0, beta=0.0} : f32[n,s,112,112]
//!   return "y" %6, "index" %5
//! }
//! ```
//!
//! Values are numbered as the graph numbers them. Attributes are complete and in table order; a first attribute `func`
//! is the suffix of the op's name. Constants of up to 16 elements are written out, larger ones named by digest.

mod lexer;
mod literal;
mod parse;
mod print;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use precast_tensor::{Digest, Tensor};
use thiserror::Error;

use crate::attr::ConstantSource;
use crate::graph::{Definition, Graph};

pub use literal::{INLINE_ELEMENTS_MAX, print_tensor};
pub use parse::{parse, parse_body};
pub use print::{print, print_body};

/// A text that is not a graph, and where that shows. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}")]
pub struct TextError {
    /// Line of the problem.
    pub line: usize,
    /// Column of the problem.
    pub column: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

impl ConstantSource for BTreeMap<Digest, Tensor> {
    fn constant(&self, digest: &Digest) -> Option<Tensor> {
        self.get(digest).cloned()
    }
}

/// The constants that the text form of a graph and of the bodies in it names by digest.
pub fn named_constants(graph: &Graph) -> BTreeMap<Digest, Tensor> {
    let mut constants = BTreeMap::new();
    for value in graph.values() {
        if let Definition::Constant(tensor) = &value.definition
            && !literal::is_inline(tensor)
        {
            constants.insert(tensor.digest(), tensor.clone());
        }
    }
    for (_, body) in graph.nodes().iter().flat_map(|node| node.op.bodies()) {
        constants.extend(named_constants(body));
    }
    constants
}
