//! The programs of a pipeline by the clock: when each position runs what, if a forward pass takes
//! one unit of time, a backward pass two (one, where the gradients of weights are apart), and
//! messages and all else nothing. Sends are buffered.

use super::idle::{Idle, idle};
use super::timeline::{Block, Lane};
use super::{Row, Stuck, run};
use crate::plan::set::PlanSet;
use crate::plan::{Program, Row as PlanRow};
use std::collections::BTreeMap;

/// What is given: the n-th message from one place to another.
type Token = (usize, usize, usize);

/// When the programs of a pipeline run.
pub struct Schedule<'p> {
    /// For each place on the axes on which programs differ, its name and what it runs.
    pub lanes: Vec<Lane<'p>>,
    /// How much it idles.
    pub idle: Idle,
    /// The lengths that this is drawn with, in words.
    pub costs: &'static str,
}

/// Runs programs by the clock.
///
/// # Errors
/// If they wait for one another for ever.
pub fn schedule(set: &PlanSet) -> Result<Schedule<'_>, Stuck> {
    let mesh = set.mesh();
    let places = set.places(mesh);
    let numbers: BTreeMap<&Vec<u64>, usize> = places.iter().zip(0..).collect();
    let apart = set.programs.iter().any(|program| program.tasks.iter().any(|task| task.name.starts_with('W')));
    let mut messages: BTreeMap<(usize, usize), [usize; 2]> = BTreeMap::new();
    let mut lists: Vec<Vec<Row<Token>>> = vec![];
    let mut runs: Vec<Vec<Option<(usize, u64)>>> = vec![];
    for (at, place) in places.iter().enumerate() {
        let program = &set.programs[set.of[at]];
        let (mut list, mut run) = (vec![], vec![]);
        for (number, row) in program.order.iter().enumerate() {
            if let PlanRow::Run { task, time } = row {
                list.push(Row { cost: cost(program, *task as usize, apart), needs: vec![], gives: vec![] });
                run.push(Some((*task as usize, *time)));
                continue;
            }
            // All sends of a row begin before it waits for what it receives.
            let (mut sends, mut receives) = (vec![], vec![]);
            for (message, _) in program.exchange(number) {
                let mut other = place.clone();
                other[message.axis.index()] = message.peer;
                let Some(other) = numbers.get(&other).copied() else { continue };
                let way = if message.sends { (at, other) } else { (other, at) };
                let counts = messages.entry(way).or_default();
                let count = &mut counts[usize::from(message.sends)];
                if message.sends { &mut sends } else { &mut receives }.push((way.0, way.1, *count));
                *count += 1;
            }
            list.push(Row { cost: 0, needs: vec![], gives: sends });
            list.push(Row { cost: 0, needs: receives, gives: vec![] });
            run.extend([None, None]);
        }
        lists.push(list);
        runs.push(run);
    }
    let times = run(&lists)?;
    let lane = |(at, place): (usize, &Vec<u64>)| {
        let program = &set.programs[set.of[at]];
        let name = set.axes.iter().map(|axis| format!("{}={}", mesh.name(*axis), place[axis.index()]));
        let block = |(run, (start, end)): (&Option<(usize, u64)>, &(u64, u64))| {
            let (task, time) = (*run)?;
            let task = &program.tasks[task];
            let label = task.name.chars().next().map_or("", |first| &task.name[..first.len_utf8()]);
            (end > start).then_some(Block { label, stage: task.stage, time: Some(time), start: *start, end: *end })
        };
        (name.collect::<Vec<_>>().join(" "), runs[at].iter().zip(&times[at]).filter_map(block).collect())
    };
    let lanes = places.iter().enumerate().map(lane).collect();
    let costs = if apart { "if F, B and W take equally long" } else { "if B takes twice as long as F" };
    Ok(Schedule { lanes, idle: idle(&times, &lists), costs })
}

fn cost(program: &Program, task: usize, apart: bool) -> u64 {
    match program.tasks[task].name.chars().next() {
        Some('B') if !apart => 2,
        Some('F' | 'B' | 'W') => 1,
        _ => 0,
    }
}
