//! What a model says about itself: its inputs and outputs, and what its author wrote beside it.

use precast::{DeclaredDim, DeclaredType, DeclaredValue, ModelMetadata};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

/// An input or output of a model: its name, its type and its shape.
#[pyclass(frozen, module = "precast")]
pub struct NodeArg {
    /// Its name.
    #[pyo3(get)]
    pub name: Py<PyString>,
    /// Its type as ONNX writes it, such as `tensor(float)`.
    #[pyo3(get)]
    r#type: String,
    declared: DeclaredValue,
}

impl NodeArg {
    /// What a model declares. The name is shared with whoever looks values up by it.
    pub fn new(py: Python<'_>, declared: DeclaredValue, name: &Py<PyString>) -> NodeArg {
        let r#type = declared.ty.as_ref().map_or(String::new(), ToString::to_string);
        NodeArg { name: name.clone_ref(py), r#type, declared }
    }

    fn dims(&self) -> Option<&[DeclaredDim]> {
        match self.declared.ty.as_ref()? {
            DeclaredType::Tensor(tensor) | DeclaredType::SparseTensor(tensor) => tensor.dims.as_deref(),
            DeclaredType::Sequence(_) | DeclaredType::Optional(_) | DeclaredType::Map(..) => None,
        }
    }
}

#[pymethods]
impl NodeArg {
    /// Its sizes: a number, the name of a dim, or None where nothing is declared. Empty without a declared rank.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let sizes = PyList::empty(py);
        for dim in self.dims().unwrap_or_default() {
            match dim {
                DeclaredDim::Value(size) => sizes.append(size)?,
                DeclaredDim::Symbol(symbol) => sizes.append(symbol)?,
                DeclaredDim::Unknown => sizes.append(py.None())?,
            }
        }
        Ok(sizes)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = self.shape(py)?.repr()?;
        Ok(format!("NodeArg(name={}, type='{}', shape={shape})", self.name.bind(py).repr()?, self.r#type))
    }
}

/// What the author of a model wrote beside it.
#[pyclass(frozen, name = "ModelMetadata", module = "precast")]
pub struct PyModelMetadata(pub ModelMetadata);

#[pymethods]
impl PyModelMetadata {
    /// What wrote the file.
    #[getter]
    fn producer_name(&self) -> &str {
        &self.0.producer_name
    }

    /// Name of the graph.
    #[getter]
    fn graph_name(&self) -> &str {
        &self.0.graph_name
    }

    /// Namespace of the model.
    #[getter]
    fn domain(&self) -> &str {
        &self.0.domain
    }

    /// Description of the model.
    #[getter]
    fn description(&self) -> &str {
        &self.0.description
    }

    /// Description of the graph.
    #[getter]
    fn graph_description(&self) -> &str {
        &self.0.graph_description
    }

    /// Version of the model.
    #[getter]
    fn version(&self) -> i64 {
        self.0.version
    }

    /// Further keys and values.
    #[getter]
    fn custom_metadata_map<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let map = PyDict::new(py);
        for (key, value) in &self.0.properties {
            map.set_item(key, value)?;
        }
        Ok(map)
    }
}
