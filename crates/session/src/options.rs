//! What a caller decides about a Session.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::buckets::BucketPolicy;

/// What is decided about one dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimOptions {
    /// Which extents have Programs.
    pub buckets: BucketPolicy,
}

/// What happens to a request whose Program is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMiss {
    /// It waits for the compile.
    Wait,
    /// A larger loaded Bucket answers; if there is none, it waits.
    PadUp,
    /// Reference evaluation answers: right and slow.
    Reference,
    /// It is refused.
    Reject,
}

impl FromStr for OnMiss {
    type Err = String;

    fn from_str(text: &str) -> Result<OnMiss, String> {
        match text {
            "wait" => Ok(OnMiss::Wait),
            "pad-up" => Ok(OnMiss::PadUp),
            "reference" => Ok(OnMiss::Reference),
            "reject" => Ok(OnMiss::Reject),
            _ => Err(format!("'{text}' is not an on-miss policy; wait, pad-up, reference or reject was expected")),
        }
    }
}

/// How a Session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// What is decided about each dim, by symbol. Dims that are not named are exact.
    pub dims: BTreeMap<String, DimOptions>,
    /// What happens to a request whose Program is not loaded.
    pub on_miss: OnMiss,
    /// Compile or load every Bucket when the Session is opened.
    pub opens_all: bool,
    /// Programs of exact sizes that are kept loaded beside the Buckets.
    pub exact_programs_max: usize,
    /// Code-affecting options of the target, by name: part of every key.
    pub target_options: BTreeMap<String, String>,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            dims: BTreeMap::new(),
            on_miss: OnMiss::Wait,
            opens_all: true,
            exact_programs_max: 64,
            target_options: BTreeMap::new(),
        }
    }
}
