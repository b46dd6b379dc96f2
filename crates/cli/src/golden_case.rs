//! Golden cases of a model folder: what a case says, and where what comes differs from it.

use precast::generate::engine::complete;
use precast::generate::{Completions, FinishReason, Generator, GeneratorParams, TextModel, generate};
use precast::{DType, Error, TextFolder};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::exit::Failure;

/// Likeliest tokens that are shown of a step that differs.
const SHOWN: usize = 5;
/// How far scores may lie from those of another implementation, where all of a model is f32 and where it is not.
const LOGITS_TOLERANCE: f32 = 1e-4;
const NARROW_LOGITS_TOLERANCE: f32 = 5e-2;

/// A file of golden cases.
#[derive(Deserialize)]
pub struct Golden {
    /// The cases.
    pub cases: Vec<GoldenCase>,
}

/// What a model is to say.
#[derive(Deserialize)]
pub struct GoldenCase {
    /// Its name.
    pub id: String,
    /// Name of the folder that it is for; any if missing.
    pub model: Option<String>,
    /// File inside the folder of the adapter that is active.
    pub adapter: Option<String>,
    #[serde(default)]
    prompts: Vec<Vec<u32>>,
    #[serde(default)]
    search: Map<String, Value>,
    max_new_tokens: Option<usize>,
    #[serde(default)]
    generated: Vec<Vec<u32>>,
    /// Why each answer ends: `eos` or `length`.
    #[serde(default)]
    finish: Vec<String>,
    /// The first scores behind the first prompt.
    first_logits_row0_head: Option<Vec<f32>>,
    /// The first scores behind each prompt.
    first_logits_head: Option<Vec<Vec<f32>>>,
    /// Calls of a generator of one row, in order.
    script: Option<Vec<Call>>,
}

/// A call of a generator: its name and what it is given.
#[derive(Deserialize)]
#[serde(try_from = "Vec<Value>")]
enum Call {
    Append(Vec<u32>),
    Next(Vec<u32>),
    Rewind(usize),
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
pub struct Difference {
    /// For people.
    pub text: String,
    /// For machines.
    pub json: Value,
}

impl GoldenCase {
    /// Whether it says anything that can differ.
    pub fn says_something(&self) -> bool {
        !self.generated.is_empty() || self.script.is_some() || !self.heads().is_empty()
    }

    /// Where what the folder says differs, by the generator and by the engine.
    pub fn verify(&self, folder: &TextFolder) -> Result<Vec<Difference>, Failure> {
        let mut differences = Vec::new();
        if !self.generated.is_empty() {
            self.verify_answers(folder, &mut differences)?;
        }
        self.verify_logits(&folder.model, &mut differences)?;
        if let Some(script) = &self.script {
            differences.extend(self.verify_script(&folder.model, script)?);
        }
        Ok(differences)
    }

    fn verify_answers(&self, folder: &TextFolder, differences: &mut Vec<Difference>) -> Result<(), Failure> {
        let params = self.params(&folder.model)?;
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let completions = generate(&folder.model, None, &params, &prompts, &mut |_| (), None).map_err(Error::from)?;
        let mut found: Vec<(&str, Completions)> = vec![("generator", completions)];
        if params.search.num_beams == 1 {
            let engine = folder.engine(folder.engine_options())?;
            found.push(("engine", complete(&engine, &params, None, &prompts, &mut |_| ()).map_err(Error::from)?));
        }
        let none = Vec::new();
        for (path, completions) in found {
            for row in 0..completions.answers.len().max(self.generated.len()) {
                let expected = self.generated.get(row).unwrap_or(&none);
                let answer = completions.answers.get(row);
                let tokens = answer.map_or(&none, |answer| &answer.tokens);
                if expected != tokens {
                    differences.push(self.first_difference(&folder.model, &params, path, (row, expected, tokens))?);
                } else if let (Some(expected), Some(answer)) = (self.finish.get(row), answer) {
                    differences.extend(finish_difference(path, row, expected, answer.finish));
                }
            }
        }
        Ok(())
    }

