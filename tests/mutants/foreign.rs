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
use crate::{Tally, by_class, keep_kernels_quiet, table, tries};
use shardc_executor::load::LoadedSet;
use shardc_ir::builder::Builder;
use shardc_ir::dtype::DType;
use shardc_ir::graph::{Graph, Node, NodeId};
use shardc_ir::kernel::signature::row_major;
use shardc_ir::kernel::{Collective, Kernel, Move};
use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::ops::Op;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Buffer, BufferId, Program, Step, View, aligned};
use shardc_ir::position::Offset;
use shardc_ir::text::print;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{verify, verify_set};
use shardc_passes::{Context, Mode};
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};
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

/// A class of mutants.
struct Class {
    name: &'static str,
    /// How many are tried for each job.
    tries: usize,
    mutate: Mutation,
    /// Whether some run on one rank alone, beside good plans.
    on_one: bool,
}

const fn class(name: &'static str, tries: usize, mutate: Mutation) -> Class {
    Class { name, tries, mutate, on_one: true }
}

/// Of what the host has one table for, or the graph is changed for.
const fn of_all(name: &'static str, tries: usize, mutate: Mutation) -> Class {
    Class { name, tries, mutate, on_one: false }
}

/// Every class.
const CLASSES: &[Class] = &[
    class("subviews: less is done", 4, views::narrow),
    class("subviews: halves", 5, views::halves),
    class("subviews: further on", 4, views::shift),
    class("calls: operand moved", 4, calls::move_operand),
    class("calls: joined", 4, calls::join),
    class("calls: cut in two", 4, calls::split),
    class("calls: shortened", 3, calls::shorten),
    class("calls: too early, too late", 3, calls::displace),
    class("arena: repacked wrongly", 5, arena::repack_wrongly),
    class("padding: more room", 2, padding::pad),
    class("padding: reached", 4, padding::reach),
    class("padding: whole slots", 2, padding::whole_slots),
    of_all("fills: overlap", 3, fills::overlap),
    of_all("fills: shared with steps", 3, fills::share),
    of_all("fills: as scratch", 3, fills::scratch),
    of_all("fills: kinds", 3, fills::kinds),
    of_all("fills: twice", 3, fills::twice),
    of_all("graph: reshard", 5, graphs::reshard),
    of_all("graph: sharding of a value", 10, graphs::sharding),
    class("sums: again", 3, sums::again),
    class("sums: through a copy", 4, sums::through_a_copy),
    of_all("sums: other group", 6, sums::other_group),
    class("sums: crossed", 8, sums::crossed),
    class("positions: axes", 4, positions::exchange_axes),
    class("positions: terms", 8, positions::move_term),
    class("positions: digits", 4, positions::digits),
    class("numbers: of kernels", 3, numbers::of_kernel),
    class("numbers: neutral elements", 3, numbers::neutral),
    of_all("numbers: of constants", 5, numbers::of_constant),
    class("numbers: of another kernel", 3, numbers::exchanged),
    of_all("tables: entry twice", 3, tables::duplicate),
    of_all("tables: left out", 3, tables::leave_out),
    of_all("tables: renamed", 3, tables::rename),
    of_all("tables: exchanged", 6, tables::exchange),
    class("tables: rows", 4, tables::rows),
    class("tables: rows interleaved", 4, tables::interleave),
    class("tables: with the last", 4, tables::whens),
    class("tables: slots", 4, tables::slots),
    class("several", 5, several),
];

/// Good plans by other ways.
const GOOD: &[Class] = &[class("arena: repacked rightly", 6, arena::repack)];

/// A change of some class.
pub fn any(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let Class { name, mutate, .. } = &CLASSES[random.below(CLASSES.len())];
    mutate(plan, job, random).map(|what| format!("{name}: {what}"))
}

/// Two or three changes on one plan.
fn several(plan: &mut Plan, job: &Job, random: &mut Random) -> Option<String> {
    let mut done = vec![];
    for _ in 0..2 + random.below(2) {
        let Class { mutate, .. } = &CLASSES[random.below(CLASSES.len() - 1)];
        let mut next = plan.clone();
        if let Some(what) = mutate(&mut next, job, random) {
            *plan = next;
            done.push(what);
        }
    }
    (done.len() > 1).then(|| done.join("; "))
}

/// The views of a step are as large as its kernel takes them.
pub fn fit(step: &mut Step, mesh: &Mesh) -> Option<()> {
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
    catch_unwind(AssertUnwindSafe(|| shardc_passes::planning::plan(graph, &cx).ok().map(PlanSet::into_first))).ok().flatten()
}

/// A changed plan, on all ranks or on one.
struct Mutant {
    plan: Plan,
    only: Option<u64>,
    what: String,
}

