//! Measured choices of tactics: a table of records by problem, and its text form. A problem is a line of text that a target
//! writes; what its words mean is the target's own business. Merging two tables gives the same table in either order, so
//! that processes which tune at once lose nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use precast_tensor::Digest;

/// Version of the text form; a table of another version is not read.
pub const VERSION: u32 = 1;
const HEADER_PREFIX: &str = "precast tuning ";
/// Digits of the digest that ends a line.
const CHECK_DIGITS: usize = 16;

/// What was measured of one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningRecord {
    /// Name of the tactic that was fastest.
    pub tactic: String,
    /// Runs that the times are medians of.
    pub samples: u32,
    /// Median time of each candidate in nanoseconds, by name of the tactic.
    pub times_ns: BTreeMap<String, u64>,
}

impl TuningRecord {
    /// The record of these times: the fastest tactic wins, the first by name of equals.
    pub fn of(times_ns: BTreeMap<String, u64>, samples: u32) -> Option<TuningRecord> {
        let (tactic, _) = times_ns.iter().min_by_key(|(_, ns)| **ns)?;
        Some(TuningRecord { tactic: tactic.clone(), samples, times_ns })
    }

    /// Which of two records of one problem stays: that of more candidates, then of more samples, then the faster one.
    fn rank(&self) -> impl Ord + '_ {
        let best = self.times_ns.get(&self.tactic).copied().unwrap_or(u64::MAX);
        (self.times_ns.len(), self.samples, Reverse(best), &self.tactic, &self.times_ns)
    }
}

/// Records by problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningTable {
    records: BTreeMap<String, TuningRecord>,
}

impl TuningTable {
    /// The record of a problem.
    pub fn get(&self, problem: &str) -> Option<&TuningRecord> {
        self.records.get(problem)
    }

    /// All records, by problem.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &TuningRecord)> {
        self.records.iter().map(|(problem, record)| (problem.as_str(), record))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record; of two for one problem the better measured one stays.
    pub fn add(&mut self, problem: &str, record: TuningRecord) {
        match self.records.get_mut(problem) {
            Some(known) if known.rank() >= record.rank() => {}
            Some(known) => *known = record,
            None => drop(self.records.insert(problem.to_string(), record)),
        }
    }

    /// Adds every record of another table.
    pub fn merge(&mut self, other: &TuningTable) {
        for (problem, record) in other.iter() {
            self.add(problem, record.clone());
        }
    }

    /// The digest of all records: what a Program that used them depends on.
    pub fn digest(&self) -> Digest {
        Digest::of_bytes(self.to_text().as_bytes())
    }

    /// The text form: a header, then one line a record in the order of their problems.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER_PREFIX}{VERSION}\n");
        for (problem, record) in self.iter() {
            let times: Vec<String> = record.times_ns.iter().map(|(tactic, ns)| format!("{tactic}={ns}")).collect();
            let line = format!("{problem}\t{}\t{}\t{}", record.tactic, record.samples, times.join(","));
            let _ = writeln!(text, "{line}\t{}", check_of(&line));
        }
        text
    }

    /// The table in a text, and how many of its lines are damaged. Those are left out; so is all of another version.
    pub fn from_text(text: &str) -> (TuningTable, Damage) {
        let mut table = TuningTable::default();
        let mut lines = text.split_inclusive('\n');
        let version = lines.next().and_then(|line| line.trim_end().strip_prefix(HEADER_PREFIX)?.parse::<u32>().ok());
        match version {
            Some(VERSION) => {}
            Some(other) => return (table, Damage { lines: 0, version: Some(other) }),
            None => return (table, Damage { lines: text.lines().count().max(1), version: None }),
        }
        let mut damage = Damage::default();
        for line in lines {
            match line.strip_suffix('\n').and_then(parse_line) {
                Some((problem, record)) => table.add(problem, record),
                None => damage.lines += 1,
            }
        }
        (table, damage)
    }
}

/// What of a text was not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Lines that are not records.
    pub lines: usize,
    /// The version of a text that this build does not know.
    pub version: Option<u32>,
}

