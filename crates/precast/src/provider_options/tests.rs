//! Options as people write them.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use precast_cache::Mode;
use precast_session::BucketPolicy;

use super::*;

fn pairs(options: &[(&str, &str)]) -> Vec<(String, String)> {
    options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn read(options: &[(&str, &str)]) -> Result<ProviderOptions, Vec<String>> {
    ProviderOptions::read(&OptionSources { given: pairs(options), ..OptionSources::default() })
}

fn problem(options: &[(&str, &str)]) -> String {
    read(options).err().unwrap().join("\n")
}

#[test]
fn all_problems_are_told_at_once_with_the_nearest_name() {
    let problems = read(&[("devise", "cpu"), ("threads", "0"), ("migraphx_fp16_enabel", "1")]).err().unwrap();
    assert_eq!(
        problems,
        [
            "'devise=cpu': there is no such option. Did you mean 'device'?",
            "'migraphx_fp16_enabel=1': there is no such option. Did you mean 'migraphx_fp16_enable'?",
            "'threads=0': a number above 0 is expected",
        ]
    );
}

#[test]
fn flags_are_read_in_every_usual_way() {
    for (text, is_on) in [("1", true), ("true", true), ("On", true), ("0", false), ("False", false), ("off", false)] {
        assert_eq!(read(&[("strict", text)]).unwrap().is_strict, is_on);
    }
    assert_eq!(problem(&[("strict", "yes")]), "'strict=yes': 0 or 1 is expected, or true, false, on or off");
}

#[test]
fn aliases_are_announced_and_contradictions_refused() {
    let options = read(&[("migraphx_model_cache_dir", "/c"), ("force_recompile", "1")]).unwrap();
    assert_eq!((options.cache.mode, options.cache.root), (Mode::Refresh, "/c".into()));
    assert_eq!(options.notices[0], "'migraphx_model_cache_dir=/c' is read as 'cache.dir=/c'");
    assert_eq!(
        problem(&[("migraphx_fp16_enable", "1"), ("migraphx_bf16_enable", "1")]).lines().next().unwrap(),
        "'migraphx_fp16_enable=1' and 'migraphx_bf16_enable=1' contradict each other (precision.float)"
    );
    assert!(problem(&[("disable_caching", "1"), ("force_recompile", "1")]).contains("contradict each other"));
    assert!(read(&[("fp16_enable", "0"), ("migraphx_fp16_enable", "0")]).is_ok());
}

#[test]
fn a_cache_without_a_folder_is_none_and_a_mode_without_one_is_refused() {
    assert_eq!(read(&[]).unwrap().cache.mode, Mode::Off);
    assert_eq!(read(&[("cache_dir", "")]).unwrap().cache.mode, Mode::Off);
    assert!(problem(&[("cache.mode", "rw")]).contains("cache.dir is needed"));
    let sources = OptionSources { cache_folder: Some("/user".into()), ..OptionSources::default() };
    let options = ProviderOptions::read(&sources).unwrap();
    assert_eq!((options.cache.mode, options.cache.root), (Mode::ReadWrite, "/user".into()));
}

#[test]
fn batches_are_buckets() {
    let buckets = |options: &[(&str, &str)]| read(options).unwrap().open.buckets;
    assert_eq!(buckets(&[("migraphx_max_dynamic_batch", "8")]), BucketPolicy::PowersOfTwo { max: 8 });
    assert_eq!(buckets(&[("migraphx_max_dynamic_batch", "0")]), BucketPolicy::Exact);
    let both = [("migraphx_compile_batches", "4,1"), ("max_dynamic_batch", "6")];
    assert_eq!(buckets(&both), BucketPolicy::List(vec![1, 4, 6]));
    let counted = [("max_compiled_models", "4"), ("max_dynamic_batch", "16")];
    assert_eq!(buckets(&counted), BucketPolicy::List(vec![4, 8, 12, 16]));
    assert!(problem(&[("migraphx_compile_batches", "1,x")]).contains("a size above 0 is expected"));
    assert!(problem(&[("max_compiled_models", "4")]).contains("needs max_dynamic_batch"));
    assert!(problem(&[("migraphx_dynamic_dimension_index", "1")]).contains("together or not at all"));
    assert!(read(&[("migraphx_dynamic_dimension_index", "-1"), ("migraphx_max_dynamic_dim_size", "0")]).is_ok());
}

#[test]
fn what_has_no_equivalent_says_why() {
    for option in ["user_compute_stream", "migraphx_external_alloc", "static_pad_seq_len", "profile", "model_arch"] {
        assert!(read(&[(option, "1")]).is_err(), "{option}");
    }
    for option in ["migraphx_int8_enable", "migraphx_fp8_enable", "migraphx_save_compiled_model", "dump_subgraphs"] {
        assert!(read(&[(option, "1")]).is_err(), "{option}");
        assert!(read(&[(option, "0")]).is_ok(), "{option}");
    }
}

#[test]
fn variables_count_only_when_asked_for_and_then_win() {
    let read = |is_asked: &str| {
        let given = pairs(&[("compat.env", is_asked), ("buckets.max", "2")]);
        let environment = pairs(&[("MAX_DYNAMIC_BATCH", "8")]);
        ProviderOptions::read(&OptionSources { given, environment, cache_folder: None }).unwrap().open.buckets
    };
    assert_eq!(read("0"), BucketPolicy::PowersOfTwo { max: 2 });
    assert_eq!(read("true"), BucketPolicy::PowersOfTwo { max: 8 });
}

#[test]
fn numbers_of_devices_are_those_of_amd() {
    assert_eq!(read(&[("device_id", "1")]).unwrap().open.runner.device.to_string(), "hip:1");
    let options = read(&[("device", "ROCMExecutionProvider")]).unwrap();
    assert_eq!(options.notices, ["'ROCMExecutionProvider' is read as 'hip:0'"]);
    assert!(problem(&[("device", "cpi")]).contains("Did you mean 'cpu'?"));
}

#[test]
fn sizes_and_times_are_read() {
    let options = read(&[("memory.limit", "2GiB"), ("on_miss.timeout", "0.5"), ("contexts.wait", "block:10")]).unwrap();
    assert_eq!(options.open.session.memory_limit, Some(2 << 30));
    assert_eq!(options.open.session.on_miss_timeout, Some(std::time::Duration::from_millis(500)));
    assert!(problem(&[("memory.limit", "2GB")]).contains("KiB, MiB or GiB"));
    assert!(problem(&[("contexts.wait", "10")]).contains("block:MILLISECONDS"));
}
