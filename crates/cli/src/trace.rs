//! `trace`: the steps of a few runs on a time line, in the JSON that Perfetto and chrome://tracing open.

use std::fs;
use std::time::Duration;

use precast::Ready;
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{Shared, TraceArgs};
use crate::exit::{Exit, Failure};
use crate::fitting::with_inputs;
use crate::output::Report;
use crate::subject::Subject;

/// Name of the trace on its way to its place.
const STAGED: &str = "trace";
/// Runs before the ones on the time line.
const WARM_RUNS: usize = 3;

/// Traces.
pub fn trace(args: &TraceArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let staging = cx.interrupt.staging_beside(&args.output)?;
    let subject = Subject::open(&args.file, shared)?;
    let declared = subject.inputs()?;
    let prepare = |inputs: &crate::inputs::Inputs| subject.ready(&inputs.tensors);
    let (_, ready) = with_inputs(&declared, subject.runner(), &args.inputs, &cx.console, prepare)?;
    let Some(mut ready) = ready else {
        return Err(Failure::new(Exit::Model, "the model is not one Program: there is no one time line of its steps"));
    };
    let (events, total) = runs_on_a_line(&mut ready, args.runs)?;
    let count = events.len();
    let file = json!({ "displayTimeUnit": "ns", "traceEvents": events });
    let staged = staging.path(STAGED);
    let failed = |error: std::io::Error| Failure::usage(format!("cannot write '{}': {error}", args.output.display()));
    fs::write(&staged, file.to_string()).map_err(failed)?;
    staging.publish(|| fs::rename(&staged, &args.output).map_err(failed))?;
    let (path, ms) = (args.output.display().to_string(), total.as_secs_f64() * 1e3);
    let text =
        format!("trace    {path} · {} runs · {count} events · {ms:.3} ms\nopen it at ui.perfetto.dev\n", args.runs);
    Ok(Report::done(text, json!({ "output": path, "runs": args.runs, "events": count, "ms": ms })))
}

/// One event a run and one a step, and the time of all runs.
fn runs_on_a_line(ready: &mut Ready, runs: usize) -> Result<(Vec<Value>, Duration), Failure> {
    for _ in 0..WARM_RUNS {
        ready.run()?;
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mut events = Vec::new();
    let mut now = Duration::ZERO;
    for run in 0..runs {
        let begun = now;
        for (position, step) in ready.run_timed()?.into_iter().enumerate() {
            events.push(json!({
                "name": step.kernel, "cat": "step", "ph": "X", "pid": 1, "tid": 1,
                "ts": micros(now), "dur": micros(step.time),
                "args": { "step": position, "nodes": step.nodes },
            }));
            now += step.time;
        }
        events.push(json!({
            "name": format!("run {run}"), "cat": "run", "ph": "X", "pid": 1, "tid": 0,
            "ts": micros(begun), "dur": micros(now - begun),
        }));
    }
    Ok((events, now))
}
