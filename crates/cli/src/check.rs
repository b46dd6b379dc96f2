//! `check`: whether a model is supported. Every node that is not is listed at once.

use std::collections::BTreeMap;
use std::fmt::Write;

use precast::{Error, ImportError, ImportOptions, InputInfo, Model, Runner, Symbol, explain_padding, pad_verdict};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{CheckArgs, InputArgs, Shared};
use crate::exit::{Exit, Failure};
use crate::fitting::with_inputs;
use crate::inputs::row_symbols;
use crate::inspect::model_line;
use crate::output::Report;
use crate::subject::{open_model, options};

/// Checks a model.
pub fn check(args: &CheckArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let model = open_model(&args.model, shared)?;
    let declared = model.inputs()?;
    let users = dim_users(&declared);
    let mut text = model_line(&args.model, &model);
    for (position, (dim, axes)) in users.iter().enumerate() {
        let word = if position == 0 { "dims" } else { "" };
        let _ = writeln!(text, "{word:<8} {dim}  {}", axes.join(" "));
    }
    let mut json = json!({
        "model": args.model.display().to_string(),
        "dims": users,
        "supported": true,
        "padding": {},
        "specialised": Value::Null,
        "unsupported": [],
    });
    for (position, (dim, line)) in padding(&model, &declared).into_iter().enumerate() {
        let word = if position == 0 { "padding" } else { "" };
        let _ = writeln!(text, "{word:<8} {line}");
        json["padding"][dim] = json!(line);
    }
    let (needs, outcome) = import(model, &declared, args, shared, cx);
    if let Some(needs) = needs {
        let _ = writeln!(text, "sizes    the model is compiled for each set of sizes or values by itself: {needs}");
        json["specialised"] = json!(needs);
    }
    match outcome {
        Ok(()) => {
            let _ = writeln!(text, "verdict  supported on cpu");
            Ok(Report::done(text, json))
        }
        Err(error) if error.kind() == precast::ErrorKind::Model => {
            json["supported"] = json!(false);
            json["unsupported"] = unsupported_json(&error);
            json["error"] = json!(error.to_string());
            let _ = writeln!(text, "{error}\nverdict  not supported on cpu");
            Ok(Report { text, json, exit: Exit::Model, error: Some("the model is not supported".to_string()) })
        }
        Err(error) => Err(error.into()),
    }
}

/// What padding would do to the rows of each symbol of axis 0, where the model is a Graph without numbers.
fn padding(model: &Model, declared: &[InputInfo]) -> Vec<(String, String)> {
    let Ok(graph) = model.symbolic_graph() else { return Vec::new() };
    let verdict = |symbol: Symbol| {
        let line = explain_padding(&graph, &pad_verdict(&graph, &symbol));
        (symbol.as_str().to_string(), line)
    };
    row_symbols(declared).into_iter().map(verdict).collect()
}

/// Imports the model symbolically; where that needs numbers or values, says why and imports it for guessed ones.
fn import(
    model: Model,
    declared: &[InputInfo],
    args: &CheckArgs,
    shared: &Shared,
    cx: &Cx,
) -> (Option<String>, Result<(), Error>) {
    let needs = match model.graph(&ImportOptions::default()) {
        Ok(imported) => {
            imported.notices.iter().for_each(|notice| cx.console.notice(notice));
            return (None, Ok(()));
        }
        Err(Error::Import(error @ (ImportError::NeedsInputs { .. } | ImportError::NeedsNumber { .. }))) => {
            error.to_string()
        }
        Err(error) => return (None, Err(error)),
    };
    let input_args = InputArgs { inputs: Vec::new(), seed: 0, shapes: args.shapes.clone() };
    let runner = match Runner::new(model, options(shared)) {
        Ok(runner) => runner,
        Err(error) => return (Some(needs), Err(error)),
    };
    let mut failed = None;
    let fitted = with_inputs(declared, Some(&runner), &input_args, &cx.console, |inputs| {
        runner.graph(&inputs.tensors).map(drop).map_err(|error| {
            let failure = inputs.explain(Failure::new(Exit::Model, error.to_string()));
            failed = Some(error);
            failure
        })
    });
    let outcome = match (fitted, failed) {
        (Ok(_), _) => Ok(()),
        (Err(_), Some(error)) => Err(error),
        (Err(failure), None) => Err(Error::Request(failure.message)),
    };
    (Some(needs), outcome)
}

/// For each symbol the axes that have its size.
fn dim_users(declared: &[InputInfo]) -> BTreeMap<String, Vec<String>> {
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for info in declared {
        for (axis, dim) in info.dims.iter().flatten().enumerate() {
            for symbol in dim.symbols() {
                users.entry(symbol.as_str().to_string()).or_default().push(format!("{}[{axis}]", info.name));
            }
        }
    }
    users
}

fn unsupported_json(error: &Error) -> Value {
    let Error::Import(ImportError::Unsupported { nodes, .. }) = error else {
        return json!([]);
    };
    nodes
        .iter()
        .map(|node| {
            json!({
                "node": node.name,
                "operator": node.op_type,
                "domain": node.domain,
                "version": node.version,
                "reason": node.reason,
            })
        })
        .collect()
}
