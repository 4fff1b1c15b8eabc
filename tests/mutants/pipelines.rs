//! Mutants of pipelines: sets of programs, one for each position, that exchange messages. A mutant
//! is rejected where the set is refused, or its graph is, by itself or beside the reference's. Harm
//! is what the interpreter of all ranks finds, in the reading in which every send waits for its
//! receive.

mod ends;
mod graphs;
mod jobs;
mod messages;
mod positions;
mod rows;
mod slots;

use crate::harm::Good;
use crate::{Tally, by_class, keep_kernels_quiet, step_of, table, tries};
use jobs::Job;
use shardc_executor::load::LoadedSet;
use shardc_executor::run::Executor;
use shardc_ir::graph::Graph;
use shardc_ir::plan::Program;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::text::print;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::verify_set;
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Changes a set of programs; what it did, or nothing where it finds no place.
type Mutation = fn(&mut PlanSet, &mut Random) -> Option<String>;

/// How a class makes its mutants.
enum Mutate {
    /// It changes programs.
    Set(Mutation),
    /// It changes programs, knowing the job.
    OfJob(fn(&mut PlanSet, &Job, &mut Random) -> Option<String>),
    /// It changes the graph, which is planned again.
    Graph(graphs::Mutation),
}

/// A class of mutants: its name in the report, how many are tried for each job, and how.
struct Class(&'static str, usize, Mutate);

const fn set(name: &'static str, tries: usize, mutate: Mutation) -> Class {
    Class(name, tries, Mutate::Set(mutate))
}

const fn graph(name: &'static str, tries: usize, mutate: graphs::Mutation) -> Class {
    Class(name, tries, Mutate::Graph(mutate))
}

/// Every class.
const CLASSES: &[Class] = &[
    set("message dropped", 6, messages::dropped),
    set("message doubled", 3, messages::doubled),
    set("message for another rank", 6, messages::other_peer),
    set("message of another micro-batch", 6, messages::other_time),
    set("messages exchanged", 12, messages::other_message),
    set("message of another view", 6, messages::other_view),
    set("message of another op", 3, messages::other_op),
    set("messages of a row reordered", 10, messages::reordered),
    set("rows swapped", 6, rows::swapped),
    set("row across an exchange", 5, rows::across),
    set("row before what it waits for", 6, rows::too_early),
    set("exchange cut in two", 4, rows::split),
    set("exchange moved", 3, rows::moved),
    set("message moved", 3, rows::message_moved),
    set("exchanges joined", 5, rows::joined),
    set("micro-batches in another order", 6, rows::other_order),
    set("row changed", 4, rows::run_changed),
    set("fewer slots", 10, slots::fewer),
    set("slots shared", 8, slots::shared),
    set("received over another", 4, slots::received_over),
    set("slots exchanged", 6, slots::exchanged),
    set("task of another stage", 10, positions::other_task),
    set("programs exchanged", 2, positions::exchanged),
    set("state at another stage", 8, positions::state),
    set("entry at another stage", 4, positions::entry),
    set("buffer held elsewhere", 4, positions::held),
    set("read for what was received", 6, positions::reads_another),
    set("single programs, one position", 20, positions::at_one_position),
    set("single programs, one rank", 20, positions::on_one_rank),
    set("rows, one rank", 10, positions::rows_of_one_rank),
    Class("other kinds, one position", 20, Mutate::OfJob(positions::other_kinds)),
    set("two changes", 12, twice),
    graph("graph: way of a transfer", 12, graphs::way),
    graph("graph: transfer dropped", 8, graphs::dropped),
    graph("graph: transfer of another value", 8, graphs::other_value),
    graph("graph: held elsewhere", 12, graphs::held),
    graph("graph: state elsewhere", 6, graphs::state),
    graph("graph: sent before combined", 12, graphs::too_early),
    graph("graph: another stage", 1, graphs::stage),
    graph("graph: other changes", 10, crate::rewrite::mutate),
];

/// Classes after which a position no longer runs the program of its number.
const AT_PLACES: &[&str] = &["programs exchanged", "single programs, one rank", "rows, one rank", "two changes"];

/// Two changes that may hide one another.
fn twice(set: &mut PlanSet, random: &mut Random) -> Option<String> {
    // The ends of messages are found where each position runs the program of its number.
    let of_sets = |Class(name, _, mutate): &Class| match mutate {
        Mutate::Set(mutate) if !AT_PLACES.contains(name) => Some((*name, *mutate)),
        _ => None,
    };
    let apart: Vec<(&str, Mutation)> = CLASSES.iter().filter_map(of_sets).collect();
    let mut done = vec![];
    while done.len() < 2 {
        let (name, mutate) = random.pick(&apart)?;
        done.push(format!("{name}: {}", mutate(set, random)?));
    }
    Some(done.join("; "))
}

/// A changed set of programs, or none where planning refuses the graph, and the changed graph.
struct Mutant {
    set: Option<PlanSet>,
    graph: Option<Graph>,
    what: String,
}

/// Different mutants of a class.
fn mutants(job: &Job, Class(_, each, mutate): &Class, random: &mut Random) -> Vec<Mutant> {
    let good = &job.plans;
    let (mut known, mut all) = (BTreeSet::from([print(&good.graph)]), vec![]);
    for _ in 0..tries(*each) {
        let mut set = good.set.clone();
        let what = match mutate {
            Mutate::Set(mutate) => mutate(&mut set, random),
            Mutate::OfJob(mutate) => mutate(&mut set, job, random),
            Mutate::Graph(mutate) => {
                let Some((graph, what)) = mutate(&good.graph, random) else { continue };
                if known.insert(print(&graph)) {
                    all.push(Mutant { set: graphs::replan(job, &graph), graph: Some(graph), what });
                }
                continue;
            }
        };
        if let Some(what) = what.filter(|_| set != good.set && known.insert(format!("{set:?}"))) {
            all.push(Mutant { set: Some(set), graph: None, what });
        }
    }
    all
}

/// The program of each rank.
fn of_ranks(set: &PlanSet) -> Vec<&Program> {
    let mesh = set.mesh();
    (0..mesh.world_size()).map(|rank| set.of_rank(mesh, rank)).collect()
}

fn accepted(job: &Job, Mutant { set, graph, what }: &Mutant) -> Result<(), String> {
    if let Some(graph) = graph {
        shardc_ir::verify::verify(graph).map_err(|_| "by letters")?;
        same_when_erased(graph, &job.plans.reference).map_err(|why| why.to_string())?;
    }
    let set = set.as_ref().ok_or("it has no plan")?;
    set.check_tables().map_err(|why| why.to_string())?;
    let graph = graph.as_ref().unwrap_or(&job.plans.graph);
    verify_set(&set.as_ref(), graph).map_err(|why| why.to_string())?;
    LoadedSet::new(set.clone()).unwrap_or_else(|why| panic!("{}: {what} is proven and not loaded: {why}", job.name));
    Ok(())
}

fn try_job(job: &Job, number: u64, tallies: &mut BTreeMap<String, Tally>) {
    let mut random = Random(500 + number);
    let good = Good::of_ranks(&of_ranks(&job.plans.set), &mut random);
    let unchanged = Mutant { set: Some(job.plans.set.clone()), graph: None, what: "the good plan".to_string() };
    accepted(job, &unchanged).unwrap_or_else(|why| panic!("{}: the good plan is rejected: {why}", job.name));
    for class in CLASSES {
        for mutant in mutants(job, class, &mut random) {
            let tally = tallies.entry(class.0.to_string()).or_default();
            // Another graph may place arrays elsewhere.
            let harm = mutant.set.as_ref().and_then(|set| match mutant.graph {
                None => good.harm(&of_ranks(set)),
                Some(_) => good.harm_anywhere(&of_ranks(set)),
            });
            tally.harmful += usize::from(harm.is_some());
            match (harm, accepted(job, &mutant)) {
                (Some(harm), Ok(())) => tally.missed.push(format!("{}: {}: {harm}", job.name, mutant.what)),
                (None, Err(_)) => tally.overcautious += 1,
                (None, Ok(())) => tally.equivalent += 1,
                (Some(_), Err(_)) => {}
            }
        }
    }
}

#[test]
fn harmful_pipelines_are_rejected() {
    keep_kernels_quiet();
    let jobs = jobs::all();
    let all = by_class(&jobs, try_job);
    let classes = all.len();
    let (text, sum) = table(all);
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(sum.missed.is_empty(), "{} harmful mutants are accepted:\n{}", sum.missed.len(), sum.missed.concat());
    assert!(sum.mutants() >= 3000 && classes == CLASSES.len(), "{} mutants of {classes} classes", sum.mutants());
    assert!(sum.equivalent * 10 <= sum.mutants(), "{} of {} mutants are equivalent", sum.equivalent, sum.mutants());
}

/// The interpreter and the executor agree about good plans, and there are messages, slots and tasks
/// of every kind in them.
#[test]
fn good_pipelines_mean_the_same_to_the_executor() {
    let jobs = jobs::all();
    for (number, job) in jobs.iter().enumerate() {
        let set = &job.plans.set;
        let good = Good::of_ranks(&of_ranks(set), &mut Random(number as u64));
        let mut executor = Executor::new(set.clone(), 1).expect("a good plan loads");
        let outputs = step_of(&mut executor, &good).expect("a good plan runs").outputs;
        let states = set.states().into_iter().map(|(_, s)| (format!("state {}", s.name), executor.get_state(&s.name)));
        let outputs = outputs.into_iter().map(|(name, value)| (format!("output {name}"), Ok(value)));
        for (name, value) in states.chain(outputs) {
            let (found, expected) = (value.expect("no rank failed").to_f64(), good.result(&name).expect("it was computed"));
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            assert!(found.iter().zip(expected).all(close), "{}, {name}: {found:?} {expected:?}", job.name);
        }
    }
    let programs = || jobs.iter().flat_map(|job| &job.plans.set.programs);
    assert!(jobs.iter().all(|job| job.plans.set.programs.iter().all(|program| !program.messages.is_empty())));
    let slots: BTreeSet<u64> = programs().flat_map(|program| &program.buffers).map(|buffer| buffer.slots).collect();
    assert!((1..=4).all(|slots_of| slots.contains(&slots_of)), "{slots:?}");
    let tasks: BTreeSet<&str> = programs().flat_map(|program| &program.tasks).map(|task| task.name.as_str()).collect();
    assert!(["F", "B", "W", "update"].iter().all(|name| tasks.contains(name)), "{tasks:?}");
    let apart = |program: &Program| program.mesh.microbatches() > 2 && program.buffers.iter().any(|b| b.slots == 2);
    assert!(programs().any(apart), "some buffer has fewer slots than there are micro-batches");
}

/// Whatever a set of programs is, the executor refuses it, runs it or ends with an error that is no
/// panic; and it ends, whoever waits for whom.
#[test]
fn mutants_of_pipelines_do_no_harm_to_the_executor() {
    let (mut refused, mut failed, mut ran) = (0, 0, 0);
    for (number, job) in jobs::all().iter().enumerate() {
        let mut random = Random(600 + number as u64);
        let good = Good::of_ranks(&of_ranks(&job.plans.set), &mut random);
        for class in CLASSES.iter().filter(|Class(_, _, mutate)| !matches!(mutate, Mutate::Graph(_))) {
            let Some(Mutant { set: Some(set), what, .. }) = mutants(job, class, &mut random).pop() else { continue };
            let Ok(mut executor) = Executor::new(set, 1) else {
                refused += 1;
                continue;
            };
            match step_of(&mut executor, &good) {
                Err(error) if error.message.contains("internal error") => panic!("{}: {what}: {error}", job.name),
                Err(_) => failed += 1,
                Ok(_) => ran += 1,
            }
        }
    }
    println!("{refused} mutants cannot be loaded, {failed} fail, {ran} run");
    assert!(refused > 10 && failed > 50 && ran > 50, "{refused} {failed} {ran}");
}
