//! Ranks that run different programs must meet in their calls: a lockstep run of the chains of
//! calls on the quotient of the mesh.
//!
//! Ranks at the same place on the axes on which programs differ run the same program. Calls over
//! other axes alone are among such ranks, and meet in the same row; what is left are calls over
//! those axes, and one rank for each place.
//!
//! A rank's calls form one chain. A call is over when all members of its group are at it; each
//! member must be there with the same call (kind, axes in order, type, count, combination) for the
//! same ops of the graph, of the same micro-batch. Since a rank waits at one call only, the order
//! in which calls that are ready are taken does not matter: if one run ends, every run does.

use super::violation::Violation;
use crate::kernel::{Collective, Kernel};
use crate::mesh::AxisId;
use crate::plan::set::PlanSet;
use crate::plan::{Program, Step, Turn};
use std::collections::HashMap;

/// A call of a rank's chain.
#[derive(Clone, Copy)]
struct Call<'p> {
    number: usize,
    step: &'p Step,
    call: &'p Collective,
    time: u64,
}

impl Call<'_> {
    fn is_same(&self, other: &Call<'_>) -> bool {
        (self.call, self.time, &self.step.provenance.ops) == (other.call, other.time, &other.step.provenance.ops)
    }

    fn text(&self) -> String {
        format!("step {} `{}` of micro-batch {}", self.number, self.step.text(), self.time)
    }
}

/// Checks that the calls of all ranks meet.
///
/// # Errors
/// Two ranks and the steps at which they do not.
pub fn check(set: &PlanSet<&Program>) -> Result<(), Violation> {
    let Some(mesh) = set.programs.first().map(|p| &p.mesh) else { return Ok(()) };
    let is_between = |call: &Call<'_>| call.call.axes.iter().any(|axis| set.axes.contains(axis));
    let chains: Vec<Vec<Call<'_>>> =
        set.programs.iter().map(|program| chain(program).into_iter().filter(is_between).collect()).collect();
    let places = set.places(mesh);
    let ranks: Vec<u64> = places.iter().map(|place| mesh.rank(place)).collect();
    let call = |place: usize, at: usize| chains[set.of[place]].get(at);
    let mut at = vec![0; places.len()];
    // For each group where somebody waits (its axes in order, its first place), who does.
    let mut waiting: HashMap<(Vec<AxisId>, u64), Vec<usize>> = HashMap::new();
    let mut moving: Vec<usize> = (0..places.len()).collect();
    while let Some(place) = moving.pop() {
        let Some(own) = call(place, at[place]) else { continue };
        let mut axes = own.call.axes.clone();
        axes.sort();
        let between = || axes.iter().filter(|axis| set.axes.contains(axis));
        let mut first = places[place].clone();
        between().for_each(|axis| first[axis.index()] = 0);
        let members: u64 = between().map(|axis| mesh.size(*axis)).product();
        let key = (axes, mesh.rank(&first));
        let there = waiting.entry(key.clone()).or_default();
        if let Some(other) = there.first()
            && let Some(theirs) = call(*other, at[*other])
            && !own.is_same(theirs)
        {
            return Err(disagreement((ranks[*other], theirs), (ranks[place], own)));
        }
        there.push(place);
        if there.len() as u64 == members {
            for place in waiting.remove(&key).unwrap_or_default() {
                at[place] += 1;
                moving.push(place);
            }
        }
    }
    let stuck = (0..places.len()).find_map(|place| Some((place, call(place, at[place])?)));
    let Some((place, own)) = stuck else { return Ok(()) };
    let group = mesh.group(ranks[place], &own.call.axes);
    let members = (0..places.len()).filter(|other| *other != place && group.contains(&ranks[*other]));
    let absent = |other: &usize| call(*other, at[*other]).is_none_or(|theirs| !own.is_same(theirs));
    let other = members.clone().find(absent).or(members.clone().next()).unwrap_or(place);
    let (where_other, mut steps) = match call(other, at[other]) {
        Some(theirs) => (format!("waits at {}", theirs.text()), vec![theirs.number]),
        None => ("makes no more calls".to_string(), vec![]),
    };
    steps.insert(0, own.number);
    let (rank, other) = (ranks[place], ranks[other]);
    let message = format!("rank {rank} waits for ever at {}: rank {other} {where_other}", own.text());
    let spec_line = own.step.provenance.spec_line;
    Err(Violation { message, steps, ranks: Some((rank, other)), spec_line })
}

fn disagreement((a, at_a): (u64, &Call<'_>), (b, at_b): (u64, &Call<'_>)) -> Violation {
    let what = if at_a.call == at_b.call { "for other values" } else { "as another call" };
    let message = format!("rank {a} meets rank {b} {what}: {} and {}", at_a.text(), at_b.text());
    let spec_line = at_a.step.provenance.spec_line.or(at_b.step.provenance.spec_line);
    Violation { message, steps: vec![at_a.number, at_b.number], ranks: Some((a, b)), spec_line }
}

/// All calls of a step of training in their order, over all micro-batches.
fn chain(program: &Program) -> Vec<Call<'_>> {
    let starts: Vec<usize> = (program.tasks.iter())
        .scan(0, |next, task| {
            let first = *next;
            *next += task.steps.len();
            Some(first)
        })
        .collect();
    let call = |turn: Turn| {
        let step = &program.tasks[turn.task].steps[turn.step];
        let Kernel::Collective(call) = &step.kernel else { return None };
        Some(Call { number: starts[turn.task] + turn.step, step, call, time: turn.time })
    };
    program.turns().filter_map(call).collect()
}
