//! A model file: mapped, scanned, decoded, and checked as a whole.
//!
//! Tensor data stay slices of the mapping until a tensor is asked for, and remain so afterwards. Whatever the
//! source of the bytes, they pass the same scan and the same checks.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use precast_tensor::{Digest, FilePages, Hasher, Tensor};
use prost::Message;

use super::beneath::Folder;
use super::error::{Quoted, ReadError};
use super::external::ExternalFiles;
use super::hold;
use super::limits::{Budget, Limits};
use super::scan::scan;
use super::schema::Kind;
use super::sparse::read_sparse_tensor;
use super::strings::{StringTensor, read_strings};
use super::tensor_data::read_tensor;
use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto, TensorProto};

/// The oldest ONNX file format we read; before it, operator sets were not versioned.
pub const IR_VERSION_MIN: i64 = 3;

/// Bytes of a file that are hashed before their pages are let go.
const HASHED_BYTES: usize = 1 << 20;

/// A decoded model and the bytes it shares its tensors with.
#[derive(Debug)]
pub struct ModelFile {
    proto: ModelProto,
    source: Source,
    digest: OnceLock<Digest>,
    files: ExternalFiles,
    limits: Limits,
}

/// What a model was read from.
#[derive(Debug)]
enum Source {
    /// Bytes of a file, and what they take of memory while they are read.
    File(Bytes, FilePages),
    /// A message that somebody else made.
    Message,
}

impl ModelFile {
    /// Opens a model. External data is read from its folder; files there that are links are refused.
    pub fn open(path: &Path, limits: &Limits) -> Result<ModelFile, ReadError> {
        ModelFile::open_in(path, limits, Folder::open)
    }

    /// Opens a model whose external data may be reached through links that stay beneath `model_root`.
    pub fn open_within(path: &Path, model_root: &Path, limits: &Limits) -> Result<ModelFile, ReadError> {
        ModelFile::open_in(path, limits, |folder| Folder::open_within(folder, model_root))
    }

    fn open_in(
        path: &Path,
        limits: &Limits,
        open_folder: impl Fn(&Path) -> std::io::Result<Folder>,
    ) -> Result<ModelFile, ReadError> {
        let folder_path = path.parent().unwrap_or(Path::new(""));
        let (bytes, pages) = hold::open_model(path, limits)?;
        let folder = open_folder(folder_path).map_err(|source| ReadError::Io {
            action: "open the folder".into(),
            path: folder_path.into(),
            source,
        })?;
        ModelFile::new(bytes, pages, Some(folder), limits)
    }

    /// Reads a model from memory. Without a folder, external data is refused.
    pub fn from_bytes(bytes: Bytes, folder: Option<PathBuf>, limits: &Limits) -> Result<ModelFile, ReadError> {
        let open = |path: PathBuf| {
            Folder::open(&path).map_err(|source| ReadError::Io { action: "open the folder".into(), path, source })
        };
        ModelFile::new(bytes, FilePages::default(), folder.map(open).transpose()?, limits)
    }

    /// Takes a model that is a message already, whose tensors share the bytes they were given. It has no folder, so
    /// external data is refused. Whoever made the message has counted what it holds; nothing is scanned.
    pub fn from_message(proto: ModelProto, limits: &Limits) -> Result<ModelFile, ReadError> {
        check_model(&proto)?;
        let (source, files) = (Source::Message, ExternalFiles::new(None));
        Ok(ModelFile { proto, source, digest: OnceLock::new(), files, limits: limits.clone() })
    }

    fn new(bytes: Bytes, pages: FilePages, folder: Option<Folder>, limits: &Limits) -> Result<ModelFile, ReadError> {
        let proto: ModelProto = decode(&bytes, Kind::Model, limits)?;
        check_model(&proto)?;
        let files = ExternalFiles::new(folder);
        let source = Source::File(bytes, pages);
        Ok(ModelFile { proto, source, digest: OnceLock::new(), files, limits: limits.clone() })
    }

    /// The decoded model.
    pub fn proto(&self) -> &ModelProto {
        &self.proto
    }

    /// The main graph.
    pub fn graph(&self) -> &GraphProto {
        self.proto.graph.as_ref().expect("check_model refused models without a graph")
    }

    /// The limits the model was read under.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The version of the operator set that the model imports for `domain`.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        opset_version(&self.proto.opset_import, domain)
    }

    /// Whether every tensor lies in the file itself, so that its digest is that of the whole model.
    pub fn is_self_contained(&self) -> bool {
        let functions = self.proto.functions.iter().flat_map(|function| &function.node);
        is_graph_whole(self.graph()) && functions.into_iter().all(is_node_whole)
    }

    /// Digest of the model file's bytes, without external data, or of the message. Computed on the first call.
    pub fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| match &self.source {
            Source::File(bytes, pages) => file_digest(bytes, pages),
            Source::Message => message_digest(&self.proto),
        })
    }

    /// Lets go of the memory that reading the model's file took; what is read again comes back from the system's cache of it.
    pub fn release_pages(&self) {
        if let Source::File(bytes, pages) = &self.source {
            pages.release(bytes);
        }
    }

    /// The tensor that `proto`, an initializer or attribute of this model, describes. Complex elements become a last
    /// dimension of 2; sub-byte elements take a byte each.
    pub fn tensor(&self, proto: &TensorProto) -> Result<Tensor, ReadError> {
        let tensor = read_tensor(proto, &self.limits, &self.files)?;
        let own = || match &self.source {
            Source::File(_, pages) => pages.clone(),
            Source::Message => FilePages::default(),
        };
        Ok(tensor.in_pages(&self.files.pages_of(tensor.as_bytes()).unwrap_or_else(own)))
    }

    /// The strings that `proto`, an initializer or attribute of this model, holds.
    pub fn strings(&self, proto: &TensorProto) -> Result<StringTensor, ReadError> {
        read_strings(proto, &self.limits)
    }

    /// A sparse initializer or attribute of this model as a dense tensor.
    pub fn sparse_tensor(&self, proto: &SparseTensorProto) -> Result<Tensor, ReadError> {
        read_sparse_tensor(proto, &self.limits, &self.files)
    }
}

