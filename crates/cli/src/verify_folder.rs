//! `verify` of a model folder: tokens, ends and scores of golden cases, by the generator and by the engine, and scripts of
//! calls. Any difference ends with the exit code of outputs that differ, and shows the first step that does.

use std::fmt::Write;
use std::path::Path;

use precast::generate::config::Folder;
use precast::generate::golden::{Difference, Golden, GoldenCase, GoldenError};
use precast::{Adapter, Error, TextFolder, TextOptions, open_text_model};
use serde_json::{Value, json};

use crate::Cx;
use crate::args::{Shared, VerifyArgs};
use crate::exit::{Exit, Failure};
use crate::output::Report;
use crate::subject::options;

/// Cases of a file: those for this folder, and names of those that are not verified.
struct Chosen {
    cases: Vec<GoldenCase>,
    /// For other folders.
    elsewhere: Vec<String>,
    /// Nothing in them can differ.
    empty: Vec<String>,
}

/// Verifies a model folder.
pub fn verify_folder(args: &VerifyArgs, shared: &Shared, cx: &Cx) -> Result<Report, Failure> {
    let Chosen { cases, elsewhere, empty } = read_cases(Path::new(&args.against), &args.model)?;
    let device = shared.device.is_some().then(|| shared.device());
    let text_options =
        TextOptions { runner: options(shared), threads: shared.threads, device, ..TextOptions::default() };
    let mut folder = cx.console.during("opening", None, || open_text_model(&args.model, &text_options))?;
    let mut text = format!("verify   {} against {}\n", args.model.display(), args.against);
    let mut verdicts = Vec::new();
    let mut equal = 0;
    for case in &cases {
        let adapter = case.adapter.as_deref().map(|file| adapter_of(&folder, &args.model, file)).transpose()?;
        folder.model = folder.model.with_adapter(adapter.as_ref()).map_err(Error::from)?;
        let differences = cx.console.during("verifying", None, || verify_case(case, &folder))?;
        let is_good = differences.is_empty();
        equal += usize::from(is_good);
        let _ = writeln!(text, "{}   {}", if is_good { "ok    " } else { "DIFFER" }, case.id);
        for difference in &differences {
            let _ = writeln!(text, "         {}", difference.text);
        }
        let differences: Vec<&Value> = differences.iter().map(|difference| &difference.json).collect();
        verdicts.push(json!({ "id": case.id, "equal": is_good, "differences": differences }));
    }
    let is_equal = equal == cases.len();
    for (names, why) in [(&elsewhere, "for other folders"), (&empty, "say nothing that could differ")] {
        if !names.is_empty() {
            let _ = writeln!(text, "skipped  {} {why}: {}", names.len(), names.join(", "));
        }
    }
    let _ = writeln!(text, "cases    {} equal of {}", equal, cases.len());
    let _ = writeln!(text, "verdict  {}", if is_equal { "equal tokens" } else { "tokens differ" });
    let json = json!({
        "model": args.model.display().to_string(),
        "against": args.against,
        "device": folder.model.device(),
        "cases": verdicts,
        "equal_cases": equal,
        "skipped": { "for_other_folders": elsewhere, "without_a_check": empty },
        "equal": is_equal,
    });
    let (exit, error) = match is_equal {
        true => (Exit::Done, None),
        false => (Exit::Differ, Some("tokens differ".to_string())),
    };
    Ok(Report { text, json, exit, error })
}

/// Where what the folder says to a case differs, by the generator and by the engine.
fn verify_case(case: &GoldenCase, folder: &TextFolder) -> Result<Vec<Difference>, Failure> {
    let model = &folder.model;
    let params = case.params(model).map_err(failure)?;
    let mut differences = case.judge_generator(model, &params).map_err(failure)?;
    if !case.generated.is_empty() && params.search.num_beams == 1 {
        let engine = folder.engine(folder.engine_options())?;
        differences.extend(case.judge_engine(&engine, model, &params).map_err(failure)?);
    }
    differences.extend(case.judge_logits(model, &params).map_err(failure)?);
    differences.extend(case.judge_script(model, &params).map_err(failure)?);
    Ok(differences)
}

fn failure(error: GoldenError) -> Failure {
    match error {
        GoldenError::Params { .. } => Failure::usage(error.to_string()),
        GoldenError::Generate(error) => Error::from(error).into(),
        GoldenError::Engine(error) => Error::from(error).into(),
    }
}

/// The adapter of a file inside the folder, which is loaded once.
fn adapter_of(folder: &TextFolder, root: &Path, file: &str) -> Result<Adapter, Error> {
    if let Ok(adapter) = folder.adapters.get(file) {
        return Ok(adapter);
    }
    folder.load_adapter(file, &Folder::open(root)?.path(file)?)
}

fn read_cases(path: &Path, folder: &Path) -> Result<Chosen, Failure> {
    let refuse = |reason: String| Failure::usage(format!("'{}': {reason}", path.display()));
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(format!("{error}; --against of a model folder is a file of golden cases")))?;
    let golden: Golden = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut chosen = Chosen { cases: Vec::new(), elsewhere: Vec::new(), empty: Vec::new() };
    for case in golden.cases {
        match (case.model.is_none() || case.model == name, case.says_something()) {
            (false, _) => chosen.elsewhere.push(case.id),
            (true, false) => chosen.empty.push(case.id),
            (true, true) => chosen.cases.push(case),
        }
    }
    if chosen.cases.is_empty() {
        return Err(refuse(format!("has no case for '{}'", name.unwrap_or_default())));
    }
    Ok(chosen)
}
