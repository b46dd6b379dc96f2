//! Everything that is wrong with a model folder, as far as one fault does not hide another: its configuration, the names and
//! sizes of its decoder, and the operators of that.

use std::path::Path;

use precast_generate::config::{Folder, decoder_filename};
use precast_onnx::ImportOptions;
use precast_onnx::import::ImportError;

use crate::decoder_graph::bind_decoder;
use crate::error::Error;
use crate::model::Model;
use crate::open_text_model::{TextOptions, read_config};

/// What is wrong with a model folder; nothing does not mean that it opens, since devices and memory are not looked at.
pub fn folder_faults(directory: &Path, options: &TextOptions) -> Vec<Error> {
    let folder = match Folder::open(directory) {
        Ok(folder) => folder,
        Err(error) => return vec![error.into()],
    };
    let mut faults = Vec::new();
    let config = read_config(&folder, options).map_err(|error| faults.push(error)).ok();
    let filename = match &config {
        Some(config) => Some(config.model.decoder.filename.clone()),
        None => decoder_filename(&folder),
    };
    let path = filename.and_then(|name| folder.path(&name).ok());
    let Some(model) = path.and_then(|path| Model::open(&path).map_err(|error| faults.push(error)).ok()) else {
        return faults;
    };
    if let Some(config) = &config {
        faults.extend(bind_decoder(&model, config).err());
    }
    // Whatever else an import without sizes meets, the sizes of the roles may cure.
    if let Err(error @ Error::Import(ImportError::Unsupported { .. })) = model.graph(&ImportOptions::default()) {
        faults.push(error);
    }
    faults
}