fn file_digest(bytes: &Bytes, pages: &FilePages) -> Digest {
    let mut hasher = Hasher::default();
    for part in bytes.chunks(HASHED_BYTES) {
        hasher.update(part);
        // Whoever opens a cached model reads nothing else of the file.
        pages.release(part);
    }
    hasher.finish()
}

/// Digest of a message: of its bytes without those of initializers, and of each of these, which may be too large to be
/// written out once more.
fn message_digest(proto: &ModelProto) -> Digest {
    let mut skeleton = proto.clone();
    let mut hasher = Hasher::default();
    hasher.update(b"message");
    for tensor in skeleton.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
        let bytes = tensor.raw_data.take().unwrap_or_default();
        hasher.update(&bytes.len().to_le_bytes());
        hasher.update(&bytes);
    }
    hasher.update(&skeleton.encode_to_vec());
    hasher.finish()
}

fn is_graph_whole(graph: &GraphProto) -> bool {
    let sparse = graph.sparse_initializer.iter().flat_map(sparse_parts);
    graph.initializer.iter().chain(sparse).all(is_tensor_whole) && graph.node.iter().all(is_node_whole)
}

fn is_node_whole(node: &NodeProto) -> bool {
    node.attribute.iter().all(|attribute| {
        let sparse = attribute.sparse_tensor.as_deref().into_iter().chain(&attribute.sparse_tensors);
        let tensors = attribute.t.as_deref().into_iter().chain(&attribute.tensors).chain(sparse.flat_map(sparse_parts));
        let mut graphs = attribute.g.as_deref().into_iter().chain(&attribute.graphs);
        tensors.into_iter().all(is_tensor_whole) && graphs.all(is_graph_whole)
    })
}

fn sparse_parts(sparse: &SparseTensorProto) -> impl Iterator<Item = &TensorProto> {
    sparse.values.iter().chain(sparse.indices.iter())
}

fn is_tensor_whole(tensor: &TensorProto) -> bool {
    tensor.data_location.unwrap_or(0) == 0
}

/// The version imported for `domain`; also for the imports of a function. The empty domain is `ai.onnx`.
pub fn opset_version(imports: &[OperatorSetIdProto], domain: &str) -> Option<i64> {
    let domain = canonical_domain(domain);
    imports.iter().find(|import| canonical_domain(&import.domain) == domain).map(|import| import.version)
}

/// The one spelling of an operator domain: ONNX writes its own as `ai.onnx` or as nothing.
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}

/// Scans, then decodes, sharing `bytes`.
pub(super) fn decode<M: Message + Default>(bytes: &Bytes, kind: Kind, limits: &Limits) -> Result<M, ReadError> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if size > limits.model_bytes {
        let (budget, limit) = (Budget::ModelBytes, limits.model_bytes);
        return Err(ReadError::OverLimit { place: "the file".into(), budget, value: size, limit });
    }
    scan(bytes, kind, limits)?;
    Ok(M::decode(bytes.clone())?)
}

fn check_model(proto: &ModelProto) -> Result<(), ReadError> {
    let version = proto.ir_version;
    if version <= 0 {
        return Err(ReadError::model(format!("ir_version is {version}, expected {IR_VERSION_MIN} or more")));
    }
    if version < IR_VERSION_MIN {
        let problem = format!("IR version {version} is not supported, expected {IR_VERSION_MIN} or more");
        return Err(ReadError::Unsupported { place: "the model".into(), problem });
    }
    if proto.graph.is_none() {
        return Err(ReadError::model("it has no graph"));
    }
    if proto.opset_import.is_empty() {
        return Err(ReadError::model("it imports no operator set, expected at least one"));
    }
    check_imports(&proto.opset_import, "the model")?;
    for function in &proto.functions {
        check_imports(&function.opset_import, &format!("function {}", Quoted::new(&function.name)))?;
    }
    Ok(())
}

/// Domains a model or function may import. Lookups are linear, so a hostile list must not be long.
const IMPORTS_MAX: usize = 256;

/// Two versions of one domain would make every operator of it ambiguous.
fn check_imports(imports: &[OperatorSetIdProto], place: &str) -> Result<(), ReadError> {
    if imports.len() > IMPORTS_MAX {
        let problem = format!("{place} imports {} operator sets, expected at most {IMPORTS_MAX}", imports.len());
        return Err(ReadError::model(problem));
    }
    for import in imports {
        let first = opset_version(imports, &import.domain).unwrap_or(import.version);
        if first != import.version {
            let domain = if import.domain.is_empty() { "ai.onnx" } else { &import.domain };
            let version = import.version;
            let problem = format!("{place} imports domain {} as both {first} and {version}", Quoted::new(domain));
            return Err(ReadError::model(problem));
        }
    }
    Ok(())
}
