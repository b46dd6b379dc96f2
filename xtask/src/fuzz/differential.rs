//! Random graphs on everything that computes: reference evaluation, the CPU with its passes, without any that may be left
//! out and without one of them, and onnxruntime with and without its own. onnxruntime is no judge where its two forms disagree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use precast::npy::read_npy;
use precast::{CANONICAL, FUSED, Model, Named, PassOptions, Runner, RunnerOptions, Tensor};
use precast_ir::eval::eval_graph;
use precast_onnx::proto::ModelProto;
use prost::Message;

use super::graphs::{self, Generated};
use super::targets::write_arrays;
use super::{BATCH_GRAPHS, BatchReport, FuzzArguments, FuzzTarget, ask};
use crate::venv;
use crate::worker::on_all_cores;

const SCRIPT: &str = include_str!("../../python/fuzz_ort.py");

/// A batch takes as long as its graphs; one that hangs is found by this.
const BATCH: Duration = Duration::from_secs(180);

/// Runs graphs until there are enough of them or the time is over.
pub fn run(arguments: &FuzzArguments) -> Result<BatchReport> {
    let (next, total) = (AtomicU64::new(arguments.first), Mutex::new(BatchReport::default()));
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let last = arguments.graphs.map(|graphs| arguments.first + graphs);
    let run_some = || -> Result<()> {
        let mut worker = None;
        loop {
            let first = next.fetch_add(BATCH_GRAPHS, Ordering::Relaxed);
            if last.is_some_and(|last| first >= last) || (last.is_none() && Instant::now() >= end) {
                return Ok(());
            }
            let answer = ask(FuzzTarget::Differential, first, BATCH_GRAPHS, BATCH, &mut worker)?;
            let report = answer.unwrap_or_else(|reason| BatchReport {
                inputs: BATCH_GRAPHS,
                failures: vec![(first, format!("a graph of {BATCH_GRAPHS} from here on: {reason}"))],
                ..BatchReport::default()
            });
            total.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(report);
        }
    };
    on_all_cores(&run_some)?;
    Ok(total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// Graphs `first..first + count` on everything. `accepted` counts those that onnxruntime judged too.
pub fn run_graphs(first: u64, count: u64) -> Result<BatchReport> {
    let mut report = BatchReport { inputs: count, ..BatchReport::default() };
    let work = tempfile::tempdir()?;
    let mut ours = Vec::new();
    for seed in first..first + count {
        let generated = graphs::generate(seed);
        for refusal in &generated.refusals {
            report.note(&format!("refused {}: {}", refusal.operator, refusal.reason));
        }
        let case = Case::of(&generated, seed);
        match case.run_ours() {
            Ok(outputs) => match generated.unjudged {
                Some(reason) => report.note(&format!("not judged by onnxruntime: {reason}")),
                None => {
                    case.write(&work.path().join(seed.to_string()))?;
                    ours.push((seed, case, outputs));
                }
            },
            Err(error) => report.failures.push((seed, format!("{error:#}"))),
        }
    }
    run_onnxruntime(work.path())?;
    for (seed, case, outputs) in ours {
        match judge(&work.path().join(seed.to_string()), &outputs, &case.judged_tolerances) {
            Ok(Judgement::Agrees) => report.accepted += 1,
            Ok(Judgement::None(reason)) => report.note(&format!("not judged by onnxruntime: {reason}")),
            Err(error) => report.failures.push((seed, format!("{error:#}"))),
        }
    }
    Ok(report)
}

/// A model with inputs, and how far results may be apart.
#[derive(Clone)]
pub struct Case {
    /// The model.
    pub model: ModelProto,
    /// Inputs by name.
    pub inputs: Named,
    /// For each output.
    pub tolerances: Vec<f64>,
    /// For each output, against onnxruntime.
    pub judged_tolerances: Vec<f64>,
    /// Whether onnxruntime is asked.
    is_judged: bool,
    /// The pass that one of the runs leaves out.
    left_out: &'static str,
}

impl Case {
    /// The case of a generated graph; passes take turns in being left out.
    pub fn of(generated: &Generated, seed: u64) -> Case {
        Case {
            model: generated.model.clone(),
            inputs: generated.inputs.clone(),
            tolerances: generated.tolerances.clone(),
            judged_tolerances: generated.judged_tolerances.clone(),
            is_judged: generated.unjudged.is_none(),
            left_out: pass_of(seed),
        }
    }

    /// Leaves the model and its inputs in a folder.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("model.onnx"), self.model.encode_to_vec())?;
        write_arrays(folder, "input", &self.inputs)
    }

    /// Outputs by reference.
    pub fn run_reference(&self) -> Result<Named> {
        let model = Model::from_bytes(self.model.encode_to_vec().into())?;
        let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() })?;
        Ok(runner.run_reference(&self.inputs)?)
    }

    /// Outputs by reference, which those of the CPU must be near to in every form.
    pub fn run_ours(&self) -> Result<Named> {
        let model = Model::from_bytes(self.model.encode_to_vec().into())?;
        let runner = |disabled: Vec<String>| {
            let passes = PassOptions { disabled, ..PassOptions::default() };
            Runner::new(model.clone(), RunnerOptions { threads: 1, passes, ..RunnerOptions::default() })
        };
        let plain = runner(Vec::new())?;
        let expected = plain.run_reference(&self.inputs).context("reference")?;
        let all = passes().map(str::to_string).collect();
        for (name, disabled) in [
            ("cpu".to_string(), vec![]),
            ("cpu without passes".to_string(), all),
            (format!("cpu without {}", self.left_out), vec![self.left_out.to_string()]),
        ] {
            let found = runner(disabled)?.run(&self.inputs).with_context(|| name.clone())?;
            check(&found, &expected, &self.tolerances).with_context(|| format!("{name} against the reference"))?;
        }
        self.check_symbolic(&model, &expected)?;
        Ok(expected)
    }

    /// The Graph with symbols for its dims, if it has one, means the same at these sizes.
    fn check_symbolic(&self, model: &Model, expected: &Named) -> Result<()> {
        let Ok(graph) = model.symbolic_graph() else { return Ok(()) };
        let arguments: Vec<Tensor> = graph
            .inputs()
            .iter()
            .filter_map(|&input| self.inputs.iter().find(|(name, _)| name == graph.input_name(input)))
            .map(|(_, tensor)| tensor.clone())
            .collect();
        let found = eval_graph(&graph, &arguments).context("symbolic Graph")?;
        let found: Named = expected.iter().map(|(name, _)| name.clone()).zip(found).collect();
        check(&found, expected, &self.tolerances).context("symbolic Graph against the reference")
    }

    /// Everything at once, for one case: an error is a difference.
    pub fn run_all(&self) -> Result<()> {
        let outputs = self.run_ours()?;
        if !self.is_judged {
            return Ok(());
        }
        let work = tempfile::tempdir()?;
        let folder = work.path().join("case");
        self.write(&folder)?;
        run_onnxruntime(work.path())?;
        judge(&folder, &outputs, &self.judged_tolerances).map(drop)
    }
}

