//! The table of ARCHITECTURE.md says which room may import which; the manifests must not say more.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Rooms that the table calls doors.
const DOORS: &[&str] = &["cli", "server", "python", "ort-ep"];

/// What a room may import.
#[derive(Debug, PartialEq)]
enum May {
    Anything,
    Only(BTreeSet<String>),
}

#[test]
fn manifests_import_only_what_the_table_allows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let table = parse_table(&fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap());
    let mut faults = Vec::new();
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let room = folder.file_name().unwrap().to_str().unwrap().to_string();
        let imports = imports(&fs::read_to_string(folder.join("Cargo.toml")).unwrap());
        match table.get(&room) {
            None => faults.push(format!("room {room} is not in the table")),
            Some(May::Anything) => {}
            Some(May::Only(allowed)) => {
                let extra = imports.difference(allowed);
                faults.extend(extra.map(|import| format!("{room} imports {import}, which the table does not allow")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The rows of the table `| room | may import | … |`.
fn parse_table(text: &str) -> BTreeMap<String, May> {
    let mut lines = text.lines().skip_while(|line| !line.replace(' ', "").starts_with("|room|mayimport|"));
    assert!(lines.next().is_some(), "ARCHITECTURE.md has no table '| room | may import |'");
    let mut table = BTreeMap::new();
    let mut above = BTreeSet::new();
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (rooms, may) = (cells[1].replace('`', ""), cells[2].replace('`', ""));
        let may = may.split('(').next().unwrap().trim().to_string();
        for room in rooms.split(',').map(str::trim) {
            let names = if room == "doors" { DOORS.to_vec() } else { vec![room] };
            for name in names {
                let allowed = match may.as_str() {
                    "anything" => May::Anything,
                    "all above" => May::Only(above.clone()),
                    "–" | "-" | "" => May::Only(BTreeSet::new()),
                    list => {
                        May::Only(list.split([' ', ',']).filter(|word| !word.is_empty()).map(String::from).collect())
                    }
                };
                table.insert(name.to_string(), allowed);
            }
        }
        above.extend(rooms.split(',').map(|room| room.trim().to_string()));
    }
    table
}

/// The rooms among the dependencies of a manifest, for every platform, without those of tests.
fn imports(manifest: &str) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().unwrap();
    let platforms = manifest.get("target").and_then(toml::Value::as_table);
    let tables = platforms.into_iter().flat_map(|targets| targets.values()).filter_map(toml::Value::as_table);
    let tables = tables.chain([&manifest]);
    let dependencies = tables.filter_map(|table| table.get("dependencies")?.as_table());
    dependencies.flat_map(|table| table.keys()).filter_map(|package| room_of(package)).collect()
}

fn room_of(package: &str) -> Option<String> {
    match package.strip_prefix("precast") {
        Some("") => Some("precast".to_string()),
        Some(rest) => rest.strip_prefix('-').map(String::from),
        None => None,
    }
}

#[test]
fn the_table_is_read_with_its_words() {
    let text = "| room | may import | must not know |\n|---|---|---|\n| tensor | – | x |\n| ir | tensor | x |\n\
                | precast | all above | x |\n| doors | precast | x |\n| testing, xtask | anything (dev only) | – |\n";
    let table = parse_table(text);
    let only = |names: &[&str]| May::Only(names.iter().map(ToString::to_string).collect());
    assert_eq!(table["tensor"], only(&[]));
    assert_eq!(table["precast"], only(&["tensor", "ir"]));
    assert_eq!(table["ort-ep"], only(&["precast"]));
    assert_eq!(table["xtask"], May::Anything);
}

#[test]
fn dependencies_of_tests_are_no_imports() {
    let manifest = "[dependencies]\nprecast-ir.workspace = true\nserde = \"1\"\n[dev-dependencies]\nprecast-cpu = {}\n\
                    [target.'cfg(unix)'.dependencies]\nprecast-tensor = {}\n";
    assert_eq!(imports(manifest), BTreeSet::from(["ir".to_string(), "tensor".to_string()]));
}
