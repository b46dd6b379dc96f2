//! How a model is opened, read from keyword arguments. Every key that is read is used; any other is an error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use precast::{
    ActivationPrecision, BucketPolicy, CacheMode, CacheOptions, DimBinds, FastMath, FloatPrecision, Observer,
    OpenOptions, Phase, ProgramCache, Progress, RemoteOptions, Startup, WeightPrecision,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::exceptions::{exception, usage};
use crate::host_array::copied_tensor;

/// Every key, with what it says.
const KEYS: &[(&str, &str)] = &[
    ("threads", "threads of a run; all cores unless set"),
    ("dims", "numbers for dims that every request shares, by name"),
    ("bind", "axes of inputs that are one dim, as in '*.0=batch'"),
    ("freeze", "values of inputs that every request shares, by name"),
    ("buckets", "extents of the batch that have Programs: 'exact', 'pow2:64', 'fitted:64' or a list such as '1,2,6'"),
    ("max_batch", "the largest batch; Programs for powers of two up to it, unless buckets says otherwise"),
    ("cache", "folder that keeps compiled Programs; none keeps them in memory"),
    ("cache_remote", "store shared with other machines: a folder, or a URL where the wheel was built with 'cloud'"),
    (
        "cache_remote_options",
        "options of that store by name: region, keys, endpoint; nothing is taken from the environment",
    ),
    ("cache_mode", "what may be done with the cache: 'rw' or 'ro'"),
    (
        "on_miss",
        "what answers a request whose Program is not there: 'wait', 'pad-up', 'reference', 'reject' or a chain",
    ),
    ("on_miss_timeout", "seconds that a request waits for a compile"),
    ("startup", "Buckets that are there before opening returns: 'all', 'largest' or 'lazy'"),
    ("contexts", "runs that may be in flight at once"),
    ("jobs", "Programs that are compiled at once"),
    ("memory_limit", "bytes that weights and contexts may take"),
    ("measure", "whether what each Bucket costs is measured after opening"),
    ("strict", "whether a node without a kernel of the device is an error"),
    ("numerics", "'default', or 'strict' to round every sum as it is written"),
    ("fast_math", "rewrites that may approximate: 'gelu,zero,log-exp,pow-sqrt' or 'all'"),
    ("weights", "what constant f32 weights are held as: 'f32', 'bf16' or 'int8'"),
    ("activations", "what rows are multiplied as with weights of 4 or 8 bits in blocks: 'f32' or 'int8'"),
    ("precision", "what f32 values between inputs and outputs are held as: 'f32' or 'f16'"),
    ("progress", "called with a dict of how far opening has come"),
];

/// How a model is opened, and the cache that its Programs are in.
pub struct Settings {
    pub options: OpenOptions,
    pub cache: Arc<ProgramCache>,
}

/// Reads keyword arguments.
pub fn read_settings(py: Python<'_>, arguments: Option<&Bound<'_, PyDict>>) -> PyResult<Settings> {
    let arguments = arguments.cloned().unwrap_or_else(|| PyDict::new(py));
    refuse_unknown(&arguments)?;
    let read = Arguments { arguments };
    let mut options = OpenOptions::default();
    read_runner(&read, &mut options)?;
    read_sizes(&read, &mut options)?;
    read_session(&read, &mut options)?;
    Ok(Settings { options, cache: open_cache(py, &read)? })
}

/// Keys and what each says, for documentation.
pub fn keys() -> Vec<(&'static str, &'static str)> {
    KEYS.to_vec()
}

fn refuse_unknown(arguments: &Bound<'_, PyDict>) -> PyResult<()> {
    let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    for key in arguments.keys() {
        let key: String = key.extract()?;
        if !known.contains(&key.as_str()) {
            let listed = precast::suggestion::listed(&key, &known);
            return Err(usage(arguments.py(), &format!("there is no option '{key}'; {listed}")));
        }
    }
    Ok(())
}

/// Keyword arguments by key.
struct Arguments<'py> {
    arguments: Bound<'py, PyDict>,
}

impl<'py> Arguments<'py> {
    /// The value of a key, if it is given and not None.
    fn object(&self, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        debug_assert!(KEYS.iter().any(|(known, _)| *known == key), "'{key}' has no row in the table");
        Ok(self.arguments.get_item(key)?.filter(|value| !value.is_none()))
    }

