//! From a checked configuration to its typed form, and what can only be checked with several keys in view.

use super::check::Check;
use super::json::{Json, Node};
use super::{
    DecoderConfig, EngineConfig, GenerationConfig, Markers, ModelConfig, Provider, RoleNames, SearchConfig,
    SlidingWindow, SpeculativeConfig, TuningConfig,
};

/// Faults that lie between keys, and keys that must be there.
pub fn check_across(root: &Node, check: &mut Check<'_>) {
    let Some(model) = root.get("model") else {
        check.fault(root.place, "model", "is missing");
        return;
    };
    if model.get("context_length").is_none() {
        check.fault(model.place, "model.context_length", "is missing");
    }
    match model.get("decoder") {
        None => check.fault(model.place, "model.decoder", "is missing"),
        Some(decoder) => check_decoder(decoder, "model.decoder", check),
    }
    if let Some(draft) = model.get("draft") {
        check_decoder(draft, "model.draft", check);
    }
    check_ids(model, check);
    if let (Some(_), Some(second)) = (root.at(&["engine", "dynamic_batching"]), root.at(&["engine", "static_batching"]))
    {
        check.fault(second.place, "engine.static_batching", "and engine.dynamic_batching exclude one another");
    }
    if let Some(size) = root.at(&["speculative", "ngram_size"])
        && size.as_integer() == Some(1)
    {
        check.fault(size.place, "speculative.ngram_size", "is 1; 0 or 2 to 16 was expected");
    }
    if let Some(search) = root.get("search") {
        check_search(search, check);
    }
}

fn check_decoder(decoder: &Node, path: &str, check: &mut Check<'_>) {
    if matches!(decoder.value, Json::Object(_)) && decoder.get("filename").is_none() {
        check.fault(decoder.place, &format!("{path}.filename"), "is missing");
    }
    for role in ["past_key_names", "past_value_names", "past_names"] {
        check_layer_name(decoder.at(&["inputs", role]), &format!("{path}.inputs.{role}"), check);
    }
    for role in ["present_key_names", "present_value_names", "present_names"] {
        check_layer_name(decoder.at(&["outputs", role]), &format!("{path}.outputs.{role}"), check);
    }
    if let Some(window) = decoder.get("sliding_window").filter(|window| matches!(window.value, Json::Object(_))) {
        let path = format!("{path}.sliding_window");
        if window.get("window_size").is_none() {
            check.fault(window.place, &format!("{path}.window_size"), "is missing");
        }
        for key in ["slide_key_value_cache", "slide_inputs"] {
            // Both are true where the file does not say so.
            if window.get(key).is_none_or(|value| value.as_bool() == Some(true)) {
                let place = window.get(key).map_or(window.place, |value| value.place);
                let message = "is true, which is also its default, and not supported: set it to false";
                check.fault(place, &format!("{path}.{key}"), message);
            }
        }
    }
    let providers = decoder.at(&["session_options", "provider_options"]).map_or(&[][..], Node::elements);
    for (position, entry) in providers.iter().enumerate().skip(1) {
        let [member] = entry.members() else { continue };
        if check.device(&member.key).is_some_and(|device| !device.is_host) {
            let path = format!("{path}.session_options.provider_options[{position}].{}", member.key);
            check.fault(member.place, &path, "is a second device; the first entry is the device of the model");
        }
    }
}

/// A name for every layer must say where the number of the layer goes.
fn check_layer_name(name: Option<&Node>, path: &str, check: &mut Check<'_>) {
    let Some((node, text)) = name.and_then(|node| Some((node, node.as_text()?))) else { return };
    if text.matches("%d").count() != 1 {
        check.fault(node.place, path, format!("is '{text}'; a name with one '%d' for the layer was expected"));
    }
}

/// Ids that end a sequence are ids of the vocabulary.
fn check_ids(model: &Node, check: &mut Check<'_>) {
    let vocab = model.get("vocab_size").and_then(Node::as_integer).unwrap_or(i64::from(u32::MAX));
    let is_outside = |node: &Node| node.as_integer().is_some_and(|id| id < 0 || id >= vocab);
    let eos = model.get("eos_token_id");
    for node in eos.into_iter().chain(eos.map_or(&[][..], Node::elements)).filter(|node| is_outside(node)) {
        check.fault(node.place, "model.eos_token_id", "is no id of the vocabulary");
    }
    // Elsewhere the pad token is filler that nobody reads, whatever it is.
    let names_none = eos.is_none_or(|eos| eos.as_integer().is_none() && eos.elements().is_empty());
    if let Some(pad) = model.get("pad_token_id").filter(|pad| names_none && is_outside(pad)) {
        let message = "is no id of the vocabulary, and no eos_token_id ends a sequence instead";
        check.fault(pad.place, "model.pad_token_id", message);
    }
}

