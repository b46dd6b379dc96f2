//! Options in our names: which there are, what their values may be, and what each sets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use precast_cache::{CacheOptions, Mode, RemoteOptions};
use precast_passes::{FloatPrecision, WeightPrecision};
use precast_session::{BucketPolicy, ContextWait, DimOptions, Startup};

use super::aliases::option_names;
use super::{ContextOptions, ProviderOptions, Written};
use crate::device_name::resolve_device_with_notice;
use crate::open_session::OpenOptions;
use crate::suggestion::nearest;

/// Sets an option from the text of its value.
type Set = fn(&mut Draft, &str) -> Result<(), String>;

/// Options by name. A name that ends in a dot is followed by that of a dim.
const SETTINGS: &[(&str, Set)] = &[
    ("device", set_device),
    ("target", set_target),
    ("threads", |draft, value| set(&mut draft.options.open.runner.threads, count(value))),
    ("precision.float", set_float_precision),
    ("precision.quant", |_, value| match value {
        "none" => Ok(()),
        _ => Err("calibration tables are not read; precision.weights=int8 quantises weights without one".to_string()),
    }),
    ("precision.weights", set_weight_precision),
    ("precision.activations", |draft, value| {
        set(&mut draft.options.open.runner.passes.numerics.activations, parsed(value))
    }),
    ("numerics", |draft, value| {
        set(
            &mut draft.options.open.runner.passes.numerics.is_strict,
            one_of(value, &[("default", false), ("strict", true)]),
        )
    }),
    ("fast_math", |draft, value| set(&mut draft.options.open.runner.passes.numerics.fast_math, parsed(value))),
    ("tune", |draft, value| set(&mut draft.options.open.runner.tune.mode, parsed(value))),
    ("compile.effort", |_, value| only(value, "balanced", "there is one effort; tune=quick or full measures more")),
    ("compile.jobs", |draft, value| set(&mut draft.options.open.session.jobs, count(value))),
    ("memory.limit", |draft, value| set(&mut draft.options.open.session.memory_limit, bytes(value).map(Some))),
    ("memory.extend", |_, value| only(value, "exact", "outputs lie in the caller's memory, which nobody extends")),
    ("cache.dir", |draft, value| {
        draft.cache_folder = Some(PathBuf::from(value));
        Ok(())
    }),
    ("cache.mode", |draft, value| set(&mut draft.cache_mode, parsed::<Mode>(value).map(Some))),
    ("cache.max_bytes", |draft, value| set(&mut draft.options.cache.max_bytes, bytes(value))),
    ("cache.trust_shared", |draft, value| set(&mut draft.options.cache.trust_shared, read_flag(value))),
    ("cache.lock_timeout", |draft, value| set(&mut draft.options.cache.lock_timeout, seconds(value).map(Some))),
    ("cache.remote", |draft, value| {
        draft.options.cache.remote = Some(RemoteOptions::new(value));
        Ok(())
    }),
    ("dims.bind", |draft, value| set(&mut draft.options.open.binds, parsed(value))),
    ("buckets", |draft, value| set(&mut draft.options.open.buckets, parsed(value))),
    ("buckets.max", |draft, value| set(&mut draft.batch_max, extent(value).map(Some))),
    ("buckets.list", |draft, value| set(&mut draft.batch_list, extents(value))),
    ("buckets.count", |draft, value| set(&mut draft.batch_count, extent(value).map(Some))),
    ("buckets.axis", |draft, value| set(&mut draft.axis, count_or_zero(value).map(Some))),
    ("buckets.axis_max", |draft, value| set(&mut draft.axis_max, extent(value).map(Some))),
    ("buckets.max_programs", |draft, value| set(&mut draft.options.open.session.buckets_max, count(value))),
    ("split.dim", |draft, value| {
        draft.options.open.session.split_dim = Some(value.to_string());
        Ok(())
    }),
    ("on_miss", |draft, value| set(&mut draft.options.open.session.on_miss, parsed(value))),
    ("on_miss.timeout", |draft, value| set(&mut draft.options.open.session.on_miss_timeout, seconds(value).map(Some))),
    ("background", |draft, value| set(&mut draft.options.open.session.background, read_flag(value))),
    ("startup", |draft, value| {
        let words = [("all", Startup::All), ("largest", Startup::Largest), ("lazy", Startup::Lazy)];
        set(&mut draft.options.open.session.startup, one_of(value, &words))
    }),
    ("contexts", |draft, value| set(&mut draft.options.open.session.contexts, count(value))),
    ("contexts.wait", |draft, value| set(&mut draft.options.open.session.contexts_wait, context_wait(value))),
    ("capture", |draft, value| {
        set(
            &mut draft.options.open.runner.captures.is_on,
            one_of(value, &[("auto", true), ("on", true), ("off", false)]),
        )
    }),
    ("capture.max_bytes", |draft, value| set(&mut draft.options.open.runner.captures.max_bytes, bytes(value))),
    ("capture.max_graphs", |draft, value| set(&mut draft.options.open.runner.captures.max_graphs, count(value))),
    ("io.coalesce", |_, value| match value {
        "auto" | "on" => Ok(()),
        _ => Err("inputs and outputs of a device always travel together".to_string()),
    }),
    ("outputs", |_, value| only(value, "caller", "outputs lie in the caller's memory")),
    ("placement.control_flow", |_, value| only(value, "host", "branches and loops are decided on the host")),
    ("debug.dump", |_, _| Err("`precast inspect --text` prints what a model is compiled from".to_string())),
    ("context.enable", |draft, value| set(&mut draft.options.context.is_enabled, read_flag(value))),
    ("context.embed", |draft, value| set(&mut draft.options.context.is_embedded, read_flag(value).map(Some))),
    ("context.file", |draft, value| {
        draft.options.context.file = Some(PathBuf::from(value)).filter(|file| !file.as_os_str().is_empty());
        Ok(())
    }),
    ("context.prefix", |draft, value| {
        draft.options.context.prefix = value.to_string();
        Ok(())
    }),
    ("past_present_share_buffer", |draft, value| set(&mut draft.options.open.runner.shares_caches, read_flag(value))),
    ("strict", |draft, value| set(&mut draft.options.is_strict, read_flag(value))),
    ("report", |draft, value| {
        draft.options.report = Some(PathBuf::from(value));
        Ok(())
    }),
    ("compat.env", |_, value| read_flag(value).map(drop)),
];

