//! The two queues of a rank under the waits that follow from its program: whatever one queue does
//! before the other, the results are those of the table. Mutants lack a wait, or wait for another
//! step.

use super::harm::Good;
use super::jobs;
use super::ranks::{Launch, Turn, launches};
use shardc_ir::plan::{Program, Stream};
use shardc_ir::waits::{Waits, check, derive};
use shardc_testkit::random::Random;
use std::io::Write;

/// Which queue goes first where both can go on.
#[derive(Clone, Copy)]
enum First {
    Computation,
    Communication,
    Random(u64),
}

/// An order in which the queues may run.
fn order(program: &Program, Waits(waits): &Waits, first: First) -> Vec<Turn> {
    let all = launches(program);
    let firsts: Vec<usize> =
        (0..program.tasks.len()).map(|t| program.tasks[..t].iter().map(|task| task.steps.len()).sum()).collect();
    let number = |launch: &Launch| firsts[launch.0] + launch.1;
    let mut latest = vec![None; waits.len()];
    // For each launch, those that end before it begins.
    let mut needs: Vec<Vec<usize>> = vec![];
    for (at, launch) in all.iter().enumerate() {
        needs.push(waits[number(launch)].iter().filter_map(|on: &usize| latest[*on]).collect());
        latest[number(launch)] = Some(at);
    }
    let is_call = |at: &usize| program.tasks[all[*at].0].steps[all[*at].1].stream == Stream::Comm;
    let (calls, others): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(is_call);
    let queues = [others, calls];
    let (mut next, mut ended, mut out) = ([0, 0], vec![false; all.len()], vec![]);
    let mut random = Random(if let First::Random(seed) = first { seed } else { 0 });
    while out.len() < all.len() {
        let can = |queue: usize| queues[queue].get(next[queue]).filter(|at| needs[**at].iter().all(|on| ended[*on])).copied();
        let preferred = match first {
            First::Computation => 0,
            First::Communication => 1,
            First::Random(_) => random.below(2),
        };
        let (queue, at) = match can(preferred) {
            Some(at) => (preferred, at),
            None => (1 - preferred, can(1 - preferred).expect("waits are for what the table has earlier")),
        };
        (ended[at], next[queue]) = (true, next[queue] + 1);
        out.push(Turn::Launch(all[at]));
    }
    out
}

/// Why some order of the queues does harm, if one that is tried does.
fn harm(good: &Good, program: &Program, waits: &Waits) -> Option<String> {
    let programs = vec![program; program.mesh.world_size() as usize];
    let orders = [First::Computation, First::Communication, First::Random(1), First::Random(2), First::Random(3)];
    orders.into_iter().find_map(|first| good.harm_in_order(&programs, |program| order(program, waits, first)))
}

/// A wait is left out, or is for another step of the queue.
fn mutate(program: &Program, waits: &Waits, random: &mut Random) -> Option<(Waits, String)> {
    let mut mutant = waits.clone();
    let waiting: Vec<usize> = (0..waits.0.len()).filter(|i| !waits.0[*i].is_empty()).collect();
    let step = random.pick(&waiting)?;
    let at = random.below(waits.0[step].len());
    if random.below(2) == 0 {
        let on = mutant.0[step].remove(at);
        return Some((mutant, format!("step {step} does not wait for {on}")));
    }
    let steps: Vec<Stream> = program.tasks.iter().flat_map(|task| &task.steps).map(|step| step.stream).collect();
    let before = mutant.0[step][at];
    let others: Vec<usize> = (0..steps.len()).filter(|i| *i != before && steps[*i] == steps[before]).collect();
    let other = random.pick(&others)?;
    mutant.0[step][at] = other;
    Some((mutant, format!("step {step} waits for {other}, not {before}")))
}

#[test]
fn harmful_waits_are_rejected() {
    let (mut tried, mut harmful, mut rejected, mut missed) = (0, 0, 0, vec![]);
    for (number, job) in jobs::all().iter().enumerate() {
        let mut random = Random(300 + number as u64);
        let good = Good::of(&job.program, &mut random);
        let waits = derive(&job.program);
        assert_eq!(check(&job.program, &waits), Ok(()), "{}", job.name);
        assert_eq!(harm(&good, &job.program, &waits), None, "{}", job.name);
        for _ in 0..super::tries(40) {
            let Some((mutant, what)) = mutate(&job.program, &waits, &mut random) else { continue };
            let is_rejected = check(&job.program, &mutant).is_err();
            tried += 1;
            rejected += usize::from(is_rejected);
            if let Some(harm) = harm(&good, &job.program, &mutant) {
                harmful += 1;
                if !is_rejected {
                    missed.push(format!("{}: {what}: {harm}\n", job.name));
                }
            }
        }
    }
    let text = format!("waits: {tried} mutants, {harmful} harmful, {rejected} rejected\n");
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(missed.is_empty(), "{} harmful waits are accepted:\n{}", missed.len(), missed.concat());
    assert!(harmful * 2 > tried && rejected * 10 >= tried * 9, "{text}");
}
