//! The engine on the shipped models: tokens are those of a generator, whatever the neighbours, pages and settings.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use precast::generate::config::{Folder, SpeculativeConfig};
use precast::generate::engine::{EngineError, Event, Guidance, Request, RequestHandle, complete};
use precast::generate::golden::GoldenCase;
use precast::generate::{
    Engine, EngineOptions, FinishReason, Generator, GeneratorParams, LogprobsMode, RowSeed, TextModel, Tokenizer,
    generate,
};
use precast::{TextOptions, open_text_model};
use serde_json::Value;
use support::{data, model, model_with, name, overlay, params, prompt_cases};

/// Models that an engine may cut and batch.
const MODELS: [&str; 7] =
    ["llama-fp32", "llama_mha-fp32", "qwen2-fp32", "qwen3-fp32", "phi3-fp32", "gemma2-fp32", "llama-int4-acc1"];

fn options(model: &TextModel) -> EngineOptions {
    let options = EngineOptions::from_config(model.config(), None);
    EngineOptions { page_tokens: 4, pages: Some(400), rows_max: 6, checks_invariants: true, ..options }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&Folder::open(&data().join("llama-fp32")).unwrap()).unwrap()
}

fn engine(model: &TextModel, options: EngineOptions) -> Engine {
    Engine::new(model, None, options).unwrap()
}

/// The tokens of an answer, and why it ended.
fn answer(handle: &RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    for event in handle.events() {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished { reason, .. } => return (tokens, reason),
            Event::Blocked => {}
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
    panic!("a request ended without saying why");
}

fn text(handle: &RequestHandle) -> (String, FinishReason) {
    let mut text = String::new();
    for event in handle.events() {
        match event {
            Event::Token(token) => text.push_str(&token.text),
            Event::Finished { reason, .. } => return (text, reason),
            Event::Blocked => {}
            Event::Failed { message, .. } => panic!("{message}"),
        }
    }
    panic!("a request ended without saying why");
}

/// What a generator says to a prompt that is alone.
fn alone(model: &TextModel, params: &GeneratorParams, prompt: &[u32]) -> Vec<u32> {
    let completions = generate(model, None, params, &[prompt], &mut |_| (), None).unwrap();
    completions.answers[0].tokens.clone()
}

/// Tokens of an answer as a generator keeps them: without the one that ended it.
fn kept(model: &TextModel, (mut tokens, reason): (Vec<u32>, FinishReason)) -> Vec<u32> {
    if reason == FinishReason::Eos {
        assert!(model.config().model.eos_token_ids.contains(&tokens.pop().unwrap()));
    }
    tokens
}

fn lookup(ngram_size: usize) -> SpeculativeConfig {
    SpeculativeConfig {
        max_draft_tokens: 3,
        ngram_size,
        ngram_chained_lookup: true,
        min_adaptive_k: 0,
        cooldown: false,
    }
}

#[test]
fn golden_tokens_come_from_the_engine_with_one_request_and_with_all_at_once() {
    let mut by_model: BTreeMap<String, Vec<GoldenCase>> = BTreeMap::new();
    for case in prompt_cases() {
        by_model.entry(name(&case).to_string()).or_default().push(case);
    }
    let mut compared = 0;
    for (name, cases) in by_model {
        let model = model(&name);
        let cases: Vec<&GoldenCase> = cases.iter().filter(|case| params(&model, case).search.num_beams == 1).collect();
        let engine = engine(&model, EngineOptions { speculation: lookup(2), prefix_caching: true, ..options(&model) });
        let send = |case: &GoldenCase, row: usize| {
            let mut params = params(&model, case);
            params.search.batch_size = 1;
            engine.submit(Request::new(case.prompts[row].clone(), params)).unwrap()
        };
        let all: Vec<(RequestHandle, Vec<u32>, &String)> = cases
            .iter()
            .flat_map(|case| {
                let expected = case.generated.iter().enumerate();
                expected.map(|(row, expected)| (send(case, row), expected.clone(), &case.id)).collect::<Vec<_>>()
            })
            .collect();
        for (handle, expected, id) in &all {
            assert_eq!(&kept(&model, answer(handle)), expected, "{id} among {} others", all.len() - 1);
            compared += 1;
        }
        for case in cases.iter().take(3) {
            assert_eq!(kept(&model, answer(&send(case, 0))), case.generated[0], "{} by itself", case.id);
        }
        let metrics = engine.metrics().unwrap();
        assert_eq!(metrics.pages_free + metrics.pages_shared, metrics.pages_total, "{name}");
    }
    assert!(compared > 30, "{compared} answers were compared");
}

/// Options of a request by number: greedy, drawn, penalised, biased.
fn varied(model: &TextModel, number: u64) -> GeneratorParams {
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(6 + number as usize % 9);
    match number % 5 {
        0 => {}
        1 => params = params.temperature(0.9).top_k(0).seed(number),
        2 => (params.search.repetition_penalty, params.frequency_penalty) = (1.3, 0.2),
        3 => (params.search.no_repeat_ngram_size, params.min_p) = (2, 0.1),
        _ => params.logit_bias = [(5, 3.0), (9, -50.0)].into(),
    }
    params
}

fn prompt(number: u64) -> Vec<u32> {
    // Few beginnings, so that pages are shared; many lengths.
    let beginning = (0..8 * (number % 3)).map(|token| 20 + (number % 2) as u32 + token as u32);
    beginning.chain((0..1 + number % 17).map(|token| 5 + ((token * 7 + number) % 200) as u32)).collect()
}

#[test]
fn defect_30_every_setting_gives_the_tokens_of_a_request_that_is_alone() {
    for name in MODELS {
        let model = model(name);
        let expected: Vec<Vec<u32>> =
            (0..12).map(|number| alone(&model, &varied(&model, number), &prompt(number))).collect();
        let settings = [
            options(&model),
            EngineOptions { prefix_caching: true, speculation: lookup(3), ..options(&model) },
            // Few pages, so that rows lose theirs; few tokens a step, so that prompts come in pieces.
            EngineOptions {
                pages: Some(14),
                tokens_max: 7,
                rows_max: 3,
                speculation: lookup(2),
                prefix_caching: name == "gemma2-fp32",
                ..options(&model)
            },
            EngineOptions { rows_max: 1, page_tokens: 1, pages: Some(64), ..options(&model) },
        ];
        for (setting, options) in settings.into_iter().enumerate() {
            let engine = engine(&model, options);
            // Twice, so that the second finds what the first left behind.
            for _ in 0..2 {
                let send = |number| engine.submit(Request::new(prompt(number), varied(&model, number))).unwrap();
                let handles: Vec<RequestHandle> = (0..12).map(send).collect();
                for (number, handle) in handles.iter().enumerate() {
                    let found = kept(&model, answer(handle));
                    assert_eq!(found, expected[number], "{name}, setting {setting}, request {number}");
                }
            }
            let metrics = engine.metrics().unwrap();
            assert_eq!(metrics.pages_free + metrics.pages_shared, metrics.pages_total);
            assert_eq!(metrics.preemptions > 0, setting >= 2, "{name}, setting {setting}");
            assert_eq!(metrics.prefix_hit_tokens > 0, setting == 1 || (setting == 2 && name == "gemma2-fp32"));
        }
    }
}

#[test]
fn rows_that_threads_divide_have_the_tokens_of_a_request_that_is_alone() {
    let model = model("llama-int4-acc1");
    let expected: Vec<Vec<u32>> =
        (0..40).map(|number| alone(&model, &varied(&model, number), &prompt(number))).collect();
    for rows_max in [27, 64] {
        let engine = engine(&model, EngineOptions { rows_max, ..options(&model) });
        let send = |number| engine.submit(Request::new(prompt(number), varied(&model, number))).unwrap();
        let handles: Vec<RequestHandle> = (0..40).map(send).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(kept(&model, answer(handle)), expected[number], "request {number} of {rows_max} rows");
        }
    }
}