/// Options while they are read.
struct Draft {
    options: ProviderOptions,
    cache_folder: Option<PathBuf>,
    cache_mode: Option<Mode>,
    batch_max: Option<i64>,
    batch_list: Vec<i64>,
    batch_count: Option<i64>,
    axis: Option<usize>,
    axis_max: Option<i64>,
}

/// What options say; what is wrong with them is added to the problems.
pub(super) fn apply(
    written: &BTreeMap<String, Written>,
    cache_folder: Option<PathBuf>,
    problems: &mut Vec<String>,
) -> ProviderOptions {
    let options = ProviderOptions {
        open: OpenOptions::default(),
        cache: CacheOptions::memory(),
        is_strict: false,
        report: None,
        context: ContextOptions::default(),
        axis_buckets: None,
        notices: Vec::new(),
    };
    let (batch_max, batch_list, batch_count, axis, axis_max) = (None, Vec::new(), None, None, None);
    let mut draft =
        Draft { options, cache_folder, cache_mode: None, batch_max, batch_list, batch_count, axis, axis_max };
    for (name, option) in written {
        if let Err(problem) = set_one(&mut draft, name, &option.value) {
            problems.push(format!("'{}': {problem}", option.source));
        } else if !option.source.starts_with(&format!("{name}=")) {
            draft.options.notices.push(format!("'{}' is read as '{name}={}'", option.source, option.value));
        }
    }
    draft.finish().unwrap_or_else(|(options, problem)| {
        problems.push(problem);
        *options
    })
}

