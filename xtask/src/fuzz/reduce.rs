//! The smallest part of a graph that still fails: values of its nodes become inputs, one after the other, as long as the
//! difference stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use precast::{Model, Named, Runner, RunnerOptions};
use precast_onnx::proto::GraphProto;
use prost::Message;

use super::differential::{Case, run_onnxruntime};
use super::graphs;
use super::messages::{declared, declared_as};
use super::targets::write_arrays;

/// Reduces the graph of a seed and writes what is left, with its inputs, to a folder.
pub fn reduce_to(seed: u64, folder: &Path) -> Result<()> {
    let mut case = Case::of(&graphs::generate(seed), seed);
    let Err(error) = case.run_all() else {
        eprintln!("seed {seed} does not fail");
        return case.write(folder);
    };
    eprintln!("{error:#}");
    while let Some(smaller) = smaller(&case) {
        case = smaller;
    }
    let Err(error) = case.run_all() else { unreachable!("only what fails is kept") };
    for node in &case.model.graph.as_ref().context("a model has a graph")?.node {
        eprintln!("{} {:?} -> {:?}", node.op_type, node.input, node.output);
    }
    eprintln!("{error:#}");
    case.write(folder)?;
    write_expected(&case, folder)
}

/// Leaves what is right beside a case: what onnxruntime gives, or the reference where it gives nothing.
fn write_expected(case: &Case, folder: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let judged = work.path().join("case");
    case.write(&judged)?;
    run_onnxruntime(work.path())?;
    if judged.join("error.txt").exists() {
        return write_arrays(folder, "output", &case.run_reference()?);
    }
    for output in 0..case.tolerances.len() {
        fs::copy(judged.join(format!("plain_{output}.npy")), folder.join(format!("output_{output}.npy")))?;
    }
    Ok(())
}

/// A smaller case that fails too.
fn smaller(case: &Case) -> Option<Case> {
    let graph = case.model.graph.as_ref()?;
    let one_output = (graph.output.len() > 1).then_some(0..graph.output.len()).into_iter().flatten();
    let by_output = one_output.filter_map(|kept| keep_output(case, kept));
    let by_node = (0..graph.node.len()).filter_map(|at| cut_node(case, at));
    by_output.chain(by_node).find(|smaller| smaller.run_all().is_err())
}

fn keep_output(case: &Case, kept: usize) -> Option<Case> {
    let mut smaller = case.clone();
    let graph = smaller.model.graph.as_mut()?;
    graph.output = vec![graph.output[kept].clone()];
    smaller.tolerances = vec![case.tolerances[kept]];
    smaller.judged_tolerances = vec![case.judged_tolerances[kept]];
    prune(&mut smaller)?;
    Some(smaller)
}

/// The case in which the values of a node are inputs.
fn cut_node(case: &Case, at: usize) -> Option<Case> {
    let mut smaller = case.clone();
    let graph = smaller.model.graph.as_mut()?;
    let node = graph.node.remove(at);
    let is_output = |name: &String| graph.output.iter().any(|output| output.name == *name);
    if node.output.iter().any(is_output) {
        return None;
    }
    for (name, tensor) in values_of(case, &node.output).ok()? {
        graph.input.push(declared_as(&name, &tensor));
        smaller.inputs.push((name, tensor));
    }
    prune(&mut smaller)?;
    Some(smaller)
}

/// Values of the graph by name, by reference.
fn values_of(case: &Case, names: &[String]) -> Result<Named> {
    let mut model = case.model.clone();
    let graph = model.graph.as_mut().context("a model has a graph")?;
    let names = names.iter().filter(|name| !name.is_empty());
    graph.output = names.map(|name| declared(name, precast::DType::F32, None)).collect();
    let model = Model::from_bytes(model.encode_to_vec().into())?;
    let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() })?;
    Ok(runner.run_reference(&case.inputs)?)
}

/// Removes what no output needs.
fn prune(case: &mut Case) -> Option<()> {
    let graph = case.model.graph.as_mut()?;
    let mut needed: BTreeSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    let mut kept = Vec::new();
    for node in graph.node.drain(..).rev() {
        if node.output.iter().any(|name| needed.contains(name)) {
            needed.extend(node.input.iter().cloned());
            for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
                read_by(body, &mut needed);
            }
            kept.push(node);
        }
    }
    kept.reverse();
    graph.node = kept;
    graph.initializer.retain(|tensor| needed.contains(&tensor.name));
    graph.input.retain(|input| needed.contains(&input.name));
    case.inputs.retain(|(name, _)| needed.contains(name));
    Some(())
}

fn read_by(body: &GraphProto, needed: &mut BTreeSet<String>) {
    for node in &body.node {
        needed.extend(node.input.iter().cloned());
        for inner in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            read_by(inner, needed);
        }
    }
    needed.extend(body.output.iter().map(|output| output.name.clone()));
}
