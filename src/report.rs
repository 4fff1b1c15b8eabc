//! Diagnostics on the terminal: the message, the place with the text it points at, and what to do.

use codespan_reporting::diagnostic::{LabelStyle, Severity};
use codespan_reporting::files;
use codespan_reporting::term::termcolor::Buffer;
use codespan_reporting::term::{Config, Renderer, WriteStyle};
use shardc_ir::diagnostic::{self, Diagnostic, Place, shown};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Prints `diagnostics` to standard error, in colour if that is a terminal and `NO_COLOR` is not set.
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

/// `diagnostics` as text, a blank line between two. `texts` are the files that places point into, by the names that they use; a place
/// in a file that is not there, or has changed since, is named without its text.
pub fn render(diagnostics: &[Diagnostic], texts: &BTreeMap<PathBuf, String>, colour: bool) -> String {
    let mut out = if colour { Buffer::ansi() } else { Buffer::no_color() };
    let config = Config::default();
    for (i, diagnostic) in diagnostics.iter().enumerate() {
        let between = if i == 0 { Ok(()) } else { writeln!(out).map_err(files::Error::Io) };
        between
            .and_then(|()| write(diagnostic, texts, &mut Renderer::new(&mut out, &config)))
            .expect("memory takes all that is written");
    }
    String::from_utf8_lossy(out.as_slice()).into_owned()
}

fn write(diagnostic: &Diagnostic, texts: &BTreeMap<PathBuf, String>, out: &mut Renderer<'_, '_>) -> Result<(), files::Error> {
    let severity = match diagnostic.severity {
        diagnostic::Severity::Error => Severity::Error,
        diagnostic::Severity::Warning => Severity::Warning,
    };
    // Lines of a message that a name has broken stand inside it.
    out.render_header(None, severity, None, &shown(&diagnostic.message).replace('\n', "\n  "))?;
    let label = diagnostic.label.as_deref().map(shown);
    let label = label.as_deref();
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
        out.render_snippet_note(padding, &format!("help: {}", shown(help)))?;
    }
    Ok(())
}

/// The line that a place is on, and the bytes of it that the place covers.
struct Snippet {
    line: usize,
    column: usize,
    text: String,
    carets: std::ops::Range<usize>,
}

impl Snippet {
    /// `None` if the span is not a piece of the text. Of a span over several lines the first is shown.
    fn find(text: &str, (start, end): (usize, usize)) -> Option<Snippet> {
        text.get(start..end)?;
        let first_line = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let line_start = text[..start].rfind('\n').map_or(first_line.min(start), |at| at + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        let from = (start - line_start).min(line.len());
        Some(Snippet {
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            // One byte for one byte, as the carets count them.
            text: one_for_one(line),
            carets: from..(end - line_start).min(line.len()),
        })
    }
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
    let place = shown(place).replace(['\n', '\t'], " ");
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
