//! What reads bytes or text, and what must hold for any input: an error or a value that means itself, no panic, and no more
//! memory than a small multiple of the input.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use precast::npy::write_npy;
use precast::{Model, Runner, RunnerOptions, Tensor, TuningRecord, TuningTable};
use precast_cpu::CpuDevice;
use precast_ir::attr::ConstantSource;
use precast_ir::{Definition, text};
use precast_onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto};
use precast_onnx::{AdapterFile, Limits, operators};
use precast_program::{ArtifactStore, Bucket, Device, MemoryStore, Port, Program};
use precast_tensor::Digest;
use prost::Message;

use super::cache_files::CacheFiles;
use super::mutate::{EDGES, Random, mutate};
use super::{BatchReport, FuzzTarget, HANG, corpus_folder, graphs, read_corpus};

/// Bytes that an input of n bytes may have allocated at once: a message takes more room in memory than in a file, and a
/// Graph more than its text. What is refused has no use for more than the base; what is accepted may be a small file that
/// stands for large tables.
const ALLOCATED_PER_BYTE: u64 = 256;
const ALLOCATED_BASE: u64 = 64 << 20;
const ALLOCATED_BASE_ACCEPTED: u64 = 512 << 20;

/// Graphs whose Programs are changed, by seed.
const PROGRAM_SEEDS: std::ops::Range<u64> = 0..24;
/// Graphs that a corpus is chosen from.
const COVERING_SEEDS: u64 = 600;
/// What a file of a corpus costs beside its bytes, in bytes.
const FILE_BYTES: usize = 2_000;

struct Outcome {
    is_accepted: bool,
    allocated: u64,
}

/// A target with what its inputs are made of.
pub struct Fuzzer {
    /// What is fuzzed.
    pub target: FuzzTarget,
    corpus: Vec<Vec<u8>>,
    /// The constants of the Programs in the corpus.
    store: MemoryStore,
    /// The constants that the texts of the corpus name by digest.
    constants: Constants,
    cache: Option<CacheFiles>,
}

impl Fuzzer {
    /// A fuzzer of a target.
    pub fn new(target: FuzzTarget) -> Result<Fuzzer> {
        let (mut corpus, mut cache) = (Vec::new(), None);
        let store = MemoryStore::default();
        match target {
            FuzzTarget::Onnx | FuzzTarget::Text | FuzzTarget::Tuning | FuzzTarget::Adapter => {
                corpus = read_corpus(target)?;
            }
            // Program files name the build that wrote them, so they are made here and not kept.
            FuzzTarget::Program => corpus = programs(&store)?,
            FuzzTarget::Cache => cache = Some(CacheFiles::new()?),
            FuzzTarget::Differential => {}
        }
        let constants = if target == FuzzTarget::Text { Constants::of_corpus()? } else { Constants::default() };
        Ok(Fuzzer { target, corpus, store, constants, cache })
    }

    /// Takes the inputs of seeds `first..first + count`.
    pub fn run_inputs(&mut self, first: u64, count: u64) -> BatchReport {
        let mut report = BatchReport::default();
        for seed in first..first + count {
            report.inputs += 1;
            match self.run(seed, &mut report) {
                Ok(outcome) => {
                    report.accepted += u64::from(outcome.is_accepted);
                    report.allocated_max = report.allocated_max.max(outcome.allocated);
                }
                Err(error) => report.failures.push((seed, format!("{error:#}"))),
            }
        }
        report
    }

    /// The bytes of a seed; a cache has none of its own.
    pub fn input_of(&self, seed: u64) -> Result<Vec<u8>> {
        ensure!(self.cache.is_none() && !self.corpus.is_empty(), "inputs of {} are no bytes", self.target.name());
        self.input(&mut Random::new(seed))
    }

