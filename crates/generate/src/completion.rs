//! Whole answers to prompts: greedy, drawn, several draws of one prompt, or by beams.

use crate::decoder_state::{DecoderState, StepObserver, StepStats};
use crate::generator::{GenerateError, Generator, StepToken, check_batch, check_length, check_row_seeds, check_tokens};
use crate::search::{BeamSearch, FinishReason, GeneratorParams, History, Hypothesis, apply_rules};
use crate::text_model::TextModel;
use crate::tokenizer::Tokenizer;

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Which prompt it answers.
    pub prompt: usize,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Their text up to a stop string, where there is a tokenizer.
    pub text: Option<String>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Score of a beam search.
    pub score: Option<f64>,
    /// The seed of its draws; a beam search draws nothing.
    pub seed: Option<u64>,
}

/// Answers, and what was run for them.
#[derive(Clone, Debug)]
pub struct Completions {
    /// Answers, those of a prompt side by side, best first.
    pub answers: Vec<Completion>,
    /// What was run.
    pub stats: StepStats,
    /// The seed of all answers to prompts that have none of their own.
    pub seed: Option<u64>,
}

/// Answers prompts; tells of each token as it comes, except for beams, and of each step that ran.
pub fn generate(
    model: &TextModel,
    tokenizer: Option<&Tokenizer>,
    params: &GeneratorParams,
    prompts: &[&[u32]],
    on_token: &mut dyn FnMut(&StepToken),
    observer: Option<StepObserver>,
) -> Result<Completions, GenerateError> {
    if params.search.num_beams > 1 {
        return generate_by_beams(model, tokenizer, params, prompts, observer);
    }
    let mut generator = match tokenizer {
        Some(tokenizer) => Generator::with_tokenizer(model, params.clone(), tokenizer)?,
        None => Generator::new(model, params.clone())?,
    };
    if let Some(observer) = observer {
        generator.observe(observer);
    }
    generator.append(prompts)?;
    let mut of_prompt: Vec<usize> = (0..prompts.len()).collect();
    for prompt in 0..prompts.len() {
        for _ in 1..params.search.num_return_sequences {
            generator.fork(prompt)?;
            of_prompt.push(prompt);
        }
    }
    let mut texts: Vec<String> = vec![String::new(); of_prompt.len()];
    while !generator.is_done() {
        for token in generator.next()? {
            texts[token.row].push_str(&token.text);
            on_token(&token);
        }
    }
    let answer = |(row, text): (usize, String)| Completion {
        prompt: of_prompt[row],
        tokens: generator.sequence(row)[prompts[of_prompt[row]].len()..].to_vec(),
        text: tokenizer.map(|_| text),
        finish: generator.finish_reason(row).unwrap_or(FinishReason::MaxLength),
        score: None,
        seed: generator.row_seed(row),
    };
    let mut answers: Vec<Completion> = texts.into_iter().enumerate().map(answer).collect();
    answers.sort_by_key(|answer| answer.prompt);
    Ok(Completions { answers, stats: generator.stats(), seed: Some(generator.seed()) })
}

