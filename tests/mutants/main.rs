//! The verifier has teeth: every mutant of a good plan that does harm is rejected. Harm is decided
//! by an interpreter of all ranks that knows nothing of verifier and executor: another result on
//! some rank, ranks that wait in vain, an access outside of memory, a read of what nothing has
//! written.

mod foreign;
mod harm;
mod jobs;
mod mutate;
mod pipelines;
mod precision;
mod ranks;
mod recompute;
mod rewrite;
mod sets;
#[path = "../support/mod.rs"]
mod support;
mod waits;
mod zero;

use harm::Good;
use jobs::Job;
use mutate::{CLASSES, Class, Runs};
use shardc::error::Error;
use shardc::plan_dir::{self, Manifest, Trust};
use shardc_executor::load::LoadedSet;
use shardc_executor::run::{ExecutionError, Executor, StepResult};
use shardc_executor::tensor::Tensor;
use shardc_executor::world::World;
use shardc_ir::kernel::Kernel;
use shardc_ir::mesh::AxisId;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferId, Program};
use shardc_ir::plan_file::{decode, encode, hash};
use shardc_ir::verify_plan::erasure::same_when_erased;
use shardc_ir::verify_plan::{verify, verify_set};
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use support::{example, folder, shardc};

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Mutants of each class that are tried for each job, on all ranks and on one.
const TRIES: usize = 14;
/// Mutants of each job's graph that are tried.
const GRAPHS: usize = 150;

/// `default` mutants, or so many times as many as `SHARDC_MUTANTS` says.
fn tries(default: usize) -> usize {
    let times = std::env::var("SHARDC_MUTANTS").ok().map(|times| times.parse::<usize>().expect("SHARDC_MUTANTS is a number"));
    default * times.unwrap_or(1)
}

/// A changed plan, on all ranks or on one.
struct Mutant {
    program: Program,
    /// The one rank that runs it, if it is not all.
    only: Option<u64>,
    what: String,
}

/// Whether the verifier accepts a mutant.
fn accepted(job: &Job, mutant: &Mutant) -> bool {
    let Some(only) = mutant.only else { return verify(&mutant.program, &job.graph).is_ok() };
    let mesh = &job.program.mesh;
    let axes = (0..mesh.rank_axes().len() as u8).map(AxisId).collect();
    let of = (0..mesh.world_size()).map(|rank| usize::from(rank == only)).collect();
    verify_set(&PlanSet { axes, programs: vec![&job.program, &mutant.program], of }, &job.graph).is_ok()
}

/// The outcomes for the mutants of a class.
#[derive(Default)]
struct Tally {
    harmful: usize,
    /// Harmful and accepted.
    missed: Vec<String>,
    /// Rejected for no harm.
    overcautious: usize,
    /// Accepted without harm.
    equivalent: usize,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.harmful += other.harmful;
        self.missed.extend(other.missed);
        self.overcautious += other.overcautious;
        self.equivalent += other.equivalent;
    }

    fn mutants(&self) -> usize {
        self.harmful + self.overcautious + self.equivalent
    }

    fn line(&self, name: &str) -> String {
        let rejected = self.harmful - self.missed.len() + self.overcautious;
        let Tally { harmful, overcautious, equivalent, .. } = self;
        format!("{name:36} {:8} {harmful:8} {rejected:9} {overcautious:20} {equivalent:11}\n", self.mutants())
    }
}

/// The interpreter and the executor agree about good plans.
#[test]
fn good_plans_mean_the_same_to_the_executor() {
    for (number, job) in jobs::all().iter().enumerate() {
        let good = Good::of(&job.program, &mut Random(number as u64));
        let mut executor = Executor::new(job.program.clone(), 1).expect("a good plan loads");
        let outputs = step_of(&mut executor, &good).expect("a good plan runs").outputs;
        let states = job.program.states.iter().map(|s| (format!("state {}", s.name), executor.get_state(&s.name)));
        let outputs = outputs.into_iter().map(|(name, value)| (format!("output {name}"), Ok(value)));
        for (name, value) in states.chain(outputs) {
            let (found, expected) = (value.expect("no rank failed").to_f64(), good.result(&name).expect("it was computed"));
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            assert!(found.iter().zip(expected).all(close), "{}, {name}: {found:?} {expected:?}", job.name);
        }
    }
}

