//! The configuration of a model folder: `genai_config.json`, overlays on it, and `precast.json`. Reading is strict: an
//! unknown key, a wrong type or a key that cannot be honoured is an error, and all errors of a file come in one report.

mod check;
mod folder;
mod json;
mod keys;
mod plain;
mod read;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

pub use check::{DeviceOf, Fault, NamedDevice};
pub use folder::{Folder, FolderError};
pub use json::{Place, Source};

use check::Check;
use json::{Member, Node, line_and_column};
use keys::{CAPTURE_OPTIONS, DEVICE_ID, Keys, SEARCH};
use plain::{PLAIN_CONFIG_FILE, plain_config};

/// Name of the configuration in a model folder.
pub const CONFIG_FILE: &str = "genai_config.json";
/// Name of our own settings in a model folder.
pub const TUNING_FILE: &str = "precast.json";

/// The configuration of a model folder.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// What the model is.
    pub model: ModelConfig,
    /// How tokens are chosen unless a request says otherwise.
    pub search: SearchConfig,
    /// Speculation.
    pub speculative: SpeculativeConfig,
    /// Batching of concurrent requests.
    pub engine: EngineConfig,
    /// Which shapes have Programs.
    pub tuning: TuningConfig,
    /// What a person should know about how the configuration was read.
    pub notices: Vec<String>,
}

/// What the model is.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family, as the exporter calls it.
    pub family: String,
    /// Ids that logits have; a check against the graph.
    pub vocab_size: Option<usize>,
    /// Tokens that a sequence may have.
    pub context_length: usize,
    /// First token of a sequence.
    pub bos_token_id: Option<i64>,
    /// Filler; no length is ever derived from it.
    pub pad_token_id: Option<i64>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Markers of tool calls and of reasoning: begin and end of each.
    pub markers: Markers,
    /// Folder of the tokenizer inside the model folder.
    pub tokenizer_dir: Option<String>,
    /// The decoder.
    pub decoder: DecoderConfig,
    /// A smaller decoder whose proposals the larger one verifies.
    pub draft: Option<DecoderConfig>,
}

/// Tokens that begin and end tool calls and reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Markers {
    /// Begin of a tool call.
    pub tool_begin: Option<i64>,
    /// End of a tool call.
    pub tool_end: Option<i64>,
    /// Begin of reasoning.
    pub reasoning_begin: Option<i64>,
    /// End of reasoning.
    pub reasoning_end: Option<i64>,
}

/// A decoder: its file, its names, and sizes to check against its graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecoderConfig {
    /// The ONNX file inside the folder.
    pub filename: String,
    /// Layers.
    pub num_hidden_layers: Option<usize>,
    /// Heads of keys and values.
    pub num_key_value_heads: Option<usize>,
    /// Size of a head.
    pub head_size: Option<usize>,
    /// Heads of queries.
    pub num_attention_heads: Option<usize>,
    /// Width of the model.
    pub hidden_size: Option<usize>,
    /// Names of graph inputs and outputs.
    pub names: RoleNames,
    /// The window of some layers.
    pub sliding_window: Option<SlidingWindow>,
    /// Threads of a run; 0 leaves it to the device.
    pub threads: usize,
    /// Beginning of the name of a trace file.
    pub profile: Option<String>,
    /// Level of optimisation, as ONNX Runtime calls it.
    pub optimization_level: Option<String>,
    /// Least severity of what is told about the folder: 0 is everything, 3 and more are errors alone.
    pub log_severity: usize,
    /// Devices asked for, in order.
    pub providers: Vec<Provider>,
}

/// Names of graph inputs and outputs by role; `%d` stands for the number of a layer. What is not set has its default name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleNames {
    /// Tokens.
    pub input_ids: Option<String>,
    /// Which slots are filled.
    pub attention_mask: Option<String>,
    /// Positions of tokens.
    pub position_ids: Option<String>,
    /// Cached keys of a layer.
    pub past_key_names: Option<String>,
    /// Cached values of a layer.
    pub past_value_names: Option<String>,
    /// Cached keys and values of a layer in one tensor.
    pub past_names: Option<String>,
    /// Length of the past.
    pub past_sequence_length: Option<String>,
    /// Length of what is new.
    pub current_sequence_length: Option<String>,
    /// Length of both.
    pub total_sequence_length: Option<String>,
    /// Lengths of the past, a row.
    pub past_key_values_length: Option<String>,
    /// Scores of the next token.
    pub logits: Option<String>,
    /// Keys of a layer with the new ones.
    pub present_key_names: Option<String>,
    /// Values of a layer with the new ones.
    pub present_value_names: Option<String>,
    /// Keys and values of a layer in one tensor, with the new ones.
    pub present_names: Option<String>,
}

/// The window of some layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Positions that a query sees, itself included.
    pub window_size: usize,
    /// Which layers; all where the list is missing.
    pub layers: Option<Vec<usize>>,
    /// Slots of the cache beyond the window.
    pub cache_slack: usize,
}

/// A device asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name as it was written.
    pub name: String,
    /// Options of it, as they were written.
    pub options: Vec<(String, String)>,
}

