//! The parser's place in a text: words, quoted names, and stretches between brackets.

/// A problem at a byte offset of the text.
#[derive(Debug)]
pub struct Failure {
    /// Byte offset.
    pub offset: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl Failure {
    /// A problem at an offset.
    pub fn at(offset: usize, message: impl Into<String>) -> Failure {
        Failure { offset, message: message.into() }
    }
}

/// A name in quotes, with quotes, backslashes and newlines escaped.
pub fn quote(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

/// A text and how far it has been read.
#[derive(Clone)]
pub struct Lexer<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Lexer<'a> {
    /// The start of a text.
    pub fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, offset: 0 }
    }

    /// Offset of the next thing, after spaces.
    pub fn offset(&mut self) -> usize {
        let rest = &self.text[self.offset..];
        self.offset += rest.len() - rest.trim_start_matches([' ', '\n', '\t', '\r']).len();
        self.offset
    }

    fn rest(&mut self) -> &'a str {
        let offset = self.offset();
        &self.text[offset..]
    }

    /// Whether nothing is left.
    pub fn is_at_end(&mut self) -> bool {
        self.rest().is_empty()
    }

    /// Whether `token` comes next.
    pub fn starts_with(&mut self, token: &str) -> bool {
        self.rest().starts_with(token)
    }

    /// Reads `token` if it comes next.
    pub fn take(&mut self, token: &str) -> bool {
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.offset += token.len();
        }
        is_next
    }

    /// Reads `token`, which must come next.
    pub fn expect(&mut self, token: &str) -> Result<(), Failure> {
        if self.take(token) { Ok(()) } else { Err(self.failure(&format!("'{token}'"))) }
    }

    /// The problem that something else comes next.
    pub fn failure(&mut self, expected: &str) -> Failure {
        let found: String = self.rest().chars().take_while(|character| !character.is_whitespace()).take(20).collect();
        let found = if found.is_empty() { "the end".to_string() } else { format!("'{found}'") };
        Failure::at(self.offset, format!("{found} found where {expected} is expected"))
    }

    /// A word of letters, digits and underscores.
    pub fn word(&mut self) -> Result<&'a str, Failure> {
        let rest = self.rest();
        let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if length == 0 {
            return Err(self.failure("a word"));
        }
        self.offset += length;
        Ok(&rest[..length])
    }

    /// The name of a symbol: quoted, or a word that may have dots.
    pub fn symbol(&mut self) -> Result<String, Failure> {
        if self.starts_with("\"") {
            return self.quoted();
        }
        let mut name = self.word()?.to_string();
        while self.text[self.offset..].starts_with('.') {
            self.offset += 1;
            name.push('.');
            let rest = &self.text[self.offset..];
            let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
            name.push_str(&rest[..length]);
            self.offset += length;
        }
        Ok(name)
    }

    /// A number in decimal.
    pub fn number<T: std::str::FromStr>(&mut self) -> Result<T, Failure> {
        let rest = self.rest();
        let sign = usize::from(rest.starts_with('-'));
        let length = sign + rest[sign..].bytes().take_while(u8::is_ascii_digit).count();
        let Ok(number) = rest[..length].parse() else {
            return Err(self.failure("a number"));
        };
        self.offset += length;
        Ok(number)
    }

    /// A name in quotes.
    pub fn quoted(&mut self) -> Result<String, Failure> {
        let rest = self.rest();
        let mut characters = rest.char_indices();
        if characters.next().is_none_or(|(_, first)| first != '"') {
            return Err(self.failure("a quoted name"));
        }
        let mut name = String::new();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.offset += at + 1;
                    return Ok(name);
                }
                '\\' => match characters.next() {
                    Some((_, escaped @ ('"' | '\\'))) => name.push(escaped),
                    Some((_, 'n')) => name.push('\n'),
                    _ => return Err(Failure::at(self.offset + at, "unknown escape in a name")),
                },
                '\n' => break,
                other => name.push(other),
            }
        }
        Err(Failure::at(self.offset, "a name without its closing quote"))
    }

    /// Text up to one of `ends`, or to the bracket that closes what encloses it, outside brackets and quotes. Spaces
    /// around it are dropped; also gives its offset.
    pub fn stretch(&mut self, ends: &[u8]) -> (usize, &'a str) {
        let start = self.offset();
        let rest = &self.text[start..];
        let length = stretch_length(rest.as_bytes(), ends);
        self.offset = start + length;
        (start, rest[..length].trim_end())
    }
}

fn stretch_length(bytes: &[u8], ends: &[u8]) -> usize {
    let (mut depth, mut is_quoted, mut is_escaped) = (0usize, false, false);
    for (at, &byte) in bytes.iter().enumerate() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match byte {
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            _ if depth == 0 && ends.contains(&byte) => return at,
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 0 => return at,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    bytes.len()
}

/// Offset of the first brace that is nested deeper than `depth_max`, outside quotes.
pub fn too_deep(text: &str, depth_max: usize) -> Option<usize> {
    let (mut depth, mut is_quoted, mut is_escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match byte {
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'{' if !is_quoted && depth == depth_max => return Some(at),
            b'{' if !is_quoted => depth += 1,
            b'}' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}
