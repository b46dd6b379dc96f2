//! The models that torture uses, the requests it sends them, and the answers bit for bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use precast::{
    BucketPolicy, CacheOptions, Model, ModelSession, OpenOptions, ProgramCache, Readiness, RunnerOptions, Tensor,
};
use precast_onnx::proto::{
    DataType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};
use prost::Message;
use serde::{Deserialize, Serialize};

/// A model, its Buckets and the requests that are sent to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subject {
    /// The file.
    pub model: PathBuf,
    /// The largest Bucket; the others are the powers of two below.
    pub max_batch: i64,
    /// Rows of the requests.
    pub rows: Vec<usize>,
}

impl Subject {
    /// How it is opened: on one thread, since there are enough of them.
    pub fn options(&self) -> OpenOptions {
        OpenOptions {
            runner: RunnerOptions { threads: 1, ..RunnerOptions::default() },
            buckets: BucketPolicy::PowersOfTwo { max: self.max_batch },
            ..OpenOptions::default()
        }
    }

    /// The same model with other Buckets.
    pub fn with_max_batch(&self, max_batch: i64) -> Subject {
        Subject { max_batch, ..self.clone() }
    }

    /// How many Buckets there are.
    pub fn buckets(&self) -> usize {
        self.options().buckets.extents().len()
    }

    /// The model.
    pub fn open_model(&self) -> Result<Model> {
        Model::open(&self.model).with_context(|| format!("'{}'", self.model.display()))
    }

    /// A Session on a cache that serves early, as Sessions do, and is ready: compiles are counted.
    pub fn open(&self, cache: Arc<ProgramCache>) -> Result<ModelSession> {
        let session = ModelSession::open_on(&self.open_model()?, &self.options(), cache)?;
        match session.wait_until_ready(None) {
            Readiness::Ready => Ok(session),
            other @ (Readiness::Partial | Readiness::Degraded(_)) => bail!("not ready: {other:?}"),
        }
    }

    /// Every bit of every answer to the requests, as digests.
    pub fn answers(&self, session: &ModelSession) -> Result<String> {
        let inputs = self.open_model()?.inputs()?;
        let mut digests = Vec::new();
        for &rows in &self.rows {
            let request = inputs.iter().map(|input| {
                let dims = input.dims.as_ref().context("an input without a rank")?;
                let shape: Vec<usize> =
                    dims.iter().map(|dim| dim.as_const().map_or(rows, |size| size as usize)).collect();
                let count = shape.iter().product();
                let value = |index: usize| match input.dtype.is_float() {
                    true => ((index * 37 + rows * 11) % 101) as f64 / 50.0 - 1.0,
                    false => ((index + rows) % 2) as f64,
                };
                let values: Vec<f64> = (0..count).map(value).collect();
                Ok((input.name.clone(), Tensor::from_f64(input.dtype, shape, &values, true)?))
            });
            let (outputs, _) = session.run(&request.collect::<Result<Vec<_>>>()?)?;
            digests.extend(outputs.iter().map(|(_, tensor)| tensor.digest().to_string()));
        }
        Ok(digests.join(" "))
    }

    /// The answers of a Session that has no cache to be led astray by.
    pub fn expected(&self) -> Result<String> {
        let memory = ProgramCache::open(CacheOptions::memory())?;
        self.answers(&self.open(Arc::new(memory))?)
    }
}

/// Columns of the small model's input, of its middle and of its output. The constants are too large to be written into a
/// step, so each is a file of the cache.
const COLUMNS: [usize; 3] = [24, 64, 8];

/// Writes the small model: y = relu(x · a + b) · c.
pub fn write_small(path: &Path) -> Result<Subject> {
    write(path, &small())?;
    Ok(Subject { model: path.to_path_buf(), max_batch: 64, rows: vec![1, 3, 64] })
}

/// Writes a model.
pub fn write(path: &Path, model: &ModelProto) -> Result<()> {
    Ok(std::fs::write(path, model.encode_to_vec())?)
}

/// The small model.
pub fn small() -> ModelProto {
    let [inputs, middle, outputs] = COLUMNS;
    let node = |op_type: &str, input: &[&str], output: &str| NodeProto {
        name: format!("make_{output}"),
        op_type: op_type.to_string(),
        input: input.iter().map(ToString::to_string).collect(),
        output: vec![output.to_string()],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        name: "small".to_string(),
        node: vec![
            node("MatMul", &["x", "a"], "product"),
            node("Add", &["product", "b"], "sum"),
            node("Relu", &["sum"], "positive"),
            node("MatMul", &["positive", "c"], "y"),
        ],
        initializer: vec![floats("a", &[inputs, middle]), floats("b", &[middle]), floats("c", &[middle, outputs])],
        input: vec![rows("x", inputs)],
        output: vec![rows("y", outputs)],
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: 8,
        producer_name: "xtask".to_string(),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

fn floats(name: &str, dims: &[usize]) -> TensorProto {
    let count: usize = dims.iter().product();
    let value = |index: usize| ((index * 29 + dims.len() * 7) % 97) as f32 / 48.0 - 1.0;
    let bytes: Vec<u8> = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
    TensorProto {
        name: name.to_string(),
        dims: dims.iter().map(|&dim| dim as i64).collect(),
        data_type: DataType::Float as i32,
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    }
}

fn rows(name: &str, columns: usize) -> ValueInfoProto {
    let batch = DimensionValue::DimParam("batch".to_string());
    let dims = [batch, DimensionValue::DimValue(columns as i64)];
    let dim = dims.map(|value| DimensionProto { value: Some(value), ..DimensionProto::default() }).to_vec();
    let tensor = TensorTypeProto { elem_type: DataType::Float as i32, shape: Some(TensorShapeProto { dim }) };
    let ty = TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.to_string(), r#type: Some(ty), ..ValueInfoProto::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_model_has_seven_buckets_and_constants_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let subject = write_small(&dir.path().join("small.onnx")).unwrap();
        let cache = Arc::new(ProgramCache::open(CacheOptions::new(dir.path().join("cache"))).unwrap());
        let session = subject.open(Arc::clone(&cache)).unwrap();
        assert_eq!((subject.buckets(), session.compiles()), (7, 7));
        let constants = cache.ls_constants().unwrap();
        assert!(constants.len() >= 2, "{constants:?}");
        assert!(constants.iter().all(|constant| constant.programs == 7), "{constants:?}");
        assert_eq!(subject.answers(&session).unwrap(), subject.expected().unwrap());
    }
}