#[test]
fn one_long_row_does_not_make_the_copies_of_short_ones_long() {
    let model = model_with("llama-fp32", r#"{"kv_capacity_buckets":[16,32,64,128,256,512]}"#);
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let engine = engine(&model, options(&model));
    let requests = [(vec![7; 300], 40), (vec![5; 3], 12), (vec![6; 4], 20), (vec![8; 5], 70), (vec![9; 6], 25)];
    let send = |(prompt, count): &(Vec<u32>, usize)| {
        engine.submit(Request::new(prompt.clone(), params.clone().max_new_tokens(*count))).unwrap()
    };
    let handles: Vec<RequestHandle> = requests.iter().map(send).collect();
    for ((prompt, count), handle) in requests.iter().zip(&handles) {
        assert_eq!(answer(handle).0, alone(&model, &params.clone().max_new_tokens(*count), prompt));
    }
    let (token, bytes) = (model.kv_bytes_per_token(), engine.metrics().unwrap().kv_bytes);
    let tokens: usize = requests.iter().map(|(prompt, count)| prompt.len() + count + 4).sum();
    // Pages, and copies: of the long row by itself at each capacity it had, and of the short ones.
    assert!(bytes <= token * (tokens + 512 + 128 + 4 * 128 + 4 * 32), "{bytes} bytes, {token} for a token");
}

#[test]
fn programs_are_there_before_steps_need_them() {
    let tuning = r#"{"kv_capacity_buckets":[32,64,512],"length_buckets":[8,16],"row_buckets":[1,2]}"#;
    let opened = model_with("llama-fp32", tuning);
    let programs = || opened.session().loaded().len();
    let wait_for = |count: usize| {
        let is_there = |_: &u32| {
            std::thread::sleep(Duration::from_millis(10));
            programs() >= count
        };
        assert!((0..1000).find(is_there).is_some(), "{} of {count} Programs", programs());
    };
    let options = EngineOptions { rows_max: 2, prepares_programs: true, ..options(&opened) };
    let engine = engine(&opened, options);
    // One and two rows that decode, prompts of both lengths.
    wait_for(4);
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(opened.config().search.clone()) };
    let ask = |count| answer(&engine.submit(Request::new(vec![5; 9], params.clone().max_new_tokens(count))).unwrap());
    ask(8);
    assert_eq!(programs(), 4, "a step needed nothing else");
    ask(18);
    // The row came near the end of its capacity, and not beyond it.
    wait_for(5);
    ask(40);
    wait_for(6);
}