/// Runs one step of an executor from where a good plan begins.
fn step_of(executor: &mut Executor, good: &Good) -> Result<StepResult, ExecutionError> {
    let set = executor.programs().clone();
    let tensor = |program: &Program, id: BufferId, values: &[f64]| {
        let buffer = &program.buffers[id.index()];
        Tensor::from_f64(&buffer.shape, values).cast(buffer.dtype)
    };
    for (program, state) in set.states() {
        executor.set_state(&state.name, &tensor(program, state.buffer, &good.start.states[&state.name]))?;
    }
    executor.set_next_step(ranks::STEP);
    let inputs = set.inputs().into_iter();
    let batch = inputs.map(|(program, input)| tensor(program, input.buffer, &good.start.inputs[&input.name])).collect();
    executor.step(Arc::new(batch))
}

/// Between them the good plans have every kind of collective and every form of kernel that models
/// of these ops can have.
#[test]
fn good_plans_have_everything() {
    let jobs = jobs::all();
    let steps = || jobs.iter().flat_map(|job| &job.program.tasks).flat_map(|task| &task.steps);
    let forms: BTreeSet<&str> = steps().map(|step| step.kernel.name()).collect();
    let kinds: BTreeSet<String> = steps()
        .filter_map(|step| match &step.kernel {
            Kernel::Collective(call) => Some(format!("{:?}", call.kind)),
            _ => None,
        })
        .collect();
    assert_eq!((forms.len(), kinds.len()), (16, 4), "{forms:?} {kinds:?}");
    assert!(jobs.iter().any(|job| job.program.mesh.world_size() == 8));
    assert!(jobs.iter().any(|job| job.program.tasks.len() > 3), "some job computes something of all micro-batches first");
}

/// Kernels of mutants panic where they reach outside their operands, and planning where a graph is
/// wrong; all other panics are told.
fn keep_kernels_quiet() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let expected = |at: &Location<'_>| {
            let files = ["reference.rs", "kernel.rs", "attention.rs", "fuse.rs"];
            let folders = ["passes/src/planning", "ir/src/ops", "ir/src/lower"];
            files.iter().any(|file| at.file().ends_with(file)) || folders.iter().any(|folder| at.file().contains(folder))
        };
        if !info.location().is_some_and(expected) {
            tell(info);
        }
    }));
}

#[test]
fn harmful_mutants_are_rejected() {
    keep_kernels_quiet();
    let jobs = jobs::all();
    report(by_class(&jobs, try_job));
}

/// The tallies of all classes, over jobs.
fn by_class<J: Sync>(jobs: &[J], try_job: impl Fn(&J, u64, &mut BTreeMap<String, Tally>) + Sync) -> BTreeMap<String, Tally> {
    let of_jobs = parallel::map(jobs.len(), |number| {
        let mut tallies = BTreeMap::new();
        try_job(&jobs[number], number as u64, &mut tallies);
        tallies
    });
    let mut all: BTreeMap<String, Tally> = BTreeMap::new();
    for (name, tally) in of_jobs.into_iter().flatten() {
        all.entry(name).or_default().add(tally);
    }
    all
}

fn try_job(job: &Job, number: u64, tallies: &mut BTreeMap<String, Tally>) {
    let mut random = Random(number);
    let good = Good::of(&job.program, &mut random);
    let unchanged = Mutant { program: job.program.clone(), only: None, what: String::new() };
    assert!(accepted(job, &unchanged), "the good plan of {} is rejected: {:?}", job.name, verify(&job.program, &job.graph));
    let ranks = job.program.mesh.world_size();
    for class in CLASSES {
        for alone in [false, true] {
            if class.runs == if alone { Runs::AllRanks } else { Runs::OneRank } {
                continue;
            }
            let name = if alone { format!("{}, one rank", class.name) } else { class.name.to_string() };
            let tally = tallies.entry(name).or_default();
            for mutant in mutants(job, class, alone.then(|| random.below(ranks as usize) as u64), &mut random) {
                judge(job, &good, &mutant, tally);
            }
        }
    }
}

/// Different mutants of a class.
fn mutants(job: &Job, class: &Class, only: Option<u64>, random: &mut Random) -> Vec<Mutant> {
    let tries = tries(if only.is_some() { TRIES / 2 } else { TRIES });
    let mut all: Vec<Mutant> = vec![];
    for _ in 0..tries {
        let mut program = job.program.clone();
        let Some(what) = (class.mutate)(&mut program, random) else { continue };
        if program != job.program && all.iter().all(|other| other.program != program) {
            all.push(Mutant { program, only, what });
        }
    }
    all
}

