//! Mutants of plans with lines that ranks hold ranges of: what ZeRO makes of parameters, gradients
//! and moments.

mod bytes;
mod calls;
mod filling;
mod graphs;
mod jobs;
mod lines;
mod padding;

use crate::mutate::is_call;
use crate::sets::{
    Class, Mutate, agree_with_the_executor, do_no_harm_to_the_executor, graph, harmful_are_rejected, of_job, program,
};
use shardc_ir::kernel::{Collective, CollectiveKind, Kernel};
use shardc_ir::plan::{Buffer, BufferId, BufferKind, Program, Step, View};
use shardc_testkit::random::Random;
use std::collections::BTreeSet;

/// Every class.
const CLASSES: &[Class] = &[
    program("range of another parameter", 3, lines::other_parameter),
    program("range of another moment", 2, lines::other_moment),
    program("range of another rank", 2, lines::other_range),
    program("ranges of states exchanged", 1, lines::states),
    program("line cut by other axes", 1, lines::axes),
    program("update of a part", 2, lines::partly),
    program("line not filled up", 2, padding::not_filled),
    program("line copied from elsewhere", 2, padding::copied),
    program("ranges of another length", 2, padding::ranges),
    program("range written over", 2, padding::written_over),
    program("gather dropped", 2, calls::gather_dropped),
    program("gather too late", 2, calls::gather_late),
    program("gather of what was", 2, calls::gather_stale),
    program("update moved", 1, calls::update_moved),
    program("call of another kind", 2, calls::other_kind),
    program("call over other axes", 2, calls::other_axes),
    program("scatter and sum exchanged", 2, calls::scatter_across),
    program("sum of micro-batches", 2, calls::sum),
    program("joined call", 2, calls::joined),
    program("gathered over another", 2, bytes::prefetched),
    program("bytes given away too early", 2, bytes::given_away),
    program("another line read", 2, bytes::reads_another),
    program("view of a line", 2, bytes::views),
    program("general classes", 6, bytes::general),
    of_job("other general classes", 4, bytes::other_general),
    program("two changes", 2, twice),
    graph("graph: axes of a line", 2, graphs::axes),
    graph("graph: kind of a call", 2, graphs::kind),
    graph("graph: call of another value", 1, graphs::other_value),
    graph("graph: line cut otherwise", 2, graphs::sharding),
    graph("graph: not summed", 1, graphs::not_summed),
    graph("graph: other changes", 3, graphs::general),
];

/// Two changes that may hide one another.
fn twice(program: &mut Program, random: &mut Random) -> Option<String> {
    let of_programs = |Class(name, _, mutate): &Class| match mutate {
        Mutate::Program(mutate) if *name != "two changes" => Some((*name, *mutate)),
        _ => None,
    };
    let apart: Vec<_> = CLASSES.iter().filter_map(of_programs).collect();
    let mut done = vec![];
    while done.len() < 2 {
        let (name, mutate) = random.pick(&apart)?;
        done.push(format!("{name}: {}", mutate(program, random)?));
    }
    Some(done.join("; "))
}

/// The buffers that are ranges of lines.
fn flat(program: &Program) -> Vec<BufferId> {
    let of = |(id, buffer): (u32, &Buffer)| (!buffer.sharding.flat.is_empty()).then_some(BufferId(id));
    (0..).zip(&program.buffers).filter_map(of).collect()
}

fn is_flat(program: &Program, view: &View) -> bool {
    program.buffers.get(view.buffer.index()).is_some_and(|buffer| !buffer.sharding.flat.is_empty())
}

/// Whether a view is of a line that is filled up.
fn is_scratch(program: &Program, view: &View) -> bool {
    program.buffers.get(view.buffer.index()).is_some_and(|buffer| buffer.kind == BufferKind::Communication)
}

/// Whether a step reads or writes a range, or a line that is filled up.
fn touches(program: &Program, step: &Step) -> bool {
    step.reads.iter().chain(&step.writes).any(|view| is_flat(program, view) || is_scratch(program, view))
}

fn is_kind(step: &Step, wanted: CollectiveKind) -> bool {
    matches!(&step.kernel, Kernel::Collective(Collective { kind, .. }) if *kind == wanted)
}

/// Whether a step makes lines of ranges.
fn gathers(program: &Program, step: &Step) -> bool {
    is_kind(step, CollectiveKind::AllGather) && step.reads.iter().all(|view| is_flat(program, view))
}

/// Whether a step sums up lines and leaves each rank its range.
fn scatters(program: &Program, step: &Step) -> bool {
    is_kind(step, CollectiveKind::ReduceScatter) && step.writes.iter().all(|view| is_flat(program, view))
}

#[test]
fn harmful_mutants_of_zero_are_rejected() {
    harmful_are_rejected(&jobs::all(), CLASSES, 700, 500);
}

/// The interpreter and the executor agree about good plans, which between them have all that a line
/// can come to.
#[test]
fn good_plans_of_zero_mean_the_same_to_the_executor() {
    let jobs = jobs::all();
    agree_with_the_executor(&jobs);
    let programs = || jobs.iter().flat_map(|job| &job.plans.set.programs);
    let has = |of: &dyn Fn(&Program, &Step) -> bool| {
        programs().any(|program| program.tasks.iter().flat_map(|task| &task.steps).any(|step| of(program, step)))
    };
    assert!(has(&|program, step| gathers(program, step) && step.reads.len() > 1), "gathers are joined");
    assert!(has(&|program, step| scatters(program, step) && step.reads.len() > 1), "scatters are joined");
    assert!(
        has(&|program, step| is_call(step) && step.writes.iter().any(|view| is_scratch(program, view))),
        "lines are filled up"
    );
    let shardings = || programs().flat_map(|program| program.buffers.iter().map(move |buffer| (program, buffer)));
    let ranges: BTreeSet<u64> = shardings().map(|(program, buffer)| buffer.sharding.ranges(&program.mesh)).collect();
    assert!((1..=4).all(|count| ranges.contains(&count)), "{ranges:?}");
    let both = |buffer: &Buffer| !buffer.sharding.flat.is_empty() && buffer.sharding.dims.iter().any(|splits| !splits.is_empty());
    assert!(shardings().any(|(_, buffer)| both(buffer)), "a split parameter is cut");
}

#[test]
fn mutants_of_zero_do_no_harm_to_the_executor() {
    let [refused, failed, ran] = do_no_harm_to_the_executor(&jobs::all(), CLASSES, 800);
    assert!(refused > 50 && failed > 10 && ran > 200, "{refused} {failed} {ran}");
}
