//! Where things lie: the project's folders, and the folder that holds everything xtask fetches or makes.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root of the checkout")
}

/// The folder of the models that come with the project.
pub fn models() -> PathBuf {
    root().join("models")
}

/// The folder of what xtask fetches and makes; git ignores it and it may be deleted.
pub fn cache() -> PathBuf {
    root().join("target").join("xtask")
}
