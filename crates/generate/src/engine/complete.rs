//! Whole answers to prompts by an engine: all prompts at once, each token told as it comes.

use std::collections::VecDeque;
use std::time::Duration;

use crate::completion::{Completion, Completions};
use crate::decoder_state::StepStats;
use crate::generator::{StepToken, check_row_seeds};
use crate::search::{FinishReason, GeneratorParams, RowSeed};

use super::engine_thread::{Engine, EngineError};
use super::events::Event;
use super::guidance::Guidance;
use super::request::{Request, RequestHandle};

/// How long the prompt whose tokens are told next is waited for before the others are looked at.
const WAIT: Duration = Duration::from_millis(2);

/// Answers prompts. Tokens are told prompt by prompt, in the order of the prompts; those of later prompts are read meanwhile,
/// so that none pauses for want of a reader.
pub fn complete(
    engine: &Engine,
    params: &GeneratorParams,
    guidance: Option<&Guidance>,
    prompts: &[&[u32]],
    on_token: &mut dyn FnMut(&StepToken),
) -> Result<Completions, EngineError> {
    check_row_seeds(&params.row_seeds, prompts.len())?;
    let request = |(row, prompt): (usize, &&[u32])| {
        let params = params_of_prompt(params, row);
        Request { guidance: guidance.cloned(), ..Request::new(prompt.to_vec(), params) }
    };
    complete_requests(engine, &prompts.iter().enumerate().map(request).collect::<Vec<Request>>(), on_token)
}

/// As `complete`, each request with options of its own. All have as many answers.
pub fn complete_requests(
    engine: &Engine,
    requests: &[Request],
    on_token: &mut dyn FnMut(&StepToken),
) -> Result<Completions, EngineError> {
    let before = engine.metrics()?;
    let send = |request: &Request| engine.submit(request.clone());
    let handles = requests.iter().map(send).collect::<Result<Vec<RequestHandle>, EngineError>>()?;
    let new = |(prompt, request): (usize, &Request)| {
        Reading::new(prompt, request.params.clone(), engine.has_text(), handles[prompt].seed())
    };
    let mut readings: Vec<Reading> = requests.iter().enumerate().map(new).collect();
    for first in 0..requests.len() {
        loop {
            readings[first].tell(on_token);
            if readings[first].open == 0 {
                break;
            }
            if let Some(event) = handles[first].next_event_within(WAIT) {
                readings[first].take(event)?;
            }
            for (reading, handle) in readings[first..].iter_mut().zip(&handles[first..]) {
                reading.take_all(handle)?;
            }
        }
    }
    let after = engine.metrics()?;
    let run = |metrics: &super::EngineMetrics| metrics.prompt_tokens + metrics.generated_tokens;
    let stats =
        StepStats { steps: after.steps - before.steps, tokens: run(&after) - run(&before), ..StepStats::default() };
    let answers = readings.into_iter().flat_map(|reading| reading.answers).collect();
    Ok(Completions { answers, stats, seed: handles.first().map(RequestHandle::seed) })
}

/// The options of one prompt, with its own seed if it has one.
pub fn params_of_prompt(params: &GeneratorParams, prompt: usize) -> GeneratorParams {
    let mut own = GeneratorParams { row_seeds: Vec::new(), ..params.clone() };
    match params.row_seeds.get(prompt).copied().unwrap_or_default() {
        RowSeed::Shared => {}
        RowSeed::Own(seed) => own.search.random_seed = Some(seed),
        RowSeed::FromSystem => own.search.random_seed = None,
    }
    own
}

/// The answers to one prompt, as far as they were read.
struct Reading {
    prompt: usize,
    params: GeneratorParams,
    answers: Vec<Completion>,
    /// Answers that have not ended.
    open: usize,
    /// Tokens that nobody was told of yet.
    untold: VecDeque<StepToken>,
}

impl Reading {
    fn new(prompt: usize, params: GeneratorParams, has_text: bool, seed: u64) -> Reading {
        let open = params.search.num_return_sequences;
        let (text, finish) = (has_text.then(String::new), FinishReason::MaxLength);
        let answer = Completion { prompt, tokens: Vec::new(), text, finish, score: None, seed: Some(seed) };
        Reading { prompt, params, answers: vec![answer; open], open, untold: VecDeque::new() }
    }

    /// Takes what has arrived.
    fn take_all(&mut self, handle: &RequestHandle) -> Result<(), EngineError> {
        while self.open > 0
            && let Some(event) = handle.next_event_within(Duration::ZERO)
        {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), EngineError> {
        match event {
            Event::Token(token) => {
                let answer = &mut self.answers[token.answer];
                answer.tokens.push(token.id);
                answer.text.iter_mut().for_each(|text| text.push_str(&token.text));
                let row = self.prompt * self.answers.len() + token.answer;
                let (id, text, logprobs) = (token.id, token.text, token.logprobs);
                self.untold.push_back(StepToken { row, id, text, logprobs, finished: None });
            }
            Event::Finished { answer, reason, .. } => {
                let answer = &mut self.answers[answer];
                answer.finish = reason;
                if reason == FinishReason::Eos && !self.params.include_stop_token {
                    answer.tokens.pop();
                }
                self.open -= 1;
            }
            Event::Blocked => {}
            Event::Failed { message, .. } => return Err(EngineError::Answer(message)),
        }
        Ok(())
    }

    fn tell(&mut self, on_token: &mut dyn FnMut(&StepToken)) {
        self.untold.drain(..).for_each(|token| on_token(&token));
    }
}
