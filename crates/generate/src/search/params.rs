//! What a caller decides about the search. Ranges are checked once, when a generator takes them.

use std::collections::BTreeMap;

use crate::config::{SearchConfig, check_search_key, search_keys};
use crate::suggestion::nearest_key;

/// What a caller decides about the search.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratorParams {
    /// The options that a model folder also has.
    pub search: SearchConfig,
    /// Where each row's random numbers come from, in the order of the rows; all rows share the seed unless set.
    pub row_seeds: Vec<RowSeed>,
    /// Tokens to generate; no limit but the length of the sequence unless set.
    pub max_new_tokens: Option<usize>,
    /// Strings that end a row.
    pub stop: Vec<String>,
    /// Probability, as part of the likeliest one, below which tokens are dropped; 0 keeps all.
    pub min_p: f64,
    /// Subtracted once from scores of tokens that were generated.
    pub presence_penalty: f64,
    /// Subtracted from scores of tokens for every time that they were generated.
    pub frequency_penalty: f64,
    /// Added to scores, by token.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Likeliest tokens whose log-probabilities each step reports; none unless set.
    pub logprobs: Option<usize>,
    /// Which probabilities those are of.
    pub logprobs_mode: LogprobsMode,
    /// Tokens that end sequences are tokens like others.
    pub ignore_eos: bool,
    /// The token that ended a row becomes part of it.
    pub include_stop_token: bool,
}

/// Where the random numbers of a row come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(from = "Option<i64>")]
pub enum RowSeed {
    /// The seed of all rows, and the row's place among them.
    #[default]
    Shared,
    /// A seed of its own: the row's draws are those that it has alone, wherever it stands.
    Own(u64),
    /// A seed of its own from the system.
    FromSystem,
}

impl From<Option<i64>> for RowSeed {
    /// Nothing is the seed of all rows; -1, as any number below 0, one from the system.
    fn from(seed: Option<i64>) -> RowSeed {
        match seed.map(u64::try_from) {
            None => RowSeed::Shared,
            Some(Ok(seed)) => RowSeed::Own(seed),
            Some(Err(_)) => RowSeed::FromSystem,
        }
    }
}

/// Which probabilities log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsMode {
    /// All tokens by the scores that the model gives, before any rule.
    #[default]
    Raw,
    /// The tokens that may be drawn, after all rules; where the likeliest is taken, all that rules leave.
    Processed,
}

/// An option that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// Options beyond those of a model folder.
const OWN_KEYS: &[&str] = &[
    "row_seeds",
    "max_new_tokens",
    "stop",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "logprobs_mode",
    "ignore_eos",
    "include_stop_token",
    "n",
];

/// Likeliest tokens that a step may report.
const LOGPROBS_MAX: usize = 20;
/// Strings that may end a row.
const STOP_MAX: usize = 64;
/// Bytes of one of them: text that could become one is held back, and looked through with every token.
const STOP_BYTES_MAX: usize = 4096;
/// Answers to one prompt; each takes a row, which is made when the request is.
const ANSWERS_MAX: usize = 1024;
/// Size of a bias.
const BIAS_MAX: f32 = 100.0;

impl GeneratorParams {
    /// The options of a model folder and nothing more.
    pub fn new(search: SearchConfig) -> GeneratorParams {
        GeneratorParams {
            search,
            row_seeds: Vec::new(),
            max_new_tokens: None,
            stop: Vec::new(),
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            logprobs: None,
            logprobs_mode: LogprobsMode::Raw,
            ignore_eos: false,
            include_stop_token: false,
        }
    }

    /// Generates at most this many tokens.
    pub fn max_new_tokens(mut self, count: usize) -> GeneratorParams {
        self.max_new_tokens = Some(count);
        self
    }

    /// Draws tokens at this temperature.
    pub fn temperature(mut self, temperature: f64) -> GeneratorParams {
        self.search.temperature = temperature;
        self.search.do_sample = true;
        self
    }

    /// Keeps this much probability before drawing.
    pub fn top_p(mut self, top_p: f64) -> GeneratorParams {
        self.search.top_p = top_p;
        self
    }

    /// Keeps this many tokens before drawing.
    pub fn top_k(mut self, top_k: usize) -> GeneratorParams {
        self.search.top_k = top_k;
        self
    }

    /// Draws by this seed.
    pub fn seed(mut self, seed: u64) -> GeneratorParams {
        self.search.random_seed = Some(seed);
        self
    }

    /// Gives rows seeds of their own.
    pub fn row_seeds(mut self, seeds: impl IntoIterator<Item = RowSeed>) -> GeneratorParams {
        self.row_seeds = seeds.into_iter().collect();
        self
    }

    /// Ends a row where one of these strings appears.
    pub fn stop<S: Into<String>>(mut self, stop: impl IntoIterator<Item = S>) -> GeneratorParams {
        self.stop = stop.into_iter().map(Into::into).collect();
        self
    }

