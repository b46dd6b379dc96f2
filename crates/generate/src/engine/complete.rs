//! Whole answers to prompts by an engine: all prompts at once, each token told as it comes.

use crate::completion::{Completion, Completions};
use crate::decoder_state::StepStats;
use crate::generator::StepToken;
use crate::search::{FinishReason, GeneratorParams};

use super::engine_thread::{Engine, EngineError};
use super::events::Event;
use super::guidance::Guidance;
use super::request::{Request, RequestHandle};

/// Answers prompts. Tokens are told prompt by prompt, in the order of the prompts.
pub fn complete(
    engine: &Engine,
    params: &GeneratorParams,
    guidance: Option<&Guidance>,
    prompts: &[&[u32]],
    on_token: &mut dyn FnMut(&StepToken),
) -> Result<Completions, EngineError> {
    let before = engine.metrics()?;
    let send = |prompt: &&[u32]| {
        engine.submit(Request { guidance: guidance.cloned(), ..Request::new(prompt.to_vec(), params.clone()) })
    };
    let handles = prompts.iter().map(send).collect::<Result<Vec<RequestHandle>, EngineError>>()?;
    let mut answers = Vec::new();
    for (prompt, handle) in handles.iter().enumerate() {
        answers.extend(read_answers(engine, handle, prompt, params, on_token)?);
    }
    let after = engine.metrics()?;
    let run = |metrics: &super::EngineMetrics| metrics.prompt_tokens + metrics.generated_tokens;
    let stats =
        StepStats { steps: after.steps - before.steps, tokens: run(&after) - run(&before), ..StepStats::default() };
    Ok(Completions { answers, stats, seed: handles.first().map(RequestHandle::seed) })
}

/// The answers to one prompt.
fn read_answers(
    engine: &Engine,
    handle: &RequestHandle,
    prompt: usize,
    params: &GeneratorParams,
    on_token: &mut dyn FnMut(&StepToken),
) -> Result<Vec<Completion>, EngineError> {
    let count = params.search.num_return_sequences;
    let new = || Completion {
        prompt,
        tokens: Vec::new(),
        text: engine.has_text().then(String::new),
        finish: FinishReason::MaxLength,
        score: None,
    };
    let mut answers: Vec<Completion> = std::iter::repeat_with(new).take(count).collect();
    for event in handle.events() {
        match event {
            Event::Token(token) => {
                let answer = &mut answers[token.answer];
                answer.tokens.push(token.id);
                answer.text.iter_mut().for_each(|text| text.push_str(&token.text));
                let row = prompt * count + token.answer;
                on_token(&StepToken { row, id: token.id, text: token.text, logprobs: token.logprobs, finished: None });
            }
            Event::Finished { answer, reason, .. } => {
                let answer = &mut answers[answer];
                answer.finish = reason;
                if reason == FinishReason::Eos && !params.include_stop_token {
                    answer.tokens.pop();
                }
            }
            Event::Blocked => {}
            Event::Failed { message, .. } => return Err(EngineError::Answer(message)),
        }
    }
    Ok(answers)
}