    fn get<T: for<'a> FromPyObject<'a, 'py>>(&self, key: &str, expected: &str) -> PyResult<Option<T>> {
        let Some(value) = self.object(key)? else { return Ok(None) };
        let read = value.extract::<T>().map_err(Into::into);
        read.map(Some).map_err(|_: PyErr| {
            let shown = value.repr().map_or("?".to_string(), |text| text.to_string());
            self.refused(key, &format!("{shown} is given; {expected} is expected"))
        })
    }

    /// A word that stands for something.
    fn word<T: Clone>(&self, key: &str, words: &[(&str, T)]) -> PyResult<Option<T>> {
        let Some(given) = self.get::<String>(key, "a word")? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == given) {
            Some((_, meaning)) => Ok(Some(meaning.clone())),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                let listed = precast::suggestion::listed(&given, &known);
                Err(self.refused(key, &format!("'{given}' is given; {listed}")))
            }
        }
    }

    /// A text that reads as something.
    fn parsed<T: std::str::FromStr<Err = String>>(&self, key: &str) -> PyResult<Option<T>> {
        let Some(text) = self.get::<String>(key, "a text")? else { return Ok(None) };
        text.parse().map(Some).map_err(|reason: String| self.refused(key, &reason))
    }

    fn refused(&self, key: &str, reason: &str) -> PyErr {
        usage(self.arguments.py(), &format!("{key}: {reason}"))
    }
}

fn read_runner(read: &Arguments<'_>, options: &mut OpenOptions) -> PyResult<()> {
    let runner = &mut options.runner;
    if let Some(threads) = read.get::<usize>("threads", "a number of threads")?.filter(|&threads| threads > 0) {
        runner.threads = threads;
    }
    runner.is_device_strict = read.get("strict", "True or False")?.unwrap_or(false);
    let numerics = &mut runner.passes.numerics;
    numerics.is_strict = read.word("numerics", &[("default", false), ("strict", true)])?.unwrap_or(false);
    if let Some(fast_math) = read.parsed::<FastMath>("fast_math")? {
        numerics.fast_math = fast_math;
    }
    let weights = [("f32", WeightPrecision::F32), ("bf16", WeightPrecision::Bf16), ("int8", WeightPrecision::Int8)];
    if let Some(weights) = read.word("weights", &weights)? {
        numerics.weights = weights;
    }
    if let Some(activations) = read.parsed::<ActivationPrecision>("activations")? {
        numerics.activations = activations;
    }
    if let Some(floats) = read.word("precision", &[("f32", FloatPrecision::F32), ("f16", FloatPrecision::F16)])? {
        numerics.floats = floats;
    }
    numerics.check().map_err(|reason| usage(read.arguments.py(), &reason))
}

fn read_sizes(read: &Arguments<'_>, options: &mut OpenOptions) -> PyResult<()> {
    if let Some(dims) = read.get::<BTreeMap<String, i64>>("dims", "a dict of numbers by the names of dims")? {
        options.dims = dims;
    }
    if let Some(binds) = read.parsed::<DimBinds>("bind")? {
        options.binds = binds;
    }
    if let Some(freeze) = read.get::<BTreeMap<String, Bound<'_, PyAny>>>("freeze", "a dict of arrays by name")? {
        for (name, value) in freeze {
            let tensor = copied_tensor(&value)?;
            let tensor = tensor.ok_or_else(|| read.refused("freeze", &format!("'{name}' is no array of numbers")))?;
            options.freeze.insert(name, tensor);
        }
    }
    if let Some(max) = read.get::<i64>("max_batch", "a number of rows")? {
        if max < 1 {
            return Err(read.refused("max_batch", &format!("{max} is given; a number above 0 is expected")));
        }
        options.buckets = BucketPolicy::PowersOfTwo { max };
    }
    if let Some(buckets) = read.parsed::<BucketPolicy>("buckets")? {
        options.buckets = buckets;
    }
    Ok(())
}