#[test]
fn requests_of_different_salts_share_no_pages() {
    let model = model("llama-fp32");
    let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(4);
    let engine = engine(&model, EngineOptions { prefix_caching: true, ..options(&model) });
    let cached = |salt: Option<&str>| {
        let cache_salt = salt.map(str::to_string);
        let handle = engine.submit(Request { cache_salt, ..Request::new(vec![7; 30], params.clone()) }).unwrap();
        let mut found = None;
        let mut tokens = Vec::new();
        for event in handle.events() {
            match event {
                Event::Token(token) => tokens.push(token.id),
                Event::Finished { usage, .. } => found = Some(usage.cached_prompt_tokens),
                Event::Blocked | Event::Failed { .. } => panic!("{event:?}"),
            }
        }
        assert!(tokens.starts_with(&alone(&model, &params, &[7; 30])));
        found.unwrap()
    };
    assert_eq!([cached(None), cached(Some("a")), cached(Some("b"))], [0, 0, 0]);
    assert_eq!([cached(None), cached(Some("a")), cached(Some("b"))], [28, 28, 28]);
}

#[test]
fn stop_strings_end_answers_as_they_end_those_of_a_generator() {
    let (model, tokenizer) = (model("llama-fp32"), tokenizer());
    let plain = GeneratorParams::new(model.config().search.clone()).max_new_tokens(40);
    let plain = GeneratorParams { ignore_eos: true, ..plain };
    let engine = Engine::new(&model, Some(&tokenizer), EngineOptions { speculation: lookup(2), ..options(&model) });
    let engine = engine.unwrap();
    let mut stopped = 0;
    for number in 0..10 {
        let prompt = prompt(number);
        let said = generate(&model, Some(&tokenizer), &plain, &[&prompt], &mut |_| (), None).unwrap();
        let said = said.answers[0].text.clone().unwrap();
        // Some characters from the middle of what it says, and something that it does not say.
        let middle: String = said.chars().skip(said.chars().count() / 2).take(3).collect();
        let params = GeneratorParams { stop: vec!["never said".to_string(), middle.clone()], ..plain.clone() };
        let expected = generate(&model, Some(&tokenizer), &params, &[&prompt], &mut |_| (), None).unwrap();
        let expected = &expected.answers[0];
        let handle = engine.submit(Request::new(prompt, params)).unwrap();
        let (text, reason) = text(&handle);
        assert_eq!((Some(&text), reason), (expected.text.as_ref(), expected.finish), "request {number}");
        assert!(!text.contains(&middle));
        stopped += usize::from(reason == FinishReason::StopString(1));
    }
    assert_eq!(stopped, 10);
}

#[test]
fn answers_of_one_prompt_share_its_pages_and_differ() {
    let model = model("llama-fp32");
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(8).temperature(1.5).seed(3);
    (params.search.top_k, params.search.num_return_sequences) = (0, 3);
    let expected = generate(&model, None, &params, &[&[5; 21]], &mut |_| (), None).unwrap().answers;
    let engine = engine(&model, options(&model));
    let handle = engine.submit(Request::new(vec![5; 21], params)).unwrap();
    let mut answers = vec![Vec::new(); 3];
    let mut cached = Vec::new();
    for event in handle.events() {
        match event {
            Event::Token(token) => answers[token.answer].push(token.id),
            Event::Finished { usage, .. } => cached.push(usage.cached_prompt_tokens),
            Event::Blocked | Event::Failed { .. } => panic!("{event:?}"),
        }
    }
    cached.sort_unstable();
    assert_eq!(cached, [0, 20, 20]);
    for (number, answer) in answers.iter().enumerate() {
        assert!(answer.starts_with(&expected[number].tokens), "answer {number}");
    }
    assert_eq!(engine.metrics().unwrap().pages_free, 400);
}

