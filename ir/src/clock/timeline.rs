//! Draws when each position runs what, a line for each of them.
//!
//! ```text
//! pp=0 |F0 F1 ·  ·  B0─── ·  B1─── |
//! pp=1 |·  F0 B0─── F1 B1─── ·  ·  |
//! ```
//!
//! A cell is as wide as the shortest block, so that lengths are true to scale: a block has its
//! label once and is filled up to its end, and an idle cell has a dot. Where a position has several
//! stages, labels name them too, as in `F2.1`, or write the second stage in lower case where that
//! is too wide. A drawing that is too wide all the same loses its middle.

use std::collections::BTreeSet;

/// What a position runs for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block<'a> {
    /// The pass, as in `F`.
    pub label: &'a str,
    /// The stage that is run.
    pub stage: u32,
    /// The micro-batch; `None` for what runs once.
    pub time: Option<u64>,
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// The name of a position, as in `pp=0`, and what it runs.
pub type Lane<'a> = (String, Vec<Block<'a>>);

/// A block that is shorter than this part of the longest does not make the drawing wider.
const SHORTEST: u64 = 8;

/// What stands where columns are left out.
const CUT: &str = " … ";

/// Draws lanes in at most `width` columns, and below them what a reader must know.
pub fn draw(lanes: &[Lane<'_>], width: usize) -> String {
    let names = lanes.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let room = width.saturating_sub(names + " ||".len());
    let scale = Scale::new(lanes, room);
    let windows = scale.windows(room);
    let mut shown = BTreeSet::new();
    let mut lines: Vec<String> = vec![];
    for (name, blocks) in lanes {
        let pieces: Vec<String> = windows.iter().map(|window| scale.draw(blocks, *window, &mut shown)).collect();
        lines.push(format!("{name:<names$} |{}|", pieces.join(CUT)));
    }
    let indent = " ".repeat(names + 2);
    if scale.marks == Marks::Case {
        lines.push(format!("{indent}lower case: the second stage of the position"));
    }
    if windows.len() > 1 {
        let times: BTreeSet<u64> = lanes.iter().flat_map(|(_, blocks)| blocks).filter_map(|b| b.time).collect();
        let what = match times.difference(&shown).count() {
            0 => "some of the middle".to_string(),
            hidden => format!("{hidden} of {} micro-batches", times.len()),
        };
        lines.push(format!("{indent}… leaves out {what}"));
    }
    let fits = |line: String| line.chars().take(width).chain(['\n']).collect::<String>();
    lines.into_iter().map(fits).collect()
}

/// How a label tells the stages of a position from one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marks {
    /// There is one.
    None,
    /// By their numbers.
    Number,
    /// The second is in lower case.
    Case,
}

/// How times become columns.
struct Scale {
    marks: Marks,
    /// The columns of a cell.
    cell: usize,
    /// The time of a cell.
    unit: u64,
    /// The end of the last block.
    end: u64,
}