/// Every pass that may be left out.
fn passes() -> impl Iterator<Item = &'static str> {
    CANONICAL.iter().chain(FUSED).map(|pass| pass.name)
}

fn pass_of(seed: u64) -> &'static str {
    let count = passes().count() as u64;
    passes().nth((seed % count) as usize).expect("there are passes")
}

/// Leaves what onnxruntime gives in every folder below a root.
pub(super) fn run_onnxruntime(root: &Path) -> Result<()> {
    let script = root.join("fuzz_ort.py");
    fs::write(&script, SCRIPT)?;
    venv::call(Command::new(venv::python()?).arg(&script).arg(root))
}

fn check(found: &Named, expected: &Named, tolerances: &[f64]) -> Result<()> {
    ensure!(found.len() == expected.len(), "{} outputs where {} are expected", found.len(), expected.len());
    for (((name, found), (_, expected)), &tolerance) in found.iter().zip(expected).zip(tolerances) {
        ensure!(is_near(found, expected, tolerance), "output '{name}': {}", description(found, expected));
    }
    Ok(())
}

fn description(found: &Tensor, expected: &Tensor) -> String {
    let difference = precast::compare(found, expected);
    let (found, expected) = difference.worst_values;
    format!(
        "{}, {found} where {expected} is expected at {} (relative {:.1e})",
        difference.description, difference.worst_index, difference.relative_error
    )
}