#[test]
fn a_turn_goes_on_where_it_ended_and_can_be_taken_back() {
    let model = model("qwen3-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let params = params.max_new_tokens(5);
    let engine = engine(&model, EngineOptions { pages: Some(16), ..options(&model) });
    let request = Request { keeps_turn: true, ..Request::new(vec![5, 6, 7], params.clone()) };
    let handle = engine.submit(request).unwrap();
    let first = answer(&handle).0;
    assert_eq!(first, alone(&model, &params, &[5, 6, 7]));
    let go_on = |tokens: &[u32]| {
        handle.continue_with(tokens).unwrap();
        answer(&handle).0
    };
    let conversation = [&[5, 6, 7], &first[..], &[8, 9]].concat();
    let second = go_on(&[8, 9]);
    assert_eq!(second, alone(&model, &params, &conversation));
    handle.rewind_turn().unwrap();
    assert_eq!(go_on(&[8, 9]), second);
    // Others need the pages of the turn that waits; it goes on all the same.
    let other = engine.submit(Request::new(vec![9; 50], params.clone())).unwrap();
    assert_eq!(answer(&other).0, alone(&model, &params, &[9; 50]));
    let conversation = [&conversation[..], &second, &[3]].concat();
    assert_eq!(go_on(&[3]), alone(&model, &params, &conversation));
    assert!(handle.continue_with(&[]).is_err());
    let unknown = handle.continue_with(&[5, 320]).unwrap_err().to_string();
    assert_eq!(unknown, "token 1 of row 0 is 320; the vocabulary has 320");
    drop(handle);
    while engine.metrics().unwrap().parked > 0 {}
    assert_eq!(engine.metrics().unwrap().pages_free, 16);
}

#[test]
fn rows_behind_a_window_keep_the_pages_of_their_last_tokens() {
    for name in ["gemma2-fp32", "smollm3_local-fp32"] {
        let model = model(name);
        assert!(model.layers().iter().any(|layer| layer.window.is_some()), "{name}");
        let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
        let params = params.max_new_tokens(25);
        let prompt: Vec<u32> = (0..33).map(|position| 3 + 7 * position % 90).collect();
        for prefix_caching in [false, true] {
            // Every step is followed by a check of all pages.
            let engine = engine(&model, EngineOptions { prefix_caching, ..options(&model) });
            let request = Request { keeps_turn: true, ..Request::new(prompt.clone(), params.clone()) };
            let handle = engine.submit(request).unwrap();
            let first = answer(&handle).0;
            assert_eq!(first, alone(&model, &params, &prompt), "{name}");
            let go_on = |tokens: &[u32]| {
                handle.continue_with(tokens).unwrap();
                answer(&handle).0
            };
            let second = go_on(&[8, 9]);
            assert_eq!(second, alone(&model, &params, &[&prompt[..], &first, &[8, 9]].concat()), "{name}");
            // What the end of the turn before sees was let go of, or is an entry of the prefix cache.
            handle.rewind_turn().unwrap();
            assert_eq!(go_on(&[8, 9]), second, "{name}");
            let other = engine.submit(Request::new(prompt.clone(), params.clone())).unwrap();
            assert_eq!(answer(&other).0, first, "{name}");
            assert_eq!(engine.metrics().unwrap().prefix_hit_tokens > 0, prefix_caching, "{name}");
        }
    }
}

#[test]
fn what_can_never_be_answered_is_refused_when_it_is_sent() {
    let model = model("llama-fp32");
    let engine = Engine::new(&model, Some(&tokenizer()), EngineOptions { pages: Some(4), ..options(&model) }).unwrap();
    let plain = || GeneratorParams::new(model.config().search.clone());
    let refused = |request: Request| engine.submit(request).err().unwrap().to_string();
    assert_eq!(refused(Request::new(vec![], plain())), "the prompt has no tokens");
    assert_eq!(refused(Request::new(vec![5; 16], plain())), "the prompt has 16 tokens; all pages together hold 16");
    assert!(refused(Request::new(vec![320], plain())).contains("the vocabulary has 320"));
    let mut beams = plain();
    beams.search.num_beams = 2;
    assert_eq!(refused(Request::new(vec![5], beams)), "beams do not run in an engine; use `generate`");
    for (guidance, part) in [
        (Guidance::Regex("(".to_string()), "regular expression: "),
        (Guidance::JsonSchema("{".to_string()), "JSON schema: "),
        (Guidance::JsonSchema(r#"{"type":"frog"}"#.to_string()), "JSON schema: "),
        (Guidance::Lark("start: nothing".to_string()), "Lark grammar: "),
    ] {
        let message = refused(Request { guidance: Some(guidance), ..Request::new(vec![5], plain()) });
        assert!(message.starts_with(part), "{message}");
    }
    let options = EngineOptions { rows_max: 0, ..options(&model) };
    assert!(Engine::new(&model, None, options).is_err());
    // A row that fills all pages ends there.
    let handle = engine.submit(Request::new(vec![5; 3], GeneratorParams { ignore_eos: true, ..plain() })).unwrap();
    let (tokens, reason) = answer(&handle);
    assert_eq!((tokens.len(), reason), (13, FinishReason::MaxLength));
}

#[test]
fn guided_answers_follow_their_grammar_and_do_not_depend_on_speculation() {
    let schema = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":4},"count":{"type":"integer",
        "minimum":0,"maximum":99},"tags":{"type":"array","items":{"enum":["a","bc"]},"maxItems":2}},
        "required":["name","count","tags"],"additionalProperties":false}"#;
    let lark = "start: greeting \" \" name\ngreeting: \"hello\" | \"bye\"\nname: /[a-z]{2,3}/";
    let grammars = [
        Guidance::JsonSchema(schema.to_string()),
        Guidance::Regex("[0-9]{3}-[a-f]{2}(yes|no)".to_string()),
        Guidance::Lark(lark.to_string()),
    ];
    let is_valid = |guidance: &Guidance, text: &str| match guidance {
        Guidance::JsonSchema(_) => {
            let value: Value = serde_json::from_str(text).unwrap();
            let tags = value["tags"].as_array().unwrap();
            value["name"].as_str().unwrap().chars().count() <= 4
                && value["count"].as_u64().unwrap() <= 99
                && tags.len() <= 2
                && tags.iter().all(|tag| ["a", "bc"].contains(&tag.as_str().unwrap()))
                && value.as_object().unwrap().len() == 3
        }
        Guidance::Regex(_) => {
            let (digits, rest) = text.split_at(3);
            let letters = rest.strip_prefix('-').unwrap();
            digits.bytes().all(|byte| byte.is_ascii_digit())
                && letters[..2].bytes().all(|byte| (b'a'..=b'f').contains(&byte))
                && ["yes", "no"].contains(&&letters[2..])
        }
        Guidance::Lark(_) => {
            let (greeting, name) = text.split_once(' ').unwrap();
            let is_name = (2..=3).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase());
            ["hello", "bye"].contains(&greeting) && is_name
        }
    };
    let tokenizer = tokenizer();
    for name in ["llama-fp32", "qwen2-fp32"] {
        let model = model(name);
        let mut texts: Vec<Vec<String>> = Vec::new();
        let settings = [
            options(&model),
            EngineOptions { speculation: lookup(2), ..options(&model) },
            EngineOptions { pages: Some(60), rows_max: 3, tokens_max: 6, ..options(&model) },
        ];
        for options in settings {
            let engine = Engine::new(&model, Some(&tokenizer), options).unwrap();
            let mut handles = Vec::new();
            for number in 0..4u64 {
                for guidance in &grammars {
                    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(160);
                    if number % 2 == 1 {
                        params = params.temperature(1.0).seed(number);
                    }
                    // Scores would be read, so no token is taken unseen.
                    params.logprobs = (number > 1).then_some(0);
                    let request = Request { guidance: Some(guidance.clone()), ..Request::new(prompt(number), params) };
                    handles.push((guidance, engine.submit(request).unwrap()));
                }
            }
            let read = |(guidance, handle): &(&Guidance, RequestHandle)| {
                let (text, reason) = text(handle);
                if matches!(reason, FinishReason::GrammarEnd | FinishReason::Eos) {
                    assert!(is_valid(guidance, &text), "{name}: {text}");
                } else {
                    assert_eq!(reason, FinishReason::MaxNewTokens);
                }
                text
            };
            texts.push(handles.iter().map(read).collect());
        }
        assert_eq!(texts[0], texts[1], "{name}");
        assert_eq!(texts[0], texts[2], "{name}");
    }
}

