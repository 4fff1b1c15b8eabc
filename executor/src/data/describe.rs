//! The contents of a data file, whatever a program may want of it. Arrays pass in pieces, so that
//! none is in memory whole.

use super::array::{Header, Range};
use super::files::{self, Files};
use super::parts;
use super::tokens::{Counts, Tokens};
use shardc_ir::diagnostic::{Diagnostic, Diagnostics, Place};
use shardc_ir::reason::Reason;
use std::path::Path;

/// A data file, or a folder.
#[derive(Debug, Clone, PartialEq)]
pub enum Description {
    /// Arrays by their names.
    Arrays {
        /// `npz`, `npy`, `folder` or `safetensors`.
        kind: &'static str,
        /// All of them, in the order of their names.
        arrays: Vec<ArrayDescription>,
    },
    /// Tokens.
    Tokens {
        /// `text`, whose bytes are the tokens, or `bin`, of 16-bit words.
        kind: &'static str,
        /// How many there are, and which.
        counts: Counts,
    },
}

/// One array.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayDescription {
    /// Its name.
    pub name: String,
    /// The contents, or the reason why they cannot be read, in words that follow its name.
    pub contents: Result<Contents, Reason>,
}

/// Type, shape and values of an array.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    /// Its element type and shape.
    pub header: Header,
    /// Its values.
    pub range: Range,
}

impl Contents {
    /// Dimension 0, if it has one.
    pub fn samples(&self) -> Option<u64> {
        self.header.shape.first().copied()
    }
}

/// Reads what `path` holds; `context` is allowed for tokens only.
///
/// # Errors
/// If it is no data file, or a broken one. An array that cannot be read is told in its place.
pub fn describe(path: &Path, context: Option<u64>) -> Result<Description, Diagnostics> {
    describe_at(path, context).map_err(|error| error.at(Place::File(path.to_path_buf())).into())
}

fn describe_at(path: &Path, context: Option<u64>) -> Result<Description, Diagnostic> {
    if !path.exists() {
        return Err(files::nothing_there(path));
    }
    if path.is_dir() && holds_shards(path) {
        let error = Diagnostic::error("this is a folder of files of data, and not of `.npy`");
        return Err(error.help("give one of its files"));
    }
    if let Some((kind, counts)) = Tokens::count(path)? {
        return Ok(Description::Tokens { kind, counts });
    }
    if context.is_some() {
        return Err(super::no_text());
    }
    let single = path.extension().is_some_and(|e| e == "npy") && !path.is_dir();
    let (mut files, names) = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some(stem) if single => (Files::Folder(path.parent().unwrap_or(Path::new("")).to_path_buf()), vec![stem.to_string()]),
        _ => {
            let files = Files::open(path)?;
            let names = files.names()?;
            (files, names)
        }
    };
    let kind = match &files {
        Files::Folder(_) if single => "npy",
        Files::Folder(_) => "folder",
        Files::Npz(_) => "npz",
        Files::Safetensors(_) => "safetensors",
    };
    let array = |name: String| {
        let contents = contents(&mut files, &name);
        ArrayDescription { name, contents }
    };
    Ok(Description::Arrays { kind, arrays: names.into_iter().map(array).collect() })
}

/// Whether the folder has files of data, and no array.
fn holds_shards(folder: &Path) -> bool {
    let shards = parts::shards(folder).is_ok_and(|files| !files.is_empty());
    shards && Files::Folder(folder.to_path_buf()).names().is_err()
}

fn contents(files: &mut Files, name: &str) -> Result<Contents, Reason> {
    let mut range = Range::default();
    let header = files.scan(name, &mut |element, bytes| range.add(element, bytes))?;
    Ok(Contents { header, range })
}
