//! Mutants of plans and graphs with types of 16 bits, masters and a loss scale: numbers that are
//! rounded otherwise, copies of something else or of another time, masters that are not renewed,
//! gradients that are scaled otherwise, and state variables that ignore whether a step counts.

mod graphs;
mod jobs;
mod moves;
mod numbers;

use crate::sets::{Class, agree_within, do_no_harm_to_the_executor, graph, harmful_are_rejected, program};
use shardc_ir::plan::StateRole;

/// Every class.
const CLASSES: &[Class] = &[
    program("rounded otherwise", 6, numbers::rounding),
    program("copy of something else", 4, moves::copy_of_other),
    program("copy made later", 4, moves::copy_late),
    program("copy of the last step", 3, moves::copy_stale),
    program("another copy read", 3, moves::other_copy),
    program("master not renewed", 4, moves::master),
    program("master renewed from its copy", 2, moves::update_of_copy),
    program("gradients summed elsewhere", 4, moves::sum_elsewhere),
    program("gradients in another slot", 2, moves::other_slot),
    program("unscaled otherwise", 4, numbers::unscaling),
    program("factor of all elements", 3, numbers::factor),
    program("norm not reduced", 2, moves::not_reduced),
    program("flag of another number", 3, moves::flag_of_part),
    program("another flag", 3, moves::other_flag),
    program("flag says something else", 4, numbers::flag),
    program("flag ignored", 6, numbers::ignores),
    program("scale renewed otherwise", 8, numbers::scale),
    program("scale not renewed", 2, numbers::scale_left),
    program("product of another type", 4, numbers::product),
    program("gather of copies", 3, moves::gather),
    program("call of another type", 2, moves::call),
    graph("graph: by way of another format", 4, graphs::other_format),
    graph("graph: cast of another value", 4, graphs::other_value),
    graph("graph: without the flag", 4, graphs::without_flag),
    graph("graph: narrow master", 3, graphs::narrow_master),
];

#[test]
fn harmful_mutants_of_precision_are_rejected() {
    harmful_are_rejected(&jobs::all(), CLASSES, 1100, 500);
}

/// The interpreter and the executor agree about good plans, but for the last bit of 16.
#[test]
fn good_plans_of_precision_mean_the_same_to_the_executor() {
    let jobs = jobs::all();
    agree_within(&jobs, 0.02);
    let states = jobs.iter().flat_map(|job| &job.plans.set.programs).flat_map(|program| &program.states);
    assert!(states.into_iter().any(|state| state.role == StateRole::Scaling));
}

#[test]
fn mutants_of_precision_do_no_harm_to_the_executor() {
    let [refused, failed, ran] = do_no_harm_to_the_executor(&jobs::all(), CLASSES, 1200);
    assert!(refused + failed + ran > 40 && ran > 10, "{refused} {failed} {ran}");
}
