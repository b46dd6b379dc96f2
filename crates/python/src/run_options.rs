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
    /// Whether a run on a GPU's memory is left to the GPU when it is queued.
    is_not_waited_for: AtomicBool,
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

/// The key of a run's configuration that says whether a run is not waited for.
const UNSYNCHRONIZED: &str = "disable_synchronize_execution_providers";

impl RunOptions {
    /// Whether a run on a GPU's memory is waited for.
    pub fn waits(options: Option<&Bound<'_, RunOptions>>) -> bool {
        options.is_none_or(|options| !options.get().is_not_waited_for.load(Ordering::Relaxed))
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

    /// `disable_synchronize_execution_providers` is 1 for runs on a GPU's memory that are not waited for; no other key of a
    /// run's configuration has a meaning here.
    fn add_run_config_entry(&self, py: Python<'_>, name: &str, value: &str) -> PyResult<()> {
        match (name, value) {
            (UNSYNCHRONIZED, "0" | "1") => {
                self.is_not_waited_for.store(value == "1", Ordering::Relaxed);
                Ok(())
            }
            (UNSYNCHRONIZED, _) => Err(usage(py, &format!("{name}: 0 or 1 is expected; '{value}' is given"))),
            _ => Err(usage(py, &format!("there is no option '{name}' of a run (given as '{value}')"))),
        }
    }

    /// The value of a key of the run's configuration.
    fn get_run_config_entry(&self, py: Python<'_>, name: &str) -> PyResult<&'static str> {
        match name {
            UNSYNCHRONIZED => Ok(if self.is_not_waited_for.load(Ordering::Relaxed) { "1" } else { "0" }),
            _ => Err(usage(py, &format!("there is no option '{name}' of a run"))),
        }
    }
}
