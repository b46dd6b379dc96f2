//! What one run did, as attributes.

use precast::{RunReport, Tier};
use pyo3::prelude::*;
use pyo3::types::PyList;

/// What one run did: how much had to be decided, what answered, how the request fitted its Buckets, and why.
#[pyclass(frozen, name = "RunReport", module = "precast")]
#[derive(Clone)]
pub struct PyRunReport {
    /// None where the model runs part by part, at exactly the shapes of each request.
    pub report: Option<RunReport>,
    /// Inputs that had to be copied before they could be read.
    #[pyo3(get)]
    pub copies: usize,
}

/// An enum's name as the words of logs and metrics: `UltraFast` is `ultra-fast`.
fn word(name: &str) -> String {
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}

#[pymethods]
impl PyRunReport {
    /// How much had to be decided: "ultra-fast", "fast" or "standard".
    #[getter]
    fn tier(&self) -> String {
        word(&format!("{:?}", self.report.map_or(Tier::Standard, |report| report.tier)))
    }

    /// What answered: "launch", "reference", or "parts" for a model that is not one Program.
    #[getter]
    fn path(&self) -> String {
        self.report.map_or("parts".to_string(), |report| word(&format!("{:?}", report.path)))
    }

    /// How the request fitted its Buckets: "exact", "padded" or "split".
    #[getter]
    fn fit(&self) -> String {
        self.report.map_or("exact".to_string(), |report| word(&format!("{:?}", report.fit)))
    }

    /// Where the Program came from: "warm", "loaded", "compiled" or "fetched".
    #[getter]
    fn origin(&self) -> String {
        self.report.map_or("warm".to_string(), |report| word(&format!("{:?}", report.origin)))
    }

    /// Why it was not of the tier above.
    #[getter]
    fn reason(&self) -> &'static str {
        self.report.map_or("none", |report| report.reason.name())
    }

    /// Buckets that ran, as pairs of extent and rows; the first few.
    #[getter]
    fn buckets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let buckets = self.report.map(|report| report.chunks.named().to_vec()).unwrap_or_default();
        PyList::new(py, buckets.iter().map(|chunk| (chunk.bucket, chunk.rows)))
    }

    /// Rows that were computed for nothing.
    #[getter]
    fn pad_rows(&self) -> i64 {
        self.report.map_or(0, |report| report.pad_rows())
    }

    /// Bytes copied into padded buffers and out of them.
    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.report.map_or(0, |report| report.copied_bytes)
    }

    fn __repr__(&self) -> String {
        format!(
            "RunReport(tier='{}', path='{}', fit='{}', origin='{}', reason='{}', pad_rows={}, copies={})",
            self.tier(),
            self.path(),
            self.fit(),
            self.origin(),
            self.reason(),
            self.pad_rows(),
            self.copies
        )
    }
}
