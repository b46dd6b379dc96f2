//! The native half of the Python package `precast`: parses, calls the library, hands out memory. What onnxruntime calls
//! things is the business of the Python half.

mod cache;
mod compile;
mod dlpack;
mod element_type;
mod exceptions;
mod gpu_place;
mod host_array;
mod interruptible;
mod io_binding;
mod model_value;
mod node_arg;
mod opened_model;
mod ort_value;
mod request;
mod run_options;
mod run_report;
mod session;
mod settings;
mod text_adapters;
mod text_engine;
mod text_model;

use pyo3::prelude::*;

/// Native half of precast.
#[pymodule]
mod _precast {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::cache::{cache_gc, cache_ls, cache_transfer, cache_verify, cache_why};
    #[pymodule_export]
    use crate::compile::{compile_buckets, compile_program};
    #[pymodule_export]
    use crate::io_binding::IoBinding;
    #[pymodule_export]
    use crate::node_arg::{NodeArg, PyModelMetadata};
    #[pymodule_export]
    use crate::ort_value::OrtValue;
    #[pymodule_export]
    use crate::run_options::RunOptions;
    #[pymodule_export]
    use crate::run_report::PyRunReport;
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::text_adapters::TextAdapters;
    #[pymodule_export]
    use crate::text_engine::{TextEngine, TextEvent, TextRequest};
    #[pymodule_export]
    use crate::text_model::{TextGenerator, TextModel, TextStream, Token, complete};

    /// Version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// The one name of a device that a person calls so, and what to tell them about it.
    #[pyfunction]
    fn resolve_device(py: Python<'_>, asked: &str) -> PyResult<(String, Option<String>)> {
        let resolved = precast::device_name::resolve_device_with_notice(asked);
        let resolved = resolved.map_err(|error| crate::exceptions::exception(py, &error))?;
        Ok((resolved.name.to_string(), resolved.notice))
    }

    /// Devices of this machine, GPUs first.
    #[pyfunction]
    fn devices() -> Vec<String> {
        precast::device_name::devices_present().iter().map(ToString::to_string).collect()
    }

    /// Options that a model is opened with, and what each says.
    #[pyfunction]
    fn option_keys() -> Vec<(&'static str, &'static str)> {
        crate::settings::keys()
    }
}
