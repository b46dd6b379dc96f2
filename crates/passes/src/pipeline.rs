//! The lists of passes and the driver that runs them. The verifier runs after every pass and names the guilty one.

use std::collections::BTreeSet;

use precast_ir::graph::GraphError;
use precast_ir::verify::verify;
use precast_ir::{Graph, Op, ValueId};
use precast_tensor::{Dim, Symbol};
use thiserror::Error;

use crate::fast_math::FastRewrite;
use crate::log::{Log, PassReport};
use crate::numerics::Numerics;
use crate::step_costs::StepCosts;
use crate::{
    absorb_pads, approximate_gelu, cancel_logs, fold_constants, fold_conv_1x1, fold_factors, fold_scales,
    fold_zero_products, fuse_attention, fuse_depthwise, fuse_epilogues, fuse_gathers, fuse_horizontal, fuse_pointwise,
    fuse_recurrent, fuse_streams, fuse_unpacks, hoist_scales, hoist_softmax, merge_equal, merge_transposes,
    quantise_weights, recognise_activations, recognise_norms, remove_identities, replace_powers, resolve_dims,
    simplify_algebra, simplify_concats,
};

/// One Graph-to-Graph step that keeps the meaning.
pub struct Pass {
    /// Verb and object, as in its file name.
    pub name: &'static str,
    /// Before and after.
    pub doc: &'static str,
    /// Value class: E keeps every bit, R differs only by rounding, F only runs where it is asked for.
    pub class: Class,
    /// Does it.
    pub run: Run,
}

/// How a pass is called.
pub enum Run {
    /// It does whatever it can.
    Plain(fn(&Graph, &mut Log) -> Result<Graph, GraphError>),
    /// It does what pays on the machine.
    Costed(fn(&Graph, &StepCosts, &mut Log) -> Result<Graph, GraphError>),
}

/// What a pass may change in the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing: the same bits for every input.
    Exact,
    /// Rounding only.
    Rounding,
    /// More than rounding: it runs only with the liberty it needs.
    Fast(Liberty),
}

/// A liberty that a caller gives by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liberty {
    /// A rewrite of `--fast-math`.
    Math(FastRewrite),
    /// 8-bit weights.
    Int8,
}

/// Controls of the pipeline. All of them are part of a Program's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Names of passes that do not run.
    pub disabled: Vec<String>,
    /// Which liberties passes and kernels may take with numbers.
    pub numerics: Numerics,
    /// What steps cost; each target has its own, which follow from its description.
    pub costs: StepCosts,
}

/// A pass that failed or broke the Graph.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("pass {pass}: {reason}")]
pub struct PassError {
    /// The guilty pass.
    pub pass: &'static str,
    /// What is wrong with the Graph after it.
    pub reason: String,
}

/// Imported to canonical form. Idempotent; runs on symbolic and on bound Graphs.
pub const CANONICAL: &[Pass] = &[
    resolve_dims::PASS,
    fold_constants::PASS,
    remove_identities::PASS,
    simplify_algebra::PASS,
    simplify_concats::PASS,
    // After folding, which makes equal constants out of unequal computations.
    merge_equal::PASS,
];

/// Canonical to fused form, for Graphs whose dims are numbers.
pub const FUSED: &[Pass] = &[
    // First, so that the passes below see what is left.
    fold_zero_products::PASS,
    cancel_logs::PASS,
    // Before norms, which are recognised by their roots.
    replace_powers::PASS,
    // Before transposes merge: a scale may stand between one and its matmul.
    hoist_scales::PASS,
    merge_transposes::PASS,
    hoist_softmax::PASS,
    absorb_pads::PASS,
    // Before epilogues are fused: a scale in the weights needs no epilogue.
    fold_scales::PASS,
    // After the scales, which are the biases between two convolutions; before epilogues, which would part them.
    fold_conv_1x1::PASS,
    recognise_activations::PASS,
    // After activations, which find the GELUs that are spelled out.
    approximate_gelu::PASS,
    recognise_norms::PASS,
    // After activations and norms, whose factors are part of their pattern.
    fold_factors::PASS,
    // Folding the scales made new constants.
    fold_constants::PASS,
    remove_identities::PASS,
    merge_equal::PASS,
    // Before epilogues, which would take the scale and the mask of the scores.
    fuse_attention::PASS,
    // After attention, which alone reads the parts of a joint projection in place.
    fuse_horizontal::PASS,
    // Before epilogues, which would part two products of the same rows.
    fuse_streams::PASS,
    // After streams, which read weights of few bits as they lie.
    fuse_unpacks::PASS,
    // Before epilogues, which would part the two convolutions.
    fuse_depthwise::PASS,
    // Before pointwise fusion, which would take the activations away from their conv or matmul.
    fuse_epilogues::PASS,
    // After epilogues, which it takes along; a pass before it sees the same products with any weights.
    quantise_weights::PASS,
    fuse_gathers::PASS,
    fuse_recurrent::PASS,
    fuse_pointwise::PASS,
];

