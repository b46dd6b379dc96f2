//! Options as texts, as runtimes hand them to an execution provider: `name=value`, in our names or in those that users of
//! AMD's providers write already. What is read is used; what cannot be used is an error, and all errors are told at once.

mod aliases;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use precast_cache::CacheOptions;
use precast_session::{BucketPolicy, DimOptions};

use crate::error::Error;
use crate::model::{InputInfo, Model};
use crate::open_session::OpenOptions;

/// What options of a provider say.
#[derive(Clone)]
pub struct ProviderOptions {
    /// How models are opened.
    pub open: OpenOptions,
    /// The cache; without a folder it is in memory.
    pub cache: CacheOptions,
    /// Whether a graph that cannot be taken is an error.
    pub is_strict: bool,
    /// Where the list of nodes that cannot be taken is written.
    pub report: Option<PathBuf>,
    /// Saving what was compiled.
    pub context: ContextOptions,
    /// Buckets of the dim at an axis, which is known once the model is.
    axis_buckets: Option<(usize, BucketPolicy)>,
    /// What a person should know, such as names that are read as others.
    pub notices: Vec<String>,
}

/// How what was compiled is saved as a model of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Whether it is.
    pub is_enabled: bool,
    /// Inside the model, instead of in a file beside it; by size unless set.
    pub is_embedded: Option<bool>,
    /// The file of the model that is written.
    pub file: Option<PathBuf>,
    /// What names of its nodes begin with.
    pub prefix: String,
}

/// Where options come from, apart from what is written in them.
#[derive(Clone, Debug, Default)]
pub struct OptionSources {
    /// Names and values as they were given.
    pub given: Vec<(String, String)>,
    /// Variables of the environment that begin with `ORT_MIGRAPHX_`, without that; used with `compat.env=true` alone.
    pub environment: Vec<(String, String)>,
    /// Folder of the cache where no option names one.
    pub cache_folder: Option<PathBuf>,
}

/// An option in our name: its value, and what it was written as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    value: String,
    /// `migraphx_fp16_enable=1`, or the same as `name=value`.
    source: String,
}

impl ProviderOptions {
    /// Reads options; the errors are all there are.
    pub fn read(sources: &OptionSources) -> Result<ProviderOptions, Vec<String>> {
        let mut problems = Vec::new();
        let given = aliases::translate(&sources.given, aliases::by_option, &mut problems);
        let mut written = BTreeMap::new();
        for (name, option) in given {
            put(&mut written, name, option, &mut problems);
        }
        if written.get("compat.env").is_some_and(|option| settings::read_flag(&option.value) == Ok(true)) {
            // As documented upstream, variables win over options there.
            written.extend(aliases::translate(&sources.environment, aliases::by_variable, &mut problems));
        }
        let options = settings::apply(&written, sources.cache_folder.clone(), &mut problems);
        if problems.is_empty() { Ok(options) } else { Err(problems) }
    }

    /// How this model is opened.
    pub fn open_options(&self, model: &Model) -> Result<OpenOptions, Error> {
        let mut open = self.open.clone();
        if let Some((axis, policy)) = &self.axis_buckets {
            let symbol = symbol_of_axis(&open.binds.bound(&model.inputs()?)?, *axis)?;
            open.session.dims.insert(symbol, DimOptions { buckets: policy.clone() });
        }
        Ok(open)
    }
}

/// The one dim that inputs have at an axis, where it is no number.
fn symbol_of_axis(inputs: &[InputInfo], axis: usize) -> Result<String, Error> {
    let dims = inputs.iter().filter_map(|input| input.dims.as_ref()?.get(axis)).filter(|dim| dim.as_usize().is_none());
    let mut symbols: Vec<String> = dims.map(ToString::to_string).collect();
    symbols.sort();
    symbols.dedup();
    match &symbols[..] {
        [symbol] => Ok(symbol.clone()),
        [] => Err(Error::Request(format!("no input has a dim without a number at axis {axis}"))),
        several => Err(Error::Request(format!(
            "axis {axis} is {} different dims ({}); dims.bind makes them one",
            several.len(),
            several.join(", ")
        ))),
    }
}

/// Two names for one option with different values contradict each other.
fn put(written: &mut BTreeMap<String, Written>, name: String, option: Written, problems: &mut Vec<String>) {
    match written.get(&name) {
        Some(other) if other.value != option.value => {
            problems.push(format!("'{}' and '{}' contradict each other ({name})", other.source, option.source));
        }
        Some(_) => {}
        None => {
            written.insert(name, option);
        }
    }
}
