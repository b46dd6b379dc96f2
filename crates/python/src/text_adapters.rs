//! Adapters of a model folder that is open. Python names an adapter where it uses one and holds none itself, so that who uses
//! it are generators and requests alone.

use std::path::PathBuf;
use std::sync::Arc;

use precast::{Adapter, Adapters, Error, load_adapter};
use pyo3::prelude::*;

use crate::exceptions::exception;
use crate::interruptible::{detached, interruptible};
use crate::text_model::TextModel;

/// Adapters of a model, by name.
#[pyclass(frozen, module = "precast._precast")]
pub struct TextAdapters {
    adapters: Arc<Adapters>,
}

/// An adapter by what it is loaded into and its name.
pub(crate) type NamedAdapter<'py> = (Bound<'py, TextAdapters>, String);

/// The adapter that is named, if one is.
pub(crate) fn named(py: Python<'_>, adapter: Option<&NamedAdapter<'_>>) -> PyResult<Option<Adapter>> {
    let get = |(adapters, name): &NamedAdapter<'_>| adapters.get().adapters.get(name);
    adapter.map(get).transpose().map_err(|error| exception(py, &Error::from(error)))
}

#[pymethods]
impl TextAdapters {
    /// No adapters of a model.
    #[new]
    fn new(model: &Bound<'_, TextModel>) -> TextAdapters {
        TextAdapters { adapters: Arc::new(Adapters::new(&model.get().folder().model)) }
    }

    /// Loads a file under a name.
    fn load(&self, py: Python<'_>, file: PathBuf, name: String) -> PyResult<()> {
        let adapters = self.adapters.clone();
        let load = move || load_adapter(&adapters, &name, &file).map(|_| ());
        interruptible(py, "load an adapter", load)?.map_err(|error| exception(py, &error))
    }

    /// Forgets an adapter; waits for who uses it, or refuses where somebody does.
    fn unload(&self, py: Python<'_>, name: String, waits: bool) -> PyResult<()> {
        let adapters = self.adapters.clone();
        let unloaded = match waits {
            true => interruptible(py, "unload an adapter", move || adapters.unload(&name))?,
            false => detached(py, || adapters.try_unload(&name))?,
        };
        unloaded.map_err(|error| exception(py, &Error::from(error)))
    }

    /// Names in order.
    fn names(&self) -> Vec<String> {
        self.adapters.names()
    }
}
