//! `compile`: a model becomes a Program file with its constants beside it.

use std::fmt::Write;
use std::time::Instant;

use precast::{PassReport, Place, Program, Step, Tactic, move_program, save_program};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{CompileArgs, Shared};
use crate::exit::{Exit, Failure};
use crate::fitting::with_inputs;
use crate::inputs::Inputs;
use crate::numerics::numerics_text;
use crate::output::{Report, kernel_text, names_text, program_json, program_text};
use crate::subject::open_tuned_runner;

/// Name of the Program on its way to its place.
const STAGED: &str = "program";

/// Compiles.
pub fn compile(args: &CompileArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let staging = cx.interrupt.staging_beside(&args.output)?;
    let runner = open_tuned_runner(&args.model, shared, &args.tune, args.cache.as_deref())?;
    let begun = Instant::now();
    let declared = runner.model().inputs()?;
    let (inputs, compiled) = with_inputs(&declared, Some(&runner), &args.inputs, &cx.console, |inputs| {
        let compile = || runner.compile(&inputs.tensors, &inputs.bucket);
        Ok(cx.console.during("compiling", None, compile)?)
    })?;
    let compile_ms = begun.elapsed().as_secs_f64() * 1e3;
    let Some(program) = compiled else {
        return Err(Failure::new(
            Exit::Model,
            "the model is not one Program: sizes or branches inside it depend on values. `precast run` and `precast perf` \
             run it part by part",
        ));
    };
    announce_frozen(&program, &inputs, cx);
    let staged = staging.path(STAGED);
    cx.console.during("writing", None, || save_program(&staged, &program, runner.store()))?;
    staging.publish(|| move_program(&staged, &args.output))?;
    let mut text = format!(
        "program  {} · {} · {}\n{} · {compile_ms:.0} ms\n",
        args.output.display(),
        program.target,
        if inputs.bucket == Default::default() { "fixed sizes".to_string() } else { inputs.bucket.to_string() },
        program_text(&program),
    );
    let mut json = program_json(&program);
    json["model"] = json!(args.model.display().to_string());
    json["output"] = json!(args.output.display().to_string());
    json["compile_ms"] = json!(compile_ms);
    if args.explain {
        let _ = writeln!(text, "numerics {}", numerics_text(&program));
        let reports = runner.explain_passes(&inputs.tensors)?;
        text.push_str(&passes_text(&reports));
        text.push_str(&steps_text(&program));
        json["passes"] = passes_json(&reports);
        json["explain"] = steps_json(&program);
    }
    Ok(Report::done(text, json))
}

/// Inputs that the Program does not take because their values decided its form.
fn announce_frozen(program: &Program, inputs: &Inputs, cx: &Cx) {
    for (name, tensor) in &inputs.tensors {
        if !program.inputs.iter().any(|port| port.name == *name) {
            cx.console.notice(&format!("input '{name}' is a constant of this Program: {tensor:?}"));
        }
    }
}

/// Nodes of one kind that are named; of the rest only the number is told.
const PLACES_SHOWN: usize = 3;

/// What each pass did and what it left alone and why, for people.
fn passes_text(reports: &[PassReport]) -> String {
    let mut text = String::new();
    let width = reports.iter().map(|report| report.pass.len()).max().unwrap_or(0);
    for report in reports {
        let fired = match (report.is_skipped, report.fired.len()) {
            (true, _) => "off".to_string(),
            (false, 0) => "–".to_string(),
            (false, count) => format!("{count} ×  {}", places_text(&report.fired)),
        };
        let _ = writeln!(text, "pass   {:<width$}  {fired}", report.pass);
        for (reason, places) in &report.refused {
            let _ = writeln!(text, "       {:<width$}  left {} × {reason}: {}", "", places.len(), places_text(places));
        }
    }
    text
}

fn places_text(places: &[Place]) -> String {
    let name = |place: &Place| match place.names.names().first() {
        Some(name) => name.to_string(),
        None => place.op.to_string(),
    };
    let mut names: Vec<String> = places.iter().take(PLACES_SHOWN).map(name).collect();
    if places.len() > PLACES_SHOWN {
        names.push("…".to_string());
    }
    names.join(", ")
}

/// What each pass did and what it left alone and why, for machines.
fn passes_json(reports: &[PassReport]) -> Value {
    let place = |place: &Place| {
        let nodes: Vec<&str> = place.names.names().iter().map(|name| &**name).collect();
        json!({ "op": place.op, "nodes": nodes })
    };
    let places = |places: &[Place]| -> Value { places.iter().map(place).collect() };
    let report = |report: &PassReport| {
        let refused: Vec<Value> =
            report.refused.iter().map(|(reason, left)| json!({ "reason": reason, "places": places(left) })).collect();
        json!({ "pass": report.pass, "is_skipped": report.is_skipped, "fired": places(&report.fired), "refused": refused })
    };
    reports.iter().map(report).collect()
}

/// Every step with its kernel and nodes, for people.
pub fn steps_text(program: &Program) -> String {
    let mut text = String::new();
    let kernel = |step: &Step| kernel_text(&step.kernel, Tactic::why_of(&step.parameters).as_deref());
    let kernels: Vec<String> = program.steps.iter().map(kernel).collect();
    let width = kernels.iter().map(String::len).max().unwrap_or(0);
    for (position, (step, kernel)) in program.steps.iter().zip(kernels).enumerate() {
        let _ = writeln!(text, "{position:>5}  {kernel:<width$}  {}", names_text(&step.provenance));
    }
    text
}

/// Every step with its kernel and nodes, for machines.
pub fn steps_json(program: &Program) -> Value {
    let step = |(position, step): (usize, &Step)| {
        let tactic = Tactic::why_of(&step.parameters);
        json!({ "step": position, "kernel": step.kernel, "tactic": tactic, "nodes": step.provenance })
    };
    program.steps.iter().enumerate().map(step).collect()
}
