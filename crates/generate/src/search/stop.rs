//! Stop strings on text that comes in pieces. Text that could still become a stop string is held back.

use aho_corasick::AhoCorasick;

use super::params::ParamsError;

/// What a piece of text gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that is no part of a stop string.
    pub text: String,
    /// The stop string that appeared, by its position.
    pub stop: Option<usize>,
}

/// Looks for stop strings across the borders of pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    automaton: Option<AhoCorasick>,
    strings: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Looks for these strings.
    pub fn new(strings: &[String]) -> Result<StopMatcher, ParamsError> {
        let automaton = match strings.is_empty() {
            true => None,
            false => Some(AhoCorasick::new(strings).map_err(|error| ParamsError(format!("stop strings: {error}")))?),
        };
        Ok(StopMatcher { automaton, strings: strings.to_vec(), held: String::new() })
    }

    /// Adds a piece of text. The string that ends first counts; of those that end together the longest.
    pub fn push(&mut self, piece: &str) -> Passed {
        self.held.push_str(piece);
        let Some(automaton) = &self.automaton else {
            return Passed { text: std::mem::take(&mut self.held), stop: None };
        };
        let matches = automaton.find_overlapping_iter(&self.held);
        let first = matches.min_by_key(|found| (found.end(), found.start(), found.pattern()));
        if let Some(found) = first {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(found.start());
            return Passed { text, stop: Some(found.pattern().as_usize()) };
        }
        let held = self.held.split_off(self.held.len() - self.held_back());
        Passed { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// What was held back, when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the text that a stop string begins with.
    fn held_back(&self) -> usize {
        let begins = |length: usize| {
            let end = self.held.len() - length;
            self.held.is_char_boundary(end) && self.strings.iter().any(|stop| stop.starts_with(&self.held[end..]))
        };
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0).min(self.held.len());
        (1..=longest).rev().find(|&length| begins(length)).unwrap_or(0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(strings: &[&str]) -> StopMatcher {
        StopMatcher::new(&strings.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    /// The text that passes and the stop string, for text in these pieces.
    fn run(strings: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = matcher(strings);
        let mut text = String::new();
        for piece in pieces {
            let passed = matcher.push(piece);
            text.push_str(&passed.text);
            if passed.stop.is_some() {
                return (text, passed.stop);
            }
        }
        (text + &matcher.finish(), None)
    }

    #[test]
    fn a_string_is_found_across_pieces_and_its_beginning_held_back() {
        let mut matcher = matcher(&["\n\n", "end"]);
        assert_eq!(matcher.push("a\n"), Passed { text: "a".to_string(), stop: None });
        assert_eq!(matcher.push("b e"), Passed { text: "\nb ".to_string(), stop: None });
        assert_eq!(matcher.push("n"), Passed { text: String::new(), stop: None });
        assert_eq!(matcher.push("d of"), Passed { text: String::new(), stop: Some(1) });
        assert_eq!(run(&["xyz"], &["xy"]), ("xy".to_string(), None));
        assert_eq!(run(&[], &["a", "b"]), ("ab".to_string(), None));
        assert_eq!(run(&["é日"], &["é", "日x"]), (String::new(), Some(0)));
    }

    proptest! {
        #[test]
        fn how_text_is_cut_does_not_matter(
            text in "[ab]{0,12}", cuts in prop::collection::vec(1usize..4, 12), stops in prop::collection::vec("[ab]{1,4}", 0..3),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            prop_assert_eq!(run(&stops, &pieces), run(&stops, &[&text]));
        }
    }
}
