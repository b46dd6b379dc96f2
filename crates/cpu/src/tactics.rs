//! Which tactic a step is compiled with: the one that was measured to be fastest, else the cost model's. A problem is decided
//! when it is first asked for and stays so, so that the digest in a Program's key and its code rest on the same records.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use precast_ir::{Graph, Op};
use precast_kernels::conv::{ConvShape, ConvTactic, Liberty, rank_tactics};
use precast_program::{TargetDescription, TuningRecord, TuningTable};
use precast_tensor::Digest;

use crate::ops::conv::{own_bias, tactic_shape};
use crate::ops::epilogue::Epilogue;
use crate::ops::matmul_exact;
use crate::step::{Machine, StepNode, Tactic};

/// Changes when measured times are no longer comparable: other kernels, other inputs, another way to measure.
const TUNER_VERSION: u32 = 1;

/// A convolution that several tactics cover.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What its record is found by: everything that its times depend on, in words.
    pub key: String,
    /// Its sizes, for one image.
    pub shape: ConvShape,
    /// What follows it.
    pub(crate) epilogue: Epilogue,
    /// Whether it has a bias of its own.
    pub(crate) has_bias: bool,
    /// The tactics that cover it, the cost model's best first; at least two.
    pub candidates: Vec<ConvTactic>,
}

impl Problem {
    /// Multiply-adds of one image.
    fn work(&self) -> usize {
        let ConvShape { out_channels, out_height, out_width, filter_height, filter_width, .. } = self.shape;
        let channels = self.shape.in_channels / self.shape.groups.max(1);
        out_channels * out_height * out_width * filter_height * filter_width * channels
    }
}

/// How the tactics of steps are chosen.
pub struct Tactics {
    machine: Machine,
    target: String,
    table: TuningTable,
    decided: Mutex<BTreeMap<String, Option<TuningRecord>>>,
    /// Forms that weights were found to have, or not, by digest: all Buckets of a model have the same weights.
    exact: Mutex<BTreeMap<(Digest, bool), Option<Tactic>>>,
}

impl Tactics {
    pub(crate) fn new(machine: Machine, target: &TargetDescription, table: TuningTable) -> Tactics {
        Tactics { machine, target: target.to_string(), table, decided: Mutex::default(), exact: Mutex::default() }
    }

    /// What the steps are compiled for.
    pub(crate) fn machine(&self) -> Machine {
        self.machine
    }

    /// Whether any choice can rest on a record.
    pub fn has_records(&self) -> bool {
        !self.table.is_empty() || self.decided().values().any(Option::is_some)
    }

    /// The problems of a Graph as the steps compute it, each once, those with the most work in all first.
    pub fn problems(&self, graph: &Graph) -> Vec<Problem> {
        let mut found: BTreeMap<String, (usize, Problem)> = BTreeMap::new();
        for node in graph.nodes().iter().filter(|node| matches!(node.op, Op::Conv(_) | Op::Fused(_))) {
            let step = StepNode::new(graph, node).ok();
            if let Some(problem) = step.and_then(|step| self.problem(&step)) {
                let work = problem.work();
                found.entry(problem.key.clone()).or_insert((0, problem)).0 += work;
            }
        }
        let mut found: Vec<(usize, Problem)> = found.into_values().collect();
        found.sort_by(|(one, _), (other, _)| other.cmp(one));
        found.into_iter().map(|(_, problem)| problem).collect()
    }

    /// The record that a problem is decided by; none leaves it to the cost model.
    pub fn record(&self, key: &str) -> Option<TuningRecord> {
        self.decided().entry(key.to_string()).or_insert_with(|| self.table.get(key).cloned()).clone()
    }

    /// Whether a problem still waits for a record of that many candidates.
    pub fn is_open(&self, key: &str, candidates: usize) -> bool {
        let is_short = |record: &TuningRecord| record.times_ns.len() < candidates || !is_known(&record.tactic);
        !self.decided().contains_key(key) && self.table.get(key).is_none_or(is_short)
    }

    /// Decides a problem, unless it is.
    pub fn decide(&self, key: &str, record: Option<TuningRecord>) {
        self.decided().entry(key.to_string()).or_insert(record);
    }

    /// The digest of the records that decide these problems; none if the cost model decides all.
    pub fn digest<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Option<Digest> {
        let mut used = TuningTable::default();
        for key in keys {
            if let Some(record) = self.record(key).filter(|record| is_known(&record.tactic)) {
                used.add(key, record);
            }
        }
        (!used.is_empty()).then(|| used.digest())
    }

