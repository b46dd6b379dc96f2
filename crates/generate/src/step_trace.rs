//! Steps on a time line, in the JSON that Perfetto and chrome://tracing open. The file is whole after every step.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use precast_session::RunReport;
use serde_json::{Value, json};

use crate::config::{Folder, FolderError};
use crate::plan::{Phase, StepPlan};

/// What ends the list of events, and is written over by the next one.
const END: &str = "\n]\n";

/// A file of steps.
pub struct StepTrace {
    path: PathBuf,
    lines: Mutex<Lines>,
    begun: Instant,
}

/// The file, and whether it has an event.
struct Lines {
    file: File,
    is_empty: bool,
}

impl StepTrace {
    /// A new file inside a folder, whose name begins so.
    pub fn create(folder: &Folder, beginning: &str) -> Result<StepTrace, FolderError> {
        let (path, mut file) = folder.create_numbered(beginning)?;
        let failed = |source| FolderError::Write { path: path.display().to_string(), source };
        file.write_all(format!("[{END}").as_bytes()).map_err(failed)?;
        Ok(StepTrace { path, lines: Mutex::new(Lines { file, is_empty: true }), begun: Instant::now() })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a step that has just ended. Steps go on where the disk is full.
    pub fn note(&self, plan: &StepPlan, report: &RunReport, took: Duration) {
        let event = event(plan, report, self.begun.elapsed().saturating_sub(took), took);
        let _ = self.lines.lock().unwrap_or_else(PoisonError::into_inner).add(&event);
    }
}

impl Lines {
    fn add(&mut self, event: &Value) -> std::io::Result<()> {
        let separator = if self.is_empty { "\n" } else { ",\n" };
        self.file.seek(SeekFrom::End(-(END.len() as i64)))?;
        self.file.write_all(format!("{separator}{event}{END}").as_bytes())?;
        self.is_empty = false;
        Ok(())
    }
}

fn event(plan: &StepPlan, report: &RunReport, begun: Duration, took: Duration) -> Value {
    let phase = match plan.phase {
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    };
    let (micros, shape) = (|time: Duration| time.as_secs_f64() * 1e6, plan.shape);
    json!({
        "name": format!("{phase} rows={} length={} capacity={}", shape.rows, shape.length, shape.capacity),
        "cat": "step", "ph": "X", "pid": 1, "tid": 1, "ts": micros(begun), "dur": micros(took),
        "args": {
            "tokens": plan.rows.iter().map(|row| row.valid).sum::<usize>(),
            "filler": plan.padded_tokens(),
            "tier": format!("{:?}", report.tier),
            "path": format!("{:?}", report.path),
            "reason": report.reason.name(),
        },
    })
}
