//! One test a rule: what is refused and how it is said, what is accepted, and what a configuration means.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use super::*;
use crate::engine::EngineOptions;

/// A device table of three words.
fn device_of(name: &str) -> Result<NamedDevice, String> {
    let kind = match name.to_ascii_lowercase().as_str() {
        "cpu" => "cpu",
        "cuda" => "cuda",
        "amdgpu" => "hip",
        _ => return Err("is no device".to_string()),
    };
    Ok(NamedDevice { kind: kind.to_string(), is_host: kind == "cpu" })
}

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_string(), text: text.to_string() }
}

fn parse_with(text: &str, overlays: &[&str]) -> Result<GenerationConfig, ConfigError> {
    let overlay = |(position, text): (usize, &&str)| source(&format!("overlay{position}"), text);
    parse(source("c", text), overlays.iter().enumerate().map(overlay).collect(), None, &device_of)
}

/// A configuration with something in `model`, in `model.decoder` and in the root.
fn with(model: &str, decoder: &str, root: &str) -> String {
    format!(
        r#"{{"model":{{"context_length":512,"eos_token_id":1,"decoder":{{"filename":"m.onnx"{decoder}}}{model}}}{root}}}"#
    )
}

fn faults(text: &str) -> Vec<String> {
    parse_with(text, &[]).unwrap_err().lines
}

/// The messages without their places.
fn messages(text: &str) -> Vec<String> {
    faults(text).iter().map(|line| line.split_once(": ").unwrap().1.to_string()).collect()
}

#[test]
fn defaults_are_those_of_the_convention() {
    let config = parse_with(&with("", "", ""), &[]).unwrap();
    assert_eq!(config.search.max_length, 512);
    assert_eq!((config.search.top_k, config.search.top_p, config.search.random_seed), (50, 0.0, None));
    assert!(config.search.early_stopping);
    assert_eq!(config.speculative.max_draft_tokens, 4);
    let EngineConfig::Dynamic { block_size, max_batch_size, max_scheduled_tokens, .. } = config.engine else {
        panic!("dynamic batching is the default")
    };
    assert_eq!((block_size, max_batch_size, max_scheduled_tokens), (256, 16, 2048));
    assert!(config.notices.is_empty());
}