fn set_one(draft: &mut Draft, name: &str, value: &str) -> Result<(), String> {
    if let Some((_, set)) = SETTINGS.iter().find(|(known, _)| *known == name) {
        return set(draft, value);
    }
    if let Some(symbol) = name.strip_prefix("dims.").filter(|symbol| !symbol.is_empty()) {
        draft.options.open.dims.insert(symbol.to_string(), extent(value)?);
        return Ok(());
    }
    if let Some(symbol) = name.strip_prefix("buckets.").filter(|symbol| !symbol.is_empty()) {
        let buckets = parsed::<BucketPolicy>(value)?;
        draft.options.open.session.dims.insert(symbol.to_string(), DimOptions { buckets });
        return Ok(());
    }
    if let Some(symbol) = name.strip_prefix("pad.").filter(|symbol| !symbol.is_empty()) {
        let reason = format!("padding {symbol} is proved or not done; what cannot be proved cannot be asserted");
        return only(value, "proved", &reason);
    }
    let aliases: Vec<String> = option_names().collect();
    let known = SETTINGS.iter().map(|(known, _)| *known).chain(aliases.iter().map(String::as_str));
    let hint = nearest(name, known).map_or(String::new(), |near| format!(". Did you mean '{near}'?"));
    Err(format!("there is no such option{hint}"))
}

impl Draft {
    /// What depends on several options.
    fn finish(mut self) -> Result<ProviderOptions, (Box<ProviderOptions>, String)> {
        let checked = self.finish_cache().and_then(|()| self.finish_buckets());
        let numerics = self.options.open.runner.passes.numerics.check();
        match checked.and(numerics) {
            Ok(()) => Ok(self.options),
            Err(problem) => Err((Box::new(self.options), problem)),
        }
    }

    fn finish_cache(&mut self) -> Result<(), String> {
        let mode = match (self.cache_mode, &self.cache_folder) {
            (Some(mode), _) => mode,
            (None, Some(_)) => Mode::ReadWrite,
            (None, None) => Mode::Off,
        };
        self.options.cache.mode = mode;
        match (&self.cache_folder, mode) {
            (_, Mode::Off) => Ok(()),
            (Some(folder), _) => {
                self.options.cache.root.clone_from(folder);
                Ok(())
            }
            (None, mode) => {
                Err(format!("cache.mode={}: cache.dir is needed, as no folder of the user's is known", mode.name()))
            }
        }
    }

    fn finish_buckets(&mut self) -> Result<(), String> {
        match (self.axis, self.axis_max) {
            (Some(axis), Some(max)) => {
                self.options.axis_buckets = Some((axis, BucketPolicy::PowersOfTwo { max }));
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                return Err("the number of an axis and its largest size are given together or not at all".to_string());
            }
        }
        let mut list = std::mem::take(&mut self.batch_list);
        list.extend(self.batch_max.filter(|_| !list.is_empty()));
        list.sort_unstable();
        list.dedup();
        let aliased = match (list.is_empty(), self.batch_max, self.batch_count) {
            (false, _, None) => Some(BucketPolicy::List(list)),
            (true, Some(max), None) => Some(BucketPolicy::PowersOfTwo { max }),
            (true, Some(max), Some(count)) => Some(BucketPolicy::List(evenly_spaced(count, max))),
            (true, None, None) => None,
            (true, None, Some(_)) => return Err("max_compiled_models needs max_dynamic_batch".to_string()),
            (false, _, Some(_)) => {
                return Err("compile_batches and max_compiled_models contradict each other".to_string());
            }
        };
        match (aliased, &self.options.open.buckets) {
            (None, _) => {}
            (Some(policy), BucketPolicy::Exact) => self.options.open.buckets = policy,
            (Some(_), _) => return Err("'buckets' and an alias of it are both given".to_string()),
        }
        Ok(())
    }
}

/// So many extents up to the largest, which is one of them.
fn evenly_spaced(count: i64, max: i64) -> Vec<i64> {
    let count = count.min(max);
    (1..=count).map(|place| (place * max).div_euclid(count)).collect()
}

