//! A Bucket: one binding of a model's symbolic dims to numbers. Part of every key.

use std::collections::BTreeMap;
use std::fmt;

use precast_tensor::Bindings;
use serde::{Deserialize, Serialize};

/// Numbers for the symbols of a model, in order of the symbols' names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bucket(BTreeMap<String, i64>);

impl Bucket {
    /// A Bucket of these symbols.
    pub fn new(dims: impl IntoIterator<Item = (String, i64)>) -> Bucket {
        Bucket(dims.into_iter().collect())
    }

    /// Symbols and their numbers, in order.
    pub fn dims(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(symbol, &number)| (symbol.as_str(), number))
    }

    /// As what Dims are bound with.
    pub fn bindings(&self) -> Bindings {
        self.0.iter().map(|(symbol, &number)| (symbol.as_str(), number)).collect()
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims().map(|(symbol, number)| format!("{symbol}={number}")).collect();
        f.write_str(&dims.join(","))
    }
}
