//! What Buckets cost: the median of a few runs with their copies, kept as notes of the cache, so that one machine of a
//! kind measures for all later starts. Only how requests are spread over Buckets depends on them, never a result's Types.

use std::time::{Duration, Instant};

use precast_program::Bucket;
use precast_tensor::{DType, Digest, Tensor};

use crate::error::SessionError;
use crate::programs::Entry;
use crate::session::Inner;

/// Kind of the notes.
const KIND: &str = "cost";
/// Runs before the measured ones.
const WARM_RUNS: usize = 3;
/// Measured runs of a Bucket.
const RUNS: usize = 20;
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
        let keys: Vec<u8> = entries.iter().flat_map(|entry: &std::sync::Arc<Entry>| entry.cost_key.0).collect();
        let set = Digest::of_bytes(&keys);
        if self.cache.note(KIND, &set).is_some() {
            return Ok(());
        }
        self.programs.read(|table| entries.retain(|entry| !table.costs.contains_key(&entry.bucket)));
        entries.sort_by_key(|entry| entry.bucket.dims().map(|(_, extent)| extent.max(1)).product::<i64>());
        let mut found = Vec::new();
        for entry in &entries {
            let (cost, is_steady) = self.measure(entry)?;
            self.cache.keep_note(KIND, &entry.cost_key, format!("{cost}").as_bytes());
            tracing::info!(bucket = %entry.bucket, us = cost / 1e3, "measured what a Bucket costs");
            found.push((entry.bucket.clone(), cost));
            if !is_steady {
                break;
            }
        }
        if !found.is_empty() {
            self.programs.change(|table| table.costs.extend(found));
        }
        self.cache.keep_note(KIND, &set, b"measured");
        Ok(())
    }

    /// Median time of a Bucket in nanoseconds, and whether all runs fitted the time there was.
    fn measure(&self, entry: &Entry) -> Result<(f64, bool), SessionError> {
        let program = entry.loaded.program();
        let zeros = program.inputs.iter().map(|port| {
            let dtype = DType::from_name(&port.dtype).unwrap_or(DType::F32);
            Tensor::zeros(dtype, port.shape.iter().map(|&size| size as usize).collect::<Vec<usize>>())
        });
        let inputs: Vec<Tensor> = zeros.collect::<Result<_, _>>()?;
        let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
        let mut outputs: Vec<Vec<u64>> =
            program.outputs.iter().map(|port| vec![0; (port.bytes as usize).div_ceil(8)]).collect();
        let mut slices: Vec<&mut [u8]> = outputs
            .iter_mut()
            .zip(&program.outputs)
            .map(|(words, port)| &mut bytemuck::cast_slice_mut::<u64, u8>(words)[..port.bytes as usize])
            .collect();
        let mut context = self.device.context(program.arena_bytes);
        let begun = Instant::now();
        let mut times = Vec::new();
        for run in 0..WARM_RUNS + RUNS {
            let start = Instant::now();
            context.run(&*entry.loaded, &inputs, &mut slices)?;
            // A first run that takes all the time there is must do.
            let is_last = begun.elapsed() >= BUCKET_TIME;
            if run >= WARM_RUNS || is_last {
                times.push(start.elapsed().as_nanos() as f64);
            }
            if is_last {
                break;
            }
        }
        let is_steady = times.len() > 1;
        times.sort_by(f64::total_cmp);
        Ok((times[times.len() / 2], is_steady))
    }
}

fn read_cost(note: &[u8]) -> Option<f64> {
    let cost: f64 = std::str::from_utf8(note).ok()?.parse().ok()?;
    (cost.is_finite() && cost > 0.0).then_some(cost)
}