impl Provider {
    /// Which device of its kind, where an option says so.
    pub fn device_id(&self) -> Option<usize> {
        self.options.iter().find(|(name, _)| name == DEVICE_ID).and_then(|(_, value)| value.parse().ok())
    }

    /// Whether steps that run often are captured, where an option says so.
    pub fn captures(&self) -> Option<bool> {
        self.options
            .iter()
            .find(|(name, _)| CAPTURE_OPTIONS.contains(&name.as_str()))
            .and_then(|(_, value)| flag(value))
    }
}

/// A flag as options of devices write it.
fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// How tokens are chosen. Names are those of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchConfig {
    /// Draw instead of taking the likeliest.
    pub do_sample: bool,
    /// Tokens before which a sequence may not end; the prompt counts.
    pub min_length: usize,
    /// Tokens that a sequence may have; the prompt counts.
    pub max_length: usize,
    /// Divides positive scores of tokens that the sequence has, and multiplies negative ones.
    pub repetition_penalty: f64,
    /// Tokens that are kept before drawing; 0 keeps all.
    pub top_k: usize,
    /// Probability that is kept before drawing; 0 and 1 keep all.
    pub top_p: f64,
    /// Divides scores before drawing.
    pub temperature: f64,
    /// Length of sequences of tokens that may not come twice; 0 is no limit.
    pub no_repeat_ngram_size: usize,
    /// Seed of draws; none takes one from the system.
    pub random_seed: Option<u64>,
    /// Tokens of a prompt that run at once.
    pub chunk_size: Option<usize>,
    /// Beams.
    pub num_beams: usize,
    /// Sequences that are returned.
    pub num_return_sequences: usize,
    /// Exponent of the length that divides the score of a hypothesis.
    pub length_penalty: f64,
    /// End a beam search when there are enough hypotheses.
    pub early_stopping: bool,
    /// Rows that must be given; 1 is no check.
    pub batch_size: usize,
}

/// Speculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeculativeConfig {
    /// Tokens that are proposed at once.
    pub max_draft_tokens: usize,
    /// Tokens that must repeat for a lookup in what was said; 0 is no lookup.
    pub ngram_size: usize,
    /// Look up again behind what was proposed.
    pub ngram_chained_lookup: bool,
    /// Fewest tokens that an adaptive width proposes; 0 keeps the width fixed.
    pub min_adaptive_k: usize,
    /// Pause after rounds without success.
    pub cooldown: bool,
}

/// Batching of concurrent requests.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineConfig {
    /// Rows come and go; caches are pages.
    Dynamic {
        /// Tokens of a page.
        block_size: usize,
        /// Pages.
        num_blocks: Option<usize>,
        /// Part of the free memory that pages may take.
        gpu_utilization_factor: Option<f64>,
        /// Rows of a step.
        max_batch_size: usize,
        /// Tokens of a step.
        max_scheduled_tokens: usize,
        /// Share pages of equal beginnings.
        prefix_caching: bool,
    },
    /// A fixed number of slots.
    Static {
        /// Slots.
        max_batch_size: usize,
    },
}

/// Which shapes have Programs: `precast.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningConfig {
    /// Lengths of new tokens.
    pub length_buckets: Option<Vec<usize>>,
    /// Rows of a decode step.
    pub row_buckets: Option<Vec<usize>>,
    /// Most tokens of a prompt that run at once.
    pub chunk: Option<usize>,
    /// Slots of a cache.
    pub kv_capacity_buckets: Option<Vec<usize>>,
    /// Tokens of a page.
    pub kv_page: Option<usize>,
    /// What answers when a Program is not there.
    pub on_miss: Option<String>,
    /// Memory that captures may take.
    pub graph_budget_mb: Option<usize>,
    /// Part of a step that prompts get.
    pub prefill_share: Option<f64>,
    /// What rows are multiplied as with weights of few bits.
    pub activations: Option<String>,
    /// Whether engines compile Programs ahead of need.
    pub prepares_programs: Option<bool>,
}

/// Every fault of a configuration, with the place of each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// What is wrong, one line each: source, line and column, path and what was expected.
    pub lines: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Reads a configuration from its texts: the file, overlays on it in order, and our own settings where there are any.
pub fn parse(
    config: Source,
    overlays: Vec<Source>,
    tuning: Option<Source>,
    device_of: DeviceOf<'_>,
) -> Result<GenerationConfig, ConfigError> {
    let mut sources = vec![config];
    sources.extend(overlays);
    let merged = merge_sources(&sources)?;
    let mut check = Check::new(device_of);
    check.object(&merged, &keys::ROOT, "");
    read::check_across(&merged, &mut check);
    let tuning_node = match tuning {
        None => None,
        Some(source) => {
            sources.push(source);
            let position = sources.len() - 1;
            match json::parse(&sources[position].text, position) {
                Ok(node) => {
                    check.object(&node, &keys::TUNING, "");
                    Some(node)
                }
                Err(fault) => {
                    check.faults.push(syntax(fault));
                    None
                }
            }
        }
    };
    if !check.faults.is_empty() {
        return Err(report(&sources, check.faults));
    }
    let mut notices: Vec<String> = Vec::new();
    if !check.without_effect.is_empty() {
        let names: Vec<&str> = check.without_effect.iter().map(String::as_str).collect();
        notices.push(format!("accepted without effect: {}", names.join(", ")));
    }
    Ok(read::read(&merged, tuning_node.as_ref(), notices))
}

