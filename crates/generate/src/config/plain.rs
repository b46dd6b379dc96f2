//! The configuration of a folder without `genai_config.json`: what `config.json` of transformers says of the model, and the
//! one ONNX file that the folder holds.

use serde_json::{Map, Value, json};

use super::folder::{Folder, FolderError};
use super::json::Source;

/// Name of the file of transformers.
pub const PLAIN_CONFIG_FILE: &str = "config.json";

/// Folders inside a model folder in which exporters put the ONNX file.
const PLACES: &[&str] = &[".", "onnx"];

/// Keys that both files have under other names.
const MODEL_KEYS: &[(&str, &str)] = &[
    ("model_type", "type"),
    ("vocab_size", "vocab_size"),
    ("max_position_embeddings", "context_length"),
    ("bos_token_id", "bos_token_id"),
    ("pad_token_id", "pad_token_id"),
    ("eos_token_id", "eos_token_id"),
];
const DECODER_KEYS: &[(&str, &str)] = &[
    ("num_hidden_layers", "num_hidden_layers"),
    ("num_key_value_heads", "num_key_value_heads"),
    ("num_attention_heads", "num_attention_heads"),
    ("hidden_size", "hidden_size"),
    ("head_dim", "head_size"),
];

/// What `genai_config.json` would say, if the folder had one.
pub fn plain_config(folder: &Folder) -> Result<Source, FolderError> {
    let text = folder.read_text(PLAIN_CONFIG_FILE)?;
    let name = PLAIN_CONFIG_FILE.to_string();
    let Ok(Value::Object(given)) = serde_json::from_str::<Value>(&text) else {
        // Read as it is, it is refused where it is wrong.
        return Ok(Source { name, text });
    };
    let taken = |keys: &[(&str, &str)]| -> Map<String, Value> {
        let found = keys.iter().filter_map(|(theirs, ours)| Some((ours.to_string(), given.get(*theirs)?.clone())));
        found.filter(|(_, value)| !value.is_null()).collect()
    };
    let mut decoder = taken(DECODER_KEYS);
    if let (None, Some(width), Some(heads)) = (
        decoder.get("head_size"),
        given.get("hidden_size").and_then(Value::as_u64),
        given.get("num_attention_heads").and_then(Value::as_u64).filter(|&heads| heads > 0),
    ) {
        decoder.insert("head_size".to_string(), json!(width / heads));
    }
    decoder.insert("filename".to_string(), json!(only_model(folder)?));
    let mut model = taken(MODEL_KEYS);
    model.insert("decoder".to_string(), Value::Object(decoder));
    Ok(Source { name: format!("what {name} says"), text: json!({ "model": model }).to_string() })
}

/// The one ONNX file of a folder.
fn only_model(folder: &Folder) -> Result<String, FolderError> {
    let mut found = Vec::new();
    for place in PLACES {
        if !folder.has(place)? {
            continue;
        }
        let path = folder.path(place)?;
        let io = |source| FolderError::Io { path: path.display().to_string(), source };
        for entry in std::fs::read_dir(&path).map_err(io)? {
            let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".onnx") {
                found.push(if *place == "." { name } else { format!("{place}/{name}") });
            }
        }
    }
    found.sort();
    match &found[..] {
        [one] => Ok(one.clone()),
        _ => Err(FolderError::NoConfig { root: folder.root().display().to_string(), models: found }),
    }
}
