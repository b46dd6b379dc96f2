//! How good the cost model's choice of tactics is: a fixed list of convolutions, each measured with every tactic that covers
//! it (specs/compiler.md §6.4: within 15 % of the best on 90 % of them).

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::Args;
use precast::{Graph, Isa, Tensor, TuneMode, TuneOptions};
use precast_cpu::{CpuDevice, CpuTarget, Tuner};
use precast_ir::op::{Conv, Unary, UnaryFn};
use precast_program::Target;
use precast_tensor::{DType, Dim, Type};
use serde::Serialize;
use serde_json::json;

use crate::opened::THREADS;

/// A choice may take so much longer than the best.
const SLACK: f64 = 1.15;
/// The share of problems on which it must not.
const SHARE_BAR: f64 = 0.9;

/// Layers that several tactics cover: channels in and out, height and width, filter.
const PROBLEMS: [(usize, usize, [usize; 2], [usize; 2]); 38] = [
    // ResNet and VGG.
    (64, 64, [56, 56], [3, 3]),
    (128, 128, [28, 28], [3, 3]),
    (256, 256, [14, 14], [3, 3]),
    (512, 512, [7, 7], [3, 3]),
    (3, 64, [224, 224], [3, 3]),
    (64, 128, [112, 112], [3, 3]),
    (256, 512, [28, 28], [3, 3]),
    (512, 512, [14, 14], [3, 3]),
    // YOLO at 640 and 320.
    (16, 16, [160, 160], [3, 3]),
    (32, 32, [80, 80], [3, 3]),
    (64, 64, [80, 80], [3, 3]),
    (64, 64, [40, 40], [3, 3]),
    (64, 80, [80, 80], [3, 3]),
    (80, 80, [80, 80], [3, 3]),
    (128, 64, [40, 40], [3, 3]),
    (128, 80, [40, 40], [3, 3]),
    (80, 80, [40, 40], [3, 3]),
    (128, 128, [20, 20], [3, 3]),
    (256, 64, [20, 20], [3, 3]),
    (256, 80, [20, 20], [3, 3]),
    (80, 80, [20, 20], [3, 3]),
    (16, 16, [80, 80], [3, 3]),
    (32, 32, [40, 40], [3, 3]),
    (64, 64, [20, 20], [3, 3]),
    (128, 128, [10, 10], [3, 3]),
    // Text detection and recognition.
    (96, 24, [160, 160], [3, 3]),
    (24, 24, [80, 80], [3, 3]),
    (8, 8, [48, 320], [3, 3]),
    (480, 60, [1, 80], [1, 3]),
    (60, 480, [1, 40], [1, 3]),
    (120, 120, [1, 80], [1, 3]),
    // Speech.
    (80, 384, [1, 3000], [1, 3]),
    (128, 128, [1, 64], [1, 3]),
    (64, 64, [1, 8], [1, 3]),
    (64, 64, [1, 1000], [1, 5]),
    (256, 256, [1, 400], [1, 5]),
    (16, 16, [1, 400], [1, 5]),
    (32, 32, [24, 320], [1, 5]),
];

/// Arguments of `cargo xtask bench tactics`.
#[derive(Args)]
pub struct TacticsArguments {
    /// Print the results as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Threads of a run.
    #[arg(long, default_value_t = THREADS)]
    threads: usize,
    /// Times that the list is measured; the least of the medians counts, since noise only ever adds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Fail when the bar is missed.
    #[arg(long)]
    check: bool,
}

/// One problem.
#[derive(Clone, Debug, Serialize)]
struct Row {
    problem: String,
    chosen: String,
    best: String,
    /// How much longer the chosen tactic takes than the best.
    factor: f64,
    us: BTreeMap<String, f64>,
}

