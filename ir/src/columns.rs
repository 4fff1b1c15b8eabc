//! Text in aligned columns, for every table and listing.

/// How one column is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The text before it, also before its first cell.
    pub gap: &'static str,
    /// Wider cells do not widen the column for the others.
    pub limit: usize,
    /// Whether cells stand at the right edge, as numbers do.
    pub right: bool,
}

impl Column {
    /// Words, two spaces after the column before.
    pub const WORDS: Column = Column { gap: "  ", limit: usize::MAX, right: false };
    /// Numbers, two spaces after the column before.
    pub const NUMBERS: Column = Column { gap: "  ", limit: usize::MAX, right: true };

    /// Words after `gap`.
    pub const fn after(gap: &'static str) -> Column {
        Column { gap, ..Column::WORDS }
    }

    /// The column, as wide as its widest cell of at most `limit` characters.
    pub const fn limit(self, limit: usize) -> Column {
        Column { limit, ..self }
    }
}

/// One line for each row, without spaces at its end; what follows a row's last cell that is not
/// empty is left out, gaps too.
pub fn align<const N: usize>(rows: &[[String; N]], columns: [Column; N]) -> String {
    let mut out = String::new();
    align_behind(&mut out, rows, columns);
    out
}

/// [`align`] behind a text: a cell may be as large as a model's constants, and is copied once.
pub fn align_behind<const N: usize>(out: &mut String, rows: &[[String; N]], columns: [Column; N]) {
    let width = |c: usize| {
        let widths = rows.iter().map(|row| row[c].chars().count());
        widths.filter(|w| *w <= columns[c].limit).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let cells = row.iter().rposition(|cell| !cell.is_empty()).map_or(0, |last| last + 1);
        let start = out.len();
        for (c, (cell, column)) in row.iter().zip(&columns).enumerate().take(cells) {
            out.push_str(column.gap);
            // Not by `format!`, whose widths end at 65,535.
            let space = " ".repeat(widths[c].saturating_sub(cell.chars().count()));
            // Nothing follows the last cell: one very wide cell must not make all rows wide.
            let after = if c + 1 < cells { &*space } else { "" };
            let (before, after) = if column.right { (&*space, "") } else { ("", after) };
            out.extend([before, cell, after]);
        }
        out.truncate(start + out[start..].trim_end().len());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_may_have_any_length() {
        let rows = [["x".repeat(70_000), "y".to_string()], ["z".to_string(), "y".to_string()]];
        assert_eq!(align(&rows, [Column::WORDS, Column::NUMBERS]).len(), 2 * (2 + 70_000 + 2 + 1 + 1));
    }

    #[test]
    fn cells_stand_under_each_other() {
        let rows = [["a", "1", "x"], ["a long name", "200", ""], ["bc", "30", "y"], ["d", "", ""]];
        let rows = rows.map(|row| row.map(str::to_string));
        let columns = [Column::after("").limit(5), Column::NUMBERS, Column::after(" : ")];
        assert_eq!(align(&rows, columns), "a     1 : x\na long name  200\nbc   30 : y\nd\n");
    }
}