/// Runs passes in order; every result is verified.
pub fn run_passes(graph: &Graph, passes: &[Pass], options: &PassOptions) -> Result<Graph, PassError> {
    run_passes_with(graph, passes, options, &mut |_| {})
}

/// Runs passes in order and hands on what each of them did.
pub fn run_passes_with(
    graph: &Graph,
    passes: &[Pass],
    options: &PassOptions,
    report: &mut dyn FnMut(PassReport),
) -> Result<Graph, PassError> {
    let mut graph = graph.clone();
    for pass in passes {
        let is_disabled = options.disabled.iter().any(|name| name == pass.name);
        if is_disabled || !options.numerics.admits(pass.class) {
            report(PassReport::skipped(pass.name));
            continue;
        }
        let mut log = Log::default();
        let fail = |reason: String| PassError { pass: pass.name, reason };
        let changed = match pass.run {
            Run::Plain(run) => run(&graph, &mut log),
            Run::Costed(run) => run(&graph, &options.costs, &mut log),
        };
        let changed = changed.map_err(|error| fail(error.to_string()))?;
        verify(&changed).map_err(|error| fail(error.to_string()))?;
        graph = remove_dead(&changed).map_err(|error| fail(error.to_string()))?;
        report(PassReport::of(pass.name, log));
    }
    Ok(graph)
}

/// The Graph without nodes and constants that no output needs. Inputs stay: they are the model's interface. A size that only
/// a run knows is read by its name, so a node that gives one is needed by all that have it in a dim.
pub fn remove_dead(graph: &Graph) -> Result<Graph, GraphError> {
    let mut sizes_read = BTreeSet::new();
    let mut is_live = vec![false; graph.values().len()];
    for output in graph.outputs() {
        is_live[output.value.0 as usize] = true;
    }
    for size in &graph.sizes {
        is_live[size.value.0 as usize] = true;
    }
    for node in graph.nodes().iter().rev() {
        let is_size_read =
            gives_sizes(&node.op) && symbols_of(graph, &node.outputs).any(|symbol| sizes_read.contains(&symbol));
        if is_size_read || node.outputs.iter().any(|output| is_live[output.0 as usize]) {
            for value in node.inputs.iter().chain(&node.outputs) {
                is_live[value.0 as usize] = true;
            }
            node.op.collect_symbols(&mut sizes_read);
            sizes_read.extend(symbols_of(graph, &node.outputs));
        }
    }
    let mut copy = precast_ir::graph::GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        if node.outputs.iter().any(|output| is_live[output.0 as usize]) {
            copy.node(node)?;
        }
    }
    Ok(copy.finish())
}

/// Whether sizes of an op's results depend on values.
fn gives_sizes(op: &Op) -> bool {
    matches!(op, Op::NonZero(_) | Op::Nms(_) | Op::If(_) | Op::Loop(_))
}

fn symbols_of(graph: &Graph, values: &[ValueId]) -> impl Iterator<Item = Symbol> {
    values.iter().flat_map(|&value| graph.ty(value).dims.iter().flat_map(Dim::symbols))
}

#[cfg(test)]
mod tests {
    use precast_ir::attr::NoConstants;
    use precast_ir::text;

    use super::*;

    #[test]
    fn a_node_of_which_only_the_size_is_read_stays() {
        let source = r#"graph "sizes"(%0 "x": f32[4]) {
  %1 = nonzero(%0) {count=count} : i64[1,count]
  %2 = nonzero(%0) {count=other} : i64[1,other]
  %3 = iota() {to=i64, start=0, step=1, length=count} : i64[count]
  return "y" %3
}
"#;
        let graph = text::parse(source, &NoConstants).unwrap();
        let names: Vec<&str> = remove_dead(&graph).unwrap().nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(names, ["nonzero", "iota"]);
    }
}
