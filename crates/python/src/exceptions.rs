//! Exceptions: one class for each way a caller may want to react, with the text that the command line prints.

use precast::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Where the classes are.
const MODULE: &str = "precast.exceptions";

/// The class of a kind of error.
fn class_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Internal => "InternalError",
        ErrorKind::Usage => "UsageError",
        ErrorKind::Model => "UnsupportedModel",
        ErrorKind::Device => "DeviceError",
        ErrorKind::Integrity => "IntegrityError",
        ErrorKind::Limit => "LimitExceeded",
    }
}

fn raise(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let class = py.import(MODULE).and_then(|module| module.getattr(class));
    match class.and_then(|class| class.call1((text,))) {
        Ok(exception) => PyErr::from_value(exception),
        // Only while the interpreter goes down; the text is what matters.
        Err(_) => PyRuntimeError::new_err(text.to_string()),
    }
}

/// The exception for an error of the library.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    raise(py, class_name(error.kind()), &error.to_string())
}

/// The exception for arguments that cannot be used.
pub fn usage(py: Python<'_>, text: &str) -> PyErr {
    raise(py, class_name(ErrorKind::Usage), text)
}

/// The exception for a fault of ours.
pub fn internal(py: Python<'_>, what: &str) -> PyErr {
    let version = env!("CARGO_PKG_VERSION");
    let text = format!("this is a fault of precast {version}; please report it with the call and the model\n{what}");
    raise(py, class_name(ErrorKind::Internal), &text)
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_string()
}
