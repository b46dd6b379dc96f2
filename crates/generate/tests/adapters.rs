//! Adapters: tokens are those of onnxruntime with the adapter active, alone and among rows of others; names, types and shapes
//! that do not fit are refused; nobody loses an adapter that is in use.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use precast::generate::adapter::Parameters;
use precast::generate::engine::{Event, Request, RequestHandle, Usage};
use precast::generate::golden::GoldenCase;
use precast::generate::{Engine, EngineOptions, Generator, GeneratorParams, TextModel};
use precast::{Adapter, AdapterError, Adapters, Tensor, load_adapter};
use support::{cases, check, data, model, params, reference_model};

const FOLDER: &str = "llama_lora-fp32";
/// Scores may differ from those of other implementations by this much.
const LOGITS_TOLERANCE: f32 = 1e-4;

fn file(name: &str) -> PathBuf {
    data().join(FOLDER).join(format!("{name}.onnx_adapter"))
}

/// Both adapters of the folder, loaded for a model.
fn adapters(model: &TextModel) -> Adapters {
    let adapters = Adapters::new(model);
    for name in ["first", "second"] {
        load_adapter(&adapters, name, &file(name)).unwrap();
    }
    adapters
}

/// The adapter of a case; none where it has none.
fn adapter_of(adapters: &Adapters, case: &GoldenCase) -> Option<Adapter> {
    case.adapter.as_deref().map(|file| adapters.get(file.strip_suffix(".onnx_adapter").unwrap()).unwrap())
}

fn adapter_cases() -> Vec<GoldenCase> {
    let cases = cases("adapter_cases.json");
    assert_eq!(cases.len(), 9);
    cases
}

/// Tokens that a generator gives behind what it has.
fn next_tokens(generator: &mut Generator, count: usize) -> Vec<u32> {
    (0..count).map(|_| generator.next().unwrap()[0].id).collect()
}

fn greedy(model: &TextModel, max_new_tokens: usize) -> GeneratorParams {
    GeneratorParams::new(model.config().search.clone()).max_new_tokens(max_new_tokens)
}

#[test]
fn golden_tokens_and_scores_are_those_of_onnxruntime_with_the_adapter_active() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    assert_eq!(adapters.names(), ["first", "second"]);
    for case in &adapter_cases() {
        let adapter = adapter_of(&adapters, case);
        let adapted = model.with_adapter(adapter.as_ref()).unwrap();
        check(&adapted, &params(&adapted, case), case, "");
        for chunk in [1, 3, 8] {
            let mut params = params(&adapted, case);
            params.search.chunk_size = Some(chunk);
            check(&adapted, &params, case, &format!("in chunks of {chunk}"));
        }
        let mut generator = Generator::new(&model, params(&model, case)).unwrap();
        generator.set_adapter(adapter.as_ref()).unwrap();
        generator.append(&case.prompts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        for (row, head) in case.first_logits_head.iter().flatten().enumerate() {
            for (found, expected) in generator.logits(row).unwrap().iter().zip(head) {
                assert!((found - expected).abs() <= LOGITS_TOLERANCE, "{}: {found} is not {expected}", case.id);
            }
        }
        assert_eq!(generator.stats().reruns, 0, "{}", case.id);
    }
}

#[test]
fn golden_tokens_of_adapters_are_those_of_the_reference() {
    let model = reference_model(FOLDER);
    let adapters = adapters(&model);
    for case in &adapter_cases() {
        let adapted = model.with_adapter(adapter_of(&adapters, case).as_ref()).unwrap();
        check(&adapted, &params(&adapted, case), case, "by reference");
    }
}

