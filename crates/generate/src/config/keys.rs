//! Every key of `genai_config.json` and `precast.json`: what it may hold and what becomes of it. A key that is not here is
//! unknown, and an error.

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does what it says.
    Honour,
    /// Its type is checked and it has no effect; a notice says so once.
    Accept,
    /// It is refused until a later release.
    Later,
    /// It is refused, for this reason.
    Reject(&'static str),
}

/// What a key may hold.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer within these bounds.
    Integer(i64, i64),
    /// A number within these bounds.
    Number(f64, f64),
    /// A number greater than the first bound and not greater than the second.
    NumberAbove(f64, f64),
    /// A string.
    Text,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// A file or folder inside the model folder.
    Path,
    /// An integer, or a list of them.
    IntegerOrList,
    /// A list of integers of these bounds.
    Integers(i64, i64),
    /// An object with these keys.
    Object(&'static Keys),
    /// A list of objects of one key each, which names a device.
    Providers,
    /// Only the number 0; anything else is refused for this reason.
    Zero(&'static str),
    /// A list of this one string; anything else is refused until a later release.
    AllOf(&'static str),
    /// Anything: the key is refused, so it is not looked into.
    Any,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// How it is written.
    pub name: &'static str,
    /// What becomes of it.
    pub status: Status,
    /// What it may hold.
    pub kind: Kind,
}

/// The keys of one object.
#[derive(Debug)]
pub struct Keys {
    /// What errors call the object.
    pub name: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
    /// Beginnings of further keys, which hold strings and have no effect.
    pub prefixes: &'static [&'static str],
}

const ANY_INTEGER: Kind = Kind::Integer(i64::MIN, i64::MAX);
const COUNT: Kind = Kind::Integer(0, i32::MAX as i64);
const SIZE: Kind = Kind::Integer(1, i32::MAX as i64);
const COUNTS: Kind = Kind::Integers(0, i32::MAX as i64);
const SIZES: Kind = Kind::Integers(1, i32::MAX as i64);

const TEXT_ONLY: &str = "text decoders only";
const SPEECH: &str = "speech models are not supported: text decoders only";
const ENCODER_DECODER: &str = "encoder-decoder and multimodal models are not supported: text decoders only";
const RECURRENT: &str = "models with recurrent state are not supported";

const fn honour(name: &'static str, kind: Kind) -> Key {
    Key { name, status: Status::Honour, kind }
}

const fn accept(name: &'static str, kind: Kind) -> Key {
    Key { name, status: Status::Accept, kind }
}

const fn later(name: &'static str) -> Key {
    Key { name, status: Status::Later, kind: Kind::Any }
}

const fn reject(name: &'static str, reason: &'static str) -> Key {
    Key { name, status: Status::Reject(reason), kind: Kind::Any }
}

/// Settings of ONNX Runtime that folders carry and that mean nothing here.
const RUNTIME_SETTINGS: &[&str] = &["session.", "memory.", "optimization.", "ep.", "mlas."];

/// The root of `genai_config.json`.
pub static ROOT: Keys = Keys {
    name: "the root",
    prefixes: &[],
    keys: &[
        honour("model", Kind::Object(&MODEL)),
        honour("search", Kind::Object(&SEARCH)),
        honour("speculative", Kind::Object(&SPECULATIVE)),
        honour("engine", Kind::Object(&ENGINE)),
        reject("runtime_profiles", "overlays that depend on memory are not applied: give the overlay you mean"),
    ],
};

/// `search`.
pub static SEARCH: Keys = Keys {
    name: "search",
    prefixes: &[],
    keys: &[
        honour("do_sample", Kind::Bool),
        honour("min_length", COUNT),
        honour("max_length", COUNT),
        honour("repetition_penalty", Kind::NumberAbove(0.0, f64::MAX)),
        honour("top_k", COUNT),
        honour("top_p", Kind::Number(0.0, 1.0)),
        honour("temperature", Kind::Number(0.0, f64::MAX)),
        honour("no_repeat_ngram_size", COUNT),
        honour("random_seed", Kind::Integer(-1, i64::MAX)),
        honour("chunk_size", SIZE),
        honour("num_beams", Kind::Integer(1, 32)),
        honour("num_return_sequences", Kind::Integer(1, 1024)),
        honour("length_penalty", Kind::Number(f64::MIN, f64::MAX)),
        honour("early_stopping", Kind::Bool),
        honour("batch_size", SIZE),
        accept("past_present_share_buffer", Kind::Bool),
        accept("diversity_penalty", Kind::Zero("diverse beam search is not supported")),
        reject("blank_penalty", SPEECH),
        reject("audio_temperature", SPEECH),
        reject("audio_top_k", SPEECH),
        reject("audio_interleaved", SPEECH),
    ],
};

static SPECULATIVE: Keys = Keys {
    name: "speculative",
    prefixes: &[],
    keys: &[
        honour("max_draft_tokens", Kind::Integer(1, 16)),
        honour("ngram_size", Kind::Integer(0, 16)),
        honour("ngram_chained_lookup", Kind::Bool),
        honour("min_adaptive_k", Kind::Integer(0, 16)),
        honour("cooldown", Kind::Bool),
    ],
};

static ENGINE: Keys = Keys {
    name: "engine",
    prefixes: &[],
    keys: &[
        honour("dynamic_batching", Kind::Object(&DYNAMIC_BATCHING)),
        honour("static_batching", Kind::Object(&STATIC_BATCHING)),
    ],
};

static DYNAMIC_BATCHING: Keys = Keys {
    name: "engine.dynamic_batching",
    prefixes: &[],
    keys: &[
        honour("block_size", SIZE),
        honour("num_blocks", SIZE),
        honour("gpu_utilization_factor", Kind::NumberAbove(0.0, 1.0)),
        honour("max_batch_size", SIZE),
        honour("max_scheduled_tokens", SIZE),
        honour("prefix_caching", Kind::Bool),
    ],
};

static STATIC_BATCHING: Keys =
    Keys { name: "engine.static_batching", prefixes: &[], keys: &[honour("max_batch_size", SIZE)] };

static MODEL: Keys = Keys {
    name: "model",
    prefixes: &[],
    keys: &[
        honour("type", Kind::Text),
        honour("vocab_size", SIZE),
        honour("context_length", SIZE),
        honour("bos_token_id", ANY_INTEGER),
        honour("pad_token_id", ANY_INTEGER),
        honour("eos_token_id", Kind::IntegerOrList),
        honour("tokenizer_dir", Kind::Path),
        honour("bot_token_id", ANY_INTEGER),
        honour("eot_token_id", ANY_INTEGER),
        honour("bor_token_id", ANY_INTEGER),
        honour("eor_token_id", ANY_INTEGER),
        accept("sep_token_id", ANY_INTEGER),
        reject("decoder_start_token_id", ENCODER_DECODER),
        reject("image_token_id", ENCODER_DECODER),
        reject("audio_token_id", ENCODER_DECODER),
        reject("boa_token_id", ENCODER_DECODER),
        reject("video_token_id", ENCODER_DECODER),
        reject("vision_start_token_id", ENCODER_DECODER),
        reject("num_mels", SPEECH),
        reject("fft_size", SPEECH),
        reject("hop_length", SPEECH),
        reject("win_length", SPEECH),
        reject("preemph", SPEECH),
        reject("log_eps", SPEECH),
        reject("norm_eps", SPEECH),
        reject("subsampling_factor", SPEECH),
        reject("left_context", SPEECH),
        reject("conv_context", SPEECH),
        reject("pre_encode_cache_size", SPEECH),
        reject("sample_rate", SPEECH),
        reject("chunk_samples", SPEECH),
        reject("blank_id", SPEECH),
        reject("max_symbols_per_step", SPEECH),
        reject("left_context_samples", SPEECH),
        reject("right_context_samples", SPEECH),
        reject("tdt_durations", SPEECH),
        honour("decoder", Kind::Object(&DECODER)),
        honour("draft", Kind::Object(&DECODER)),
        reject("encoder", TEXT_ONLY),
        reject("embedding", TEXT_ONLY),
        reject("vision", TEXT_ONLY),
        reject("speech", TEXT_ONLY),
        reject("joiner", TEXT_ONLY),
        reject("vad", TEXT_ONLY),
        reject("mtp", TEXT_ONLY),
        reject("dflash2", TEXT_ONLY),
        reject("dspark", TEXT_ONLY),
        reject("moonshine", TEXT_ONLY),
        reject("audio_output", TEXT_ONLY),
    ],
};

static DECODER: Keys = Keys {
    name: "model.decoder",
    prefixes: &[],
    keys: &[
        honour("filename", Kind::Path),
        honour("num_hidden_layers", SIZE),
        honour("num_key_value_heads", SIZE),
        honour("head_size", SIZE),
        honour("num_attention_heads", SIZE),
        honour("hidden_size", SIZE),
        honour("inputs", Kind::Object(&INPUTS)),
        honour("outputs", Kind::Object(&OUTPUTS)),
        honour("session_options", Kind::Object(&SESSION_OPTIONS)),
        honour("run_options", Kind::Object(&RUN_OPTIONS)),
        honour("sliding_window", Kind::Object(&SLIDING_WINDOW)),
        later("pipeline"),
        later("shared_initializers"),
        honour("layer_types", Kind::AllOf("full_attention")),
        later("conv_cache_size"),
        reject("state_groups", RECURRENT),
        reject("state_update_capacity", RECURRENT),
    ],
};

static SLIDING_WINDOW: Keys = Keys {
    name: "model.decoder.sliding_window",
    prefixes: &[],
    keys: &[
        honour("window_size", SIZE),
        honour("layers", COUNTS),
        honour("cache_slack", COUNT),
        honour("slide_key_value_cache", Kind::Bool),
        honour("slide_inputs", Kind::Bool),
        accept("alignment", Kind::Text),
        accept("pad_value", ANY_INTEGER),
    ],
};

static INPUTS: Keys = Keys {
    name: "model.decoder.inputs",
    prefixes: &[],
    keys: &[
        honour("input_ids", Kind::Text),
        honour("attention_mask", Kind::Text),
        honour("position_ids", Kind::Text),
        honour("past_key_names", Kind::Text),
        honour("past_value_names", Kind::Text),
        honour("past_names", Kind::Text),
        honour("past_sequence_length", Kind::Text),
        honour("current_sequence_length", Kind::Text),
        honour("total_sequence_length", Kind::Text),
        honour("past_key_values_length", Kind::Text),
        later("cumulative_sequence_lengths"),
        later("past_sequence_lengths"),
        later("block_table"),
        later("block_table_windowed"),
        later("attention_metadata"),
        later("logits_indices"),
        later("inputs_embeds"),
        later("past_key_scale_names"),
        later("past_value_scale_names"),
        later("past_conv_names"),
        reject("cross_past_key_names", ENCODER_DECODER),
        reject("cross_past_value_names", ENCODER_DECODER),
        reject("cache_indirection", ENCODER_DECODER),
        reject("encoder_hidden_states", ENCODER_DECODER),
        reject("encoder_attention_mask", ENCODER_DECODER),
        reject("rnn_states_prev", RECURRENT),
        reject("hidden_states", TEXT_ONLY),
        reject("targets", SPEECH),
        reject("targets_length", SPEECH),
        reject("lstm_hidden_state", RECURRENT),
        reject("lstm_cell_state", RECURRENT),
        reject("per_layer_inputs", TEXT_ONLY),
        reject("past_recurrent_names", RECURRENT),
        reject("state_update_active", RECURRENT),
        reject("state_update_capture_count", RECURRENT),
    ],
};

static OUTPUTS: Keys = Keys {
    name: "model.decoder.outputs",
    prefixes: &[],
    keys: &[
        honour("logits", Kind::Text),
        honour("present_key_names", Kind::Text),
        honour("present_value_names", Kind::Text),
        honour("present_names", Kind::Text),
        later("present_key_scale_names"),
        later("present_value_scale_names"),
        later("present_conv_names"),
        later("hidden_states"),
        reject("output_cross_qk_names", ENCODER_DECODER),
        reject("rnn_states", RECURRENT),
        reject("outputs", SPEECH),
        reject("outputs_length", SPEECH),
        reject("lstm_hidden_state", RECURRENT),
        reject("lstm_cell_state", RECURRENT),
        reject("present_recurrent_names", RECURRENT),
        reject("state_update_conv_value_names", RECURRENT),
        reject("state_update_recurrent_capsule_names", RECURRENT),
    ],
};

/// Levels of optimisation as ONNX Runtime calls them.
pub const OPTIMIZATION_LEVELS: &[&str] =
    &["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"];

static SESSION_OPTIONS: Keys = Keys {
    name: "model.decoder.session_options",
    prefixes: RUNTIME_SETTINGS,
    keys: &[
        honour("intra_op_num_threads", COUNT),
        honour("log_severity_level", Kind::Integer(0, 4)),
        honour("enable_profiling", Kind::Text),
        honour("graph_optimization_level", Kind::Word(OPTIMIZATION_LEVELS)),
        honour("provider_options", Kind::Providers),
        accept("inter_op_num_threads", COUNT),
        accept("enable_cpu_mem_arena", Kind::Bool),
        accept("enable_mem_pattern", Kind::Bool),
        accept("log_id", Kind::Text),
        accept("log_verbosity_level", ANY_INTEGER),
        reject("custom_ops_library", "no native code is ever loaded from a model folder"),
    ],
};

static RUN_OPTIONS: Keys = Keys { name: "model.decoder.run_options", prefixes: RUNTIME_SETTINGS, keys: &[] };

/// The root of `precast.json`.
pub static TUNING: Keys = Keys {
    name: "the root",
    prefixes: &[],
    keys: &[
        honour("length_buckets", SIZES),
        honour("row_buckets", SIZES),
        honour("chunk", SIZE),
        honour("kv_capacity_buckets", SIZES),
        honour("kv_page", SIZE),
        honour("on_miss", Kind::Text),
        honour("graph_budget_mb", COUNT),
        honour("prefill_share", Kind::NumberAbove(0.0, 1.0)),
        honour("activations", Kind::Text),
        honour("prepares_programs", Kind::Bool),
    ],
};

/// Every object with keys, for finding a key that was written at the wrong level.
pub static OBJECTS: &[&Keys] = &[
    &ROOT,
    &MODEL,
    &SEARCH,
    &SPECULATIVE,
    &ENGINE,
    &DYNAMIC_BATCHING,
    &STATIC_BATCHING,
    &DECODER,
    &SLIDING_WINDOW,
    &INPUTS,
    &OUTPUTS,
    &SESSION_OPTIONS,
];

/// Options of devices that are honoured.
pub const PROVIDER_OPTIONS: &[&str] = &[DEVICE_ID, "enable_cuda_graph", "enable_graph_capture", "enableGraphCapture"];

/// Which device of its kind.
pub const DEVICE_ID: &str = "device_id";

/// Whether steps that run often are captured; one option, which devices call differently.
pub const CAPTURE_OPTIONS: &[&str] = &["enable_cuda_graph", "enable_graph_capture", "enableGraphCapture"];

/// Options of devices that come in a later release.
pub const PROVIDER_OPTIONS_LATER: &[&str] = &["device_filtering_options"];

/// Options of ONNX Runtime's devices that mean nothing here, one a line after the kind of device.
const KNOWN_PROVIDER_OPTIONS: &str = include_str!("provider_options.txt");

/// Whether ONNX Runtime has this option for a device of this kind.
pub fn is_known_provider_option(kind: &str, option: &str) -> bool {
    let mut lines = KNOWN_PROVIDER_OPTIONS.lines().filter_map(|line| line.split_once(' '));
    lines.any(|(listed, name)| listed == kind && name == option)
}
