//! Pages of Markdown as text for a terminal: marks taken away, tables aligned, lines of at most
//! [`WIDTH`] columns.
//!
//! It reads what our own pages are written in: headings, paragraphs, lists of one level, fenced
//! code, tables, code and bold spans, links.

use std::iter::Peekable;
use std::str::Lines;

/// The longest line that is written.
const WIDTH: usize = 100;

/// Columns between the cells of a row.
const GAP: usize = 2;

/// The heading `title` of `page` and all below it; `None` if there is none.
pub fn section<'p>(page: &'p str, title: &str) -> Option<&'p str> {
    let headings = headings(page);
    let at = headings.iter().position(|heading| heading.title == title)?;
    let end = headings[at + 1..].iter().find(|next| next.level <= headings[at].level).map_or(page.len(), |next| next.start);
    Some(&page[headings[at].start..end])
}

struct Heading<'p> {
    /// Its first byte in the page.
    start: usize,
    level: usize,
    title: &'p str,
}

/// The headings of a page; in fences `#` begins a comment.
fn headings(page: &str) -> Vec<Heading<'_>> {
    let mut found = vec![];
    let (mut start, mut fenced) = (0, false);
    for line in page.split_inclusive('\n') {
        fenced ^= is_fence(line);
        if let Some((level, title)) = heading(line.trim_end()).filter(|_| !fenced) {
            found.push(Heading { start, level, title });
        }
        start += line.len();
    }
    found
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    title.strip_prefix(' ').filter(|_| level > 0).map(|title| (level, title))
}

fn is_fence(line: &str) -> bool {
    line.starts_with("```")
}

/// `markdown` for a terminal.
pub fn text(markdown: &str) -> String {
    let mut out = String::new();
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some((level, title)) = heading(line) {
            let title = if level < 3 { plain(title).to_uppercase() } else { plain(title) };
            let under = if level < 3 { "=" } else { "-" };
            out += &format!("{title}\n{}\n", under.repeat(title.chars().count()));
        } else if is_fence(line) {
            for line in lines.by_ref().take_while(|line| !is_fence(line)) {
                out += format!("    {line}").trim_end();
                out.push('\n');
            }
        } else if line.starts_with('|') {
            table(line, &mut lines, &mut out);
        } else {
            paragraph(line, &mut lines, &mut out);
        }
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

/// A paragraph or an item of a list, which ends before an empty line, an item or a block of another
/// kind.
fn paragraph(first: &str, lines: &mut Peekable<Lines<'_>>, out: &mut String) {
    let indent = if first.starts_with("- ") { "  " } else { "" };
    let mut joined = first.to_string();
    let goes_on = |line: &&str| !first.is_empty() && !line.is_empty() && !line.starts_with(['-', '|', '#']) && !is_fence(line);
    while let Some(line) = lines.next_if(goes_on) {
        joined.push(' ');
        joined.push_str(line.trim());
    }
    for (i, line) in wrapped(&plain(&joined), WIDTH - indent.len()).iter().enumerate() {
        *out += &format!("{}{line}\n", if i == 0 { "" } else { indent });
    }
}

/// A table: columns as wide as their cells, the widest ones narrower where the lines would be too
/// long.
fn table(head: &str, lines: &mut Peekable<Lines<'_>>, out: &mut String) {
    let mut rows = vec![cells(head)];
    while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
        if !line.starts_with("|--") {
            rows.push(cells(line));
        }
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let natural: Vec<usize> = (0..columns).map(width).collect();
    let room = WIDTH - GAP * columns.saturating_sub(1);
    let fits = |limit: &usize| natural.iter().map(|width| width.min(limit)).sum::<usize>() <= room;
    let limit = (1..=room).rev().find(fits).unwrap_or(1);
    let widths: Vec<usize> = natural.iter().map(|width| *width.min(&limit)).collect();
    rows.insert(1, widths.iter().map(|width| "-".repeat(*width)).collect());
    for row in &rows {
        let parts: Vec<Vec<String>> = row.iter().zip(&widths).map(|(cell, width)| wrapped(cell, *width)).collect();
        for line in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
            let part = |(lines, width): (&Vec<String>, &usize)| format!("{:<width$}", lines.get(line).map_or("", String::as_str));
            let texts: Vec<String> = parts.iter().zip(&widths).map(part).collect();
            *out += texts.join(&" ".repeat(GAP)).trim_end();
            out.push('\n');
        }
    }
}

