//! Inputs that a model accepts, found by trying: where guessed sizes turn out wrong for the model, a few other usual ones
//! are tried, so that a first command works without flags. What is used in the end is announced.

use precast::{Error, ErrorKind, ImportError, InputInfo, Runner};

use crate::args::InputArgs;
use crate::exit::{Exit, Failure};
use crate::inputs::{Guess, Inputs, dim_flag, make_inputs};
use crate::output::Console;

/// Sizes to try after the guess: mel bands, images, windows of audio, frames of audio. 1 comes last, for it broadcasts and
/// so may be accepted where it makes no sense.
const USUAL_SIZES: [usize; 6] = [80, 224, 256, 512, 3000, 1];
/// Guessed dims that are varied together; beyond this each is varied alone.
const VARIED_TOGETHER: u32 = 2;

/// Makes the inputs and does the work with them; if guessed sizes do not fit the runner's model, with others that do.
pub fn with_inputs<T>(
    declared: &[InputInfo],
    runner: Option<&Runner>,
    args: &InputArgs,
    console: &Console,
    mut work: impl FnMut(&Inputs) -> Result<T, Failure>,
) -> Result<(Inputs, T), Failure> {
    let inputs = make_inputs(declared, args, console)?;
    let failure = match work(&inputs) {
        Ok(result) => return Ok((inputs, result)),
        Err(failure) if failure.exit != Exit::Model || inputs.guesses.is_empty() => return Err(failure),
        Err(failure) => failure,
    };
    let try_others = |runner| console.during("trying other sizes", None, || refit(runner, args, console, &inputs));
    let other = runner.and_then(try_others);
    match other {
        Some(other) => {
            let flags: Vec<String> = other.bucket.dims().map(|(dim, size)| dim_flag(dim, size as usize)).collect();
            console.notice(&format!("the model does not accept these sizes; used instead: {}", flags.join(" ")));
            let result = work(&other)?;
            Ok((other, result))
        }
        None => Err(inputs.explain(failure)),
    }
}

/// The first usual sizes for which the model can be imported.
fn refit(runner: &Runner, args: &InputArgs, console: &Console, guess: &Inputs) -> Option<Inputs> {
    if !is_about_sizes(runner, guess) {
        return None;
    }
    let declared = runner.model().inputs().ok()?;
    let varied: Vec<&Guess> = guess.guesses.iter().filter(|guess| !guess.is_row).collect();
    for sizes in alternatives(varied.len() as u32) {
        let mut shapes = args.shapes.clone();
        let dims = varied.iter().zip(sizes);
        shapes.dims.extend(dims.map(|(guess, size)| (guess.dim.clone(), size.unwrap_or(guess.size))));
        let args = InputArgs { inputs: args.inputs.clone(), seed: args.seed, shapes };
        let inputs = make_inputs(&declared, &args, &console.silent()).ok()?;
        if runner.graph(&inputs.tensors).is_ok() {
            return Some(inputs);
        }
    }
    None
}

/// Whether other sizes could help: a node that is not covered stays so.
fn is_about_sizes(runner: &Runner, guess: &Inputs) -> bool {
    match runner.graph(&guess.tensors) {
        Ok(_) | Err(Error::Import(ImportError::Unsupported { .. })) => false,
        Err(error) => error.kind() == ErrorKind::Model,
    }
}

/// Sizes to try for so many dims, fewest changes first; none keeps the guess.
fn alternatives(dims: u32) -> Vec<Vec<Option<usize>>> {
    let choices = USUAL_SIZES.len() + 1;
    let combinations = if dims <= VARIED_TOGETHER { choices.pow(dims) } else { 0 };
    let choice = |digit: usize| digit.checked_sub(1).map(|digit| USUAL_SIZES[digit]);
    let mut lists: Vec<Vec<Option<usize>>> = (1..combinations)
        .map(|number| (0..dims).map(|dim| choice(number / choices.pow(dim) % choices)).collect())
        .collect();
    if dims > VARIED_TOGETHER {
        for changed in 0..dims {
            lists.extend(USUAL_SIZES.map(|size| (0..dims).map(|dim| (dim == changed).then_some(size)).collect()));
        }
    }
    lists.sort_by_key(|list| list.iter().flatten().count());
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewest_changes_come_first_and_none_is_tried_twice() {
        let lists = alternatives(2);
        assert_eq!(lists.len(), 48);
        assert_eq!(lists[..2], [vec![Some(80), None], vec![Some(224), None]]);
        assert_eq!(lists[47], [Some(1), Some(1)]);
        assert_eq!(alternatives(5).len(), 30);
        assert_eq!(alternatives(0), Vec::<Vec<Option<usize>>>::new());
    }
}
