//! A schedule that the user writes: a line for each position, with its cells in order.
//!
//! ```text
//! F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3   # the stage, and after the dot the micro-batch
//! F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3
//! F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3
//! ```
//!
//! This table of p=3 and m=4 runs so:
//!
//! ```text
//! pp=0 |F0 F1 F2 ·  ·  ·  ·  B0─── F3 B1─── ·  B2─── ·  B3─── |
//! pp=1 |·  F0 F1 ·  ·  B0─── F2 B1─── F3 B2─── ·  B3─── ·  ·  |
//! pp=2 |·  ·  F0 B0─── F1 B1─── F2 B2─── F3 B3─── ·  ·  ·  ·  |
//! ```
//!
//! Blank lines are left out, and so is everything from a `#` on. What is read here is a table with
//! every cell once, at its position; whether it can be run is for [`check`] to say.
//!
//! [`check`]: super::links::check

use super::{Cell, Pass, Shape, Table};
use std::collections::BTreeMap;

/// Why a text is no table, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: usize,
    /// The first byte of the place and the one after its last, in the whole text.
    pub span: (usize, usize),
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

/// A piece of the text.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    line: usize,
    start: usize,
    text: &'a str,
}

impl Piece<'_> {
    fn fault(self, message: String, help: String) -> Fault {
        Fault { line: self.line, span: (self.start, self.start + self.text.len()), message, help }
    }
}

/// Reads a table. It has cells of W if `with_weights`, and must have them all then.
pub fn parse(text: &str, shape: &Shape, with_weights: bool) -> Result<Table, Fault> {
    let lines = lines(text);
    check_number_of_lines(text, &lines, shape)?;
    let mut seen: BTreeMap<Cell, (u64, usize)> = BTreeMap::new();
    let mut table = vec![];
    for (position, pieces) in (0..).zip(&lines) {
        let mut row: Vec<Cell> = vec![];
        let mut last: BTreeMap<(Pass, u32), usize> = BTreeMap::new();
        for piece in pieces {
            let cell = parse_cell(*piece, shape, position, with_weights)?;
            let index = row.len();
            if let Some((_, before)) = seen.insert(cell, (position, index)) {
                let message = format!("`{cell}` is there twice: position {position}, rows {} and {}", before + 1, index + 1);
                return Err(piece.fault(message, "leave one of them out".to_string()));
            }
            if cell.pass != Pass::Forward
                && let Some(before) = last.insert((cell.pass, cell.stage), index)
                && row[before].time > cell.time
            {
                return Err(piece.fault(
                    format!(
                        "`{}` at position {position}, row {}, stands before `{cell}` at position {position}, row {}",
                        row[before],
                        before + 1,
                        index + 1
                    ),
                    format!(
                        "run {} of stage {} in ascending order of micro-batches: so gradients are added",
                        cell.pass.letter(),
                        cell.stage
                    ),
                ));
            }
            row.push(cell);
        }
        if let Some(lacking) = cells_of(shape, position, with_weights).find(|cell| !seen.contains_key(cell)) {
            let piece = pieces.last().expect("a line that counts has a cell");
            let message = format!("position {position} lacks `{lacking}`");
            return Err(piece.fault(message, format!("write `{lacking}` where the position is to run it")));
        }
        table.push(row);
    }
    Ok(table)
}

/// Whether a text has cells of W; so its table separates the gradients of weights.
pub fn has_weights(text: &str) -> bool {
    lines(text).iter().flatten().any(|piece| piece.text.starts_with('W'))
}

/// The cells of each line that has any.
fn lines(text: &str) -> Vec<Vec<Piece<'_>>> {
    let mut lines = vec![];
    let mut start = 0;
    for (line, whole) in (1..).zip(text.split_inclusive('\n')) {
        let counts = whole.split('#').next().unwrap_or_default();
        let place = |word: &str| start + (word.as_ptr() as usize - whole.as_ptr() as usize);
        let pieces = counts.split_whitespace().map(|word| Piece { line, start: place(word), text: word });
        lines.push(pieces.collect::<Vec<_>>());
        start += whole.len();
    }
    lines.retain(|pieces| !pieces.is_empty());
    lines
}