/// Near as a whole, or every element near: an output of tiny numbers has no scale of its own.
fn is_near(found: &Tensor, expected: &Tensor, tolerance: f64) -> bool {
    let difference = precast::compare(found, expected);
    difference.relative_error <= tolerance || difference.absolute_error_max <= tolerance
}

/// What onnxruntime says of our outputs.
enum Judgement {
    Agrees,
    /// It could not run the graph, or is not of one mind.
    None(String),
}

fn judge(folder: &Path, ours: &Named, tolerances: &[f64]) -> Result<Judgement> {
    if let Ok(error) = fs::read_to_string(folder.join("error.txt")) {
        return Ok(Judgement::None(error));
    }
    for (index, ((name, expected), &tolerance)) in ours.iter().zip(tolerances).enumerate() {
        let read = |prefix: &str| -> Result<Tensor> {
            let path: PathBuf = folder.join(format!("{prefix}_{index}.npy"));
            let bytes = fs::read(&path).with_context(|| format!("cannot read '{}'", path.display()))?;
            Ok(read_npy(&bytes.into(), Some(expected.dtype()))?)
        };
        let (plain, optimised) = (read("plain")?, read("optimised")?);
        if !is_near(&optimised, &plain, tolerance) {
            return Ok(Judgement::None("its optimised form gives something else".to_string()));
        }
        if !is_near(expected, &plain, tolerance) {
            bail!("output '{name}' against onnxruntime: {}", description(expected, &plain));
        }
    }
    Ok(Judgement::Agrees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::growing::tolerance_of;

    fn named(elements: &[f32]) -> Named {
        let tensor = Tensor::from_vec([elements.len()], elements.to_vec()).expect("as many elements as the shape has");
        vec![("y".to_string(), tensor)]
    }

    #[test]
    fn a_planted_difference_is_found() {
        let check = |found: &[f32], expected: &[f32]| check(&named(found), &named(expected), &[2e-4]);
        assert!(check(&[1.0, 2.0], &[1.0, 2.0001]).is_ok());
        assert!(check(&[1.0, 2.0], &[1.0, 2.01]).is_err());
        assert!(check(&[1.0], &[1.0, 2.0]).is_err());
        assert!(check(&[f32::NAN], &[1.0]).is_err());
    }

    /// A case that was checked in, and the outputs that are right.
    fn recorded(folder: &Path) -> (Case, Named) {
        let model = ModelProto::decode(fs::read(folder.join("model.onnx")).unwrap().as_slice()).unwrap();
        let array = |name: String| read_npy(&fs::read(folder.join(name)).unwrap().into(), None).unwrap();
        let graph = model.graph.clone().unwrap();
        let inputs = graph.input.iter().enumerate();
        let inputs = inputs.map(|(at, input)| (input.name.clone(), array(format!("input_{at}.npy")))).collect();
        let outputs = graph.output.iter().enumerate();
        let outputs: Named =
            outputs.map(|(at, output)| (output.name.clone(), array(format!("output_{at}.npy")))).collect();
        let tolerances: Vec<f64> = outputs.iter().map(|(_, tensor)| tolerance_of(tensor.dtype())).collect();
        let judged_tolerances = tolerances.clone();
        (Case { model, inputs, tolerances, judged_tolerances, is_judged: false, left_out: pass_of(0) }, outputs)
    }

    #[test]
    fn differences_that_were_found_stay_away() {
        let folder = crate::paths::root().join("fuzz").join("differences");
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let (mut case, expected) = recorded(&path);
            for pass in passes() {
                case.left_out = pass;
                let found = case.run_ours().unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
                super::check(&found, &expected, &case.tolerances)
                    .unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            }
        }
    }

    #[test]
    fn exact_outputs_must_be_equal() {
        assert!(super::check(&named(&[1.0]), &named(&[1.0000001]), &[0.0]).is_err());
    }
}