    /// Makes the input of a seed and gives it to the target.
    fn run(&self, seed: u64, report: &mut BatchReport) -> Result<Outcome> {
        let mut random = Random::new(seed);
        if let Some(cache) = &self.cache {
            return measured(cache.bytes(), || {
                let outcome = cache.run(&mut random)?;
                report.note(&outcome.note);
                Ok(outcome.is_accepted)
            });
        }
        let bytes = self.input(&mut random)?;
        measured(bytes.len() as u64, || self.read(&bytes))
    }

    /// Bytes of the corpus, changed.
    fn input(&self, random: &mut Random) -> Result<Vec<u8>> {
        let mut bytes = random.pick(&self.corpus).clone();
        let other = random.pick(&self.corpus).clone();
        match self.target {
            FuzzTarget::Onnx if random.once_in(2) => return wrong_fields(&bytes, random),
            FuzzTarget::Program => return wrong_program(&bytes, &other, random),
            _ => mutate(&mut bytes, &other, random),
        }
        Ok(bytes)
    }

    /// Whether the input is accepted; an error is a broken promise.
    fn read(&self, bytes: &[u8]) -> Result<bool> {
        match self.target {
            FuzzTarget::Onnx => read_onnx(bytes),
            FuzzTarget::Text => read_text(bytes, &self.constants),
            FuzzTarget::Program => read_program(bytes, &self.store),
            FuzzTarget::Tuning => read_tuning(bytes),
            FuzzTarget::Adapter => read_adapter(bytes),
            FuzzTarget::Cache | FuzzTarget::Differential => Ok(false),
        }
    }
}

/// Gives an input of some length to its reader, which may not panic, take long, or take much memory at once.
fn measured(length: u64, read: impl FnOnce() -> Result<bool>) -> Result<Outcome> {
    let (start, mut result) = (Instant::now(), Ok(false));
    let allocated = allocation_counter::measure(|| {
        result = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(anyhow::anyhow!("panicked")));
    });
    let base = if matches!(result, Ok(true)) { ALLOCATED_BASE_ACCEPTED } else { ALLOCATED_BASE };
    let limit = length * ALLOCATED_PER_BYTE + base;
    ensure!(allocated.bytes_max <= limit, "{} bytes allocated for {length}", allocated.bytes_max);
    ensure!(start.elapsed() < HANG, "took {:?}", start.elapsed());
    Ok(Outcome { is_accepted: result?, allocated: allocated.bytes_max })
}

/// Constants by digest.
#[derive(Default)]
struct Constants(BTreeMap<Digest, Tensor>);

impl ConstantSource for Constants {
    fn constant(&self, digest: &Digest) -> Option<Tensor> {
        self.0.get(digest).cloned()
    }
}

impl Constants {
    /// The constants of the corpus, whose texts hold only the small ones.
    fn of_corpus() -> Result<Constants> {
        let mut constants = BTreeMap::new();
        for bytes in read_corpus(FuzzTarget::Onnx)? {
            let Ok(graph) = Model::from_bytes(bytes.into())?.symbolic_graph() else { continue };
            for value in graph.values() {
                if let Definition::Constant(tensor) = &value.definition {
                    constants.insert(tensor.digest(), tensor.clone());
                }
            }
        }
        Ok(Constants(constants))
    }
}

/// A model that imports gives a Graph that verifies.
fn read_onnx(bytes: &[u8]) -> Result<bool> {
    let Ok(model) = Model::from_bytes(bytes.to_vec().into()) else { return Ok(false) };
    let Ok(graph) = model.symbolic_graph() else { return Ok(false) };
    precast_ir::verify::verify(&graph).context("the imported Graph does not verify")?;
    Ok(true)
}

/// A text that parses prints as a text that parses to the same.
fn read_text(bytes: &[u8], constants: &Constants) -> Result<bool> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(false) };
    let Ok(graph) = text::parse(text, constants) else { return Ok(false) };
    let printed = text::print(&graph);
    let again = text::parse(&printed, constants).with_context(|| format!("printed as\n{printed}"))?;
    ensure!(text::print(&again) == printed, "reads back as something else:\n{printed}");
    Ok(true)
}

