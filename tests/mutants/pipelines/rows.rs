//! Rows that are swapped, moved, cut in two and joined.

use super::ends::{End, ends, exchanges, messages_of, remove, runs};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Row};
use shardc_testkit::random::Random;

/// A program, by position in the set.
fn program(set: &PlanSet, random: &mut Random) -> usize {
    random.below(set.programs.len())
}

fn text(program: &Program, row: usize) -> String {
    match &program.order[row] {
        Row::Run { task, time } => format!("row {row} ({}.{time})", program.tasks[*task as usize].name),
        Row::Exchange(messages) => format!("row {row} ({messages:?})"),
    }
}

/// Two rows exchange places.
pub fn swapped(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let program = &mut set.programs[at];
    let (a, b) = (random.below(program.order.len()), random.below(program.order.len()));
    let b = if random.below(2) == 0 { (a + 1) % program.order.len() } else { b };
    let text = format!("program {at}: {} and {}", text(program, a), text(program, b));
    program.order.swap(a, b);
    (a != b).then_some(text)
}

/// A task runs before the exchange that it follows, or after the one that it precedes; with the row
/// beyond, or alone.
pub fn across(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let program = &mut set.programs[at];
    let row = random.pick(&exchanges(program))?;
    let (from, to) = match random.below(2) {
        0 => (row + 1, row),
        _ => (row.checked_sub(1)?, row),
    };
    if from >= program.order.len() {
        return None;
    }
    let text = format!("program {at}: {} over {}", text(program, from), text(program, to));
    let moved = program.order.remove(from);
    program.order.insert(to, moved);
    Some(text)
}

/// A task runs before one that it waits for: W before its B, B before its F, for one micro-batch
/// or for all.
pub fn too_early(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let program = &mut set.programs[at];
    let name = |row: usize| match &program.order[row] {
        Row::Run { task, time } => Some((program.tasks[*task as usize].name.clone(), program.tasks[*task as usize].stage, *time)),
        Row::Exchange(_) => None,
    };
    let before = |late: &str| if late == "W" { "B" } else { "F" };
    let pair = |row: usize| {
        let (own, stage, time) = name(row).filter(|(own, ..)| own == "W" || own == "B")?;
        let first = (0..row).find(|i| name(*i) == Some((before(&own).to_string(), stage, time)))?;
        Some((first, row))
    };
    let pairs: Vec<(usize, usize)> = runs(program).into_iter().filter_map(pair).collect();
    let (first, row) = random.pick(&pairs)?;
    let text = format!("program {at}: {} before {}", text(program, row), text(program, first));
    if random.below(2) == 0 {
        program.order.swap(first, row);
    } else {
        let moved = program.order.remove(row);
        program.order.insert(first, moved);
    }
    Some(text)
}

/// An exchange is cut in two; a row may come between the parts.
pub fn split(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let program = &mut set.programs[at];
    let several: Vec<usize> = exchanges(program).into_iter().filter(|row| messages_of(&program.order[*row]).len() > 1).collect();
    let row = random.pick(&several)?;
    let (text, how) = (text(program, row), random.below(5));
    let all = messages_of(&program.order[row]).to_vec();
    let (first, second) = all.split_at(1 + random.below(all.len() - 1));
    let (mut first, mut second) = (first.to_vec(), second.to_vec());
    if how % 2 == 1 {
        std::mem::swap(&mut first, &mut second);
    }
    program.order[row] = Row::Exchange(first);
    let to = match how {
        0 | 1 => row + 1,
        2 => row + 2 + random.below(2),
        _ => row.saturating_sub(1 + random.below(3)),
    };
    program.order.insert(to.min(program.order.len()), Row::Exchange(second));
    Some(format!("program {at}: {text}, way {how}"))
}

/// An exchange comes earlier or later, by some rows; with it, or not, the other ends of its
/// messages.
pub fn moved(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let row = random.pick(&exchanges(&set.programs[at]))?;
    let text = text(&set.programs[at], row);
    let (by, later, both) = (1 + random.below(3), random.below(2) == 0, random.below(2) == 0);
    let all: Vec<End> = ends(set).into_iter().filter(|end| (end.program, end.row) == (at, row)).collect();
    let mut rows: Vec<(usize, usize)> = vec![(at, row)];
    if both {
        rows.extend(all.iter().filter_map(|end| end.other(set)).map(|end| (end.program, end.row)));
        rows.sort_unstable();
        rows.dedup();
    }
    for (program, row) in rows.into_iter().rev() {
        shift(&mut set.programs[program], row, by, later);
    }
    Some(format!("program {at}: {text} by {by}, later {later}, both {both}"))
}

