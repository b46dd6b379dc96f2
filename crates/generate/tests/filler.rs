//! Defect 32: whatever lies in filler, real rows have the same bits. Filler are slots behind cached tokens, slots that no window
//! sees any more, rows between and behind the real ones, and tokens behind the valid ones of a row.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

#[path = "support/plain_decoder.rs"]
mod plain_decoder;
mod support;

use plain_decoder::{NOT_A_NUMBER, broken_decoder, plain_decoder};
use precast::generate::engine::{Event, Request, complete};
use precast::generate::kv_cache::{Half, KvCache, LayerLayout};
use precast::generate::plan::{Phase, PlannedRow, Scores, StepPlan, StepShape};
use precast::generate::step_buffers::StepBuffers;
use precast::generate::{Engine, EngineOptions, Generator, GeneratorParams, TextModel, generate};
use support::{model, reference_model};

/// What filler holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Filler {
    /// Zeros, and tokens that repeat real ones.
    Tame,
    /// One number everywhere, and random tokens.
    Number(f32),
    /// Random bits and tokens, by this seed.
    Random(u32),
}

/// Numbers without a pattern that a kernel could have.
struct Words(u32);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 ^ self.0 >> 16
    }
}

const SLOTS: usize = 4;
const CAPACITY: usize = 40;
/// Slots of real rows; slot 1 lies between them, and slot 3 behind.
const REAL: [usize; 2] = [0, 2];
/// New tokens of the Program of each step, and how many of each real row count.
const STEPS: [(usize, [usize; 2]); 5] = [(7, [4, 7]), (12, [12, 2]), (12, [9, 12]), (1, [1, 1]), (1, [1, 1])];

/// Whether the slot at a place of a ring holds a token that a query behind so many cached ones sees.
fn is_read(layout: &LayerLayout, place: usize, cached: usize) -> bool {
    let (capacity, cached) = (layout.capacity(CAPACITY) as i64, cached as i64);
    let token = cached - 1 - (cached - 1 - place as i64).rem_euclid(capacity);
    token >= 0 && layout.window.is_none_or(|window| token + window as i64 > cached)
}

/// Puts what filler holds wherever no real row reads.
fn fill(cache: &mut KvCache, layers: &[LayerLayout], cached: &[usize; SLOTS], filler: Filler) {
    let mut words = Words(match filler {
        Filler::Random(seed) => seed,
        Filler::Tame | Filler::Number(_) => 0,
    });
    for (layer, layout) in layers.iter().enumerate() {
        for (half, size) in [(Half::Keys, layout.key_size), (Half::Values, layout.value_size)] {
            for (slot, &cached) in cached.iter().enumerate() {
                let is_free = |&place: &usize| !REAL.contains(&slot) || !is_read(layout, place, cached);
                for place in (0..layout.capacity(CAPACITY)).filter(is_free) {
                    let number = |_| match filler {
                        Filler::Tame => 0.0,
                        Filler::Number(number) => number,
                        Filler::Random(_) => f32::from_bits(words.next()),
                    };
                    let token: Vec<u8> = (0..layout.heads * size).map(number).flat_map(f32::to_le_bytes).collect();
                    cache.write(layer, half, slot, place, &token, 1);
                }
            }
        }
    }
}