/// Measures every problem.
pub fn run(arguments: &TacticsArguments) -> Result<()> {
    ensure!(arguments.rounds > 0, "--rounds is 0");
    let device = CpuDevice::new(arguments.threads);
    let graphs = PROBLEMS.iter().map(graph).collect::<Result<Vec<Graph>>>()?;
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..arguments.rounds {
        for (position, graph) in graphs.iter().enumerate() {
            let row = measure(graph, arguments.threads, &device)?;
            if round == 0 {
                rows.push(row);
                continue;
            }
            for (tactic, us) in row.us {
                let least = rows[position].us.entry(tactic).or_insert(us);
                *least = least.min(us);
            }
        }
    }
    rows.iter_mut().for_each(Row::judge);
    rows.iter().for_each(|row| eprintln!("{}", row.text()));
    let within = rows.iter().filter(|row| row.factor <= SLACK).count();
    let share = within as f64 / rows.len() as f64;
    eprintln!("{within} of {} within 15 % of the best: {:.1} %", rows.len(), share * 100.0);
    if arguments.json {
        let passes = share >= SHARE_BAR;
        let (count, bar) = (rows.len(), SHARE_BAR);
        println!(
            "{}",
            json!({ "rows": rows, "problems": count, "within": within, "share": share, "bar": bar, "passes": passes })
        );
    }
    ensure!(!arguments.check || share >= SHARE_BAR, "the bar is {:.0} %", SHARE_BAR * 100.0);
    Ok(())
}

/// relu(conv(x) + bias).
fn graph(
    &(channels, filters, [height, width], [rows, columns]): &(usize, usize, [usize; 2], [usize; 2]),
) -> Result<Graph> {
    let mut graph = Graph::new("");
    let x = graph.add_input("x", Type::new(DType::F32, [1, channels, height, width].map(Dim::from).to_vec()));
    let w = graph.add_constant(Tensor::zeros(DType::F32, [filters, channels, rows, columns])?);
    let b = graph.add_constant(Tensor::zeros(DType::F32, [filters])?);
    let pad: Vec<Dim> = vec![(rows / 2).into(), (columns / 2).into()];
    let conv = Conv { stride: vec![1; 2], pad_lo: pad.clone(), pad_hi: pad, dilation: vec![1; 2], groups: 1 };
    let y = graph.add(conv, &[x, w, b], &Default::default())?;
    let y = graph.add(Unary { func: UnaryFn::Relu, alpha: 0.0, beta: 0.0 }, &[y], &Default::default())?;
    graph.add_output("y", y);
    Ok(graph)
}

fn measure(graph: &Graph, threads: usize, device: &CpuDevice) -> Result<Row> {
    let target = CpuTarget::new(Isa::detect(), threads, Default::default());
    let problems = target.tactics().problems(&target.optimise(graph)?);
    let [problem] = problems.as_slice() else { anyhow::bail!("{} problems in one convolution", problems.len()) };
    let tuner = Tuner::new(TuneOptions { mode: TuneMode::Full, seconds: None });
    let records = tuner.tune(target.tactics(), &problems, device);
    let Some((_, record)) = records.iter().next() else { anyhow::bail!("nothing was measured") };
    let us = record.times_ns.iter().map(|(tactic, ns)| (tactic.clone(), *ns as f64 / 1e3)).collect();
    let name = problem.key.split(" stride").next().unwrap_or_default().to_string();
    let chosen = problem.candidates[0].name().to_string();
    Ok(Row { problem: name, chosen, best: String::new(), factor: 1.0, us })
}

impl Row {
    fn judge(&mut self) {
        let best = self.us.iter().min_by(|(_, one), (_, other)| one.total_cmp(other));
        if let (Some((tactic, least)), Some(chosen)) = (best, self.us.get(&self.chosen)) {
            (self.best, self.factor) = (tactic.clone(), chosen / least);
        }
    }

    fn text(&self) -> String {
        let mark = if self.factor <= SLACK { " " } else { "!" };
        let times: Vec<String> = self.us.iter().map(|(tactic, us)| format!("{tactic} {us:.1}")).collect();
        format!("{mark} {:<58} {:<13} {:>5.2}  {} µs", self.problem, self.chosen, self.factor, times.join("  "))
    }
}
