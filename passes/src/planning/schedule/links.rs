//! What the cells of a table wait for, and whether a table can be run at all.
//!
//! A link says that a stage reads another. F of a stage follows F of all stages that it reads, B
//! follows B of all stages that read it and its own F, and W follows its B.

use super::{Cell, Pass, Shape, Table};
use shardc_ir::clock::{Row, run};
use std::collections::BTreeMap;

/// The links of a chain: each stage reads the one before it.
pub fn chain(stages: u64) -> Vec<(u32, u32)> {
    (1..stages as u32).map(|s| (s - 1, s)).collect()
}

/// The rows of a table for the clock. A link is a stage and one that reads it.
pub fn rows(table: &Table, links: &[(u32, u32)], cost: impl Fn(&Cell) -> u64) -> Vec<Vec<Row<Cell>>> {
    let (mut reads, mut read_by) = (BTreeMap::<u32, Vec<u32>>::new(), BTreeMap::<u32, Vec<u32>>::new());
    for (from, to) in links {
        reads.entry(*to).or_default().push(*from);
        read_by.entry(*from).or_default().push(*to);
    }
    let of = |stages: &BTreeMap<u32, Vec<u32>>, cell: &Cell| -> Vec<Cell> {
        let stages = stages.get(&cell.stage).into_iter().flatten();
        stages.map(|stage| Cell { stage: *stage, ..*cell }).collect()
    };
    let row = |cell: &Cell| {
        // Its own F first: who waits for that, waits for itself.
        let own = |pass| Cell { pass, ..*cell };
        let needs = match cell.pass {
            Pass::Forward => of(&reads, cell),
            Pass::Backward => [own(Pass::Forward)].into_iter().chain(of(&read_by, cell)).collect(),
            Pass::Weight => vec![own(Pass::Backward)],
        };
        Row { cost: cost(cell), needs, gives: vec![*cell] }
    };
    table.iter().map(|cells| cells.iter().map(row).collect()).collect()
}

/// Refuses a table that cannot be run to its end, in words that name the positions that wait for
/// one another and the rows that they wait at, counted from 1. No cell stands in the table twice.
pub fn check(table: &Table, shape: Shape, links: &[(u32, u32)]) -> Result<(), String> {
    let lists = rows(table, links, |_| 1);
    let Err(stuck) = run(&lists) else { return Ok(()) };
    let mut stands_at = BTreeMap::new();
    for (position, cells) in table.iter().enumerate() {
        stands_at.extend(cells.iter().enumerate().map(|(row, cell)| (*cell, (position, row))));
    }
    let has_run = |cell: &Cell| {
        let runs = |(position, row): &(usize, usize)| stuck.waiting[*position].is_none_or(|waits_at| *row < waits_at);
        stands_at.get(cell).is_some_and(runs)
    };
    // From a list that waits to the list that has what it waits for, until one comes again.
    let mut way: Vec<(usize, String)> = vec![];
    let mut position = stuck.waiting.iter().position(Option::is_some).expect("a list that waits");
    while way.iter().all(|(before, _)| *before != position) {
        let row = stuck.waiting[position].expect("a list waits only for one that waits");
        let need = lists[position][row].needs.iter().find(|need| !has_run(need)).expect("it waits for a cell");
        let place = format!("at row {} `{}` for `{need}`", row + 1, table[position][row]);
        let Some((next, behind)) = stands_at.get(need).copied() else {
            let lacking = shape.position(need.stage);
            return Err(format!("position {position} waits {place}, which position {lacking} does not run"));
        };
        if next == position {
            return Err(format!("position {position} waits {place}, which is its own row {}", behind + 1));
        }
        way.push((position, place));
        position = next;
    }
    let circle = way.iter().skip_while(|(before, _)| *before != position);
    let words = circle.enumerate().map(|(i, (p, place))| format!("position {p} {}{place}", if i == 0 { "waits " } else { "" }));
    Err(words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::custom;
    use super::*;

    const SHAPE: Shape = Shape { positions: 2, chunks: 1, microbatches: 2 };

    fn fault(text: &str) -> String {
        let table = custom::parse(text, &SHAPE, false).expect("each cell is there once");
        check(&table, SHAPE, &chain(2)).expect_err("it cannot be run")
    }

    #[test]
    fn positions_that_wait_for_one_another_are_named() {
        assert_eq!(
            fault("F0.0 B0.0 F0.1 B0.1\nF1.1 F1.0 B1.0 B1.1"),
            "position 0 waits at row 2 `B0.0` for `B1.0`, position 1 at row 1 `F1.1` for `F0.1`"
        );
    }

    #[test]
    fn a_position_that_waits_for_itself_is_named() {
        assert_eq!(
            fault("B0.0 F0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1"),
            "position 0 waits at row 1 `B0.0` for `F0.0`, which is its own row 2"
        );
    }

    #[test]
    fn a_cell_that_no_position_runs_is_named() {
        let table = vec![vec![Cell::forward(0, 0)], vec![Cell::forward(1, 0), Cell::forward(1, 1)]];
        let fault = check(&table, SHAPE, &chain(2)).expect_err("F0.1 is not there");
        assert_eq!(fault, "position 1 waits at row 2 `F1.1` for `F0.1`, which position 0 does not run");
    }

    #[test]
    fn links_that_skip_stages_are_waited_for() {
        // The last stage reads the first one too, so position 0 cannot end before position 2 has.
        let shape = Shape { positions: 3, chunks: 1, microbatches: 1 };
        let text = "F0.0 B0.0\nF1.0 B1.0\nF2.0 B2.0";
        let table = custom::parse(text, &shape, false).expect("each cell is there once");
        let mut links = chain(3);
        links.push((0, 2));
        assert_eq!(check(&table, shape, &links), Ok(()));
        links.push((2, 1));
        let words = "position 1 waits at row 1 `F1.0` for `F2.0`, position 2 at row 1 `F2.0` for `F1.0`";
        assert_eq!(check(&table, shape, &links), Err(words.to_string()));
    }
}
