//! Compiled models as nodes of ONNX Runtime's own: one `EPContext` node holds a compiled model in an attribute, or names a
//! file beside the model that does.

use std::ffi::{CString, c_int, c_void};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::ptr::null_mut;

use bytes::Bytes;
use precast::{CompiledModel, ContextOptions};
use precast_onnx::proto::NodeProto;

use crate::abi::{OrtGraph, OrtNode, OrtOpAttr, attribute_type};
use crate::error::EpError;
use crate::factory::NAME;
use crate::graph::{model_path, node_inputs, node_outputs, read_node_head};
use crate::runtime::{Runtime, c_text};

const OPERATOR: &str = "EPContext";
const DOMAIN: &str = "com.microsoft";
/// The attribute that says whose a node is.
const SOURCE: &str = "source";
const CONTENT: &str = "ep_cache_context";
const EMBED: &str = "embed_mode";
/// Compiled models that are larger lie in files of their own: readers of protobuf hold messages in memory whole.
const EMBEDDED_BYTES_MAX: usize = 64 << 20;

/// The head of a node, if it is one that this provider wrote.
pub(crate) fn own_context(runtime: Runtime, node: *const OrtNode) -> Result<Option<NodeProto>, EpError> {
    let head = read_node_head(runtime, node)?;
    let is_own = head.op_type == OPERATOR && head.domain == DOMAIN && text_of(&head, SOURCE) == NAME.to_bytes();
    Ok(is_own.then_some(head))
}

/// The compiled model of a node.
pub(crate) fn read_context(
    runtime: Runtime,
    graph: *const OrtGraph,
    node: &NodeProto,
    options: &ContextOptions,
) -> Result<CompiledModel, EpError> {
    let content = text_of(node, CONTENT);
    let is_embedded =
        node.attribute.iter().find(|attribute| attribute.name == EMBED).and_then(|mode| mode.i) != Some(0);
    if is_embedded {
        return Ok(CompiledModel::from_bytes(Bytes::copy_from_slice(content))?);
    }
    let name = std::str::from_utf8(content).map_err(|_| EpError::other("the name of a context's file is no text"))?;
    let file = beside(&context_folder(runtime, graph, options)?, name)?;
    check_owner(&file)?;
    let bytes = std::fs::read(&file).map_err(|error| cannot("read", &file, &error))?;
    Ok(CompiledModel::from_bytes(bytes.into())?)
}

/// Makes the node of a compiled model; the runtime owns it once it is given back.
pub(crate) fn make_context(
    runtime: Runtime,
    graph: *const OrtGraph,
    fused: *const OrtNode,
    compiled: &CompiledModel,
    options: &ContextOptions,
) -> Result<*mut OrtNode, EpError> {
    let name = format!("{}{}", options.prefix, read_node_head(runtime, fused)?.name);
    let is_small = compiled.bytes().len() <= EMBEDDED_BYTES_MAX;
    if options.is_embedded == Some(true) && !is_small {
        let (found, limit) = (compiled.bytes().len(), EMBEDDED_BYTES_MAX);
        return Err(EpError::other(format!(
            "the compiled model has {found} bytes, and at most {limit} are embedded; say ep.context_embed_mode=0"
        )));
    }
    let is_embedded = options.is_embedded.unwrap_or(is_small);
    let content = match is_embedded {
        true => compiled.bytes().clone(),
        false => write_beside(runtime, graph, compiled, options)?.into(),
    };
    let (main, embed) = (1i64, i64::from(is_embedded));
    let mut attributes = Attributes { runtime, made: Vec::new() };
    attributes.add("main_context", attribute_type::INT, &main.to_ne_bytes())?;
    attributes.add(EMBED, attribute_type::INT, &embed.to_ne_bytes())?;
    attributes.add(CONTENT, attribute_type::STRING, &content)?;
    attributes.add("ep_sdk_version", attribute_type::STRING, env!("CARGO_PKG_VERSION").as_bytes())?;
    attributes.add("partition_name", attribute_type::STRING, name.as_bytes())?;
    attributes.add(SOURCE, attribute_type::STRING, NAME.to_bytes())?;
    let inputs = texts(node_inputs(runtime, fused)?);
    let outputs = texts(node_outputs(runtime, fused)?);
    let (input_names, output_names) = (pointers(&inputs), pointers(&outputs));
    let (operator, domain, name) = (c_text(OPERATOR), c_text(DOMAIN), c_text(&name));
    // SAFETY: texts and attributes live until the call returns, which copies them; the lists are as long as is said.
    runtime.get(null_mut(), |node| unsafe {
        runtime.editor.create_node(
            operator.as_ptr(),
            domain.as_ptr(),
            name.as_ptr(),
            input_names.as_ptr(),
            input_names.len(),
            output_names.as_ptr(),
            output_names.len(),
            attributes.made.as_ptr(),
            attributes.made.len(),
            node,
        )
    })
}

