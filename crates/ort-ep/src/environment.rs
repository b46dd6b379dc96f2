//! The one file of this door that reads the environment: where the user's cache lies, and the variables of the MIGraphX
//! provider, which count only where an option asks for them.

use std::path::PathBuf;

/// What variables of the MIGraphX provider begin with.
const PREFIX: &str = "ORT_MIGRAPHX_";

/// Variables of the MIGraphX provider, without their beginning.
pub(crate) fn migraphx_variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ORT_MIGRAPHX_"));
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    variables.map(|(name, value)| (text(name).trim_start_matches(PREFIX).to_string(), text(value))).collect()
}

/// The folder of the cache that all doors share, if the user has one.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(caches.or_else(|| Some(home()?.join(".cache")))?.join("precast"))
}