/// The cells of a row; one that is code alone needs no marks.
fn cells(row: &str) -> Vec<String> {
    const BAR: char = '\u{0}';
    let row = row.replace("\\|", &BAR.to_string());
    let inner = row.trim().trim_matches('|');
    let bare = |cell: &str| match cell.strip_prefix('`').and_then(|cell| cell.strip_suffix('`')) {
        Some(code) if !code.contains('`') => code.to_string(),
        _ => plain(cell),
    };
    inner.split('|').map(|cell| bare(cell.trim()).replace(BAR, "|")).collect()
}

/// Text without the marks of bold spans and links; those of code stay, as messages have them.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    let mut opened = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        match c {
            '`' => {
                code = !code;
                out.push(c);
            }
            '*' if !code && rest.starts_with("**") => taken = 2,
            '[' if !code => {
                opened = Some(out.len());
                out.push(c);
            }
            ']' if !code && rest.starts_with("](") => {
                taken = rest.find(')').map_or(rest.len(), |end| end + 1);
                if let Some(at) = opened.take() {
                    out.remove(at);
                }
            }
            _ => out.push(c),
        }
        rest = &rest[taken..];
    }
    out
}

/// The lines of `text`, of at most `width` columns where its words allow it; blanks in code
/// separate no words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut code = false;
    let blank = |c: char| {
        code ^= c == '`';
        c == ' ' && !code
    };
    let mut lines = vec![String::new()];
    for word in text.split(blank).filter(|word| !word.is_empty()) {
        let line = lines.last_mut().expect("there is a line");
        let used = line.chars().count();
        if used == 0 {
            line.push_str(word);
        } else if used + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n\nWords\nof [`a b`](to/a) and **bold**.\n\n- one\n  more\n- two\n\n## Part\n\n### one\n\n\
                        ```sh\n# no heading\n\ntwo  \n```\n\n| a | long name |\n|---|---|\n| `x\\|y` | is `z` |\n\n### two\n\nEnd.\n";

    #[test]
    fn marks_are_taken_away() {
        let expected = "A PAGE\n======\n\nWords of `a b` and bold.\n\n- one more\n- two\n\nPART\n====\n\none\n---\n\n    # no heading\n\n    \
                        two\n\na    long name\n---  ---------\nx|y  is `z`\n\ntwo\n---\n\nEnd.\n";
        assert_eq!(text(PAGE), expected);
    }

    #[test]
    fn a_section_ends_before_the_next_of_its_level() {
        assert_eq!(section(PAGE, "two"), Some("### two\n\nEnd.\n"));
        assert!(section(PAGE, "one").is_some_and(|one| one.contains("# no heading") && one.trim_end().ends_with("is `z` |")));
        assert!(section(PAGE, "Part").is_some_and(|part| part.ends_with("End.\n")));
        assert_eq!(section(PAGE, "no heading"), None);
    }

    #[test]
    fn lines_are_wrapped_where_words_allow_it() {
        assert_eq!(wrapped("aa `b c` d", 6), ["aa", "`b c`", "d"]);
        assert_eq!(wrapped("longer than that", 4), ["longer", "than", "that"]);
        let words = "word ".repeat(100);
        let page = format!("- {words}\n\n| a | b |\n|---|---|\n| key | {words} |\n");
        let lines: Vec<String> = text(&page).lines().map(str::to_string).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("  word word") && lines.last().is_some_and(|line| line.starts_with("     word")));
    }
}