/// Different mutants of a class.
fn mutants(job: &Job, class: &Class, random: &mut Random) -> Vec<Mutant> {
    let good = Plan { program: job.program.clone(), graph: job.graph.clone() };
    // Zeros have signs in text.
    let text = |plan: &Plan| (format!("{:?}", plan.program), print(&plan.graph));
    let (_, graph) = text(&good);
    let (mut known, mut all) = (BTreeSet::from([text(&good)]), vec![]);
    for _ in 0..tries(class.tries) {
        let mut plan = good.clone();
        let Some(what) = (class.mutate)(&mut plan, job, random) else { continue };
        let own = text(&plan);
        if class.on_one && own.1 == graph && !known.contains(&own) && random.below(4) == 0 {
            let only = Some(random.below(job.program.mesh.world_size() as usize) as u64);
            all.push(Mutant { plan: plan.clone(), only, what: what.clone() });
        }
        if known.insert(own) {
            all.push(Mutant { plan, only: None, what });
        }
    }
    all
}

fn accepted(job: &Job, Mutant { plan, only, .. }: &Mutant) -> Result<(), String> {
    let Some(only) = only else {
        verify(&plan.program, &plan.graph).map_err(|why| why.to_string())?;
        same_when_erased(&plan.graph, &job.reference).map_err(|why| why.to_string())?;
        return LoadedSet::new(plan.program.clone()).map(drop).map_err(|why| panic!("it is proven and not loaded: {why}"));
    };
    let mesh = &job.program.mesh;
    let axes = (0..mesh.rank_axes().len() as u8).map(AxisId).collect();
    let of = (0..mesh.world_size()).map(|rank| usize::from(rank == *only)).collect();
    let set = PlanSet { axes, programs: vec![&job.program, &plan.program], of };
    verify_set(&set, &plan.graph).map(drop).map_err(|why| why.to_string())
}

fn harm(job: &Job, good: &Good, Mutant { plan, only, .. }: &Mutant) -> Option<String> {
    let ranks = 0..job.program.mesh.world_size();
    let of = |rank| if only.is_none_or(|only| only == rank) { &plan.program } else { &job.program };
    good.harm(&ranks.map(of).collect::<Vec<_>>())
}

#[test]
fn harmful_mutants_of_other_kinds_are_rejected() {
    keep_kernels_quiet();
    let jobs = jobs::all();
    report(by_class(&jobs, try_job));
}

fn try_job(job: &Job, number: u64, tallies: &mut BTreeMap<String, Tally>) {
    let mut random = Random(400 + number);
    let good = Good::of(&job.program, &mut random);
    let unchanged = Plan { program: job.program.clone(), graph: job.graph.clone() };
    let mut all = vec![Mutant { plan: unchanged, only: None, what: "the good plan".into() }];
    all.extend(GOOD.iter().flat_map(|class| mutants(job, class, &mut random)));
    tallies.entry(GOOD_PLANS.to_string()).or_default().equivalent += all.len();
    for mutant in &all {
        assert_eq!(harm(job, &good, mutant), None, "{}: {}: the judge is wrong", job.name, mutant.what);
        accepted(job, mutant).unwrap_or_else(|why| panic!("{}: {} is rejected: {why}", job.name, mutant.what));
    }
    for class in CLASSES {
        for mutant in mutants(job, class, &mut random) {
            let name = if mutant.only.is_some() { format!("{}, one rank", class.name) } else { class.name.to_string() };
            let tally = tallies.entry(name).or_default();
            let harm = harm(job, &good, &mutant);
            tally.harmful += usize::from(harm.is_some());
            match (harm, accepted(job, &mutant).is_ok()) {
                (Some(harm), true) => tally.missed.push(format!("{}: {}: {harm}", job.name, mutant.what)),
                (None, false) => tally.overcautious += 1,
                (None, true) => tally.equivalent += 1,
                (Some(_), false) => {}
            }
        }
    }
}

/// Where good plans are counted.
const GOOD_PLANS: &str = "good plans";

/// Prints past the test harness what became of the mutants, and demands what must hold.
fn report(mut all: BTreeMap<String, Tally>) {
    let good = all.remove(GOOD_PLANS).map_or(0, |tally| tally.equivalent);
    let least = |class: &Class| all.get(class.name).map_or(0, Tally::mutants);
    let least = CLASSES.iter().map(|class| (least(class), class.name)).min();
    let (mut text, sum) = table(all);
    text += &format!("{good} good plans are accepted\n");
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(sum.missed.is_empty(), "{} harmful mutants are accepted:\n{}", sum.missed.len(), sum.missed.concat());
    assert!(sum.mutants() >= 1500 && good >= 100, "{} mutants, {good} good plans", sum.mutants());
    assert!(least.is_some_and(|(least, _)| least >= 10), "of one class there are few: {least:?}");
    assert!(sum.equivalent * 10 <= sum.mutants(), "{} of {} mutants are equivalent", sum.equivalent, sum.mutants());
}