#[test]
fn defect_18_unknown_keys_are_errors_at_every_level() {
    assert_eq!(
        faults("{\n\"model\":{\"context_length\":5,\"decoder\":{\"filename\":\"m\"}},\n  \"serch\":1}"),
        ["c:3:3: serch is not a key of the root; did you mean 'search'?"]
    );
    assert_eq!(
        messages(&with("", r#","inputs":{"input-ids":"x"}"#, "")),
        ["model.decoder.inputs.input-ids is not a key of model.decoder.inputs; did you mean 'input_ids'?"]
    );
    assert_eq!(
        messages(&with(r#","max_length":5"#, "", "")),
        ["model.max_length is not a key of model; there is such a key in search"]
    );
    assert_eq!(messages(&with("", "", r#","zzzzzz":1"#)), ["zzzzzz is not a key of the root"]);
}

#[test]
fn defect_18_duplicates_escapes_and_both_batchings() {
    let twice = with("", "", r#","search":{"top_k":1,"top_k":2}"#);
    assert_eq!(messages(&twice), ["search.top_k is written twice in one object"]);
    let escaped = parse_with(&with(r#","type":"\u006clama""#, "", ""), &[]).unwrap();
    assert_eq!(escaped.model.family, "llama");
    let escaped_key = with("", "", r#","se\u0061rch":{"top_k":3}"#);
    assert_eq!(parse_with(&escaped_key, &[]).unwrap().search.top_k, 3);
    let both = with("", "", r#","engine":{"dynamic_batching":{},"static_batching":{}}"#);
    assert_eq!(messages(&both), ["engine.static_batching and engine.dynamic_batching exclude one another"]);
}

#[test]
fn types_and_bounds_are_checked() {
    let search = |text: &str| messages(&with("", "", &format!(r#","search":{{{text}}}"#)));
    assert_eq!(search(r#""top_k":1.5"#), ["search.top_k is 1.5; an integer was expected"]);
    assert_eq!(search(r#""top_k":-1"#), ["search.top_k is -1; 0 or more was expected"]);
    assert_eq!(search(r#""do_sample":1"#), ["search.do_sample is 1; true or false was expected"]);
    assert_eq!(search(r#""top_p":1.5"#), ["search.top_p is 1.5; 0 or more and at most 1 was expected"]);
    assert_eq!(search(r#""repetition_penalty":0"#), ["search.repetition_penalty is 0; more than 0 was expected"]);
    assert_eq!(search(r#""num_beams":33"#), ["search.num_beams is 33; 1 to 32 was expected"]);
    assert_eq!(
        search(r#""num_return_sequences":2"#),
        ["search.num_return_sequences is 2; at most num_beams (1) was expected"]
    );
    assert_eq!(
        search(r#""num_beams":2,"do_sample":true"#),
        ["search.num_beams and search.do_sample exclude one another"]
    );
    assert_eq!(
        search(r#""diversity_penalty":1"#),
        ["search.diversity_penalty must be 0: diverse beam search is not supported"]
    );
    assert!(
        parse_with(&with("", "", r#","search":{"top_k":2.0,"do_sample":true,"num_return_sequences":3}"#), &[]).is_ok()
    );
    assert_eq!(messages(&with(r#","eos_token_id":[1,"x"]"#, "", "")).len(), 2);
}

#[test]
fn what_is_not_supported_says_so() {
    assert_eq!(
        messages(&with(r#","vision":{"anything":1}"#, "", "")),
        ["model.vision is not supported: text decoders only"]
    );
    assert_eq!(messages(&with("", r#","pipeline":[]"#, "")), ["model.decoder.pipeline is known but not supported yet"]);
    assert_eq!(
        messages(&with("", r#","session_options":{"custom_ops_library":"x.so"}"#, "")),
        [
            "model.decoder.session_options.custom_ops_library is not supported: no native code is ever loaded from a model folder"
        ]
    );
    assert_eq!(
        messages(&with("", r#","layer_types":["full_attention","conv"]"#, "")),
        ["model.decoder.layer_types has 'conv'; only 'full_attention' is supported yet"]
    );
    assert_eq!(
        messages(&with("", r#","sliding_window":{"window_size":16,"slide_inputs":false}"#, "")),
        [
            "model.decoder.sliding_window.slide_key_value_cache is true, which is also its default, and not supported: set it to false"
        ]
    );
}

#[test]
fn all_faults_come_in_one_report_in_the_order_of_the_file() {
    let text = "{\n \"modl\": 1,\n \"search\": {\"top_k\": \"x\", \"beams\": 2},\n \"runtime_profiles\": []\n}";
    assert_eq!(
        faults(text),
        [
            "c:1:1: model is missing",
            "c:2:2: modl is not a key of the root; did you mean 'model'?",
            "c:3:22: search.top_k is 'x'; an integer was expected",
            "c:3:27: search.beams is not a key of search",
            "c:4:2: runtime_profiles is not supported: overlays that depend on memory are not applied: give the overlay you mean",
        ]
    );
}

#[test]
fn overlays_change_delete_and_are_named() {
    let text = with("", "", r#","search":{"top_k":1,"top_p":0.5}"#);
    let config = parse_with(&text, &[r#"{"search":{"top_k":null,"top_p":0.25}}"#]).unwrap();
    assert_eq!((config.search.top_k, config.search.top_p), (50, 0.25));
    let error = parse_with(&text, &["{}", "{\n\"search\":{\"topk\":1}}"]).unwrap_err();
    assert_eq!(error.lines, ["overlay1:2:11: search.topk is not a key of search; did you mean 'top_k'?"]);
    let error = parse_with(&text, &[r#"{"search":{"top_k":1,"top_k":2}}"#]).unwrap_err();
    assert_eq!(error.lines, ["overlay0:1:22: search.top_k is written twice in one object"]);
}

#[test]
fn parts_for_the_engine_become_its_options() {
    let options = |engine: &str, tuning: &str| {
        let text = with("", "", &format!(r#","speculative":{{"ngram_size":3,"cooldown":true}},"engine":{engine}"#));
        let tuning = Some(source(TUNING_FILE, tuning));
        let config = parse(source("c", &text), Vec::new(), tuning, &device_of).unwrap();
        assert_eq!(config.notices, [""; 0]);
        EngineOptions::from_config(&config, Some(1 << 20))
    };
    let dynamic = options(
        r#"{"dynamic_batching":{"block_size":16,"gpu_utilization_factor":0.5,"max_batch_size":8,
            "max_scheduled_tokens":64,"prefix_caching":true}}"#,
        r#"{"prefill_share":0.5}"#,
    );
    assert_eq!((dynamic.page_tokens, dynamic.kv_bytes_max, dynamic.rows_max), (16, Some(1 << 19), 8));
    assert_eq!((dynamic.speculation.ngram_size, dynamic.speculation.cooldown), (3, true));
    let limits = dynamic.limits(512, 1024, 128).unwrap();
    assert_eq!((limits.pages, limits.tokens_max, limits.prefill_min, limits.prefill_max), (32, 64, 32, 64));
    assert_eq!((limits.length_max, limits.prefix_caching, limits.admitted_max), (512, true, usize::MAX));
    let fixed = options(r#"{"static_batching":{"max_batch_size":3}}"#, r#"{"kv_page":100,"prepares_programs":true}"#);
    assert!(fixed.prepares_programs && !dynamic.prepares_programs);
    let limits = fixed.limits(512, 1024, 128).unwrap();
    assert_eq!((limits.page_tokens, limits.pages, limits.rows_max, limits.admitted_max), (100, 18, 3, 3));
    assert!(dynamic.limits(512, 1 << 20, 128).unwrap_err().contains("room for none"));
}

#[test]
fn settings_of_other_runtimes_are_accepted_with_one_notice() {
    let options = r#","session_options":{"log_id":"x","session.use_x":"0"},"run_options":{"memory.y":""}"#;
    let config = parse_with(&with("", options, r#","search":{"past_present_share_buffer":true}"#), &[]).unwrap();
    assert_eq!(
        config.notices,
        ["accepted without effect: model.decoder.run_options.memory.y, model.decoder.session_options.log_id, \
          model.decoder.session_options.session.use_x, search.past_present_share_buffer"]
    );
    let unknown = with("", r#","run_options":{"memry.y":""}"#, "");
    assert_eq!(messages(&unknown), ["model.decoder.run_options.memry.y is not a key of model.decoder.run_options"]);
}

#[test]
fn devices_and_their_options_are_checked() {
    let providers = |text: &str| with("", &format!(r#","session_options":{{"provider_options":{text}}}"#), "");
    let config =
        parse_with(&providers(r#"[{"AMDGPU":{"device_id":"1","migraphx_fp16_enable":"1"}},{"cpu":{}}]"#), &[]).unwrap();
    let device = Provider {
        name: "AMDGPU".to_string(),
        options: vec![("device_id".into(), "1".into()), ("migraphx_fp16_enable".into(), "1".into())],
    };
    assert_eq!(config.model.decoder.providers[0], device);
    let path = "model.decoder.session_options.provider_options";
    assert_eq!(messages(&providers(r#"[{"typewriter":{}}]"#)), [format!("{path}[0].typewriter is no device")]);
    assert_eq!(
        messages(&providers(r#"[{"cuda":{"devise_id":"1"}}]"#)),
        [format!("{path}[0].cuda.devise_id is no option of cuda devices; did you mean 'device_id'?")]
    );
    assert_eq!(
        messages(&providers(r#"[{"cpu":{}},{"cuda":{}}]"#)),
        [format!("{path}[1].cuda is a second device; the first entry is the device of the model")]
    );
}

#[test]
fn options_of_devices_hold_numbers_and_flags() {
    let providers = |text: &str| with("", &format!(r#","session_options":{{"provider_options":[{{{text}}}]}}"#), "");
    let first = |text: &str| parse_with(&providers(text), &[]).unwrap().model.decoder.providers.remove(0);
    let provider = first(r#""cuda":{"device_id":"2","enable_cuda_graph":"0"}"#);
    assert_eq!((provider.device_id(), provider.captures()), (Some(2), Some(false)));
    assert_eq!(first(r#""cuda":{"enable_graph_capture":"True"}"#).captures(), Some(true));
    assert_eq!(first(r#""cpu":{}"#).captures(), None);
    let path = "model.decoder.session_options.provider_options[0].cuda";
    let refused = [
        (r#""device_id":"first""#, "device_id is 'first'; the number of a device was expected"),
        (r#""enableGraphCapture":"maybe""#, "enableGraphCapture is 'maybe'; '0' or '1' was expected"),
        (
            r#""enable_cuda_graph":"1","enable_graph_capture":"0""#,
            "enable_cuda_graph and enable_graph_capture contradict one another",
        ),
        (r#""device_id":"1","device_id":"1""#, "device_id is written twice in one object"),
    ];
    for (options, message) in refused {
        assert_eq!(messages(&providers(&format!(r#""cuda":{{{options}}}"#))), [format!("{path}.{message}")]);
    }
}

#[test]
fn integers_of_lists_have_bounds() {
    let tuning = |text: &str| {
        let tuning = Some(source(TUNING_FILE, text));
        parse(source("c", &with("", "", "")), Vec::new(), tuning, &device_of).unwrap_err().lines
    };
    assert_eq!(
        tuning(r#"{"length_buckets":[1,-8,0],"row_buckets":4}"#),
        [
            "precast.json:1:22: length_buckets[1] is -8; 1 or more was expected",
            "precast.json:1:25: length_buckets[2] is 0; 1 or more was expected",
            "precast.json:1:42: row_buckets is 4; a list of integers was expected",
        ]
    );
    let window =
        r#","sliding_window":{"window_size":4,"slide_inputs":false,"slide_key_value_cache":false,"layers":[-1]}"#;
    assert_eq!(
        messages(&with("", window, "")),
        ["model.decoder.sliding_window.layers[0] is -1; 0 or more was expected"]
    );
}

#[test]
fn what_is_wrong_in_both_files_comes_in_one_report() {
    let tuning = Some(source(TUNING_FILE, "{"));
    let error = parse(source("c", &with("", "", r#","serch":1"#)), Vec::new(), tuning, &device_of).unwrap_err();
    assert_eq!(error.lines.len(), 2, "{error}");
}

#[test]
fn a_pad_token_that_ends_sequences_is_of_the_vocabulary() {
    let model =
        |ids: &str| format!(r#"{{"model":{{"context_length":5,"vocab_size":9,{ids}"decoder":{{"filename":"m"}}}}}}"#);
    assert_eq!(
        messages(&model(r#""pad_token_id":9,"#)),
        ["model.pad_token_id is no id of the vocabulary, and no eos_token_id ends a sequence instead"]
    );
    assert!(parse_with(&model(r#""pad_token_id":-1,"eos_token_id":[1],"#), &[]).is_ok());
    let config = parse_with(&model(""), &[]).unwrap();
    assert!(config.model.eos_token_ids.is_empty() && config.notices[0].ends_with("stop strings end a row"));
}

#[test]
fn an_empty_list_of_end_tokens_becomes_the_pad_token() {
    let text = r#"{"model":{"context_length":5,"pad_token_id":7,"eos_token_id":[],"decoder":{"filename":"m"}}}"#;
    let config = parse_with(text, &[]).unwrap();
    assert_eq!(config.model.eos_token_ids, [7]);
    assert_eq!(config.notices, ["model.eos_token_id names no token; pad_token_id (7) ends a sequence"]);
}

#[test]
fn names_of_layers_say_where_the_number_goes() {
    let text = with("", r#","inputs":{"past_key_names":"past.key"}"#, "");
    assert_eq!(
        messages(&text),
        ["model.decoder.inputs.past_key_names is 'past.key'; a name with one '%d' for the layer was expected"]
    );
}

#[test]
fn our_own_settings_are_as_strict() {
    let parse_tuning =
        |text: &str| parse(source("c", &with("", "", "")), Vec::new(), Some(source(TUNING_FILE, text)), &device_of);
    let config = parse_tuning(r#"{"length_buckets":[1,8],"chunk":64}"#).unwrap();
    assert_eq!((config.tuning.length_buckets, config.tuning.chunk), (Some(vec![1, 8]), Some(64)));
    assert_eq!(
        parse_tuning(r#"{"chunks":64}"#).unwrap_err().lines,
        ["precast.json:1:2: chunks is not a key of the root; did you mean 'chunk'?"]
    );
}

#[cfg(unix)]
#[test]
fn defect_25_every_named_file_lies_inside_the_folder() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("model");
    fs::create_dir(&root).unwrap();
    for name in ["m.onnx", "../outside.onnx"] {
        fs::write(root.join(name), "").unwrap();
    }
    std::os::unix::fs::symlink("../outside.onnx", root.join("link.onnx")).unwrap();
    let folder = Folder::open(&root).unwrap();
    let open_with = |decoder: &str, tokenizer: &str| {
        let text = format!(
            r#"{{"model":{{"context_length":5,"eos_token_id":1,"tokenizer_dir":"{tokenizer}",
                "decoder":{{"filename":"m.onnx"}},"draft":{{"filename":"{decoder}"}}}}}}"#
        );
        fs::write(root.join(CONFIG_FILE), text).unwrap();
        open(&folder, Vec::new(), &device_of).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(open_with("m.onnx", "."), Ok(()));
    let absolute = outer.path().join("outside.onnx").display().to_string();
    for (bad, reason) in
        [("../outside.onnx", "contains '..'"), (absolute.as_str(), "is absolute"), ("link.onnx", "leads out")]
    {
        assert!(open_with(bad, ".").unwrap_err().contains(reason), "{bad}");
        assert!(open_with("m.onnx", bad).unwrap_err().contains(reason), "{bad}");
    }
    assert!(open_with("none.onnx", ".").unwrap_err().starts_with("cannot read '"));
}

#[cfg(unix)]
#[test]
fn defect_25_a_link_that_leads_out_or_nowhere_is_refused_and_not_missing() {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("model");
    fs::create_dir(&root).unwrap();
    fs::write(outer.path().join("outside.json"), "{}").unwrap();
    fs::write(root.join("m.onnx"), "").unwrap();
    fs::write(root.join(CONFIG_FILE), with("", "", "")).unwrap();
    let folder = Folder::open(&root).unwrap();
    assert!(open(&folder, Vec::new(), &device_of).is_ok());
    for (target, reason) in [("../outside.json", "leads out"), ("nowhere.json", "cannot read '")] {
        std::os::unix::fs::symlink(target, root.join(TUNING_FILE)).unwrap();
        let error = open(&folder, Vec::new(), &device_of).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        fs::remove_file(root.join(TUNING_FILE)).unwrap();
    }
    assert!(!folder.has("tokenizer.json").unwrap());
}

#[test]
fn numbered_files_are_new_and_inside_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::open(root.path()).unwrap();
    let name = |beginning: &str| {
        Ok::<_, String>(
            folder.create_numbered(beginning).map_err(|error| error.to_string())?.0.file_name().unwrap().to_owned(),
        )
    };
    assert_eq!((name("t").unwrap(), name("t").unwrap()), ("t_0.json".into(), "t_1.json".into()));
    for outside in ["../t", "/t", "", "none/t"] {
        assert!(name(outside).is_err(), "{outside}");
    }
}

#[test]
fn a_folder_of_transformers_needs_no_configuration_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("onnx")).unwrap();
    fs::write(root.path().join("onnx/model.onnx"), "").unwrap();
    let text = r#"{"model_type":"llama","max_position_embeddings":64,"hidden_size":32,"num_attention_heads":4,
        "eos_token_id":2,"rope_scaling":null,"num_hidden_layers":3,"pad_token_id":null}"#;
    fs::write(root.path().join("config.json"), text).unwrap();
    let folder = Folder::open(root.path()).unwrap();
    let config = open(&folder, Vec::new(), &device_of).unwrap().model;
    assert_eq!((config.context_length, config.eos_token_ids, config.pad_token_id), (64, vec![2], None));
    assert_eq!((config.decoder.filename.as_str(), config.decoder.head_size), ("onnx/model.onnx", Some(8)));
    fs::write(root.path().join("second.onnx"), "").unwrap();
    let error = open(&folder, Vec::new(), &device_of).unwrap_err().to_string();
    assert!(error.ends_with("2 ONNX files instead of one: onnx/model.onnx, second.onnx"), "{error}");
}
