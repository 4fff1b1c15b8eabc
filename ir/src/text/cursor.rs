//! A cursor over one line of text: words, strings and numbers.

use super::TextError;

/// The result of reading.
pub(super) type Read<T> = Result<T, TextError>;

/// The items of the longest list: each takes many times its text.
const MAX_ITEMS: usize = 1 << 17;

/// A place in a line.
#[derive(Clone)]
pub(super) struct Cursor<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> Cursor<'t> {
    /// The start of a line, whose number counts from 1.
    pub(super) fn new(text: &'t str, line: usize) -> Cursor<'t> {
        Cursor { rest: text.trim_start(), line }
    }

    /// An error at this line.
    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Read<T> {
        Err(TextError { line: self.line, message: message.into() })
    }

    /// The character here, if the line goes on.
    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Whether only a comment is left.
    pub(super) fn at_end(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with("//")
    }

    /// Demands the end of the line.
    pub(super) fn end(&self) -> Read<()> {
        if self.at_end() { Ok(()) } else { self.fail(format!("`{}` is not expected here", shortened(self.rest))) }
    }

    /// Steps over `token` if it is here.
    pub(super) fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// Steps over `token`, which must be here.
    pub(super) fn expect(&mut self, token: &str) -> Read<()> {
        if self.take(token) { Ok(()) } else { self.fail(format!("`{token}` is expected at `{}`", shortened(self.rest))) }
    }

    /// Whether the word here is `word`.
    pub(super) fn at_word(&self, word: &str) -> bool {
        self.run(is_word) == word
    }

    /// Steps over the word `word` if it is here as a whole.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let here = self.at_word(word);
        if here {
            self.advance(word.len());
        }
        here
    }

    /// Steps forward to the next `token`, or to the end.
    pub(super) fn skip_to(&mut self, token: &str) {
        self.rest = self.rest.find(token).map_or("", |at| &self.rest[at..]);
    }

    /// The longest run of word characters here, which may not be empty.
    pub(super) fn word(&mut self) -> Read<&'t str> {
        self.word_of(is_word)
    }

    /// The longest run of characters that `part` takes, which may not be empty.
    pub(super) fn word_of(&mut self, part: impl FnMut(char) -> bool) -> Read<&'t str> {
        let word = self.run(part);
        if word.is_empty() {
            return self.fail(format!("a word is expected at `{}`", shortened(self.rest)));
        }
        self.advance(word.len());
        Ok(word)
    }

    /// A name after `%` or `@`: bare or quoted.
    pub(super) fn name(&mut self) -> Read<String> {
        if self.peek() == Some('"') { self.string() } else { self.word().map(str::to_string) }
    }

    /// A quoted string with the escapes of JSON.
    pub(super) fn string(&mut self) -> Read<String> {
        let mut escaped = false;
        let close = self.rest.char_indices().skip(1).find(|(_, c)| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        match close {
            Some((end, _)) if self.rest.starts_with('"') => match serde_json::from_str(&self.rest[..=end]) {
                Ok(string) => {
                    self.advance(end + 1);
                    Ok(string)
                }
                Err(why) => self.fail(format!("a string: {why}")),
            },
            _ => self.fail(format!("a string is expected at `{}`", shortened(self.rest))),
        }
    }

    /// The digits of a number, with sign, fraction and exponent if it has them; also `inf` and
    /// `NaN`.
    pub(super) fn number(&mut self) -> Read<&'t str> {
        let mut before = ' ';
        let number = self.run(|c| {
            let part = c.is_ascii_alphanumeric() || c == '.' || ("+-".contains(c) && " eE".contains(before));
            before = c;
            part
        });
        if number.is_empty() {
            return self.fail(format!("a number is expected at `{}`", shortened(self.rest)));
        }
        self.advance(number.len());
        Ok(number)
    }

    /// A size, count or weight.
    pub(super) fn count(&mut self) -> Read<u64> {
        let digits = self.run(|c| c.is_ascii_digit());
        match digits.parse() {
            Ok(count) => {
                self.advance(digits.len());
                Ok(count)
            }
            Err(_) => self.fail(format!("a count is expected at `{}`", shortened(self.rest))),
        }
    }

    /// The number of a line of the spec, or of a stage.
    pub(super) fn ordinal(&mut self) -> Read<u32> {
        let number = self.count()?;
        u32::try_from(number).or_else(|_| self.fail(format!("the number {number} is too large")))
    }

    /// Items between `open` and `close`, separated by commas.
    pub(super) fn list<T>(&mut self, open: &str, close: &str, mut item: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        self.expect(open)?;
        let mut items = vec![];
        while !self.take(close) {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(item(self)?);
            if items.len() > MAX_ITEMS {
                return self.fail("the list is too long");
            }
        }
        Ok(items)
    }

    fn run(&self, mut part: impl FnMut(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    fn advance(&mut self, bytes: usize) {
        self.rest = self.rest[bytes..].trim_start();
    }
}

/// Whether a word may hold the character.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// A name as it stands in text: bare where it is a word, quoted otherwise.
pub(super) fn quoted_if_needed(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(is_word);
    if bare { name.to_string() } else { quoted(name) }
}

/// A string in quotes.
pub(super) fn quoted(string: &str) -> String {
    serde_json::Value::from(string).to_string()
}

fn shortened(rest: &str) -> String {
    if rest.is_empty() { "the end of the line".to_string() } else { rest.chars().take(20).collect() }
}
