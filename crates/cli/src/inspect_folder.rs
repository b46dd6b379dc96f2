//! `inspect` of a model folder: what its decoder caches, which sizes have Programs, and what was accepted without effect.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use precast::generate::config::read_overlay;
use precast::generate::kv_cache::LayerLayout;
use precast::{Error, InputInfo, TextFolder, TextOptions, folder_faults, open_text_model};
use serde_json::{Value, json};

use crate::args::Shared;
use crate::exit::{Exit, Failure};
use crate::output::{Report, dims_json, type_text};
use crate::subject::options;

/// Shows what a model folder is.
pub fn inspect_folder(folder: &Path, overlays: &[PathBuf], shared: &Shared) -> Result<Report, Failure> {
    let overlays = overlays.iter().map(|path| read_overlay(path)).collect::<Result<_, _>>().map_err(Error::from)?;
    let text_options = TextOptions {
        runner: options(shared),
        threads: shared.threads,
        device: shared.device.is_some().then(|| shared.device()),
        overlays,
        ..TextOptions::default()
    };
    let TextFolder { model, parameters, tokenizer, notices, .. } = match open_text_model(folder, &text_options) {
        Ok(folder) => folder,
        Err(error) => return Ok(refused(folder, &error, &folder_faults(folder, &text_options))),
    };
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
    for (role, name) in model.roles().named() {
        let _ = writeln!(text, "  {role}: {name}");
    }
    let ladders = model.ladders();
    let _ = writeln!(text, "lengths     {:?}", shortened(ladders.length.sizes()));
    let _ = writeln!(text, "rows        {:?}", shortened(ladders.rows.sizes()));
    let _ = writeln!(text, "capacities  {:?}", shortened(ladders.capacity.sizes()));
    let a_capacity = ladders.programs_a_capacity();
    let programs = a_capacity * ladders.capacity.sizes().len();
    let _ = writeln!(text, "Programs    {programs}, {a_capacity} a capacity");
    if !parameters.is_empty() {
        let _ = writeln!(text, "adapters    may replace {} parameters", parameters.len());
    }
    for parameter in &parameters {
        let declared = type_text(Some(parameter.dtype), parameter.dims.as_deref());
        let _ = writeln!(text, "  {} {declared}", parameter.name);
    }
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
        "programs_per_capacity": a_capacity,
        "programs": programs,
        "roles": model.roles().named().into_iter().map(|(role, name)| json!({ "role": role, "name": name })).collect::<Vec<_>>(),
        "replaceable_parameters": parameters.iter().map(parameter_json).collect::<Vec<_>>(),
        "notices": notices,
    });
    Ok(Report::done(text, json))
}

/// All that is wrong with a folder that does not open.
fn refused(folder: &Path, error: &Error, faults: &[Error]) -> Report {
    let mut lines: Vec<String> = faults.iter().flat_map(|fault| lines_of(&fault.to_string())).collect();
    for line in lines_of(&error.to_string()) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let text = lines.iter().fold(String::new(), |text, line| text + line + "\n");
    let json = json!({ "folder": folder.display().to_string(), "faults": lines });
    let kind = faults.first().unwrap_or(error).kind();
    let message = format!("'{}' cannot be opened: {} faults", folder.display(), lines.len());
    Report { text, json, exit: Exit::of(kind), error: Some(message) }
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().map(ToString::to_string).collect()
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

fn parameter_json(parameter: &InputInfo) -> Value {
    let dims = dims_json(parameter.dims.as_deref());
    json!({ "name": parameter.name, "dtype": parameter.dtype.name(), "dims": dims })
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