#[test]
fn a_guided_answer_that_ignores_ends_goes_on_as_long_as_its_grammar_does() {
    let overlays = vec![overlay(r#"{"model":{"eos_token_id":[1,2]}}"#)];
    let options = TextOptions { overlays, ..TextOptions::default() };
    let model = open_text_model(&data().join("llama-fp32"), &options).unwrap().model;
    let engine = Engine::new(&model, Some(&tokenizer()), self::options(&model)).unwrap();
    for favourite in [1, 2] {
        let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(40);
        (params.ignore_eos, params.logit_bias) = (true, [(favourite, 100.0)].into());
        let guidance = Some(Guidance::Regex("[xyz]{0,6}".to_string()));
        let request = Request { guidance, ..Request::new(vec![5, 6, 7], params.clone()) };
        let (said, reason) = text(&engine.submit(request.clone()).unwrap());
        assert_eq!((said.len(), reason), (6, FinishReason::GrammarEnd), "{said}");
        let ends = Request { params: GeneratorParams { ignore_eos: false, ..params }, ..request };
        assert_eq!(text(&engine.submit(ends).unwrap()), (String::new(), FinishReason::Eos));
    }
}

#[test]
fn tokens_that_must_follow_come_in_pieces_and_are_those_of_scores() {
    let model = model("llama-fp32");
    let forced = "~^".repeat(90);
    let chunk = 8;
    let options = EngineOptions { events_max: 16, prefill_max: Some(chunk), ..options(&model) };
    let engine = Engine::new(&model, Some(&tokenizer()), options).unwrap();
    let send = |logprobs| {
        let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(400);
        params.logprobs = logprobs;
        let guidance = Some(Guidance::Regex(format!("{}[ab]", forced.replace('^', r"\^"))));
        engine.submit(Request { guidance, ..Request::new(vec![5, 6, 7], params) }).unwrap()
    };
    let quick = send(None);
    // Nobody reads: what is told stays within what a client may have waiting and one step's tokens.
    std::thread::sleep(Duration::from_millis(300));
    let metrics = engine.metrics().unwrap();
    assert!(metrics.generated_tokens <= 16 + chunk + 1, "{metrics:?}");
    let steps = metrics.steps;
    let said = text(&quick);
    assert_eq!((&said.0[..forced.len()], said.1), (&forced[..], FinishReason::GrammarEnd));
    let quick_steps = engine.metrics().unwrap().steps - steps;
    // Scores would be read, so no token is taken unseen; the text is the same.
    let slow = send(Some(0));
    assert_eq!(text(&slow), said);
    let slow_steps = engine.metrics().unwrap().steps - steps - quick_steps;
    assert!(quick_steps * 4 < slow_steps, "{quick_steps} steps with tokens taken unseen, {slow_steps} without");
}

/// Requests of every kind: greedy and drawn, with penalties, a ban of repeats, a bias, and grammars.
fn drafted_requests(model: &TextModel) -> Vec<Request> {
    let guided = |number: u64, guidance: Guidance| {
        let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(60);
        let params = if number % 2 == 1 { params.temperature(0.8).seed(number) } else { params };
        Request { guidance: Some(guidance), ..Request::new(prompt(number), params) }
    };
    let plain = (0..15).map(|number| {
        let mut params = varied(model, number).max_new_tokens(12 + number as usize);
        params.ignore_eos = number % 4 == 0;
        Request::new(prompt(number), params)
    });
    let grammars = (0..4).map(|number| match number < 2 {
        true => guided(number, Guidance::Regex("[0-9]{3}-[a-f]{2}(yes|no)".to_string())),
        false => guided(number, Guidance::Lark("start: /[a-z]{4,9}/ \" \" /[xyz]{3}/".to_string())),
    });
    let long = Request::new(vec![9; 150], varied(model, 1).max_new_tokens(20));
    plain.chain(grammars).chain([long]).collect()
}

#[test]
fn a_draft_model_changes_no_token_of_any_request() {
    let speculation = SpeculativeConfig { ngram_size: 0, max_draft_tokens: 4, ..lookup(0) };
    let tokenizer = tokenizer();
    for draft in ["llama-fp32", "qwen2-fp32", "llama_mha-fp32"] {
        let plain = model("llama-fp32");
        let drafted = plain.clone().with_draft(model(draft)).unwrap();
        let requests = drafted_requests(&plain);
        let answers = |model: &TextModel, options: EngineOptions, is_alone: bool| {
            let engine = Engine::new(model, Some(&tokenizer), options).unwrap();
            let send = |request: &Request| engine.submit(request.clone()).unwrap();
            let answers: Vec<(Vec<u32>, FinishReason)> = match is_alone {
                true => requests.iter().map(|request| answer(&send(request))).collect(),
                false => {
                    let handles: Vec<RequestHandle> = requests.iter().map(send).collect();
                    handles.iter().map(answer).collect()
                }
            };
            (answers, engine.metrics().unwrap().speculation)
        };
        let (expected, none) = answers(&plain, options(&plain), true);
        assert_eq!(none.rounds, 0);
        let own = EngineOptions { speculation: speculation.clone(), proposes_always: true, ..options(&plain) };
        let few_pages = EngineOptions { pages: Some(60), tokens_max: 9, rows_max: 3, ..own.clone() };
        let adaptive = SpeculativeConfig { min_adaptive_k: 2, cooldown: true, ..lookup(3) };
        let with_lookups = EngineOptions { speculation: adaptive, prefix_caching: true, ..own.clone() };
        for (options, is_alone) in [(own.clone(), true), (own, false), (few_pages, false), (with_lookups, false)] {
            let (found, stats) = answers(&drafted, options, is_alone);
            for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "request {number}, draft {draft}, alone: {is_alone}");
            }
            assert!(stats.rounds > 50 && stats.proposed >= stats.accepted, "{stats:?}");
            if draft == "llama-fp32" && is_alone {
                assert_eq!((stats.corrections, stats.lookup_hits), (0, 0), "{stats:?}");
            }
        }
    }
}

