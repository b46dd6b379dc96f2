//! Compiles a model ahead of time into a Program file, then loads and runs the file without the model:
//! `cargo run --release --example compile_ahead`.

use precast::{Error, Model, ProgramRunner, Runner, RunnerOptions, Tensor, save_program};

fn main() -> Result<(), Error> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recsys190/recsys190.onnx");
    let options = RunnerOptions::default();
    let threads = options.threads;
    let runner = Runner::new(Model::open(model.as_ref())?, options)?;
    let inputs = runner
        .model()
        .inputs()?
        .iter()
        .map(|input| {
            let dims = input.dims.as_deref().unwrap_or(&[]);
            let shape: Vec<usize> = dims.iter().map(|dim| dim.as_usize().unwrap_or(4)).collect();
            Ok((input.name.clone(), Tensor::full(input.dtype, shape, 1.0)?))
        })
        .collect::<Result<Vec<_>, Error>>()?;

    let folder =
        tempfile::tempdir().map_err(|source| Error::Io { action: "create", path: "a folder".into(), source })?;
    let path = folder.path().join("recsys190.program");
    let ready = runner.ready(&inputs)?.ok_or_else(|| Error::Request("the model is not one Program".into()))?;
    save_program(&path, ready.program(), runner.store())?;

    let program = ProgramRunner::open(&path, &RunnerOptions { threads, ..RunnerOptions::default() })?;
    let again = program.run(&inputs)?;
    assert_eq!(again, runner.run(&inputs)?, "the Program file gives what the model gives");
    println!("{} steps, {} outputs, the same bytes", program.program().steps.len(), again.len());
    Ok(())
}