fn judge(job: &Job, good: &Good, mutant: &Mutant, tally: &mut Tally) {
    let ranks = 0..job.program.mesh.world_size();
    let programs: Vec<&Program> =
        ranks.map(|r| if mutant.only.is_none_or(|only| only == r) { &mutant.program } else { &job.program }).collect();
    let harm = good.harm(&programs);
    let accepted = accepted(job, mutant);
    if accepted && mutant.only.is_none() {
        LoadedSet::new(mutant.program.clone())
            .unwrap_or_else(|why| panic!("{}: {} is proven and not loaded: {why}", job.name, mutant.what));
    }
    tally.harmful += usize::from(harm.is_some());
    match (harm, accepted) {
        (Some(harm), true) => {
            let only = mutant.only.map_or(String::new(), |rank| format!(" on rank {rank} alone"));
            tally.missed.push(format!("{}: {}{only}: {harm}", job.name, mutant.what));
        }
        (None, false) => tally.overcautious += 1,
        (None, true) => tally.equivalent += 1,
        (Some(_), false) => {}
    }
}

/// A line for each class and one for all of them, and what they come to.
fn table(all: BTreeMap<String, Tally>) -> (String, Tally) {
    let header = ["mutants", "harmful", "rejected", "rejected for no harm", "equivalent"];
    let mut text = format!("{:36} {:>8} {:>8} {:>9} {:>20} {:>11}\n", "", header[0], header[1], header[2], header[3], header[4]);
    let mut sum = Tally::default();
    for (name, tally) in all {
        text += &tally.line(&name);
        let missed = tally.missed.iter().map(|missed| format!("{name}: {missed}\n")).collect();
        sum.add(Tally { missed, ..tally });
    }
    text += &sum.line("all");
    (text, sum)
}

/// Prints past the test harness, which keeps `println` of passing tests to itself, and demands what
/// must hold.
fn report(all: BTreeMap<String, Tally>) {
    let (text, sum) = table(all);
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(sum.mutants() >= 5000, "{} mutants", sum.mutants());
    assert!(sum.missed.is_empty(), "{} harmful mutants are accepted:\n{}", sum.missed.len(), sum.missed.concat());
    assert!(sum.equivalent * 10 <= sum.mutants(), "{} of {} mutants are equivalent", sum.equivalent, sum.mutants());
}

/// A mistake that is in the graph already, so that all ranks, kernels and buffers agree on it, is
/// found by the letters of the graph or beside the reference's graph; what neither finds does no
/// harm.
#[test]
fn harmful_graphs_are_rejected() {
    keep_kernels_quiet();
    let (mut by_letters, mut by_reference, mut by_plan, mut harmful, mut harmless) = (0, 0, 0, 0, 0);
    let mut missed = vec![];
    for (number, job) in jobs::all().iter().enumerate() {
        let mut random = Random(100 + number as u64);
        let good = Good::of(&job.program, &mut random);
        same_when_erased(&job.graph, &job.reference).expect("the good graph is its reference's");
        for _ in 0..tries(GRAPHS) {
            let Some((graph, what)) = rewrite::mutate(&job.graph, &mut random) else { continue };
            let program = catch_unwind(AssertUnwindSafe(|| job.plan(&graph))).ok().and_then(Result::ok);
            let harm = program.as_ref().and_then(|p| good.harm(&vec![p; job.program.mesh.world_size() as usize]));
            harmful += usize::from(harm.is_some());
            if shardc_ir::verify::verify(&graph).is_err() {
                by_letters += 1;
            } else if same_when_erased(&graph, &job.reference).is_err() {
                by_reference += 1;
            } else if program.is_none_or(|program| verify(&program, &graph).is_err()) {
                by_plan += 1;
            } else if let Some(harm) = harm {
                missed.push(format!("{}: {what}: {harm}\n", job.name));
            } else {
                harmless += 1;
            }
        }
    }
    let text = format!(
        "graphs: {by_letters} rejected by letters, {by_reference} beside the reference, {by_plan} for their plan; {harmful} harmful; \
         {harmless} accepted without harm\n"
    );
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    assert!(missed.is_empty(), "{} harmful graphs are accepted:\n{}", missed.len(), missed.concat());
    assert!(harmful > 500 && by_letters > 500 && by_reference > 100, "{text}");
}

