//! A compiled model as one piece of bytes: what a Session knows of the model, the Programs of all its Buckets and their
//! constants. It opens without the model and without compiling, on a machine like the one it was made for.
//!
//! Layout: magic, format, length of the index, the index, constants each at a multiple of 64 bytes, and a digest of all
//! that is before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use precast_cache::{CacheOptions, Compiled, KeyRecord, ProgramCache};
use precast_cpu::CpuTarget;
use precast_ir::Graph;
use precast_program::{ArtifactStore, Bucket, Target, TargetDescription, decode, encode};
use precast_session::{BucketPolicy, DimOptions, GraphSource, Interface, Readiness, Session, SessionError, Startup};
use precast_tensor::{DType, Digest, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::open_device::open_device;
use crate::open_session::{Form, ModelSession, OpenOptions};
use crate::runner::RunnerOptions;

/// First bytes.
const MAGIC: [u8; 8] = *b"PRECASTC";
/// Changes with every change of the layout.
const FORMAT: u32 = 1;
/// Magic, format and length of the index.
const HEADER_BYTES: usize = 8 + 4 + 8;
/// What constants begin at multiples of.
const ALIGNMENT: usize = 64;

/// All but the bytes of constants.
#[derive(Serialize, Deserialize)]
struct Index {
    interface: Interface,
    outputs: Vec<String>,
    /// Extents of the dims that have Buckets.
    extents: BTreeMap<String, Vec<i64>>,
    disabled_passes: Vec<String>,
    programs: Vec<StoredProgram>,
    constants: Vec<StoredConstant>,
}

#[derive(Serialize, Deserialize)]
struct StoredProgram {
    /// Canonical bytes of the KeyRecord.
    record: Vec<u8>,
    program: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct StoredConstant {
    dtype: String,
    shape: Vec<u64>,
    /// From the first constant on.
    offset: u64,
    bytes: u64,
}

/// How well a compiled model fits the machine that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompiledFit {
    /// It was compiled for a machine like this one.
    Optimal,
    /// It runs; compiled again it would use this machine better.
    Recompile,
    /// It does not run.
    Unsupported,
}

/// A model as it was compiled.
pub struct CompiledModel {
    bytes: Bytes,
}

impl CompiledModel {
    /// All that a Session has compiled, once everything is. Each dim must have a number or Buckets, and no value of an
    /// input may decide the form: otherwise what will be needed is not known ahead.
    pub fn of(session: &ModelSession) -> Result<CompiledModel, Error> {
        let forms = session.forms();
        let form = match &forms[..] {
            [form] if session.deciding_inputs().is_empty() => form,
            _ => {
                return Err(Error::Request(
                    "values of inputs decide the form of the model; freeze them to save it".into(),
                ));
            }
        };
        match session.wait_until_ready(None) {
            Readiness::Ready => {}
            Readiness::Degraded(reason) => return Err(Error::Request(format!("not everything is compiled: {reason}"))),
            Readiness::Partial => return Err(Error::Request("not everything is compiled".into())),
        }
        let (cache, records) = (session.cache(), form.session().records()?);
        let mut constants: BTreeMap<Digest, Tensor> = BTreeMap::new();
        let mut programs = Vec::new();
        for record in &records {
            // A Program serves before it is published; whoever asks for it then waits for that.
            let missing = || Error::Request(format!("the Program of {} is not there", record.bucket));
            let fetched = cache.get_or(record, || Err::<Compiled, _>(NotCompiled)).map_err(|_| missing())?;
            let program = fetched.program;
            for constant in &program.constants {
                let unknown = |_| Error::Request(format!("the Program names the digest '{}'", constant.digest));
                let digest: Digest = constant.digest.parse().map_err(unknown)?;
                constants.insert(digest, cache.store().get(&digest)?);
            }
            programs.push(StoredProgram { record: record.canonical_bytes(), program: encode(&program) });
        }
        let index = Index {
            interface: form.session().interface().clone(),
            outputs: form.outputs().to_vec(),
            extents: extents_of(&records),
            disabled_passes: session.options().runner.passes.disabled.clone(),
            programs,
            constants: place_constants(constants.values()),
        };
        write(&index, constants.values())
    }

    /// Bytes that were written before. Their digest is compared, so whatever damaged them is found here.
    pub fn from_bytes(bytes: Bytes) -> Result<CompiledModel, Error> {
        let model = CompiledModel { bytes };
        let (content, digest) = model.split()?;
        if Digest::of_bytes(content).0 != digest {
            return Err(damaged("its digest differs"));
        }
        Ok(model)
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Opens the model. Nothing is compiled: on a machine or with a compiler that the Programs were not made for, it is
    /// refused with what differs.
    pub fn open(&self, options: &OpenOptions) -> Result<Form, Error> {
        let (index, constants_at) = self.index()?;
        let target = first_target(&index)?;
        let mut options = options.clone();
        // What was decided when the model was compiled holds; a caller need not say it again.
        options.runner.passes.numerics = target.numerics;
        options.runner.passes.disabled.clone_from(&index.disabled_passes);
        options.runner.threads = target.threads;
        let cache = Arc::new(ProgramCache::open(CacheOptions::memory())?);
        self.fill(&cache, &index, constants_at)?;
        let device = open_device(&options.runner, &cache)?;
        let mut session = options.session.clone();
        session.startup = Startup::All;
        session.measures = false;
        session.dims = index
            .extents
            .iter()
            .map(|(symbol, extents)| (symbol.clone(), DimOptions { buckets: BucketPolicy::List(extents.clone()) }))
            .collect();
        session.target_options.insert("disable".to_string(), index.disabled_passes.join(","));
        session.device_label = device.label.clone();
        let source =
            Arc::new(NoGraph { compiled_for: describe(&index), found: device.target.description().to_string() });
        let devices = std::iter::once(&device.device).chain(&device.more).cloned().collect();
        let inputs = index.interface.inputs.iter().map(|input| input.name.clone()).collect();
        let session = Session::open_on(index.interface, source, session, device.target, devices, cache)?;
        Ok(Form::new(session, inputs, index.outputs))
    }

    /// What the Programs were compiled for and by, as one line.
    pub fn description(&self) -> Result<String, Error> {
        Ok(describe(&self.index()?.0))
    }

    /// How well a compiled model of this description fits. What a GPU is, is seen when the model is opened on it.
    pub fn fit(description: &str) -> CompiledFit {
        let Some((machine, compiler)) = description.split_once(" by ") else { return CompiledFit::Unsupported };
        let Some(target) = TargetDescription::parse(machine) else { return CompiledFit::Unsupported };
        if compiler != precast_program::program::BUILD {
            return CompiledFit::Unsupported;
        }
        let RunnerOptions { isa, threads, passes, .. } = RunnerOptions::default();
        let here = CpuTarget::new(isa, threads, passes).description().clone();
        match target.kind == here.kind {
            false => CompiledFit::Optimal,
            true if target.features != here.features => CompiledFit::Unsupported,
            true if target.threads != here.threads => CompiledFit::Recompile,
            true => CompiledFit::Optimal,
        }
    }

    /// The beginning of its digest, for names of files.
    pub fn short_digest(&self) -> String {
        let digest = &self.bytes[self.bytes.len() - size_of::<Digest>()..];
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    fn split(&self) -> Result<(&[u8], &[u8]), Error> {
        let end = self.bytes.len().checked_sub(size_of::<Digest>()).ok_or_else(|| damaged("it is too short"))?;
        if self.bytes.len() < HEADER_BYTES + size_of::<Digest>() || self.bytes[..MAGIC.len()] != MAGIC {
            return Err(damaged("it does not begin as one does"));
        }
        Ok(self.bytes.split_at(end))
    }

    /// The index, and where the constants begin.
    fn index(&self) -> Result<(Index, usize), Error> {
        let (content, _) = self.split()?;
        let format = u32::from_le_bytes(array(&content[8..12])?);
        if format != FORMAT {
            return Err(damaged(&format!("its format is {format}, and {FORMAT} is expected")));
        }
        let length = usize::try_from(u64::from_le_bytes(array(&content[12..HEADER_BYTES])?)).unwrap_or(usize::MAX);
        let end = HEADER_BYTES.checked_add(length).filter(|&end| end <= content.len());
        let end = end.ok_or_else(|| damaged("its index is cut off"))?;
        let index = postcard::from_bytes(&content[HEADER_BYTES..end]);
        Ok((index.map_err(|error| damaged(&format!("its index cannot be read: {error}")))?, align(end)))
    }

    /// Puts Programs and constants into a cache.
    fn fill(&self, cache: &ProgramCache, index: &Index, constants_at: usize) -> Result<(), Error> {
        for constant in &index.constants {
            let start = usize::try_from(constant.offset).ok().and_then(|offset| constants_at.checked_add(offset));
            let end = start.and_then(|start| start.checked_add(usize::try_from(constant.bytes).ok()?));
            let (Some(start), Some(end)) = (start, end.filter(|&end| end <= self.bytes.len())) else {
                return Err(damaged("a constant is cut off"));
            };
            let dtype = DType::from_name(&constant.dtype).ok_or_else(|| damaged("a constant has an unknown type"))?;
            let shape: Vec<usize> = constant.shape.iter().map(|&size| size as usize).collect();
            cache.store().put(&Tensor::new(dtype, shape, self.bytes.slice(start..end))?.aligned())?;
        }
        for stored in &index.programs {
            let record = KeyRecord::from_canonical_bytes(&stored.record).map_err(|reason| damaged(&reason))?;
            let program = decode(&stored.program).map_err(|error| damaged(&error.to_string()))?;
            let kept = cache.get_or(&record, || Ok::<_, std::convert::Infallible>(Compiled::from(program)));
            kept.map_err(|_| damaged("a Program could not be kept"))?;
        }
        Ok(())
    }
}

/// Why a Program that a Session should have is not there.
struct NotCompiled;

/// The Graph of a compiled model: there is none.
struct NoGraph {
    compiled_for: String,
    found: String,
}

impl GraphSource for NoGraph {
    fn graph(&self, bucket: &Bucket) -> Result<Graph, SessionError> {
        let NoGraph { compiled_for, found } = self;
        let build = precast_program::program::BUILD;
        Err(SessionError::Source(format!(
            "the compiled model has no Program for {bucket} here: it was compiled for {compiled_for}, and this is {found} by {build}; compile it again"
        )))
    }
}

fn write<'a>(index: &Index, constants: impl Iterator<Item = &'a Tensor>) -> Result<CompiledModel, Error> {
    let text = postcard::to_allocvec(index).map_err(|error| Error::Request(format!("the index: {error}")))?;
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
    for constant in constants {
        bytes.resize(align(bytes.len()), 0);
        bytes.extend(constant.as_bytes());
    }
    bytes.resize(align(bytes.len()), 0);
    let digest = Digest::of_bytes(&bytes);
    bytes.extend(digest.0);
    Ok(CompiledModel { bytes: bytes.into() })
}

fn place_constants<'a>(constants: impl Iterator<Item = &'a Tensor>) -> Vec<StoredConstant> {
    let mut end = 0;
    let place = |constant: &Tensor| {
        let offset = align(end);
        end = offset + constant.as_bytes().len();
        StoredConstant {
            dtype: constant.dtype().name().to_string(),
            shape: constant.shape().iter().map(|&size| size as u64).collect(),
            offset: offset as u64,
            bytes: constant.as_bytes().len() as u64,
        }
    };
    constants.map(place).collect()
}

/// Extents by dim, as the Buckets of the Programs have them.
fn extents_of(records: &[KeyRecord]) -> BTreeMap<String, Vec<i64>> {
    let mut extents: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (symbol, extent) in records.iter().flat_map(|record| record.bucket.dims()) {
        let known = extents.entry(symbol.to_string()).or_default();
        if !known.contains(&extent) {
            known.push(extent);
        }
    }
    extents.values_mut().for_each(|extents| extents.sort_unstable());
    extents
}

fn first_target(index: &Index) -> Result<TargetDescription, Error> {
    let stored = index.programs.first().ok_or_else(|| damaged("it has no Program"))?;
    let program = decode(&stored.program).map_err(|error| damaged(&error.to_string()))?;
    TargetDescription::parse(&program.target).ok_or_else(|| damaged("its target cannot be read"))
}

fn describe(index: &Index) -> String {
    let record = index.programs.first().and_then(|stored| KeyRecord::from_canonical_bytes(&stored.record).ok());
    record.map_or("nothing".to_string(), |record| format!("{} by {}", record.target, record.compiler))
}

fn align(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Error> {
    bytes.try_into().map_err(|_| damaged("it is too short"))
}

fn damaged(reason: &str) -> Error {
    Error::CompiledModel(reason.to_string())
}

#[cfg(test)]
#[path = "compiled_model_tests.rs"]
mod tests;
