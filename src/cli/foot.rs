//! The line at the foot of a terminal that redraws itself, and notes above it, which never smear
//! it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// Columns where the terminal does not say how many it has.
const COLUMNS: usize = 80;

/// Around a line: where the window has become smaller and has not said so yet, it ends at the edge
/// and begins no other row.
const CUT: (&str, &str) = ("\x1b[?7l", "\x1b[?7h");

/// The line as it stands on the terminal; empty where there is none.
static LINE: Mutex<String> = Mutex::new(String::new());

/// The columns of the terminal as it is now; `None` where standard error is none, or one that
/// cannot move its cursor.
pub fn columns() -> Option<usize> {
    let term = std::env::var("TERM").ok();
    if !can_redraw(io::stderr().is_terminal(), term.as_deref()) {
        return None;
    }
    Some(terminal_size::terminal_size_of(io::stderr()).map_or(COLUMNS, |(width, _)| width.0.into()))
}

/// Only Unix has the variable.
fn can_redraw(is_terminal: bool, term: Option<&str>) -> bool {
    is_terminal && term.map_or(cfg!(windows), |term| !term.is_empty() && term != "dumb")
}

/// Shows `line` in the place of the one before.
pub fn draw(line: &str, columns: usize) {
    let mut shown = LINE.lock().unwrap_or_else(PoisonError::into_inner);
    write(&over(&shown, line, columns));
    *shown = line.to_string();
}

/// Writes a line of text above the line that is shown, if one is.
pub fn note(text: &str) {
    let mut shown = LINE.lock().unwrap_or_else(PoisonError::into_inner);
    if shown.is_empty() {
        return write(&format!("{text}\n"));
    }
    let (written, line) = above(&shown, text, columns().unwrap_or(COLUMNS));
    write(&written);
    *shown = line;
}

/// Leaves the line where it is; what follows comes below.
pub fn end() {
    let mut shown = LINE.lock().unwrap_or_else(PoisonError::into_inner);
    if !std::mem::take(&mut *shown).is_empty() {
        write("\n");
    }
}

/// In one piece; if nobody reads it, nothing is lost.
fn write(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The text and escapes that replace `shown` by `line`.
fn over(shown: &str, line: &str, columns: usize) -> String {
    let (cut, whole) = CUT;
    format!("{}{cut}{line}{whole}\x1b[K", back(shown, columns))
}

/// The text and escapes that replace `shown` by `text`, and below it as much of `shown` as there is
/// room for, which is the line from then on.
fn above(shown: &str, text: &str, columns: usize) -> (String, String) {
    let line: String = shown.chars().take(columns.saturating_sub(1)).collect();
    (format!("{}\x1b[K{text}\n{line}", back(shown, columns)), line)
}

/// To the beginning of `shown`, row by row: some terminals keep what goes when several are cleared
/// at once.
fn back(shown: &str, columns: usize) -> String {
    "\r".to_string() + &"\x1b[K\x1b[A".repeat(rows_above(shown, columns))
}

/// Rows that the line takes above the cursor's: a window that shrinks breaks it into several.
fn rows_above(shown: &str, columns: usize) -> usize {
    shown.chars().count().saturating_sub(1) / columns.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a window after `text`, of the escapes that are used here.
    fn screen(text: &str, columns: usize) -> Vec<String> {
        let (mut rows, mut row, mut column, mut wraps) = (vec![vec![]], 0, 0, true);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\r' => column = 0,
                '\n' => (row, column) = (row + 1, 0),
                '\x1b' => {
                    let code: String = std::iter::from_fn(|| chars.next_if(|c| !c.is_ascii_alphabetic())).collect();
                    let n: usize = code[1..].trim_start_matches('?').parse().unwrap_or(0);
                    match chars.next() {
                        Some('A') => row -= n.max(1),
                        Some('K') => rows[row].truncate(column),
                        Some(end @ ('h' | 'l')) => wraps = end == 'h',
                        other => panic!("{other:?} is no escape of ours"),
                    }
                }
                c => {
                    if column == columns {
                        (row, column) = if wraps { (row + 1, 0) } else { (row, column - 1) };
                    }
                    rows.resize(rows.len().max(row + 1), vec![]);
                    let width = rows[row].len().max(column + 1);
                    rows[row].resize(width, ' ');
                    rows[row][column] = c;
                    column += 1;
                }
            }
            rows.resize(rows.len().max(row + 1), vec![]);
        }
        rows.truncate(row + 1);
        rows.into_iter().map(|row| row.into_iter().collect()).collect()
    }

    #[test]
    fn a_shorter_line_leaves_nothing_of_a_longer_one() {
        let text = over("", "step 10/10  loss 0.1", 30) + &over("step 10/10  loss 0.1", "step 9", 30);
        assert_eq!(screen(&text, 30), ["step 9"]);
    }

    #[test]
    fn notes_stand_above_the_line() {
        let line = "step 1/2  loss 0.1";
        let text = format!("one\n{}{}{}\n", over("", line, 30), above(line, "note: two", 30).0, over(line, "step 2/2", 30));
        assert_eq!(screen(&text, 30), ["one", "note: two", "step 2/2", ""], "a line ends where it is");
    }

    #[test]
    fn a_line_that_a_smaller_window_has_broken_goes_whole() {
        let line = "0123456789abcdefghij";
        for (columns, rows) in [(30, 0), (20, 0), (19, 1), (10, 1), (9, 2)] {
            assert_eq!(rows_above(line, columns), rows);
            let text = format!("one\n{line}{}", over(line, "step 2", columns));
            assert_eq!(screen(&text, columns), ["one", "step 2"], "{columns} columns");
            let (text, shown) = above(line, "two", columns);
            let text = format!("one\n{line}{text}{}", over(&shown, "step 2", columns));
            assert_eq!(screen(&text, columns), ["one", "two", "step 2"], "{columns} columns");
        }
    }

    #[test]
    fn only_terminals_that_move_their_cursor_are_redrawn() {
        assert!(can_redraw(true, Some("xterm-256color")));
        assert!(!can_redraw(true, Some("dumb")) && !can_redraw(true, Some("")) && !can_redraw(false, Some("xterm")));
    }
}
