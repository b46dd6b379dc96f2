//! Methods of Python's strings that chat templates call and `minijinja_contrib::pycompat` does not have. Methods that change a
//! list are refused: transformers renders in a sandbox that refuses them too.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// A method that a value does not have by itself.
pub fn call_method(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let text = value.as_str().filter(|_| value.kind() == ValueKind::String);
    let own = match text {
        Some(text) => call_text_method(text, method, args),
        None => None,
    };
    own.unwrap_or_else(|| minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args))
}

/// A method of a string; none if it is not one of these.
fn call_text_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => {
            from_args::<(&str,)>(args).map(|(prefix,)| Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            from_args::<(&str,)>(args).map(|(suffix,)| Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => from_args::<(&str,)>(args).and_then(|(separator,)| match separator {
            "" => Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: the separator is empty"))),
            separator => Ok(parts(partition(text, separator, method == "rpartition"))),
        }),
        "rsplit" => from_args::<(Option<&str>, Option<i64>)>(args).and_then(|(separator, count)| {
            let count = usize::try_from(count.unwrap_or(-1)).ok();
            match separator {
                Some("") => Err(Error::new(ErrorKind::InvalidOperation, "rsplit: the separator is empty")),
                separator => Ok(parts(split_from_the_end(text, separator, count))),
            }
        }),
        _ => return None,
    })
}

/// A text before, at and behind the first or the last place of a separator.
fn partition<'t>(text: &'t str, separator: &'t str, is_last: bool) -> [&'t str; 3] {
    let cut = if is_last { text.rsplit_once(separator) } else { text.split_once(separator) };
    match (cut, is_last) {
        (Some((before, after)), _) => [before, separator, after],
        (None, true) => ["", "", text],
        (None, false) => [text, "", ""],
    }
}

/// A list of texts.
fn parts<'t>(texts: impl IntoIterator<Item = &'t str>) -> Value {
    texts.into_iter().map(Value::from).collect()
}

/// Parts of a text, cut at most so often, from the end; without a separator, runs of white space are one.
fn split_from_the_end<'t>(text: &'t str, separator: Option<&str>, count: Option<usize>) -> Vec<&'t str> {
    let mut parts = Vec::new();
    let mut rest = if separator.is_none() { text.trim() } else { text };
    while count.is_none_or(|count| parts.len() < count) {
        let cut = match separator {
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace).map(|(before, after)| (before.trim_end(), after)),
        };
        let Some((before, after)) = cut else { break };
        parts.push(after);
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest);
    }
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_from_their_end() {
        assert_eq!(split_from_the_end("a,b,c", Some(","), Some(1)), ["a,b", "c"]);
        assert_eq!(split_from_the_end("a,b,c", Some(","), None), ["a", "b", "c"]);
        assert_eq!(split_from_the_end("", Some(","), None), [""]);
        assert_eq!(split_from_the_end("  a b  c ", None, Some(1)), ["a b", "c"]);
        assert_eq!(split_from_the_end("  ", None, None), [""; 0]);
    }
}