#[test]
fn an_adapter_that_is_set_later_goes_on_with_the_same_tokens_and_reports_what_is_run_again() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    let (first, second) = (adapters.get("first").unwrap(), adapters.get("second").unwrap());
    let prompt = [5, 60, 7, 8, 93];
    let behind = |adapter: Option<&Adapter>, tokens: &[u32], count: usize| {
        let mut generator = Generator::new(&model, greedy(&model, 40)).unwrap();
        generator.set_adapter(adapter).unwrap();
        generator.append(&[tokens]).unwrap();
        next_tokens(&mut generator, count)
    };
    let mut generator = Generator::new(&model, greedy(&model, 40)).unwrap();
    generator.append(&[&prompt]).unwrap();
    let mut tokens = prompt.to_vec();
    for (adapter, reruns) in [(None, 0), (Some(&first), 1), (Some(&second), 2), (None, 3)] {
        generator.set_adapter(adapter).unwrap();
        assert_eq!(generator.adapter().map(Adapter::name), adapter.map(Adapter::name));
        let found = next_tokens(&mut generator, 4);
        assert_eq!(found, behind(adapter, &tokens, 4), "{adapter:?}");
        tokens.extend(found);
        assert_eq!((generator.sequence(0), generator.stats().reruns), (&tokens[..], reruns));
        // The same adapter again changes nothing.
        generator.set_adapter(adapter).unwrap();
        assert_eq!(generator.stats().reruns, reruns);
    }
    generator.set_adapter(Some(&second)).unwrap();
    let fork = generator.fork(0).unwrap();
    generator.rewind(fork, 7).unwrap();
    let found: Vec<u32> = generator.next().unwrap().iter().map(|token| token.id).collect();
    assert_eq!(found, [behind(Some(&second), &tokens, 1), behind(Some(&second), &tokens[..7], 1)].concat());
}

#[test]
fn beams_run_with_an_adapter() {
    let (model, reference) = (model(FOLDER), reference_model(FOLDER));
    let beams = |model: &TextModel| {
        let adapter = adapters(model).get("first").unwrap();
        let adapted = model.with_adapter(Some(&adapter)).unwrap();
        let mut params = greedy(&adapted, 6);
        (params.search.num_beams, params.search.num_return_sequences) = (3, 2);
        let completions =
            precast::generate::generate(&adapted, None, &params, &[&[11, 4, 93]], &mut |_| (), None).unwrap();
        completions.answers.into_iter().map(|answer| answer.tokens).collect::<Vec<_>>()
    };
    assert_eq!(beams(&model), beams(&reference));
}

fn options(model: &TextModel) -> EngineOptions {
    let options = EngineOptions::from_config(model.config(), None);
    EngineOptions { page_tokens: 4, pages: Some(400), rows_max: 16, checks_invariants: true, ..options }
}

/// The tokens of an answer, and what it took.
fn answer(handle: &RequestHandle) -> (Vec<u32>, Usage) {
    let mut tokens = Vec::new();
    for event in handle.events() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { usage, .. } => return (tokens, usage),
            Event::Blocked => {}
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
    panic!("a request ended without saying why");
}

#[test]
fn rows_of_several_adapters_share_steps_and_have_the_tokens_that_they_have_alone() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    let settings = [
        options(&model),
        EngineOptions { prefix_caching: true, ..options(&model) },
        // Few pages, so that rows lose theirs; few tokens a step, so that prompts come in pieces.
        EngineOptions { pages: Some(24), tokens_max: 7, rows_max: 5, prefix_caching: true, ..options(&model) },
    ];
    for (setting, options) in settings.into_iter().enumerate() {
        let engine = Engine::new(&model, None, options).unwrap();
        for round in 0..2 {
            let before = engine.metrics().unwrap().steps;
            let mut open = Vec::new();
            for case in &adapter_cases() {
                for (prompt, expected) in case.prompts.iter().cloned().zip(case.generated.clone()) {
                    let adapter = adapter_of(&adapters, case);
                    let request = Request { adapter, ..Request::new(prompt, params(&model, case)) };
                    open.push((engine.submit(request).unwrap(), expected, case.id.clone()));
                }
            }
            for (handle, expected, id) in &open {
                assert_eq!(&answer(handle).0, expected, "{id}, setting {setting}, round {round}");
            }
            // Alone, fifteen answers of twenty tokens take three hundred steps.
            let steps = engine.metrics().unwrap().steps - before;
            assert!(setting == 2 || steps < 60, "{steps} steps, setting {setting}");
        }
        let metrics = engine.metrics().unwrap();
        assert_eq!(metrics.pages_free + metrics.pages_shared, metrics.pages_total);
        assert_eq!((metrics.preemptions > 0, metrics.prefix_hit_tokens > 0), (setting == 2, setting > 0));
    }
}

