//! The tokenizer of a model folder: text to ids and back. Nothing is added to a text unless asked for, and nothing is ever
//! padded or cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::chat_template::{ChatOptions, ChatTemplate, ChatValue, TemplateError};
use crate::config::{Folder, FolderError};
use crate::text_stream::TextStream;

/// Name of a tokenizer's file.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
const SPECIAL_TOKENS_FILE: &str = "special_tokens_map.json";
const CHAT_TEMPLATE_FILE: &str = "chat_template.jinja";
/// The chat template of conversations without tools, and the one of those with tools.
const DEFAULT_TEMPLATE: &str = "default";
const TOOL_TEMPLATE: &str = "tool_use";

/// Why a tokenizer could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file does not say what it should.
    #[error("'{file}': {reason}")]
    Malformed {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A text could not be encoded.
    #[error("the text could not be encoded: {0}")]
    Encode(String),
    /// A conversation could not become a text.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// A tokenizer. Cheap to clone, shared by threads.
#[derive(Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

struct Shared {
    file: tokenizers::Tokenizer,
    spelling: Spelling,
    /// Chat templates by name.
    templates: Vec<(String, ChatTemplate)>,
    /// Special tokens by their role, such as `eos_token`.
    special: BTreeMap<String, String>,
}

/// How tokens spell text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Every character of a token stands for a byte.
    ByteLevel,
    /// Tokens such as `<0x0A>` stand for bytes, others for text that may depend on what is before it.
    ByteFallback,
    /// Tokens stand for text that may depend on what is before it.
    Text,
}

/// What one token adds to a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenText {
    /// Nothing: the id has no text, or it is a special token that is passed over.
    Nothing,
    /// Bytes, which may be part of a character.
    Bytes(Vec<u8>),
    /// Text whose form depends on its neighbour.
    Word,
}

impl Tokenizer {
    /// The tokenizer of a folder, with its chat template where there is one.
    pub fn open(folder: &Folder) -> Result<Tokenizer, TokenizerError> {
        let text = folder.read_text(TOKENIZER_FILE)?;
        let malformed = |file: &'static str| move |reason: String| TokenizerError::Malformed { file, reason };
        let mut file: tokenizers::Tokenizer = tokenizers::Tokenizer::from_bytes(text.as_bytes())
            .map_err(|error| malformed(TOKENIZER_FILE)(error.to_string()))?;
        file.with_padding(None);
        file.with_truncation(None).map_err(|error| malformed(TOKENIZER_FILE)(error.to_string()))?;
        let spelling = spelling_of(&text).map_err(malformed(TOKENIZER_FILE))?;
        let config = read_config(folder, TOKENIZER_CONFIG_FILE)?;
        let mut special = special_tokens(&read_config(folder, SPECIAL_TOKENS_FILE)?);
        special.extend(special_tokens(&config));
        let sources = match folder.has(CHAT_TEMPLATE_FILE)? {
            true => vec![(DEFAULT_TEMPLATE.to_string(), folder.read_text(CHAT_TEMPLATE_FILE)?)],
            false => templates_of(&config),
        };
        let read = |(name, source): (String, String)| Ok((name, ChatTemplate::new(&source, special.clone())?));
        let templates = sources.into_iter().map(read).collect::<Result<_, TemplateError>>()?;
        Ok(Tokenizer { shared: Arc::new(Shared { file, spelling, templates, special }) })
    }