    /// Sets an option by its name, with its value as JSON.
    pub fn set(&mut self, name: &str, json: &str) -> Result<(), ParamsError> {
        let refused = |error: serde_json::Error| ParamsError(format!("{name}: '{json}' does not fit: {error}"));
        macro_rules! assign {
            ($field:expr) => {
                $field = serde_json::from_str(json).map_err(refused)?
            };
        }
        let search = &mut self.search;
        match name {
            "do_sample" => assign!(search.do_sample),
            "min_length" => assign!(search.min_length),
            "max_length" => assign!(search.max_length),
            "repetition_penalty" => assign!(search.repetition_penalty),
            "top_k" => assign!(search.top_k),
            "top_p" => assign!(search.top_p),
            "temperature" => assign!(search.temperature),
            "no_repeat_ngram_size" => assign!(search.no_repeat_ngram_size),
            "random_seed" => {
                let seed: i64 = serde_json::from_str(json).map_err(refused)?;
                search.random_seed = u64::try_from(seed).ok();
            }
            "row_seeds" => assign!(self.row_seeds),
            "chunk_size" => search.chunk_size = Some(serde_json::from_str(json).map_err(refused)?),
            "num_beams" => assign!(search.num_beams),
            "num_return_sequences" | "n" => assign!(search.num_return_sequences),
            "length_penalty" => assign!(search.length_penalty),
            "early_stopping" => assign!(search.early_stopping),
            "batch_size" => assign!(search.batch_size),
            "max_new_tokens" => self.max_new_tokens = Some(serde_json::from_str(json).map_err(refused)?),
            "stop" => assign!(self.stop),
            "min_p" => assign!(self.min_p),
            "presence_penalty" => assign!(self.presence_penalty),
            "frequency_penalty" => assign!(self.frequency_penalty),
            "logit_bias" => assign!(self.logit_bias),
            "logprobs" => self.logprobs = Some(serde_json::from_str(json).map_err(refused)?),
            "logprobs_mode" => assign!(self.logprobs_mode),
            "ignore_eos" => assign!(self.ignore_eos),
            "include_stop_token" => assign!(self.include_stop_token),
            _ => {
                // Keys of a folder that have no effect have none here either; others say why they are refused.
                if let Some(known) = check_search_key(name, json) {
                    return known.map_err(ParamsError);
                }
                let near = nearest_key(name, search_keys().chain(OWN_KEYS.iter().copied()));
                let hint = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
                return Err(ParamsError(format!("there is no option '{name}'{hint}")));
            }
        }
        Ok(())
    }

    /// Whether the likeliest token is taken.
    pub fn is_greedy(&self) -> bool {
        !self.search.do_sample || self.search.top_k == 1 || self.search.temperature == 0.0
    }

    /// Whether each token is the one of the largest score as the model gives it, and nothing else of the scores is wanted.
    pub fn takes_largest(&self) -> bool {
        let search = &self.search;
        let has_rules = search.repetition_penalty != 1.0
            || search.no_repeat_ngram_size > 0
            || search.min_length > 0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty();
        self.is_greedy() && !has_rules && self.logprobs.is_none()
    }

    /// Checks every range against a vocabulary of this many ids.
    pub fn check(&self, vocabulary: usize) -> Result<(), ParamsError> {
        let search = &self.search;
        let longest_stop = self.stop.iter().map(String::len).max().unwrap_or(0);
        let claims: &[(bool, &str, String)] = &[
            (search.temperature >= 0.0, "temperature of 0 or more", search.temperature.to_string()),
            ((0.0..=1.0).contains(&search.top_p), "top_p of 0 to 1", search.top_p.to_string()),
            ((0.0..=1.0).contains(&self.min_p), "min_p of 0 to 1", self.min_p.to_string()),
            (
                search.repetition_penalty > 0.0 && search.repetition_penalty.is_finite(),
                "repetition_penalty of more than 0",
                search.repetition_penalty.to_string(),
            ),
            (self.presence_penalty.is_finite(), "finite presence_penalty", self.presence_penalty.to_string()),
            (self.frequency_penalty.is_finite(), "finite frequency_penalty", self.frequency_penalty.to_string()),
            (search.length_penalty.is_finite(), "finite length_penalty", search.length_penalty.to_string()),
            ((1..=32).contains(&search.num_beams), "num_beams of 1 to 32", search.num_beams.to_string()),
            (
                (1..=ANSWERS_MAX).contains(&search.num_return_sequences),
                "num_return_sequences of 1 to 1024",
                search.num_return_sequences.to_string(),
            ),
            (search.chunk_size != Some(0), "chunk_size of 1 or more", "0".to_string()),
            (search.max_length > 0, "max_length of 1 or more", "0".to_string()),
            (
                self.logprobs.is_none_or(|count| count <= LOGPROBS_MAX),
                "logprobs of at most 20",
                format!("{:?}", self.logprobs),
            ),
            (self.stop.len() <= STOP_MAX, "at most 64 stop strings", self.stop.len().to_string()),
            (!self.stop.iter().any(String::is_empty), "stop strings that are not empty", "\"\"".to_string()),
            (
                longest_stop <= STOP_BYTES_MAX,
                "stop string of at most 4096 bytes",
                format!("one of {longest_stop} bytes"),
            ),
        ];
        if let Some((_, expected, found)) = claims.iter().find(|(holds, ..)| !holds) {
            return Err(ParamsError(format!("{found} was given; a {expected} was expected")));
        }
        self.check_together()?;
        match self
            .logit_bias
            .iter()
            .find(|(id, bias)| **id as usize >= vocabulary || bias.is_nan() || bias.abs() > BIAS_MAX)
        {
            Some((id, bias)) => Err(ParamsError(format!(
                "logit_bias {bias} of token {id}: a token below {vocabulary} and a bias of -100 to 100 were expected"
            ))),
            None => Ok(()),
        }
    }