fn set_device(draft: &mut Draft, value: &str) -> Result<(), String> {
    let resolved = resolve_device_with_notice(value).map_err(|error| error.to_string())?;
    draft.options.open.runner.device = resolved.name;
    draft.options.notices.extend(resolved.notice);
    Ok(())
}

/// What is compiled for follows from the device.
fn set_target(draft: &mut Draft, value: &str) -> Result<(), String> {
    let is_cpu = draft.options.open.runner.device == crate::device_name::DeviceName::CPU;
    match (value, is_cpu) {
        ("cpu", true) | ("gpu", false) => Ok(()),
        ("cpu" | "gpu", _) => {
            Err(format!("the device is '{}', and what is compiled is for it", draft.options.open.runner.device))
        }
        _ => Err("cpu or gpu is expected, as the device is".to_string()),
    }
}

fn set_float_precision(draft: &mut Draft, value: &str) -> Result<(), String> {
    let floats = match value {
        "f32" => FloatPrecision::F32,
        "f16" => FloatPrecision::F16,
        "bf16" => return Err("values are not held as bf16; precision.weights=bf16 holds weights so".to_string()),
        _ => return Err("f32 or f16 is expected".to_string()),
    };
    draft.options.open.runner.passes.numerics.floats = floats;
    Ok(())
}

fn set_weight_precision(draft: &mut Draft, value: &str) -> Result<(), String> {
    let words = [("f32", WeightPrecision::F32), ("bf16", WeightPrecision::Bf16), ("int8", WeightPrecision::Int8)];
    set(&mut draft.options.open.runner.passes.numerics.weights, one_of(value, &words))
}

fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A flag in one of the ways that people write it.
pub(super) fn read_flag(value: &str) -> Result<bool, String> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "on" => Ok(true),
        "0" | "false" | "off" => Ok(false),
        _ => Err("0 or 1 is expected, or true, false, on or off".to_string()),
    }
}

fn one_of<T: Clone>(value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| meaning.clone());
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    found.ok_or_else(|| format!("one of {} is expected", names.join(", ")))
}

fn only(value: &str, supported: &str, reason: &str) -> Result<(), String> {
    if value == supported { Ok(()) } else { Err(format!("only '{supported}' is supported: {reason}")) }
}

fn parsed<T: FromStr<Err = String>>(value: &str) -> Result<T, String> {
    value.parse()
}

fn count(value: &str) -> Result<usize, String> {
    value.trim().parse().ok().filter(|&count| count > 0).ok_or_else(|| "a number above 0 is expected".to_string())
}

fn count_or_zero(value: &str) -> Result<usize, String> {
    value.trim().parse().map_err(|_| "a number is expected".to_string())
}

fn extent(value: &str) -> Result<i64, String> {
    value.trim().parse().ok().filter(|&extent| extent > 0).ok_or_else(|| "a size above 0 is expected".to_string())
}

fn extents(value: &str) -> Result<Vec<i64>, String> {
    value.split([',', ';']).map(extent).collect()
}

/// `4096`, `64KiB`, `2 GiB`.
fn bytes(value: &str) -> Result<u64, String> {
    let value = value.trim();
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units.iter().find(|(unit, _)| value.ends_with(unit));
    let (digits, shift) = unit.map_or((value, 0), |(unit, shift)| (&value[..value.len() - unit.len()], *shift));
    let number: Option<u64> = digits.trim().parse().ok();
    let sum = number.and_then(|number| number.checked_mul(1 << shift));
    sum.ok_or_else(|| "a number of bytes is expected, or one with KiB, MiB or GiB".to_string())
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = value.trim().parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a number of seconds is expected".to_string())
}

fn context_wait(value: &str) -> Result<ContextWait, String> {
    let milliseconds = |text: &str| text.parse().ok().map(|ms| ContextWait::Block(Duration::from_millis(ms)));
    match value {
        "reject" => Ok(ContextWait::Reject),
        _ => value
            .strip_prefix("block:")
            .and_then(milliseconds)
            .ok_or_else(|| "'reject' or 'block:MILLISECONDS' is expected".to_string()),
    }
}
