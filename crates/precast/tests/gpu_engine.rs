//! Text generation on GPUs, on the fake driver, whose memory the host cannot reach: tokens are those of the golden cases, before
//! and after captures, by a generator and by an engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../gpu/tests/rig/mod.rs"]
mod rig;

mod gpu_folders;

use std::sync::{Arc, Mutex};

use gpu_folders::{both, cuda, data, folder_with, open};
use precast::device_name::DeviceKind;
use precast::generate::engine::{complete, complete_requests};
use precast::generate::{Generator, GeneratorParams, generate};
use precast::{EngineOptions, Error, LaunchPath, Request, TextFolder, TextOptions, open_text_model};
use precast_passes::FloatPrecision;
use rig::Rig;

/// Prompts and what other implementations say to them, of the golden cases of the model.
const PROMPT: [u32; 4] = [5, 6, 7, 8];
const ANSWER: [u32; 6] = [86, 282, 221, 15, 180, 176];
const LLAMA: &str = "llama-fp32";

/// The folder with few sizes, so that there are few kernels to compile for the host.
fn small_folder() -> tempfile::TempDir {
    folder_with(&data(LLAMA), r#"{"length_buckets":[4],"row_buckets":[2],"kv_capacity_buckets":[32]}"#)
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
    let Rig { mut devices, target, .. } = cuda();
    let opened = open(target, devices.remove(0), DeviceKind::Cuda, folder.path(), 2);
    assert_eq!(opened.model.device(), "cuda:0");
    let launches = check(&opened);
    let count = |is_counted: fn(&LaunchPath) -> bool| launches.iter().filter(|launch| is_counted(launch)).count();
    assert!(count(|launch| matches!(launch, LaunchPath::Steps(_))) > 0, "{launches:?}");
    assert!(count(|launch| matches!(launch, LaunchPath::Replayed)) > 0, "{launches:?}");
}

#[test]
fn a_gpu_that_keeps_caches_chooses_what_the_cpu_chooses() {
    let folder =
        folder_with(&data(LLAMA), r#"{"length_buckets":[4],"row_buckets":[1,2],"kv_capacity_buckets":[8,32]}"#);
    let folders = both(folder.path(), 2);
    let plain = GeneratorParams::new(folders[0].model.config().search.clone()).max_new_tokens(8);
    let mut beams = plain.clone();
    beams.search.num_beams = 2;
    let mut penalised = plain.clone();
    penalised.search.repetition_penalty = 1.3;
    let drawn = plain.clone().temperature(2.0).seed(3);
    for (params, prompts) in [
        (&plain, vec![&PROMPT[..], &PROMPT[..2]]),
        (&beams, vec![&PROMPT[..]]),
        (&penalised, vec![&PROMPT[..]]),
        (&drawn, vec![&PROMPT[1..]]),
    ] {
        let answers = folders.each_ref().map(|folder| {
            let answers = generate(&folder.model, None, params, &prompts, &mut |_| (), None).unwrap().answers;
            answers.into_iter().map(|answer| answer.tokens).collect::<Vec<Vec<u32>>>()
        });
        assert_eq!(answers[0], answers[1], "{params:?}");
    }
}

#[test]
fn prompts_of_several_chunks_are_read_behind_what_was_written() {
    let folder = folder_with(&data(LLAMA), r#"{"length_buckets":[4],"row_buckets":[1],"kv_capacity_buckets":[32]}"#);
    let folders = both(folder.path(), 2);
    let prompt: Vec<u32> = (0..18).map(|position| 3 + position * 7 % 90).collect();
    // Steps without scores have nothing that the host reads, and the next one must still find what they wrote.
    for _ in 0..5 {
        let scores = folders.each_ref().map(|folder| {
            let params = GeneratorParams::new(folder.model.config().search.clone());
            let mut generator = Generator::new(&folder.model, params).unwrap();
            generator.append(&[&prompt]).unwrap();
            generator.logits(0).unwrap().to_vec()
        });
        let errors = scores[0].iter().zip(&scores[1]).map(|(a, b)| (a - b).abs());
        assert!(errors.clone().all(|error| error < 1e-4), "{:?}", errors.fold(0.0, f32::max));
    }
}

#[test]
fn rows_on_a_gpu_become_long_when_they_do_on_the_cpu() {
    let long = data("phi3_long-fp32");
    let folder = folder_with(&long, r#"{"length_buckets":[16],"row_buckets":[2],"kv_capacity_buckets":[64]}"#);
    let folders = both(folder.path(), 2);
    let prompts: [Vec<u32>; 2] = [30, 12].map(|length| (0..length).map(|position| 3 + position * 7 % 90).collect());
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let answers = folders.each_ref().map(|folder| {
        let params = GeneratorParams::new(folder.model.config().search.clone()).max_new_tokens(6);
        let answers = generate(&folder.model, None, &params, &prompts, &mut |_| (), None).unwrap().answers;
        answers.into_iter().map(|answer| answer.tokens).collect::<Vec<Vec<u32>>>()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].iter().map(Vec::len).collect::<Vec<_>>(), [6, 6]);
}

#[test]
fn rows_on_a_gpu_are_rewound_forked_and_read() {
    let [on_cpu, on_gpu] = both(small_folder().path(), 2);
    let params = GeneratorParams::new(on_cpu.model.config().search.clone());
    let mut generators = [&on_cpu, &on_gpu].map(|folder| Generator::new(&folder.model, params.clone()).unwrap());
    let mut histories = Vec::new();
    for generator in &mut generators {
        generator.append(&[&PROMPT]).unwrap();
        let mut history: Vec<u32> = (0..3).map(|_| generator.next().unwrap()[0].id).collect();
        let scores = generator.logits(0).unwrap().to_vec();
        generator.rewind(0, 5).unwrap();
        generator.fork(0).unwrap();
        history.extend((0..3).flat_map(|_| generator.next().unwrap()).map(|token| token.id));
        histories.push((history, scores));
    }
    assert_eq!(histories[0].0, histories[1].0);
    assert_eq!(histories[0].0[..3], ANSWER[..3]);
    let errors = histories[0].1.iter().zip(&histories[1].1).map(|(a, b)| (a - b).abs());
    assert!(errors.fold(0.0, f32::max) < 1e-4);
}

/// New memory of the fake driver is all ones, which are NaN: free slots of a first cache hold those, and free slots of a row that
/// was rewound what it had before.
#[test]
fn defect_32_free_slots_of_a_gpu_cache_leave_no_trace() {
    let tuning = r#"{"length_buckets":[25],"row_buckets":[2],"kv_capacity_buckets":[64]}"#;
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 300 + 5).collect();
    for name in ["llama-fp32", "gemma2-fp32"] {
        let folder = folder_with(&data(name), tuning);
        let [_, on_gpu] = both(folder.path(), 2);
        let scores = |tokens_before: &[u32]| {
            let params = GeneratorParams::new(on_gpu.model.config().search.clone());
            let mut generator = Generator::new(&on_gpu.model, params).unwrap();
            generator.append(&[&prompt[..18], &prompt[..9]]).unwrap();
            if !tokens_before.is_empty() {
                generator.append(&[tokens_before, tokens_before]).unwrap();
                generator.rewind(0, 18).unwrap();
                generator.rewind(1, 9).unwrap();
            }
            let first = [0, 1].map(|row| generator.logits(row).unwrap().to_vec());
            generator.append(&[&prompt[18..20], &prompt[9..10]]).unwrap();
            let second = [0, 1].map(|row| generator.logits(row).unwrap().to_vec());
            [first, second].map(|rows| rows.map(|row| row.into_iter().map(f32::to_bits).collect::<Vec<u32>>()))
        };
        let expected = scores(&[]);
        assert!(expected.iter().flatten().flatten().all(|&bits| f32::from_bits(bits).is_finite()), "{name}");
        assert!(scores(&[7, 9]) == expected, "{name}");
    }
}

#[test]
fn windows_on_a_gpu_keep_their_last_tokens() {
    let folder =
        folder_with(&data("gemma2-fp32"), r#"{"length_buckets":[25],"row_buckets":[1],"kv_capacity_buckets":[64]}"#);
    let folders = both(folder.path(), 2);
    let params = GeneratorParams::new(folders[0].model.config().search.clone()).max_new_tokens(6);
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 300 + 5).collect();
    let answers = folders.each_ref().map(|folder| {
        generate(&folder.model, None, &params, &[&prompt], &mut |_| (), None).unwrap().answers.remove(0).tokens
    });
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn amd_devices_answer_through_the_forwarder_to_cuda() {
    let folder = small_folder();
    let rig = Rig::of_hip_on_cuda(FloatPrecision::F32);
    let Rig { mut devices, target, .. } = rig;
    let opened = open(target, devices.remove(0), DeviceKind::Hip, folder.path(), 2);
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
            if let Err(error) = open_text_model(&data(LLAMA), &options) {
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

#[test]
fn adapters_run_where_the_device_keeps_caches_and_in_an_engine() {
    let data = data("llama_lora-fp32");
    let folder = folder_with(&data, r#"{"length_buckets":[4],"row_buckets":[2],"kv_capacity_buckets":[32]}"#);
    let answers = both(folder.path(), 2).map(|opened| {
        let params = GeneratorParams::new(opened.model.config().search.clone()).max_new_tokens(12);
        let engine = opened.engine(EngineOptions { page_tokens: 4, rows_max: 2, ..opened.engine_options() }).unwrap();
        let mut generator = Generator::new(&opened.model, params.clone()).unwrap();
        generator.append(&[&PROMPT]).unwrap();
        let mut found = Vec::new();
        for file in [None, Some("first.onnx_adapter"), Some("second.onnx_adapter")] {
            let adapter = file.map(|file| opened.load_adapter(file, &data.join(file)).unwrap());
            // What is cached is run again on the device.
            generator.set_adapter(adapter.as_ref()).unwrap();
            found.push((0..3).map(|_| generator.next().unwrap()[0].id).collect::<Vec<u32>>());
            let request = Request { adapter, ..Request::new(PROMPT.to_vec(), params.clone()) };
            let tokens = complete_requests(&engine, &[request], &mut |_| ()).unwrap().answers.remove(0).tokens;
            found.push(tokens);
        }
        assert_eq!(generator.stats().reruns, 2);
        found
    });
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0][1] != answers[0][3] && answers[0][3] != answers[0][5], "{answers:?}");
}
