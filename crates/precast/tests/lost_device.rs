//! An engine whose device fails in the middle of a step: with a model that can be opened again the next request is answered,
//! and without one every later request is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use precast::device_name::{DeviceKind, DeviceName};
use precast::generate::engine::{Event, Request};
use precast::generate::{Engine, EngineOptions, GeneratorParams, TextModel};
use precast::{GivenDevice, Isa, TextOptions, open_text_model_on};
use precast_cpu::{CpuDevice, CpuTarget};
use precast_program::{ArtifactStore, Device, DeviceContext, DeviceRun, LoadError, LoadedProgram, Program, RunError};

/// The CPU, until it is pulled out.
struct Mortal {
    cpu: CpuDevice,
    is_dead: Arc<AtomicBool>,
}

struct MortalContext {
    context: Box<dyn DeviceContext>,
    is_dead: Arc<AtomicBool>,
}

impl Device for Mortal {
    fn load(&self, program: &Arc<Program>, store: &dyn ArtifactStore) -> Result<Arc<dyn LoadedProgram>, LoadError> {
        self.cpu.load(program, store)
    }

    fn context(&self, workspace_bytes: u64) -> Box<dyn DeviceContext> {
        Box::new(MortalContext { context: self.cpu.context(workspace_bytes), is_dead: self.is_dead.clone() })
    }
}

impl DeviceContext for MortalContext {
    fn workspace_bytes(&self) -> u64 {
        self.context.workspace_bytes()
    }

    fn reserve(&mut self, workspace_bytes: u64) {
        self.context.reserve(workspace_bytes);
    }

    fn run(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<DeviceRun, RunError> {
        match self.is_dead.load(Ordering::Relaxed) {
            true => Err(RunError::DeviceLost("it was pulled out".to_string())),
            false => self.context.run(program, inputs, outputs),
        }
    }

    fn run_timed(
        &mut self,
        program: &dyn LoadedProgram,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<Vec<Duration>, RunError> {
        self.context.run_timed(program, inputs, outputs)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data/llama-fp32")
}

/// The model on a device of its own, and how to pull that out.
fn open() -> (TextModel, Arc<AtomicBool>) {
    let is_dead = Arc::new(AtomicBool::new(false));
    let device = Mortal { cpu: CpuDevice::new(1), is_dead: is_dead.clone() };
    let target = Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()));
    let name = DeviceName { kind: DeviceKind::Cpu, number: 0 };
    let given = GivenDevice { name, target, device: Arc::new(device) };
    let folder = open_text_model_on(&folder(), &TextOptions::default(), given).unwrap();
    (folder.model, is_dead)
}

fn ask(engine: &Engine, model: &TextModel) -> Vec<Event> {
    let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(4);
    engine.submit(Request::new(vec![5, 6, 7, 8], params)).unwrap().events().collect()
}

fn is_retryable(events: &[Event]) -> bool {
    matches!(events.last(), Some(Event::Failed { is_retryable: true, .. }))
}

#[test]
fn a_model_that_can_be_opened_again_answers_the_next_request() {
    let (model, is_dead) = open();
    let model = model.with_reopen(Arc::new(|| Ok(open().0)));
    let engine = Engine::new(&model, None, EngineOptions::from_config(model.config(), None)).unwrap();
    let answer = ask(&engine, &model);
    assert!(matches!(answer.last(), Some(Event::Finished { .. })), "{answer:?}");
    is_dead.store(true, Ordering::Relaxed);
    let lost = ask(&engine, &model);
    assert!(is_retryable(&lost), "{lost:?}");
    assert_eq!(ask(&engine, &model), answer);
}

#[test]
fn an_engine_without_a_device_refuses_every_request() {
    let (model, is_dead) = open();
    let engine = Engine::new(&model, None, EngineOptions::from_config(model.config(), None)).unwrap();
    is_dead.store(true, Ordering::Relaxed);
    let lost = ask(&engine, &model);
    assert!(is_retryable(&lost), "{lost:?}");
    while engine.metrics().is_ok() {}
    let params = GeneratorParams::new(model.config().search.clone());
    let refused = engine.submit(Request::new(vec![5], params)).err().unwrap().to_string();
    assert!(refused.starts_with("the engine has ended: the device has failed"), "{refused}");
}
