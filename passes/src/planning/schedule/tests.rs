//! What holds of every schedule: it can be run, idles as its formula says, and keeps no more than
//! it says; and the timelines in the headers are what is drawn.

use super::*;
use shardc_ir::clock::idle::idle;
use shardc_ir::clock::run;
use shardc_ir::clock::timeline::{Block, draw};
use std::collections::{BTreeMap, BTreeSet};

const POSITIONS: [u64; 4] = [2, 4, 8, 16];

fn shape(positions: u64, chunks: u64, microbatches: u64) -> Shape {
    Shape { positions, chunks, microbatches }
}

fn cost(splits_weights: bool) -> impl Fn(&Cell) -> u64 {
    move |cell| costs(cell.pass, splits_weights)
}

/// The idle time of a table over the ideal time, at costs of F=1, B=2 or F=B=W=1.
fn idle_over_ideal(table: &Table, shape: Shape) -> f64 {
    let splits_weights = table.iter().flatten().any(|cell| cell.pass == Pass::Weight);
    let lists = links::rows(table, &links::chain(shape.stages()), cost(splits_weights));
    let times = run(&lists).unwrap_or_else(|_| panic!("{:?}", links::check(table, shape, &links::chain(shape.stages()))));
    idle(&times, &lists).over_ideal()
}

/// The most micro-batches of a stage between F and `end`.
fn slots(table: &Table, stage: u64, end: Pass) -> u64 {
    let (mut live, mut most) = (0, 0);
    for cell in table.iter().flatten().filter(|cell| u64::from(cell.stage) == stage) {
        live += u64::from(cell.pass == Pass::Forward);
        most = most.max(live);
        live -= u64::from(cell.pass == end);
    }
    most
}

/// Every cell is there once, at its position; B and W of a stage ascend; and it can be run.
fn assert_is_table(table: &Table, shape: Shape, passes: &[Pass]) {
    let mut seen = BTreeSet::new();
    let mut next = BTreeMap::new();
    for (position, row) in table.iter().enumerate() {
        for cell in row {
            assert_eq!(shape.position(cell.stage), position as u64);
            assert!(passes.contains(&cell.pass) && u64::from(cell.stage) < shape.stages() && cell.time < shape.microbatches);
            assert!(seen.insert(*cell), "{cell} is there twice in {shape:?}");
            let ascending = next.entry((cell.pass, cell.stage)).or_insert(0);
            assert_eq!(cell.time, *ascending, "{cell} of {shape:?}");
            *ascending += 1;
        }
    }
    assert_eq!(seen.len() as u64, passes.len() as u64 * shape.stages() * shape.microbatches);
    assert_eq!(links::check(table, shape, &links::chain(shape.stages())), Ok(()), "{shape:?}");
}

const WHOLE: [Pass; 2] = [Pass::Forward, Pass::Backward];
const SPLIT: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::Weight];

#[test]
fn every_shape_has_a_table_that_can_be_run() {
    for p in [1, 2, 3, 4, 5, 8, 16] {
        for m in (0..=p + 2).chain([2 * p - 1, 2 * p, 3 * p + 1]) {
            assert_is_table(&gpipe::table(shape(p, 1, m)), shape(p, 1, m), &WHOLE);
            assert_is_table(&one_f_one_b::table(shape(p, 1, m)), shape(p, 1, m), &WHOLE);
            assert_is_table(&zb_h1::table(shape(p, 1, m)), shape(p, 1, m), &SPLIT);
            for v in 1..=3 {
                assert_is_table(&gpipe::forward(shape(p, v, m)), shape(p, v, m), &[Pass::Forward]);
                assert_is_table(&interleaved::table(shape(p, v, p * (m % 3))), shape(p, v, p * (m % 3)), &WHOLE);
            }
        }
    }
}

#[test]
fn one_position_takes_turns() {
    let turns = |v| {
        let pass = move |pass: Pass, s: u32, time: u64| Cell { pass, stage: s, time };
        let one =
            move |t| (0..v).map(move |s| pass(Pass::Forward, s, t)).chain((0..v).rev().map(move |s| pass(Pass::Backward, s, t)));
        vec![(0..5).flat_map(one).collect::<Vec<_>>()]
    };
    assert_eq!(gpipe::table(shape(1, 1, 5)), turns(1));
    assert_eq!(one_f_one_b::table(shape(1, 1, 5)), turns(1));
    assert_eq!(interleaved::table(shape(1, 3, 5)), turns(3));
    let without_weights: Vec<Cell> =
        zb_h1::table(shape(1, 1, 5)).concat().into_iter().filter(|c| c.pass != Pass::Weight).collect();
    assert_eq!(vec![without_weights], turns(1));
}

