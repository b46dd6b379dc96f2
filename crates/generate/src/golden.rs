//! Golden cases: what a model is to say to prompts and calls, and where what it says differs. The one judge of tokens, ends, first
//! scores and scripts: for tests, for `precast verify` and for the suite that runs on GPUs.

use precast_tensor::DType;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::completion::{Completion, generate};
use crate::engine::{Engine, EngineError, complete};
use crate::generator::{GenerateError, Generator};
use crate::search::{FinishReason, GeneratorParams, ParamsError};
use crate::text_model::TextModel;

/// Likeliest tokens that are shown of a step that differs.
const SHOWN: usize = 5;
/// How far scores may lie from those of another implementation, where all of a model is f32 and where it is not.
const LOGITS_TOLERANCE: f32 = 1e-4;
const NARROW_LOGITS_TOLERANCE: f32 = 5e-2;

/// A file of golden cases.
#[derive(Clone, Debug, Deserialize)]
pub struct Golden {
    /// The cases.
    pub cases: Vec<GoldenCase>,
}

/// What a model is to say.
#[derive(Clone, Debug, Deserialize)]
pub struct GoldenCase {
    /// Its name.
    pub id: String,
    /// Name of the folder that it is for; any if missing.
    pub model: Option<String>,
    /// File inside the folder of the adapter that is active.
    pub adapter: Option<String>,
    /// Tokens of each prompt.
    #[serde(default)]
    pub prompts: Vec<Vec<u32>>,
    /// Options of the search on top of the folder's.
    #[serde(default)]
    pub search: Map<String, Value>,
    /// Tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Tokens of each answer.
    #[serde(default)]
    pub generated: Vec<Vec<u32>>,
    /// Why each answer ends: `eos` or `length`.
    #[serde(default)]
    pub finish: Vec<String>,
    /// The first scores behind the first prompt.
    pub first_logits_row0_head: Option<Vec<f32>>,
    /// The first scores behind each prompt.
    pub first_logits_head: Option<Vec<Vec<f32>>>,
    /// Calls of a generator of one row, in order.
    pub script: Option<Vec<Call>>,
}

/// A call of a generator: its name and what it is given.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Vec<Value>")]
pub enum Call {
    /// Adds tokens.
    Append(Vec<u32>),
    /// Steps, and the tokens that they give.
    Next(Vec<u32>),
    /// Keeps so many tokens.
    Rewind(usize),
    /// The row has so many tokens.
    ExpectLength(usize),
}

impl TryFrom<Vec<Value>> for Call {
    type Error = String;

    fn try_from(words: Vec<Value>) -> Result<Call, String> {
        let tokens = |position: usize| -> Option<Vec<u32>> {
            words.get(position)?.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
        };
        let number = || usize::try_from(words.get(1)?.as_u64()?).ok();
        let call = match words.first().and_then(Value::as_str) {
            Some("append") => tokens(1).map(Call::Append),
            Some("rewind") => number().map(Call::Rewind),
            Some("expect_len") => number().map(Call::ExpectLength),
            Some("next") => tokens(2).filter(|expected| number() == Some(expected.len())).map(Call::Next),
            _ => None,
        };
        call.ok_or_else(|| format!("{} is no call of a script", Value::from(words)))
    }
}

/// Where a case differs from what came: a sentence, and the same for machines.
#[derive(Clone, Debug)]
pub struct Difference {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: Value,
}