fn read_session(read: &Arguments<'_>, options: &mut OpenOptions) -> PyResult<()> {
    let session = &mut options.session;
    if let Some(chain) = read.parsed("on_miss")? {
        session.on_miss = chain;
    }
    session.on_miss_timeout = seconds(read, "on_miss_timeout")?;
    let startups = [("all", Startup::All), ("largest", Startup::Largest), ("lazy", Startup::Lazy)];
    if let Some(startup) = read.word("startup", &startups)? {
        session.startup = startup;
    }
    if let Some(contexts) = read.get::<usize>("contexts", "a number of runs")? {
        session.contexts = contexts;
    }
    if let Some(jobs) = read.get::<usize>("jobs", "a number of Programs")? {
        session.jobs = jobs.max(1);
    }
    if let Some(measures) = read.get("measure", "True or False")? {
        session.measures = measures;
    }
    session.memory_limit = read.get("memory_limit", "a number of bytes")?;
    if let Some(callable) = read.object("progress")? {
        session.progress = observer(callable.unbind());
    }
    Ok(())
}

fn seconds(read: &Arguments<'_>, key: &str) -> PyResult<Option<Duration>> {
    let Some(seconds) = read.get::<f64>(key, "a number of seconds")? else { return Ok(None) };
    let duration = Duration::try_from_secs_f64(seconds);
    duration.map(Some).map_err(|error| read.refused(key, &format!("{seconds} seconds: {error}")))
}

/// Tells a Python function how opening goes on. It is called from threads of the Session; what it raises is not ours.
pub fn observer(callable: Py<PyAny>) -> Observer {
    Observer(Some(Arc::new(move |progress: &Progress| {
        // None once the interpreter is going down.
        let _ = Python::try_attach(|py| {
            let told = progress_dict(py, progress).and_then(|progress| callable.call1(py, (progress,)));
            if let Err(error) = told {
                error.write_unraisable(py, Some(callable.bind(py)));
            }
        });
    })))
}

fn progress_dict<'py>(py: Python<'py>, progress: &Progress) -> PyResult<Bound<'py, PyDict>> {
    let phase = match progress.phase {
        Phase::Programs => "programs",
        Phase::Measuring => "measuring",
        Phase::Ready => "ready",
    };
    let dict = PyDict::new(py);
    dict.set_item("phase", phase)?;
    dict.set_item("done", progress.done)?;
    dict.set_item("total", progress.total)?;
    dict.set_item("compiled", progress.compiled)?;
    dict.set_item("failed", progress.failed)?;
    dict.set_item("bucket", progress.bucket.as_ref().map(ToString::to_string))?;
    dict.set_item("elapsed", progress.elapsed.as_secs_f64())?;
    dict.set_item("eta", progress.eta.map(|eta| eta.as_secs_f64()))?;
    Ok(dict)
}

fn open_cache(py: Python<'_>, read: &Arguments<'_>) -> PyResult<Arc<ProgramCache>> {
    let folder = read.get::<PathBuf>("cache", "a path")?;
    let remote = read.get::<String>("cache_remote", "a folder or URL")?;
    let mode = read.word("cache_mode", &[("rw", CacheMode::ReadWrite), ("ro", CacheMode::ReadOnly)])?;
    let mut options = match folder {
        Some(folder) => CacheOptions::new(folder),
        None if remote.is_some() || mode.is_some() => {
            return Err(usage(py, "cache_remote and cache_mode are about a cache; cache, its folder, is missing"));
        }
        None => CacheOptions { mode: CacheMode::Off, ..CacheOptions::new("") },
    };
    if let Some(mode) = mode {
        options.mode = mode;
    }
    let store = read.get::<BTreeMap<String, String>>("cache_remote_options", "a dict of texts")?.unwrap_or_default();
    options.remote = match remote {
        Some(url) => {
            let options = store.into_iter().collect();
            Some(RemoteOptions { options, ..RemoteOptions::new(store_url(py, &url)?) })
        }
        None => None,
    };
    let cache = ProgramCache::open(options).map_err(|error| exception(py, &error.into()))?;
    Ok(Arc::new(cache))
}

/// The address of a store; a path is that of a folder.
pub fn store_url(py: Python<'_>, text: &str) -> PyResult<String> {
    if text.contains("://") {
        return Ok(text.to_string());
    }
    let absolute = std::path::absolute(text).map_err(|error| usage(py, &format!("cache_remote: '{text}': {error}")))?;
    Ok(format!("file://{}", absolute.display()))
}
