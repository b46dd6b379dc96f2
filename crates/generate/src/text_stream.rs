//! Text that grows by one token at a time. A character is given out when its last byte is there; bytes that can no longer
//! become a character are given out as U+FFFD. The pieces, one after another, are the decoded text.

use crate::tokenizer::{TokenText, Tokenizer};

/// A text under construction.
pub struct TextStream {
    tokenizer: Tokenizer,
    skips_special: bool,
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
    /// The last token that was text by itself; how the next one begins may depend on it.
    neighbour: Option<u32>,
    /// Whether any token became text, though it may have been empty.
    is_begun: bool,
    /// Tokens of bytes from the first one on, until the first character is complete: how a text begins may depend on them.
    opening: Vec<u32>,
    /// What the last push gave out.
    piece: String,
}

impl TextStream {
    pub(crate) fn new(tokenizer: Tokenizer, skips_special: bool) -> TextStream {
        let (pending, piece) = (Vec::new(), String::new());
        TextStream { tokenizer, skips_special, pending, neighbour: None, is_begun: false, opening: Vec::new(), piece }
    }

    /// Adds a token and gives the text that is complete with it.
    pub fn push(&mut self, id: u32) -> &str {
        self.piece.clear();
        match self.tokenizer.token_text(id, self.skips_special) {
            TokenText::Nothing => {}
            TokenText::Bytes(bytes) => {
                self.pending.extend(bytes);
                take_complete(&mut self.pending, &mut self.piece);
                if !self.is_begun {
                    self.open_with(id);
                }
            }
            TokenText::Word => {
                give_up(&mut self.pending, &mut self.piece);
                self.is_begun |= !self.piece.is_empty();
                let word = self.word(id);
                self.piece.push_str(&word);
                self.neighbour = Some(id);
                self.is_begun = true;
            }
        }
        &self.piece
    }

    /// Notes a token of bytes at the beginning. The first character is what the tokenizer makes of it there: a leading space
    /// may be dropped.
    fn open_with(&mut self, id: u32) {
        self.opening.push(id);
        if self.piece.is_empty() {
            return;
        }
        self.is_begun = true;
        if self.pending.is_empty() && self.tokenizer.begins_by_position() {
            self.piece = self.tokenizer.words(&self.opening);
        }
        self.opening.clear();
    }

    /// What is left: bytes that did not become a character.
    pub fn finish(&mut self) -> String {
        let mut rest = String::new();
        give_up(&mut self.pending, &mut rest);
        rest
    }

    /// The whole text of ids.
    pub(crate) fn read(&mut self, ids: &[u32]) -> String {
        let mut text: String = ids.iter().fold(String::new(), |text, &id| text + self.push(id));
        text.push_str(&self.finish());
        text
    }

    /// The text of a token behind its neighbour. Where only bytes came before, the token is its own neighbour: what counts
    /// is that it is not the first.
    fn word(&self, id: u32) -> String {
        let neighbour = match (self.neighbour, self.is_begun) {
            (Some(neighbour), _) => neighbour,
            (None, true) => id,
            (None, false) => return self.tokenizer.words(&[id]),
        };
        let (before, both) = (self.tokenizer.words(&[neighbour]), self.tokenizer.words(&[neighbour, id]));
        both.strip_prefix(&before).map_or_else(|| self.tokenizer.words(&[id]), ToString::to_string)
    }
}

/// Moves complete characters from bytes to text.
fn take_complete(bytes: &mut Vec<u8>, text: &mut String) {
    let mut taken = 0;
    loop {
        let rest = &bytes[taken..];
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                taken += rest.len();
                break;
            }
            Err(error) => {
                text.push_str(&String::from_utf8_lossy(&rest[..error.valid_up_to()]));
                taken += error.valid_up_to();
                let Some(broken) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                taken += broken;
            }
        }
    }
    bytes.drain(..taken);
}

/// Moves all bytes to text, whatever they are.
fn give_up(bytes: &mut Vec<u8>, text: &mut String) {
    text.push_str(&String::from_utf8_lossy(bytes));
    bytes.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_any_bytes_gives_the_lossy_text() {
        let samples: [&[u8]; 5] =
            ["aé日🙂z".as_bytes(), b"\xff\xfe", b"\xe6\x97", b"\xe6\x97a\x80\xf0\x9f\x99\x82", b"\xf0\x9f\x99\xf0\x9f"];
        for bytes in samples {
            for size in 1..=bytes.len() {
                let (mut pending, mut text) = (Vec::new(), String::new());
                for piece in bytes.chunks(size) {
                    pending.extend_from_slice(piece);
                    take_complete(&mut pending, &mut text);
                }
                give_up(&mut pending, &mut text);
                assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?} by {size}");
            }
        }
    }
}
