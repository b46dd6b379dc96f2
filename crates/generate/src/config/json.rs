//! JSON whose every value knows where it was written, so that an error can point at it. Duplicate keys are kept, for the
//! check to report, and so is which file a value came from: an overlay is merged into a configuration value by value.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Bytes that a file of a configuration may have.
pub const BYTES_MAX: usize = 4 << 20;
/// Levels of nesting that a file of a configuration may have.
pub const DEPTH_MAX: usize = 64;

/// A file of a configuration, or an overlay.
#[derive(Clone, Debug)]
pub struct Source {
    /// What errors call it.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// A place in one of the sources of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which source.
    pub source: usize,
    /// Bytes before it.
    pub offset: usize,
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub place: Place,
    /// What it is.
    pub value: Json,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number as it was written.
    Number(serde_json::Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Node>),
    /// An object, in the order of the file and with duplicate keys.
    Object(Vec<Member>),
}

/// One key of an object with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub place: Place,
    /// The value.
    pub node: Node,
}

impl Json {
    /// What a person calls a value of this kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::Text(_) => "a string",
            Json::List(_) => "a list",
            Json::Object(_) => "an object",
        }
    }
}

impl Node {
    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.members().iter().find(|member| member.key == key).map(|member| &member.node)
    }

    /// The value at the end of a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The members of an object; none of anything else.
    pub fn members(&self) -> &[Member] {
        match &self.value {
            Json::Object(members) => members,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_) => &[],
        }
    }

    /// The value as an integer. `2.0` is one; `2.5` and what an i64 cannot hold are not.
    pub fn as_integer(&self) -> Option<i64> {
        let Json::Number(number) = &self.value else { return None };
        number.as_i64().or_else(|| {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 2f64.powi(53))?;
            Some(float as i64)
        })
    }

    /// The value as a float.
    pub fn as_float(&self) -> Option<f64> {
        match &self.value {
            Json::Number(number) => number.as_f64(),
            Json::Null | Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => None,
        }
    }

    /// The value as a string.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Json::Text(text) => Some(text),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::List(_) | Json::Object(_) => None,
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self.value {
            Json::Bool(value) => Some(value),
            Json::Null | Json::Number(_) | Json::Text(_) | Json::List(_) | Json::Object(_) => None,
        }
    }

    /// The elements of a list; none of anything else.
    pub fn elements(&self) -> &[Node] {
        match &self.value {
            Json::List(elements) => elements,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Object(_) => &[],
        }
    }

    /// A JSON merge patch (RFC 7396): objects are merged key by key, `null` deletes, anything else replaces.
    pub fn merge(&mut self, patch: Node) {
        let Json::Object(changes) = patch.value else {
            *self = patch;
            return;
        };
        if !matches!(self.value, Json::Object(_)) {
            *self = Node { place: patch.place, value: Json::Object(Vec::new()) };
        }
        let Json::Object(members) = &mut self.value else { return };
        for change in changes {
            let known = members.iter().position(|member| member.key == change.key);
            match (known, &change.node.value) {
                (Some(position), Json::Null) => drop(members.remove(position)),
                (Some(position), _) => members[position].node.merge(change.node),
                (None, Json::Null) => {}
                (None, _) => {
                    let mut node = Node { place: change.node.place, value: Json::Null };
                    node.merge(change.node);
                    members.push(Member { node, ..change });
                }
            }
        }
    }
}

/// A text that is no JSON, or too large to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFault {
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub message: String,
}

/// Reads a source, whose position among the sources of its configuration is `source`.
pub fn parse(text: &str, source: usize) -> Result<Node, JsonFault> {
    let fault = |offset: usize, message: String| JsonFault { place: Place { source, offset }, message };
    if text.len() > BYTES_MAX {
        return Err(fault(0, format!("{} bytes; at most {BYTES_MAX} are read", text.len())));
    }
    if let Some(offset) = too_deep(text) {
        return Err(fault(offset, format!("nested more than {DEPTH_MAX} levels deep")));
    }
    let raw: &RawValue = serde_json::from_str(text)
        .map_err(|error| fault(offset_of(text, error.line(), error.column()), without_place(&error)))?;
    Reader { text, source }.node(raw)
}

/// What an error says before it counts lines, which it does from wherever it began to read.
fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or(&message).to_string()
}

/// Where nesting first goes too deep.
fn too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut is_text, mut is_escaped) = (0usize, false, false);
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => depth += 1,
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Some(offset);
        }
    }
    None
}

