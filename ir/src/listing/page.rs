//! Lines of steps in columns, within a width.

use super::Options;
use crate::columns::{Column, align};

/// The cells of a line.
pub struct Cells {
    /// The step, or the first and the last.
    pub number: String,
    /// The queue.
    pub stream: &'static str,
    /// What is written.
    pub result: String,
    /// What runs.
    pub op: String,
    /// What it reads.
    pub operands: String,
    /// The types of what is written.
    pub types: String,
    /// What else there is to say.
    pub note: String,
}

enum Row {
    Heading(usize, String),
    Step(usize, Cells),
}

/// The lines of a listing.
pub struct Page<'o> {
    digits: usize,
    options: &'o Options<'o>,
    rows: Vec<Row>,
}

/// Columns before the number of a step, and more of them within a layer.
const INDENT: usize = 4;
const INNER: usize = 2;
/// Columns of the gaps between cells: before stream, result, op, types and note.
const GAPS: [&str; 5] = [" ", "  ", " = ", "  : ", "  "];
/// Columns of the stream.
const STREAM: usize = 4;
/// No line is narrower.
const NARROWEST: usize = 40;

/// The widths of result, operation and types.
#[derive(Clone, Copy)]
struct Widths([usize; 3]);

impl<'o> Page<'o> {
    /// Without lines; numbers of steps have so many digits.
    pub fn new(digits: usize, options: &'o Options<'o>) -> Page<'o> {
        Page { digits, options, rows: vec![] }
    }

    /// The number of a step.
    pub fn number(&self, number: usize) -> String {
        format!("{number:0width$}", width = self.digits)
    }

    /// The numbers of neighbouring steps.
    pub fn range(&self, first: usize, last: usize) -> String {
        if first == last { self.number(first) } else { format!("{}-{}", self.number(first), self.number(last)) }
    }

    /// A line of words.
    pub fn heading(&mut self, indent: usize, text: String) {
        self.rows.push(Row::Heading(indent, text));
    }

    /// A line of a step.
    pub fn line(&mut self, cells: Cells) {
        self.rows.push(Row::Step(INDENT, cells));
    }

    /// A line of a step within a layer.
    pub fn inner(&mut self, cells: Cells) {
        self.rows.push(Row::Step(INDENT + INNER, cells));
    }

    /// All lines.
    pub fn text(&self) -> String {
        let width = self.options.width.max(NARROWEST);
        let steps = || self.rows.iter().filter_map(|row| if let Row::Step(_, cells) = row { Some(cells) } else { None });
        let numbers = steps().map(|cells| cells.number.len()).max().unwrap_or(0) + INNER;
        let room = width.saturating_sub(INDENT + numbers + STREAM + GAPS.iter().map(|gap| gap.len()).sum::<usize>());
        let widest = |of: fn(&Cells) -> usize, percent: usize| {
            let limit = (room * percent / 100).min(MAX_CELL);
            steps().map(of).filter(|width| *width <= limit).max().unwrap_or(0)
        };
        let widths =
            Widths([widest(|c| chars(&c.result), 22), widest(|c| chars(&c.operation()), 46), widest(|c| chars(&c.types), 15)]);
        let mut out = String::new();
        for row in &self.rows {
            let text = match row {
                Row::Heading(indent, text) => format!("{}{text}", " ".repeat(*indent)),
                Row::Step(indent, cells) => {
                    let place = (*indent, numbers + INDENT - indent);
                    if self.options.all { cells.text(place, widths) } else { cells.fitted(place, widths, width) }
                }
            };
            if self.options.all {
                out.push_str(&wrapped(&text, width));
            } else {
                out.push_str(&cut(&text, width));
            }
            out.push('\n');
        }
        out
    }
}

/// Wider cells do not widen their column.
const MAX_CELL: usize = 64;

impl Cells {
    fn operation(&self) -> String {
        format!("{} {}", self.op, self.operands).trim_end().to_string()
    }

    fn is_message(&self) -> bool {
        self.stream == "comm"
    }