fn check_search(search: &Node, check: &mut Check<'_>) {
    let integer = |key: &str, default: i64| search.get(key).and_then(Node::as_integer).unwrap_or(default);
    let flag = |key: &str| search.get(key).and_then(Node::as_bool).unwrap_or(false);
    let (beams, returned) = (integer("num_beams", 1), integer("num_return_sequences", 1));
    let place = |key: &str| search.get(key).map_or(search.place, |node| node.place);
    if beams > 1 && flag("do_sample") {
        check.fault(place("num_beams"), "search.num_beams", "and search.do_sample exclude one another");
    }
    if returned > beams && !(beams == 1 && flag("do_sample")) {
        let message = format!("is {returned}; at most num_beams ({beams}) was expected");
        check.fault(place("num_return_sequences"), "search.num_return_sequences", message);
    }
}

/// Reads what was checked.
pub fn read(root: &Node, tuning: Option<&Node>, mut notices: Vec<String>) -> GenerationConfig {
    let empty = Node { place: root.place, value: Json::Object(Vec::new()) };
    let part = |path: &[&str]| Part(root.at(path).unwrap_or(&empty));
    let model = read_model(part(&["model"]), &mut notices);
    let search = read_search(part(&["search"]), model.context_length);
    let speculative = read_speculative(part(&["speculative"]));
    let engine = match root.at(&["engine", "static_batching"]) {
        Some(node) => EngineConfig::Static { max_batch_size: Part(node).size("max_batch_size").unwrap_or(4) },
        None => read_dynamic(part(&["engine", "dynamic_batching"])),
    };
    let tuning = read_tuning(Part(tuning.unwrap_or(&empty)));
    GenerationConfig { model, search, speculative, engine, tuning, notices }
}

/// An object that was checked.
#[derive(Clone, Copy)]
struct Part<'a>(&'a Node);

impl Part<'_> {
    fn integer(self, key: &str) -> Option<i64> {
        self.0.get(key)?.as_integer()
    }

    fn size(self, key: &str) -> Option<usize> {
        usize::try_from(self.integer(key)?).ok()
    }

    fn float(self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_float()
    }

    fn flag(self, key: &str) -> Option<bool> {
        self.0.get(key)?.as_bool()
    }

    fn text(self, key: &str) -> Option<String> {
        Some(self.0.get(key)?.as_text()?.to_string())
    }

    fn sizes(self, key: &str) -> Option<Vec<usize>> {
        let elements = self.0.get(key)?.elements();
        Some(elements.iter().filter_map(|node| usize::try_from(node.as_integer()?).ok()).collect())
    }
}

fn read_model(model: Part<'_>, notices: &mut Vec<String>) -> ModelConfig {
    let pad_token_id = model.integer("pad_token_id");
    let id = |id: i64| u32::try_from(id).ok();
    let mut eos_token_ids: Vec<u32> = match model.0.get("eos_token_id") {
        None => Vec::new(),
        Some(node) => node
            .as_integer()
            .into_iter()
            .chain(node.elements().iter().filter_map(Node::as_integer))
            .filter_map(id)
            .collect(),
    };
    if let (true, Some(pad)) = (eos_token_ids.is_empty(), pad_token_id.and_then(id)) {
        notices.push(format!("model.eos_token_id names no token; pad_token_id ({pad}) ends a sequence"));
        eos_token_ids.push(pad);
    }
    if eos_token_ids.is_empty() {
        notices.push(
            "model.eos_token_id names no token, nor does pad_token_id: only lengths and stop strings end a row"
                .to_string(),
        );
    }
    let decoder = |key: &str| model.0.get(key).map(|node| read_decoder(Part(node)));
    ModelConfig {
        family: model.text("type").unwrap_or_default(),
        vocab_size: model.size("vocab_size"),
        context_length: model.size("context_length").unwrap_or_default(),
        bos_token_id: model.integer("bos_token_id"),
        pad_token_id,
        eos_token_ids,
        markers: Markers {
            tool_begin: model.integer("bot_token_id"),
            tool_end: model.integer("eot_token_id"),
            reasoning_begin: model.integer("bor_token_id"),
            reasoning_end: model.integer("eor_token_id"),
        },
        tokenizer_dir: model.text("tokenizer_dir"),
        decoder: decoder("decoder").unwrap_or_default(),
        draft: decoder("draft"),
    }
}