/// The offset of a line and column that count from 1.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

/// The line and column of an offset, counted from 1; columns count characters.
pub fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
}

/// Turns borrowed pieces of a text into Nodes: where a piece lies in the text is where it was written.
struct Reader<'t> {
    text: &'t str,
    source: usize,
}

impl<'t> Reader<'t> {
    fn node(&self, raw: &'t RawValue) -> Result<Node, JsonFault> {
        let text = raw.get();
        let value = match text.as_bytes().first() {
            Some(b'{') => {
                let members: Members<'t> = self.read(text)?;
                let member = |(key, raw)| self.member(key, raw);
                Json::Object(members.0.into_iter().map(member).collect::<Result<_, _>>()?)
            }
            Some(b'[') => {
                let elements: Vec<&'t RawValue> = self.read(text)?;
                Json::List(elements.into_iter().map(|raw| self.node(raw)).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Json::Text(self.read(text)?),
            Some(b't' | b'f') => Json::Bool(self.read(text)?),
            Some(b'n') => Json::Null,
            _ => Json::Number(self.read(text)?),
        };
        Ok(Node { place: self.place(text), value })
    }

    fn member(&self, key: &'t RawValue, raw: &'t RawValue) -> Result<Member, JsonFault> {
        Ok(Member { key: self.read(key.get())?, place: self.place(key.get()), node: self.node(raw)? })
    }

    fn read<T: Deserialize<'t>>(&self, piece: &'t str) -> Result<T, JsonFault> {
        serde_json::from_str(piece)
            .map_err(|error| JsonFault { place: self.place(piece), message: without_place(&error) })
    }

    fn place(&self, piece: &str) -> Place {
        Place { source: self.source, offset: piece.as_ptr().addr() - self.text.as_ptr().addr() }
    }
}

/// The members of an object as they are written; a map would drop duplicates.
struct Members<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'t> Deserialize<'t> for Members<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Members<'t>, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// Collects the members that it is shown.
struct MembersVisitor;

impl<'t> Visitor<'t> for MembersVisitor {
    type Value = Members<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Members<'t>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The value without places.
    fn plain(node: &Node) -> serde_json::Value {
        match &node.value {
            Json::Null => serde_json::Value::Null,
            Json::Bool(value) => (*value).into(),
            Json::Number(number) => number.clone().into(),
            Json::Text(text) => text.clone().into(),
            Json::List(elements) => elements.iter().map(plain).collect(),
            Json::Object(members) => members
                .iter()
                .map(|member| (member.key.clone(), plain(&member.node)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }

    #[test]
    fn values_know_their_line_and_column() {
        let text = "{\n  \"a\": [1, 2.0, \"\\u00e9\"],\n  \"ü\": {\"c\": true}\n}";
        let node = parse(text, 0).unwrap();
        let place = |path: &[&str]| line_and_column(text, node.at(path).unwrap().place.offset);
        assert_eq!(place(&["a"]), (2, 8));
        assert_eq!(place(&["ü", "c"]), (3, 14));
        let elements = node.get("a").unwrap().elements();
        assert_eq!(elements[1].as_integer(), Some(2));
        assert_eq!(elements[2].as_text(), Some("é"));
    }

    #[test]
    fn broken_texts_are_refused_where_they_break() {
        let message = |text: &str| {
            let fault = parse(text, 0).unwrap_err();
            (line_and_column(text, fault.place.offset), fault.message)
        };
        assert_eq!(message("{\n \"a\" 1}"), ((2, 6), "expected `:`".to_string()));
        assert_eq!(message(&"[".repeat(65)).1, "nested more than 64 levels deep");
        assert!(parse(&format!("{}1{}", "[".repeat(64), "]".repeat(64)), 0).is_ok());
        assert!(message("{\"a\":1} x").1.contains("trailing"));
        assert_eq!(message("[1,\n \"\\ud800\"]"), ((2, 2), "unexpected end of hex escape".to_string()));
    }

    #[test]
    fn a_merge_patch_follows_the_examples_of_its_specification() {
        let cases = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ];
        for (target, patch, expected) in cases {
            let mut node = parse(target, 0).unwrap();
            node.merge(parse(patch, 1).unwrap());
            assert_eq!(plain(&node), serde_json::from_str::<serde_json::Value>(expected).unwrap(), "{target} {patch}");
        }
    }
}