/// A Program that is read loads or is refused, and runs to an end if it loads.
fn read_program(bytes: &[u8], store: &MemoryStore) -> Result<bool> {
    let Ok(program) = precast_program::decode(bytes) else { return Ok(false) };
    ensure!(precast_program::decode(&precast_program::encode(&program)).is_ok(), "does not encode");
    let device = CpuDevice::new(1);
    let Ok(loaded) = device.load(&Arc::new(program), store) else { return Ok(false) };
    let zeros = |ports: &[Port]| -> Vec<Vec<u8>> { ports.iter().map(|port| vec![0; port.bytes as usize]).collect() };
    let (inputs, mut outputs) = (zeros(&loaded.program().inputs), zeros(&loaded.program().outputs));
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let mut context = device.context(loaded.program().arena_bytes);
    // A run may be refused, for buffers that are not aligned or values that make no sense.
    let _ = context.run(loaded.as_ref(), &inputs, &mut outputs);
    Ok(true)
}

/// A table that is read prints as a table that is read without damage.
fn read_tuning(bytes: &[u8]) -> Result<bool> {
    let text = String::from_utf8_lossy(bytes);
    let (table, _) = TuningTable::from_text(&text);
    let (again, damage) = TuningTable::from_text(&table.to_text());
    ensure!(again.digest() == table.digest(), "reads back as another table: {damage:?}");
    Ok(!table.is_empty())
}

/// An adapter has each name once, and tensors of as many bytes as their shapes say.
fn read_adapter(bytes: &[u8]) -> Result<bool> {
    let Ok(adapter) = AdapterFile::from_bytes(bytes.to_vec().into(), &Limits::default()) else { return Ok(false) };
    let names: BTreeSet<&str> = adapter.parameters.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names.len() == adapter.parameters.len(), "a name is there twice");
    for (name, tensor) in &adapter.parameters {
        let expected = tensor.len() * tensor.dtype().size_bytes();
        ensure!(tensor.as_bytes().len() == expected, "'{name}' is {} of other bytes", tensor.type_());
    }
    Ok(true)
}

/// A model with wrong fields: whole as a message, so that the import has to find out.
fn wrong_fields(bytes: &[u8], random: &mut Random) -> Result<Vec<u8>> {
    let mut model = ModelProto::decode(bytes)?;
    let imported = OperatorSetIdProto { domain: "ai.onnx.ml".to_string(), version: 1 + random.below(5) as i64 };
    model.opset_import.push(imported);
    for _ in 0..1 + random.below(4) {
        if let Some(graph) = &mut model.graph {
            break_graph(graph, random);
        }
        if random.once_in(16)
            && let Some(set) = model.opset_import.first_mut()
        {
            set.version = random.below(30) as i64;
        }
    }
    Ok(model.encode_to_vec())
}

fn break_graph(graph: &mut GraphProto, random: &mut Random) {
    let nodes = graph.node.len();
    if nodes == 0 {
        return;
    }
    let at = random.below(nodes);
    let names: Vec<String> = graph.node.iter().flat_map(|node| node.input.iter().cloned()).collect();
    let node = &mut graph.node[at];
    match random.below(9) {
        0 => {
            let structures = operators::STRUCTURES.iter().flat_map(|(_, rows)| rows.iter());
            let structures = structures.map(|row| (row.domain, row.name));
            let rows: Vec<_> = operators::rows().map(|row| (row.domain, row.name)).chain(structures).collect();
            let (domain, name) = *random.pick(&rows);
            (node.domain, node.op_type) = (domain.to_string(), name.to_string());
        }
        1 if !node.input.is_empty() && !names.is_empty() => {
            let input = random.below(node.input.len());
            node.input[input] = random.pick(&names).clone();
        }
        2 => drop(node.input.pop()),
        3 if !names.is_empty() => node.input.push(random.pick(&names).clone()),
        4 => node.output.push(format!("extra{at}")),
        5 if !node.attribute.is_empty() => {
            let place = random.below(node.attribute.len());
            let attribute = &mut node.attribute[place];
            if attribute.i.is_some() {
                attribute.i = Some(*random.pick(&EDGES));
            }
            if !attribute.ints.is_empty() {
                let place = random.below(attribute.ints.len());
                attribute.ints[place] = *random.pick(&EDGES);
            }
        }
        6 if !node.attribute.is_empty() => {
            let place = random.below(node.attribute.len());
            drop(node.attribute.remove(place));
        }
        7 if !graph.initializer.is_empty() => {
            let place = random.below(graph.initializer.len());
            let tensor = &mut graph.initializer[place];
            let edge = *random.pick(&EDGES);
            match tensor.dims.is_empty() {
                true => tensor.dims.push(edge),
                false => {
                    let axis = random.below(tensor.dims.len());
                    tensor.dims[axis] = edge;
                }
            }
        }
        _ => {
            let other = random.below(nodes);
            graph.node.swap(at, other);
        }
    }
}