/// Bits of the scores, keys and values of the real rows in every step.
fn bits(model: &TextModel, filler: Filler) -> Vec<Vec<u32>> {
    let (layers, vocabulary) = (model.layers(), model.vocabulary() as u32);
    let mut words = Words(7);
    let mut cache = KvCache::try_new(layers, SLOTS, CAPACITY).unwrap();
    let (mut buffers, mut cached, mut found) = (StepBuffers::default(), [0; SLOTS], Vec::new());
    for (step, (length, valid)) in STEPS.into_iter().enumerate() {
        fill(&mut cache, layers, &cached, filler);
        let row = |slot: usize, valid: usize| PlannedRow { slot, cached: cached[slot], valid, is_last: true };
        let mut rows = vec![row(REAL[0], valid[0]), row(REAL[1], valid[1])];
        let token = |slot: usize, at: usize| ((slot * 131 + at * 29 + 5) as u32) % vocabulary;
        let mut tokens: Vec<Vec<u32>> =
            rows.iter().map(|row| (0..row.valid).map(|at| token(row.slot, row.cached + at)).collect()).collect();
        if filler != Filler::Tame {
            // Tokens behind the valid ones, and a row of its own that is behind the real ones.
            tokens.iter_mut().for_each(|tokens| tokens.resize_with(length, || words.next() % vocabulary));
            rows.push(PlannedRow { slot: 3, cached: step * 9, valid: length, is_last: true });
            tokens.push((0..length).map(|_| words.next() % vocabulary).collect());
        }
        let shape = StepShape { rows: SLOTS, length, capacity: CAPACITY };
        let plan = StepPlan { phase: Phase::Prefill, shape, rows, scores: Scores::Last, is_long: false };
        let tokens: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
        let outputs = model.run(&plan, &tokens, &cache, &mut buffers).unwrap();
        for scores in &outputs.logits[..REAL.len()] {
            found.push(scores.iter().map(|score| score.to_bits()).collect());
        }
        for (layer, half, bytes) in buffers.present() {
            let row_bytes = cache.step_bytes(layer, half, length);
            for row in &plan.rows[..REAL.len()] {
                let new = &bytes[plan.position(row) * row_bytes..][..row_bytes];
                cache.write(layer, half, row.slot, row.cached, new, row.valid);
                let heads = new.chunks(row_bytes / layers[layer].heads);
                let valid = heads.flat_map(|head| &head[..head.len() / length * row.valid]);
                found.push(valid.map(|&byte| u32::from(byte)).collect());
            }
        }
        plan.rows[..REAL.len()].iter().for_each(|row| cached[row.slot] += row.valid);
    }
    found
}

fn check(model: &TextModel, name: &str) {
    assert!(model.ladders().rows.largest() > 1, "{name} has no filler");
    let expected = bits(model, Filler::Tame);
    let is_number = |bits: &u32| f32::from_bits(*bits).is_finite();
    assert!(expected[..2].iter().flatten().all(is_number), "{name}");
    for filler in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX].map(Filler::Number) {
        assert!(bits(model, filler) == expected, "{name} with {filler:?} in filler");
    }
    for seed in 1..4 {
        assert!(bits(model, Filler::Random(seed)) == expected, "{name} with random bits {seed} in filler");
    }
}

/// What a row without numbers leaves in a cache and in pages is what rows after it find there.
#[test]
fn defect_32_a_row_without_numbers_harms_no_other() {
    let (broken, whole) = (broken_decoder(), plain_decoder(false));
    let params = |model: &TextModel| {
        let params = GeneratorParams { ignore_eos: true, ..GeneratorParams::new(model.config().search.clone()) };
        params.max_new_tokens(12)
    };
    let prompt: &[u32] = &[5, 6, 7];
    let expected = generate(&whole, None, &params(&whole), &[prompt], &mut |_| (), None).unwrap().answers.remove(0);
    let mut generator = Generator::new(&broken, params(&broken)).unwrap();
    generator.append(&[&[5, 6, 7, NOT_A_NUMBER, 8]]).unwrap();
    assert!(generator.next().unwrap_err().to_string().contains("is NaN"));
    generator.rewind(0, 3).unwrap();
    let tokens: Vec<u32> = (0..12).map(|_| generator.next().unwrap()[0].id).collect();
    assert_eq!(tokens, expected.tokens);
    let options = EngineOptions::from_config(broken.config(), None);
    let options = EngineOptions { page_tokens: 4, pages: Some(8), checks_invariants: true, ..options };
    let engine = Engine::new(&broken, None, options).unwrap();
    let failing = vec![NOT_A_NUMBER; 20];
    let failed = engine.submit(Request::new(failing, params(&broken))).unwrap();
    assert!(failed.events().any(|event| matches!(event, Event::Failed { .. })));
    let answers = complete(&engine, &params(&broken), None, &[prompt], &mut |_| ()).unwrap().answers;
    assert_eq!(answers[0].tokens, expected.tokens);
}

/// Attention of every kind: of all tokens, behind a window and a cap, in one cache for keys and values, and with weights of few
/// bits.
const MODELS: [&str; 7] =
    ["llama-fp32", "gemma2-fp32", "smollm3_local-fp32", "phi3-fp32", "gpt2_like-fp32", "qwen3-fp32", "llama-int4-acc1"];

#[test]
fn defect_32_what_filler_holds_leaves_no_trace_on_the_cpu() {
    for name in MODELS {
        check(&model(name), name);
    }
    check(&plain_decoder(false), "plain operators");
}

#[test]
fn defect_32_what_filler_holds_leaves_no_trace_by_reference() {
    for name in MODELS {
        check(&reference_model(name), name);
    }
    check(&plain_decoder(true), "plain operators");
}
