//! Arguments of the verbs that generate text. Every option of a search is a flag.

use std::path::PathBuf;

use clap::Args;
use precast::generate::config::read_overlay;
use precast::generate::{GeneratorParams, TextModel};
use precast::{Error, TextFolder, TextOptions, open_text_model};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::Shared;
use crate::exit::Failure;
use crate::subject::options;

/// A model folder and how it is opened.
#[derive(Args)]
pub struct FolderArgs {
    /// The model folder, with its genai_config.json
    pub folder: PathBuf,
    /// A JSON merge patch on the folder's configuration; several are applied in order
    #[arg(long, value_name = "FILE")]
    pub overlay: Vec<PathBuf>,
    /// Compute with the values of an adapter file (*.onnx_adapter); of several, which need names, the first unless asked otherwise
    #[arg(long, value_name = "[NAME=]FILE", value_parser = parse_adapter)]
    pub adapter: Vec<AdapterArg>,
    /// Keep compiled Programs in this folder
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// An adapter file and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterArg {
    /// Its name; that of the file, without what follows the last point, where none is given.
    pub name: String,
    /// The file.
    pub file: PathBuf,
}

impl FolderArgs {
    /// Opens the folder and says what there is to know about it.
    pub fn open(&self, shared: &Shared, cx: &Cx) -> Result<TextFolder, Failure> {
        let overlays = self.overlay.iter().map(|path| read_overlay(path)).collect::<Result<_, _>>();
        let text_options = TextOptions {
            runner: options(shared),
            threads: shared.threads,
            device: shared.device.is_some().then(|| shared.device()),
            overlays: overlays.map_err(Error::from)?,
            cache: self.cache.clone(),
            ..TextOptions::default()
        };
        let mut folder = cx.console.during("opening", None, || open_text_model(&self.folder, &text_options))?;
        for AdapterArg { name, file } in &self.adapter {
            cx.console.during("loading an adapter", None, || folder.load_adapter(name, file))?;
        }
        if let Some(AdapterArg { name, .. }) = self.adapter.first() {
            let first = folder.adapters.get(name).map_err(Error::from)?;
            folder.model = folder.model.with_adapter(Some(&first)).map_err(Error::from)?;
        }
        for notice in &folder.notices {
            cx.console.notice(notice);
        }
        Ok(folder)
    }
}

/// Options of a search; what is not given is what the folder says.
#[derive(Args, Default)]
pub struct SearchArgs {
    /// Tokens to generate
    #[arg(long = "max-new-tokens", short = 'n', value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// Draw tokens instead of taking the likeliest; --do-sample=false takes it though the folder says otherwise
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub do_sample: Option<bool>,
    /// Divides scores before drawing; 0 takes the likeliest token
    #[arg(long)]
    pub temperature: Option<f64>,
    /// Tokens that are kept before drawing; 0 keeps all
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Probability that is kept before drawing; 0 and 1 keep all
    #[arg(long)]
    pub top_p: Option<f64>,
    /// Part of the likeliest token's probability below which tokens are dropped
    #[arg(long)]
    pub min_p: Option<f64>,
    /// Seed of draws; -1 takes one from the system
    #[arg(long = "seed", alias = "random-seed", allow_negative_numbers = true)]
    pub random_seed: Option<i64>,
    /// A string that ends the text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Tokens before which a sequence may not end; the prompt counts
    #[arg(long)]
    pub min_length: Option<usize>,
    /// Tokens that a sequence may have; the prompt counts
    #[arg(long)]
    pub max_length: Option<usize>,
    /// Divides positive scores of tokens that were there before, and multiplies negative ones
    #[arg(long)]
    pub repetition_penalty: Option<f64>,
    /// Subtracted once from scores of tokens that were generated
    #[arg(long, allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Subtracted from scores of tokens for every time that they were generated
    #[arg(long, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// Length of sequences of tokens that may not come twice
    #[arg(long)]
    pub no_repeat_ngram_size: Option<usize>,
    /// Added to the score of a token: ID=BIAS; may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens of a prompt that run at once
    #[arg(long)]
    pub chunk_size: Option<usize>,
    /// Beams
    #[arg(long)]
    pub num_beams: Option<usize>,
    /// Answers to each prompt
    #[arg(long)]
    pub num_return_sequences: Option<usize>,
    /// Exponent of the length that divides the score of a beam
    #[arg(long, allow_negative_numbers = true)]
    pub length_penalty: Option<f64>,
    /// End a beam search when there are enough answers
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub early_stopping: Option<bool>,
    /// Report log-probabilities of each token and of the N likeliest
    #[arg(long, value_name = "N")]
    pub logprobs: Option<usize>,
    /// Log-probabilities by the model's scores, or after all rules among the tokens that may be drawn
    #[arg(long, value_name = "MODE", value_parser = ["raw", "processed"], requires = "logprobs")]
    pub logprobs_mode: Option<String>,
    /// Go on behind tokens that end sequences
    #[arg(long)]
    pub ignore_eos: bool,
    /// Make the token that ended a sequence part of it
    #[arg(long)]
    pub include_stop_token: bool,
}

