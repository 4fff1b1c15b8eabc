//! Diagnostics on the terminal: the message, the place with the text it points at, and what to do.
//!
//! ```
//! use shardc::report::render;
//! use shardc_ir::diagnostic::{Diagnostic, Place};
//! use std::collections::BTreeMap;
//! use std::path::PathBuf;
//!
//! let file = PathBuf::from("job.shard");
//! let place = Place::Text { file: file.clone(), span: (10, 12) };
//! let error = Diagnostic::error("there is no axis `dq`").at(place).help("did you mean `dp`?");
//! let text = render(&[error], &BTreeMap::from([(file, "data axis=dq".to_string())]), false);
//! assert!(text.contains("job.shard:1:11") && text.contains("did you mean `dp`?"), "{text}");
//! ```

use codespan_reporting::diagnostic::{LabelStyle, Severity};
use codespan_reporting::files;
use codespan_reporting::term::termcolor::Buffer;
use codespan_reporting::term::{Config, Renderer, WriteStyle};
use shardc_ir::diagnostic::{self, Diagnostic, Place, counted, shown};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Diagnostics of a kind that are shown.
const ALIKE: usize = 20;
/// Bytes that all diagnostics together take at most, but for the line that counts the others.
const MUCH: usize = 3900;
/// Columns of a line of a text that are shown, and how many of them stand before the place.
const COLUMNS: usize = 120;
const BEFORE: usize = 40;
/// Characters of the longest word.
const WORD: usize = 240;
/// Bytes of the longest message, label (which may be a list), help and name of a place.
const MESSAGE: usize = 700;
const LABEL: usize = 1500;
const HELP: usize = 1100;
const PLACE: usize = 300;

/// Prints `diagnostics` to standard error, in colour if that is a terminal and `NO_COLOR` is not
/// set.
pub fn print(diagnostics: &[Diagnostic]) {
    let mut texts = BTreeMap::new();
    for diagnostic in diagnostics {
        if let Some(Place::Text { file, .. }) = &diagnostic.place
            && !texts.contains_key(file)
            && let Ok(text) = std::fs::read_to_string(file)
        {
            texts.insert(file.clone(), text);
        }
    }
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // If nobody reads them, nothing is lost.
    let _ = std::io::stderr().lock().write_all(render(diagnostics, &texts, colour).as_bytes());
}

/// `diagnostics` as text, a blank line between two. `texts` are the files that places point into,
/// by the names that they use; a place in a file that is not there, or has changed since, is named
/// without its text. Of many alike, and of more than anybody reads, the first are told and the
/// others counted.
pub fn render(diagnostics: &[Diagnostic], texts: &BTreeMap<PathBuf, String>, colour: bool) -> String {
    let config = Config::default();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let (mut text, mut more, mut is_full) = (String::new(), [0, 0], false);
    for diagnostic in diagnostics {
        let alike = told.entry(kind(diagnostic)).or_default();
        if *alike < ALIKE && !is_full {
            let mut out = if colour { Buffer::ansi() } else { Buffer::no_color() };
            let written = write(&shortened(diagnostic), texts, &mut Renderer::new(&mut out, &config));
            written.expect("memory takes all that is written");
            is_full = !text.is_empty() && text.len() + out.len() >= MUCH;
            if !is_full {
                *alike += 1;
                let between = if text.is_empty() { "" } else { "\n" };
                text = text + between + &String::from_utf8_lossy(out.as_slice());
                continue;
            }
        }
        more[usize::from(diagnostic.severity == diagnostic::Severity::Warning)] += 1;
    }
    for (count, severity) in more.into_iter().zip(["error", "warning"]).filter(|(count, _)| *count > 0) {
        let are = if count == 1 { "is" } else { "are" };
        text.push_str(&format!("\n{severity}: {} {are} not shown\n", counted(count, &format!("more {severity}"))));
    }
    text
}

/// The kind of a diagnostic: those that differ in names and numbers alone have it in common.
fn kind(diagnostic: &Diagnostic) -> String {
    let outside = diagnostic.message.split(['`', '"']).step_by(2);
    outside.flat_map(str::chars).filter(|c| !c.is_ascii_digit()).collect()
}

/// The diagnostic as a terminal may show it, with no word that is longer than any name and no
/// sentence that nobody reads.
fn shortened(diagnostic: &Diagnostic) -> Diagnostic {
    let short = |text: &String, most: usize| {
        let mut text = shown(text).split(' ').map(cut_word).collect::<Vec<_>>().join(" ");
        if text.len() > most {
            text.truncate(text.floor_char_boundary(most));
            text.push('…');
        }
        text
    };
    let mut diagnostic = diagnostic.clone();
    diagnostic.message = short(&diagnostic.message, MESSAGE);
    diagnostic.label = diagnostic.label.map(|label| short(&label, LABEL));
    diagnostic.help = diagnostic.help.map(|help| short(&help, HELP));
    diagnostic
}

