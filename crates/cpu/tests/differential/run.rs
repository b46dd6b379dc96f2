//! Compiles a case in every way, loads the Programs from the bytes of their files and compares what they compute with
//! the reference.

use std::sync::Arc;

use precast_cpu::lower::REFERENCE;
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::Graph;
use precast_passes::PassOptions;
use precast_program::{Bucket, Device, DeviceRun, MemoryStore, Program, Target, decode, encode};
use precast_tensor::{DType, Tensor};
use precast_testing::tolerance::Reference;

use crate::case::{Case, Expects};

const THREADS: [usize; 2] = [1, 2];

/// Whether the target's passes run first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Passes {
    None,
    All,
}

/// Runs cases; keeps the devices, whose threads are slow to start.
pub struct Judge {
    devices: Vec<CpuDevice>,
    isas: Vec<Isa>,
    /// What went wrong so far.
    pub faults: Vec<String>,
}

impl Judge {
    /// A judge with a device for each number of threads.
    pub fn new() -> Judge {
        Judge {
            devices: THREADS.map(CpuDevice::new).into(),
            isas: Isa::ALL.into_iter().filter(|isa| isa.is_supported()).collect(),
            faults: Vec::new(),
        }
    }

    /// Compares every Program of a case with the reference.
    pub fn check(&mut self, case: &Case) {
        if let Err(reason) = self.try_case(case) {
            self.faults.push(format!("{}\n    {reason}", case.name));
        }
    }

    /// Panics if anything went wrong.
    pub fn finish(self) {
        let count = self.faults.len();
        assert!(count == 0, "{count} cases failed:\n{}", self.faults.join("\n"));
    }

    fn try_case(&self, case: &Case) -> Result<(), String> {
        let reference = Reference::new(&case.graph, &case.inputs);
        for &isa in &self.isas {
            for passes in [Passes::None, Passes::All] {
                let place = |reason: String| format!("{} with passes {passes:?}: {reason}", isa.name());
                let results: Vec<Result<Vec<Tensor>, String>> = THREADS
                    .iter()
                    .zip(&self.devices)
                    .map(|(&threads, device)| run_case(case, isa, threads, passes, device))
                    .collect();
                match (&reference, &results[0]) {
                    (Err(_), Err(_)) => continue,
                    (Err(error), Ok(_)) => return Err(place(format!("ran, but the reference says: {error}"))),
                    (Ok(_), Err(reason)) => return Err(place(reason.clone())),
                    (Ok(reference), Ok(found)) => {
                        if let Some(difference) = reference.first_difference(found) {
                            return Err(place(difference.to_string()));
                        }
                    }
                }
                if results[0] != results[1] {
                    return Err(place("two threads give other bits than one".to_string()));
                }
            }
        }
        Ok(())
    }
}

fn run_case(case: &Case, isa: Isa, threads: usize, passes: Passes, device: &CpuDevice) -> Result<Vec<Tensor>, String> {
    let store = MemoryStore::default();
    let program = compile(&case.graph, isa, threads, passes, &store)?;
    let is_reference = program.steps.iter().any(|step| step.kernel.starts_with(REFERENCE));
    let is_expected = match (case.expects, passes) {
        (Expects::Kernels, Passes::None) => !is_reference,
        (Expects::Reference, Passes::None) => is_reference,
        (Expects::StepsAfterPasses(most), Passes::All) => !is_reference && program.steps.len() <= most,
        // Passes may fold a case away.
        (Expects::Kernels | Expects::Reference, Passes::All) | (Expects::StepsAfterPasses(_), Passes::None) => true,
    };
    if !is_expected {
        let kernels: Vec<&str> = program.steps.iter().map(|step| step.kernel.as_str()).collect();
        return Err(format!("{:?} is expected, but the kernels are {}", case.expects, kernels.join(", ")));
    }
    // The decoded Program is what a run from a file gets: kernels made from text, without the constants' values.
    let program = Arc::new(decode(&encode(&program)).map_err(|error| error.to_string())?);
    let loaded = device.load(&program, &store).map_err(|error| error.to_string())?;
    let inputs: Vec<Tensor> = case.inputs.iter().map(Tensor::aligned).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
    // Words align every element type; what is there before must not show.
    let mut words: Vec<Vec<u64>> =
        program.outputs.iter().map(|port| vec![u64::MAX; (port.bytes as usize).div_ceil(size_of::<u64>())]).collect();
    let ports = program.outputs.iter().zip(&mut words);
    let mut outputs: Vec<&mut [u8]> =
        ports.map(|(port, words)| &mut bytemuck::cast_slice_mut(words)[..port.bytes as usize]).collect();
    let mut context = device.context(program.arena_bytes);
    context.run(&*loaded, &inputs, &mut outputs).map_err(|error| error.to_string())?;
    let mut again = Ok(DeviceRun::default());
    let counted = allocation_counter::measure(|| again = context.run(&*loaded, &inputs, &mut outputs));
    again.map_err(|error| format!("the second run: {error}"))?;
    if counted.count_total > 0 && !is_reference {
        return Err(format!("a run allocates {} times", counted.count_total));
    }
    let outputs = program.outputs.iter().zip(&words).map(|(port, words)| {
        let bytes = &bytemuck::cast_slice::<u64, u8>(words)[..port.bytes as usize];
        let dtype = DType::from_name(&port.dtype).ok_or("an element type has no such name")?;
        let shape: Vec<usize> = port.shape.iter().map(|&size| size as usize).collect();
        Tensor::new(dtype, shape, bytes.to_vec().into()).map_err(|error| error.to_string())
    });
    outputs.collect()
}

fn compile(graph: &Graph, isa: Isa, threads: usize, passes: Passes, store: &MemoryStore) -> Result<Program, String> {
    let target = CpuTarget::new(isa, threads, PassOptions::default());
    let program = match passes {
        Passes::None => target.compile_optimised(graph, &Bucket::default(), store),
        Passes::All => target.compile(graph, &Bucket::default(), store),
    };
    program.map_err(|error| error.to_string())
}