#[test]
fn pages_are_shared_by_adapters_of_equal_values_and_by_no_others() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    load_adapter(&adapters, "first again", &file("first")).unwrap();
    let engine = Engine::new(&model, None, EngineOptions { prefix_caching: true, ..options(&model) }).unwrap();
    let prompt: Vec<u32> = (10..30).collect();
    let send = |name: Option<&str>| {
        let adapter = name.map(|name| adapters.get(name).unwrap());
        let request = Request { adapter, ..Request::new(prompt.clone(), greedy(&model, 3)) };
        answer(&engine.submit(request).unwrap()).1.cached_prompt_tokens
    };
    let rounds = [None, Some("first"), Some("second"), None, Some("first"), Some("second"), Some("first again")];
    assert_eq!(rounds.map(send), [0, 0, 0, 16, 16, 16, 16]);
}

#[test]
fn an_adapter_in_use_is_not_unloaded_and_unloading_waits_for_its_users() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    let mut generator = Generator::new(&model, greedy(&model, 8)).unwrap();
    generator.set_adapter(Some(&adapters.get("first").unwrap())).unwrap();
    generator.append(&[&[5, 60, 7]]).unwrap();
    assert_eq!(adapters.try_unload("first"), Err(AdapterError::InUse("first".to_string())));
    assert_eq!(adapters.names(), ["first", "second"]);
    let is_unloaded = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            adapters.unload("first").unwrap();
            is_unloaded.store(true, Ordering::SeqCst);
        });
        while adapters.names().len() > 1 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!is_unloaded.load(Ordering::SeqCst), "the adapter is in use");
        // Who has it goes on; who asks for it now finds none.
        generator.next().unwrap();
        let error = adapters.get("first").unwrap_err().to_string();
        assert_eq!(error, "there is no adapter 'first'; loaded are second");
        generator.set_adapter(None).unwrap();
    });
    assert!(is_unloaded.load(Ordering::SeqCst));
    adapters.try_unload("second").unwrap();
    let error = adapters.unload("second").unwrap_err().to_string();
    assert_eq!(error, "there is no adapter 'second'; none is loaded");
}

#[test]
fn a_name_that_is_loaded_again_has_the_values_of_its_new_file() {
    let model = model(FOLDER);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.onnx_adapter");
    let adapters = Adapters::new(&model);
    let engine = Engine::new(&model, None, EngineOptions { prefix_caching: true, ..options(&model) }).unwrap();
    let greedy_of =
        |name: &str| adapter_cases().into_iter().find(|case| case.id == format!("adapter/{name}-greedy")).unwrap();
    for name in ["first", "second", "first"] {
        std::fs::copy(file(name), &path).unwrap();
        let adapter = load_adapter(&adapters, "mine", &path).unwrap();
        let taken = load_adapter(&adapters, "mine", &path).unwrap_err().to_string();
        assert!(taken.ends_with("there is an adapter 'mine' already; unload it first"), "{taken}");
        // The file that an adapter was read from may change while it is in use.
        std::fs::write(&path, b"something else").unwrap();
        let (case, adapter) = (greedy_of(name), Some(adapter));
        let request = Request { adapter, ..Request::new(case.prompts[0].clone(), params(&model, &case)) };
        assert_eq!(vec![answer(&engine.submit(request).unwrap()).0], case.generated, "{name}");
        adapters.unload("mine").unwrap();
    }
}

/// The parameters of an adapter of the folder, changed.
fn changed(adapters: &Adapters, change: impl FnOnce(&mut Parameters)) -> String {
    let mut parameters = adapters.get("first").unwrap().parameters().clone();
    change(&mut parameters);
    adapters.add("changed", parameters).unwrap_err().to_string()
}