fn cut_word(word: &str) -> Cow<'_, str> {
    let at = |n: usize| word.char_indices().nth(n).map(|(at, _)| at);
    let length = word.chars().count();
    match (at(WORD / 2), at(length.saturating_sub(WORD / 4))) {
        (Some(start), Some(end)) if length > WORD => format!("{}…{}", &word[..start], &word[end..]).into(),
        _ => word.into(),
    }
}

fn write(diagnostic: &Diagnostic, texts: &BTreeMap<PathBuf, String>, out: &mut Renderer<'_, '_>) -> Result<(), files::Error> {
    let severity = match diagnostic.severity {
        diagnostic::Severity::Error => Severity::Error,
        diagnostic::Severity::Warning => Severity::Warning,
    };
    // Lines of a message that a name has broken stand inside it.
    out.render_header(None, severity, None, &diagnostic.message.replace('\n', "\n  "))?;
    let label = diagnostic.label.as_deref();
    let snippet = match &diagnostic.place {
        Some(Place::Text { file, span }) => {
            texts.get(file).and_then(|text| Snippet::find(text, *span)).map(|snippet| (file, snippet))
        }
        _ => None,
    };
    let mut padding = 1;
    if let Some((file, snippet)) = snippet {
        padding = snippet.line.to_string().len();
        border(padding, &format!("{}:{}:{}", file.display(), snippet.line, snippet.column), out)?;
        let carets = [(LabelStyle::Primary, snippet.carets, label.unwrap_or_default())];
        out.render_snippet_source(padding, snippet.line, &snippet.text, severity, &carets, 0, &[])?;
    } else {
        match &diagnostic.place {
            Some(Place::Text { file, .. } | Place::File(file)) => border(padding, &file.display().to_string(), out)?,
            Some(Place::Model { file, what }) => border(padding, &model_place(file, what), out)?,
            None => {}
        }
        if let Some(label) = label {
            out.render_snippet_note(padding, label)?;
        }
    }
    if let Some(help) = &diagnostic.help {
        out.render_snippet_note(padding, &format!("help: {help}"))?;
    }
    Ok(())
}

/// The line that a place is on, and the bytes of it that the place covers.
struct Snippet {
    line: usize,
    column: usize,
    text: String,
    carets: Range<usize>,
}