fn check_number_of_lines(text: &str, lines: &[Vec<Piece<'_>>], shape: &Shape) -> Result<(), Fault> {
    let wanted = shape.positions;
    if lines.len() as u64 == wanted {
        return Ok(());
    }
    let surplus = lines.iter().zip(0..).find(|(_, i)| *i == wanted).map(|(pieces, _)| pieces);
    let at = surplus.or(lines.last()).map(|pieces| (pieces[0], pieces[pieces.len() - 1]));
    let (line, span) = at.map_or((1, (0, text.len())), |(a, b)| (a.line, (a.start, b.start + b.text.len())));
    let message = format!("{} for {}", counted(lines.len() as u64, "line"), counted(wanted, "position"));
    Err(Fault { line, span, message, help: "write one line for each position".to_string() })
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The cell that a piece names, if the position may have it.
fn parse_cell(piece: Piece<'_>, shape: &Shape, position: u64, with_weights: bool) -> Result<Cell, Fault> {
    let text = piece.text;
    let Some((pass, stage, time)) = split_cell(text) else {
        let help = "write the pass (F, B or W), the stage, a dot and the micro-batch: `F0.3`".to_string();
        return Err(piece.fault(format!("`{text}` is no cell"), help));
    };
    if pass == Pass::Weight && !with_weights {
        let message = format!("`{text}` where gradients of weights are not separate");
        return Err(piece.fault(message, "leave the cells of W out: B gives these gradients too".to_string()));
    }
    let there: Vec<String> = (0..shape.chunks).map(|c| (c * shape.positions + position).to_string()).collect();
    if stage >= shape.stages() || shape.position(stage as u32) != position {
        let (plural, verb) = if there.len() == 1 { ("", "is") } else { ("s", "are") };
        let help = format!("position {position} runs what {verb} of stage{plural} {}", there.join(", "));
        return Err(piece.fault(format!("the stage of `{text}` is not at position {position}"), help));
    }
    if time >= shape.microbatches {
        let help = match shape.microbatches {
            1 => "there is one micro-batch, 0".to_string(),
            m => format!("there are {m} micro-batches, 0 to {}", m - 1),
        };
        return Err(piece.fault(format!("`{text}` names a micro-batch that is not there"), help));
    }
    Ok(Cell { pass, stage: stage as u32, time })
}

/// The pass, the stage and the micro-batch. A number that is too large for its type is too large
/// for every pipeline.
fn split_cell(text: &str) -> Option<(Pass, u64, u64)> {
    let pass = [Pass::Forward, Pass::Backward, Pass::Weight].into_iter().find(|p| text.starts_with(p.letter()))?;
    let (stage, time) = text[1..].split_once('.')?;
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number = |digits: &str| is_number(digits).then(|| digits.parse().unwrap_or(u64::MAX));
    Some((pass, number(stage)?, number(time)?))
}

/// The cells that a position must have.
fn cells_of(shape: &Shape, position: u64, with_weights: bool) -> impl Iterator<Item = Cell> {
    let passes = [Pass::Forward, Pass::Backward, Pass::Weight];
    let passes = passes.into_iter().take(if with_weights { 3 } else { 2 });
    let (positions, chunks, microbatches) = (shape.positions, shape.chunks, shape.microbatches);
    passes.flat_map(move |pass| {
        let stages = (0..chunks).map(move |c| (c * positions + position) as u32);
        stages.flat_map(move |stage| (0..microbatches).map(move |time| Cell { pass, stage, time }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { positions: 2, chunks: 1, microbatches: 2 };
    const GOOD: &str = "F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1\n";

    /// The fault of a text: its line, the text of its span, and its message.
    fn fault(text: &str, with_weights: bool) -> (usize, &str, String) {
        let fault = parse(text, &SHAPE, with_weights).expect_err("it has a fault");
        assert!(!fault.help.is_empty());
        (fault.line, &text[fault.span.0..fault.span.1], fault.message)
    }

    #[test]
    fn comments_and_blank_lines_are_left_out() {
        let table = parse(GOOD, &SHAPE, false).expect("it is a table");
        let text = "# two positions: é\r\n\r\n F0.0\tF0.1 B0.0 B0.1 # F9.9\r\n\r\nF1.0 B1.0 F1.1 B1.1";
        assert_eq!(parse(text, &SHAPE, false), Ok(table));
    }

    #[test]
    fn weights_are_used_where_a_cell_of_them_is() {
        assert!(!has_weights("F0.0 B0.0 # W0.0"));
        assert!(has_weights("F0.0 B0.0 W0.0"));
    }

    #[test]
    fn text_that_is_no_cell_is_refused() {
        for bad in ["X0.1", "F01", "F0.", "F.1", "F0.+1", "F0.1.1", "f0.1", "F-0.1", "é0.1", "F0.1,"] {
            let text = GOOD.replace("F0.1", bad);
            assert_eq!(fault(&text, false), (1, bad, format!("`{bad}` is no cell")));
        }
    }

    #[test]
    fn a_wrong_number_of_lines_is_refused() {
        assert_eq!(fault("", false), (1, "", "0 lines for 2 positions".to_string()));
        assert_eq!(fault("#\nF0.0 B0.0 #\n", false), (2, "F0.0 B0.0", "1 line for 2 positions".to_string()));
        let text = format!("{GOOD}\n F2.0  B2.0 \nF3.0");
        assert_eq!(fault(&text, false), (4, "F2.0  B2.0", "4 lines for 2 positions".to_string()));
    }

    #[test]
    fn a_stage_of_another_position_is_refused() {
        for bad in ["B0.0", "B2.0", "B3.0", "B99999999999999999999.0", "B4294967297.0"] {
            let text = GOOD.replace("B1.0", bad);
            assert_eq!(fault(&text, false), (2, bad, format!("the stage of `{bad}` is not at position 1")));
        }
    }

    #[test]
    fn a_micro_batch_that_is_not_there_is_refused() {
        for bad in ["F1.2", "F1.99999999999999999999"] {
            let text = GOOD.replace("F1.1", bad);
            assert_eq!(fault(&text, false), (2, bad, format!("`{bad}` names a micro-batch that is not there")));
        }
    }

    #[test]
    fn a_cell_twice_and_a_cell_that_lacks_are_refused() {
        let twice = GOOD.replace("B1.1", "F1.1");
        assert_eq!(fault(&twice, false), (2, "F1.1", "`F1.1` is there twice: position 1, rows 3 and 4".to_string()));
        let lacks = GOOD.replace(" B1.0", "");
        assert_eq!(fault(&lacks, false), (2, "B1.1", "position 1 lacks `B1.0`".to_string()));
        assert_eq!(fault(GOOD, true), (1, "B0.1", "position 0 lacks `W0.0`".to_string()));
    }

    #[test]
    fn micro_batches_out_of_ascending_order_are_refused() {
        let text = "F0.1 F0.0 B0.1 B0.0\nF1.0 B1.0 F1.1 B1.1\n";
        let words = "`B0.1` at position 0, row 3, stands before `B0.0` at position 0, row 4";
        assert_eq!(fault(text, false), (1, "B0.0", words.to_string()));
        let text = "F0.0 F0.1 B0.0 B0.1 W0.1 W0.0\nF1.0 B1.0 F1.1 B1.1 W1.0 W1.1\n";
        let words = "`W0.1` at position 0, row 5, stands before `W0.0` at position 0, row 6";
        assert_eq!(fault(text, true), (1, "W0.0", words.to_string()));
    }

    #[test]
    fn weights_that_are_not_separate_are_refused() {
        let text = GOOD.replace("B1.1", "B1.1 W1.0");
        let words = "`W1.0` where gradients of weights are not separate";
        assert_eq!(fault(&text, false), (2, "W1.0", words.to_string()));
    }
}
