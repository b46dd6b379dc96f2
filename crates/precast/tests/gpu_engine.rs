//! Text generation on GPUs, on the fake driver, whose memory the host cannot reach: tokens are those of the golden cases, before
//! and after captures, by a generator and by an engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../gpu/tests/rig/mod.rs"]
mod rig;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use precast::device_name::{DeviceKind, DeviceName};
use precast::generate::engine::complete;
use precast::generate::{GeneratorParams, generate};
use precast::{
    EngineOptions, Error, GivenDevice, LaunchPath, TextFolder, TextOptions, open_text_model, open_text_model_on,
};
use precast_driver::Vendor;
use precast_gpu::{CaptureLimits, GpuDevice, GpuTarget};
use precast_passes::FloatPrecision;
use rig::Rig;

/// Prompts and what other implementations say to them, of the golden cases of the model.
const PROMPT: [u32; 4] = [5, 6, 7, 8];
const ANSWER: [u32; 6] = [86, 282, 221, 15, 180, 176];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data/llama-fp32")
}

/// The folder with few sizes, so that there are few kernels to compile for the host.
fn small_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(data()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let tuning = r#"{"length_buckets":[4],"row_buckets":[2],"kv_capacity_buckets":[32]}"#;
    std::fs::write(folder.path().join("precast.json"), tuning).unwrap();
    folder
}

fn open(target: GpuTarget, device: GpuDevice, kind: DeviceKind, folder: &Path) -> TextFolder {
    let name = DeviceName { kind, number: 0 };
    let device = GivenDevice { name, target: Arc::new(target), device: Arc::new(device) };
    let options = TextOptions { rows_max: 2, ..TextOptions::default() };
    open_text_model_on(folder, &options, device).unwrap()
}

/// Answers by both paths, several times, with the launches of the generator's steps.
fn check(folder: &TextFolder) -> Vec<LaunchPath> {
    let params = GeneratorParams::new(folder.model.config().search.clone()).max_new_tokens(ANSWER.len());
    let launches = Arc::new(Mutex::new(Vec::new()));
    let options = EngineOptions { page_tokens: 4, pages: Some(16), rows_max: 2, ..folder.engine_options() };
    let engine = folder.engine(options).unwrap();
    for _ in 0..3 {
        let seen = launches.clone();
        let observer = Box::new(move |_: &_, report: &precast::RunReport| {
            seen.lock().unwrap().push(report.device.launch);
        });
        let alone = generate(&folder.model, None, &params, &[&PROMPT], &mut |_| (), Some(observer)).unwrap();
        assert_eq!(alone.answers[0].tokens, ANSWER);
        let together = complete(&engine, &params, None, &[&PROMPT, &PROMPT, &PROMPT], &mut |_| ()).unwrap();
        assert!(together.answers.iter().all(|answer| answer.tokens == ANSWER));
    }
    let launches = launches.lock().unwrap();
    launches.clone()
}

#[test]
fn defect_14_33_tokens_are_right_on_memory_that_the_host_cannot_reach_before_and_after_captures() {
    let folder = small_folder();
    let limits = CaptureLimits { max_graphs: 100, ..Default::default() };
    let rig = Rig::with(Vendor::Cuda, 1, FloatPrecision::F32, limits);
    let Rig { mut devices, target, .. } = rig;
    let opened = open(target, devices.remove(0), DeviceKind::Cuda, folder.path());
    assert_eq!(opened.model.device(), "cuda:0");
    let launches = check(&opened);
    let count = |is_counted: fn(&LaunchPath) -> bool| launches.iter().filter(|launch| is_counted(launch)).count();
    assert!(count(|launch| matches!(launch, LaunchPath::Steps(_))) > 0, "{launches:?}");
    assert!(count(|launch| matches!(launch, LaunchPath::Replayed)) > 0, "{launches:?}");
}

#[test]
fn amd_devices_answer_through_the_forwarder_to_cuda() {
    let folder = small_folder();
    let rig = Rig::of_hip_on_cuda(FloatPrecision::F32);
    let Rig { mut devices, target, .. } = rig;
    let opened = open(target, devices.remove(0), DeviceKind::Hip, folder.path());
    assert_eq!(opened.model.device(), "hip:0");
    check(&opened);
}

#[test]
fn every_name_of_an_amd_device_selects_it_and_a_machine_without_one_says_so() {
    for name in ["amdgpu", "AMDGPU", "MIGraphX", "MIGraphXExecutionProvider", "AMDGPUExecutionProvider", "rocm", "hip"]
    {
        let mut options = TextOptions::default();
        let notice = options.append_provider(name).unwrap();
        assert_eq!(options.device.unwrap().to_string(), "hip:0");
        assert_eq!(notice.unwrap(), format!("'{name}' is read as 'hip:0'"));
        assert_eq!(options.append_provider("cpu").unwrap(), None);
        let second = options.append_provider("cuda:1").unwrap_err().to_string();
        assert_eq!(second, "'cuda:1' is a second device; 'hip:0' is the device already");
        // Through the API and through the folder's own configuration alike.
        let text =
            format!(r#"{{"model":{{"decoder":{{"session_options":{{"provider_options":[{{"{name}":{{}}}}]}}}}}}}}"#);
        let overlay = precast::generate::config::Source { name: "overlay".to_string(), text };
        let by_folder = TextOptions { overlays: vec![overlay], ..TextOptions::default() };
        for options in [options, by_folder] {
            if let Err(error) = open_text_model(&data(), &options) {
                assert!(matches!(error, Error::Device(_)), "{name}: {error}");
            }
        }
    }
    let unknown = TextOptions::default().append_provider("amdgpux").unwrap_err().to_string();
    assert!(
        unknown.contains("there is no device 'amdgpux'") && unknown.contains("Did you mean 'amdgpu'?"),
        "{unknown}"
    );
}