/// Programs of the generator's graphs.
fn programs(store: &MemoryStore) -> Result<Vec<Vec<u8>>> {
    let mut programs = Vec::new();
    for seed in PROGRAM_SEEDS {
        let generated = graphs::generate(seed);
        let model = Model::from_bytes(generated.model.encode_to_vec().into())?;
        let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() })?;
        if let Ok(Some(program)) = runner.compile(&generated.inputs, &Bucket::default()) {
            for constant in &program.constants {
                let digest = constant.digest.parse().map_err(anyhow::Error::msg)?;
                store.put(&runner.store().get(&digest)?)?;
            }
            programs.push(precast_program::encode(&program));
        }
    }
    ensure!(!programs.is_empty(), "no graph became one Program");
    Ok(programs)
}

/// A Program file whose digests are right though its contents are not; or plainly wrong bytes.
fn wrong_program(bytes: &[u8], other: &[u8], random: &mut Random) -> Result<Vec<u8>> {
    if random.once_in(4) {
        let mut bytes = bytes.to_vec();
        mutate(&mut bytes, other, random);
        return Ok(bytes);
    }
    let mut program: Program = precast_program::decode(bytes)?;
    for _ in 0..1 + random.below(4) {
        break_program(&mut program, random);
    }
    Ok(precast_program::encode(&program))
}

/// Changes a step of a Program, the order of two, or how many there are.
pub(super) fn break_program(program: &mut Program, random: &mut Random) {
    let steps = program.steps.len();
    if steps == 0 {
        return;
    }
    let at = random.below(steps);
    match random.below(4) {
        0 => {
            let other = random.below(steps);
            program.steps.swap(at, other);
        }
        1 => drop(program.steps.remove(at)),
        2 => {
            let mut text = program.steps[at].parameters.clone();
            mutate(&mut text, &[], random);
            program.steps[at].parameters = text;
        }
        _ => {
            let other = random.below(steps);
            program.steps[at].kernel = program.steps[other].kernel.clone();
        }
    }
}

/// Writes the corpora: as few models of the generator as have every operator between them, and their Graphs as text.
pub fn write_corpus() -> Result<()> {
    for target in [FuzzTarget::Onnx, FuzzTarget::Text] {
        let folder = corpus_folder(target);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
    }
    for (place, bytes) in covering_models().into_iter().enumerate() {
        fs::write(corpus_folder(FuzzTarget::Onnx).join(format!("graph_{place:02}.onnx")), &bytes)?;
        let Ok(graph) = Model::from_bytes(bytes.into())?.symbolic_graph() else { continue };
        fs::write(corpus_folder(FuzzTarget::Text).join(format!("graph_{place:02}.ir")), text::print(&graph))?;
    }
    fs::create_dir_all(corpus_folder(FuzzTarget::Tuning))?;
    fs::write(corpus_folder(FuzzTarget::Tuning).join("table.txt"), tuning_table()?.to_text())?;
    Ok(())
}

