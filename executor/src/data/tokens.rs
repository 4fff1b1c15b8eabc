//! Text as tokens: the bytes of a `.txt`, or the 16-bit words of a `.bin`.

use shardc_ir::diagnostic::Diagnostic;
use shardc_ir::files;
use std::path::Path;

/// The tokens of a file.
#[derive(Debug)]
pub enum Tokens {
    /// Each byte is a token.
    Bytes(Vec<u8>),
    /// Each little-endian word is a token.
    Words(Vec<u8>),
}

impl Tokens {
    /// Reads `path` if its name ends in `.txt` or `.bin`.
    pub fn read(path: &Path) -> Result<Option<Tokens>, Diagnostic> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !matches!(extension, "txt" | "bin") {
            return Ok(None);
        }
        let bytes = files::read(path).map_err(|e| Diagnostic::error(format!("cannot read the data: {e}")))?;
        if extension == "txt" {
            return Ok(Some(Tokens::Bytes(bytes)));
        }
        if bytes.len() % 2 != 0 {
            return Err(Diagnostic::error(match bytes.len() {
                1 => "1 byte is no 16-bit token".to_string(),
                n => format!("{n} bytes are no whole number of 16-bit tokens"),
            }));
        }
        Ok(Some(Tokens::Words(bytes)))
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
