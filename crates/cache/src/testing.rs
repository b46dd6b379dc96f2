//! Records, Programs and caches for the tests of this crate.

use std::sync::{Arc, Mutex};

use precast_program::program::BUILD;
use precast_program::{ArtifactStore, Bucket, ConstantRef, Place, Port, Program, Slot, Step};
use precast_tensor::{Digest, Tensor};

use crate::cache::ProgramCache;
use crate::key::KeyRecord;
use crate::miss::Event;
use crate::options::CacheOptions;

/// A record of a model of this name at this batch.
pub(crate) fn record(model: &str, batch: i64) -> KeyRecord {
    KeyRecord {
        schema: KeyRecord::current_schema(),
        compiler: BUILD.to_string(),
        graph: Digest::of_bytes(model.as_bytes()),
        weights: Digest::of_bytes(b"weights"),
        bucket: Bucket::new([("batch".to_string(), batch)]),
        types: vec![format!("f32[{batch}]"), format!("f32[{batch}]")],
        precision: [("float".to_string(), "f32".to_string())].into(),
        calibration: None,
        options: [("fast_math".to_string(), "false".to_string())].into(),
        tuning: None,
        target: "cpu:portable threads=1".to_string(),
        toolchain: "none".to_string(),
        driver: None,
        custom_ops: Default::default(),
        assertions: Default::default(),
    }
}

/// A Program without constants whose graph text says what it is.
pub(crate) fn program(model: &str, batch: i64) -> Program {
    let bytes = batch.unsigned_abs() * 4;
    let port = |name: &str| Port {
        name: name.into(),
        dtype: "f32".into(),
        shape: vec![batch.unsigned_abs()],
        bytes,
        in_place_of: None,
    };
    Program {
        target: "cpu:portable threads=1".into(),
        build: BUILD.into(),
        bucket: Bucket::new([("batch".to_string(), batch)]),
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        steps: vec![Step {
            kernel: "copy".into(),
            parameters: vec![1, 2, 3],
            reads: vec![Slot { place: Place::Input(0), bytes }],
            writes: vec![Slot { place: Place::Output(0), bytes }],
            provenance: vec![model.into()],
            value: 1,
        }],
        arena_bytes: 64,
        live_bytes_max: 64,
        constants: Vec::new(),
        graph: format!("{model} {batch}"),
    }
}

/// A constant of this many elements.
pub(crate) fn constant(seed: u8, elements: usize) -> Tensor {
    Tensor::from_vec(vec![elements], (0..elements).map(|index| seed.wrapping_add(index as u8)).collect::<Vec<u8>>())
        .unwrap()
}

/// Puts a constant and gives a Program that names it.
pub(crate) fn program_with(cache: &ProgramCache, model: &str, batch: i64, tensor: &Tensor) -> Program {
    let digest = cache.store().put(tensor).unwrap();
    let constant = ConstantRef { digest: digest.to_string(), bytes: tensor.as_bytes().len() as u64 };
    Program { constants: vec![constant], ..program(model, batch) }
}

/// What a cache told.
#[derive(Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<Event>>>);

impl Told {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    /// Options whose events come here.
    pub(crate) fn options(&self, root: &std::path::Path) -> CacheOptions {
        let told = self.clone();
        let events = Arc::new(move |event: &Event| told.0.lock().unwrap().push(event.clone()));
        CacheOptions { events, ..CacheOptions::new(root) }
    }
}

/// A cache in this directory.
pub(crate) fn open(root: &std::path::Path) -> ProgramCache {
    ProgramCache::open(CacheOptions::new(root)).unwrap()
}

/// Files below a directory that are not directories, by path.
pub(crate) fn files_below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return files };
    for entry in entries.map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
