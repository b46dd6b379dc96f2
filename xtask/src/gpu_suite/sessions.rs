//! One Session on the device: requests of all sizes from many threads at once, each compared with the CPU, and what a padded
//! request costs beside a full one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use precast::device_name::resolve_device;
use precast::{
    BucketPolicy, ContextWait, DeviceArgument, DevicePlace, Model, ModelSession, Named, OpenOptions, Runner,
    RunnerOptions, Session, SessionOptions, Startup, Tensor, relative_error,
};
use precast_program::{Device, DeviceMemory};

use super::{Bar, Only, Part};
use crate::manifest::{self, ModelEntry};
use crate::measure::median;
use crate::{fetch, inputs};

/// Models whose rows are independent, one of convolutions and one of lookups.
const MODELS: [&str; 2] = ["mobilenet_v3_large", "recsys190"];
const THREADS: usize = 8;
/// Requests of each thread.
const REQUESTS: usize = 60;
const BATCH_MAX: usize = 8;
/// Fewer contexts than threads, so that threads wait for one another too.
const CONTEXTS: usize = 4;
const ERROR_MAX: f64 = 1e-4;
/// Rows of the padded request and of the Bucket that it runs on.
const PADDED_ROWS: usize = 3;
const BUCKET_ROWS: usize = 4;
const PADDING_US_MAX: f64 = 5.0;
/// Turns of both sizes, timed calls of a turn, and calls before them: after another size a Program's table of addresses is
/// written anew, which is not what padding costs.
const TURNS: usize = 12;
const CALLS: usize = 30;
const WARM_CALLS: usize = 10;

/// Runs both.
pub fn bars(only: Only) -> Result<Vec<Bar>> {
    let models = manifest::read()?;
    let find = |name: &str| models.iter().find(|model| model.name == name).context("no model of this name");
    let mut bars = Vec::new();
    for name in MODELS.into_iter().filter(|name| only.has(name)) {
        let bar_name = format!("wrong answers of {name} to {THREADS} threads of alternating batches");
        bars.push(match find(name).and_then(crowd) {
            Ok((wrong, worst)) => {
                let note = format!("of {}, worst error {worst:.1e}", THREADS * REQUESTS);
                Bar::none(Part::Sessions, bar_name, wrong, note)
            }
            Err(error) => Bar::failed(Part::Sessions, bar_name, &error),
        });
        for (place, padding_us) in PADDING {
            let bar_name = format!(
                "{PADDED_ROWS} rows of {name} on a Bucket of {BUCKET_ROWS}, beyond {BUCKET_ROWS} rows, on the {place}"
            );
            bars.push(match find(name).and_then(padding_us) {
                Ok([padded, full]) => {
                    let bar = Bar::most(Part::Sessions, bar_name, padded - full, PADDING_US_MAX, "µs");
                    Bar { note: format!("{padded:.1} and {full:.1} µs"), ..bar }
                }
                Err(error) => Bar::failed(Part::Sessions, bar_name, &error),
            });
        }
    }
    Ok(bars)
}

fn open(entry: &ModelEntry, batch_max: usize) -> Result<ModelSession> {
    let runner = RunnerOptions { device: resolve_device("cuda")?, ..RunnerOptions::default() };
    let contexts_wait = ContextWait::Block(Duration::from_secs(600));
    let session =
        SessionOptions { startup: Startup::All, contexts: CONTEXTS, contexts_wait, ..SessionOptions::default() };
    let buckets = BucketPolicy::PowersOfTwo { max: batch_max as i64 };
    let options = OpenOptions { runner, buckets, session, ..OpenOptions::default() };
    Ok(ModelSession::open(&Model::open(&fetch::model_file(entry)?)?, &options)?)
}

/// Wrong answers, and the largest relative error.
fn crowd(entry: &ModelEntry) -> Result<(usize, f64)> {
    let runner = Runner::new(Model::open(&fetch::model_file(entry)?)?, RunnerOptions::default())?;
    let mut cases: BTreeMap<usize, (Named, Named)> = BTreeMap::new();
    for batch in 1..=BATCH_MAX {
        let inputs = inputs::make(entry, batch)?;
        let expected = runner.run(&inputs)?;
        cases.insert(batch, (inputs, expected));
    }
    let session = open(entry, BATCH_MAX)?;
    let wrong = AtomicUsize::new(0);
    let client = |number: usize| -> Result<f64> {
        let mut worst: f64 = 0.0;
        for request in 0..REQUESTS {
            let (inputs, expected) = &cases[&((number + request * 3) % BATCH_MAX + 1)];
            let (found, _) = session.run(inputs)?;
            let error = error_of(&found, expected);
            worst = worst.max(error);
            wrong.fetch_add(usize::from(error.is_nan() || error > ERROR_MAX), Ordering::Relaxed);
        }
        Ok(worst)
    };
    let worst = thread::scope(|scope| -> Result<f64> {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || client(number))).collect();
        let mut worst: f64 = 0.0;
        for thread in threads {
            worst = worst.max(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(worst)
    })?;
    Ok((wrong.into_inner(), worst))
}