    /// Ids of a text. Special tokens written in the text are recognised; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// Ids of a text with the special tokens that the tokenizer puts around one.
    pub fn encode_with_special_tokens(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, true)
    }

    fn encode_with(&self, text: &str, is_adding: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.shared.file.encode(text, is_adding).map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of each text, each as long as it is.
    pub fn encode_batch(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, TokenizerError> {
        texts.iter().map(|text| self.encode(text)).collect()
    }

    /// The text of ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.stream().read(ids)
    }

    /// The text of ids, special tokens included.
    pub fn decode_with_special_tokens(&self, ids: &[u32]) -> String {
        self.stream_with_special_tokens().read(ids)
    }

    /// A text that grows by one id at a time, without special tokens.
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.clone(), true)
    }

    /// A text that grows by one id at a time, special tokens included.
    pub fn stream_with_special_tokens(&self) -> TextStream {
        TextStream::new(self.clone(), false)
    }

    /// The id of a token.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.shared.file.token_to_id(token)
    }

    /// The id of the token that ends a text, if the tokenizer has one.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.token_id(self.shared.special.get("eos_token")?)
    }

    /// Ids that have a text.
    pub fn vocabulary_size(&self) -> usize {
        self.shared.file.get_vocab_size(true)
    }

    /// Whether the folder has a chat template.
    pub fn has_chat_template(&self) -> bool {
        !self.shared.templates.is_empty()
    }

    /// The text of a conversation by the folder's chat template. It is encoded by `encode`.
    pub fn apply_chat_template(&self, messages: &ChatValue, options: &ChatOptions) -> Result<String, TokenizerError> {
        Ok(self.template_for(options)?.render(messages, options)?)
    }

    /// Of several templates, the one for tools where there are some, else the default one, else the only one.
    fn template_for(&self, options: &ChatOptions) -> Result<&ChatTemplate, TemplateError> {
        let templates = &self.shared.templates;
        let named = |name: &str| templates.iter().find(|(found, _)| found == name).map(|(_, template)| template);
        let for_tools = options.tools.as_ref().and_then(|_| named(TOOL_TEMPLATE));
        match (for_tools.or_else(|| named(DEFAULT_TEMPLATE)), &templates[..]) {
            (Some(template), _) | (None, [(_, template)]) => Ok(template),
            (None, []) => Err(TemplateError::Missing),
            (None, several) => Err(TemplateError::NoDefault(
                several.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>().join(", "),
            )),
        }
    }

    /// What a token adds to a text.
    pub(crate) fn token_text(&self, id: u32, skips_special: bool) -> TokenText {
        let Some(token) = self.shared.file.id_to_token(id) else { return TokenText::Nothing };
        if skips_special && self.shared.file.get_added_vocabulary().is_special_token(&token) {
            return TokenText::Nothing;
        }
        match self.shared.spelling {
            Spelling::ByteLevel => TokenText::Bytes(bytes_of_token(&token)),
            Spelling::ByteFallback => {
                fallback_byte(&token).map_or(TokenText::Word, |byte| TokenText::Bytes(vec![byte]))
            }
            Spelling::Text => TokenText::Word,
        }
    }

    /// Whether what tokens of bytes become may depend on whether they come first.
    pub(crate) fn begins_by_position(&self) -> bool {
        self.shared.spelling == Spelling::ByteFallback
    }

    /// The text of a token that is not the first of a text.
    pub(crate) fn word_behind_another(&self, id: u32) -> String {
        let (alone, twice) = (self.words(&[id]), self.words(&[id, id]));
        twice.strip_prefix(&alone).map_or(alone.clone(), ToString::to_string)
    }

    /// The text of tokens of which none stands for a byte.
    pub(crate) fn words(&self, ids: &[u32]) -> String {
        self.shared.file.decode(ids, false).unwrap_or_default()
    }
}

/// A file of settings that may be missing.
fn read_config(folder: &Folder, file: &'static str) -> Result<serde_json::Value, TokenizerError> {
    if !folder.has(file)? {
        return Ok(serde_json::Value::Null);
    }
    serde_json::from_str(&folder.read_text(file)?)
        .map_err(|error| TokenizerError::Malformed { file, reason: error.to_string() })
}

/// Members such as `"eos_token": "</s>"` or `"eos_token": {"content": "</s>"}`.
fn special_tokens(config: &serde_json::Value) -> BTreeMap<String, String> {
    let members = config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    let text = |value: &serde_json::Value| Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_string());
    members.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

/// The chat templates in the settings, by name: a text, or a list of them.
fn templates_of(config: &serde_json::Value) -> Vec<(String, String)> {
    let Some(template) = config.get("chat_template") else { return Vec::new() };
    let text = |entry: &serde_json::Value, key: &str| Some(entry.get(key)?.as_str()?.to_string());
    match (template.as_str(), template.as_array()) {
        (Some(source), _) => vec![(DEFAULT_TEMPLATE.to_string(), source.to_string())],
        (None, Some(list)) => {
            list.iter().filter_map(|entry| Some((text(entry, "name")?, text(entry, "template")?))).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The decoder part of a tokenizer's file.
#[derive(Deserialize)]
struct DecoderPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    decoders: Vec<DecoderPart>,
}

/// What of a tokenizer's file says how tokens spell text.
#[derive(Deserialize)]
struct TokenizerParts {
    decoder: Option<DecoderPart>,
}

fn spelling_of(text: &str) -> Result<Spelling, String> {
    let parts: TokenizerParts = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let has = |kind: &str| {
        let decoder = parts.decoder.as_ref();
        decoder.is_some_and(|decoder| decoder.kind == kind || decoder.decoders.iter().any(|part| part.kind == kind))
    };
    Ok(match (has("ByteLevel"), has("ByteFallback")) {
        (true, _) => Spelling::ByteLevel,
        (false, true) => Spelling::ByteFallback,
        (false, false) => Spelling::Text,
    })
}

/// Bytes of a token whose characters stand for bytes; a token with any other character is text.
fn bytes_of_token(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte that a character stands for in byte-level vocabularies: printable characters of Latin-1 stand for themselves,
/// the other bytes, in order, are the characters from U+0100 on.
fn byte_of_char(c: char) -> Option<u8> {
    let is_itself = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(c) {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| is_itself(byte)),
        code => (0..=u8::MAX).filter(|&byte| !is_itself(byte)).nth((code - 0x100) as usize),
    }
}

/// The byte of a token such as `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_byte_level_vocabularies_are_all_bytes_once() {
        let mut bytes: Vec<u8> = (0..0x143).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        bytes.push(byte_of_char('\u{143}').unwrap_or_default());
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<u8>>());
        assert_eq!((byte_of_char('Ġ'), byte_of_char('Ċ'), byte_of_char('\u{144}')), (Some(b' '), Some(b'\n'), None));
    }

    #[test]
    fn tokens_of_bytes_are_told_from_text() {
        assert_eq!(
            (fallback_byte("<0x0A>"), fallback_byte("<0xFG>"), fallback_byte("<0x0A0>")),
            (Some(10), None, None)
        );
    }
}