    fn params(&self, model: &TextModel) -> Result<GeneratorParams, Failure> {
        let mut params = GeneratorParams::new(model.config().search.clone());
        for (name, value) in &self.search {
            let refused = |error: &dyn std::fmt::Display| Failure::usage(format!("case '{}': {error}", self.id));
            params.set(name, &value.to_string()).map_err(|error| refused(&error))?;
        }
        params.max_new_tokens = self.max_new_tokens.or(params.max_new_tokens);
        Ok(params)
    }

    /// The same options for one row that goes on as long as it is asked to.
    fn params_of_one_row(&self, model: &TextModel) -> Result<GeneratorParams, Failure> {
        let mut params = self.params(model)?;
        (params.search.num_beams, params.search.num_return_sequences, params.search.batch_size) = (1, 1, 1);
        params.search.max_length = model.config().model.context_length;
        Ok(params)
    }

    /// The first scores behind each prompt, as far as the case says.
    fn heads(&self) -> Vec<&[f32]> {
        match (&self.first_logits_head, &self.first_logits_row0_head) {
            (Some(heads), _) => heads.iter().map(Vec::as_slice).collect(),
            (None, Some(head)) => vec![head],
            (None, None) => Vec::new(),
        }
    }

    fn verify_logits(&self, model: &TextModel, differences: &mut Vec<Difference>) -> Result<(), Failure> {
        let is_f32 = model.layers().iter().all(|layer| layer.dtype == DType::F32);
        let tolerance = if is_f32 { LOGITS_TOLERANCE } else { NARROW_LOGITS_TOLERANCE };
        for (row, (head, prompt)) in self.heads().into_iter().zip(&self.prompts).enumerate() {
            let logits = logits_behind(model, self.params_of_one_row(model)?, prompt)?;
            let is_far = |(_, (expected, found)): &(usize, (&f32, &f32))| {
                let distance = (*expected - *found).abs();
                distance.is_nan() || distance > tolerance
            };
            if let Some((token, (expected, found))) = head.iter().zip(&logits).enumerate().find(is_far) {
                differences.push(Difference {
                    text: format!(
                        "first scores, row {row}, token {token}: {expected} was expected and {found} came; \
                         {tolerance} apart is allowed"
                    ),
                    json: json!({ "path": "logits", "row": row, "token": token, "expected": expected, "found": found }),
                });
            }
        }
        Ok(())
    }

    /// What the first call that differs gave.
    fn verify_script(&self, model: &TextModel, script: &[Call]) -> Result<Option<Difference>, Failure> {
        let mut generator = Generator::new(model, self.params_of_one_row(model)?).map_err(Error::from)?;
        for (position, call) in script.iter().enumerate() {
            let (expected, found) = match call {
                Call::Append(tokens) => {
                    generator.append(&[tokens]).map_err(Error::from)?;
                    continue;
                }
                Call::Rewind(length) => {
                    generator.rewind(0, *length).map_err(Error::from)?;
                    continue;
                }
                Call::ExpectLength(length) => (json!(length), json!(generator.len(0))),
                Call::Next(expected) => {
                    let mut found = Vec::new();
                    for _ in expected {
                        found.extend(generator.next().map_err(Error::from)?.iter().map(|token| token.id));
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

    /// The first token that differs, with the scores behind what both have in common.
    fn first_difference(
        &self,
        model: &TextModel,
        params: &GeneratorParams,
        path: &str,
        (row, expected, found): (usize, &Vec<u32>, &Vec<u32>),
    ) -> Result<Difference, Failure> {
        let step = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
        let answers_of_a_prompt = params.search.num_return_sequences.max(1);
        let prompt = self.prompts.get(row / answers_of_a_prompt).map_or(&[][..], Vec::as_slice);
        let tokens = [prompt, &expected[..step]].concat();
        let logits = logits_behind(model, self.params_of_one_row(model)?, &tokens)?;
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

/// Scores behind tokens.
fn logits_behind(model: &TextModel, params: GeneratorParams, tokens: &[u32]) -> Result<Vec<f32>, Failure> {
    let mut generator = Generator::new(model, params).map_err(Error::from)?;
    generator.append(&[tokens]).map_err(Error::from)?;
    Ok(generator.logits(0).map_err(Error::from)?.to_vec())
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
