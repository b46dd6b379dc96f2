//! `RunOptions` of onnxruntime: what of it means something here, and errors for the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::exceptions::usage;

/// Options of one run.
#[pyclass(frozen, module = "precast")]
#[derive(Default)]
pub struct RunOptions {
    is_terminated: AtomicBool,
    tag: Mutex<String>,
}

impl RunOptions {
    /// Refuses a run that was told to end before it began.
    pub fn check(py: Python<'_>, options: Option<&Bound<'_, RunOptions>>) -> PyResult<()> {
        match options {
            Some(options) if options.get().is_terminated.load(Ordering::Relaxed) => {
                Err(usage(py, "the run was not begun: terminate is set in its RunOptions"))
            }
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl RunOptions {
    #[new]
    fn new() -> RunOptions {
        RunOptions::default()
    }

    /// Whether runs with these options are refused.
    #[getter]
    fn terminate(&self) -> bool {
        self.is_terminated.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_terminate(&self, terminate: bool) {
        self.is_terminated.store(terminate, Ordering::Relaxed);
    }

    /// A name for the run, which is the caller's own.
    #[getter]
    fn logid(&self) -> String {
        self.tag.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[setter]
    fn set_logid(&self, tag: String) {
        *self.tag.lock().unwrap_or_else(PoisonError::into_inner) = tag;
    }

    /// Whether only what the asked outputs need is computed: a Program computes all of them.
    #[getter]
    fn only_execute_path_to_fetches(&self) -> bool {
        false
    }

    #[setter]
    fn set_only_execute_path_to_fetches(&self, py: Python<'_>, is_asked: bool) -> PyResult<()> {
        match is_asked {
            false => Ok(()),
            true => {
                Err(usage(py, "only_execute_path_to_fetches: a Program computes all outputs; True cannot be honoured"))
            }
        }
    }

    /// No key of a run's configuration has a meaning here.
    fn add_run_config_entry(&self, py: Python<'_>, name: &str, value: &str) -> PyResult<()> {
        Err(usage(py, &format!("there is no option '{name}' of a run (given as '{value}')")))
    }
}