#[test]
fn idle_time_is_as_the_formulas_say() {
    for p in POSITIONS {
        for m in [p, p + 1, 2 * p, 4 * p] {
            let one = shape(p, 1, m);
            let bubble = (p - 1) as f64 / m as f64;
            let mut expected = vec![
                (gpipe::table(one), one, bubble),
                (one_f_one_b::table(one), one, bubble),
                (zb_h1::table(one), one, bubble / 3.0),
            ];
            for v in [1, 2, 3] {
                let many = shape(p, v, m);
                let less = bubble / v as f64;
                expected.push((gpipe::forward(many), many, less));
                if m % p == 0 {
                    expected.push((interleaved::table(many), many, less));
                }
            }
            for (i, (table, shape, expected)) in expected.iter().enumerate() {
                let measured = idle_over_ideal(table, *shape);
                assert!((measured - expected).abs() < 1e-9, "{i}: {measured}, not {expected}, for {shape:?}");
            }
        }
    }
}

#[test]
fn slots_are_as_few_as_said() {
    for p in POSITIONS {
        for m in [1, p - 1, p, p + 1, 2 * p, 4 * p] {
            let one = shape(p, 1, m);
            for s in 0..p {
                assert_eq!(slots(&gpipe::table(one), s, Pass::Backward), m);
                assert_eq!(slots(&one_f_one_b::table(one), s, Pass::Backward), m.min(p - s));
                assert_eq!(slots(&zb_h1::table(one), s, Pass::Weight), m.min(p));
                assert_eq!(slots(&zb_h1::table(one), s, Pass::Backward), m.min(p - s));
            }
        }
    }
}

#[test]
fn interleaved_keeps_what_its_warm_up_and_one_more_compute() {
    for p in POSITIONS {
        for (v, m) in [(1, p), (2, p), (2, 2 * p), (3, 4 * p)] {
            let table = interleaved::table(shape(p, v, m));
            assert!((0..p * v).all(|s| slots(&table, s, Pass::Backward) <= 2 * p));
            for (row, r) in table.iter().zip(0..) {
                let (mut live, mut most) = (0, 0);
                for cell in row {
                    live += if cell.pass == Pass::Forward { 1 } else { -1 };
                    most = most.max(live);
                }
                assert_eq!(most, (2 * (p - 1 - r) + (v - 1) * p + 1).min(v * m) as i64, "p={p} v={v} m={m} r={r}");
            }
        }
    }
}

#[test]
fn a_printed_table_is_read_back() {
    let print = |table: &Table| {
        let line = |row: &Vec<Cell>| row.iter().map(Cell::to_string).collect::<Vec<_>>().join(" ");
        table.iter().map(line).collect::<Vec<_>>().join("\n")
    };
    for (p, m) in [(1, 1), (2, 5), (4, 8), (8, 8)] {
        let one = shape(p, 1, m);
        for (table, weights) in [(gpipe::table(one), false), (one_f_one_b::table(one), false), (zb_h1::table(one), true)] {
            assert_eq!(custom::has_weights(&print(&table)), weights);
            assert_eq!(custom::parse(&print(&table), &one, weights), Ok(table));
        }
    }
    let many = shape(2, 3, 4);
    assert_eq!(custom::parse(&print(&interleaved::table(many)), &many, false), Ok(interleaved::table(many)));
}

/// The timeline of a table.
fn timeline(table: &Table, shape: Shape, width: usize) -> String {
    let splits_weights = table.iter().flatten().any(|cell| cell.pass == Pass::Weight);
    let lists = links::rows(table, &links::chain(shape.stages()), cost(splits_weights));
    let times = run(&lists).expect("it can be run");
    let block = |(cell, (start, end)): (&Cell, &(u64, u64))| {
        let (label, time) = (cell.pass.letter(), Some(cell.time));
        Block { label, stage: cell.stage, time, start: *start, end: *end }
    };
    let lane = |r: usize| (format!("pp={r}"), table[r].iter().zip(&times[r]).map(block).collect());
    draw(&(0..table.len()).map(lane).collect::<Vec<_>>(), width)
}

/// The header of a file has the timeline of a table.
fn assert_header(file: &str, table: &Table, shape: Shape) {
    let drawn = timeline(table, shape, 96);
    let lines: String = drawn.lines().map(|line| format!("//! {line}\n")).collect();
    assert!(file.contains(&format!("//! ```text\n{lines}//! ```\n")), "the header is to have\n{lines}");
}

#[test]
fn headers_have_the_timelines_that_are_drawn() {
    let one = shape(4, 1, 4);
    assert_header(include_str!("gpipe.rs"), &gpipe::table(one), one);
    assert_header(include_str!("one_f_one_b.rs"), &one_f_one_b::table(one), one);
    assert_header(include_str!("greedy.rs"), &one_f_one_b::table(one), one);
    assert_header(include_str!("zb_h1.rs"), &zb_h1::table(one), one);
    let many = shape(2, 2, 4);
    assert_header(include_str!("interleaved.rs"), &interleaved::table(many), many);
    let least = shape(2, 1, 2);
    assert_header(include_str!("../../../../ir/src/clock/timeline.rs"), &one_f_one_b::table(least), least);
    let file = include_str!("custom.rs");
    let text: String = file.lines().filter_map(|line| line.strip_prefix("//! F")).map(|line| format!("F{line}\n")).collect();
    let three = shape(3, 1, 4);
    assert_header(file, &custom::parse(&text, &three, false).expect("it is a table"), three);
}
