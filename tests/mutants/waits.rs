//! The queues of a rank under the waits that follow from its program: whatever one queue does
//! before the other, the results are those of the table. Mutants lack a wait, or wait for another
//! step. Of programs with messages, plain sets say what a launch comes behind.

use super::harm::Good;
use super::jobs;
use super::pipelines;
use super::ranks::{Launch, Turn, launches};
use shardc_ir::plan::{Program, Stream, Turn as Told};
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
    let steps = program.tasks.iter().flat_map(|task| &task.steps).map(|step| step.stream);
    let streams: Vec<Stream> = steps.chain(program.messages.iter().map(|message| Stream::Messages(message.way()))).collect();
    let before = mutant.0[step][at];
    let others: Vec<usize> = (0..streams.len()).filter(|i| *i != before && streams[*i] == streams[before]).collect();
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

/// A launch, or a message of an exchange: its number, its queue, the bytes that it reads and those
/// that it writes.
type Run = (usize, Stream, [Vec<[u64; 2]>; 2]);

/// All that a program runs, in the order of its table.
fn runs(program: &Program) -> Vec<Run> {
    let bytes = |view: &shardc_ir::plan::View, time: u64| {
        let buffer = &program.buffers[view.buffer.index()];
        let start = buffer.offset + time % buffer.slots * buffer.slot_bytes + view.offset;
        [start, start + view.bytes]
    };
    let steps: Vec<usize> = program.tasks.iter().map(|task| task.steps.len()).collect();
    let mut runs = vec![];
    for turn in program.turns() {
        match turn {
            Told::Launch(launch) => {
                let step = program.step(launch);
                let [reads, writes] =
                    [&step.reads, &step.writes].map(|views| views.iter().map(|view| bytes(view, launch.time)).collect());
                let number = steps[..launch.task].iter().sum::<usize>() + launch.step;
                runs.push((number, step.stream, [reads, writes]));
            }
            Told::Exchange(row) => {
                for (number, time) in program.exchanged(row) {
                    let message = &program.messages[number];
                    let (own, none) = (vec![bytes(&message.view, time)], vec![]);
                    let touched = if message.sends { [own, none] } else { [none, own] };
                    runs.push((steps.iter().sum::<usize>() + number, Stream::Messages(message.way()), touched));
                }
            }
        }
    }
    runs
}

/// The first two runs that touch the same bytes, of which none comes behind the other.
fn race(runs: &[Run], Waits(waits): &Waits) -> Option<(usize, usize)> {
    let meet = |a: &[[u64; 2]], b: &[[u64; 2]]| a.iter().any(|x| b.iter().any(|y| x[0].max(y[0]) < x[1].min(y[1])));
    // For each run all that has ended when it begins.
    let mut before: Vec<Vec<bool>> = vec![];
    let mut latest = vec![None; waits.len()];
    for (at, (number, stream, [reads, writes])) in runs.iter().enumerate() {
        let mut ended = vec![false; runs.len()];
        let in_queue = (0..at).rev().find(|other| runs[*other].1 == *stream);
        for on in waits[*number].iter().filter_map(|on: &usize| latest[*on]).chain(in_queue) {
            let behind: &Vec<bool> = &before[on];
            ended.iter_mut().zip(behind).for_each(|(ended, behind)| *ended |= behind);
            ended[on] = true;
        }
        let clash = |other: &usize| {
            let [read, written] = &runs[*other].2;
            meet(written, writes) || meet(written, reads) || meet(read, writes)
        };
        if let Some(other) = (0..at).filter(|other| !ended[*other]).find(clash) {
            return Some((runs[other].0, *number));
        }
        before.push(ended);
        latest[*number] = Some(at);
    }
    None
}

#[test]
fn waits_of_all_queues_are_judged_as_plain_sets_say() {
    let (mut tried, mut wrong, mut lost) = (0, 0, 0);
    let of_messages = |program: &Program, waits: &Waits| {
        let Waits(waits) = waits;
        let steps: usize = program.tasks.iter().map(|task| task.steps.len()).sum();
        let waiting = waits[steps..].iter().filter(|on| !on.is_empty()).count();
        [waiting, waits[..steps].iter().flatten().filter(|on| **on >= steps).count()]
    };
    let mut found = [0; 2];
    for (number, job) in pipelines::all_jobs().iter().enumerate() {
        let mut random = Random(900 + number as u64);
        for program in &job.plans.set.programs {
            let (runs, waits) = (runs(program), derive(program));
            assert_eq!((check(program, &waits), race(&runs, &waits)), (Ok(()), None), "{}", job.name);
            of_messages(program, &waits).iter().zip(&mut found).for_each(|(own, found)| *found += own);
            for _ in 0..super::tries(8) {
                let Some((mutant, what)) = mutate(program, &waits, &mut random) else { continue };
                let has_race = race(&runs, &mutant).is_some();
                assert_eq!(check(program, &mutant).is_err(), has_race, "{}: {what}", job.name);
                tried += 1;
                wrong += usize::from(has_race);
                lost += usize::from(what.contains("does not wait"));
            }
        }
    }
    let text = format!("waits of pipelines: {tried} mutants, {lost} without a wait, {wrong} with a race\n");
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(found.iter().all(|found| *found > 20), "messages wait, and are waited for: {found:?}");
    assert!(tried > 100 && wrong * 2 > tried, "{text}");
}
