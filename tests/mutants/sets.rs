//! Mutants of sets of programs, one for each position or one for all: how classes make them, when
//! they are rejected, and when they do harm. A mutant is rejected where the set is refused, or its
//! graph is, by itself or beside the reference's. Harm is what the interpreter of all ranks finds,
//! in the reading in which every send waits for its receive.

use crate::harm::Good;
use crate::jobs::Compiled;
use crate::{Tally, by_class, keep_kernels_quiet, mutate, step_of, table, tries};
use shardc_executor::load::LoadedSet;
use shardc_executor::run::Executor;
use shardc_executor::world::World;
use shardc_ir::graph::Graph;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, aligned};
use shardc_ir::text::print;
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::verify_set;
use shardc_passes::{Context, Mode};
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A good set of plans.
pub struct Job {
    /// Its name in the report.
    pub name: &'static str,
    /// What was compiled.
    pub plans: Compiled,
}

/// Changes a set of programs; what it did, or nothing where it finds no place.
pub type Mutation = fn(&mut PlanSet, &mut Random) -> Option<String>;
/// Changes a set of programs, knowing the job.
type OfJob = fn(&mut PlanSet, &Job, &mut Random) -> Option<String>;
/// Changes a graph; what it did, or nothing where it finds no place.
type OfGraph = fn(&Graph, &mut Random) -> Option<(Graph, String)>;

/// How a class makes its mutants.
pub enum Mutate {
    /// It changes one program, at all its ranks or on one alone.
    Program(mutate::Mutation),
    /// It changes programs.
    Set(Mutation),
    /// It changes programs, knowing the job.
    OfJob(OfJob),
    /// It changes the graph, which is planned again.
    Graph(OfGraph),
}