/// Whatever a program is, the executor refuses it, runs it or ends with an error that is no panic;
/// and it ends.
#[test]
fn mutants_do_no_harm_to_the_executor() {
    let (mut refused, mut failed, mut ran) = (0, 0, 0);
    for (number, job) in jobs::all().iter().enumerate() {
        let mut random = Random(200 + number as u64);
        let good = Good::of(&job.program, &mut random);
        for class in CLASSES.iter().filter(|class| class.runs != Runs::OneRank) {
            let Some(mutant) = mutants(job, class, None, &mut random).pop() else { continue };
            // Every second one with state variables that replicas hold in common.
            let world = if (refused + failed + ran) % 2 == 0 { World::default() } else { World::default().together() };
            let Ok(mut executor) = Executor::within(world, mutant.program, 1) else {
                refused += 1;
                continue;
            };
            match step_of(&mut executor, &good) {
                Err(error) if error.message.contains("internal error") => panic!("{}: {}: {error}", job.name, mutant.what),
                Err(_) => failed += 1,
                Ok(_) => ran += 1,
            }
        }
    }
    println!("{refused} mutants cannot be loaded, {failed} fail, {ran} run");
    assert!(refused > 50 && ran > 50, "{refused} {failed} {ran}");
}

/// Mutants in plan directories whose hashes fit: every command that opens one says in one
/// diagnostic what is wrong.
#[test]
fn forged_plan_directories_are_refused() {
    let here = folder("forged-directories");
    let (model, spec) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", "plan"]).expect(0);
    let data = example("digits/train.npz");
    let train = ["train", "plan", "--data", &data, "--steps", "1"];
    let (check, eval) = (["check", "plan", "--data", &data], ["eval", "plan", "--data", &data]);
    let commands: [&[&str]; 4] = [&["verify", "plan"], &train, &check, &eval];
    let mut random = Random(11);
    let (mut refused, mut accepted) = (0, 0);
    for (file, tries) in [("train.plan", 4), ("eval.plan", 1)] {
        let path = here.join("plan").join(file);
        let (bytes, manifest) =
            (fs::read(&path).expect("a plan"), fs::read(here.join("plan/manifest.json")).expect("a manifest"));
        let good = decode(&bytes).expect("a good plan").first().clone();
        let classes = CLASSES.iter().filter(|class| class.runs != Runs::OneRank);
        for class in classes.flat_map(|class| std::iter::repeat_n(class, tries)) {
            let mut program = good.clone();
            let Some(what) = (class.mutate)(&mut program, &mut random).filter(|_| program != good) else { continue };
            forge(&here.join("plan"), file, &encode(&program.clone().into()).expect("a mutant is a program"));
            let what = format!("{}: {what}", class.name);
            match catch_unwind(AssertUnwindSafe(|| plan_dir::read(&here.join("plan"), Trust::Nothing))) {
                Err(_) => panic!("{what}: reading it panics"),
                Ok(Ok(_)) => accepted += 1,
                Ok(Err(Error::User(diagnostics))) => {
                    assert_eq!(diagnostics.len(), 1, "{what}");
                    let ran = shardc(&here, commands[refused % 4]);
                    assert!(ran.code == 1 && ran.err.matches("error: ").count() == 1, "{what}: {ran:?}");
                    refused += 1;
                }
                Ok(Err(other)) => panic!("{what}: {other:?}"),
            }
        }
        fs::write(&path, bytes).expect("the good plan is written back");
        fs::write(here.join("plan/manifest.json"), manifest).expect("its manifest is written back");
    }
    for command in commands {
        shardc(&here, command).expect(0);
    }
    assert!(refused > 60 && accepted * 10 <= refused, "{refused} forged plans are refused, {accepted} are not");
}

/// Writes a file of a plan directory, and the hashes that fit it.
fn forge(folder: &Path, file: &str, bytes: &[u8]) {
    fs::write(folder.join(file), bytes).expect("a file can be written");
    let path = folder.join("manifest.json");
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).expect("a manifest")).expect("a good manifest");
    manifest.files.insert(file.to_string(), hash(bytes));
    let programs = manifest.files.iter().filter(|(name, _)| name.ends_with(".plan"));
    manifest.plan_hash = hash(programs.map(|(name, hash)| format!("{name} {hash}\n")).collect::<String>().as_bytes());
    fs::write(path, serde_json::to_vec_pretty(&manifest).expect("JSON")).expect("a manifest can be written");
}
