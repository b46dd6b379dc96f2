//! One maker an operator: it picks operands that fit, chooses attributes and adds the node. The tests below hold the table
//! against the importer's and against the table of ops, so that an operator without a maker is a failure or is excused here.

mod control;
mod conv;
mod elementwise;
mod index;
mod layout;
mod matmul;
mod microsoft;
mod microsoft_rare;
mod norm;
mod quantize;
mod reduce;
mod sequence;
mod signal;
mod window;

use super::growing::Growing;

/// Whether a node was added; there is none where nothing fits or a result is too large.
type Made = Option<()>;

/// How one operator comes into a graph.
pub struct Maker {
    /// Its domain; "" is ai.onnx.
    pub domain: &'static str,
    /// The operator.
    pub operator: &'static str,
    /// The opset from which on it has the form that is made.
    pub since: i64,
    /// Adds it.
    pub make: fn(&mut Growing, &str) -> Made,
}

impl Maker {
    /// Whether each runtime has its own results of it.
    pub fn is_random(&self) -> bool {
        RANDOM.contains(&self.operator)
    }
}

/// Operators that draw numbers.
const RANDOM: [&str; 6] =
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

const fn on(operator: &'static str, since: i64, make: fn(&mut Growing, &str) -> Made) -> Maker {
    Maker { domain: "", operator, since, make }
}

const fn on_microsoft(operator: &'static str, make: fn(&mut Growing, &str) -> Made) -> Maker {
    Maker { domain: "com.microsoft", operator, since: 1, make }
}

/// Every maker, family by family.
const FAMILIES: &[&[Maker]] = &[
    control::MAKERS,
    conv::MAKERS,
    elementwise::MAKERS,
    index::MAKERS,
    layout::MAKERS,
    matmul::MAKERS,
    microsoft::MAKERS,
    microsoft_rare::MAKERS,
    norm::MAKERS,
    quantize::MAKERS,
    reduce::MAKERS,
    sequence::MAKERS,
    signal::MAKERS,
    window::MAKERS,
];

/// Every maker.
pub fn all() -> impl Iterator<Item = &'static Maker> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The makers whose operators an opset has.
pub fn of_opset(opset: i64) -> Vec<&'static Maker> {
    all().filter(|maker| maker.since <= opset).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use precast::{Model, Runner, RunnerOptions};
    use precast_ir::Op;
    use precast_onnx::operators::{FAMILIES, STRUCTURES};
    use prost::Message;

    use super::*;
    use crate::fuzz::graphs::{example, generate};

    /// Operators of ai.onnx that no graph is grown with, and why.
    const WITHOUT_MAKER: &[(&str, &str)] = &[
        ("RegexFullMatch", "strings are no values of the generator"),
        ("Scatter", "opset 11 has ScatterElements instead"),
        ("StringConcat", "strings are no values of the generator"),
        ("StringNormalizer", "strings are no values of the generator"),
        ("StringSplit", "strings are no values of the generator"),
        ("TfIdfVectorizer", "counts of n-grams are held against the cases of ONNX"),
        ("Upsample", "opset 10 has Resize instead"),
    ];

    /// Ops of the table that an imported graph does not have.
    const WITHOUT_OPERATOR: &[(&str, &str)] = &[
        ("fused", "made by passes"),
        ("iota", "a constant where its length is a number; graphs are imported with numbers"),
        (
            "cached_attention",
            "made for generation alone, where caches are inputs; its kernels have a differential test",
        ),
        (
            "unpack",
            "a constant where weights are small, and those of the makers are; its kernels have differential tests",
        ),
        ("append_to_cache", "made for generation alone, where a device keeps caches"),
        ("dim_value", "a size that stays a symbol until the run; graphs are imported with numbers"),
    ];

    /// How often each maker is tried until it is said to make nothing.
    const TRIES: u64 = 60;

    #[test]
    fn every_operator_has_a_maker_or_an_excuse() {
        let tensors = FAMILIES.iter().flat_map(|(_, rows)| rows.iter().map(|row| (row.domain, row.name)));
        let structures = STRUCTURES.iter().flat_map(|(_, rows)| rows.iter().map(|row| (row.domain, row.name)));
        let covered: BTreeSet<&str> =
            tensors.chain(structures).filter(|row| row.0.is_empty()).map(|row| row.1).collect();
        let made: BTreeSet<&str> = all().filter(|maker| maker.domain.is_empty()).map(|maker| maker.operator).collect();
        let excused: BTreeSet<&str> = WITHOUT_MAKER.iter().map(|excuse| excuse.0).collect();
        let missing: Vec<&&str> =
            covered.iter().filter(|name| !made.contains(**name) && !excused.contains(**name)).collect();
        assert!(missing.is_empty(), "without a maker: {missing:?}");
        let stale: Vec<&&str> = made.iter().chain(&excused).filter(|name| !covered.contains(**name)).collect();
        assert!(stale.is_empty(), "not imported: {stale:?}");
        assert!(made.is_disjoint(&excused));
    }

    #[test]
    fn every_maker_makes_its_operator_and_every_op_of_the_table_occurs() {
        let mut ops: BTreeSet<&str> = WITHOUT_OPERATOR.iter().map(|excuse| excuse.0).collect();
        for maker in all() {
            let found = (0..TRIES).find_map(|seed| {
                let generated = example(maker, seed)?;
                let model = Model::from_bytes(generated.model.encode_to_vec().into()).ok()?;
                let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() }).ok()?;
                runner.graph(&generated.inputs).ok()
            });
            let (graph, _) = found.unwrap_or_else(|| panic!("no {} was made", maker.operator));
            ops.extend(graph.nodes().iter().map(|node| node.op.name()));
        }
        for seed in 0..200 {
            let generated = generate(seed);
            let model = Model::from_bytes(generated.model.encode_to_vec().into()).expect("a valid file");
            let runner =
                Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() }).expect("a runner");
            let (graph, _) = runner.graph(&generated.inputs).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            ops.extend(graph.nodes().iter().map(|node| node.op.name()));
        }
        let missing: Vec<&str> = Op::TABLE.iter().map(|info| info.name).filter(|name| !ops.contains(name)).collect();
        assert!(missing.is_empty(), "ops that no graph has: {missing:?}");
    }
}