/// A class of mutants: its name in the report, how many are tried for each job, and how.
pub struct Class(pub &'static str, pub usize, pub Mutate);

/// A class that changes one program.
pub const fn program(name: &'static str, tries: usize, mutate: mutate::Mutation) -> Class {
    Class(name, tries, Mutate::Program(mutate))
}

/// A class that changes programs.
pub const fn set(name: &'static str, tries: usize, mutate: Mutation) -> Class {
    Class(name, tries, Mutate::Set(mutate))
}

/// A class that changes programs, knowing the job.
pub const fn of_job(name: &'static str, tries: usize, mutate: OfJob) -> Class {
    Class(name, tries, Mutate::OfJob(mutate))
}

/// A class that changes the graph.
pub const fn graph(name: &'static str, tries: usize, mutate: OfGraph) -> Class {
    Class(name, tries, Mutate::Graph(mutate))
}

/// A changed set of programs, or none where planning refuses the graph, and the changed graph.
struct Mutant {
    set: Option<PlanSet>,
    graph: Option<Graph>,
    what: String,
}

/// The plans that planning makes of a graph, whatever the proof says of them.
pub fn replan(job: &Job, graph: &Graph) -> Option<PlanSet> {
    let cx = Context { spec: &job.plans.spec, mode: Mode::Train, verify: false };
    catch_unwind(AssertUnwindSafe(|| shardc_passes::planning::plan(graph, &cx).ok())).ok().flatten()
}

/// The arena is as large as its buffers need.
pub fn fit(program: &mut Program) {
    let ends = program.buffers.iter().map(|buffer| buffer.offset + buffer.slot_bytes * buffer.slots);
    program.arena_bytes = aligned(ends.max().unwrap_or_default());
}

/// The set without programs that no rank runs.
pub fn drop_unused(set: &mut PlanSet) {
    let mut new: BTreeMap<usize, usize> = BTreeMap::new();
    let mut programs = vec![];
    for of in &mut set.of {
        *of = *new.entry(*of).or_insert_with(|| {
            programs.push(set.programs[*of].clone());
            programs.len() - 1
        });
    }
    set.programs = programs;
}

/// One rank runs another program.
pub fn on_rank(set: &mut PlanSet, rank: u64, program: Program) {
    let mesh = set.mesh().clone();
    let of: Vec<usize> = (0..mesh.world_size()).map(|rank| set.at(&mesh, rank)).collect();
    set.axes = (0..mesh.rank_axes().len() as u8).map(AxisId).collect();
    set.of = of;
    set.of[rank as usize] = set.programs.len();
    set.programs.push(program);
    drop_unused(set);
}

/// Changes a program, one time in four on one rank alone.
fn change_one(set: &mut PlanSet, mutate: mutate::Mutation, random: &mut Random) -> Option<String> {
    if random.below(4) > 0 {
        let at = random.below(set.programs.len());
        return mutate(&mut set.programs[at], random).map(|what| format!("program {at}: {what}"));
    }
    let mesh = set.mesh().clone();
    let rank = random.below(mesh.world_size() as usize) as u64;
    let mut program = set.of_rank(&mesh, rank).clone();
    let what = mutate(&mut program, random)?;
    // A copy of a good program is another set, and no mutant.
    let is_changed = program != *set.of_rank(&mesh, rank);
    on_rank(set, rank, program);
    is_changed.then(|| format!("rank {rank}: {what}"))
}

/// Different mutants of a class.
fn mutants(job: &Job, Class(_, each, mutate): &Class, random: &mut Random) -> Vec<Mutant> {
    let good = &job.plans;
    let (mut known, mut all) = (BTreeSet::from([print(&good.graph)]), vec![]);
    for _ in 0..tries(*each) {
        let mut set = good.set.clone();
        let what = match mutate {
            Mutate::Program(mutate) => change_one(&mut set, *mutate, random),
            Mutate::Set(mutate) => mutate(&mut set, random),
            Mutate::OfJob(mutate) => mutate(&mut set, job, random),
            Mutate::Graph(mutate) => {
                let Some((graph, what)) = mutate(&good.graph, random) else { continue };
                if known.insert(print(&graph)) {
                    all.push(Mutant { set: replan(job, &graph), graph: Some(graph), what });
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
pub fn of_ranks(set: &PlanSet) -> Vec<&Program> {
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

/// Every harmful mutant of the jobs is rejected; there are `least` mutants or more, of each class
/// some, and at most a tenth is without effect.
pub fn harmful_are_rejected(jobs: &[Job], classes: &[Class], seed: u64, least: usize) {
    keep_kernels_quiet();
    let all = by_class(jobs, |job, number, tallies| try_job(job, classes, seed + number, tallies));
    let tried = all.len();
    let (text, sum) = table(all);
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(sum.missed.is_empty(), "{} harmful mutants are accepted:\n{}", sum.missed.len(), sum.missed.concat());
    assert!(sum.mutants() >= least && tried == classes.len(), "{} mutants of {tried} classes", sum.mutants());
    assert!(sum.equivalent * 10 <= sum.mutants(), "{} of {} mutants are equivalent", sum.equivalent, sum.mutants());
}

/// Tries the mutants of all classes on one job.
fn try_job(job: &Job, classes: &[Class], seed: u64, tallies: &mut BTreeMap<String, Tally>) {
    let mut random = Random(seed);
    let ways = Good::of_all_ways(&of_ranks(&job.plans.set), &mut random);
    let unchanged = Mutant { set: Some(job.plans.set.clone()), graph: None, what: "the good plan".to_string() };
    accepted(job, &unchanged).unwrap_or_else(|why| panic!("{}: the good plan is rejected: {why}", job.name));
    for class in classes {
        for mutant in mutants(job, class, &mut random) {
            let tally = tallies.entry(class.0.to_string()).or_default();
            // Another graph may place arrays elsewhere.
            let harm = mutant.set.as_ref().and_then(|set| {
                ways.iter().find_map(|good| match mutant.graph {
                    None => good.harm(&of_ranks(set)),
                    Some(_) => good.harm_anywhere(&of_ranks(set)),
                })
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

/// The interpreter and the executor agree about good plans.
pub fn agree_with_the_executor(jobs: &[Job]) {
    agree_within(jobs, 1e-9);
}

/// As [`agree_with_the_executor`], where results may be off by so much of their size, or of 1.
pub fn agree_within(jobs: &[Job], tolerance: f64) {
    let ways = |(number, job): (usize, &Job)| Good::of_all_ways(&of_ranks(&job.plans.set), &mut Random(number as u64));
    let goods = jobs.iter().enumerate().map(ways);
    for (job, good) in jobs.iter().zip(goods).flat_map(|(job, goods)| goods.into_iter().map(move |good| (job, good))) {
        let set = &job.plans.set;
        let mut executor = Executor::new(set.clone(), 1).expect("a good plan loads");
        let outputs = step_of(&mut executor, &good).expect("a good plan runs").outputs;
        let states = set.states().into_iter().map(|(_, s)| (format!("state {}", s.name), executor.get_state(&s.name)));
        let outputs = outputs.into_iter().map(|(name, value)| (format!("output {name}"), Ok(value)));
        for (name, value) in states.chain(outputs) {
            let (found, expected) = (value.expect("no rank failed").to_f64(), good.result(&name).expect("it was computed"));
            let close =
                |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * b.abs().max(1.0);
            assert!(found.iter().zip(expected).all(close), "{}, {name}: {found:?} {expected:?}", job.name);
        }
    }
}

/// Whatever a set of programs is, the executor refuses it, runs it or ends with an error that is no
/// panic; and it ends, whoever waits for whom. How many sets are refused, fail and run.
pub fn do_no_harm_to_the_executor(jobs: &[Job], classes: &[Class], seed: u64) -> [usize; 3] {
    let (mut refused, mut failed, mut ran) = (0, 0, 0);
    for (number, job) in jobs.iter().enumerate() {
        let mut random = Random(seed + number as u64);
        let good = Good::of_ranks(&of_ranks(&job.plans.set), &mut random);
        for class in classes.iter().filter(|Class(_, _, mutate)| !matches!(mutate, Mutate::Graph(_))) {
            let Some(Mutant { set: Some(set), what, .. }) = mutants(job, class, &mut random).pop() else { continue };
            // Every second one with state variables that replicas hold in common.
            let world = if (refused + failed + ran) % 2 == 0 { World::default() } else { World::default().together() };
            let Ok(mut executor) = Executor::within(world, set, 1) else {
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
    [refused, failed, ran]
}
