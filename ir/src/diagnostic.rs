//! A user's error or warning: what is wrong, where, why, and what to do.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

/// The place that a diagnostic points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A byte range of a text file (the spec).
    Text {
        /// The file, as the user named it.
        file: PathBuf,
        /// Byte offsets `start..end` into the file's text.
        span: (usize, usize),
    },
    /// A node, value or initializer of the model, by name.
    Model {
        /// The file, as the user named it.
        file: PathBuf,
        /// Such as `node "h.0.mlp/MatMul" (MatMul)`.
        what: String,
    },
    /// A whole file: data, plan, checkpoint.
    File(PathBuf),
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Nothing is built.
    Error,
    /// Work goes on; the user should know.
    Warning,
}

/// One message to the user: lower case, backticks around names, no full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// One line: what is wrong.
    pub message: String,
    /// The place.
    pub place: Option<Place>,
    /// The words under the caret: why this place.
    pub label: Option<String>,
    /// The remedy, for the user.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error with a message only.
    pub fn error(message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Error, message: message.into(), place: None, label: None, help: None }
    }

    /// A warning with a message only.
    pub fn warning(message: impl Into<String>) -> Self {
        Diagnostic { severity: Severity::Warning, ..Self::error(message) }
    }

    /// Adds the place.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds the place, if there is one.
    pub fn at_opt(mut self, place: Option<Place>) -> Self {
        self.place = place;
        self
    }

    /// Adds the words under the caret.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Adds the help line to one of the first errors of a kind, where there have been `earlier`
    /// ones: to look for it may take long, and nobody reads it a hundred times.
    pub fn help_early(self, earlier: usize, help: impl FnOnce() -> String) -> Self {
        if earlier < HELPED { self.help(help()) } else { self }
    }

    /// Adds the help line.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.place {
            Some(Place::Model { what, .. }) => write!(f, " ({what})")?,
            Some(Place::File(file)) => write!(f, " ({})", file.display())?,
            _ => {}
        }
        if let Some(help) = &self.help {
            write!(f, "; help: {help}")?;
        }
        Ok(())
    }
}

/// All the errors of one file together; never empty when returned as an error.
pub type Diagnostics = Vec<Diagnostic>;

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        vec![diagnostic]
    }
}

/// The first of errors that are alike, and how many there are besides: `… (and 3 more that match)`.
pub fn first_of(errors: impl IntoIterator<Item = Diagnostic>, that: &str) -> Option<Diagnostic> {
    let mut errors = errors.into_iter();
    let mut first = errors.next()?;
    let others = errors.count();
    if others > 0 {
        first.message += &format!(" (and {others} more {that})");
    }
    Some(first)
}

/// The first error of each place, and how many there are besides: what is alike fails alike.
///
/// # Errors
/// Those, if there are any.
pub fn first_of_each_place(errors: Diagnostics) -> Result<(), Diagnostics> {
    let mut alike: Vec<Diagnostics> = vec![];
    for error in errors {
        match alike.iter_mut().find(|group| group[0].place == error.place) {
            Some(group) => group.push(error),
            None => alike.push(vec![error]),
        }
    }
    if alike.is_empty() { Ok(()) } else { Err(alike.into_iter().filter_map(|group| first_of(group, "like it")).collect()) }
}

/// `text` as a terminal may show it: control characters and those that turn the direction of
/// writing are escaped, but for the ends of lines and tabs.
pub fn shown(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            _ if c.is_control() || turns(c) => out.extend(c.escape_default()),
            _ => out.push(c),
        }
    }
    out
}

/// A number of things: `1 step`, `2 steps`, `0 axes`. `noun` is one of them, of a regular plural.
pub fn counted(n: impl fmt::Display, noun: &str) -> String {
    let n = n.to_string();
    let plural = match noun {
        _ if n == "1" => return format!("{n} {noun}"),
        _ if noun.ends_with("ch") => format!("{noun}es"),
        _ => match noun.strip_suffix("axis") {
            Some(stem) => format!("{stem}axes"),
            None => format!("{noun}s"),
        },
    };
    format!("{n} {plural}")
}

/// The characters of a name that are compared.
const LONGEST: usize = 200;

/// The pairs of characters that are compared, of all candidates together.
const COMPARED: usize = 1 << 21;

/// Up to four of `candidates` that resemble `name`, nearest first; for "did you mean" lines. A
/// pattern `*.a.b` is held against the ends of names. Of more candidates than anybody has, the
/// first are looked at.
pub fn near_names<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let (name, parts) = match name.strip_prefix("*.") {
        Some(end) => (end, end.split('.').count()),
        None => (name, usize::MAX),
    };
    let end = |c: &'a str| c.rmatch_indices('.').nth(parts - 1).map_or(c, |(dot, _)| &c[dot + 1..]);
    let mut left = COMPARED;
    let score = |c: &'a str| {
        let end = end(c);
        let most = name.len().max(end.len());
        if name.len().abs_diff(end.len()) * 2 > most {
            return None;
        }
        left = left.checked_sub(name.len().min(LONGEST) * end.len().min(LONGEST))?;
        let distance = edit_distance(name, end);
        (distance * 2 <= most).then_some((distance, c))
    };
    let mut scored: Vec<(usize, &str)> = candidates.filter_map(score).collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(4).map(|(_, c)| c).collect()
}

/// So many errors of a kind have help that must be looked for.
const HELPED: usize = 20;

/// The help for a pattern that matches none of `names`: those that resemble it, or else some of
/// those that there are.
pub fn names_help<'a>(pattern: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    const SHOWN: usize = 5;
    let listed = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let near = near_names(pattern, names.clone());
    if !near.is_empty() {
        return format!("near names are {}", listed(&near));
    }
    let mut seen = HashSet::new();
    let all: Vec<&str> = names.filter(|name| seen.insert(*name)).collect();
    match all.len() {
        0 => "the model has no such names".to_string(),
        1..=SHOWN => format!("its names are {}", listed(&all)),
        n => format!("among its {n} names are {}; `shardc init MODEL.onnx` prints them all", listed(&all[..SHOWN])),
    }
}

/// The distance of the beginnings of both.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(LONGEST).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(LONGEST).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let next = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_far_are_told_too() {
        let names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.weight", "fc2.bias", "head.weight", "head.bias"];
        let help = |pattern: &str, n: usize| names_help(pattern, names[..n].iter().copied());
        assert_eq!(help("fc1.wait", 7), "near names are `fc1.weight`, `fc1.bias`, `fc2.weight`");
        assert_eq!(help("*.decoder.*", 2), "its names are `fc1.weight`, `fc1.bias`");
        let all = "among its 6 names are `fc1.weight`, `fc1.bias`, `fc2.weight`, `fc2.bias`, `head.weight`; `shardc init MODEL.onnx` prints them all";
        assert_eq!(help("*.decoder.*", 7), all);
        assert_eq!(help("x", 0), "the model has no such names");
    }

    #[test]
    fn one_is_no_plural() {
        let cases = [(0, "step", "0 steps"), (1, "step", "1 step"), (2, "step", "2 steps"), (11, "rank", "11 ranks")];
        for (n, noun, text) in
            cases.into_iter().chain([(1, "data axis", "1 data axis"), (2, "axis", "2 axes"), (3, "batch", "3 batches")])
        {
            assert_eq!(counted(n, noun), text);
        }
    }
}
