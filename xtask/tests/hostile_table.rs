//! docs/hostile.md names tests; each of them exists.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of functions in the sources below a folder.
fn functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let declared = text.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.split(['(', '<']).next());
            names.extend(declared.map(str::to_string));
        }
    }
}

#[test]
fn every_test_of_the_table_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut declared = BTreeSet::new();
    functions(&root.join("crates"), &mut declared);
    let table = fs::read_to_string(root.join("docs/hostile.md")).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| H")).collect();
    assert!(rows.len() >= 32, "{}", rows.len());
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty() || tests.contains("there is no server yet"), "{row}");
        for test in named {
            assert!(declared.contains(test), "{test} is not declared anywhere");
        }
    }
}
