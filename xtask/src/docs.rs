//! Documents that are generated from tables in the code, so that a list is written in one place only.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use precast_ir::Op;
use precast_onnx::import::{Applies, StructureImport};
use precast_onnx::operators::{FAMILIES, REFUSED, STRUCTURES};
use precast_passes::pipeline::{Class, Liberty};
use precast_passes::{CANONICAL, FUSED, Pass};

use crate::coverage::coverage;
use crate::paths;

/// A document.
struct Document {
    /// Its file under docs/.
    name: &'static str,
    /// Its text.
    make: fn() -> String,
}

const DOCUMENTS: &[Document] = &[
    Document { name: "ops.md", make: ops },
    Document { name: "passes.md", make: passes },
    Document { name: "operators.md", make: operators },
];

/// Writes every document.
pub fn write() -> Result<()> {
    for Document { name, make } in DOCUMENTS {
        let path = path(name);
        fs::create_dir_all(path.parent().expect("a document lies in a folder"))?;
        fs::write(&path, make()).with_context(|| format!("cannot write '{}'", path.display()))?;
        eprintln!("docs/{name}");
    }
    Ok(())
}

/// Fails when a document is not what the tables say.
pub fn check() -> Result<()> {
    let stale = DOCUMENTS.iter().filter(|document| {
        let found = fs::read_to_string(path(document.name));
        !found.is_ok_and(|found| found == (document.make)())
    });
    let stale: Vec<&str> = stale.map(|document| document.name).collect();
    ensure!(stale.is_empty(), "stale: {}; run `cargo xtask docs`", stale.join(", "));
    Ok(())
}

fn path(name: &str) -> PathBuf {
    paths::root().join("docs").join(name)
}

/// A document with its title and a remark on where it comes from.
fn begin(title: &str, source: &str) -> String {
    format!("# {title}\n\nGenerated from {source} by `cargo xtask docs`; do not edit.\n")
}

/// One line of a table.
fn row(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    writeln!(text, "| {} |", cells.join(" | ")).expect("a string takes every write");
}

fn table_head(text: &mut String, cells: &[&str]) {
    row(text, cells);
    writeln!(text, "|{}", "---|".repeat(cells.len())).expect("a string takes every write");
}

fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<&str>>().join(" ")
}

fn ops() -> String {
    let mut text = begin("Ops", "the table in `crates/ir/src/op.rs`");
    let mut family = None;
    let mut rows: Vec<_> = Op::TABLE.iter().collect();
    rows.sort_by_key(|info| info.family);
    for info in rows {
        if family != Some(info.family) {
            family = Some(info.family);
            write!(text, "\n## {:?}\n\n", info.family).expect("a string takes every write");
            table_head(&mut text, &["op", "attributes", "meaning"]);
        }
        let attributes: Vec<String> =
            info.attributes.iter().map(|(name, kind)| format!("`{name}: {}`", one_line(kind))).collect();
        row(&mut text, &[&format!("`{}`", info.name), &attributes.join(", "), &one_line(info.doc)]);
    }
    text
}

fn passes() -> String {
    let mut text = begin("Passes", "the lists in `crates/passes/src/pipeline.rs`");
    text.push_str(
        "\nClass: exact keeps every bit for every input; rounding may change the last bits of floats. A pass that has an \
         option for its class changes more than that, and runs only where the option is given.\n",
    );
    let lists: [(&str, &str, &[Pass]); 2] = [
        ("Canonical", "Imported to canonical form, on symbolic and on bound Graphs.", CANONICAL),
        ("Fused", "Canonical to fused form, on Graphs whose dims are numbers.", FUSED),
    ];
    for (name, about, list) in lists {
        write!(text, "\n## {name}\n\n{about}\n\n").expect("a string takes every write");
        table_head(&mut text, &["order", "pass", "class", "before → after"]);
        for (index, pass) in list.iter().enumerate() {
            let class = match pass.class {
                Class::Exact => "exact".to_string(),
                Class::Rounding => "rounding".to_string(),
                Class::Fast(Liberty::Math(rewrite)) => format!("`--fast-math {}`", rewrite.name()),
                Class::Fast(Liberty::Int8) => "`--int8`".to_string(),
            };
            let order = (index + 1).to_string();
            row(&mut text, &[&order, &format!("`{}`", pass.name), &class, &one_line(pass.doc)]);
        }
    }
    text
}

/// A row of an operator table.
struct OperatorRow {
    domain: &'static str,
    name: &'static str,
    since: i64,
    tier: u8,
    family: &'static str,
}

/// Every row of both tables, by domain, operator and opset; an operator with a row in each is listed once.
fn operator_rows() -> Vec<OperatorRow> {
    let tensors = FAMILIES.iter().flat_map(|(family, rows)| {
        rows.iter().map(|row| OperatorRow {
            domain: row.domain,
            name: row.name,
            since: row.since,
            tier: row.tier,
            family,
        })
    });
    let mut rows: Vec<OperatorRow> = tensors.collect();
    for (family, structures) in STRUCTURES {
        for &StructureImport { domain, name, since, tier, applies, .. } in *structures {
            if applies == Applies::Always {
                rows.push(OperatorRow { domain, name, since, tier, family });
            }
        }
    }
    rows.sort_by_key(|row| (row.domain, row.name, row.since));
    rows
}

/// Opsets of the rows of one operator: each is valid until the next.
fn opsets(rows: &[OperatorRow]) -> String {
    rows.iter().map(|row| row.since.to_string()).collect::<Vec<String>>().join(", ")
}

fn operators() -> String {
    let mut text = begin("ONNX operators", "the tables in `crates/onnx/src/operators`");
    text.push_str(
        "\nOpsets: the first opset of each form that is imported; a form is valid until the next. Reference: every operator \
         that is imported has a meaning. CPU and GPU: what becomes of generated examples of all element types when they \
         are compiled (`xtask/src/coverage.rs`); `by reference` is the op's meaning inside of a step, `host` the same beside \
         a GPU, and what the host decides (sizes that depend on values, branches, loops) counts as such. `–`: no example is \
         generated; strings, sequences and optionals are resolved while importing, and ai.onnx.ml becomes gathers, \
         comparisons and products.\n",
    );
    let coverage = coverage();
    let rows = operator_rows();
    let mut domain = None;
    for group in rows.chunk_by(|a, b| (a.domain, a.name) == (b.domain, b.name)) {
        let first = &group[0];
        if domain != Some(first.domain) {
            domain = Some(first.domain);
            let name = if first.domain.is_empty() { "ai.onnx" } else { first.domain };
            write!(text, "\n## {name}\n\n").expect("a string takes every write");
            table_head(&mut text, &["operator", "opsets", "tier", "family", "reference", "cpu", "gpu"]);
        }
        let own = coverage.get(&(first.domain, first.name)).copied().unwrap_or_default();
        let family = group.last().map_or("", |row| row.family);
        let (cpu, gpu) = (own.cell(own.cpu, "by reference"), own.cell(own.gpu, "host"));
        row(&mut text, &[first.name, &opsets(group), &first.tier.to_string(), family, "yes", &cpu, &gpu]);
    }
    text.push_str("\n## Refused\n\nKnown and not imported, with what a model that has them is told.\n\n");
    table_head(&mut text, &["domain", "operator", "reason"]);
    for refused in REFUSED {
        let domain = if refused.domain.is_empty() { "ai.onnx" } else { refused.domain };
        row(&mut text, &[domain, refused.name, refused.reason]);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn documents_are_fresh() {
        super::check().unwrap();
    }
}