fn parse_line(line: &str) -> Option<(&str, TuningRecord)> {
    let (line, check) = line.rsplit_once('\t')?;
    let mut parts = line.split('\t');
    let (problem, tactic, samples, times) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if check != check_of(line) || parts.next().is_some() {
        return None;
    }
    let time = |part: &str| {
        let (tactic, ns) = part.split_once('=')?;
        Some((tactic.to_string(), ns.parse().ok()?))
    };
    let times_ns = times.split(',').map(time).collect::<Option<BTreeMap<String, u64>>>()?;
    let record = TuningRecord { tactic: tactic.to_string(), samples: samples.parse().ok()?, times_ns };
    record.times_ns.contains_key(&record.tactic).then_some((problem, record))
}

fn check_of(line: &str) -> String {
    let mut digest = Digest::of_bytes(line.as_bytes()).to_string();
    digest.truncate(CHECK_DIGITS);
    digest
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn record(samples: u32, times: &[(&str, u64)]) -> TuningRecord {
        TuningRecord::of(times.iter().map(|(tactic, ns)| (tactic.to_string(), *ns)).collect(), samples).unwrap()
    }

    fn table(records: &[(&str, TuningRecord)]) -> TuningTable {
        let mut table = TuningTable::default();
        records.iter().for_each(|(problem, record)| table.add(problem, record.clone()));
        table
    }

    fn two() -> TuningTable {
        table(&[
            ("conv b", record(10, &[("product", 5), ("winograd4", 4)])),
            ("conv a", record(12, &[("product", 7), ("winograd2", 9)])),
        ])
    }

    #[test]
    fn a_table_reads_back_as_it_was_written_and_lines_are_sorted() {
        let text = two().to_text();
        assert_eq!(TuningTable::from_text(&text), (two(), Damage::default()));
        let problems: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(problems, ["conv a", "conv b"]);
        assert_eq!(two().get("conv b").unwrap().tactic, "winograd4");
    }

    #[test]
    fn every_flipped_byte_costs_its_line_alone() {
        let text = two().to_text();
        let header = text.find('\n').unwrap() + 1;
        for at in header..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 0x01;
            let changed = String::from_utf8(bytes).unwrap();
            let (read, damage) = TuningTable::from_text(&changed);
            assert!(read.iter().all(|(problem, record)| two().get(problem) == Some(record)), "byte {at}");
            assert!(read.len() < 2 && damage.lines > 0, "byte {at}");
        }
    }

    #[test]
    fn a_truncated_table_keeps_its_whole_lines() {
        let text = two().to_text();
        for length in 0..text.len() {
            let (read, _) = TuningTable::from_text(&text[..length]);
            assert!(read.iter().all(|(problem, record)| two().get(problem) == Some(record)), "length {length}");
        }
    }

    #[test]
    fn another_version_is_not_read() {
        let text = two().to_text().replacen("tuning 1", "tuning 2", 1);
        assert_eq!(TuningTable::from_text(&text), (TuningTable::default(), Damage { lines: 0, version: Some(2) }));
    }

    #[test]
    fn merging_keeps_the_better_measured_record_in_either_order() {
        let quick = record(50, &[("product", 5), ("winograd4", 4)]);
        let full = record(10, &[("product", 5), ("winograd2", 9), ("winograd4", 6)]);
        let longer = record(51, &[("product", 3), ("winograd4", 4)]);
        for (records, best) in [
            ([quick.clone(), full.clone()], full),
            ([quick.clone(), longer.clone()], longer),
            ([quick.clone(), quick.clone()], quick),
        ] {
            let [one, other] = records.map(|record| table(&[("p", record)]));
            let (mut forth, mut back) = (one.clone(), other.clone());
            forth.merge(&other);
            back.merge(&one);
            assert_eq!(forth, back);
            assert_eq!(forth.get("p"), Some(&best));
        }
    }

    #[test]
    fn the_digest_follows_every_field() {
        let digests: std::collections::BTreeSet<String> = [
            table(&[("p", record(10, &[("product", 5)]))]),
            table(&[("q", record(10, &[("product", 5)]))]),
            table(&[("p", record(11, &[("product", 5)]))]),
            table(&[("p", record(10, &[("product", 6)]))]),
            table(&[("p", record(10, &[("winograd4", 5)]))]),
        ]
        .iter()
        .map(|table| table.digest().to_string())
        .collect();
        assert_eq!(digests.len(), 5);
    }
}