#[test]
fn a_draft_model_that_is_the_model_itself_is_nearly_always_right() {
    let plain = model("qwen3-fp32");
    let drafted = plain.clone().with_draft(plain.clone()).unwrap();
    let speculation = SpeculativeConfig { max_draft_tokens: 4, ..lookup(0) };
    let engine = engine(&drafted, EngineOptions { speculation, proposes_always: true, ..options(&plain) });
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(plain.config().search.clone()) };
    let params = params.max_new_tokens(100).temperature(1.0).seed(5);
    let handle = engine.submit(Request::new(vec![5, 6, 7], params.clone())).unwrap();
    assert_eq!(answer(&handle).0, alone(&plain, &params, &[5, 6, 7]));
    let stats = engine.metrics().unwrap().speculation;
    assert_eq!((stats.rounds, stats.corrections, stats.accepted), (20, 0, 79), "{stats:?}");
}

#[test]
fn a_draft_model_must_have_the_same_vocabulary() {
    let refused = model("llama-fp32").with_draft(model("gpt2_like-fp32")).err().unwrap();
    assert!(refused.contains("320, as the decoder, were expected"), "{refused}");
}

#[test]
fn a_folder_may_name_a_draft_model() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str, to: &std::path::Path| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(data().join(name)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    };
    copy("llama-fp32", folder.path());
    copy("llama_mha-fp32", &folder.path().join("draft"));
    let text = std::fs::read_to_string(folder.path().join("draft/genai_config.json")).unwrap();
    let mut decoder: Value = serde_json::from_str::<Value>(&text).unwrap()["model"]["decoder"].take();
    decoder["filename"] = "draft/model.onnx".into();
    let overlays = vec![overlay(&serde_json::json!({"model": {"draft": decoder}}).to_string())];
    let opened = open_text_model(folder.path(), &TextOptions { overlays, ..TextOptions::default() }).unwrap();
    let options = EngineOptions { rows_max: 2, ..opened.engine_options() };
    let engine = opened.engine(options).unwrap();
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(opened.model.config().search.clone()) };
    let params = params.max_new_tokens(20);
    let handle = engine.submit(Request::new(vec![5, 6, 7], params.clone())).unwrap();
    assert_eq!(answer(&handle).0, alone(&opened.model, &params, &[5, 6, 7]));
    assert!(engine.metrics().unwrap().speculation.rounds > 0);
}

