//! What each pass is worth: every model with all passes, and with each pass left out in turn. A pass that never fires on
//! a model is not measured on it: its Program is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use precast::{CANONICAL, FUSED, Model, PassOptions, Ready, Runner, RunnerOptions};
use serde::Serialize;
use serde_json::json;

use crate::manifest::{self, ModelEntry};
use crate::opened::THREADS;
use crate::{fetch, inputs};

/// Models that are measured where none is named: language, vision and speech, with and without attention.
const MODELS: [&str; 10] = [
    "paraphrase_minilm_l3",
    "bert_base",
    "vit_b_16",
    "gpt2_small",
    "whisper_tiny_encoder",
    "efficientnet_b0",
    "resnet50",
    "ppocrv4_rec",
    "mobilenet_v3_large",
    "yolov10n",
];
/// Turns of both sides, of which the fastest run counts: noise only ever adds.
const TURNS: usize = 5;
/// Length of one turn of one side.
const TURN: Duration = Duration::from_millis(400);
/// A run counts at least this often in a turn, however long it takes.
const RUNS_MIN: usize = 2;

/// Arguments of `cargo xtask bench ablation`.
#[derive(Args)]
pub struct AblationArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Only this model; may be given several times.
    #[arg(long)]
    only: Vec<String>,
    /// Threads of a run. On a machine that others use, only one thread gives numbers that repeat.
    #[arg(long, default_value_t = THREADS)]
    threads: usize,
    /// Only this pass, or passes joined by commas that are left out together; may be given several times.
    #[arg(long)]
    pass: Vec<String>,
}

/// One pass left out of one model.
#[derive(Clone, Debug, Serialize)]
struct Row {
    model: String,
    pass: String,
    /// Nodes that it replaces.
    fired: usize,
    with_ms: f64,
    without_ms: f64,
    /// How much slower the model is without it.
    factor: f64,
}

/// Measures every pass, and prints the table that docs/ablation.md keeps.
pub fn run(arguments: &AblationArguments) -> Result<()> {
    let models = manifest::read()?;
    let names: Vec<String> = match arguments.only.is_empty() {
        true => MODELS.map(str::to_string).to_vec(),
        false => arguments.only.clone(),
    };
    let mut passes: Vec<String> = Vec::new();
    for pass in CANONICAL.iter().chain(FUSED).map(|pass| pass.name.to_string()) {
        if !passes.contains(&pass) {
            passes.push(pass);
        }
    }
    if !arguments.pass.is_empty() {
        for pass in arguments.pass.iter().flat_map(|joined| joined.split(',')) {
            ensure!(passes.iter().any(|known| known == pass), "no pass '{pass}'");
        }
        passes = arguments.pass.clone();
    }
    let mut rows = Vec::new();
    for name in &names {
        let entry = models.iter().find(|model| model.name == *name).with_context(|| format!("no model '{name}'"))?;
        measure_model(entry, arguments.threads, &passes, &mut rows).with_context(|| name.clone())?;
    }
    eprint!("{}", table(&names, &passes, &rows));
    if arguments.json {
        println!(
            "{}",
            json!({ "ok": true, "threads": arguments.threads, "rows": rows, "geometric": geometric(&rows) })
        );
    }
    Ok(())
}

fn measure_model(entry: &ModelEntry, threads: usize, passes: &[String], rows: &mut Vec<Row>) -> Result<()> {
    let file = fetch::model_file(entry)?;
    let inputs = inputs::make(entry, 1)?;
    let runner = |disabled: &[&str]| -> Result<Runner> {
        let passes =
            PassOptions { disabled: disabled.iter().map(|pass| pass.to_string()).collect(), ..PassOptions::default() };
        Ok(Runner::new(Model::open(&file)?, RunnerOptions { threads, passes, ..RunnerOptions::default() })?)
    };
    let whole = runner(&[])?;
    let mut fired: BTreeMap<&str, usize> = BTreeMap::new();
    for report in whole.explain_passes(&inputs)? {
        *fired.entry(report.pass).or_default() += report.fired.len();
    }
    let ready = |runner: &Runner| -> Result<Ready> {
        runner.ready(&inputs)?.context("the model is not one Program, so its passes are not its own")
    };
    let mut with = ready(&whole)?;
    for pass in passes {
        let disabled: Vec<&str> = pass.split(',').collect();
        let count: usize = disabled.iter().filter_map(|pass| fired.get(pass)).sum();
        if count == 0 {
            continue;
        }
        let apart = runner(&disabled)?;
        let mut without = ready(&apart)?;
        let (with_ms, without_ms) = compare(&mut with, &mut without)?;
        let factor = without_ms / with_ms;
        eprintln!("{:<24} without {pass:<24} {without_ms:>9.3} ms, with {with_ms:>9.3} ms ({factor:.3})", entry.name);
        rows.push(Row { model: entry.name.clone(), pass: pass.clone(), fired: count, with_ms, without_ms, factor });
    }
    Ok(())
}

/// The fastest run of both, in turns.
fn compare(with: &mut Ready, without: &mut Ready) -> Result<(f64, f64)> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..TURNS {
        for (side, ready) in [&mut *with, &mut *without].into_iter().enumerate() {
            let begun = Instant::now();
            let mut runs = 0;
            while runs < RUNS_MIN || begun.elapsed() < TURN {
                let start = Instant::now();
                ready.run()?;
                best[side] = best[side].min(start.elapsed().as_secs_f64() * 1e3);
                runs += 1;
            }
        }
    }
    Ok((best[0], best[1]))
}

/// The geometric mean of each pass over the models on which it fires.
fn geometric(rows: &[Row]) -> BTreeMap<&str, f64> {
    let passes: BTreeSet<&str> = rows.iter().map(|row| row.pass.as_str()).collect();
    let mean = |pass: &str| {
        let logs: Vec<f64> = rows.iter().filter(|row| row.pass == pass).map(|row| row.factor.ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    passes.into_iter().map(|pass| (pass, mean(pass))).collect()
}

/// The table of the documentation.
fn table(models: &[String], passes: &[String], rows: &[Row]) -> String {
    let means = geometric(rows);
    let mut text =
        format!("| without | geometric | {} |\n|---|---|{}\n", models.join(" | "), "---|".repeat(models.len()));
    for pass in passes.iter().filter(|pass| means.contains_key(pass.as_str())) {
        let cells = models.iter().map(|model| {
            let row = rows.iter().find(|row| row.pass == *pass && row.model == *model);
            row.map_or("–".to_string(), |row| format!("{:.2}", row.factor))
        });
        let cells: Vec<String> = cells.collect();
        text.push_str(&format!("| `{pass}` | {:.3} | {} |\n", means[pass.as_str()], cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric_and_of_the_models_where_a_pass_fires() {
        let row = |model: &str, factor: f64| Row {
            model: model.to_string(),
            pass: "fold".to_string(),
            fired: 1,
            with_ms: 1.0,
            without_ms: factor,
            factor,
        };
        let rows = [row("a", 2.0), row("b", 0.5)];
        assert_eq!(geometric(&rows), [("fold", 1.0)].into());
        let names = ["a", "b", "c"].map(str::to_string);
        let expected =
            "| without | geometric | a | b | c |\n|---|---|---|---|---|\n| `fold` | 1.000 | 2.00 | 0.50 | – |\n";
        assert_eq!(table(&names, &["fold".to_string()], &rows), expected);
    }
}
