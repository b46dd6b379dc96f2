//! Grammars that answers must follow, as masks over the vocabulary, by `llguidance`: it compiles JSON schemas, regular
//! expressions and Lark grammars alike, computes a mask in well under a millisecond, and brings few dependencies.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};

use crate::tokenizer::{TokenText, Tokenizer};

/// Bytes of a grammar that is accepted.
const GRAMMAR_BYTES_MAX: usize = 1 << 20;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guidance {
    /// A JSON value that follows this schema.
    JsonSchema(String),
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this grammar in the notation of Lark.
    Lark(String),
}

/// Why a grammar cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuidanceError(pub String);

/// Compiles grammars for the vocabulary of one model.
#[derive(Clone)]
pub struct GuideFactory {
    factory: Arc<ParserFactory>,
    eos: Vec<u32>,
}

impl GuideFactory {
    /// For a tokenizer and a model with so many ids, of which these end a sequence.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize, eos: &[u32]) -> Result<GuideFactory, GuidanceError> {
        let Some(&first_eos) = eos.first() else {
            return Err(GuidanceError("a model without a token that ends sequences cannot be guided".to_string()));
        };
        let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(|id| token_bytes(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, first_eos), &words);
        let environment: TokEnv = Arc::new(Vocabulary { trie });
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        Ok(GuideFactory { factory: Arc::new(factory), eos: eos.to_vec() })
    }

    /// A guide at the beginning of an answer.
    pub fn guide(&self, guidance: &Guidance) -> Result<Guide, GuidanceError> {
        let (kind, text) = match guidance {
            Guidance::JsonSchema(text) => ("JSON schema", text),
            Guidance::Regex(text) => ("regular expression", text),
            Guidance::Lark(text) => ("Lark grammar", text),
        };
        let refuse = |reason: String| GuidanceError(format!("{kind}: {reason}"));
        if text.len() > GRAMMAR_BYTES_MAX {
            return Err(refuse(format!("has {} bytes; at most {GRAMMAR_BYTES_MAX} were expected", text.len())));
        }
        let grammar = match guidance {
            Guidance::JsonSchema(text) => {
                let schema = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            Guidance::Regex(text) => TopLevelGrammar::from_regex(text),
            Guidance::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(refuse(error)),
            None => Ok(Guide { matcher, eos: self.eos.clone() }),
        }
    }
}

/// Where an answer stands in its grammar.
#[derive(Clone)]
pub struct Guide {
    matcher: Matcher,
    eos: Vec<u32>,
}

impl Guide {
    /// Tokens that may come next. Those that end sequences are among them exactly where the grammar may end.
    pub fn mask(&mut self) -> Result<TokenMask, GuidanceError> {
        let mut mask = self.matcher.compute_mask_or_eos().map_err(refused)?;
        let may_end = self.eos.iter().any(|&id| mask.is_allowed(id));
        self.eos.iter().for_each(|&id| mask.set(id as usize, may_end));
        Ok(TokenMask { mask })
    }

    /// Tokens that may come next, without those that end sequences where any other may come.
    pub fn mask_to_go_on(&mut self) -> Result<TokenMask, GuidanceError> {
        let TokenMask { mask: all } = self.mask()?;
        let mut others = all.clone();
        self.eos.iter().for_each(|&id| others.set(id as usize, false));
        Ok(TokenMask { mask: if others.num_set() > 0 { others } else { all } })
    }

    /// Goes on behind a token of the answer.
    pub fn accept(&mut self, token: u32) -> Result<(), GuidanceError> {
        self.matcher.consume_token(token).map_err(refused)
    }

    /// How many of these tokens may come next, one after another.
    pub fn valid_prefix(&mut self, tokens: &[u32]) -> usize {
        self.matcher.validate_tokens(tokens).unwrap_or(0)
    }

    /// Whether nothing may follow.
    pub fn is_at_end(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// Tokens that may come next.
pub struct TokenMask {
    mask: SimpleVob,
}

impl TokenMask {
    /// Bans all others.
    pub fn apply(&self, logits: &mut [f32]) {
        for (token, score) in logits.iter_mut().enumerate() {
            if !self.mask.get(token) {
                *score = f32::NEG_INFINITY;
            }
        }
    }

    /// The one token that may come next, if there is only one.
    pub fn only_token(&self) -> Option<u32> {
        (self.mask.num_set() == 1).then(|| self.mask.first_bit_set().map(|token| token as u32))?
    }
}

fn refused(error: impl std::fmt::Display) -> GuidanceError {
    GuidanceError(error.to_string())
}

/// Bytes of a token in a text; a token that is no text is marked as special, so that only a grammar that names it gets it.
fn token_bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let special = |name: String| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
    match tokenizer.token_text(id, true) {
        TokenText::Bytes(bytes) if !bytes.is_empty() => bytes,
        TokenText::Word => tokenizer.word_behind_another(id).into_bytes(),
        TokenText::Bytes(_) | TokenText::Nothing => special(format!("<[{id}]>")),
    }
}

/// The vocabulary as llguidance reads it.
struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    /// Greedy tokens need not be those of the tokenizer, so none are ever forced by them.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