#[test]
fn log_probabilities_are_those_of_a_distribution() {
    let model = model("phi3-fp32");
    let engine = engine(&model, EngineOptions { speculation: lookup(2), ..options(&model) });
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(12);
    (params.logprobs, params.ignore_eos) = (Some(20), true);
    let handle = engine.submit(Request::new(vec![5, 6, 7, 5, 6], params)).unwrap();
    let mut seen = 0;
    for event in handle.events() {
        let Event::Token(token) = event else { continue };
        let (logprob, top) = token.logprobs.unwrap();
        // The likeliest is what a greedy search takes; the rest falls and is part of a whole.
        assert_eq!((top[0].0, top[0].1, top.len()), (token.id, logprob, 20));
        assert!(top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let sum: f64 = top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!(sum > 0.0 && sum <= 1.0 + 1e-9, "{sum}");
        seen += 1;
    }
    assert_eq!(seen, 12);
}

#[test]
fn processed_log_probabilities_are_those_of_what_may_be_drawn() {
    let model = model("phi3-fp32");
    let engine = engine(&model, options(&model));
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(12);
    params = params.temperature(0.7).top_k(3).seed(5);
    (params.logprobs, params.logprobs_mode, params.ignore_eos) = (Some(20), LogprobsMode::Processed, true);
    let prompt: &[u32] = &[5, 6, 7, 5, 6];
    let handle = engine.submit(Request::new(prompt.to_vec(), params.clone())).unwrap();
    let mut told = Vec::new();
    for event in handle.events() {
        let Event::Token(token) = event else { continue };
        let (logprob, top) = token.logprobs.unwrap();
        // All three that may be drawn, which share what there is, and the drawn one among them.
        assert!(top.len() == 3 && top.contains(&(token.id, logprob)), "{top:?}");
        assert!((top.iter().map(|(_, logprob)| logprob.exp()).sum::<f64>() - 1.0).abs() < 1e-9, "{top:?}");
        told.push((token.id, logprob));
    }
    assert_eq!(told.len(), 12);
    let mut generator = Generator::new(&model, params).unwrap();
    generator.append(&[prompt]).unwrap();
    for (id, logprob) in told {
        let token = generator.next().unwrap().remove(0);
        assert_eq!(token.id, id);
        assert!((token.logprobs.unwrap().0 - logprob).abs() < 1e-4);
    }
}

#[test]
fn a_step_of_an_engine_takes_a_larger_program_that_is_there() {
    let on_miss = Some("pad-to-larger,wait".parse().unwrap());
    let options_of_model = TextOptions { on_miss, ..TextOptions::default() };
    let model = open_text_model(&data().join("llama-fp32"), &options_of_model).unwrap().model;
    let shapes = Arc::new(Mutex::new(Vec::new()));
    let seen = shapes.clone();
    let model = model.watched(Arc::new(move |plan, _, _| {
        seen.lock().unwrap().push((plan.rows.len(), plan.shape.rows, plan.shape.length));
    }));
    let engine = engine(&model, options(&model));
    let mut params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(4);
    params.ignore_eos = true;
    let first: [&[u32]; 3] = [&[9; 12], &[8; 12], &[7; 12]];
    complete(&engine, &params, None, &first, &mut |_| ()).unwrap();
    shapes.lock().unwrap().clear();
    let second: [&[u32]; 2] = [&[5, 6, 7, 8], &[9, 10, 11]];
    let answers = complete(&engine, &params, None, &second, &mut |_| ()).unwrap().answers;
    for (prompt, answer) in second.iter().zip(&answers) {
        assert_eq!(answer.tokens, alone(&support::model("llama-fp32"), &params, prompt));
    }
    let shapes = shapes.lock().unwrap();
    let is_there = |&(_, rows, length): &(usize, usize, usize)| [(1, 12), (3, 1)].contains(&(rows, length));
    assert!(shapes.iter().all(is_there), "what was there for 12 tokens and 3 rows serves fewer: {shapes:?}");
    assert!(shapes.contains(&(2, 3, 1)) && shapes.contains(&(1, 1, 12)), "{shapes:?}");
}

#[test]
fn prompts_have_seeds_of_their_own() {
    let model = model("llama-fp32");
    let engine = engine(&model, options(&model));
    let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(8).temperature(1.5).top_k(0);
    let prompts: [&[u32]; 3] = [&[5, 6], &[5, 6], &[7]];
    let seeds = [RowSeed::Own(7), RowSeed::Own(8), RowSeed::FromSystem];
    let answers = complete(&engine, &params.clone().row_seeds(seeds), None, &prompts, &mut |_| ()).unwrap().answers;
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert_eq!(answer.tokens, alone(&model, &params.clone().seed(answer.seed.unwrap()), prompt));
    }
    assert_eq!((answers[0].seed, answers[1].seed), (Some(7), Some(8)));
    let error = engine.submit(Request::new(vec![5], params.row_seeds(seeds))).map(drop).unwrap_err().to_string();
    assert_eq!(error, "row_seeds are those of several rows; a request has one seed, random_seed");
}