    /// The line, its columns under those of others as far as its cells fit.
    fn text(&self, (indent, numbers): (usize, usize), Widths([result, operation, types]): Widths) -> String {
        let padded = |text: &str, width: usize| format!("{text}{}", " ".repeat(width.saturating_sub(chars(text))));
        let row = [
            padded(&self.number, numbers),
            self.stream.to_string(),
            padded(&self.result, result),
            padded(&self.operation(), operation),
            padded(&self.types, types),
            self.note.clone(),
        ];
        let gap = |i: usize| match i {
            // Nothing stands where there are no types.
            4 if self.types.is_empty() => "",
            _ => GAPS[i - 1],
        };
        let columns = ["", gap(1), gap(2), gap(3), gap(4), gap(5)].map(Column::after);
        format!("{}{}", " ".repeat(indent), align(&[row], columns).trim_end())
    }

    /// The line within `width` columns: first columns give up their places, then cells are elided.
    fn fitted(&self, place: (usize, usize), widths: Widths, width: usize) -> String {
        let Widths([result, operation, types]) = widths;
        let mut cells = Cells {
            number: self.number.clone(),
            result: elided(&self.result, result.max(NARROWEST / 2)),
            op: self.op.clone(),
            operands: self.operands.clone(),
            types: self.types.clone(),
            note: self.note.clone(),
            ..*self
        };
        let fits = |text: &String| chars(text) <= width;
        let text = cells.text(place, widths);
        if fits(&text) {
            return text;
        }
        let text = cells.text(place, Widths([result, operation, 0]));
        if fits(&text) {
            return text;
        }
        let text = cells.text(place, Widths([result, 0, 0]));
        if fits(&text) {
            return text;
        }
        // The types of a message give way first, as its bytes stand behind them; then operands,
        // other types and the note.
        if cells.is_message() {
            cells.types.clear();
        }
        let text = cells.text(place, Widths([result, 0, 0]));
        let over = chars(&text).saturating_sub(width);
        if over == 0 {
            return text;
        }
        let whole = chars(&cells.operation());
        let least = if cells.is_message() { chars(&cells.op) + 4 } else { operation };
        let most = whole.saturating_sub(over).max(least.min(whole)).max(NARROWEST / 2);
        cells.operands = listed_within(&cells.operands, most.saturating_sub(chars(&cells.op) + 1));
        if chars(&cells.operation()) > most {
            (cells.op, cells.operands) = (cut(&cells.operation(), most), String::new());
        }
        let text = cells.text(place, Widths([result, 0, 0]));
        if fits(&text) {
            return text;
        }
        cells.types = cut(&cells.types, types.max(NARROWEST / 4));
        cut(&cells.text(place, Widths([result, 0, 0])), width)
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

/// `text` without its end where it is longer than `most`.
pub fn cut(text: &str, most: usize) -> String {
    match chars(text) > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_string(),
    }
}

/// `text` without its middle where it is longer than `most`.
pub fn elided(text: &str, most: usize) -> String {
    let length = chars(text);
    if length <= most {
        return text.to_string();
    }
    let tail = most.saturating_sub(1) * 3 / 5;
    let head = most.saturating_sub(1 + tail);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// As many names of a list as fit, or the first, elided.
fn listed_within(list: &str, most: usize) -> String {
    if chars(list) <= most {
        return list.to_string();
    }
    let mut out = String::new();
    for name in list.split(", ") {
        let longer = if out.is_empty() { name.to_string() } else { format!("{out}, {name}") };
        if chars(&longer) + 3 > most {
            break;
        }
        out = longer;
    }
    match out.is_empty() {
        true if most < NARROWEST / 2 => "…".to_string(),
        true if !list.contains(", ") => elided(list, most),
        true => elided(list.split(", ").next().unwrap_or_default(), most.saturating_sub(3)) + ", …",
        false => out + ", …",
    }
}

/// `text` in lines of at most `width` columns, all but the first further in; broken at spaces where
/// there are any.
pub fn wrapped(text: &str, width: usize) -> String {
    const FURTHER: &str = "            ";
    let (mut lines, mut line) = (vec![], String::new());
    let start = text.len() - text.trim_start().len();
    for (i, word) in text[start..].split(' ').enumerate() {
        let begins = line.trim().is_empty();
        if i == 0 {
            line = format!("{}{word}", &text[..start]);
        } else if !begins && chars(&line) + 1 + chars(word) > width {
            lines.push(line.trim_end().to_string());
            line = format!("{FURTHER}{word}");
        } else {
            line.push(' ');
            line.push_str(word);
        }
        while chars(&line) > width {
            lines.push(line.chars().take(width).collect());
            line = format!("{FURTHER}{}", line.chars().skip(width).collect::<String>());
        }
    }
    lines.push(line.trim_end().to_string());
    lines.join("\n")
}
