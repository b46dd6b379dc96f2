//! `verify` of a model folder: tokens of golden cases, by the generator and by the engine. Any difference ends with the exit
//! code of outputs that differ, and shows the first step that does with the likeliest tokens there.

use std::fmt::Write;
use std::path::Path;

use precast::generate::engine::complete;
use precast::generate::search::top_logprobs;
use precast::generate::{Generator, GeneratorParams, TextModel, generate};
use precast::{Error, TextFolder, TextOptions, open_text_model};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Cx;
use crate::args::{Shared, VerifyArgs};
use crate::exit::{Exit, Failure};
use crate::output::Report;
use crate::subject::options;

/// Likeliest tokens that are shown of a step that differs.
const SHOWN: usize = 5;

/// A file of golden cases.
#[derive(Deserialize)]
struct Golden {
    cases: Vec<GoldenCase>,
}

/// What a model is to say.
#[derive(Deserialize)]
struct GoldenCase {
    id: String,
    /// Name of the folder that it is for; any if missing.
    model: Option<String>,
    #[serde(default)]
    prompts: Vec<Vec<u32>>,
    #[serde(default)]
    search: Map<String, Value>,
    max_new_tokens: Option<usize>,
    #[serde(default)]
    generated: Vec<Vec<u32>>,
}

/// The first place where tokens differ.
struct FirstDifference {
    row: usize,
    step: usize,
    expected: Option<u32>,
    found: Option<u32>,
    /// The likeliest tokens behind what was expected up to there, with the logarithms of their probabilities.
    likeliest: Vec<(u32, f64)>,
}

/// Verifies a model folder.
pub fn verify_folder(args: &VerifyArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let cases = read_cases(Path::new(&args.against), &args.model)?;
    let device = shared.device.is_some().then(|| shared.device());
    let text_options = TextOptions { runner: options(shared), device, ..TextOptions::default() };
    let folder = cx.console.during("opening", None, || open_text_model(&args.model, &text_options))?;
    let mut text = format!("verify   {} against {}\n", args.model.display(), args.against);
    let mut verdicts = Vec::new();
    let mut is_equal = true;
    for case in &cases {
        let differences = cx.console.during("verifying", None, || verify_case(&folder, case))?;
        let is_good = differences.is_empty();
        is_equal &= is_good;
        let _ = writeln!(text, "{}   {}", if is_good { "ok    " } else { "DIFFER" }, case.id);
        for (path, difference) in &differences {
            text.push_str(&difference_text(path, difference));
        }
        let differences: Vec<Value> = differences.iter().map(|(path, found)| difference_json(path, found)).collect();
        verdicts.push(json!({ "id": case.id, "equal": is_good, "differences": differences }));
    }
    let _ = writeln!(text, "verdict  {}", if is_equal { "equal tokens" } else { "tokens differ" });
    let json = json!({
        "model": args.model.display().to_string(),
        "against": args.against,
        "device": folder.model.device(),
        "cases": verdicts,
        "equal": is_equal,
    });
    let (exit, error) = match is_equal {
        true => (Exit::Done, None),
        false => (Exit::Differ, Some("tokens differ".to_string())),
    };
    Ok(Report { text, json, exit, error })
}

/// The cases of a file that are for this folder and say what is generated.
fn read_cases(path: &Path, folder: &Path) -> Result<Vec<GoldenCase>, Failure> {
    let refuse = |reason: String| Failure::usage(format!("'{}': {reason}", path.display()));
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(format!("{error}; --against of a model folder is a file of golden cases")))?;
    let golden: Golden = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let is_for = |case: &GoldenCase| case.model.is_none() || case.model == name;
    let cases: Vec<GoldenCase> =
        golden.cases.into_iter().filter(|case| is_for(case) && !case.generated.is_empty()).collect();
    if cases.is_empty() {
        return Err(refuse(format!("has no case for '{}'", name.unwrap_or_default())));
    }
    Ok(cases)
}

/// Where the tokens of a case differ, and by which path.
fn verify_case(folder: &TextFolder, case: &GoldenCase) -> Result<Vec<(&'static str, FirstDifference)>, Failure> {
    let params = params_of(&folder.model, case)?;
    let prompts: Vec<&[u32]> = case.prompts.iter().map(Vec::as_slice).collect();
    let mut found = Vec::new();
    let completions = generate(&folder.model, None, &params, &prompts, &mut |_| (), None).map_err(Error::from)?;
    found.push(("generator", completions));
    if params.search.num_beams == 1 {
        let engine = folder.engine(folder.engine_options())?;
        found.push(("engine", complete(&engine, &params, None, &prompts, &mut |_| ()).map_err(Error::from)?));
    }
    let mut differences = Vec::new();
    for (path, completions) in found {
        let answers: Vec<&Vec<u32>> = completions.answers.iter().map(|answer| &answer.tokens).collect();
        let rows = answers.len().max(case.generated.len());
        for row in 0..rows {
            let (expected, found) = (case.generated.get(row), answers.get(row).copied());
            if expected != found {
                let empty = Vec::new();
                let (expected, found) = (expected.unwrap_or(&empty), found.unwrap_or(&empty));
                differences.push((path, first_difference(&folder.model, &params, case, (row, expected, found))?));
            }
        }
    }
    Ok(differences)
}

fn params_of(model: &TextModel, case: &GoldenCase) -> Result<GeneratorParams, Failure> {
    let mut params = GeneratorParams::new(model.config().search.clone());
    for (name, value) in &case.search {
        let refused = |error: &dyn std::fmt::Display| Failure::usage(format!("case '{}': {error}", case.id));
        params.set(name, &value.to_string()).map_err(|error| refused(&error))?;
    }
    params.max_new_tokens = case.max_new_tokens.or(params.max_new_tokens);
    Ok(params)
}

fn first_difference(
    model: &TextModel,
    params: &GeneratorParams,
    case: &GoldenCase,
    (row, expected, found): (usize, &Vec<u32>, &Vec<u32>),
) -> Result<FirstDifference, Failure> {
    let step = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let mut params = params.clone();
    (params.search.num_beams, params.search.num_return_sequences, params.search.batch_size) = (1, 1, 1);
    params.search.max_length = model.config().model.context_length;
    let answers_of_a_prompt = (case.generated.len() / case.prompts.len().max(1)).max(1);
    let prompt = case.prompts.get(row / answers_of_a_prompt).map_or(&[][..], Vec::as_slice);
    let tokens = [prompt, &expected[..step]].concat();
    let mut generator = Generator::new(model, params).map_err(Error::from)?;
    generator.append(&[&tokens]).map_err(Error::from)?;
    let likeliest = top_logprobs(generator.logits(0).map_err(Error::from)?, SHOWN);
    let (expected, found) = (expected.get(step).copied(), found.get(step).copied());
    Ok(FirstDifference { row, step, expected, found, likeliest })
}

fn difference_text(path: &str, difference: &FirstDifference) -> String {
    let token = |token: Option<u32>| token.map_or("the end".to_string(), |token| token.to_string());
    let likeliest: Vec<String> =
        difference.likeliest.iter().map(|(token, logprob)| format!("{token} ({logprob:.4})")).collect();
    format!(
        "         {path}, row {}, step {}: {} was expected and {} came; likeliest here: {}\n",
        difference.row,
        difference.step,
        token(difference.expected),
        token(difference.found),
        likeliest.join(", ")
    )
}

fn difference_json(path: &str, difference: &FirstDifference) -> Value {
    json!({
        "path": path,
        "row": difference.row,
        "step": difference.step,
        "expected": difference.expected,
        "found": difference.found,
        "likeliest": difference.likeliest,
    })
}