/// Reads the configuration of a folder; without one of its own, what transformers says of the model stands for it.
pub fn open(folder: &Folder, overlays: Vec<Source>, device_of: DeviceOf<'_>) -> Result<GenerationConfig, OpenError> {
    let source = |name: &str| -> Result<Source, OpenError> {
        Ok(Source { name: name.to_string(), text: folder.read_text(name)? })
    };
    let tuning = match folder.has(TUNING_FILE)? {
        true => Some(source(TUNING_FILE)?),
        false => None,
    };
    let config = match folder.has(CONFIG_FILE)? || !folder.has(PLAIN_CONFIG_FILE)? {
        true => source(CONFIG_FILE)?,
        false => plain_config(folder)?,
    };
    let config = parse(config, overlays, tuning, device_of)?;
    let decoders = std::iter::once(&config.model.decoder).chain(&config.model.draft);
    for path in decoders.map(|decoder| decoder.filename.as_str()).chain(config.model.tokenizer_dir.as_deref()) {
        folder.path(path)?;
    }
    Ok(config)
}

/// Why a folder's configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file is missing, unreadable or outside the folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file says what it may not.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The decoder's file by a configuration that may be wrong elsewhere.
pub fn decoder_filename(folder: &Folder) -> Option<String> {
    let config: serde_json::Value = serde_json::from_str(&folder.read_text(CONFIG_FILE).ok()?).ok()?;
    Some(config.pointer("/model/decoder/filename")?.as_str()?.to_string())
}

/// An overlay from a file that a person names.
pub fn read_overlay(path: &Path) -> Result<Source, FolderError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| FolderError::Io { path: name.clone(), source })?;
    Ok(Source { name, text })
}

/// The names of the keys of `search`, which are also the names of options.
pub fn search_keys() -> impl Iterator<Item = &'static str> {
    let keys: &'static Keys = &SEARCH;
    keys.keys.iter().map(|key| key.name)
}

/// Whether a value fits a key of `search` that stands for no option: none where there is no such key. Keys without effect
/// have their types checked, and others are refused for their reason.
pub fn check_search_key(name: &str, json: &str) -> Option<Result<(), String>> {
    let key = SEARCH.keys.iter().find(|key| key.name == name)?;
    let node = match json::parse(json, 0) {
        Ok(node) => node,
        Err(fault) => return Some(Err(format!("{name}: '{json}' is no JSON: {}", fault.message))),
    };
    let no_device = |_: &str| Err(String::new());
    let mut check = Check::new(&no_device);
    check.key(&Member { key: name.to_string(), place: node.place, node }, key, name);
    Some(match check.faults.first() {
        Some(fault) => Err(format!("{} {}", fault.path, fault.message)),
        None => Ok(()),
    })
}

/// A duplicate in an overlay would be merged away, so each source is looked at by itself first.
fn merge_sources(sources: &[Source]) -> Result<Node, ConfigError> {
    let mut nodes = Vec::new();
    let mut faults = Vec::new();
    for (position, source) in sources.iter().enumerate() {
        match json::parse(&source.text, position) {
            Ok(node) => {
                if position > 0 {
                    duplicates(&node, "", &mut faults);
                }
                nodes.push(node);
            }
            Err(fault) => faults.push(syntax(fault)),
        }
    }
    if !faults.is_empty() {
        return Err(report(sources, faults));
    }
    let mut nodes = nodes.into_iter();
    let mut merged = nodes.next().ok_or_else(|| report(sources, []))?;
    nodes.for_each(|overlay| merged.merge(overlay));
    Ok(merged)
}

fn duplicates(node: &Node, path: &str, faults: &mut Vec<Fault>) {
    for (position, member) in node.members().iter().enumerate() {
        let path = if path.is_empty() { member.key.clone() } else { format!("{path}.{}", member.key) };
        if node.members()[..position].iter().any(|other| other.key == member.key) {
            let message = "is written twice in one object".to_string();
            faults.push(Fault { place: member.place, path: path.clone(), message });
        }
        duplicates(&member.node, &path, faults);
    }
}

fn syntax(fault: json::JsonFault) -> Fault {
    Fault { place: fault.place, path: "JSON".to_string(), message: fault.message }
}

/// Faults in the order of their places.
fn report(sources: &[Source], faults: impl IntoIterator<Item = Fault>) -> ConfigError {
    let mut faults: Vec<Fault> = faults.into_iter().collect();
    faults.sort();
    let line = |fault: &Fault| {
        let source = &sources[fault.place.source];
        let (line, column) = line_and_column(&source.text, fault.place.offset);
        format!("{}:{line}:{column}: {} {}", source.name, fault.path, fault.message)
    };
    ConfigError { lines: faults.iter().map(line).collect() }
}
