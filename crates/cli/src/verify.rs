//! `verify`: a model's outputs against reference evaluation, onnxruntime or saved outputs. Names, count and Types come
//! before values; any difference ends with its own exit code.

use std::fmt::Write;
use std::path::Path;

use precast::{
    ActivationPrecision, Difference, LaunchPath, Named, Numerics, ReplayCheck, Runner, StepReport, Tensor, Tolerance,
    WeightPrecision, compare, read_archive, verify_steps,
};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{Shared, VerifyArgs};
use crate::exit::{Exit, Failure};
use crate::fitting::with_inputs;
use crate::inputs::Inputs;
use crate::onnxruntime::run_onnxruntime;
use crate::output::{Report, names_text};
use crate::subject::{open_runner, options};

/// What quantised models may differ by: one unit of a quantised value is far more than a rounding of f32.
const QUANTISED: f64 = 2e-2;
/// What int8 weights may differ by: a relative error of 0.14 is a cosine of 0.99.
const INT8: f64 = 0.14;
/// Parts of the names of operators that quantise.
const QUANTISED_OPERATORS: &[&str] = &["Quantize", "QLinear", "Integer", "NBits", "QAttention", "QGemm"];

/// Verifies.
pub fn verify(args: &VerifyArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let runner = open_runner(&args.model, shared)?;
    let numerics = shared.numerics.numerics();
    let rule = rule(args, &numerics, &runner, cx);
    let declared = runner.model().inputs()?;
    let (inputs, found) = with_inputs(&declared, Some(&runner), &args.inputs, &cx.console, |inputs| {
        Ok(cx.console.during("compiling and running", None, || runner.run(&inputs.tensors))?)
    })?;
    let expected = expected(args, shared, &runner, &inputs, cx)?;
    let verdicts = verdicts(&found, &expected, &rule);
    let mut is_equal = verdicts.iter().all(|verdict| verdict.is_good);
    let taken = if numerics == Numerics::default() { String::new() } else { format!(" ({numerics})") };
    let mut text = format!("verify   {}{taken} against {}\n", args.model.display(), args.against);
    let mut json = json!({
        "model": args.model.display().to_string(),
        "against": args.against,
        "numerics": numerics.fields(),
        "outputs": verdicts.iter().map(Verdict::json).collect::<Vec<_>>(),
    });
    verdicts.iter().for_each(|verdict| text.push_str(&verdict.text()));
    if args.per_step || args.bisect {
        let steps = cx.console.during("verifying steps", None, || verify_steps(&runner, &inputs.tensors))?;
        let is_bad = |step: &&StepReport| !rule.admits_difference(&step.difference);
        let first = steps.iter().find(is_bad);
        is_equal &= first.is_none();
        text.push_str(&steps_text(&steps, first, args.per_step));
        json["first_diverging_step"] = first.map_or(Value::Null, step_json);
        if args.per_step {
            json["steps"] = steps.iter().map(step_json).collect();
        }
    }
    if args.replay {
        let check = cx.console.during("replaying", None, || checked_replay(&runner, &inputs))?;
        is_equal &= check.is_equal();
        text.push_str(&replay_text(&check));
        json["replay"] = replay_json(&check);
    }
    let _ = writeln!(text, "verdict  {}", if is_equal { "equal within tolerance" } else { "outputs differ" });
    json["equal"] = json!(is_equal);
    let (exit, error) = match is_equal {
        true => (Exit::Done, None),
        false => (Exit::Differ, Some("outputs differ".to_string())),
    };
    Ok(Report { text, json, exit, error })
}

/// The model launched both ways, where it can be.
fn checked_replay(runner: &Runner, inputs: &Inputs) -> Result<ReplayCheck, Failure> {
    let Some(mut ready) = runner.ready(&inputs.tensors)? else {
        return Err(Failure::usage("--replay: the model is not one Program, so it has no capture".to_string()));
    };
    let check = ready.check_replay()?;
    match check.last.launch {
        LaunchPath::Replayed | LaunchPath::Captured => Ok(check),
        LaunchPath::Steps(reason) => {
            Err(Failure::usage(format!("--replay: the Program is not replayed on this device ({})", reason.name())))
        }
    }
}

fn replay_text(check: &ReplayCheck) -> String {
    let mut text = format!("replay   {}; {} runs compared with ordinary launches\n", check.last, check.compared);
    for (name, eager, replayed) in &check.outputs {
        let is_equal = eager.as_bytes() == replayed.as_bytes();
        let mark = if is_equal { "ok    " } else { "DIFFER" };
        let worst =
            if is_equal { "equal bytes".to_string() } else { worst_text(&compare(replayed, eager), eager.shape()) };
        let _ = writeln!(text, "{mark}   {name} {worst}");
    }
    text
}

