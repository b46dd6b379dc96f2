//! Times of the steps of a Program, and of its kernels together. They come from normal runs with a clock between steps.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use precast::{Ready, StepTime};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::output::{kernel_text, names_text};

/// Steps are measured for about this long.
const MEASURE_TIME: Duration = Duration::from_millis(500);
/// Runs of which the steps are measured at least.
const RUNS_MIN: usize = 5;

/// Mean times of all steps.
pub struct StepTable {
    steps: Vec<StepTime>,
    times_ms: Vec<f64>,
}

impl StepTable {
    /// Measures the steps of a Program.
    pub fn measure(ready: &mut Ready) -> Result<StepTable, Failure> {
        let begun = Instant::now();
        let steps = ready.run_timed()?;
        let mut times_ms = vec![0.0; steps.len()];
        let mut runs = 0;
        while runs < RUNS_MIN || begun.elapsed() < MEASURE_TIME {
            for (sum, step) in times_ms.iter_mut().zip(ready.run_timed()?) {
                *sum += step.time.as_secs_f64() * 1e3;
            }
            runs += 1;
        }
        times_ms.iter_mut().for_each(|time| *time /= runs as f64);
        Ok(StepTable { steps, times_ms })
    }

    /// Every step, for machines.
    pub fn steps_json(&self) -> Value {
        let total = self.total_ms();
        let rows = self.rows().enumerate();
        rows.map(|(position, (step, ms))| {
            let StepTime { kernel, tactic, nodes, .. } = step;
            let share = share(ms, total);
            json!({ "step": position, "kernel": kernel, "tactic": tactic, "nodes": nodes, "ms": ms, "share": share })
        })
        .collect()
    }

    /// Every kernel, slowest first, for machines.
    pub fn kernels_json(&self) -> Value {
        let total = self.total_ms();
        let kernels = self.kernels().into_iter();
        kernels
            .map(|(kernel, steps, ms)| json!({ "kernel": kernel, "steps": steps, "ms": ms, "share": share(ms, total) }))
            .collect()
    }

    /// Both tables, for people.
    pub fn text(&self) -> String {
        let total = self.total_ms();
        let kernel = |step: &StepTime| kernel_text(&step.kernel, step.tactic.as_deref());
        let kernels: Vec<String> = self.steps.iter().map(kernel).collect();
        let width = kernels.iter().map(String::len).max().unwrap_or(0);
        let mut text = String::new();
        for (position, ((step, ms), kernel)) in self.rows().zip(kernels).enumerate() {
            let percent = share(ms, total) * 100.0;
            let nodes = names_text(&step.nodes);
            let _ = writeln!(text, "{position:>5} {ms:>9.4} ms {percent:>5.1} %  {kernel:<width$}  {nodes}");
        }
        let _ = writeln!(text, "kernels, {total:.4} ms together");
        for (kernel, steps, ms) in self.kernels() {
            let percent = share(ms, total) * 100.0;
            let _ = writeln!(text, "      {ms:>9.4} ms {percent:>5.1} %  {kernel:<width$}  {steps} steps");
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&StepTime, f64)> {
        self.steps.iter().zip(self.times_ms.iter().copied())
    }

    fn total_ms(&self) -> f64 {
        self.times_ms.iter().sum()
    }

    /// Kernel, number of its steps and their time, slowest first.
    fn kernels(&self) -> Vec<(&str, usize, f64)> {
        let mut kernels: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for (step, ms) in self.rows() {
            let kernel = kernels.entry(&step.kernel).or_default();
            kernel.0 += 1;
            kernel.1 += ms;
        }
        let mut kernels: Vec<_> = kernels.into_iter().map(|(kernel, (steps, ms))| (kernel, steps, ms)).collect();
        kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
        kernels
    }
}

fn share(ms: f64, total: f64) -> f64 {
    if total > 0.0 { ms / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_grouped_and_the_slowest_comes_first() {
        let step = |kernel: &str| StepTime {
            kernel: kernel.to_string(),
            tactic: None,
            nodes: Vec::new(),
            time: Duration::ZERO,
        };
        let table = StepTable { steps: vec![step("a"), step("b"), step("a")], times_ms: vec![1.0, 5.0, 2.0] };
        assert_eq!(table.kernels(), [("b", 1, 5.0), ("a", 2, 3.0)]);
        assert_eq!(table.kernels_json()[0]["share"], json!(0.625));
    }
}
