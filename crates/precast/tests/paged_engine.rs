//! Engines whose pages a GPU keeps, on the fake driver, where memory that nobody wrote is no number: whatever rows share, lose,
//! take back or propose, tokens are those of the CPU's engine, and what a device cannot keep is on the host and said to be.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../gpu/tests/rig/mod.rs"]
mod rig;

mod gpu_folders;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use gpu_folders::{both, cuda, data, folder_with, names, open_on};
use precast::device_name::{DeviceKind, DeviceName};
use precast::generate::config::SpeculativeConfig;
use precast::generate::engine::{Event, Request};
use precast::generate::{Engine, GeneratorParams, TextModel};
use precast::{EngineOptions, GivenDevice, KvPlace, LaunchPath, RequestHandle, TextOptions, open_text_model_on};

/// Programs of four rows of one token and of chunks of four, whatever runs in them, so that there is always filler.
const FEW_SIZES: &str = r#"{"length_buckets":[1,4],"row_buckets":[4],"kv_capacity_buckets":[64]}"#;
const LLAMA: &str = "llama-fp32";
/// What a driver says where there is no memory, and where a kernel went astray.
const OUT_OF_MEMORY: i32 = 2;
const ILLEGAL_ADDRESS: i32 = 700;

fn options(model: &TextModel) -> EngineOptions {
    let options = EngineOptions::from_config(model.config(), None);
    EngineOptions { page_tokens: 4, pages: Some(64), rows_max: 3, checks_invariants: true, ..options }
}

fn params(model: &TextModel, new_tokens: usize) -> GeneratorParams {
    let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(new_tokens);
    GeneratorParams { ignore_eos: true, ..params }
}

/// Few beginnings, so that pages are shared, and many lengths.
fn prompt(number: usize) -> Vec<u32> {
    let beginning = (0..8 * (number % 3)).map(|token| (20 + number % 2 + token) as u32);
    beginning.chain((0..1 + number * 5 % 9).map(|token| (5 + (token * 7 + number) % 200) as u32)).collect()
}

/// Greedy answers, drawn ones, several to one prompt, and those under rules that need all scores.
fn requests(model: &TextModel) -> Vec<Request> {
    let request = |number: usize| {
        let mut params = params(model, 5 + number % 7);
        match number % 4 {
            0 => {}
            1 => params = params.temperature(0.9).top_k(0).seed(number as u64),
            2 => params.search.repetition_penalty = 1.3,
            _ => {
                params = params.temperature(1.2).seed(number as u64);
                params.search.num_return_sequences = 2;
            }
        }
        Request::new(prompt(number), params)
    };
    (0..10).map(request).collect()
}