fn replay_json(check: &ReplayCheck) -> Value {
    let outputs = check.outputs.iter().map(|(name, eager, replayed)| {
        let is_equal = eager.as_bytes() == replayed.as_bytes();
        json!({ "name": name, "equal": is_equal, "difference": difference_json(&compare(replayed, eager)) })
    });
    json!({
        "launch": check.last.launch.name(),
        "compared": check.compared,
        "equal": check.is_equal(),
        "outputs": outputs.collect::<Vec<_>>(),
    })
}

/// How near outputs must be.
struct Rule {
    /// What the flags say, for every output.
    given: Option<Tolerance>,
    /// What a quantised model, or one compiled with liberties, may differ by.
    loose: Option<f64>,
    /// A quantised model.
    is_quantised: bool,
}

impl Rule {
    fn tolerance(&self, tensor: &Tensor) -> Tolerance {
        let own = || self.loose.map_or(Tolerance::of_model(tensor.dtype()), Tolerance::Relative);
        self.given.unwrap_or_else(own)
    }

    /// For a step only its measure is known, not its tensors. Its meaning has the liberties in it, so they excuse nothing.
    fn admits_difference(&self, difference: &Difference) -> bool {
        match self.given {
            Some(Tolerance::Relative(limit)) => difference.relative_error <= limit,
            Some(Tolerance::Elements { relative, absolute }) => {
                difference.absolute_error_max <= absolute + relative * difference.worst_values.1.abs()
            }
            None => {
                let is_narrow = difference.description.starts_with("f16") || difference.description.starts_with("bf16");
                difference.relative_error <= if is_narrow || self.is_quantised { QUANTISED } else { 1e-4 }
            }
        }
    }
}

fn rule(args: &VerifyArgs, numerics: &Numerics, runner: &Runner, cx: &Cx) -> Rule {
    let given = match (args.rel, args.rtol, args.atol) {
        (Some(rel), _, _) => Some(Tolerance::Relative(rel)),
        (None, None, None) => None,
        (None, rtol, atol) => {
            Some(Tolerance::Elements { relative: rtol.unwrap_or(0.0), absolute: atol.unwrap_or(0.0) })
        }
    };
    let operators = runner.model().summary().operators;
    let is_quantised = operators.keys().any(|name| QUANTISED_OPERATORS.iter().any(|part| name.contains(part)));
    let (why, loose) = match (numerics.weights, is_quantised) {
        _ if numerics.activations == ActivationPrecision::Int8 => ("activations are multiplied in 8 bits", Some(INT8)),
        (WeightPrecision::Int8, _) => ("weights are multiplied in 8 bits", Some(INT8)),
        (WeightPrecision::Bf16, _) => ("weights are rounded to bf16", Some(QUANTISED)),
        (WeightPrecision::F32, true) => ("the model is quantised", Some(QUANTISED)),
        (WeightPrecision::F32, false) if !numerics.fast_math.is_empty() => ("fast-math is on", Some(QUANTISED)),
        (WeightPrecision::F32, false) => ("", None),
    };
    if let (Some(loose), None) = (loose, given) {
        cx.console.notice(&format!("{why}: outputs may differ by {loose:e}; --rel sets it"));
    }
    Rule { given, loose, is_quantised }
}

fn expected(args: &VerifyArgs, shared: &Shared, runner: &Runner, inputs: &Inputs, cx: &Cx) -> Result<Named, Failure> {
    match args.against.as_str() {
        "reference" | "ref" => {
            let outputs = cx.console.during("evaluating the reference", None, || runner.run_reference(&inputs.tensors));
            Ok(outputs?)
        }
        "onnxruntime" | "ort" => {
            let names = runner.model().outputs();
            run_onnxruntime(&args.python, &args.model, &inputs.tensors, &names, options(shared).threads, cx)
        }
        file if file.ends_with(".npz") => Ok(read_archive(Path::new(file), |_| None)?),
        other => Err(Failure::usage(format!("--against {other}: reference, onnxruntime or FILE.npz is expected"))),
    }
}

/// One output on both sides.
struct Verdict {
    name: String,
    difference: Option<Difference>,
    shape: Vec<usize>,
    tolerance: Option<Tolerance>,
    is_good: bool,
    /// Why there are no values to compare.
    missing: Option<&'static str>,
}