impl Snippet {
    /// `None` if the span is not a piece of the text. Of a span over several lines the first is
    /// shown.
    fn find(text: &str, (start, end): (usize, usize)) -> Option<Snippet> {
        text.get(start..end)?;
        let first_line = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let line_start = text[..start].rfind('\n').map_or(first_line.min(start), |at| at + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        let from = (start - line_start).min(line.len());
        // One byte for one byte, as the carets count them.
        let (piece, carets) = window(line, from..(end - line_start).min(line.len()));
        Some(Snippet {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            // One byte for one byte, as the carets count them.
            text: one_for_one(&piece),
            carets,
        })
    }
}

/// The part of a long line that is shown, and the place of the `carets` in it.
fn window(line: &str, carets: Range<usize>) -> (String, Range<usize>) {
    if line.chars().count() <= COLUMNS {
        return (line.to_string(), carets);
    }
    let before = line[..carets.start].char_indices().rev().nth(BEFORE - 1).map_or(0, |(at, _)| at);
    let after = line[before..].char_indices().nth(COLUMNS).map_or(line.len(), |(at, _)| before + at);
    let (left, right) = (if before > 0 { "…" } else { "" }, if after < line.len() { "…" } else { "" });
    let moved = |at: usize| at.clamp(before, after) - before + left.len();
    (format!("{left}{}{right}", &line[before..after]), moved(carets.start)..moved(carets.end))
}

/// `text` without control characters, each of its bytes in the place that it had.
fn one_for_one(text: &str) -> String {
    let kept = |c: char| c == '\t' || shown(c.encode_utf8(&mut [0; 4])).chars().count() == 1;
    text.chars().flat_map(|c| if kept(c) { vec![c] } else { vec!['?'; c.len_utf8()] }).collect()
}

fn model_place(file: &Path, what: &str) -> String {
    format!("{}: {what}", file.display())
}

/// `┌─ place`, below the header.
fn border(padding: usize, place: &str, out: &mut Renderer<'_, '_>) -> Result<(), files::Error> {
    let mut place = shown(place).replace(['\n', '\t'], " ");
    if place.len() > PLACE {
        place.replace_range(..place.ceil_char_boundary(place.len() - PLACE), "…");
    }
    write!(out, "{:padding$} ", "")?;
    out.set_source_border()?;
    write!(out, "┌─")?;
    out.reset()?;
    writeln!(out, " {place}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = "mesh tp=8\n\n\n\n\n\ntensor axis=tp\n\tclip norm=é # two\n";

    fn at(span: (usize, usize)) -> Place {
        Place::Text { file: "job.shard".into(), span }
    }

    fn rendered(diagnostics: &[Diagnostic], colour: bool) -> String {
        render(diagnostics, &BTreeMap::from([("job.shard".into(), SPEC.to_string())]), colour)
    }

    #[test]
    fn every_kind_of_place() {
        let heads = "`tp` has 8 ranks but \"model.layers.0.self_attn.k_proj.weight\" has 4 kv heads";
        let help = "use tp=4, or freeze the split of k and v with `shard \"*.k_proj.weight\" [-, -]`";
        let node = Place::Model { file: "model.onnx".into(), what: "node \"h.0.mlp/MatMul\" (MatMul)".into() };
        let diagnostics = [
            Diagnostic::error(heads).at(at((15, 29))).label("the heads are split here").help(help),
            Diagnostic::error("`norm` must be a number above 0, not `é`").at(at((41, 43))),
            Diagnostic::error("no gradient").at(node).label("first use").help("freeze it\nor cut it"),
            Diagnostic::warning("the data wraps").at(Place::File("data.npz".into())),
            Diagnostic::error("changed since").at(at((50, 1000))),
            Diagnostic::error("nowhere").help("try again"),
        ];
        let expected = r#"error: `tp` has 8 ranks but "model.layers.0.self_attn.k_proj.weight" has 4 kv heads
  ┌─ job.shard:7:1
7 │ tensor axis=tp
  │ ^^^^^^^^^^^^^^ the heads are split here
  = help: use tp=4, or freeze the split of k and v with `shard "*.k_proj.weight" [-, -]`

error: `norm` must be a number above 0, not `é`
  ┌─ job.shard:8:12
8 │     clip norm=é # two
  │               ^

error: no gradient
  ┌─ model.onnx: node "h.0.mlp/MatMul" (MatMul)
  = first use
  = help: freeze it
    or cut it

warning: the data wraps
  ┌─ data.npz

error: changed since
  ┌─ job.shard

error: nowhere
  = help: try again
"#;
        assert_eq!(rendered(&diagnostics, false), expected);
    }

    #[test]
    fn long_lines_are_shown_around_the_place() {
        let line = format!("shard \"{}\" [tp, -] speed=1 # {}", "é".repeat(300), "x".repeat(100_000));
        let at = line.find("speed").expect("it is there");
        let texts = BTreeMap::from([(PathBuf::from("job.shard"), line.clone())]);
        let error = Diagnostic::error(format!("`{}` is no name", "y".repeat(1000)))
            .at(Place::Text { file: "job.shard".into(), span: (at, at + 7) });
        let text = render(&[error], &texts, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("error: `yyy") && lines[0].ends_with("y` is no name") && lines[0].chars().count() < 220,
            "{text}"
        );
        assert_eq!(lines[1], "  ┌─ job.shard:1:318");
        assert!(lines[2].starts_with("1 │ …ééé") && lines[2].ends_with("xxx…") && lines[2].chars().count() < 130, "{text}");
        let (marks, source) = (lines[3].find('^').expect("carets"), lines[2].find("speed").expect("the place"));
        assert_eq!(lines[3][..marks].chars().count(), lines[2][..source].chars().count(), "{text}");
        assert_eq!(lines[3].trim_start_matches([' ', '│']), "^^^^^^^");
        let whole = Diagnostic::error("too long").at(Place::Text { file: "job.shard".into(), span: (0, line.len()) });
        assert!(render(&[whole], &texts, false).len() < 1000);
    }

    #[test]
    fn of_many_alike_the_others_are_counted() {
        let alike = |i: usize| Diagnostic::error(format!("`name{i}` is used {i} times"));
        let mut all: Vec<Diagnostic> = (0..1000).map(alike).collect();
        all.extend((0..3).map(|i| Diagnostic::error(format!("no gradient of `{i}`"))));
        let text = rendered(&all, false);
        assert!(text.matches("is used").count() == 20 && text.matches("no gradient").count() == 3, "{text}");
        assert!(text.ends_with("\nerror: 980 more errors are not shown\n"), "{text}");
        let different = |i: usize| Diagnostic::error(format!("{} is wrong", "x".repeat(i))).at(at((15, 21)));
        let many: Vec<Diagnostic> = (0..500).map(different).collect();
        let text = rendered(&many, false);
        assert!((3000..4096).contains(&text.len()) && text.contains(" more errors are not shown"), "{}", text.len());
    }

    #[test]
    fn colour_adds_only_escapes() {
        let diagnostics = [Diagnostic::error("wrong").at(at((15, 21))).label("here").help("none")];
        let coloured = rendered(&diagnostics, true);
        assert!(coloured.contains("\u{1b}["));
        let mut plain = String::new();
        for (i, part) in coloured.split("\u{1b}[").enumerate() {
            plain.push_str(if i == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) });
        }
        assert_eq!(plain, rendered(&diagnostics, false));
    }

    #[test]
    fn a_byte_order_mark_takes_no_column() {
        let texts = BTreeMap::from([(PathBuf::from("job.shard"), "\u{feff}msh dp=\u{1b}\r\n".to_string())]);
        let expected = "error: unknown\n  ┌─ job.shard:1:1\n1 │ msh dp=?\n  │ ^^^\n";
        assert_eq!(render(&[Diagnostic::error("unknown").at(at((3, 6)))], &texts, false), expected);
    }
}