    /// The tactic of a step; none for a step that has but one kernel.
    pub(crate) fn choose(&self, step: &StepNode) -> Option<Tactic> {
        if let Some(tactic) = self.exact_form(step) {
            return Some(tactic);
        }
        let (shape, epilogue) = tactic_shape(step)?;
        let ranked = rank_tactics(self.machine.threads, &shape, self.machine.liberty());
        if self.has_records()
            && let Some(problem) = self.problem_of(step, &shape, &epilogue, &ranked)
            && let Some(record) = self.record(&problem.key)
            && problem.candidates.iter().any(|tactic| tactic.name() == record.tactic)
        {
            return Some(Tactic { why: why(&record), name: record.tactic });
        }
        let why = if ranked.len() > 1 { "(cost model)" } else { "(only one)" };
        Some(Tactic { name: ranked[0].name().to_string(), why: why.to_string() })
    }

    fn exact_form(&self, step: &StepNode) -> Option<Tactic> {
        let weights = matmul_exact::candidate(step, self.machine)?;
        let key = (weights.constant.digest(), weights.is_transposed);
        let lock = || self.exact.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).cloned();
        known.unwrap_or_else(|| lock().entry(key).or_insert(weights.tactic(self.machine)).clone())
    }

    /// The problem of a step, if it has one.
    fn problem(&self, step: &StepNode) -> Option<Problem> {
        let (shape, epilogue) = tactic_shape(step)?;
        let ranked = rank_tactics(self.machine.threads, &shape, self.machine.liberty());
        self.problem_of(step, &shape, &epilogue, &ranked)
    }

    fn problem_of(
        &self,
        step: &StepNode,
        shape: &ConvShape,
        epilogue: &Epilogue,
        ranked: &[ConvTactic],
    ) -> Option<Problem> {
        // For one image whatever the Bucket, so that all Buckets take one tactic and share their packed filters.
        let shape = ConvShape { batch: 1, ..*shape };
        let has_bias = own_bias(step, epilogue).is_some();
        let problem = Problem {
            key: self.key(&shape, epilogue, has_bias),
            shape,
            epilogue: epilogue.clone(),
            has_bias,
            candidates: ranked.to_vec(),
        };
        (ranked.len() > 1).then_some(problem)
    }

    fn key(&self, shape: &ConvShape, epilogue: &Epilogue, has_bias: bool) -> String {
        let ConvShape { in_channels, in_height, in_width, out_channels, out_height, out_width, .. } = shape;
        let ConvShape { filter_height, filter_width, stride, pad_top, pad_left, dilation, groups, .. } = shape;
        let bias = if has_bias { "bias+" } else { "" };
        let numerics = match self.machine.liberty() {
            Liberty::Strict => "strict",
            Liberty::Rounding => "reorder",
            Liberty::Bf16 => "bf16",
        };
        format!(
            "conv f32 in={in_channels}x{in_height}x{in_width} out={out_channels}x{out_height}x{out_width} \
             filter={filter_height}x{filter_width} stride={}x{} pad={pad_top}x{pad_left} dilation={}x{} groups={groups} \
             epilogue={bias}{} numerics={numerics} {} tuner={TUNER_VERSION}",
            stride[0],
            stride[1],
            dilation[0],
            dilation[1],
            epilogue.kind(),
            self.target,
        )
    }

    fn decided(&self) -> MutexGuard<'_, BTreeMap<String, Option<TuningRecord>>> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this build has a tactic of that name; records of others may be newer than this build.
fn is_known(tactic: &str) -> bool {
    ConvTactic::from_name(tactic).is_some()
}

/// A record for people, the chosen tactic's time first.
fn why(record: &TuningRecord) -> String {
    let ms = |ns: u64| format!("{:.4} ms", ns as f64 / 1e6);
    let mut times: Vec<(&String, &u64)> = record.times_ns.iter().collect();
    times.sort_by_key(|(tactic, ns)| (**tactic != record.tactic, **ns));
    let words = times.into_iter().map(|(tactic, ns)| match *tactic == record.tactic {
        true => ms(*ns),
        false => format!("{tactic} {}", ms(*ns)),
    });
    format!("(tuned: {})", words.collect::<Vec<_>>().join(", "))
}