fn verdicts(found: &[(String, Tensor)], expected: &[(String, Tensor)], rule: &Rule) -> Vec<Verdict> {
    let absent = |name: &str, missing| Verdict {
        name: name.to_string(),
        difference: None,
        shape: Vec::new(),
        tolerance: None,
        is_good: false,
        missing: Some(missing),
    };
    let mut verdicts: Vec<Verdict> = found
        .iter()
        .map(|(name, tensor)| {
            let Some((_, other)) = expected.iter().find(|(other, _)| other == name) else {
                return absent(name, "is not among the outputs expected");
            };
            let tolerance = rule.tolerance(tensor);
            Verdict {
                name: name.clone(),
                difference: Some(compare(tensor, other)),
                shape: tensor.shape().to_vec(),
                tolerance: Some(tolerance),
                is_good: tolerance.admits(tensor, other),
                missing: None,
            }
        })
        .collect();
    let extra = expected.iter().filter(|(name, _)| !found.iter().any(|(other, _)| other == name));
    verdicts.extend(extra.map(|(name, _)| absent(name, "is expected but the model does not give it")));
    verdicts
}

impl Verdict {
    fn text(&self) -> String {
        let mark = if self.is_good { "ok    " } else { "DIFFER" };
        let Some(difference) = &self.difference else {
            return format!("{mark}   {} {}\n", self.name, self.missing.unwrap_or_default());
        };
        let tolerance = self.tolerance.map_or(String::new(), |tolerance| format!(" (allowed: {tolerance})"));
        let mut text = format!("{mark}   {} {}", self.name, difference.description);
        if difference.absolute_error_max.is_finite() || difference.relative_error.is_finite() {
            let _ = write!(text, "  relative {:.3e}{tolerance}", difference.relative_error);
        }
        if difference.absolute_error_max > 0.0 {
            let _ = write!(text, "  {}", worst_text(difference, &self.shape));
        }
        text + "\n"
    }

    fn json(&self) -> Value {
        let mut json = json!({ "name": self.name, "equal": self.is_good, "missing": self.missing });
        if let Some(difference) = &self.difference {
            json["difference"] = difference_json(difference);
            json["worst_index"] = json!(index_of(difference.worst_index, &self.shape));
        }
        json["tolerance"] = json!(self.tolerance.map(|tolerance| tolerance.to_string()));
        json
    }
}

fn worst_text(difference: &Difference, shape: &[usize]) -> String {
    let (a, b) = difference.worst_values;
    let index = index_of(difference.worst_index, shape);
    format!("worst {:.3e} at {index:?}: {a} where {b} is expected", difference.absolute_error_max)
}

/// A flat position as an index of each axis.
fn index_of(flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = flat;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let axis = rest % size.max(1);
            rest /= size.max(1);
            axis
        })
        .collect();
    index.reverse();
    index
}

fn difference_json(difference: &Difference) -> Value {
    json!({
        "relative_error": difference.relative_error,
        "absolute_error_max": difference.absolute_error_max,
        "worst_flat_index": difference.worst_index,
        "found": difference.worst_values.0,
        "expected": difference.worst_values.1,
        "description": difference.description,
    })
}

fn step_json(step: &StepReport) -> Value {
    json!({ "node": step.node, "op": step.op, "nodes": step.nodes, "difference": difference_json(&step.difference) })
}

fn steps_text(steps: &[StepReport], first: Option<&StepReport>, is_full: bool) -> String {
    let mut text = String::new();
    if is_full {
        for step in steps {
            let _ = writeln!(
                text,
                "{:>6}  {:<20} {:>10.3e}  {}",
                step.node,
                step.op,
                step.difference.relative_error,
                names_text(&step.nodes)
            );
        }
    }
    let _ = match first {
        None => writeln!(text, "steps    {} compared, none diverges", steps.len()),
        Some(step) => writeln!(
            text,
            "first diverging step: {} {} of {}\n  {}  relative {:.3e}  element {}: {} where {} is expected",
            step.node,
            step.op,
            names_text(&step.nodes),
            step.difference.description,
            step.difference.relative_error,
            step.difference.worst_index,
            step.difference.worst_values.0,
            step.difference.worst_values.1
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_position_becomes_an_index() {
        assert_eq!(index_of(7, &[2, 3, 2]), [1, 0, 1]);
        assert_eq!(index_of(0, &[]), [0; 0]);
        assert_eq!(index_of(0, &[0, 3]), [0, 0]);
    }

    #[test]
    fn missing_extra_and_differently_shaped_outputs_are_failures() {
        let rule = Rule { given: Some(Tolerance::Relative(1e9)), loose: None, is_quantised: false };
        let named = |name: &str, sizes: &[usize]| {
            (name.to_string(), Tensor::zeros(precast::DType::F32, sizes.to_vec()).unwrap())
        };
        let verdicts = verdicts(&[named("a", &[2]), named("b", &[2])], &[named("a", &[1, 2]), named("c", &[2])], &rule);
        let good: Vec<(&str, bool)> = verdicts.iter().map(|v| (v.name.as_str(), v.is_good)).collect();
        assert_eq!(good, [("a", false), ("b", false), ("c", false)]);
    }
}
