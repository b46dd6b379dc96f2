//! `inspect` of a model folder: what its decoder caches, which sizes have Programs, and what was accepted without effect.

use std::fmt::Write;
use std::path::Path;

use precast::generate::TextModel;
use precast::generate::kv_cache::LayerLayout;
use precast::{TextFolder, TextOptions, open_text_model};
use serde_json::{Value, json};

use crate::args::Shared;
use crate::exit::Failure;
use crate::output::Report;
use crate::subject::options;

/// Shows what a model folder is.
pub fn inspect_folder(folder: &Path, shared: &Shared) -> Result<Report, Failure> {
    let device = shared.device.is_some().then(|| shared.device());
    let text_options =
        TextOptions { runner: options(shared), threads: shared.threads, device, ..TextOptions::default() };
    let TextFolder { model, tokenizer, notices } = open_text_model(folder, &text_options)?;
    let config = &model.config().model;
    let mut text = String::new();
    let _ = writeln!(text, "family      {}", config.family);
    let _ = writeln!(text, "device      {}", model.device());
    let _ = writeln!(text, "vocabulary  {}", model.vocabulary());
    let _ = writeln!(text, "context     {}", config.context_length);
    let _ = writeln!(text, "ends        {:?}", config.eos_token_ids);
    let _ = writeln!(text, "tokenizer   {}", tokenizer.as_ref().map_or("none", |_| "yes"));
    let _ = writeln!(text, "cache       {} bytes a token", model.kv_bytes_per_token());
    for (layers, layout) in runs(model.layers()) {
        let _ = writeln!(text, "  layers {layers}: {}", describe(layout));
    }
    let ladders = model.ladders();
    let _ = writeln!(text, "lengths     {:?}", shortened(ladders.length.sizes()));
    let _ = writeln!(text, "rows        {:?}", shortened(ladders.rows.sizes()));
    let _ = writeln!(text, "capacities  {:?}", shortened(ladders.capacity.sizes()));
    let _ = writeln!(text, "Programs    {} a capacity", programs(&model));
    for notice in &notices {
        let _ = writeln!(text, "notice      {notice}");
    }
    let json = json!({
        "folder": folder.display().to_string(),
        "family": config.family,
        "device": model.device(),
        "vocabulary": model.vocabulary(),
        "context_length": config.context_length,
        "eos_token_ids": config.eos_token_ids,
        "has_tokenizer": tokenizer.is_some(),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "layers": model.layers().iter().map(layer_json).collect::<Vec<_>>(),
        "length_buckets": shortened(ladders.length.sizes()),
        "row_buckets": shortened(ladders.rows.sizes()),
        "kv_capacity_buckets": ladders.capacity.sizes(),
        "programs_per_capacity": programs(&model),
        "notices": notices,
    });
    Ok(Report::done(text, json))
}

/// Programs for prompts and for decode steps.
fn programs(model: &TextModel) -> usize {
    model.ladders().length.sizes().len() + model.ladders().rows.sizes().len()
}

/// Sizes of a ladder; a ladder of every size by its ends.
fn shortened(sizes: &[usize]) -> Vec<usize> {
    const SHOWN: usize = 64;
    match sizes {
        [first, .., last] if sizes.len() > SHOWN => vec![*first, *last],
        _ => sizes.to_vec(),
    }
}

/// Successive layers that cache the same.
fn runs(layers: &[LayerLayout]) -> Vec<(String, &LayerLayout)> {
    let mut runs: Vec<(usize, usize, &LayerLayout)> = Vec::new();
    for (number, layout) in layers.iter().enumerate() {
        match runs.last_mut() {
            Some((_, last, known)) if *known == layout => *last = number,
            _ => runs.push((number, number, layout)),
        }
    }
    let name = |first: usize, last: usize| if first == last { first.to_string() } else { format!("{first}–{last}") };
    runs.into_iter().map(|(first, last, layout)| (name(first, last), layout)).collect()
}

fn describe(layout: &LayerLayout) -> String {
    let window = layout.window.map_or("all tokens".to_string(), |window| format!("the last {window} tokens"));
    let (heads, key, value) = (layout.heads, layout.key_size, layout.value_size);
    format!("{heads} heads of {key} and {value} {}, {window}", layout.dtype.name())
}

fn layer_json(layout: &LayerLayout) -> Value {
    json!({
        "heads": layout.heads,
        "key_size": layout.key_size,
        "value_size": layout.value_size,
        "dtype": layout.dtype.name(),
        "window": layout.window,
    })
}