/// Tokens of all answers of a request, each in the order in which it came.
fn tokens(handle: &RequestHandle) -> Vec<Vec<u32>> {
    let mut tokens = vec![Vec::new(); 2];
    for event in handle.events() {
        match event {
            Event::Token(token) => tokens[token.answer].push(token.id),
            Event::Finished { .. } | Event::Blocked => {}
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
    tokens
}

fn answers(engine: &Engine, requests: &[Request]) -> Vec<Vec<Vec<u32>>> {
    let handles: Vec<RequestHandle> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    handles.iter().map(tokens).collect()
}

#[test]
fn rows_of_all_lengths_are_one_replay_that_reads_and_writes_their_pages() {
    let folder = folder_with(&data(LLAMA), FEW_SIZES);
    let [on_cpu, on_gpu] = both(folder.path(), 4);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let model = on_gpu.model.clone().watched(Arc::new(move |plan, report, _| {
        let launch = report.device.launch;
        seen.lock().unwrap().push((plan.rows.len(), plan.shape, launch));
    }));
    let engine = Engine::new(&model, None, options(&model)).unwrap();
    // Rows of 4, 9 and 14 tokens, which grow beyond the eight pages that the smallest tables have room for.
    let request = |length: usize| Request::new((0..length as u32).map(|at| 5 + at).collect(), params(&model, 30));
    let requests = [4, 9, 14].map(request);
    let expected = answers(&Engine::new(&on_cpu.model, None, options(&on_cpu.model)).unwrap(), &requests);
    for _ in 0..2 {
        assert_eq!(answers(&engine, &requests), expected);
    }
    let metrics = engine.metrics().unwrap();
    assert_eq!(metrics.kv_place, KvPlace::Device);
    assert_eq!(metrics.kv_bytes, 64 * 4 * model.kv_bytes_per_token());
    let steps = steps.lock().unwrap();
    let together = steps.iter().filter(|(rows, shape, _)| *rows == 3 && shape.length == 1);
    let capacities: BTreeSet<usize> = together.clone().map(|(_, shape, _)| shape.capacity).collect();
    assert_eq!(capacities, BTreeSet::from([32, 64]));
    let replayed = together.clone().filter(|(.., launch)| *launch == LaunchPath::Replayed).count();
    assert!(replayed * 4 > together.count() * 3, "{replayed} steps were replayed");
}

#[test]
fn rows_that_share_lose_and_propose_say_what_they_say_on_the_cpu() {
    let folder = folder_with(&data(LLAMA), FEW_SIZES);
    let folders = both(folder.path(), 4);
    let lookup = SpeculativeConfig {
        max_draft_tokens: 3,
        ngram_size: 2,
        ngram_chained_lookup: true,
        min_adaptive_k: 0,
        cooldown: false,
    };
    let [cpu, gpu] = folders.each_ref().map(|folder| options(&folder.model));
    let requests = requests(&folders[0].model);
    let expected = answers(&Engine::new(&folders[0].model, None, cpu).unwrap(), &requests);
    let sharing = EngineOptions { prefix_caching: true, ..gpu.clone() };
    let few_pages = EngineOptions { pages: Some(13), ..gpu.clone() };
    let proposing = EngineOptions { speculation: lookup, proposes_always: true, ..sharing.clone() };
    for options in [gpu, sharing, few_pages, proposing] {
        let engine = Engine::new(&folders[1].model, None, options.clone()).unwrap();
        // The second time rows begin on pages that others still hold.
        for _ in 0..2 {
            assert_eq!(answers(&engine, &requests), expected, "{options:?}");
        }
        let metrics = engine.metrics().unwrap();
        assert_eq!(metrics.kv_place, KvPlace::Device);
        assert_eq!(metrics.prefix_hit_tokens > 100, options.prefix_caching, "{metrics:?}");
        assert_eq!(metrics.preemptions > 0, options.pages == Some(13), "{metrics:?}");
        assert_eq!(metrics.speculation.rounds > 0, options.proposes_always, "{metrics:?}");
    }
}

#[test]
fn turns_go_on_and_are_taken_back_beside_rows_with_the_same_pages() {
    let folder = folder_with(&data(LLAMA), FEW_SIZES);
    let folders = both(folder.path(), 4);
    let told = folders.each_ref().map(|folder| {
        let model = &folder.model;
        let engine = Engine::new(model, None, EngineOptions { prefix_caching: true, ..options(model) }).unwrap();
        let request = Request::new(prompt(4), params(model, 6));
        let turn = engine.submit(Request { keeps_turn: true, ..request.clone() }).unwrap();
        let mut told = vec![tokens(&turn)];
        turn.continue_with(&[7, 8, 9]).unwrap();
        told.push(tokens(&turn));
        // Someone else begins as the turn does, while it is taken back and goes on in another way.
        let other = engine.submit(request).unwrap();
        turn.rewind_turn().unwrap();
        turn.continue_with(&[10, 11]).unwrap();
        told.extend([tokens(&turn), tokens(&other)]);
        told
    });
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0][0], told[0][3]);
}

#[test]
fn long_rows_windows_and_drafts_are_right_on_pages_of_the_device() {
    for (name, draft) in [("phi3_long-fp32", None), ("gemma2-fp32", None), (LLAMA, Some(LLAMA))] {
        let folder = folder_with(&data(name), FEW_SIZES);
        let folders = both(folder.path(), 4);
        let draft = draft.map(|draft| folder_with(&data(draft), FEW_SIZES));
        let drafts = draft.as_ref().map(|draft| both(draft.path(), 4));
        let told = [0, 1].map(|number| {
            let model = &folders[number].model;
            let draft = drafts.as_ref().map(|drafts| drafts[number].model.clone());
            let model = draft.map_or(model.clone(), |draft| model.clone().with_draft(draft).unwrap());
            let speculation = SpeculativeConfig { ngram_size: 0, ..options(&model).speculation };
            let options = EngineOptions { speculation, proposes_always: true, ..options(&model) };
            let engine = Engine::new(&model, None, options).unwrap();
            // Prompts that cross the length at which rows become long, and those that fill a window.
            let request =
                |length: usize| Request::new((0..length as u32).map(|at| 3 + at * 7 % 90).collect(), params(&model, 6));
            let told = answers(&engine, &[30, 12, 21].map(request));
            (told, engine.metrics().unwrap())
        });
        assert_eq!(told[0].0, told[1].0, "{name}");
        assert_eq!(told[1].1.kv_place, KvPlace::Device, "{name}");
        assert_eq!(told[1].1.speculation.accepted > 0, drafts.is_some(), "{name}");
    }
}

#[test]
fn families_of_decoders_say_on_pages_what_they_say_on_the_cpu() {
    for name in ["chatglm-fp32", "gemma3-fp32", "llama-int4-acc1", "phi-fp32", "qwen3-fp32", "smollm3_local-fp32"] {
        let folder = folder_with(&data(name), FEW_SIZES);
        let told = both(folder.path(), 4).map(|folder| {
            let model = &folder.model;
            let engine = Engine::new(model, None, options(model)).unwrap();
            // Of a window, rows shorter and longer than it.
            let request = |length: u32| Request::new((0..length).map(|at| 3 + at * 7 % 90).collect(), params(model, 5));
            (answers(&engine, &[3, 20, 45].map(request)), engine.metrics().unwrap().kv_place)
        });
        assert_eq!(told[0].0, told[1].0, "{name}");
        assert_eq!(told[1].1, KvPlace::Device, "{name}");
    }
}

