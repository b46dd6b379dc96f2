//! Adapters from files: which parameters of a decoder may be replaced, whether values fit them, and that the decoder's other
//! constants are in memory once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use precast_generate::adapter::{Adapter, Adapters, Parameters};
use precast_ir::Graph;
use precast_onnx::{AdapterFile, Limits, Quoted, ReadError};
use precast_tensor::{Digest, Dim, Tensor, Type};

use crate::error::Error;
use crate::model::{InputInfo, Model};
use crate::suggestion::listed;

/// Loads an adapter from a file of ONNX Runtime's format (`*.onnx_adapter`), under a name.
pub fn load_adapter(adapters: &Adapters, name: &str, file: &Path) -> Result<Adapter, Error> {
    let in_file = |source| Error::AdapterFile { path: file.display().to_string(), source: Box::new(source) };
    let read = AdapterFile::open(file, &Limits::default()).map_err(|error| match error {
        // Such an error names the file itself.
        error @ ReadError::Io { .. } => error.into(),
        error => in_file(error.into()),
    })?;
    adapters.add(name, read.parameters.into_iter().collect()).map_err(|error| in_file(error.into()))
}

/// Says of each parameter that does not fit the model what was expected.
pub(crate) fn check_parameters(model: &Model, parameters: &Parameters) -> Result<(), String> {
    let inputs = model.replaceable_inputs().map_err(|error| error.to_string())?;
    let faults: Vec<String> = parameters.iter().filter_map(|(name, tensor)| fault_of(name, tensor, &inputs)).collect();
    match &faults[..] {
        _ if parameters.is_empty() => Err("it has no parameters".to_string()),
        [] => Ok(()),
        faults => Err(faults.join("; ")),
    }
}

fn fault_of(name: &str, tensor: &Tensor, inputs: &[InputInfo]) -> Option<String> {
    let Some(input) = inputs.iter().find(|input| input.name == name) else {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        let known = listed(name, &names);
        return Some(format!("the model has no parameter {} that may be replaced; {known}", Quoted::new(name)));
    };
    (!is_fit(tensor, input)).then(|| {
        let expected = match &input.dims {
            Some(dims) => Type::new(input.dtype, dims.clone()).to_string(),
            None => format!("{} of any shape", input.dtype),
        };
        format!("parameter {} is {}; {expected} was expected", Quoted::new(name), tensor.type_())
    })
}

/// Whether a value is of an input's type. Sizes that the model has no number for, such as a rank, are the value's own; that they
/// agree with one another shows when Types are inferred.
fn is_fit(tensor: &Tensor, input: &InputInfo) -> bool {
    let is_size = |(&size, dim): (&usize, &Dim)| dim.as_usize().is_none_or(|expected| expected == size);
    let dims = input.dims.as_ref();
    let has_shape = |dims: &Vec<Dim>| dims.len() == tensor.rank() && tensor.shape().iter().zip(dims).all(is_size);
    tensor.dtype() == input.dtype && dims.is_none_or(has_shape)
}

/// Constants of a decoder by digest. Those of the decoder with other values are these, but for the values.
#[derive(Default)]
pub(crate) struct SharedConstants(Mutex<BTreeMap<Digest, Tensor>>);

impl SharedConstants {
    /// Keeps the constants of one of the decoder's own Graphs.
    pub(crate) fn keep(&self, graph: &mut Graph) {
        let mut known = self.lock();
        graph.share_constants(|tensor| Some(known.entry(tensor.digest()).or_insert_with(|| tensor.clone()).clone()));
    }

    /// Has the constants of a Graph with other values share the memory of equal ones. Its own are not kept, so that they go
    /// with it.
    pub(crate) fn share(&self, graph: &mut Graph) {
        let known = self.lock();
        graph.share_constants(|tensor| known.get(&tensor.digest()).cloned());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, Tensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A Graph of these constants, each in memory of its own, and where they lie.
    fn graph(constants: &[f32]) -> Graph {
        let mut graph = Graph::new("");
        for &number in constants {
            let constant = graph.add_constant(Tensor::from_vec([1], vec![number]).unwrap());
            graph.add_output(format!("{number}"), constant);
        }
        graph
    }

    fn places(graph: &Graph) -> Vec<*const u8> {
        graph.outputs().iter().map(|output| graph.constant(output.value).unwrap().as_bytes().as_ptr()).collect()
    }

    #[test]
    fn constants_of_a_decoder_with_other_values_are_those_of_the_decoder() {
        let shared = SharedConstants::default();
        let (mut own, mut headless, mut adapted) = (graph(&[1.0, 2.0]), graph(&[2.0]), graph(&[2.0, 3.0, 1.0]));
        shared.keep(&mut own);
        shared.keep(&mut headless);
        assert_eq!(places(&headless), [places(&own)[1]]);
        let value = places(&adapted)[1];
        shared.share(&mut adapted);
        assert_eq!(places(&adapted), [places(&own)[1], value, places(&own)[0]]);
        // What only the adapted decoder has is not kept.
        let mut other = graph(&[3.0]);
        let before = places(&other);
        shared.share(&mut other);
        assert_eq!(places(&other), before);
    }
}
