//! The words of a PTX text.

/// A word or a sign, and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
    pub(super) line: usize,
}

/// The text with its comments made blank, so that places stay.
pub(super) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            quoted = !quoted;
        }
        let end = if quoted {
            None
        } else if rest.starts_with("//") {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            Some(rest.find("*/").map_or(rest.len(), |e| e + 2))
        } else {
            None
        };
        match end {
            Some(end) => {
                out.extend(rest[..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                rest = &rest[end..];
            }
            None => {
                out.push(if c.is_ascii() { c } else { '?' });
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

fn in_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// The words of a text of ASCII. Numbers have their sign.
pub(super) fn words(text: &str) -> Vec<Word<'_>> {
    let b = text.as_bytes();
    let (mut out, mut at, mut line) = (Vec::new(), 0, 1);
    while at < b.len() {
        let from = at;
        let c = b[at];
        at += 1;
        if c == b'\n' {
            line += 1;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        let next = |at: usize| b.get(at).copied().unwrap_or(b' ');
        if c == b'"' {
            while at < b.len() && b[at] != b'"' {
                at += 1;
            }
            at = (at + 1).min(b.len());
        } else if in_word(c) || c == b'-' && next(at).is_ascii_digit() {
            loop {
                if in_word(next(at)) {
                    at += 1;
                } else if next(at) == b':' && next(at + 1) == b':' {
                    at += 2;
                } else {
                    break;
                }
            }
        }
        out.push(Word { text: &text[from..at], at: from, line });
    }
    out
}

/// The number that a word is, as 64 bits.
pub(super) fn number(word: &str) -> Option<u64> {
    if let Some(hex) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0F")) {
        return (hex.len() == 8).then(|| u64::from_str_radix(hex, 16).ok())?;
    }
    if let Some(hex) = word.strip_prefix("0d").or_else(|| word.strip_prefix("0D")) {
        return (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok())?;
    }
    let (negative, word) = word.strip_prefix('-').map_or((false, word), |w| (true, w));
    let word = word.strip_suffix('U').unwrap_or(word);
    let x = if let Some(hex) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        u64::from_str_radix(hex, 16)
    } else if word.len() > 1 && word.starts_with('0') && word.bytes().all(|c| c.is_ascii_digit()) {
        u64::from_str_radix(&word[1..], 8)
    } else if word.bytes().all(|c| c.is_ascii_digit()) {
        word.parse()
    } else {
        return None;
    }
    .ok()?;
    Some(if negative { x.wrapping_neg() } else { x })
}