/// Models of the generator, each the one that has the most operators for its bytes that no model before it has.
fn covering_models() -> Vec<Vec<u8>> {
    let mut models: Vec<(BTreeSet<String>, Vec<u8>)> = (0..COVERING_SEEDS)
        .map(|seed| {
            let model = graphs::generate(seed).model;
            let nodes = model.graph.iter().flat_map(|graph| &graph.node);
            (nodes.map(|node| node.op_type.clone()).collect(), model.encode_to_vec())
        })
        .collect();
    let (mut covered, mut chosen) = (BTreeSet::new(), Vec::new());
    loop {
        let gain = |(operators, bytes): &(BTreeSet<String>, Vec<u8>)| {
            (operators.difference(&covered).count() << 32) / (bytes.len() + FILE_BYTES)
        };
        let best = (0..models.len()).max_by_key(|&at| (gain(&models[at]), std::cmp::Reverse(at)));
        let Some(best) = best.filter(|&at| !models[at].0.is_subset(&covered)) else { return chosen };
        let (operators, bytes) = models.swap_remove(best);
        covered.extend(operators);
        chosen.push(bytes);
    }
}

/// A table of a few records.
fn tuning_table() -> Result<TuningTable> {
    let mut table = TuningTable::default();
    for (problem, nanoseconds) in [("conv f32 1x8x8x4 3x3", 1000), ("conv f32 1x4x4x8 1x1", 20)] {
        let times = [("product", nanoseconds), ("winograd", nanoseconds / 2)];
        let times = times.into_iter().map(|(tactic, time)| (tactic.to_string(), time)).collect();
        table.add(problem, TuningRecord::of(times, 5).context("a record has times")?);
    }
    Ok(table)
}

/// Writes the tensors of a graph beside its model, for onnxruntime.
pub(super) fn write_arrays(folder: &std::path::Path, prefix: &str, tensors: &[(String, Tensor)]) -> Result<()> {
    for (index, (_, tensor)) in tensors.iter().enumerate() {
        write_npy(fs::File::create(folder.join(format!("{prefix}_{index}.npy")))?, tensor)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const READERS: [FuzzTarget; 5] =
        [FuzzTarget::Onnx, FuzzTarget::Text, FuzzTarget::Program, FuzzTarget::Tuning, FuzzTarget::Adapter];
    /// Inputs of each reader, as many as take about a second without optimisation.
    const INPUTS: u64 = 400;

    #[test]
    fn corpora_are_read_and_mean_themselves() {
        for target in READERS {
            let fuzzer = Fuzzer::new(target).unwrap();
            for (place, bytes) in fuzzer.corpus.iter().enumerate() {
                let outcome = measured(bytes.len() as u64, || fuzzer.read(bytes));
                let outcome = outcome.unwrap_or_else(|error| panic!("{} {place}: {error:#}", target.name()));
                // A model whose form depends on values imports with them alone.
                assert!(outcome.is_accepted || target == FuzzTarget::Onnx, "{} {place} is refused", target.name());
            }
        }
    }

    #[test]
    fn some_inputs_of_every_reader_break_nothing() {
        for target in READERS {
            let report = Fuzzer::new(target).unwrap().run_inputs(0, INPUTS);
            assert_eq!((report.inputs, report.failures), (INPUTS, vec![]), "{}", target.name());
        }
    }

    /// Files that once crashed a reader, hung in it or took any memory, by target.
    #[test]
    fn what_was_found_stays_away() {
        let root = crate::paths::root().join("fuzz").join("found");
        for target in READERS.into_iter().filter(|target| root.join(target.name()).exists()) {
            let fuzzer = Fuzzer::new(target).unwrap();
            for entry in fs::read_dir(root.join(target.name())).unwrap() {
                let path = entry.unwrap().path();
                let bytes = fs::read(&path).unwrap();
                let outcome = measured(bytes.len() as u64, || fuzzer.read(&bytes));
                outcome.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            }
        }
    }
}
