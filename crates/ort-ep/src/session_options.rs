//! The options of a session: entries of its configuration that are meant for this provider, and those of the runtime's own
//! that say how compiled models are saved.

use std::ptr::null_mut;

use precast::{OptionSources, ProviderOptions};

use crate::abi::OrtSessionOptions;
use crate::environment::{cache_folder, migraphx_variables};
use crate::error::EpError;
use crate::runtime::Runtime;

/// What the runtime puts before options of this provider: its name in lower case.
const PREFIX: &str = "ep.precastexecutionprovider.";

/// Entries of the runtime's own that are options of ours.
const CONTEXT_ENTRIES: &[(&str, &str)] = &[
    ("ep.context_enable", "context.enable"),
    ("ep.context_embed_mode", "context.embed"),
    ("ep.context_file_path", "context.file"),
    ("ep.context_node_name_prefix", "context.prefix"),
];

/// What the options of a session say, or all that is wrong with them.
///
/// # Safety
/// The options are those of a session.
pub(crate) unsafe fn read_options(
    runtime: Runtime,
    options: *const OrtSessionOptions,
) -> Result<Result<ProviderOptions, Vec<String>>, EpError> {
    // SAFETY: the caller says so.
    let pairs = runtime.get(null_mut(), |pairs| unsafe { runtime.api.get_session_config_entries(options, pairs) })?;
    // SAFETY: the list was given to us.
    let entries = unsafe { runtime.pairs(pairs) };
    // SAFETY: the list is not used again.
    unsafe { runtime.api.release_key_value_pairs(pairs) };
    let given = entries.into_iter().filter_map(|(key, value)| Some((option_name(&key)?, value)));
    Ok(ProviderOptions::read(&OptionSources {
        given: given.collect(),
        environment: migraphx_variables(),
        cache_folder: cache_folder(),
    }))
}

/// The option that an entry of the configuration is, if it is one.
fn option_name(key: &str) -> Option<String> {
    let context = CONTEXT_ENTRIES.iter().find(|(entry, _)| *entry == key).map(|(_, option)| (*option).to_string());
    context.or_else(|| key.strip_prefix(PREFIX).map(str::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_provider_and_of_contexts_are_options() {
        assert_eq!(option_name("ep.precastexecutionprovider.cache.dir").as_deref(), Some("cache.dir"));
        assert_eq!(option_name("ep.context_enable").as_deref(), Some("context.enable"));
        assert_eq!(option_name("session.disable_cpu_ep_fallback"), None);
    }

    #[test]
    fn the_prefix_is_the_name_in_lower_case() {
        let name = crate::factory::NAME.to_str().unwrap_or_default().to_lowercase();
        assert_eq!(PREFIX, format!("ep.{name}."));
    }
}
