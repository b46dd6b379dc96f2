//! What Buckets cost: the median of a few runs with their copies, kept as notes of the cache, so that one machine of a
//! kind measures for all later starts. Only how requests are spread over Buckets depends on them, never a result's Types.

use std::sync::Arc;
use std::time::{Duration, Instant};

use precast_program::{Bucket, DeviceContext};
use precast_tensor::{DType, Digest, Tensor};

use crate::error::SessionError;
use crate::output_buffer::OutputBuffer;
use crate::programs::Entry;
use crate::session::Inner;

/// Kind of the notes.
const KIND: &str = "cost";
/// Rounds before the measured ones.
const WARM_ROUNDS: usize = 3;
/// Measured runs of each Bucket.
const ROUNDS: usize = 20;
/// Time that measuring one Bucket may take; fewer runs are measured where that is not enough.
const BUCKET_TIME: Duration = Duration::from_millis(150);

impl Inner {
    /// Takes the costs that the cache knows.
    pub(crate) fn recall_costs(&self) {
        let entries: Vec<_> = self.programs.read(|table| table.entries.values().cloned().collect());
        let known: Vec<(Bucket, f64)> = entries
            .iter()
            .filter_map(|entry| Some((entry.bucket.clone(), read_cost(&self.cache.note(KIND, &entry.cost_key)?)?)))
            .collect();
        if !known.is_empty() {
            self.programs.change(|table| table.costs.extend(known));
        }
    }

    /// Measures the Buckets whose costs are not known, the cheapest first, until one run takes longer than measuring
    /// may: larger ones then lie on the line of those measured. Once done for a set of Programs it is not done again.
    pub(crate) fn measure_costs(&self) -> Result<(), SessionError> {
        let mut entries: Vec<_> = self.programs.read(|table| {
            table.entries.values().filter(|entry| table.ladders.contains(&entry.bucket)).cloned().collect()
        });
        let keys: Vec<u8> = entries.iter().flat_map(|entry: &Arc<Entry>| entry.cost_key.0).collect();
        let set = Digest::of_bytes(&keys);
        if self.cache.note(KIND, &set).is_some() {
            return Ok(());
        }
        self.programs.read(|table| entries.retain(|entry| !table.costs.contains_key(&entry.bucket)));
        entries.sort_by_key(|entry| entry.bucket.dims().map(|(_, extent)| extent.max(1)).product::<i64>());
        let found = self.measure(&entries)?;
        for (entry, &cost) in entries.iter().zip(&found) {
            self.cache.keep_note(KIND, &entry.cost_key, format!("{cost}").as_bytes());
            tracing::info!(bucket = %entry.bucket, us = cost / 1e3, "measured what a Bucket costs");
        }
        if !found.is_empty() {
            let costs = entries.iter().zip(found).map(|(entry, cost)| (entry.bucket.clone(), cost));
            self.programs.change(|table| table.costs.extend(costs));
        }
        self.cache.keep_note(KIND, &set, b"measured");
        Ok(())
    }

    /// Median times of Buckets in nanoseconds, in their order, up to the first of which one run takes too long. Buckets run
    /// in turns on one context, as in a stream of mixed sizes: back to back, small ones would look cheaper than they are.
    fn measure(&self, entries: &[Arc<Entry>]) -> Result<Vec<f64>, SessionError> {
        let mut context = self.devices[0].context(0);
        let mut probes: Vec<Probe<'_>> = Vec::new();
        for entry in entries {
            context.reserve(entry.program().arena_bytes);
            let mut probe = Probe::new(entry)?;
            let first = probe.run(context.as_mut())?;
            probes.push(probe);
            if first >= BUCKET_TIME {
                break;
            }
        }
        let begun = Instant::now();
        let time = BUCKET_TIME * probes.len() as u32;
        for round in 0..WARM_ROUNDS + ROUNDS {
            if begun.elapsed() >= time {
                break;
            }
            if self.bringer.underway.is_closed() {
                return Err(SessionError::Closed);
            }
            for probe in &mut probes {
                let time = probe.run(context.as_mut())?;
                if round >= WARM_ROUNDS {
                    probe.times_ns.push(time.as_nanos() as f64);
                }
            }
        }
        Ok(probes.into_iter().map(Probe::median).collect())
    }
}

/// A Bucket that is measured, on zeros: the only input that every model accepts. Copies are part of what it costs, since a
/// padded request copies its inputs in and its outputs out.
struct Probe<'a> {
    entry: &'a Entry,
    inputs: Vec<Tensor>,
    staged: Vec<OutputBuffer>,
    outputs: Vec<OutputBuffer>,
    answers: Vec<OutputBuffer>,
    last_ns: f64,
    times_ns: Vec<f64>,
}

impl<'a> Probe<'a> {
    fn new(entry: &'a Entry) -> Result<Probe<'a>, SessionError> {
        let program = entry.program();
        let zeros = program.inputs.iter().map(|port| {
            let dtype = DType::from_name(&port.dtype).unwrap_or(DType::F32);
            Tensor::zeros(dtype, port.shape.iter().map(|&size| size as usize).collect::<Vec<usize>>())
        });
        let inputs: Vec<Tensor> = zeros.collect::<Result<_, _>>()?;
        let staged = inputs.iter().map(|input| OutputBuffer::new(input.as_bytes().len())).collect();
        let results = || program.outputs.iter().map(|port| OutputBuffer::new(port.bytes as usize)).collect();
        Ok(Probe { entry, inputs, staged, outputs: results(), answers: results(), last_ns: 0.0, times_ns: Vec::new() })
    }

    fn run(&mut self, context: &mut dyn DeviceContext) -> Result<Duration, SessionError> {
        let start = Instant::now();
        for (staged, input) in self.staged.iter_mut().zip(&self.inputs) {
            staged.as_bytes_mut().copy_from_slice(input.as_bytes());
        }
        let inputs: Vec<&[u8]> = self.staged.iter().map(AsRef::as_ref).collect();
        let mut slices: Vec<&mut [u8]> = self.outputs.iter_mut().map(OutputBuffer::as_bytes_mut).collect();
        context.run(self.entry.on(0), &inputs, &mut slices)?;
        for (answer, output) in self.answers.iter_mut().zip(&self.outputs) {
            answer.as_bytes_mut().copy_from_slice(output.as_ref());
        }
        let time = start.elapsed();
        self.last_ns = time.as_nanos() as f64;
        Ok(time)
    }

    /// The middle of the counted runs, or the last of the others.
    fn median(mut self) -> f64 {
        self.times_ns.sort_by(f64::total_cmp);
        self.times_ns.get(self.times_ns.len() / 2).copied().unwrap_or(self.last_ns)
    }
}

fn read_cost(note: &[u8]) -> Option<f64> {
    let cost: f64 = std::str::from_utf8(note).ok()?.parse().ok()?;
    (cost.is_finite() && cost > 0.0).then_some(cost)
}
