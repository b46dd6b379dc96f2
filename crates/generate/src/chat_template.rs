//! Chat templates: a conversation becomes a text as transformers would write it. Templates are Jinja as Python has it, so
//! values print as Python prints them, and a template that does not end runs out of fuel.

use std::collections::BTreeMap;

use chrono::{DateTime, Local};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, ErrorKind, Output, State, Value};
use serde::Serialize;

use crate::python_methods::call_method;

/// Steps that a template may take; a conversation of thousands of messages takes a small part of it.
const FUEL: u64 = 20_000_000;

/// Name of the template in its environment.
const NAME: &str = "chat_template";

/// A value that templates see: messages, tools, documents.
#[derive(Clone, Debug)]
pub struct ChatValue(Value);

impl ChatValue {
    /// Reads JSON. The order of keys is kept, since templates print it.
    pub fn from_json(text: &str) -> Result<ChatValue, TemplateError> {
        serde_json::from_str(text).map(ChatValue).map_err(|error| TemplateError::Json(error.to_string()))
    }

    /// A conversation of texts: role and content of each message.
    pub fn of_messages<'m>(messages: impl IntoIterator<Item = (&'m str, &'m str)>) -> ChatValue {
        let message =
            |(role, content): (&str, &str)| -> Value { [("role", role), ("content", content)].into_iter().collect() };
        ChatValue(messages.into_iter().map(message).collect())
    }
}

/// What a conversation is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Tools that the model may call.
    pub tools: Option<ChatValue>,
    /// Documents that the model may quote.
    pub documents: Option<ChatValue>,
    /// Further variables, by name.
    pub variables: BTreeMap<String, ChatValue>,
    /// What `strftime_now` says; the clock of this machine unless set.
    pub now: Option<DateTime<Local>>,
}

/// Why a conversation did not become a text.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// There is no template.
    #[error(
        "the folder has no chat template: neither chat_template.jinja nor a 'chat_template' in tokenizer_config.json"
    )]
    Missing,
    /// There are several templates and none is the one to take.
    #[error("the folder has the chat templates {0}; one called 'default' was expected")]
    NoDefault(String),
    /// The template cannot be read.
    #[error("the chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refuses the conversation, in its own words.
    #[error("the chat template refuses: {0}")]
    Refused(String),
    /// The template cannot be run on this conversation.
    #[error("the chat template failed: {0}")]
    Run(String),
    /// A value is not JSON.
    #[error("not JSON: {0}")]
    Json(String),
}

/// A template, ready to render.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Special tokens, which templates see by name.
    special: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Reads a template.
    pub fn new(source: &str, special: BTreeMap<String, String>) -> Result<ChatTemplate, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(call_method);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(print_as_python);
        environment.add_function("raise_exception", refuse);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, without_generation_marks(source))
            .map_err(|error| TemplateError::Syntax(describe(&error)))?;
        Ok(ChatTemplate { environment, special })
    }

    /// The text of a conversation.
    pub fn render(&self, messages: &ChatValue, options: &ChatOptions) -> Result<String, TemplateError> {
        let mut variables: BTreeMap<&str, Value> =
            self.special.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str()))).collect();
        variables.extend(options.variables.iter().map(|(name, value)| (name.as_str(), value.0.clone())));
        let optional = |value: &Option<ChatValue>| value.as_ref().map_or(Value::from(()), |value| value.0.clone());
        variables.insert("messages", messages.0.clone());
        variables.insert("tools", optional(&options.tools));
        variables.insert("documents", optional(&options.documents));
        variables.insert("add_generation_prompt", Value::from(options.add_generation_prompt));
        let now = options.now.unwrap_or_else(Local::now);
        variables.insert(NOW, Value::from(now.to_rfc3339()));
        let template = self.environment.get_template(NAME).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        template.render(variables).map_err(|error| match refusal(&error) {
            Some(reason) => TemplateError::Refused(reason),
            None => TemplateError::Run(describe(&error)),
        })
    }
}

/// The variable that holds the time for `strftime_now`.
const NOW: &str = "precast_now";

/// What a refusal's message begins with.
const REFUSAL: &str = "raise_exception: ";

fn refuse(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{message}")))
}

fn refusal(error: &minijinja::Error) -> Option<String> {
    Some(error.detail()?.strip_prefix(REFUSAL)?.to_string())
}

fn describe(error: &minijinja::Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
    format!("{}{line}", error.detail().map_or_else(|| error.kind().to_string(), ToString::to_string))
}

