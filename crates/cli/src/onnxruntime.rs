//! Outputs of onnxruntime, through a Python that has it. Arrays travel as files of a temporary folder.

use std::path::Path;
use std::process::Command;

use precast::npy::write_npz;
use precast::{Error, Named, Tensor, read_archive};

use crate::Cx;
use crate::exit::{Exit, Failure};

/// The script's exit code when a package is missing.
const PACKAGE_MISSING: i32 = 77;

/// Arguments: model, file with inputs, file for outputs, threads, then the names of the inputs. Arrays go by position,
/// since names of values may be anything.
const SCRIPT: &str = r#"
import sys
try:
    import numpy
    import onnxruntime
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
model, inputs, outputs, threads = sys.argv[1:5]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(threads)
options.log_severity_level = 3
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
arrays = numpy.load(inputs)
feed = {name: arrays[str(position)] for position, name in enumerate(sys.argv[5:])}
results = session.run(None, feed)
numpy.savez(outputs, **{str(position): result for position, result in enumerate(results)})
"#;

/// Outputs of onnxruntime for these inputs; `outputs` are their names in order.
pub fn run_onnxruntime(
    python: &Path,
    model: &Path,
    inputs: &[(String, Tensor)],
    outputs: &[String],
    threads: usize,
    cx: &Cx,
) -> Result<Named, Failure> {
    let scratch = cx.interrupt.scratch()?;
    let (inputs_file, outputs_file) = (scratch.path("inputs.npz"), scratch.path("outputs.npz"));
    write_inputs(&inputs_file, inputs)?;
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT]).arg(model).arg(&inputs_file).arg(&outputs_file).arg(threads.to_string());
    command.args(inputs.iter().map(|(name, _)| name));
    let finished = cx.console.during("running onnxruntime", None, || command.output());
    let unreachable = |message: String| Failure::new(Exit::Unreachable, message);
    let finished =
        finished.map_err(|error| unreachable(format!("cannot start '{}': {error}; see --python", python.display())))?;
    let said = String::from_utf8_lossy(&finished.stderr);
    let last = said.trim().lines().last().unwrap_or("it said nothing");
    if finished.status.code() == Some(PACKAGE_MISSING) {
        return Err(unreachable(format!(
            "onnxruntime is not installed for '{}' ({last}); --python names another Python",
            python.display()
        )));
    }
    if !finished.status.success() {
        return Err(unreachable(format!("onnxruntime failed on '{}': {last}", model.display())));
    }
    let arrays = read_archive(&outputs_file, |_| None)?;
    let name = |position: &str| position.parse().ok().and_then(|position: usize| outputs.get(position)).cloned();
    let named = arrays.into_iter().map(|(position, tensor)| Some((name(&position)?, tensor)));
    named
        .collect::<Option<_>>()
        .ok_or_else(|| unreachable("onnxruntime gave more outputs than the model has".to_string()))
}

fn write_inputs(path: &Path, inputs: &[(String, Tensor)]) -> Result<(), Error> {
    let arrays: Named =
        inputs.iter().enumerate().map(|(position, (_, tensor))| (position.to_string(), tensor.clone())).collect();
    let name = || path.display().to_string();
    let file = std::fs::File::create(path).map_err(|source| Error::Io { action: "write", path: name(), source })?;
    write_npz(file, &arrays).map_err(|source| Error::Array { path: name(), source })
}
