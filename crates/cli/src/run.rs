//! `run`: one run of a model or Program file; outputs as a summary, and to files if asked.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use precast::npy::{NpyError, write_npy, write_npz};
use precast::{DType, Error, Tensor};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{RunArgs, Shared};
use crate::exit::Failure;
use crate::fitting::with_inputs;
use crate::output::Report;
use crate::subject::Subject;
use crate::values;

/// Elements of an output that are shown.
const SHOWN: usize = 8;

/// Runs once.
pub fn run(args: &RunArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let subject = Subject::open_tuned(&args.file, shared, &args.tune, args.cache.as_deref())?;
    let begun = Instant::now();
    let (inputs, outputs) = with_inputs(&subject.inputs()?, subject.runner(), &args.inputs, &cx.console, |inputs| {
        cx.console.during("compiling and running", None, || subject.run_values(&inputs.tensors))
    })?;
    let run_ms = begun.elapsed().as_secs_f64() * 1e3;
    if let Some(path) = &args.output {
        save(path, &values::tensors(&outputs)?, cx)?;
    }
    let mut text = String::new();
    let mut list = Vec::new();
    for (name, value) in &outputs {
        values::write_lines(&mut text, name, value);
        list.push(values::value_json(name, value));
    }
    cx.console.detail(&format!("compiled and ran in {run_ms:.3} ms"));
    let json = json!({
        "file": args.file.display().to_string(),
        "inputs": inputs.tensors.iter().map(|(name, tensor)| port_json(name, tensor)).collect::<Vec<_>>(),
        "outputs": list,
        "run_ms": run_ms,
        "saved": args.output.as_ref().map(|path| path.display().to_string()),
    });
    Ok(Report::done(text, json))
}

/// Name, type and shape of a tensor.
pub fn port_json(name: &str, tensor: &Tensor) -> Value {
    json!({ "name": name, "dtype": tensor.dtype().name(), "shape": tensor.shape() })
}

/// A few numbers about a tensor.
pub struct Summary {
    min: f64,
    max: f64,
    mean: f64,
    nan: usize,
    first: Vec<f64>,
    is_float: bool,
}

impl Summary {
    /// The numbers of a tensor.
    pub fn new(tensor: &Tensor) -> Summary {
        let values = tensor.to_f64_vec();
        let numbers = || values.iter().copied().filter(|value| !value.is_nan());
        let count = numbers().count();
        Summary {
            min: numbers().fold(f64::INFINITY, f64::min),
            max: numbers().fold(f64::NEG_INFINITY, f64::max),
            mean: numbers().sum::<f64>() / count as f64,
            nan: values.len() - count,
            first: values.iter().take(SHOWN).copied().collect(),
            is_float: tensor.dtype().is_float(),
        }
    }

    /// As JSON, with the name, type and shape of the tensor.
    pub fn json(&self, name: &str, tensor: &Tensor) -> Value {
        let mut json = port_json(name, tensor);
        json["min"] = json!(self.min);
        json["max"] = json!(self.max);
        json["mean"] = json!(self.mean);
        json["nan"] = json!(self.nan);
        json["first"] = match tensor.dtype() {
            DType::Bool => self.first.iter().map(|value| json!(*value != 0.0)).collect(),
            _ if self.is_float => json!(self.first),
            // Exact where f64 is not.
            _ => json!(
                tensor
                    .to_i64_vec()
                    .map(|values| values.into_iter().take(SHOWN).collect::<Vec<_>>())
                    .unwrap_or_default()
            ),
        };
        json
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |value: f64| {
            if !self.is_float && value.fract() == 0.0 {
                format!("{value}")
            } else if value == 0.0 || (1e-4..1e6).contains(&value.abs()) {
                format!("{value:.6}")
            } else {
                format!("{value:.6e}")
            }
        };
        if self.first.is_empty() {
            return f.write_str("empty");
        }
        write!(f, "min {} max {} mean {}", number(self.min), number(self.max), number(self.mean))?;
        if self.nan > 0 {
            write!(f, " NaN {}", self.nan)?;
        }
        let first: Vec<String> = self.first.iter().map(|value| number(*value)).collect();
        write!(f, "  [{}, …]", first.join(", "))
    }
}

/// Writes the outputs to an archive, or to a folder with one file each.
fn save(path: &Path, outputs: &[(String, Tensor)], cx: &Cx) -> Result<(), Failure> {
    let array = |source: NpyError| Error::Array { path: path.display().to_string(), source };
    let io = |source: std::io::Error| Error::Io { action: "write", path: path.display().to_string(), source };
    let staging = cx.interrupt.staging_beside(path)?;
    if path.extension().is_some_and(|extension| extension == "npz") {
        let file = staging.path("outputs");
        write_npz(std::fs::File::create(&file).map_err(io)?, outputs).map_err(array)?;
        return Ok(staging.publish(|| std::fs::rename(file, path)).map_err(io)?);
    }
    if path.extension().is_some() && !path.is_dir() {
        return Err(Failure::usage(format!("--output {}: FILE.npz or a folder is expected", path.display())));
    }
    let names = file_names(outputs);
    for ((_, tensor), name) in outputs.iter().zip(&names) {
        let file = std::fs::File::create(staging.path(name)).map_err(io)?;
        write_npy(std::io::BufWriter::new(file), tensor).map_err(array)?;
    }
    let publish = || {
        std::fs::create_dir_all(path)?;
        names.iter().try_for_each(|name| std::fs::rename(staging.path(name), path.join(name)))
    };
    Ok(staging.publish(publish).map_err(io)?)
}

/// File names of outputs, whose own names may hold anything; equal ones get a number.
fn file_names(outputs: &[(String, Tensor)]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let safe = |c: char| {
        if c.is_alphanumeric() || "_-".contains(c) { c } else { '_' }
    };
    let mut names = Vec::new();
    for (position, (name, _)) in outputs.iter().enumerate() {
        let mut stem: String = name.chars().take(100).map(safe).collect();
        if stem.is_empty() || !taken.insert(stem.clone()) {
            stem = format!("{stem}_{position}");
            taken.insert(stem.clone());
        }
        names.push(format!("{stem}.npy"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_names_become_distinct_file_names_inside_the_folder() {
        let outputs: Vec<(String, Tensor)> =
            ["../a", "a.b", "a/b", ""].iter().map(|name| (name.to_string(), Tensor::scalar(0_u8))).collect();
        assert_eq!(file_names(&outputs), ["___a.npy", "a_b.npy", "a_b_2.npy", "_3.npy"]);
    }
}
