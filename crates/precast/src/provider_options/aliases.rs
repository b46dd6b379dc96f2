//! What options of AMD's two providers for ONNX Runtime, and the variables of the older one, mean in our names. One row
//! an alias; an alias without an equivalent says why there is none.

use super::Written;
use super::settings::read_flag;

/// An option in our name with its value, if the alias says anything.
type Read = Result<Option<(&'static str, String)>, String>;

/// What an alias is read as.
enum Meaning {
    /// The option of this name, with the same value.
    Same(&'static str),
    /// The option of this name with one value for 1 and another for 0, where none means that nothing is said.
    Flag(&'static str, &'static str, Option<&'static str>),
    /// What a function makes of the value.
    Made(fn(&str) -> Read),
    /// Nothing here.
    Refused(&'static str),
}

use Meaning::{Flag, Made, Refused, Same};

/// An alias: its name without `migraphx_`, where it exists, and what it is read as.
struct Alias {
    name: &'static str,
    places: &'static [Place],
    meaning: Meaning,
}

/// Where an alias is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// As an option with `migraphx_` before it.
    Prefixed,
    /// As an option by itself.
    Bare,
    /// As a variable, in capitals.
    Variable,
}

use Place::{Bare, Prefixed, Variable};

const ALL: &[Place] = &[Prefixed, Bare, Variable];
const NO_STREAM: &str = "tensors are the host's memory, so there is no stream to join";
const NO_TABLE: &str = "calibration tables are not read; precision.weights=int8 quantises weights without one";
const NO_EFFECT: &str = "it has no equivalent here, and would have no effect";
const NO_ASSERTED_PAD: &str =
    "dims are padded only where that is proved to change nothing; give the dim Buckets (buckets.<dim>)";
const NO_FILES: &str = "compiled models are files of ONNX Runtime's own: ep.context_enable";
const NO_ALLOCATOR: &str = "tensors are the host's memory; the provider has no allocator to replace";

const ALIASES: &[Alias] = &[
    Alias { name: "device_id", places: &[Bare], meaning: Made(device_of_number) },
    Alias { name: "compile_target", places: &[Variable], meaning: Same("target") },
    Alias { name: "user_compute_stream", places: &[Bare], meaning: Refused(NO_STREAM) },
    Alias { name: "has_user_compute_stream", places: &[Bare], meaning: Made(no_stream) },
    Alias { name: "fp16_enable", places: ALL, meaning: Flag("precision.float", "f16", None) },
    Alias { name: "bf16_enable", places: ALL, meaning: Flag("precision.float", "bf16", None) },
    Alias { name: "int8_enable", places: ALL, meaning: Flag("precision.quant", "int8", None) },
    Alias { name: "fp8_enable", places: ALL, meaning: Flag("precision.quant", "fp8", None) },
    Alias { name: "int8_calibration_table_name", places: ALL, meaning: Made(no_table) },
    Alias { name: "int8_use_native_calibration_table", places: ALL, meaning: Made(no_native_table) },
    Alias { name: "cache_path", places: &[Variable], meaning: Refused(NO_TABLE) },
    Alias { name: "exhaustive_tune", places: ALL, meaning: Flag("tune", "full", Some("off")) },
    Alias { name: "compute_mode", places: &[Bare, Variable], meaning: Made(effort) },
    Alias { name: "problem_cache", places: &[Variable], meaning: Refused("tables of other compilers are not read") },
    Alias { name: "mem_limit", places: &[Prefixed], meaning: Same("memory.limit") },
    Alias { name: "arena_extend_strategy", places: &[Prefixed], meaning: Made(extend) },
    Alias { name: "external_alloc", places: &[Prefixed], meaning: Refused(NO_ALLOCATOR) },
    Alias { name: "external_free", places: &[Prefixed], meaning: Refused(NO_ALLOCATOR) },
    Alias { name: "external_empty_cache", places: &[Prefixed], meaning: Refused(NO_ALLOCATOR) },
    Alias { name: "model_cache_dir", places: &[Prefixed], meaning: Made(cache_folder) },
    Alias { name: "model_cache_path", places: &[Variable], meaning: Made(cache_folder) },
    Alias { name: "cache_dir", places: &[Bare, Variable], meaning: Made(cache_folder) },
    Alias { name: "disable_caching", places: &[Bare], meaning: Flag("cache.mode", "off", None) },
    Alias { name: "disable_compiled_model_caching", places: &[Variable], meaning: Flag("cache.mode", "off", None) },
    Alias { name: "force_recompile", places: &[Bare, Variable], meaning: Flag("cache.mode", "refresh", None) },
    Alias { name: "max_dynamic_batch", places: ALL, meaning: Made(batch_max) },
    Alias { name: "compile_batches", places: ALL, meaning: Made(batch_list) },
    Alias { name: "dynamic_dimension_index", places: &[Prefixed, Variable], meaning: Made(axis_index) },
    Alias { name: "max_dynamic_dim_size", places: &[Prefixed, Variable], meaning: Made(axis_max) },
    Alias { name: "max_compiled_models", places: &[Bare], meaning: Same("buckets.count") },
    Alias { name: "static_pad_seq", places: &[Bare, Variable], meaning: Made(no_static_pad) },
    Alias { name: "static_pad_seq_len", places: &[Bare, Variable], meaning: Refused(NO_ASSERTED_PAD) },
    Alias { name: "static_pad_inputs", places: &[Bare, Variable], meaning: Refused(NO_ASSERTED_PAD) },
    Alias { name: "static_pad_outputs", places: &[Bare, Variable], meaning: Refused(NO_ASSERTED_PAD) },
    Alias { name: "allow_cross_batch_ops", places: &[Variable], meaning: Made(no_static_pad) },
    Alias { name: "hip_graph_enable", places: ALL, meaning: Flag("capture", "on", Some("off")) },
    Alias { name: "coalesce_io", places: &[Bare, Variable], meaning: Flag("io.coalesce", "on", Some("off")) },
    Alias { name: "borrow_outputs", places: &[Variable], meaning: Flag("outputs", "lease", Some("caller")) },
    Alias {
        name: "cpu_control_flow",
        places: &[Bare, Variable],
        meaning: Flag("placement.control_flow", "host", Some("device")),
    },
    Alias { name: "save_compiled_model", places: &[Prefixed, Variable], meaning: Made(no_files) },
    Alias { name: "save_compiled_path", places: &[Prefixed, Variable], meaning: Refused(NO_FILES) },
    Alias { name: "load_compiled_model", places: &[Prefixed, Variable], meaning: Made(no_files) },
    Alias { name: "load_compiled_path", places: &[Prefixed, Variable], meaning: Refused(NO_FILES) },
    Alias { name: "dump_ep_context_model", places: &[Variable], meaning: Flag("context.enable", "1", Some("0")) },
    Alias { name: "dump_subgraphs", places: &[Bare, Variable], meaning: Flag("debug.dump", "graphs", None) },
    Alias { name: "dump_model_ops", places: &[Variable], meaning: Flag("debug.dump", "ops", None) },
    Alias { name: "mlss_use_specific_ops", places: &[Bare, Variable], meaning: Refused(NO_EFFECT) },
    Alias { name: "model_arch", places: &[Bare, Variable], meaning: Refused(NO_EFFECT) },
    Alias { name: "model_fw", places: &[Bare], meaning: Refused(NO_EFFECT) },
    Alias { name: "profile", places: &[Bare], meaning: Refused(NO_EFFECT) },
    Alias { name: "legacy_compute_sync", places: &[Variable], meaning: Refused(NO_EFFECT) },
    Alias { name: "force_zero_all_outputs", places: &[Variable], meaning: Refused(NO_EFFECT) },
    Alias { name: "batch_shape_profile", places: &[Variable], meaning: Refused(NO_EFFECT) },
];

/// The alias that an option is.
pub(super) fn by_option(name: &str) -> Option<usize> {
    let (name, place) = name.strip_prefix("migraphx_").map_or((name, Bare), |rest| (rest, Prefixed));
    ALIASES.iter().position(|alias| alias.name == name && alias.places.contains(&place))
}

/// The alias that a variable is, without `ORT_MIGRAPHX_`.
pub(super) fn by_variable(name: &str) -> Option<usize> {
    let name = name.to_ascii_lowercase();
    ALIASES.iter().position(|alias| alias.name == name && alias.places.contains(&Variable))
}

/// Every name that an option may have as an alias.
pub(super) fn option_names() -> impl Iterator<Item = String> {
    ALIASES.iter().flat_map(|alias| {
        alias.places.iter().filter_map(|place| match place {
            Prefixed => Some(format!("migraphx_{}", alias.name)),
            Bare => Some(alias.name.to_string()),
            Variable => None,
        })
    })
}

/// Options in our names. What is no alias keeps its name.
pub(super) fn translate(
    written: &[(String, String)],
    find: fn(&str) -> Option<usize>,
    problems: &mut Vec<String>,
) -> Vec<(String, Written)> {
    let mut options = Vec::new();
    for (name, value) in written {
        let source = format!("{name}={value}");
        let read = match find(name) {
            None => Ok(Some((name.as_str(), value.clone()))),
            Some(alias) => read_alias(&ALIASES[alias].meaning, value),
        };
        match read {
            Ok(Some((name, value))) => options.push((name.to_string(), Written { value, source })),
            Ok(None) => {}
            Err(problem) => problems.push(format!("'{source}': {problem}")),
        }
    }
    options
}

fn read_alias(meaning: &Meaning, value: &str) -> Read {
    match meaning {
        Same(name) => Ok(Some((*name, value.to_string()))),
        Flag(name, on, off) => {
            let value = if read_flag(value)? { Some(*on) } else { *off };
            Ok(value.map(|value| (*name, value.to_string())))
        }
        Made(make) => make(value),
        Refused(reason) => Err((*reason).to_string()),
    }
}

fn number(value: &str) -> Result<i64, String> {
    value.trim().parse().map_err(|_| format!("'{value}' is no number"))
}

/// Numbers of AMD's devices are AMD's.
fn device_of_number(value: &str) -> Read {
    let number = usize::try_from(number(value)?).map_err(|_| format!("there is no device {value}"))?;
    Ok(Some(("device", format!("hip:{number}"))))
}

fn refuse_unless_off(value: &str, reason: &str) -> Read {
    if read_flag(value)? { Err(reason.to_string()) } else { Ok(None) }
}

fn no_stream(value: &str) -> Read {
    refuse_unless_off(value, NO_STREAM)
}

fn no_native_table(value: &str) -> Read {
    refuse_unless_off(value, NO_TABLE)
}

fn no_static_pad(value: &str) -> Read {
    refuse_unless_off(value, NO_ASSERTED_PAD)
}

fn no_files(value: &str) -> Read {
    refuse_unless_off(value, NO_FILES)
}

/// An empty name is what upstream has where there is no table.
fn no_table(value: &str) -> Read {
    if value.is_empty() { Ok(None) } else { Err(NO_TABLE.to_string()) }
}

fn effort(value: &str) -> Read {
    let effort = match value {
        "eager" | "0" => "eager",
        "balanced" | "50" => "balanced",
        "maximum" | "100" => "maximum",
        _ => return Err("eager, balanced or maximum is expected, or 0, 50 or 100".to_string()),
    };
    Ok(Some(("compile.effort", effort.to_string())))
}

/// The strategies by name, and by the numbers that upstream writes for them.
fn extend(value: &str) -> Read {
    let strategy = match value {
        "kSameAsRequested" | "1" => "exact",
        "kNextPowerOfTwo" | "0" => "pow2",
        _ => return Err("kSameAsRequested or kNextPowerOfTwo is expected".to_string()),
    };
    Ok(Some(("memory.extend", strategy.to_string())))
}

/// A cache in no folder is none.
fn cache_folder(value: &str) -> Read {
    match value {
        "" => Ok(Some(("cache.mode", "off".to_string()))),
        folder => Ok(Some(("cache.dir", folder.to_string()))),
    }
}

fn batch_max(value: &str) -> Read {
    match number(value)? {
        0 => Ok(None),
        max @ 1.. => Ok(Some(("buckets.max", max.to_string()))),
        _ => Err("a number of rows is expected".to_string()),
    }
}

fn batch_list(value: &str) -> Read {
    if value.trim().is_empty() {
        return Ok(None);
    }
    Ok(Some(("buckets.list", value.to_string())))
}

fn axis_index(value: &str) -> Read {
    match number(value)? {
        -1 => Ok(None),
        axis @ 0.. => Ok(Some(("buckets.axis", axis.to_string()))),
        _ => Err("the number of an axis is expected, or -1 for none".to_string()),
    }
}

fn axis_max(value: &str) -> Read {
    match number(value)? {
        0 => Ok(None),
        size @ 1.. => Ok(Some(("buckets.axis_max", size.to_string()))),
        _ => Err("a size is expected, or 0 for none".to_string()),
    }
}
