//! Mutants of pipelines: sets of programs, one for each position, that exchange messages.

mod ends;
mod graphs;
mod jobs;
mod messages;
mod positions;
mod rows;
mod slots;

pub use jobs::all as all_jobs;
pub use positions::other_kinds;

use crate::sets::{
    Class, Mutate, Mutation, agree_with_the_executor, do_no_harm_to_the_executor, graph, harmful_are_rejected, of_job, set,
};
use shardc_ir::plan::Program;
use shardc_ir::plan::set::PlanSet;
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

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
    of_job("other kinds, one position", 20, other_kinds),
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

#[test]
fn harmful_pipelines_are_rejected() {
    harmful_are_rejected(&jobs::all(), CLASSES, 500, 3000);
}

/// The interpreter and the executor agree about good plans, and there are messages, slots and tasks
/// of every kind in them.
#[test]
fn good_pipelines_mean_the_same_to_the_executor() {
    let jobs = jobs::all();
    agree_with_the_executor(&jobs);
    let programs = || jobs.iter().flat_map(|job| &job.plans.set.programs);
    assert!(jobs.iter().all(|job| job.plans.set.programs.iter().all(|program| !program.messages.is_empty())));
    let slots: BTreeSet<u64> = programs().flat_map(|program| &program.buffers).map(|buffer| buffer.slots).collect();
    assert!((1..=4).all(|slots_of| slots.contains(&slots_of)), "{slots:?}");
    let tasks: BTreeSet<&str> = programs().flat_map(|program| &program.tasks).map(|task| task.name.as_str()).collect();
    assert!(["F", "B", "W", "update"].iter().all(|name| tasks.contains(name)), "{tasks:?}");
    let apart = |program: &Program| program.mesh.microbatches() > 2 && program.buffers.iter().any(|b| b.slots == 2);
    assert!(programs().any(apart), "some buffer has fewer slots than there are micro-batches");
}

#[test]
fn mutants_of_pipelines_do_no_harm_to_the_executor() {
    let [refused, failed, ran] = do_no_harm_to_the_executor(&jobs::all(), CLASSES, 600);
    assert!(refused > 10 && failed > 50 && ran > 50, "{refused} {failed} {ran}");
}