fn strftime_now(state: &State<'_, '_>, format: String) -> Result<String, minijinja::Error> {
    use std::fmt::Write;
    let invalid = || minijinja::Error::new(ErrorKind::InvalidOperation, format!("'{format}' is no format of a time"));
    let now = state.lookup(NOW).and_then(|now| DateTime::parse_from_rfc3339(now.as_str()?).ok()).ok_or_else(invalid)?;
    let mut text = String::new();
    write!(text, "{}", now.format(&format)).map_err(|_| invalid())?;
    Ok(text)
}

/// Marks of what the assistant said, which only training reads; what is between them stays.
fn without_generation_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}").map(|end| end + 2) else { break };
        let tag = &rest[start..start + length];
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        text.push_str(&rest[..start]);
        match word {
            "generation" => text.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = &rest[start + length..];
    }
    text.push_str(rest);
    text
}

/// Prints a value as Python's `str` does.
fn print_as_python(out: &mut Output<'_>, _state: &State<'_, '_>, value: &Value) -> Result<(), minijinja::Error> {
    let text = match value.kind() {
        ValueKind::String => value.to_string(),
        ValueKind::Undefined => String::new(),
        _ => python_repr(value),
    };
    out.write_str(&text).map_err(minijinja::Error::from)
}

/// A value as Python's `repr` prints it.
fn python_repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => "None".to_string(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_string(),
        ValueKind::String => {
            let text = value.to_string();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let escaped = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r");
            let escaped = if quote == '\'' { escaped.replace('\'', "\\'") } else { escaped };
            format!("{quote}{escaped}{quote}")
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let elements: Vec<String> =
                value.try_iter().into_iter().flatten().map(|value| python_repr(&value)).collect();
            format!("[{}]", elements.join(", "))
        }
        ValueKind::Map => {
            let member = |key: Value| {
                let value = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", python_repr(&key), python_repr(&value))
            };
            let members: Vec<String> = value.try_iter().into_iter().flatten().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
        _ => value.to_string(),
    }
}

/// JSON as Python's `json.dumps` prints it: a space behind each comma and colon, and with `indent` one member a line.
fn to_json(value: Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let is_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorts: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match separators.as_deref() {
        None => (comma, ": "),
        Some([comma, colon]) => (comma.as_str(), colon.as_str()),
        Some(_) => {
            let reason = "tojson: two separators were expected, one between members and one behind keys";
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason));
        }
    };
    let failed = |error: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string());
    let value = match sorts {
        Some(true) => {
            let mut sorted = serde_json::to_value(&value).map_err(failed)?;
            sorted.sort_all_objects();
            Value::from_serialize(sorted)
        }
        Some(false) | None => value,
    };
    let mut bytes = Vec::new();
    let layout = PythonLayout { comma, colon, indent, depth: 0, has_members: false };
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, layout)).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if is_ascii == Some(true) { in_ascii(&text) } else { text })
}

/// Other characters as `\uXXXX`.
fn in_ascii(text: &str) -> String {
    let escape = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    text.chars().map(escape).collect()
}

/// How `json.dumps` lays JSON out.
struct PythonLayout<'a> {
    comma: &'a str,
    colon: &'a str,
    indent: Option<usize>,
    depth: usize,
    /// Whether the array or object that ends has members; an empty one stays on its line.
    has_members: bool,
}

impl PythonLayout<'_> {
    fn begin<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.has_members = false;
        writer.write_all(bracket)
    }

    fn member<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if !first {
            writer.write_all(self.comma.as_bytes())?;
        }
        self.line(writer)
    }

    fn end<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth -= 1;
        if self.has_members {
            self.line(writer)?;
        }
        self.has_members = true;
        writer.write_all(bracket)
    }

    fn line<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{}", " ".repeat(indent * self.depth)),
            None => Ok(()),
        }
    }
}

