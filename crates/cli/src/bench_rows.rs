//! Rows of `bench` and how they are printed. What a row has is one list; every format prints all of it.

use std::fmt::Write;

use precast::generate::StepStats;
use serde_json::{Map, Value, json};

use crate::output::bytes_text;

/// How steps were run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathMix {
    /// From a recording.
    pub replayed: usize,
    /// One kernel after another.
    pub launched: usize,
    /// By reference evaluation.
    pub reference: usize,
}

/// One measurement.
pub struct Row {
    /// What was measured.
    pub test: String,
    /// Rows of the batch.
    pub batch: usize,
    /// Tokens a second of each repetition.
    pub rates: Vec<f64>,
    /// Seconds to the first token of each repetition, where there was a prompt.
    pub first_s: Vec<f64>,
    /// What the last repetition ran.
    pub stats: StepStats,
    /// How all counted repetitions ran.
    pub paths: PathMix,
    /// Bytes of weights that a step reads.
    pub weight_bytes: u64,
    /// Bytes of keys and values at the end.
    pub kv_bytes: u64,
    /// The time that reading weights, keys and values takes at the speed of a copy, as part of the time that generation took.
    pub floor: Vec<f64>,
    /// Tokens a second of the run that this one is compared with.
    pub before: Option<f64>,
}

impl Row {
    /// All of it, by name and in order.
    pub fn fields(&self) -> Vec<(&'static str, Value)> {
        let (mean, deviation) = mean_and_deviation(&self.rates);
        let floor = (!self.floor.is_empty()).then(|| mean_and_deviation(&self.floor).0);
        vec![
            ("test", json!(self.test)),
            ("batch", json!(self.batch)),
            ("tokens_per_second", json!(mean)),
            ("deviation", json!(deviation)),
            ("first_token_s", json!(self.first_mean())),
            ("padding", json!(self.padding())),
            ("steps", json!(self.stats.steps)),
            ("replayed_steps", json!(self.paths.replayed)),
            ("launched_steps", json!(self.paths.launched)),
            ("reference_steps", json!(self.paths.reference)),
            ("weight_bytes", json!(self.weight_bytes)),
            ("kv_bytes", json!(self.kv_bytes)),
            ("floor_fraction", json!(floor)),
            ("before", json!(self.before)),
            ("ratio", json!(self.before.map(|before| mean / before))),
        ]
    }

    /// One object.
    pub fn json(&self) -> Value {
        Value::Object(self.fields().into_iter().map(|(name, value)| (name.to_string(), value)).collect::<Map<_, _>>())
    }

    fn first_mean(&self) -> f64 {
        mean_and_deviation(&self.first_s).0
    }

    /// Filler as part of all tokens that were run.
    fn padding(&self) -> f64 {
        self.stats.padded_tokens as f64 / (self.stats.padded_tokens + self.stats.tokens).max(1) as f64
    }
}

/// Comma-separated values under a line of names.
pub fn csv(rows: &[Row]) -> String {
    let line = |words: Vec<String>| words.join(",") + "\n";
    let names = rows.first().map_or(Vec::new(), |row| row.fields());
    let mut text = line(names.iter().map(|(name, _)| name.to_string()).collect());
    for row in rows {
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToString::to_string);
        let word = |value: &Value| if value.is_null() { String::new() } else { word(value) };
        text.push_str(&line(row.fields().iter().map(|(_, value)| word(value)).collect()));
    }
    text
}

/// Statements that make a table and fill it.
pub fn sql(rows: &[Row], device: &str) -> String {
    let kind = |value: &Value| match value {
        Value::String(_) => "TEXT",
        Value::Number(number) if number.is_u64() => "INTEGER",
        _ => "REAL",
    };
    let literal = |value: &Value| match value {
        Value::String(text) => format!("'{}'", text.replace('\'', "''")),
        Value::Null => "NULL".to_string(),
        other => other.to_string(),
    };
    let with_device = |row: &Row| {
        std::iter::once(("device", json!(device))).chain(row.fields()).collect::<Vec<(&'static str, Value)>>()
    };
    let columns: Vec<String> = rows
        .first()
        .map_or(Vec::new(), with_device)
        .iter()
        .map(|(name, value)| format!("{name} {}", kind(value)))
        .collect();
    let mut text = format!("CREATE TABLE IF NOT EXISTS bench ({});\n", columns.join(", "));
    for row in rows {
        let values: Vec<String> = with_device(row).iter().map(|(_, value)| literal(value)).collect();
        let _ = writeln!(text, "INSERT INTO bench VALUES ({});", values.join(", "));
    }
    text
}

/// A table of Markdown.
pub fn table(rows: &[Row], is_compared: bool) -> String {
    let (more, line) = if is_compared { (" before | ratio |", "---|---|") } else { ("", "") };
    let head = "| test | batch | tokens/s | first token | padding | replay/launch/reference | weights | KV | floor |";
    let mut text = format!("{head}{more}\n|---|---|---|---|---|---|---|---|---|{line}\n");
    for row in rows {
        let (mean, deviation) = mean_and_deviation(&row.rates);
        let first =
            if row.first_s.is_empty() { "–".to_string() } else { format!("{:.1} ms", row.first_mean() * 1e3) };
        let floor = match row.floor.is_empty() {
            true => "–".to_string(),
            false => format!("{:.0} %", mean_and_deviation(&row.floor).0 * 100.0),
        };
        let compared = match (row.before, is_compared) {
            (Some(before), _) => format!(" {before:.1} | {:.2} |", mean / before),
            (None, true) => " – | – |".to_string(),
            (None, false) => String::new(),
        };
        let PathMix { replayed, launched, reference } = row.paths;
        let _ = writeln!(
            text,
            "| {} | {} | {mean:.1} ± {deviation:.1} | {first} | {:.0} % | {replayed}/{launched}/{reference} | {} | {} | {floor} |{compared}",
            row.test,
            row.batch,
            row.padding() * 100.0,
            bytes_text(row.weight_bytes),
            bytes_text(row.kv_bytes),
        );
    }
    text
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, variance.sqrt())
}
