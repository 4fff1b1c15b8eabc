//! Text as tokens: the bytes of a `.txt`, or the 16-bit words of a `.bin`.

use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::files;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The tokens of a file.
#[derive(Debug)]
pub enum Tokens {
    /// Each byte is a token.
    Bytes(Vec<u8>),
    /// Each little-endian word is a token.
    Words(Vec<u8>),
}

/// How many tokens a file has, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All.
    pub tokens: u64,
    /// How many different ones there are.
    pub distinct: u64,
    /// The least and the greatest.
    pub ends: Option<(u16, u16)>,
}

impl Counts {
    /// Windows of `context` tokens, each with the one after.
    pub fn windows(&self, context: u64) -> u64 {
        self.tokens.saturating_sub(1) / context.max(1)
    }
}

impl Tokens {
    /// Counts the tokens of `path` in pieces, if its name ends in `.txt` or `.bin`; gives `text` or
    /// `bin` with them.
    pub fn count(path: &Path) -> Result<Option<(&'static str, Counts)>, Diagnostic> {
        let kind = match path.extension().and_then(|e| e.to_str()) {
            Some("txt") => "text",
            Some("bin") => "bin",
            _ => return Ok(None),
        };
        let cannot = |e: io::Error| Diagnostic::error(format!("cannot read the data: {e}"));
        let file = files::open(path).map_err(cannot)?;
        let length = file.metadata().map_err(cannot)?.len();
        if kind == "bin" && !length.is_multiple_of(2) {
            return Err(odd(length));
        }
        let width = if kind == "bin" { 2 } else { 1 };
        let mut seen = vec![false; 1 << 16];
        let mut counts = Counts::default();
        let mut bytes = BufReader::with_capacity(1 << 20, file).take(length).bytes();
        while let Some(first) = bytes.next().transpose().map_err(cannot)? {
            let second = if width == 2 { bytes.next().transpose().map_err(cannot)?.unwrap_or(0) } else { 0 };
            counts.tokens += 1;
            seen[usize::from(u16::from_le_bytes([first, second]))] = true;
        }
        counts.distinct = seen.iter().filter(|seen| **seen).count() as u64;
        let end = |at: Option<usize>| at.and_then(|at| u16::try_from(at).ok());
        counts.ends = end(seen.iter().position(|seen| *seen)).zip(end(seen.iter().rposition(|seen| *seen)));
        Ok(Some((kind, counts)))
    }

    /// Whether it is no folder, and its name ends as one of tokens does.
    pub fn is_text(path: &Path) -> bool {
        matches!(path.extension().and_then(|e| e.to_str()), Some("txt" | "bin")) && !path.is_dir()
    }

    /// Reads a file of tokens.
    pub fn read(path: &Path) -> Result<Tokens, Diagnostic> {
        let bytes = files::read(path).map_err(|e| Diagnostic::error(format!("cannot read the data: {e}")))?;
        if path.extension().is_some_and(|e| e == "txt") {
            return Ok(Tokens::Bytes(bytes));
        }
        if bytes.len() % 2 != 0 {
            return Err(odd(bytes.len() as u64));
        }
        Ok(Tokens::Words(bytes))
    }

    /// The number of tokens.
    pub fn len(&self) -> u64 {
        match self {
            Tokens::Bytes(bytes) => bytes.len() as u64,
            Tokens::Words(bytes) => bytes.len() as u64 / 2,
        }
    }

    /// The tokens `start..start + count`.
    pub fn window(&self, start: u64, count: u64) -> Vec<i64> {
        let (start, end) = (start as usize, (start + count) as usize);
        match self {
            Tokens::Bytes(bytes) => bytes[start..end].iter().map(|b| i64::from(*b)).collect(),
            Tokens::Words(bytes) => {
                bytes[2 * start..2 * end].as_chunks().0.iter().map(|b| i64::from(u16::from_le_bytes(*b))).collect()
            }
        }
    }

    /// The first token outside `low..high`, and its position.
    pub fn outside(&self, low: i64, high: i64) -> Option<(u64, i64)> {
        const PART: u64 = 1 << 16;
        (0..self.len().div_ceil(PART)).find_map(|part| {
            let start = part * PART;
            let window = self.window(start, PART.min(self.len() - start));
            let found = window.iter().position(|t| !(low..high).contains(t))?;
            Some((start + found as u64, window[found]))
        })
    }
}

fn odd(bytes: u64) -> Diagnostic {
    Diagnostic::error(match bytes {
        1 => "1 byte is no 16-bit token".to_string(),
        n => format!("{n} bytes are no whole number of 16-bit tokens"),
    })
}