#[test]
fn a_client_that_takes_nothing_pauses_alone_and_loses_nothing() {
    let model = model("llama-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let params = params.max_new_tokens(40);
    let engine = engine(&model, EngineOptions { events_max: 4, ..options(&model) });
    let slow = engine.submit(Request::new(vec![5, 6], params.clone())).unwrap();
    for number in 0..3 {
        let quick = engine.submit(Request::new(vec![7, number], params.clone())).unwrap();
        assert_eq!(answer(&quick).0, alone(&model, &params, &[7, number]));
    }
    let metrics = engine.metrics().unwrap();
    assert_eq!((metrics.running, metrics.finished), (1, 3));
    assert_eq!(answer(&slow).0, alone(&model, &params, &[5, 6]));
}

#[test]
fn prompts_that_are_read_later_do_not_pause() {
    let model = model("llama-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let params = params.max_new_tokens(60);
    let engine = engine(&model, EngineOptions { events_max: 16, ..options(&model) });
    let prompts: [&[u32]; 3] = [&[5, 6], &[7, 8, 9], &[10]];
    let mut told = Vec::new();
    let completions = complete(&engine, &params, None, &prompts, &mut |token| told.push(token.row)).unwrap();
    assert!(told.is_sorted() && told.len() == 180, "tokens are told prompt by prompt");
    for (prompt, answer) in prompts.iter().zip(&completions.answers) {
        assert_eq!(answer.tokens, alone(&model, &params, prompt));
    }
    assert!(completions.stats.steps < 110, "{:?}", completions.stats);
}

#[test]
fn requests_beyond_those_that_may_wait_are_refused() {
    let model = model("llama-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let params = params.max_new_tokens(300);
    let few = EngineOptions { admitted_max: Some(1), events_max: 400, queued_max: 2, ..options(&model) };
    let engine = engine(&model, few);
    let send = || engine.submit(Request::new(vec![5, 6], params.clone()));
    let first = send().unwrap();
    while engine.metrics().unwrap().running == 0 {}
    let _waiting = [send().unwrap(), send().unwrap()];
    assert!(matches!(send(), Err(EngineError::Busy { waiting: 2, max: 2 })));
    drop(first);
    // Its place is free with the next step, and so is one of those that may wait.
    while engine.metrics().unwrap().queued == 2 {}
    assert!(send().is_ok());
}

#[test]
fn a_deadline_ends_a_request_that_waits() {
    let model = model("llama-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let engine = engine(&model, EngineOptions { events_max: 1, ..options(&model) });
    let request = Request::new(vec![5, 6], params.max_new_tokens(300));
    let handle = engine.submit(Request { deadline: Some(Instant::now()), ..request }).unwrap();
    let last = handle.events().last();
    assert!(matches!(last, Some(Event::Failed { is_retryable: true, .. })), "{last:?}");
}

#[test]
fn defect_29_many_threads_send_cancel_and_drop_at_random() {
    let model = model("qwen2-fp32");
    let expected: Vec<Vec<u32>> =
        (0..15).map(|number| alone(&model, &varied(&model, number), &prompt(number))).collect();
    let engine = engine(&model, EngineOptions { pages: Some(40), prefix_caching: true, ..options(&model) });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..16u64 {
            let (engine, model, expected, is_over) = (&engine, &model, &expected, &is_over);
            scope.spawn(move || {
                let mut number = client;
                while !is_over.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(client + 1);
                    let which = (number >> 33) % 15;
                    let handle = engine.submit(Request::new(prompt(which), varied(model, which))).unwrap();
                    match (number >> 40) % 4 {
                        0 => drop(handle),
                        1 => {
                            let _ = handle.next_event_within(Duration::from_millis((number >> 50) % 5));
                            handle.cancel();
                            assert!(handle.events().all(|event| !matches!(event, Event::Failed { .. })));
                        }
                        _ => assert_eq!(kept(model, answer(&handle)), expected[which as usize]),
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(5));
        is_over.store(true, Ordering::Relaxed);
    });
    let is_idle = || {
        let metrics = engine.metrics().unwrap();
        (metrics.queued + metrics.running == 0).then_some(metrics)
    };
    let metrics = std::iter::repeat_with(is_idle).flatten().next().unwrap();
    assert_eq!(metrics.pages_free + metrics.pages_shared, metrics.pages_total);
    assert_eq!(metrics.failed, 0);
    assert!(metrics.finished > 0 && metrics.cancelled > 0, "{metrics:?}");
}

#[test]
fn an_engine_that_is_dropped_tells_whoever_waits() {
    let model = model("llama-fp32");
    let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
    let engine = engine(&model, EngineOptions { events_max: 1, ..options(&model) });
    let handle = engine.submit(Request::new(vec![5, 6], params)).unwrap();
    drop(engine);
    assert!(matches!(handle.events().last(), Some(Event::Failed { is_retryable: true, .. })));
    assert!(handle.continue_with(&[1]).is_err());
}

/// What an engine says under a mixed load, as text.
fn mixed_answers() -> String {
    let model = model("llama-fp32");
    let engine = engine(&model, EngineOptions { prefix_caching: true, speculation: lookup(2), ..options(&model) });
    let send = |number| engine.submit(Request::new(prompt(number), varied(&model, number))).unwrap();
    let handles: Vec<RequestHandle> = (0..8).map(send).collect();
    format!("answers: {:?}", handles.iter().map(answer).collect::<Vec<_>>())
}

#[test]
fn defect_28_every_process_gives_the_same_tokens() {
    const PROCESSES: usize = 20;
    // The same test runs in processes of its own: those find this variable in their arguments and only speak.
    if std::env::args().any(|argument| argument == "--nocapture") {
        println!("{}", mixed_answers());
        return;
    }
    let expected = mixed_answers();
    let run = || {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "defect_28_every_process_gives_the_same_tokens";
        let output = command.args([name, "--exact", "--nocapture"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for _ in 0..PROCESSES {
        let said = run();
        assert!(said.contains(&expected), "{said}");
    }
}