#[test]
fn values_that_do_not_fit_are_refused_with_what_was_expected() {
    let model = model(FOLDER);
    let adapters = adapters(&model);
    let [down, up] = ["A", "B"].map(|half| format!("model.layers.0.attn.q_proj.lora_{half}.weight"));
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(dtype, shape.to_vec()).unwrap();
    let f32s = |shape: &[usize]| zeros(precast::DType::F32, shape);
    let unknown = changed(&adapters, |parameters| {
        parameters.insert("model.layers.0.attn.q_proj.lora_C.weight".to_string(), f32s(&[1]));
    });
    assert!(unknown.starts_with("adapter 'changed': the model has no parameter"), "{unknown}");
    assert!(unknown.contains("Did you mean 'model.layers.0.attn.q_proj.lora_A.weight'?"), "{unknown}");
    // A weight of the model is no input, so nothing may replace it.
    let weight = changed(&adapters, |parameters| {
        parameters.insert("lm_head.MatMul.weight".to_string(), f32s(&[32, 96]));
    });
    assert!(weight.contains("no parameter 'lm_head.MatMul.weight' that may be replaced"), "{weight}");
    let both = changed(&adapters, |parameters| {
        parameters.insert(down.clone(), zeros(precast::DType::F16, &[32, 4]));
        parameters.insert(up.clone(), f32s(&[4, 63]));
    });
    let expected = format!(
        "adapter 'changed': parameter '{down}' is f16[32,4]; f32[32,lora_r] was expected; parameter '{up}' is f32[4,63]; \
         f32[lora_r,64] was expected"
    );
    assert_eq!(both, expected);
    let fixed = changed(&adapters, |parameters| {
        parameters.insert("model.layers.1.attn.o_proj.lora_A.weight".to_string(), f32s(&[64, 3]));
    });
    assert!(fixed.contains("is f32[64,3]; f32[64,2] was expected"), "{fixed}");
    // Each fits by itself, and together they do not.
    let ranks = changed(&adapters, |parameters| {
        parameters.insert(down.clone(), f32s(&[32, 5]));
    });
    assert!(ranks.starts_with("adapter 'changed': ") && ranks.contains("q_proj"), "{ranks}");
    assert_eq!(changed(&adapters, Parameters::clear), "adapter 'changed': it has no parameters");
    assert_eq!(adapters.names(), ["first", "second"]);
}

#[test]
fn models_without_parameters_of_that_kind_and_engines_of_others_refuse_adapters() {
    let (model, other) = (model(FOLDER), model("llama-fp32"));
    let adapter = adapters(&model).get("first").unwrap();
    let error = other.with_adapter(Some(&adapter)).err().unwrap().to_string();
    assert!(error.contains("that may be replaced; there are none"), "{error}");
    let engine = Engine::new(&other, None, options(&other)).unwrap();
    let request = Request { adapter: Some(adapter), ..Request::new(vec![5, 6], greedy(&other, 2)) };
    let error = engine.submit(request).err().unwrap().to_string();
    assert_eq!(error, "adapter 'first' was loaded for another model than the engine's");
}

/// The error of loading these bytes as an adapter file; none if they were loaded.
fn load_error(adapters: &Adapters, path: &Path, bytes: &[u8]) -> Option<String> {
    std::fs::write(path, bytes).unwrap();
    load_adapter(adapters, "hostile", path).err().map(|error| error.to_string())
}

#[test]
fn hostile_files_are_errors_that_name_the_file() {
    let model = model(FOLDER);
    let adapters = Adapters::new(&model);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.onnx_adapter");
    let bytes = std::fs::read(file("first")).unwrap();
    for length in (0..bytes.len() - 8).step_by(7) {
        let error = load_error(&adapters, &path, &bytes[..length]).unwrap();
        assert!(error.contains("hostile.onnx_adapter") && error.contains("not a valid adapter file"), "{error}");
    }
    let mut kinds: BTreeMap<bool, usize> = BTreeMap::new();
    for place in (0..400).chain((400..bytes.len()).step_by(61)) {
        let mut wrong = bytes.clone();
        wrong[place] ^= 0x41;
        let error = load_error(&adapters, &path, &wrong);
        *kinds.entry(error.is_some()).or_default() += 1;
        if error.is_none() {
            adapters.unload("hostile").unwrap();
        }
    }
    assert!(kinds[&true] > 20, "{kinds:?}");
    let missing = load_adapter(&adapters, "x", &folder.path().join("none")).err().unwrap().to_string();
    assert!(missing.starts_with("cannot open '") && missing.contains("none"), "{missing}");
    let folder = load_adapter(&adapters, "x", folder.path()).err().unwrap().to_string();
    assert!(folder.contains("expected a regular file"), "{folder}");
}
