//! Opens a model and runs it with three batch sizes: `cargo run --release --example run_batches [MODEL]`.
//! Without an argument it takes the recommender in the repository.

use precast::{DType, Error, InputInfo, Model, Runner, RunnerOptions, Tensor};

fn main() -> Result<(), Error> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recsys190/recsys190.onnx");
    let path = std::env::args().nth(1).unwrap_or_else(|| own.to_string());
    let runner = Runner::new(Model::open(path.as_ref())?, RunnerOptions::default())?;
    for batch in [1, 7, 64] {
        let inputs = runner
            .model()
            .inputs()?
            .iter()
            .map(|input| Ok((input.name.clone(), ones(input, batch)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        for (name, tensor) in runner.run(&inputs)? {
            println!("batch {batch}: {name} {}, first element {:?}", tensor.type_(), tensor.to_f64_vec().first());
        }
    }
    Ok(())
}

/// A tensor of ones: axis 0 is the batch, other free dims are 1.
fn ones(input: &InputInfo, batch: usize) -> Result<Tensor, Error> {
    let dims = input.dims.as_deref().unwrap_or(&[]);
    let free = |axis: usize| if axis == 0 { batch } else { 1 };
    let shape: Vec<usize> = dims.iter().enumerate().map(|(axis, dim)| dim.as_usize().unwrap_or(free(axis))).collect();
    let dtype: DType = input.dtype;
    Ok(Tensor::full(dtype, shape, 1.0)?)
}