#[test]
fn all_decoders_of_the_tests_but_one_have_pages_on_the_device() {
    let mut rig = cuda();
    let (target, device) = (Arc::new(rig.target), Arc::new(rig.devices.remove(0)));
    let on_host = names().into_iter().filter(|name| {
        let device = GivenDevice {
            name: DeviceName { kind: DeviceKind::Cuda, number: 0 },
            target: target.clone(),
            device: device.clone(),
        };
        open_text_model_on(&data(name), &TextOptions::default(), device).unwrap().model.host_pages().is_some()
    });
    assert_eq!(on_host.collect::<Vec<String>>(), ["gpt2_like-fp32"]);
}

#[test]
fn decoders_that_need_a_cache_in_one_piece_have_the_hosts_and_say_so() {
    let folder = folder_with(&data("gpt2_like-fp32"), FEW_SIZES);
    let [on_cpu, on_gpu] = both(folder.path(), 4);
    let notice = "an engine has its keys and values on the host, since ";
    let notices = |notices: &[String]| notices.iter().filter(|text| text.starts_with(notice)).count();
    assert_eq!((notices(&on_cpu.notices), notices(&on_gpu.notices)), (0, 1), "{:?}", on_gpu.notices);
    let engines = [&on_cpu, &on_gpu].map(|folder| Engine::new(&folder.model, None, options(&folder.model)).unwrap());
    let requests = [Request::new(vec![5, 6, 7, 8], params(&on_cpu.model, 5))];
    assert_eq!(answers(&engines[0], &requests), answers(&engines[1], &requests));
    assert_eq!(engines[0].metrics().unwrap().kv_place, KvPlace::Host);
    let KvPlace::HostForDevice(reason) = engines[1].metrics().unwrap().kv_place else { panic!("it keeps no pages") };
    assert!(reason.contains("reads a cache in one piece"), "{reason}");
}

#[test]
fn a_device_without_memory_for_all_pages_has_the_hosts() {
    let folder = folder_with(&data(LLAMA), FEW_SIZES);
    let mut rig = cuda();
    let opened = open_on(&mut rig, folder.path(), 4);
    let requests = [Request::new(vec![5, 6, 7, 8], params(&opened.model, 5))];
    let expected = answers(&Engine::new(&opened.model, None, options(&opened.model)).unwrap(), &requests);
    rig.fake.inject("cuMemAlloc_v2", 1, OUT_OF_MEMORY);
    let engine = Engine::new(&opened.model, None, options(&opened.model)).unwrap();
    let KvPlace::HostForDevice(reason) = engine.metrics().unwrap().kv_place else { panic!("it has no memory") };
    assert!(reason.starts_with("the device does not give the 131072 bytes of all pages: "), "{reason}");
    assert_eq!(answers(&engine, &requests), expected);
    // Pages that nobody counted are as many as fit, and no more than rows can need.
    let uncounted = EngineOptions { pages: None, ..options(&opened.model) };
    let pages = |options| Engine::new(&opened.model, None, options).unwrap().metrics().unwrap().pages_total;
    assert_eq!(pages(uncounted.clone()), 3 * opened.model.config().model.context_length / 4);
    assert_eq!(pages(EngineOptions { rows_max: 1 << 16, ..uncounted.clone() }) % (1 << 10), 0);
}

#[test]
fn an_engine_whose_device_is_lost_has_pages_on_the_next_one() {
    let folder = folder_with(&data(LLAMA), FEW_SIZES);
    let (mut rig, mut second) = (cuda(), cuda());
    let opened = open_on(&mut rig, folder.path(), 4);
    let next = Mutex::new(Some(open_on(&mut second, folder.path(), 4).model));
    let reopen = move || next.lock().unwrap().take().ok_or("there is no third device".to_string());
    let model = opened.model.with_reopen(Arc::new(reopen));
    let engine = Engine::new(&model, None, options(&model)).unwrap();
    let requests = [Request::new(vec![5, 6, 7, 8], params(&model, 5))];
    let expected = answers(&engine, &requests);
    rig.fake.inject_after("cuStreamSynchronize", 1, ILLEGAL_ADDRESS);
    let lost: Vec<Event> = engine.submit(requests[0].clone()).unwrap().events().collect();
    assert!(matches!(lost.last(), Some(Event::Failed { is_retryable: true, .. })), "{lost:?}");
    assert_eq!(answers(&engine, &requests), expected);
    assert_eq!(engine.metrics().unwrap().kv_place, KvPlace::Device);
}
