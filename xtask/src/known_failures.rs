//! conformance_known.txt: each case that does not pass, by target, with the reason. One line a case:
//! `TARGET CASE  REASON`, sorted; lines that begin with # are for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::case::TargetName;
use crate::paths;

/// Target and case, with the reason.
pub type KnownFailures = BTreeMap<(TargetName, String), String>;

const HEADER: &str = "\
# Conformance cases that do not pass, with the reason: TARGET CASE  REASON
# `cargo xtask conformance --bless` rewrites this list. A listed case that passes fails the command, as does an
# unlisted one that does not pass.
";

/// Longest reason that is kept.
const REASON_CHARACTERS_MAX: usize = 100;

fn path() -> std::path::PathBuf {
    paths::root().join("xtask").join("conformance_known.txt")
}

/// Reads the list; no file is an empty list.
pub fn read() -> Result<KnownFailures> {
    match fs::read_to_string(path()) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(KnownFailures::new()),
        Err(error) => Err(error).context("cannot read conformance_known.txt"),
    }
}

/// Writes the list.
pub fn write(known: &KnownFailures) -> Result<()> {
    fs::write(path(), print(known)).context("cannot write conformance_known.txt")
}

fn parse(text: &str) -> Result<KnownFailures> {
    let mut known = KnownFailures::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let (Some(target), Some(case), Some(reason)) = (words.next(), words.next(), words.next()) else {
            bail!("conformance_known.txt: '{line}' is not TARGET CASE  REASON");
        };
        let target = TargetName::ALL.into_iter().find(|known| known.name() == target);
        let target = target.with_context(|| format!("conformance_known.txt: no such target in '{line}'"))?;
        known.insert((target, case.to_string()), reason.trim().to_string());
    }
    Ok(known)
}

fn print(known: &KnownFailures) -> String {
    let mut text = HEADER.to_string();
    for ((target, case), reason) in known {
        writeln!(text, "{} {case}  {}", target.name(), normalise(reason)).expect("a string takes every write");
    }
    text
}

/// A reason as one line of limited length without a path of this machine.
pub fn normalise(reason: &str) -> String {
    let reason = reason.replace(&paths::root().display().to_string(), ".");
    let words: Vec<&str> = reason.split_whitespace().collect();
    words.join(" ").chars().take(REASON_CHARACTERS_MAX).collect::<String>().trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_reads_as_it_was_written() {
        let known = KnownFailures::from([
            ((TargetName::Reference, "test_a".to_string()), "input 'x' is a sequence".to_string()),
            ((TargetName::Cpu, "test_b".to_string()), "panicked".to_string()),
        ]);
        assert_eq!(parse(&print(&known)).unwrap(), known);
    }

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(normalise("two\n  lines"), "two lines");
        assert_eq!(normalise(&"x".repeat(300)).len(), REASON_CHARACTERS_MAX);
    }
}