/// Why a case could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// An option of the case cannot be.
    #[error("case '{id}': {source}")]
    Params {
        /// The case.
        id: String,
        /// Why.
        source: ParamsError,
    },
    /// A generator failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl GoldenCase {
    /// Whether it says anything that can differ.
    pub fn says_something(&self) -> bool {
        !self.generated.is_empty() || self.script.is_some() || !self.heads().is_empty()
    }

    /// The options of a folder with those of the case.
    pub fn params(&self, model: &TextModel) -> Result<GeneratorParams, GoldenError> {
        let mut params = GeneratorParams::new(model.config().search.clone());
        for (name, value) in &self.search {
            let refused = |source| GoldenError::Params { id: self.id.clone(), source };
            params.set(name, &value.to_string()).map_err(refused)?;
        }
        params.max_new_tokens = self.max_new_tokens.or(params.max_new_tokens);
        Ok(params)
    }

    /// Where answers of a generator with these options differ.
    pub fn judge_generator(&self, model: &TextModel, params: &GeneratorParams) -> Result<Vec<Difference>, GoldenError> {
        if self.generated.is_empty() {
            return Ok(Vec::new());
        }
        let completions = generate(model, None, params, &self.slices(), &mut |_| (), None)?;
        self.judge_answers("generator", model, params, &completions.answers)
    }

    /// Where answers of an engine on the model differ, all prompts at once. Beams do not run in one.
    pub fn judge_engine(
        &self,
        engine: &Engine,
        model: &TextModel,
        params: &GeneratorParams,
    ) -> Result<Vec<Difference>, GoldenError> {
        if self.generated.is_empty() || params.search.num_beams > 1 {
            return Ok(Vec::new());
        }
        let completions = complete(engine, params, None, &self.slices(), &mut |_| ())?;
        self.judge_answers("engine", model, params, &completions.answers)
    }

    /// Where the first scores behind prompts differ, as far as the case says them.
    pub fn judge_logits(&self, model: &TextModel, params: &GeneratorParams) -> Result<Vec<Difference>, GoldenError> {
        let heads = self.heads();
        if heads.is_empty() {
            return Ok(Vec::new());
        }
        let is_f32 = model.layers().iter().all(|layer| layer.dtype == DType::F32);
        let tolerance = if is_f32 { LOGITS_TOLERANCE } else { NARROW_LOGITS_TOLERANCE };
        let mut generator = Generator::new(model, params_without_beams(model, params))?;
        generator.append(&self.slices())?;
        let mut differences = Vec::new();
        for (row, head) in heads.into_iter().enumerate().take(self.prompts.len()) {
            let is_far = |(_, (expected, found)): &(usize, (&f32, &f32))| {
                let distance = (*expected - *found).abs();
                distance.is_nan() || distance > tolerance
            };
            if let Some((token, (expected, found))) = head.iter().zip(generator.logits(row)?).enumerate().find(is_far) {
                differences.push(Difference {
                    text: format!(
                        "first scores, row {row}, token {token}: {expected} was expected and {found} came; \
                         {tolerance} apart is allowed"
                    ),
                    json: json!({ "path": "logits", "row": row, "token": token, "expected": expected, "found": found }),
                });
            }
        }
        Ok(differences)
    }

    /// What the first call of the script that differs gave.
    pub fn judge_script(&self, model: &TextModel, params: &GeneratorParams) -> Result<Option<Difference>, GoldenError> {
        let Some(script) = &self.script else { return Ok(None) };
        let mut generator = Generator::new(model, params_without_beams(model, params))?;
        for (position, call) in script.iter().enumerate() {
            let (expected, found) = match call {
                Call::Append(tokens) => {
                    generator.append(&[tokens])?;
                    continue;
                }
                Call::Rewind(length) => {
                    generator.rewind(0, *length)?;
                    continue;
                }
                Call::ExpectLength(length) => (json!(length), json!(generator.len(0))),
                Call::Next(expected) => {
                    let mut found = Vec::new();
                    for _ in expected {
                        found.extend(generator.next()?.iter().map(|token| token.id));
                    }
                    (json!(expected), json!(found))
                }
            };
            if expected != found {
                return Ok(Some(Difference {
                    text: format!("script, call {position}: {expected} was expected and {found} came"),
                    json: json!({ "path": "script", "call": position, "expected": expected, "found": found }),
                }));
            }
        }
        Ok(None)
    }

    /// The prompts as calls take them.
    fn slices(&self) -> Vec<&[u32]> {
        self.prompts.iter().map(Vec::as_slice).collect()
    }

    /// The first scores behind each prompt, as far as the case says.
    fn heads(&self) -> Vec<&[f32]> {
        match (&self.first_logits_head, &self.first_logits_row0_head) {
            (Some(heads), _) => heads.iter().map(Vec::as_slice).collect(),
            (None, Some(head)) => vec![head],
            (None, None) => Vec::new(),
        }
    }

    /// Where answers differ, in their tokens or else in how they end.
    fn judge_answers(
        &self,
        path: &str,
        model: &TextModel,
        params: &GeneratorParams,
        answers: &[Completion],
    ) -> Result<Vec<Difference>, GoldenError> {
        let (none, mut differences) = (Vec::new(), Vec::new());
        for row in 0..answers.len().max(self.generated.len()) {
            let expected = self.generated.get(row).unwrap_or(&none);
            let answer = answers.get(row);
            let tokens = answer.map_or(&none, |answer| &answer.tokens);
            if expected != tokens {
                differences.push(self.first_difference(model, params, path, (row, expected, tokens))?);
            } else if let (Some(expected), Some(answer)) = (self.finish.get(row), answer) {
                differences.extend(finish_difference(path, row, expected, answer.finish));
            }
        }
        Ok(differences)
    }

    /// The first token that differs, with the scores behind what both have in common.
    fn first_difference(
        &self,
        model: &TextModel,
        params: &GeneratorParams,
        path: &str,
        (row, expected, found): (usize, &Vec<u32>, &Vec<u32>),
    ) -> Result<Difference, GoldenError> {
        let step = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
        let answers_of_a_prompt = params.search.num_return_sequences.max(1);
        let prompt = self.prompts.get(row / answers_of_a_prompt).map_or(&[][..], Vec::as_slice);
        let mut generator = Generator::new(model, params_without_beams(model, params))?;
        generator.append(&[&[prompt, &expected[..step]].concat()])?;
        let logits = generator.logits(0)?;
        let mut likeliest: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        likeliest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        likeliest.truncate(SHOWN);
        let (expected, found) = (expected.get(step).copied(), found.get(step).copied());
        let score = |token: Option<u32>| token.and_then(|token| logits.get(token as usize).copied());
        let word = |token: Option<u32>| token.map_or("the end".to_string(), |token| token.to_string());
        let listed: Vec<String> = likeliest.iter().map(|(token, logit)| format!("{token} ({logit:.4})")).collect();
        let mut text = format!(
            "{path}, row {row}, step {step}: {} was expected and {} came; likeliest here: {}",
            word(expected),
            word(found),
            listed.join(", ")
        );
        if let (Some(token), Some(logit)) = (expected, score(expected)) {
            text.push_str(&format!("; the expected {token} has {logit:.4}"));
        }
        let json = json!({
            "path": path, "row": row, "step": step, "expected": expected, "found": found,
            "likeliest": likeliest, "expected_logit": score(expected), "found_logit": score(found),
        });
        Ok(Difference { text, json })
    }
}

/// The same options for rows that go on as long as they are asked to.
fn params_without_beams(model: &TextModel, params: &GeneratorParams) -> GeneratorParams {
    let mut params = params.clone();
    (params.search.num_beams, params.search.num_return_sequences, params.search.batch_size) = (1, 1, 1);
    params.search.max_length = model.config().model.context_length;
    params
}

/// An end that is not the expected one; both limits of a length are one.
fn finish_difference(path: &str, row: usize, expected: &str, found: FinishReason) -> Option<Difference> {
    let found = match found {
        FinishReason::MaxNewTokens | FinishReason::MaxLength => "length",
        other => other.name(),
    };
    (expected != found).then(|| Difference {
        text: format!("{path}, row {row}: an end by {expected} was expected and one by {found} came"),
        json: json!({ "path": path, "row": row, "expected_finish": expected, "found_finish": found }),
    })
}
