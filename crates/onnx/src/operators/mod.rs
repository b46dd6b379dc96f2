//! The operator table: one file an operator family, each with its `IMPORTS` slice. To add an operator, add its function
//! and its row to the family's file.

use crate::import::{Import, StructureImport};

mod activation;
mod attention;
mod channels;
mod control;
mod conv;
mod elementwise;
mod index;
mod layout;
mod legacy;
mod loss;
mod matmul;
mod ml;
mod ml_encoders;
mod ml_linear;
mod ml_svm;
mod ml_trees;
mod ngram;
mod norm;
mod quantize;
mod random;
mod reduce;
mod refused;
mod sequence;
mod shape;
mod signal;
mod slice;
mod sliding;
mod stateful;
pub(crate) mod strings;
mod structure;
mod window;

pub use refused::{REFUSED, Refused};

/// Every row, family by family.
pub const FAMILIES: &[(&str, &[Import])] = &[
    ("attention", attention::IMPORTS),
    ("control", control::IMPORTS),
    ("conv", conv::IMPORTS),
    ("elementwise", elementwise::IMPORTS),
    ("index", index::IMPORTS),
    ("layout", layout::IMPORTS),
    ("legacy", legacy::IMPORTS),
    ("loss", loss::IMPORTS),
    ("matmul", matmul::IMPORTS),
    ("ml", ml::IMPORTS),
    ("ml_encoders", ml_encoders::IMPORTS),
    ("ml_linear", ml_linear::IMPORTS),
    ("ml_svm", ml_svm::IMPORTS),
    ("ml_trees", ml_trees::IMPORTS),
    ("ngram", ngram::IMPORTS),
    ("norm", norm::IMPORTS),
    ("quantize", quantize::IMPORTS),
    ("random", random::IMPORTS),
    ("reduce", reduce::IMPORTS),
    ("sequence", sequence::IMPORTS),
    ("shape", shape::IMPORTS),
    ("signal", signal::IMPORTS),
    ("stateful", stateful::IMPORTS),
    ("window", window::IMPORTS),
];

/// Every row of operators that take or give more than tensors of numbers, family by family.
pub const STRUCTURES: &[(&str, &[StructureImport])] = &[
    ("control", control::STRUCTURES),
    ("ml_encoders", ml_encoders::STRUCTURES),
    ("ml_linear", ml_linear::STRUCTURES),
    ("ml_svm", ml_svm::STRUCTURES),
    ("ml_trees", ml_trees::STRUCTURES),
    ("strings", strings::STRUCTURES),
    ("structure", structure::STRUCTURES),
];

/// The row of an operator on structures that is in force at an opset.
pub fn find_structure(domain: &str, name: &str, opset: i64) -> Option<&'static StructureImport> {
    let rows = STRUCTURES.iter().flat_map(|(_, rows)| rows.iter());
    rows.filter(|row| row.name == name && row.domain == domain && row.since <= opset).max_by_key(|row| row.since)
}

/// The row of an operator that is in force at an opset.
pub fn find(domain: &str, name: &str, opset: i64) -> Option<&'static Import> {
    // Names first: almost all rows have the same domain, and few have names of the same length.
    rows().filter(|row| row.name == name && row.domain == domain && row.since <= opset).max_by_key(|row| row.since)
}

/// Every row.
pub fn rows() -> impl Iterator<Item = &'static Import> {
    FAMILIES.iter().flat_map(|(_, rows)| rows.iter())
}

/// Why `find` gave nothing, as advice.
pub(crate) fn why_unknown(domain: &str, name: &str, opset: Option<i64>) -> String {
    if let Some(reason) = refused::reason(domain, name) {
        return reason.to_string();
    }
    let Some(opset) = opset else {
        return "the model does not import its domain".to_string();
    };
    let structures = STRUCTURES.iter().flat_map(|(_, rows)| rows.iter());
    let all = rows().map(|row| (row.domain, row.name, row.since));
    let all: Vec<_> = all.chain(structures.map(|row| (row.domain, row.name, row.since))).collect();
    if !all.iter().any(|row| row.0 == domain) {
        return "unknown domain".to_string();
    }
    match all.iter().filter(|row| row.0 == domain && row.1 == name).map(|row| row.2).min() {
        Some(since) => format!("opset {opset} is too old; it is covered from {since} on: convert the model"),
        None => "not covered".to_string(),
    }
}