impl SearchArgs {
    /// The options of a folder with those that were given.
    pub fn params(&self, model: &TextModel) -> Result<GeneratorParams, Failure> {
        let mut params = GeneratorParams::new(model.config().search.clone());
        let given: &[(&str, Option<Value>)] = &[
            ("max_new_tokens", self.max_new_tokens.map(Value::from)),
            // Who sets what only draws have, wants to draw.
            ("do_sample", self.do_sample.or_else(|| self.is_drawing().then_some(true)).map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("min_p", self.min_p.map(Value::from)),
            ("random_seed", self.random_seed.map(Value::from)),
            ("stop", (!self.stop.is_empty()).then(|| json!(self.stop))),
            ("min_length", self.min_length.map(Value::from)),
            ("max_length", self.max_length.map(Value::from)),
            ("repetition_penalty", self.repetition_penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size.map(Value::from)),
            ("chunk_size", self.chunk_size.map(Value::from)),
            ("num_beams", self.num_beams.map(Value::from)),
            ("num_return_sequences", self.num_return_sequences.map(Value::from)),
            ("length_penalty", self.length_penalty.map(Value::from)),
            ("early_stopping", self.early_stopping.map(Value::from)),
            ("logprobs", self.logprobs.map(Value::from)),
            ("logprobs_mode", self.logprobs_mode.clone().map(Value::from)),
            ("ignore_eos", self.ignore_eos.then_some(Value::Bool(true))),
            ("include_stop_token", self.include_stop_token.then_some(Value::Bool(true))),
        ];
        for (name, value) in given.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            params.set(name, &value.to_string()).map_err(|error| Failure::usage(error.to_string()))?;
        }
        params.logit_bias.extend(self.logit_bias.iter().copied());
        params.check(model.vocabulary()).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(params)
    }

    fn is_drawing(&self) -> bool {
        self.temperature.is_some_and(|temperature| temperature > 0.0) || self.top_p.is_some() || self.min_p.is_some()
    }
}

/// `FILE` or `NAME=FILE`; what has a separator before its first `=` is a path.
fn parse_adapter(text: &str) -> Result<AdapterArg, String> {
    let named = text.split_once('=').filter(|(name, _)| !name.contains(std::path::is_separator));
    let (name, file) = match named {
        Some((name, file)) => (Some(name.to_string()), PathBuf::from(file)),
        None => (None, PathBuf::from(text)),
    };
    let stem = || file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match name.or_else(stem).filter(|name| !name.is_empty()) {
        Some(name) => Ok(AdapterArg { name, file }),
        None => Err(format!("'{text}' is no FILE or NAME=FILE")),
    }
}

/// `ID=BIAS`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| format!("'{text}' is no ID=BIAS, such as 42=-1.5"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_a_file_with_or_without_a_name() {
        let parsed =
            |text: &str| parse_adapter(text).map(|AdapterArg { name, file }| (name, file.display().to_string()));
        let pair = |name: &str, file: &str| Ok((name.to_string(), file.to_string()));
        assert_eq!(parsed("dir/law.onnx_adapter"), pair("law", "dir/law.onnx_adapter"));
        assert_eq!(parsed("a=dir/law.onnx_adapter"), pair("a", "dir/law.onnx_adapter"));
        assert_eq!(parsed("dir/b=c.onnx_adapter"), pair("b=c", "dir/b=c.onnx_adapter"));
        assert!(parsed("").is_err() && parsed("=x").is_err());
    }
}
