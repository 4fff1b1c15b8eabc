//! The context that every part of the spec's reader shares: the file's name, the axes of its mesh,
//! and the errors so far.

use shardc_ir::diagnostic::{Diagnostic, Place, near_names};
use shardc_ir::mesh::MeshAxis;
use shardc_ir::spec::Source;
use std::path::Path;

/// Reading ends with the line that has this error; and so many patterns may be tried on every name.
const MOST: usize = 1000;

/// The state of reading one file.
pub struct Context<'f> {
    file: &'f Path,
    /// The axes of the `mesh` line, complete before any other statement is read; those with a bad
    /// size too, so that one mistake is one error.
    pub mesh: Vec<MeshAxis>,
    diagnostics: Vec<(Source, Diagnostic)>,
    /// How many errors there were; of more than anybody mends, the first are kept.
    errors: usize,
    /// The patterns so far that are tried on one name after another.
    tried: usize,
}

impl<'f> Context<'f> {
    /// For the file of that name.
    pub fn new(file: &'f Path) -> Self {
        Context { file, mesh: vec![], diagnostics: vec![], errors: 0, tried: 0 }
    }

    /// Adds an error at `source`.
    pub fn report(&mut self, source: Source, error: Diagnostic) {
        self.errors += 1;
        if self.errors <= MOST {
            let place = Place::Text { file: self.file.to_path_buf(), span: source.span };
            self.diagnostics.push((source, error.at(place)));
        }
    }

    /// Whether one more pattern, at `source`, is tried on one name after another; the first that is
    /// too many is reported.
    pub fn tries(&mut self, source: Source) -> bool {
        self.tried += 1;
        if self.tried == MOST + 1 {
            let error = Diagnostic::error(format!("more than {MOST} patterns of modules, or with `*` inside"));
            self.report(source, error.help("let a `*` stand for several modules or names"));
        }
        self.tried <= MOST
    }

    /// Whether there are more errors than anybody mends at once: the rest of the text is not read.
    pub fn is_full(&self) -> bool {
        self.errors >= MOST
    }

    /// The number of errors so far.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// All errors in the order of the text.
    pub fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        self.diagnostics.sort_by_key(|(source, _)| source.span);
        self.diagnostics.into_iter().map(|(_, diagnostic)| diagnostic).collect()
    }
}

/// `text` in backticks, fit for one line of a terminal: long text is cut, control characters are
/// escaped.
pub fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut out = String::from("`");
    for (i, c) in text.chars().enumerate() {
        if i == LONGEST {
            out.push('…');
            break;
        }
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out.push('`');
    out
}

/// "did you mean …?" where some of `candidates` resemble `name`, else `otherwise`.
pub fn suggestion<'a>(name: &str, candidates: impl Iterator<Item = &'a str>, otherwise: impl FnOnce() -> String) -> String {
    let near = near_names(name, candidates);
    if near.is_empty() { otherwise() } else { format!("did you mean {}?", alternatives(near.into_iter())) }
}

/// "`a`, `b` or `c`".
pub fn alternatives<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.map(quote).collect();
    match names.pop() {
        Some(last) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
        last => last.unwrap_or_default(),
    }
}

/// "`a`, `b`, `c`".
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(quote).collect::<Vec<_>>().join(", ")
}