/// Beam search over all prompts at once; prompts do not touch one another.
fn generate_by_beams(
    model: &TextModel,
    tokenizer: Option<&Tokenizer>,
    params: &GeneratorParams,
    prompts: &[&[u32]],
    observer: Option<StepObserver>,
) -> Result<Completions, GenerateError> {
    params.check(model.vocabulary())?;
    let search = &params.search;
    check_batch(search.batch_size, prompts.len())?;
    check_row_seeds(&params.row_seeds, prompts.len())?;
    for (row, prompt) in prompts.iter().enumerate() {
        check_tokens(row, prompt, model.vocabulary())?;
        check_length(row, 0, prompt.len(), search.max_length, model.config())?;
        if prompt.is_empty() {
            return Err(GenerateError::Input(format!("row {row} has no tokens")));
        }
    }
    let eos: &[u32] = if params.ignore_eos { &[] } else { &model.config().model.eos_token_ids };
    let mut beams = Beams::begin(model, params, prompts, eos, observer)?;
    while beams.step(params, eos)? {}
    let limit = |prompt: usize| match params.max_new_tokens {
        Some(max) if prompts[prompt].len().saturating_add(max) <= search.max_length => FinishReason::MaxNewTokens,
        _ => FinishReason::MaxLength,
    };
    let stats = beams.state.stats().clone();
    let mut answers = Vec::new();
    for (prompt, beam) in beams.searches.into_iter().enumerate() {
        let found: Vec<Hypothesis> = beam.search.finish(search.num_return_sequences);
        answers.extend(found.into_iter().map(|hypothesis| Completion {
            prompt,
            text: tokenizer.map(|tokenizer| tokenizer.decode(&hypothesis.tokens)),
            tokens: hypothesis.tokens,
            finish: if hypothesis.is_ended { FinishReason::Eos } else { limit(prompt) },
            score: Some(hypothesis.score),
            seed: None,
        }));
    }
    Ok(Completions { answers, stats, seed: None })
}

/// Beams of several prompts: those of a prompt lie in successive slots.
struct Beams {
    state: DecoderState,
    searches: Vec<PromptBeams>,
    width: usize,
}

/// The beams of one prompt.
struct PromptBeams {
    search: BeamSearch,
    /// Steps that are left.
    steps_left: usize,
}

impl Beams {
    fn begin(
        model: &TextModel,
        params: &GeneratorParams,
        prompts: &[&[u32]],
        eos: &[u32],
        observer: Option<StepObserver>,
    ) -> Result<Beams, GenerateError> {
        let search = &params.search;
        let width = search.num_beams;
        let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        let rows = prompts.len() * width;
        let mut state = DecoderState::new(model, rows, longest, params.max_new_tokens, search.chunk_size)?;
        if let Some(observer) = observer {
            state.observe(observer);
        }
        let mut searches = Vec::new();
        for (position, prompt) in prompts.iter().enumerate() {
            for &token in *prompt {
                state.row_mut(position * width).push(token, false);
            }
            let longest = search.max_length.min(model.config().model.context_length);
            let room = longest.saturating_sub(prompt.len());
            searches.push(PromptBeams {
                search: BeamSearch::new(width, prompt.len(), search.length_penalty, search.early_stopping, eos),
                steps_left: params.max_new_tokens.unwrap_or(room).min(room),
            });
        }
        state.run_pending()?;
        for position in 0..prompts.len() {
            state.reorder(position * width, &vec![0; width])?;
        }
        Ok(Beams { state, searches, width })
    }

    /// One step of every prompt that goes on; false when none does.
    fn step(&mut self, params: &GeneratorParams, eos: &[u32]) -> Result<bool, GenerateError> {
        self.state.run_pending()?;
        for (position, beams) in self.searches.iter_mut().enumerate() {
            let first = position * self.width;
            if beams.steps_left == 0 || beams.search.is_done() {
                continue;
            }
            let mut scores = Vec::with_capacity(self.width);
            for beam in 0..beams.search.beam_count() {
                let sequence = &self.state.rows()[first + beam];
                let mut logits = sequence.logits.as_deref().unwrap_or_default().to_vec();
                let history = History { tokens: &sequence.tokens, is_generated: &sequence.is_generated };
                apply_rules(&mut logits, history, params, eos)
                    .map_err(|source| GenerateError::Rule { row: first + beam, source })?;
                scores.push(logits);
            }
            beams.steps_left -= 1;
            let step = beams.search.advance(&scores.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let tokens = match &step {
                Some(step) => {
                    self.state.reorder(first, &step.parents)?;
                    &step.tokens[..]
                }
                None => &[],
            };
            for beam in 0..self.width {
                let row = self.state.row_mut(first + beam);
                row.is_live = beam < tokens.len() && beams.steps_left > 0;
                if let Some(&token) = tokens.get(beam) {
                    row.push(token, true);
                }
            }
        }
        Ok(self.searches.iter().any(|beams| beams.steps_left > 0 && !beams.search.is_done()))
    }
}
