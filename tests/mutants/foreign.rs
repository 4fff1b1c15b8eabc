//! A second family of wrong plans: of other kinds than [`crate::mutate`], and with graphs that are
//! changed as the program is. A mutant is rejected where the verifier refuses it, or its graph is
//! not the reference's.

mod arena;
mod calls;
mod fills;
mod graphs;
mod numbers;
mod padding;
mod positions;
mod sums;
mod tables;
mod views;

use crate::harm::Good;
use crate::jobs::{self, Job};
use crate::{Tally, keep_kernels_quiet, tries};
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId};
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Collective, Kernel, Move};
use shardc_ir::mesh::Mesh;
use shardc_ir::ops::Op;
use shardc_ir::plan::{Buffer, BufferId, Program, Step, View, aligned};
use shardc_ir::position::Offset;
use shardc_ir::text::print;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::verify;
use shardc_passes::{Context, Mode};
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A program, and the graph that it says it carries out.
#[derive(Clone)]
pub struct Plan {
    /// What runs.
    pub program: Program,
    /// What it is proven against.
    pub graph: Graph,
}

/// Changes a plan; what it did, or nothing where it finds no place.
type Mutation = fn(&mut Plan, &Job, &mut Random) -> Option<String>;

/// A class of mutants: its name in the report, how many are tried for each job, and how they are
/// made.
type Class = (&'static str, usize, Mutation);

/// Every class.
const CLASSES: &[Class] = &[
    ("subviews: less is done", 5, views::narrow),
    ("subviews: halves", 6, views::halves),
    ("subviews: further on", 6, views::shift),
    ("calls: operand moved", 5, calls::move_operand),
    ("calls: joined", 4, calls::join),
    ("calls: cut in two", 4, calls::split),
    ("calls: shortened", 5, calls::shorten),
    ("calls: too early, too late", 5, calls::displace),
    ("arena: repacked wrongly", 8, arena::repack_wrongly),
    ("padding: more room", 4, padding::pad),
    ("padding: reached", 6, padding::reach),
    ("padding: whole slots", 3, padding::whole_slots),
    ("fills: overlap", 4, fills::overlap),
    ("fills: shared with steps", 4, fills::share),
    ("fills: as scratch", 4, fills::scratch),
    ("fills: kinds", 4, fills::kinds),
    ("fills: twice", 4, fills::twice),
    ("graph: reshard", 6, graphs::reshard),
    ("graph: sharding of a value", 8, graphs::sharding),
    ("sums: again", 5, sums::again),
    ("sums: through a copy", 5, sums::through_a_copy),
    ("sums: other group", 6, sums::other_group),
    ("sums: crossed", 12, sums::crossed),
    ("positions: axes", 5, positions::exchange_axes),
    ("positions: terms", 10, positions::move_term),
    ("positions: digits", 5, positions::digits),
    ("numbers: of kernels", 4, numbers::of_kernel),
    ("numbers: neutral elements", 4, numbers::neutral),
    ("numbers: of constants", 6, numbers::of_constant),
    ("numbers: of another kernel", 3, numbers::exchanged),
    ("tables: entry twice", 5, tables::duplicate),
    ("tables: left out", 5, tables::leave_out),
    ("tables: renamed", 4, tables::rename),
    ("tables: exchanged", 8, tables::exchange),
    ("tables: rows", 6, tables::rows),
    ("tables: rows interleaved", 6, tables::interleave),
    ("tables: with the last", 5, tables::whens),
    ("tables: slots", 5, tables::slots),
    ("several", 8, several),
];

/// Good plans by other ways.
const GOOD: &[Class] = &[("arena: repacked rightly", 6, arena::repack)];

/// Two or three changes on one plan.
fn several(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let mut done = vec![];
    for _ in 0..2 + random.below(2) {
        let (_, _, mutate) = CLASSES[random.below(CLASSES.len() - 1)];
        let mut next = plan.clone();
        if let Some(what) = mutate(&mut next, job, random) {
            *plan = next;
            done.push(what);
        }
    }
    (done.len() > 1).then(|| done.join("; "))
}

/// The views of a step are as large as its kernel takes them.
fn fit(step: &mut Step, mesh: &Mesh) -> Option<()> {
    let signature = step.kernel.signature(mesh).ok()?;
    let views = step.reads.iter_mut().zip(&signature.reads).chain(step.writes.iter_mut().zip(&signature.writes));
    views.for_each(|(view, operand)| view.bytes = operand.elements * operand.dtype.bytes());
    Some(())
}

/// A buffer comes to lie behind all others.
fn at_the_end(program: &mut Program, id: BufferId) {
    program.buffers[id.index()].offset = program.arena_bytes;
    fit_arena(program);
}

/// The arena is as large as its buffers need.
fn fit_arena(program: &mut Program) {
    let ends = program.buffers.iter().map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots);
    program.arena_bytes = aligned(ends.max().unwrap_or_default());
}

