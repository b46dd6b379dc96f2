//! What a command says: its result on stdout, notices and errors on stderr.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use precast::device_name::{resolve_device_with_notice, resolve_devices};
use precast::{DType, Dim, Program, is_by_reference};
use serde_json::{Value, json};

use crate::args::{Color, Shared};
use crate::exit::{Exit, Failure};
use crate::numerics::numerics_json;

/// The result of a verb in both forms.
pub struct Report {
    /// For people.
    pub text: String,
    /// For machines: an object, to which the schema is added.
    pub json: Value,
    /// What the result means.
    pub exit: Exit,
    /// Why the result is not a success, for stderr.
    pub error: Option<String>,
}

impl Report {
    /// A success.
    pub fn done(text: String, json: Value) -> Report {
        Report { text, json, exit: Exit::Done, error: None }
    }
}

/// How to speak on stderr.
#[derive(Clone, Copy)]
pub struct Console {
    is_quiet: bool,
    is_verbose: bool,
    has_color: bool,
    /// Whether stderr is a terminal.
    pub is_terminal: bool,
    /// Whether progress may be shown.
    pub has_progress: bool,
}

impl Console {
    /// As the flags and the terminal say.
    pub fn new(shared: &Shared) -> Console {
        let is_terminal = std::io::stderr().is_terminal();
        let has_color = match shared.color {
            Color::Auto => is_terminal && allows_color(),
            Color::Never => false,
            Color::Always => true,
        };
        let has_progress = !shared.no_progress && !shared.quiet;
        Console { is_quiet: shared.quiet, is_verbose: shared.verbose, has_color, is_terminal, has_progress }
    }

    /// The same without notices and progress.
    pub fn silent(&self) -> Console {
        Console { is_quiet: true, is_verbose: false, has_progress: false, ..*self }
    }

    /// Something the user should know.
    pub fn notice(&self, text: &str) {
        if !self.is_quiet {
            print_notice(&format!("{}: {}\n", self.colored("notice", "36"), printable(text)));
        }
    }

    /// Something the user asked for beside the result.
    pub fn tell(&self, text: &str) {
        if !self.is_quiet {
            print_notice(&format!("{text}\n"));
        }
    }

    /// Something a curious user wants to know.
    pub fn detail(&self, text: &str) {
        if self.is_verbose {
            print_notice(&format!("{}\n", printable(text)));
        }
    }

    /// Why the command fails.
    pub fn error(&self, text: &str) {
        print_notice(&format!("{}: {}\n", self.colored("error", "31;1"), printable(text)));
    }

    /// Refuses devices that are not there and says how an alias was read.
    pub fn announce_device(&self, asked: &str) -> Result<(), Failure> {
        resolve_devices(asked)?;
        for asked in asked.split(',') {
            if let Some(notice) = resolve_device_with_notice(asked.trim())?.notice {
                self.notice(&notice);
            }
        }
        Ok(())
    }

    fn colored(&self, word: &str, code: &str) -> String {
        if self.has_color { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_string() }
    }
}

/// The conventions of terminals. The environment is read here and nowhere else in this door.
fn allows_color() -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_refused && std::env::var_os("TERM").is_some_and(|terminal| terminal != "dumb")
}

/// Writes the result. A reader that has gone away is no error.
pub fn print_result(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(printable(text).as_bytes()).and_then(|()| stdout.flush());
}

/// Writes to stderr; if nobody listens, nobody needs to know.
pub fn print_notice(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The text with control characters spelled out, but for ends of lines and tabs: names come from models, and a terminal
/// obeys what it is sent.
fn printable(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// A number of bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A declared type: `f32[n,3,224,224]`; parts that are not declared are shown as dots.
pub fn type_text(dtype: Option<DType>, dims: Option<&[Dim]>) -> String {
    let dims = dims.map_or("..".to_string(), |dims| dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(","));
    format!("{}[{dims}]", dtype.map_or("?", DType::name))
}

/// Dims for machines: numbers, symbols as text, null where no rank is declared.
pub fn dims_json(dims: Option<&[Dim]>) -> Value {
    let dim_json = |dim: &Dim| dim.as_const().map_or_else(|| json!(dim.to_string()), |number| json!(number));
    dims.map_or(Value::Null, |dims| dims.iter().map(dim_json).collect())
}

/// Steps, arena and constants of a Program, for people.
pub fn program_text(program: &Program) -> String {
    format!(
        "steps {} ({} by reference) · arena {} · constants {}",
        program.steps.len(),
        reference_steps(program),
        bytes_text(program.arena_bytes),
        bytes_text(constant_bytes(program))
    )
}

/// Steps, arena and constants of a Program, for machines.
pub fn program_json(program: &Program) -> Value {
    json!({
        "target": program.target,
        "build": program.build,
        "numerics": numerics_json(program),
        "bucket": program.bucket.dims().map(|(symbol, number)| (symbol.to_string(), json!(number)))
            .collect::<serde_json::Map<_, _>>(),
        "steps": program.steps.len(),
        "by_reference": reference_steps(program),
        "arena_bytes": program.arena_bytes,
        "live_bytes_max": program.live_bytes_max,
        "constants": program.constants.len(),
        "constant_bytes": constant_bytes(program),
    })
}

/// A kernel and why its tactic was chosen; nothing of that where there is no choice.
pub fn kernel_text(kernel: &str, tactic: Option<&str>) -> String {
    const NO_CHOICE: &str = "(only one)";
    match tactic.filter(|why| *why != NO_CHOICE) {
        Some(why) => format!("{kernel} {why}"),
        None => kernel.to_string(),
    }
}

/// Names in a line, shortened.
pub fn names_text(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, … ({} in all)", names.len()) } else { shown }
}

fn constant_bytes(program: &Program) -> u64 {
    program.constants.iter().map(|constant| constant.bytes).sum()
}

fn reference_steps(program: &Program) -> usize {
    program.steps.iter().filter(|step| is_by_reference(&step.kernel)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_in_the_largest_unit_below() {
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(97 << 20), "97.0 MiB");
        assert_eq!(bytes_text(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn what_a_terminal_would_obey_is_spelled_out() {
        assert_eq!(printable("a\tb\né"), "a\tb\né");
        assert_eq!(printable("\u{1b}[2J\u{9b}x\r"), "\\u{1b}[2J\\u{9b}x\\r");
    }
}
