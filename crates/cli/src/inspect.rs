//! `inspect`: what a model or a Program file is.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use precast::{
    CANONICAL, Error, Graph, ImportError, Model, Program, Runner, is_program_file, read_program, run_passes,
};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{InputArgs, InspectArgs, Shared, Stage};
use crate::compile::{steps_json, steps_text};
use crate::exit::Failure;
use crate::inputs::make_inputs;
use crate::inspect_folder::inspect_folder;
use crate::numerics::numerics_text;
use crate::output::{Report, bytes_text, dims_json, program_json, program_text, type_text};
use crate::subject::{open_model, options};

/// Shows a file.
pub fn inspect(args: &InspectArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    if args.file.is_dir() {
        return inspect_folder(&args.file, &args.overlay, shared);
    }
    if is_program_file(&args.file)? {
        shared.numerics.refuse_for_program(&args.file)?;
        return inspect_program(args);
    }
    let model = open_model(&args.file, shared)?;
    if !args.text {
        return Ok(Report::done(model_text(&args.file, &model)?, model_json(&args.file, &model)?));
    }
    let mut json = model_json(&args.file, &model)?;
    let graph = staged_graph(model, args, shared, cx)?;
    let text = graph.to_string();
    json["text"] = json!(text);
    Ok(Report::done(text, json))
}

/// The Graph of a stage: symbolic where that is possible, else for sizes that are announced.
fn staged_graph(model: Model, args: &InspectArgs, shared: &Shared, cx: &Cx) -> Result<Graph, Failure> {
    let has_sizes = !(args.shapes.dims.is_empty() && args.shapes.shapes.is_empty());
    if args.stage != Stage::Fused && !has_sizes {
        match model.symbolic_graph() {
            Ok(graph) => return at_stage(graph, args.stage, shared),
            Err(Error::Import(error @ (ImportError::NeedsInputs { .. } | ImportError::NeedsNumber { .. }))) => {
                cx.console.notice(&error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    let input_args = InputArgs { inputs: Vec::new(), seed: 0, shapes: args.shapes.clone() };
    let inputs = make_inputs(&model.inputs()?, &input_args, &cx.console)?;
    let runner = Runner::new(model, options(shared))?;
    let graph = match args.stage {
        Stage::Imported | Stage::Canonical => at_stage(runner.graph(&inputs.tensors)?.0, args.stage, shared),
        Stage::Fused => runner.optimised(&inputs.tensors).map(|(graph, _)| graph).map_err(Failure::from),
    };
    graph.map_err(|failure| inputs.explain(failure))
}

fn at_stage(graph: Graph, stage: Stage, shared: &Shared) -> Result<Graph, Failure> {
    match stage {
        Stage::Imported => Ok(graph),
        Stage::Canonical | Stage::Fused => {
            Ok(run_passes(&graph, CANONICAL, &options(shared).passes).map_err(Error::from)?)
        }
    }
}

/// One line about a model: file, format, size.
pub fn model_line(path: &Path, model: &Model) -> String {
    let summary = model.summary();
    let opsets: Vec<String> = summary.opsets.iter().map(|(domain, version)| format!("{domain} {version}")).collect();
    format!(
        "model    {} · opset {} · ir {} · {} nodes, {} operators · {} weights\n",
        path.display(),
        opsets.join(", "),
        summary.ir_version,
        summary.nodes,
        summary.operators.len(),
        bytes_text(summary.weight_bytes)
    )
}

fn model_text(path: &Path, model: &Model) -> Result<String, Failure> {
    let summary = model.summary();
    let mut text = model_line(path, model);
    if !summary.producer.is_empty() {
        let _ = writeln!(text, "producer {}", summary.producer);
    }
    for info in model.inputs()? {
        let _ = writeln!(text, "input    {} {}", info.name, type_text(Some(info.dtype), info.dims.as_deref()));
    }
    for output in model.declared_outputs() {
        let _ = writeln!(text, "output   {} {}", output.name, type_text(output.dtype, output.dims.as_deref()));
    }
    let mut operators: Vec<(&String, &usize)> = summary.operators.iter().collect();
    operators.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), name.as_str()));
    let counted: Vec<String> = operators.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let _ = writeln!(text, "operators {}", counted.join(", "));
    let _ = writeln!(text, "digest   {}", summary.digest);
    Ok(text)
}

fn model_json(path: &Path, model: &Model) -> Result<Value, Failure> {
    let summary = model.summary();
    let port = |name: &str, dtype: Option<&str>, dims: Value| json!({ "name": name, "dtype": dtype, "dims": dims });
    let inputs: Vec<Value> = model
        .inputs()?
        .iter()
        .map(|info| port(&info.name, Some(info.dtype.name()), dims_json(info.dims.as_deref())))
        .collect();
    let outputs: Vec<Value> = model
        .declared_outputs()
        .iter()
        .map(|output| port(&output.name, output.dtype.map(|dtype| dtype.name()), dims_json(output.dims.as_deref())))
        .collect();
    Ok(json!({
        "kind": "model",
        "file": path.display().to_string(),
        "ir_version": summary.ir_version,
        "producer": summary.producer,
        "opsets": summary.opsets.iter().cloned().collect::<BTreeMap<String, i64>>(),
        "nodes": summary.nodes,
        "operators": summary.operators,
        "weight_bytes": summary.weight_bytes,
        "digest": summary.digest,
        "inputs": inputs,
        "outputs": outputs,
    }))
}

fn inspect_program(args: &InspectArgs) -> Result<Report, Failure> {
    let program = read_program(&args.file)?;
    let mut json = program_json(&program);
    json["kind"] = json!("program");
    json["file"] = json!(args.file.display().to_string());
    let ports = |ports: &[precast::Port]| -> Value {
        ports.iter().map(|port| json!({ "name": port.name, "dtype": port.dtype, "dims": port.shape })).collect()
    };
    json["inputs"] = ports(&program.inputs);
    json["outputs"] = ports(&program.outputs);
    if args.text {
        json["text"] = json!(program.graph);
        return Ok(Report::done(program.graph, json));
    }
    json["explain"] = steps_json(&program);
    Ok(Report::done(described(&args.file, &program), json))
}

fn described(path: &Path, program: &Program) -> String {
    let mut text = format!("program  {} · {} · {}\n", path.display(), program.target, program.build);
    let bucket = program.bucket.to_string();
    let _ = writeln!(text, "bucket   {}", if bucket.is_empty() { "fixed sizes" } else { &bucket });
    let _ = writeln!(text, "numerics {}", numerics_text(program));
    let _ = writeln!(text, "{}", program_text(program));
    for (word, ports) in [("input", &program.inputs), ("output", &program.outputs)] {
        for port in ports {
            let sizes: Vec<String> = port.shape.iter().map(u64::to_string).collect();
            let _ = writeln!(text, "{word:<8} {} {}[{}]", port.name, port.dtype, sizes.join(","));
        }
    }
    text.push_str(&steps_text(program));
    text
}