/// The bytes of one element.
fn element(buffer: &Buffer) -> u64 {
    buffer.dtype.bytes()
}

/// The buffers that some step touches.
fn touched(program: &Program) -> Vec<BufferId> {
    let steps = program.tasks.iter().flat_map(|task| &task.steps);
    let mut ids: Vec<BufferId> = steps.flat_map(|step| step.reads.iter().chain(&step.writes)).map(|view| view.buffer).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Whether two views share bytes, in the first slot.
fn meet(program: &Program, a: &View, b: &View) -> bool {
    let range = |view: &View| {
        let start = program.buffers[view.buffer.index()].offset + view.offset;
        (start, start + view.bytes)
    };
    range(a).0 < range(b).1 && range(b).0 < range(a).1
}

/// Whether one of two steps writes what the other touches.
fn depends(program: &Program, a: &Step, b: &Step) -> bool {
    let writes = |a: &Step, b: &Step| a.writes.iter().any(|w| b.reads.iter().chain(&b.writes).any(|v| meet(program, w, v)));
    writes(a, b) || writes(b, a)
}

/// A plain copy.
fn row_major_copy(dtype: DType, shape: &[u64]) -> Kernel {
    let (src_strides, dst_strides) = (row_major(shape), row_major(shape));
    let (src_offset, dst_offset) = (Offset::default(), Offset::default());
    Kernel::Move(Move { dtype, shape: shape.to_vec(), src_offset, src_strides, dst_offset, dst_strides })
}

/// The program without what carries out one op, which others may carry out in the same call: what
/// was read and written.
fn without_op(program: &mut Program, op: &str) -> Vec<(View, View)> {
    let mut gone = vec![];
    for task in &mut program.tasks {
        task.steps.retain_mut(|step| {
            let Some(at) = step.provenance.ops.iter().position(|name| name == op) else { return true };
            if let (Kernel::Collective(Collective { counts, .. }), true) = (&mut step.kernel, step.provenance.ops.len() > 1) {
                counts.remove(at);
                gone.push((step.reads.remove(at), step.writes.remove(at)));
                step.provenance.ops.remove(at);
                return true;
            }
            gone.extend(step.reads.first().copied().zip(step.writes.first().copied()));
            false
        });
    }
    gone
}

/// The graph with other ops.
fn with_ops(graph: &Graph, other: impl Fn(NodeId, &Op) -> Op) -> Graph {
    let mut b = Builder::rewrite(graph);
    let mut map = vec![None; graph.value_count()];
    for (id, node) in graph.nodes() {
        b.copy(graph, &Node { op: other(id, &node.op), ..node.clone() }, &mut map);
    }
    b.copy_roots(graph, &map);
    b.finish()
}

/// The program that planning makes of a graph, whatever the proof says of it.
fn replan(job: &Job, graph: &Graph) -> Option<Program> {
    let cx = Context { spec: &job.spec, mode: Mode::Train, verify: false };
    catch_unwind(AssertUnwindSafe(|| shardc_passes::planning::plan(graph, &cx).ok())).ok().flatten()
}

/// Different mutants of a class.
fn mutants(job: &Job, (_, times, mutate): &Class, random: &mut Random) -> Vec<(Plan, String)> {
    let good = Plan { program: job.program.clone(), graph: job.graph.clone() };
    let text = print(&good.graph);
    let mut all: Vec<(Plan, String)> = vec![];
    let mut texts = vec![];
    for _ in 0..tries(*times) {
        let mut plan = good.clone();
        let Some(what) = mutate(&mut plan, job, random) else { continue };
        let own = print(&plan.graph);
        let known = all.iter().zip(&texts).any(|((other, _), text)| *text == own && same(&other.program, &plan.program));
        if !known && (own != text || !same(&plan.program, &good.program)) {
            all.push((plan, what));
            texts.push(own);
        }
    }
    all
}

/// Whether two programs are the same to the bit: zeros have signs.
fn same(a: &Program, b: &Program) -> bool {
    a == b && format!("{:?}", a.tasks) == format!("{:?}", b.tasks)
}

fn accepted(job: &Job, plan: &Plan) -> Result<(), String> {
    verify(&plan.program, &plan.graph).map_err(|why| why.to_string())?;
    same_when_erased(&plan.graph, &job.reference).map_err(|why| why.to_string())
}

fn harm(job: &Job, good: &Good, plan: &Plan) -> Option<String> {
    good.harm(&vec![&plan.program; job.program.mesh.world_size() as usize])
}

#[test]
fn harmful_mutants_of_other_kinds_are_rejected() {
    keep_kernels_quiet();
    let jobs = jobs::all();
    let halves: Vec<BTreeMap<&str, Tally>> = std::thread::scope(|scope| {
        let work = |first: usize| {
            let jobs = &jobs;
            let run = move || {
                let mut tallies = BTreeMap::new();
                jobs.iter().enumerate().skip(first).step_by(2).for_each(|(i, job)| try_job(job, i as u64, &mut tallies));
                tallies
            };
            scope.spawn(run)
        };
        let threads = [work(0), work(1)];
        threads.into_iter().map(|t| t.join().expect("the mutants are tried")).collect()
    });
    let mut all: BTreeMap<&str, Tally> = BTreeMap::new();
    for (name, tally) in halves.into_iter().flatten() {
        all.entry(name).or_default().add(tally);
    }
    report(all);
}

fn try_job(job: &Job, number: u64, tallies: &mut BTreeMap<&str, Tally>) {
    let mut random = Random(400 + number);
    let good = Good::of(&job.program, &mut random);
    let tell = |why: Result<(), String>, what: &str| why.unwrap_or_else(|why| panic!("{}: {what} is rejected: {why}", job.name));
    tell(accepted(job, &Plan { program: job.program.clone(), graph: job.graph.clone() }), "the good plan");
    for class in GOOD {
        for (plan, what) in mutants(job, class, &mut random) {
            assert_eq!(harm(job, &good, &plan), None, "{}: {what}: the judge is wrong", job.name);
            tell(accepted(job, &plan), &what);
            tallies.entry(class.0).or_default().equivalent += 1;
        }
    }
    for class in CLASSES {
        let tally = tallies.entry(class.0).or_default();
        for (plan, what) in mutants(job, class, &mut random) {
            let (harm, accepted) = (harm(job, &good, &plan), accepted(job, &plan).is_ok());
            tally.harmful += usize::from(harm.is_some());
            match (harm, accepted) {
                (Some(harm), true) => tally.missed.push(format!("{}: {what}: {harm}", job.name)),
                (None, false) => tally.overcautious += 1,
                (None, true) => tally.equivalent += 1,
                (Some(_), false) => {}
            }
        }
    }
}

/// Prints past the test harness what became of the mutants, and demands what must hold.
fn report(mut all: BTreeMap<&str, Tally>) {
    let good: usize = GOOD.iter().filter_map(|(name, ..)| all.remove(name)).map(|tally| tally.equivalent).sum();
    let header = ["mutants", "harmful", "rejected", "rejected for no harm", "equivalent"];
    let mut text = format!("{:36} {:>8} {:>8} {:>9} {:>20} {:>11}\n", "", header[0], header[1], header[2], header[3], header[4]);
    let (mut sum, mut least) = (Tally::default(), usize::MAX);
    for (name, tally) in all {
        text += &tally.line(name);
        least = least.min(tally.mutants());
        let missed = tally.missed.iter().map(|missed| format!("{name}: {missed}\n")).collect();
        sum.add(Tally { missed, ..tally });
    }
    text += &sum.line("all");
    text += &format!("{good} plans are good in another way\n");
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(sum.missed.is_empty(), "{} harmful mutants are accepted:\n{}", sum.missed.len(), sum.missed.concat());
    assert!(sum.mutants() >= 1500 && least >= 10 && good >= 50, "{} mutants, {least} of one class", sum.mutants());
    assert!(sum.equivalent * 10 <= sum.mutants(), "{} of {} mutants are equivalent", sum.equivalent, sum.mutants());
}