fn shift(program: &mut Program, row: usize, by: usize, later: bool) {
    let last = program.order.len() - 1;
    let moved = program.order.remove(row);
    program.order.insert(if later { (row + by).min(last) } else { row.saturating_sub(by) }, moved);
}

/// A single message comes earlier or later, in a row of its own; at one end or both.
pub fn message_moved(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let end = random.pick(&ends(set))?;
    let (text, both) = (end.text(set), random.below(2) == 0);
    let (by, later) = (1 + random.below(4), random.below(3) == 0);
    for end in end.with_other(set, both) {
        let before = set.programs[end.program].order.len();
        let entry = remove(set, end);
        let order = &mut set.programs[end.program].order;
        let gone = before - order.len();
        let to = if later { end.row + 1 + by - gone } else { end.row.saturating_sub(by) };
        order.insert(to.min(order.len()), Row::Exchange(vec![entry]));
    }
    Some(format!("{text} by {by}, later {later}, both {both}"))
}

/// Two exchanges that follow one another become one, where either was.
pub fn joined(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let program = &mut set.programs[at];
    let rows = exchanges(program);
    let i = random.below(rows.len().saturating_sub(1));
    let (a, b) = (*rows.get(i)?, *rows.get(i + 1)?);
    let text = format!("program {at}: {} and {}", text(program, a), text(program, b));
    let all = [messages_of(&program.order[a]), messages_of(&program.order[b])].concat();
    let first = random.below(2) == 0;
    program.order[if first { a } else { b }] = Row::Exchange(all);
    program.order.remove(if first { b } else { a });
    Some(format!("{text}, at the first {first}"))
}

/// Two micro-batches exchange their rows: those of one task, of one program, or all of the set.
pub fn other_order(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let all = set.mesh().microbatches() as usize;
    let (a, b, how) = (random.below(all) as u64, random.below(all) as u64, random.below(4));
    if a == b {
        return None;
    }
    let own = program(set, random);
    let task = random.below(set.programs[own].tasks.len()) as u32;
    let other = |time: &mut u64| {
        *time = if *time == a {
            b
        } else if *time == b {
            a
        } else {
            *time
        }
    };
    for (at, program) in set.programs.iter_mut().enumerate().filter(|(at, _)| how > 2 || *at == own) {
        let twice =
            |task: u32| program.order.iter().filter(|row| matches!(row, Row::Run { task: t, .. } if *t == task)).count() > 1;
        let loops: Vec<bool> = (0..program.tasks.len() as u32).map(twice).collect();
        for row in &mut program.order {
            match row {
                Row::Run { task: of, time } if loops[*of as usize] && (how > 0 || (at == own && *of == task)) => other(time),
                Row::Run { .. } => {}
                // What is sent once a step is of micro-batch 0.
                Row::Exchange(messages) if how > 1 => messages.iter_mut().for_each(|(_, time)| other(time)),
                Row::Exchange(_) => {}
            }
        }
    }
    Some(format!("micro-batches {a} and {b}, program {own}, task {task}, way {how}"))
}

/// A row is dropped or there twice, or runs for another micro-batch.
pub fn run_changed(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    let at = program(set, random);
    let all = set.mesh().microbatches();
    let program = &mut set.programs[at];
    let (row, how) = (random.pick(&runs(program))?, random.below(3));
    let text = text(program, row);
    match (how, &mut program.order[row]) {
        (0, _) => drop(program.order.remove(row)),
        (1, again) => {
            let again = again.clone();
            let to = row + 1 + random.below(program.order.len() - row);
            program.order.insert(to, again);
        }
        (_, Row::Run { time, .. }) if all > 1 => *time = (*time + 1 + random.below(all as usize - 1) as u64) % all,
        _ => return None,
    }
    Some(format!("program {at}: {text}, way {how}"))
}
