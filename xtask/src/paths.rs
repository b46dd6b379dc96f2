//! Where things lie: the project's folders, and the folder that holds everything xtask fetches or makes. In a bundle that
//! `gpu-bundle` made, the project is the bundle.

use std::path::{Path, PathBuf};

/// What a bundle has in its root: the commit that it was made from.
pub const BUNDLE_MARK: &str = "commit.txt";
/// Its folder of programs.
pub const BUNDLE_PROGRAMS: &str = "bin";

/// The root of the checkout, or of the bundle that this program is part of.
pub fn root() -> PathBuf {
    bundle().unwrap_or_else(checkout)
}

/// The root of the checkout that this program was built from.
fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root of the checkout").to_path_buf()
}

/// The root of the bundle that this program is part of, if it is.
pub fn bundle() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let root = program.parent()?.parent()?;
    root.join(BUNDLE_MARK).exists().then(|| root.to_path_buf())
}

/// The folder of the models that come with the project.
pub fn models() -> PathBuf {
    root().join("models")
}

/// The folder of what xtask fetches and makes; git ignores it and it may be deleted.
pub fn cache() -> PathBuf {
    root().join("target").join("xtask")
}
