//! docs/hostile.md has a row for each fault of the specification and names tests; each of them is a test that runs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Names of the tests in the sources below a folder.
fn tests(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "#[test]") {
                let mut after = lines[at + 1..].iter().skip_while(|line| line.starts_with("#["));
                let name = after.next().and_then(|line| line.strip_prefix("fn ")?.split(['(', '<']).next());
                names.extend(name.map(str::to_string));
            }
        }
    }
}

/// Tests that a row names, by row.
fn rows(table: &str) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for row in table.lines().filter(|line| line.starts_with("| H")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let named = cells.last().unwrap().split('`').skip(1).step_by(2).map(str::to_string).collect();
        rows.insert(cells[0].to_string(), named);
    }
    rows
}

#[test]
fn every_row_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut declared = BTreeSet::new();
    tests(&root.join("crates"), &mut declared);
    tests(&root.join("xtask"), &mut declared);
    let rows = rows(&fs::read_to_string(root.join("docs/hostile.md")).unwrap());
    for number in 1..=35 {
        let named = rows.get(&format!("H{number}")).unwrap_or_else(|| panic!("there is no row H{number}"));
        assert!(!named.is_empty(), "H{number} names no test");
        for test in named {
            assert!(declared.contains(test), "H{number}: {test} is no test");
        }
    }
}