impl serde_json::ser::Formatter for PythonLayout<'_> {
    fn begin_array<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.begin(writer, b"[")
    }

    fn end_array<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.end(writer, b"]")
    }

    fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        self.member(writer, first)
    }

    fn end_array_value<W: std::io::Write + ?Sized>(&mut self, _writer: &mut W) -> std::io::Result<()> {
        self.has_members = true;
        Ok(())
    }

    fn begin_object<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.begin(writer, b"{")
    }

    fn end_object<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        self.end(writer, b"}")
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        self.member(writer, first)
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: std::io::Write + ?Sized>(&mut self, _writer: &mut W) -> std::io::Result<()> {
        self.has_members = true;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn render(source: &str, messages: &str, options: &ChatOptions) -> Result<String, TemplateError> {
        let special = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
        ChatTemplate::new(source, special)?.render(&ChatValue::from_json(messages)?, options)
    }

    fn text(source: &str, messages: &str) -> String {
        render(source, messages, &ChatOptions::default()).unwrap()
    }

    #[test]
    fn values_print_as_python_prints_them() {
        let messages = r#"[{"b": true, "a": [1, 2.5, null, "it's"], "c": "x"}]"#;
        assert_eq!(text("{{ messages }}", messages), r#"[{'b': True, 'a': [1, 2.5, None, "it's"], 'c': 'x'}]"#);
        assert_eq!(text("{{ messages|tojson }}", messages), r#"[{"b": true, "a": [1, 2.5, null, "it's"], "c": "x"}]"#);
        assert_eq!(text("{{ messages[0].a|tojson(indent=2) }}", messages), "[\n  1,\n  2.5,\n  null,\n  \"it's\"\n]");
        assert_eq!(
            text("{{ 'é🙂'|tojson(ensure_ascii=true) }}{{ 'é'|tojson }}", "[]"),
            "\"\\u00e9\\ud83d\\ude42\"\"é\""
        );
        assert_eq!(text("{{ {'b':1,'a':2}|tojson(sort_keys=true) }}", "[]"), r#"{"a": 2, "b": 1}"#);
        assert_eq!(text("{{ tools }}|{{ nothing }}|{{ bos_token }}", "[]"), "None||<s>");
        assert_eq!(text("{{ '<a>&' }}", "[]"), "<a>&");
    }

    #[test]
    fn python_methods_loop_controls_and_namespaces_work() {
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\
                      {% set ns.n = ns.n + 1 %}{{ m['content'].strip().split(' ')[-1].upper() }}{% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}";
        let messages = r#"[{"role":"system","content":"x"},{"role":"user","content":" a b "},{"role":"user","content":"c"},{"role":"user","content":"d"}]"#;
        assert_eq!(text(source, messages), "BC");
    }

    #[test]
    fn json_is_laid_out_as_the_template_asks() {
        let value = r#"{"a": [1, {"b": []}], "c": {}}"#;
        assert_eq!(text("{{ messages|tojson(separators=(',', ':')) }}", value), r#"{"a":[1,{"b":[]}],"c":{}}"#);
        assert_eq!(
            text("{{ messages|tojson(indent=2) }}", value),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}"
        );
        assert_eq!(text("{{ [1,2]|tojson(indent=1, separators=(';', '=')) }}", "[]"), "[\n 1;\n 2\n]");
        assert!(render("{{ 1|tojson(separators=',') }}", "[]", &ChatOptions::default()).is_err());
    }

    #[test]
    fn more_methods_of_python_work() {
        let source = "{{ 'abc'.removeprefix('a').removesuffix('c') }}|{{ 'a.b.c'.rsplit('.', 1) }}|{{ 'k=v'.partition('=')[2] }}\
                      |{{ 'a/b/c'.rpartition('/')[0] }}";
        assert_eq!(text(source, "[1,2]"), "b|['a.b', 'c']|v|a/b");
        let changed = "{% set x = [] %}{% set _ = x.append(1) %}{{ x }}";
        let error = render(changed, "[]", &ChatOptions::default()).unwrap_err().to_string();
        assert!(error.contains("append"), "the sandbox of transformers refuses it too: {error}");
    }

    #[test]
    fn blocks_take_their_line_with_them() {
        let source = "{% for m in messages %}\n    {%- if true %}\n  [{{ m }}]\n    {% endif %}\n{% endfor %}\nend";
        assert_eq!(text(source, "[1,2]"), "  [1]\n  [2]\nend");
        let source = "{% for m in messages %}{% generation %}{{ m }}{%- endgeneration -%}\n{% endfor %}";
        assert_eq!(text(source, "[1,2]"), "12");
    }

    #[test]
    fn refusals_and_endless_templates_end() {
        let refused = render("{{ raise_exception('roles must alternate') }}", "[]", &ChatOptions::default());
        assert_eq!(refused.unwrap_err().to_string(), "the chat template refuses: roles must alternate");
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, "[]", &ChatOptions::default()), Err(TemplateError::Run(_))));
        assert!(matches!(render("{% if %}", "[]", &ChatOptions::default()), Err(TemplateError::Syntax(_))));
    }

    #[test]
    fn the_time_is_that_of_the_options() {
        let now = DateTime::parse_from_rfc3339("2026-11-05T07:08:09+00:00").unwrap().with_timezone(&Local);
        let options = ChatOptions { now: Some(now), add_generation_prompt: true, ..ChatOptions::default() };
        let source = "{{ strftime_now('%B %Y') }}{% if add_generation_prompt %}>{% endif %}";
        assert_eq!(render(source, "[]", &options).unwrap(), "November 2026>");
        assert!(render("{{ strftime_now('%Q') }}", "[]", &options).is_err());
    }
}
