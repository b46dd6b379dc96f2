//! How far two words are apart, for saying which known word a misspelt one may have meant.

/// Insertions, deletions and replacements that turn one word into the other.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The candidate with the fewest edits from a key, ignoring case and which of `-` and `_` was written; none if the nearest
/// is too far to be a slip.
pub fn nearest_key<'a>(key: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let (key, edits_max) = (plain(key), (key.chars().count() / 3).max(2));
    let distances = candidates.into_iter().map(|candidate| (edit_distance(&key, &plain(candidate)), candidate));
    distances.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(nearest_key("serch", ["model", "search"]), Some("search"));
        assert_eq!(nearest_key("Max-Length", ["min_length", "max_length"]), Some("max_length"));
        assert_eq!(nearest_key("pixels", ["input_ids"]), None);
    }
}