impl Scale {
    /// The most legible scale that fits, or else the narrowest.
    fn new(lanes: &[Lane<'_>], room: usize) -> Scale {
        let blocks = || lanes.iter().flat_map(|(_, blocks)| blocks);
        let costs = || blocks().map(|b| b.end - b.start).filter(|cost| *cost > 0);
        let longest = costs().max().unwrap_or(1);
        let unit = costs().filter(|cost| *cost >= longest.div_ceil(SHORTEST)).min().unwrap_or(1);
        let end = blocks().map(|b| b.end).max().unwrap_or(0);
        let stages = lanes.iter().map(|(_, blocks)| stages(blocks).len()).max().unwrap_or(0);
        let marks: &[Marks] = match stages {
            0 | 1 => &[Marks::None],
            2 => &[Marks::Number, Marks::Case],
            _ => &[Marks::Number],
        };
        let scale = |marks, gap| {
            let timed = blocks().filter(|b| b.time.is_some());
            let label = timed.map(|b| text(b, marks, false).chars().count()).max().unwrap_or(1);
            Scale { marks, cell: label + gap, unit, end }
        };
        let mut scales = marks.iter().flat_map(|m| [scale(*m, 1), scale(*m, 0)]);
        let narrowest = scale(marks[marks.len() - 1], 0);
        scales.find(|s| s.column(s.end) <= room).unwrap_or(narrowest)
    }

    /// The column that a time is nearest to.
    fn column(&self, time: u64) -> usize {
        let unit = u128::from(self.unit);
        ((u128::from(time) * self.cell as u128 + unit / 2) / unit) as usize
    }

    /// The columns that are shown: all, or whole cells of the first and of the last.
    fn windows(&self, room: usize) -> Vec<(usize, usize)> {
        let all = self.column(self.end);
        if all <= room {
            return vec![(0, all)];
        }
        let cells = room.saturating_sub(CUT.chars().count()) / self.cell;
        let last = cells / 2 * self.cell;
        vec![(0, (cells - cells / 2) * self.cell), (all - last, all)]
    }

    /// Draws what blocks have in a window, and notes the micro-batches that are named in it.
    fn draw(&self, blocks: &[Block<'_>], (from, to): (usize, usize), shown: &mut BTreeSet<u64>) -> String {
        let idle = |column: usize| if column.is_multiple_of(self.cell) { '·' } else { ' ' };
        let mut line: Vec<char> = (from..to).map(idle).collect();
        let first_stage = stages(blocks).first().copied();
        for block in blocks {
            let (start, end) = (self.column(block.start), self.column(block.end));
            if end <= from || start >= to {
                continue;
            }
            let text = self.block_text(block, first_stage, end - start);
            // A label that is cut off would name another micro-batch.
            let is_whole = start >= from && start + text.chars().count() <= to;
            shown.extend(block.time.filter(|_| is_whole));
            let mut label = text.chars().filter(|_| is_whole);
            for column in start..end {
                let is_last = column + 1 == end && end - start > 1;
                let fill = if is_last || block.end - block.start <= self.unit { ' ' } else { '─' };
                let char = label.next().unwrap_or(fill);
                if (from..to).contains(&column) {
                    line[column - from] = char;
                }
            }
        }
        line.into_iter().collect()
    }

    /// As much of the label of a block as says nothing wrong in so many columns.
    fn block_text(&self, block: &Block<'_>, first_stage: Option<u32>, columns: usize) -> String {
        let whole = text(block, self.marks, first_stage != Some(block.stage));
        let fits = whole.chars().count() <= columns;
        if fits { whole } else { block.label.chars().take(columns).collect() }
    }
}

/// The stages that blocks of micro-batches are of.
fn stages(blocks: &[Block<'_>]) -> BTreeSet<u32> {
    blocks.iter().filter(|b| b.time.is_some()).map(|b| b.stage).collect()
}

/// The label of a block.
fn text(block: &Block<'_>, marks: Marks, is_second: bool) -> String {
    match (block.time, marks) {
        (None, _) => block.label.to_string(),
        (Some(time), Marks::Number) => format!("{}{}.{time}", block.label, block.stage),
        (Some(time), Marks::Case) if is_second => format!("{}{time}", block.label.to_lowercase()),
        (Some(time), _) => format!("{}{time}", block.label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(label: &str, stage: u32, time: Option<u64>, start: u64, end: u64) -> Block<'_> {
        Block { label, stage, time, start, end }
    }

    /// Two positions that run F and B of 1F1B, and an update.
    fn lanes<'a>(m: u64, scale: u64) -> Vec<Lane<'a>> {
        let pass = |label, stage, t, start, cost| block(label, stage, Some(t), start * scale, (start + cost) * scale);
        let mut first = vec![pass("F", 0, 0, 0, 1), pass("F", 0, 1, 1, 1)];
        let mut last = vec![];
        for t in 0..m {
            last.extend([pass("F", 1, t, 3 * t + 1, 1), pass("B", 1, t, 3 * t + 2, 2)]);
            first.push(pass("B", 0, t, 3 * t + 4, 2));
            first.extend((t + 2 < m).then(|| pass("F", 0, t + 2, 3 * t + 6, 1)));
        }
        last.push(block("update", 1, None, (3 * m + 1) * scale, (3 * m + 2) * scale));
        vec![("pp=0".to_string(), first), ("pp=1".to_string(), last)]
    }

    #[test]
    fn cells_are_as_wide_as_the_width_allows() {
        let wide = "pp=0 |F0 F1 ·  ·  B0─── F2 B1─── ·  B2─── |\npp=1 |·  F0 B0─── F1 B1─── F2 B2─── up ·  |\n";
        let narrow = "pp=0 |F0F1· · B0─ F2B1─ · B2─ |\npp=1 |· F0B0─ F1B1─ F2B2─ up· |\n";
        for scale in [1, 1000] {
            assert_eq!(draw(&lanes(3, scale), 43), wide.replace("up ", "upd"));
            assert_eq!(draw(&lanes(3, scale), 42), narrow);
        }
    }

    #[test]
    fn a_drawing_that_is_too_wide_loses_its_middle() {
        let expected = "pp=0 |F0 F1 ·  ·  B0───  … B10── ·  B11── |\n\
                        pp=1 |·  F0 B0─── F1 B1─ … F11B11── upd·  |\n      … leaves out 8 of 12 micro-batches\n";
        assert_eq!(draw(&lanes(12, 7), 45), expected);
    }

    #[test]
    fn no_line_is_wider_than_asked() {
        for m in [2, 5, 30, 300] {
            for width in 0..200 {
                let drawn = draw(&lanes(m, 3), width);
                assert!(drawn.lines().all(|line| line.chars().count() <= width), "{width}\n{drawn}");
            }
        }
    }

    #[test]
    fn several_stages_of_a_position_are_told_apart() {
        let stages = |n: u32| -> Vec<Lane<'_>> {
            let blocks = (0..n).map(|s| block("F", s, Some(7), u64::from(s), u64::from(s) + 1));
            vec![("pp=0".to_string(), blocks.collect())]
        };
        assert_eq!(draw(&stages(2), 17), "pp=0 |F0.7 F1.7 |\n");
        assert_eq!(draw(&stages(2), 16), "pp=0 |F0.7F1.7|\n");
        assert_eq!(draw(&stages(2), 13), "pp=0 |F7 f7 |\n      lower c\n");
        assert_eq!(draw(&stages(3), 20), "pp=0 |F0.7F1.7F2.7|\n");
    }

    #[test]
    fn short_blocks_name_no_other_micro_batch() {
        let blocks = vec![block("F", 0, Some(12), 0, 3), block("B", 0, Some(12), 3, 19), block("W", 0, Some(12), 19, 20)];
        let long = block("F", 0, Some(13), 20, 120);
        let lane = ("x".to_string(), blocks.into_iter().chain([long]).collect());
        assert_eq!(draw(&[lane], 60), "x |FB12 F13───────────────────── |\n");
        assert_eq!(draw(&[], 60), "");
        assert_eq!(draw(&[("pp=0".to_string(), vec![])], 60), "pp=0 ||\n");
    }
}