fn read_decoder(decoder: Part<'_>) -> DecoderConfig {
    let empty = Node { place: decoder.0.place, value: Json::Object(Vec::new()) };
    let part = |key: &str| Part(decoder.0.get(key).unwrap_or(&empty));
    let (inputs, outputs, options) = (part("inputs"), part("outputs"), part("session_options"));
    DecoderConfig {
        filename: decoder.text("filename").unwrap_or_default(),
        num_hidden_layers: decoder.size("num_hidden_layers"),
        num_key_value_heads: decoder.size("num_key_value_heads"),
        head_size: decoder.size("head_size"),
        num_attention_heads: decoder.size("num_attention_heads"),
        hidden_size: decoder.size("hidden_size"),
        names: RoleNames {
            input_ids: inputs.text("input_ids"),
            attention_mask: inputs.text("attention_mask"),
            position_ids: inputs.text("position_ids"),
            past_key_names: inputs.text("past_key_names"),
            past_value_names: inputs.text("past_value_names"),
            past_names: inputs.text("past_names"),
            past_sequence_length: inputs.text("past_sequence_length"),
            current_sequence_length: inputs.text("current_sequence_length"),
            total_sequence_length: inputs.text("total_sequence_length"),
            past_key_values_length: inputs.text("past_key_values_length"),
            logits: outputs.text("logits"),
            present_key_names: outputs.text("present_key_names"),
            present_value_names: outputs.text("present_value_names"),
            present_names: outputs.text("present_names"),
        },
        sliding_window: decoder.0.get("sliding_window").map(|node| SlidingWindow {
            window_size: Part(node).size("window_size").unwrap_or_default(),
            layers: Part(node).sizes("layers"),
            cache_slack: Part(node).size("cache_slack").unwrap_or_default(),
        }),
        threads: options.size("intra_op_num_threads").unwrap_or_default(),
        profile: options.text("enable_profiling"),
        optimization_level: options.text("graph_optimization_level"),
        log_severity: options.size("log_severity_level").unwrap_or_default(),
        providers: options
            .0
            .get("provider_options")
            .map_or(&[][..], Node::elements)
            .iter()
            .filter_map(read_provider)
            .collect(),
    }
}

fn read_provider(entry: &Node) -> Option<Provider> {
    let member = entry.members().first()?;
    let option = |member: &super::json::Member| Some((member.key.clone(), member.node.as_text()?.to_string()));
    Some(Provider { name: member.key.clone(), options: member.node.members().iter().filter_map(option).collect() })
}

fn read_search(search: Part<'_>, context_length: usize) -> SearchConfig {
    SearchConfig {
        do_sample: search.flag("do_sample").unwrap_or(false),
        min_length: search.size("min_length").unwrap_or(0),
        max_length: search.size("max_length").filter(|&length| length > 0).unwrap_or(context_length),
        repetition_penalty: search.float("repetition_penalty").unwrap_or(1.0),
        top_k: search.size("top_k").unwrap_or(50),
        top_p: search.float("top_p").unwrap_or(0.0),
        temperature: search.float("temperature").unwrap_or(1.0),
        no_repeat_ngram_size: search.size("no_repeat_ngram_size").unwrap_or(0),
        random_seed: search.integer("random_seed").and_then(|seed| u64::try_from(seed).ok()),
        chunk_size: search.size("chunk_size"),
        num_beams: search.size("num_beams").unwrap_or(1),
        num_return_sequences: search.size("num_return_sequences").unwrap_or(1),
        length_penalty: search.float("length_penalty").unwrap_or(1.0),
        early_stopping: search.flag("early_stopping").unwrap_or(true),
        batch_size: search.size("batch_size").unwrap_or(1),
    }
}

fn read_speculative(speculative: Part<'_>) -> SpeculativeConfig {
    SpeculativeConfig {
        max_draft_tokens: speculative.size("max_draft_tokens").unwrap_or(4),
        ngram_size: speculative.size("ngram_size").unwrap_or(0),
        ngram_chained_lookup: speculative.flag("ngram_chained_lookup").unwrap_or(false),
        min_adaptive_k: speculative.size("min_adaptive_k").unwrap_or(0),
        cooldown: speculative.flag("cooldown").unwrap_or(false),
    }
}

fn read_dynamic(dynamic: Part<'_>) -> EngineConfig {
    EngineConfig::Dynamic {
        block_size: dynamic.size("block_size").unwrap_or(256),
        num_blocks: dynamic.size("num_blocks"),
        gpu_utilization_factor: dynamic.float("gpu_utilization_factor"),
        max_batch_size: dynamic.size("max_batch_size").unwrap_or(16),
        max_scheduled_tokens: dynamic.size("max_scheduled_tokens").unwrap_or(2048),
        prefix_caching: dynamic.flag("prefix_caching").unwrap_or(false),
    }
}

fn read_tuning(tuning: Part<'_>) -> TuningConfig {
    TuningConfig {
        length_buckets: tuning.sizes("length_buckets"),
        row_buckets: tuning.sizes("row_buckets"),
        chunk: tuning.size("chunk"),
        kv_capacity_buckets: tuning.sizes("kv_capacity_buckets"),
        kv_page: tuning.size("kv_page"),
        on_miss: tuning.text("on_miss"),
        graph_budget_mb: tuning.size("graph_budget_mb"),
        prefill_share: tuning.float("prefill_share"),
        activations: tuning.text("activations"),
        prepares_programs: tuning.flag("prepares_programs"),
    }
}