    fn check_together(&self) -> Result<(), ParamsError> {
        let search = &self.search;
        if search.num_beams > 1 && search.do_sample {
            return Err(ParamsError("num_beams and do_sample exclude one another".to_string()));
        }
        // A search by beams compares whole answers, so there is no step at which one of these could be told.
        let tells_steps = [
            (!self.stop.is_empty(), "stop"),
            (self.logprobs.is_some(), "logprobs"),
            (self.include_stop_token, "include_stop_token"),
        ];
        if let (true, Some((_, name))) = (search.num_beams > 1, tells_steps.iter().find(|(is_set, _)| *is_set)) {
            return Err(ParamsError(format!("num_beams of {} and {name} exclude one another", search.num_beams)));
        }
        let is_sampling_many = search.num_beams == 1 && search.do_sample;
        if search.num_return_sequences > search.num_beams && !is_sampling_many {
            return Err(ParamsError(format!(
                "num_return_sequences is {}; at most num_beams ({}) was expected",
                search.num_return_sequences, search.num_beams
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::rules::test_params as params;
    use super::{LogprobsMode, RowSeed};

    #[test]
    fn options_are_set_by_name_and_misspelt_ones_are_errors() {
        let mut params = params();
        for (name, json) in
            [("top_k", "7"), ("stop", r#"["a"]"#), ("random_seed", "-1"), ("logit_bias", r#"{"3":1.5}"#)]
        {
            params.set(name, json).unwrap();
        }
        assert_eq!((params.search.top_k, params.search.random_seed, params.logit_bias[&3]), (7, None, 1.5));
        assert_eq!(params.set("topk", "1").unwrap_err().0, "there is no option 'topk'; did you mean 'top_k'?");
        assert!(params.set("top_k", "1.5").unwrap_err().0.starts_with("top_k: '1.5' does not fit"));
        params.set("row_seeds", "[7, null, -1]").unwrap();
        assert_eq!(params.row_seeds, [RowSeed::Own(7), RowSeed::Shared, RowSeed::FromSystem]);
        params.set("logprobs_mode", r#""processed""#).unwrap();
        assert_eq!(params.logprobs_mode, LogprobsMode::Processed);
        let error = params.set("logprobs_mode", r#""cooked""#).unwrap_err().0;
        assert!(error.contains("expected `raw` or `processed`"), "{error}");
    }

    #[test]
    fn keys_of_a_folder_are_taken_or_refused_as_there() {
        let mut params = params();
        for (name, json) in [("past_present_share_buffer", "true"), ("diversity_penalty", "0"), ("n", "3")] {
            params.set(name, json).unwrap();
        }
        assert_eq!(params.search.num_return_sequences, 3);
        let mut refused = |name: &str, json: &str| params.set(name, json).unwrap_err().0;
        assert_eq!(
            refused("past_present_share_buffer", "1"),
            "past_present_share_buffer is 1; true or false was expected"
        );
        assert_eq!(
            refused("diversity_penalty", "0.5"),
            "diversity_penalty must be 0: diverse beam search is not supported"
        );
        assert!(refused("audio_top_k", "5").starts_with("audio_top_k is not supported: speech models"));
    }

    #[test]
    fn beams_and_what_steps_tell_exclude_one_another() {
        for (name, json) in [("stop", r#"["x"]"#), ("logprobs", "1"), ("include_stop_token", "true")] {
            let mut params = params();
            params.set("num_beams", "2").unwrap();
            assert!(params.check(320).is_ok());
            params.set(name, json).unwrap();
            assert_eq!(params.check(320).unwrap_err().0, format!("num_beams of 2 and {name} exclude one another"));
        }
    }

    #[test]
    fn ranges_are_checked() {
        let message = |name: &str, json: &str| {
            let mut params = params();
            params.set(name, json).unwrap();
            params.check(320).unwrap_err().0
        };
        assert_eq!(message("top_p", "1.5"), "1.5 was given; a top_p of 0 to 1 was expected");
        assert_eq!(message("temperature", "-1"), "-1 was given; a temperature of 0 or more was expected");
        assert_eq!(
            message("num_return_sequences", "2"),
            "num_return_sequences is 2; at most num_beams (1) was expected"
        );
        assert!(message("logit_bias", r#"{"320":1}"#).contains("a token below 320"));
        assert!(params().check(320).is_ok());
    }
}
