//! Known words for error messages: a list of them, and the one nearest to a misspelt one.

use precast_generate::suggestion::edit_distance;

/// Words of a list before the rest is only counted.
const LISTED_MAX: usize = 8;

/// What there is instead of `word`, as the second half of a sentence.
pub fn listed(word: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return "there are none".to_string();
    }
    let hint = nearest(word, known.iter().copied()).map_or(String::new(), |near| format!(". Did you mean '{near}'?"));
    let shown: Vec<String> = known.iter().take(LISTED_MAX).map(|name| format!("'{name}'")).collect();
    let rest = if known.len() > LISTED_MAX { format!(", … ({} in all)", known.len()) } else { String::new() };
    format!("there are {}{rest}{hint}", shown.join(", "))
}

/// The candidate with the fewest edits from `word`, if that is few enough to be a slip.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(1);
    let distances = candidates.into_iter().map(|candidate| (edit_distance(word, candidate), candidate));
    distances.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..20).map(|number| format!("name_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(listed("nothing like it", &names).ends_with("'name_7', … (20 in all)"));
        assert_eq!(listed("x", &[]), "there are none");
    }

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        assert_eq!(nearest("input_id", ["input_ids", "attention_mask"]), Some("input_ids"));
        assert_eq!(nearest("x", ["input_ids", "y"]), Some("y"));
        assert_eq!(nearest("pixels", ["input_ids"]), None);
    }
}