/// Attributes that are released when this is dropped.
struct Attributes {
    runtime: Runtime,
    made: Vec<*mut OrtOpAttr>,
}

impl Attributes {
    fn add(&mut self, name: &str, kind: c_int, bytes: &[u8]) -> Result<(), EpError> {
        let (name, data) = (c_text(name), bytes.as_ptr().cast::<c_void>());
        // A list of one number is counted in numbers, a text in bytes.
        let length = if kind == attribute_type::INT { 1 } else { bytes.len() };
        let length = c_int::try_from(length).map_err(|_| EpError::other("an attribute of 2 GiB or more"))?;
        let api = self.runtime.api;
        // SAFETY: there are as many bytes as the length says, and they are copied. Numbers may lie anywhere.
        let made = self
            .runtime
            .get(null_mut(), |made| unsafe { api.create_op_attr(name.as_ptr(), data, length, kind, made) })?;
        self.made.push(made);
        Ok(())
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        for &attribute in &self.made {
            // SAFETY: it was given to us, and the node has copied it.
            unsafe { self.runtime.api.release_op_attr(attribute) };
        }
    }
}

fn texts(names: Vec<String>) -> Vec<CString> {
    names.iter().map(|name| c_text(name)).collect()
}

fn pointers(texts: &[CString]) -> Vec<*const std::ffi::c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn text_of<'a>(node: &'a NodeProto, name: &str) -> &'a [u8] {
    let found = node.attribute.iter().find(|attribute| attribute.name == name);
    found.and_then(|attribute| attribute.s.as_deref()).unwrap_or_default()
}

/// Writes a compiled model into a file beside the model that will name it, and gives its name. Readers see all of it or
/// nothing; equal compiled models are one file.
fn write_beside(
    runtime: Runtime,
    graph: *const OrtGraph,
    compiled: &CompiledModel,
    options: &ContextOptions,
) -> Result<String, EpError> {
    let folder = context_folder(runtime, graph, options)?;
    let stem = options.file.clone().or(model_path(runtime, graph)?);
    let stem = stem.as_deref().and_then(Path::file_stem).map_or("model".into(), |stem| stem.to_string_lossy());
    let name = format!("{stem}_{}.precast", compiled.short_digest());
    let file = folder.join(&name);
    let written = tempfile::NamedTempFile::new_in(&folder).and_then(|mut temporary| {
        temporary.write_all(compiled.bytes())?;
        temporary.as_file().sync_all()?;
        Ok(temporary.persist(&file)?)
    });
    written.map_err(|error| cannot("write", &file, &error))?;
    Ok(name)
}

/// The folder of the model that names files of contexts.
fn context_folder(runtime: Runtime, graph: *const OrtGraph, options: &ContextOptions) -> Result<PathBuf, EpError> {
    let file = match &options.file {
        Some(file) => Some(file.clone()),
        None => model_path(runtime, graph)?,
    };
    let file = file.ok_or_else(|| {
        EpError::other("the model came as bytes, so its folder is not known; say ep.context_file_path")
    })?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(folder.to_path_buf())
}

/// A file of a folder; names that lead out of it are refused.
fn beside(folder: &Path, name: &str) -> Result<PathBuf, EpError> {
    let path = Path::new(name);
    let is_inside = path.components().all(|component| matches!(component, Component::Normal(_)));
    match is_inside && !name.is_empty() {
        true => Ok(folder.join(path)),
        false => Err(EpError::other(format!("the context's file '{name}' does not lie beside its model"))),
    }
}

/// Whoever writes the file decides what runs here, as with files of the cache.
#[cfg(unix)]
fn check_owner(file: &Path) -> Result<(), EpError> {
    use std::os::unix::fs::MetadataExt;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let metadata = std::fs::metadata(file).map_err(|error| cannot("read", file, &error))?;
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(EpError::other(format!("'{}' may be written by others, who could run code here", file.display())));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_file: &Path) -> Result<(), EpError> {
    Ok(())
}

fn cannot(action: &str, file: &Path, error: &std::io::Error) -> EpError {
    EpError::other(format!("cannot {action} '{}': {error}", file.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn files_of_contexts_lie_beside_their_model() {
        let folder = Path::new("/models");
        assert_eq!(beside(folder, "a.precast").unwrap(), Path::new("/models/a.precast"));
        for name in ["", "/etc/a", "../a", "a/../../b", "."] {
            assert!(beside(folder, name).is_err(), "{name}");
        }
    }
}