fn error_of(found: &Named, expected: &Named) -> f64 {
    let pairs = found.iter().zip(expected);
    let errors = pairs.map(|((_, found), (_, expected))| relative_error(&found.to_f64_vec(), &expected.to_f64_vec()));
    errors.fold(0.0, |worst, error| if error.is_nan() { f64::NAN } else { worst.max(error) })
}

/// What a padded request and one that fills the Bucket take, in µs.
type PaddingUs = fn(&ModelEntry) -> Result<[f64; 2]>;

/// Where the buffers of requests may lie.
const PADDING: [(&str, PaddingUs); 2] = [("host", padding_on_host_us), ("device", padding_on_device_us)];

fn padding_on_host_us(entry: &ModelEntry) -> Result<[f64; 2]> {
    let session = open(entry, BUCKET_ROWS)?;
    let requests = [inputs::make(entry, PADDED_ROWS)?, inputs::make(entry, BUCKET_ROWS)?];
    medians_us(|size| {
        session.run(&requests[size])?;
        Ok(())
    })
}

fn padding_on_device_us(entry: &ModelEntry) -> Result<[f64; 2]> {
    let model = open(entry, BUCKET_ROWS)?;
    let forms = model.forms();
    let form = forms.first().context("the model has a form of its own for every request")?;
    let mut requests = Vec::new();
    for rows in [PADDED_ROWS, BUCKET_ROWS] {
        let named = inputs::make(entry, rows)?;
        let (outputs, _) = model.run(&named)?;
        requests.push(DeviceRequest::new(&*form.session().devices()[0], form.in_order(&named)?, &outputs)?);
    }
    medians_us(|size| requests[size].run(form.session()))
}

/// Medians of calls of both sizes, which take turns.
fn medians_us(mut call: impl FnMut(usize) -> Result<()>) -> Result<[f64; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (size, times) in times.iter_mut().enumerate() {
            for at in 0..WARM_CALLS + CALLS {
                let begun = Instant::now();
                call(size)?;
                if at >= WARM_CALLS {
                    times.push(begun.elapsed().as_secs_f64() * 1e6);
                }
            }
        }
    }
    Ok(times.map(median))
}

/// Inputs and room for outputs on a device.
struct DeviceRequest {
    inputs: Vec<(Tensor, Arc<dyn DeviceMemory>)>,
    outputs: Vec<Arc<dyn DeviceMemory>>,
}

impl DeviceRequest {
    fn new(device: &dyn Device, inputs: Vec<Tensor>, outputs: &Named) -> Result<DeviceRequest> {
        let place = |tensor: Tensor| -> Result<(Tensor, Arc<dyn DeviceMemory>)> {
            let memory = device.allocate(tensor.as_bytes().len())?;
            memory.write(0, tensor.as_bytes())?;
            Ok((tensor, memory))
        };
        let inputs = inputs.into_iter().map(place).collect::<Result<_>>()?;
        let outputs = outputs.iter().map(|(_, tensor)| device.allocate(tensor.as_bytes().len()));
        Ok(DeviceRequest { inputs, outputs: outputs.collect::<Result<_, _>>()? })
    }

    /// Submits it and waits.
    fn run(&self, session: &Session) -> Result<()> {
        let arguments = self.inputs.iter().map(|(tensor, memory)| DeviceArgument {
            dtype: tensor.dtype(),
            shape: tensor.shape(),
            memory: &**memory,
            start: 0,
        });
        let inputs: Vec<DeviceArgument<'_>> = arguments.collect();
        let outputs: Vec<DevicePlace<'_>> =
            self.outputs.iter().map(|memory| DevicePlace { memory: &**memory, start: 0 }).collect();
        let (_, end) = session.submit_on_device(&inputs, &outputs, None)?;
        Ok(end.wait()?)
    }
}
