//! The Graphs of a model for a Session: imported when something must be compiled, not before. What a Session needs to open
//! (its Interface) is kept as a note of the cache, so that a model whose Programs are cached is not imported at all.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use precast_cache::{KeyRecord, ProgramCache};
use precast_ir::Graph;
use precast_onnx::{ImportError, ImportOptions};
use precast_passes::cut_segments::{Segment, cut_segments};
use precast_passes::{CANONICAL, PassOptions, run_passes};
use precast_program::program::BUILD;
use precast_program::{Bucket, Target};
use precast_session::{GraphSource, Interface, SessionError, SymbolicPort};
use precast_tensor::{Digest, Dim, Type};

use crate::error::Error;
use crate::model::Model;
use crate::tuning::Tuning;

/// Kind of the notes.
const KIND: &str = "interface";

/// A model with what was decided about it.
pub(crate) struct ModelSource {
    model: Model,
    import: ImportOptions,
    passes: PassOptions,
    tuning: Arc<Tuning>,
    /// The symbolic Graph, while Programs are compiled from it.
    symbolic: Mutex<Option<Arc<Graph>>>,
    /// Every set of dims has a Graph of its own.
    is_by_dims: OnceLock<String>,
}

impl ModelSource {
    pub(crate) fn new(model: &Model, import: ImportOptions, passes: PassOptions, tuning: Arc<Tuning>) -> ModelSource {
        let (model, symbolic, is_by_dims) = (model.clone(), Mutex::default(), OnceLock::new());
        ModelSource { model, import, passes, tuning, symbolic, is_by_dims }
    }

    /// What a Session needs to know, from the cache's notes where it is there.
    pub(crate) fn interface(&self, target: &dyn Target, cache: &ProgramCache) -> Result<Interface, Error> {
        let subject = self.subject();
        let note = subject.and_then(|subject| cache.note(KIND, &subject));
        let noted = note.and_then(|note| postcard::from_bytes::<Interface>(&note).ok());
        if let Some(interface) = noted.filter(Interface::is_consistent) {
            if interface.graph.is_none() {
                let _ = self.is_by_dims.set("an earlier start found that dims decide the form".to_string());
            }
            return Ok(interface);
        }
        let interface = match self.symbolic_graph() {
            Ok(graph) => {
                let interface = Interface::of(&graph, Some(&target.optimise(&graph)?))?;
                graph.release_pages();
                interface
            }
            Err(Error::Import(ImportError::NeedsNumber { dim, what })) => {
                let why = format!("{what} depends on {dim}");
                let interface = Interface::of_inputs(self.input_ports()?, &why);
                let _ = self.is_by_dims.set(why);
                interface
            }
            Err(error) => return Err(error),
        };
        if let (Some(subject), Ok(text)) = (subject, postcard::to_allocvec(&interface)) {
            cache.keep_note(KIND, &subject, &text);
        }
        Ok(interface)
    }

    /// The symbolic Graph.
    fn symbolic_graph(&self) -> Result<Arc<Graph>, Error> {
        let mut symbolic = self.symbolic.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(graph) = &*symbolic {
            return Ok(graph.clone());
        }
        let graph = Arc::new(self.canonical_graph(&self.import)?);
        Ok(symbolic.insert(graph).clone())
    }

    fn canonical_graph(&self, import: &ImportOptions) -> Result<Graph, Error> {
        let imported = self.model.graph(import)?.graph;
        let graph = run_passes(&imported, CANONICAL, &self.passes)?;
        imported.release_pages();
        self.model.release_pages();
        refuse_host_nodes(&graph)?;
        Ok(graph)
    }

    /// What the Interface depends on, if the model is one file.
    fn subject(&self) -> Option<Digest> {
        let digest = self.model.content_digest()?;
        let frozen: Vec<(&String, Digest)> =
            self.import.freeze.iter().chain(&self.import.known).map(|(name, tensor)| (name, tensor.digest())).collect();
        // A Session takes tensors of numbers alone, so there are no structures to tell apart.
        let ImportOptions {
            dims,
            shapes,
            freeze: _,
            known: _,
            structures: _,
            cache_lengths,
            keeps_attention,
            shares_caches,
        } = &self.import;
        let attention = (cache_lengths, keeps_attention, shares_caches);
        let text = format!("{BUILD} {digest} {dims:?} {shapes:?} {frozen:?} {attention:?} {:?}", self.passes);
        Some(Digest::of_bytes(text.as_bytes()))
    }

    fn input_ports(&self) -> Result<Vec<SymbolicPort>, Error> {
        let inputs = self.model.inputs()?.into_iter().filter(|input| !self.import.freeze.contains_key(&input.name));
        let port = |input: crate::InputInfo| {
            let declared = self.import.shapes.get(&input.name).cloned().or(input.dims);
            let dims =
                declared.ok_or_else(|| Error::NoSession(format!("input '{}' has no declared rank", input.name)))?;
            let numbers = |dim: Dim| dim.substitute(&|symbol| self.import.dims.get(symbol.as_str()).cloned());
            let dims: Vec<Dim> = dims.into_iter().map(numbers).collect();
            Ok(SymbolicPort { name: input.name, ty: Type::new(input.dtype, dims) })
        };
        inputs.map(port).collect()
    }

    /// The Graph of one set of dims, imported for it.
    fn import_for(&self, bucket: &Bucket) -> Result<Graph, Error> {
        let mut import = self.import.clone();
        let bindings = bucket.bindings();
        for port in self.input_ports()? {
            import.shapes.insert(port.name, port.ty.bind(&bindings).dims);
        }
        self.canonical_graph(&import)
    }
}

impl GraphSource for ModelSource {
    fn graph(&self, bucket: &Bucket) -> Result<Graph, SessionError> {
        let failed = |error: Error| SessionError::Source(error.to_string());
        if self.is_by_dims.get().is_some() {
            return self.import_for(bucket).map_err(failed);
        }
        self.symbolic_graph().map_err(failed)?.graph(bucket)
    }

    fn tuning(&self, untuned: &KeyRecord, graph: Option<&Graph>) -> Result<Option<Digest>, SessionError> {
        let graph = || graph.cloned().map_or_else(|| Ok(self.graph(&untuned.bucket)?), Ok);
        self.tuning.digest(untuned, graph).map_err(|error| SessionError::Source(error.to_string()))
    }

    /// Lets go of the symbolic Graph, which may hold folded constants that Programs have in another form, and of the file's
    /// pages. Whoever compiles again imports again.
    fn forget_graph(&self) {
        self.symbolic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.model.release_pages();
    }
}

fn refuse_host_nodes(graph: &Graph) -> Result<(), Error> {
    let segments = cut_segments(graph)?;
    match segments.iter().find(|segment| matches!(segment, Segment::Host { .. })) {
        None => Ok(()),
        Some(_) => Err(Error::NoSession(
            "the model has sizes or branches that only a run decides; it is not one Program".to_string(),
        )),
    }
}
