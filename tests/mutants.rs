//! The verifier has teeth: every mutant of a good plan that does harm is rejected. Harm is decided by an interpreter of all ranks that
//! knows nothing of verifier and executor: another result on some rank, ranks that wait in vain, an access outside of memory, a
//! read of what nothing has written.

#[path = "../passes/tests/theorem/graphs.rs"]
#[allow(dead_code, reason = "shared with the theorem")]
mod graphs;
#[path = "mutants/harm.rs"]
mod harm;
#[path = "mutants/jobs.rs"]
mod jobs;
#[path = "mutants/mutate.rs"]
mod mutate;
#[path = "mutants/ranks.rs"]
mod ranks;
#[path = "../executor/tests/kernels/reference.rs"]
mod reference;
#[path = "../passes/tests/theorem/specs.rs"]
mod specs;
mod support;

use harm::Good;
use jobs::Job;
use mutate::{CLASSES, Class, Runs};
use shardc::failure::Failure;
use shardc::plan_dir::{self, Manifest};
use shardc_executor::run::Executor;
use shardc_executor::tensor::Tensor;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::{BufferId, PlanSet, Program};
use shardc_ir::plan_file::{decode, encode, hash};
use shardc_ir::verify_plan::{verify, verify_set};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use support::{Random, example, folder, shardc};

/// Mutants of each class that are tried for each job, on all ranks and on one.
const TRIES: usize = 14;

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
    let of_rank = (0..job.program.mesh.world_size()).map(|rank| usize::from(rank == only)).collect();
    verify_set(&PlanSet { programs: vec![&job.program, &mutant.program], of_rank }, &job.graph).is_ok()
}

/// What became of the mutants of a class.
#[derive(Default)]
struct Tally {
    mutants: usize,
    harmful: usize,
    rejected: usize,
    /// Rejected for no harm.
    overcautious: usize,
    /// Accepted without harm.
    equivalent: usize,
    /// Harmful and accepted.
    missed: Vec<String>,
}

/// The interpreter and the executor agree about good plans.
#[test]
fn good_plans_mean_the_same_to_the_executor() {
    for (number, job) in jobs::all().iter().enumerate() {
        let good = Good::of(&job.program, &mut Random(number as u64));
        let tensor = |id: BufferId, values: &[f64]| {
            let buffer = &job.program.buffers[id.index()];
            Tensor::from_f64(&buffer.shape, values).cast(buffer.dtype)
        };
        let mut executor = Executor::new(job.program.clone(), 1).expect("a good plan loads");
        for state in &job.program.states {
            executor.set_state(&state.name, &tensor(state.buffer, &good.start.states[&state.name])).expect("states fit");
        }
        executor.set_next_step(ranks::STEP);
        let batch = job.program.inputs.iter().map(|input| tensor(input.buffer, &good.start.inputs[&input.name])).collect();
        let outputs = executor.step(Arc::new(batch)).expect("a good plan runs").outputs;
        let states = job.program.states.iter().map(|s| (format!("state {}", s.name), executor.get_state(&s.name)));
        let outputs = outputs.into_iter().map(|(name, value)| (format!("output {name}"), Ok(value)));
        for (name, value) in states.chain(outputs) {
            let (found, expected) = (value.expect("no rank failed").to_f64(), good.result(&name).expect("it was computed"));
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
            assert!(found.iter().zip(expected).all(close), "{}, {name}: {found:?} {expected:?}", job.name);
        }
    }
}

/// Between them the good plans have every kind of collective and every form of kernel that models of these ops can have.
#[test]
fn good_plans_have_everything() {
    let jobs = jobs::all();
    let steps = || jobs.iter().flat_map(|job| &job.program.tasks).flat_map(|task| &task.steps);
    let forms: BTreeSet<&str> = steps().map(|step| step.kernel.form()).collect();
    let kinds: BTreeSet<String> = steps()
        .filter_map(|step| match &step.kernel {
            Kernel::Collective(call) => Some(format!("{:?}", call.kind)),
            _ => None,
        })
        .collect();
    assert_eq!((forms.len(), kinds.len()), (15, 4), "{forms:?} {kinds:?}");
    assert!(jobs.iter().any(|job| job.program.mesh.world_size() == 8));
    assert!(jobs.iter().any(|job| job.program.tasks.len() > 3), "some job computes something of all micro-batches first");
}

#[test]
fn harmful_mutants_are_rejected() {
    // Kernels of mutants panic where they reach outside their operands; all other panics are told.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let by_a_kernel = |at: &Location<'_>| ["reference.rs", "kernel.rs"].iter().any(|file| at.file().ends_with(file));
        if !info.location().is_some_and(by_a_kernel) {
            tell(info);
        }
    }));
    let jobs = jobs::all();
    let halves: Vec<BTreeMap<String, Tally>> = std::thread::scope(|scope| {
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
    let _ = std::panic::take_hook();
    let mut all: BTreeMap<String, Tally> = BTreeMap::new();
    for (name, tally) in halves.into_iter().flatten() {
        let sum = all.entry(name).or_default();
        sum.mutants += tally.mutants;
        sum.harmful += tally.harmful;
        sum.rejected += tally.rejected;
        sum.overcautious += tally.overcautious;
        sum.equivalent += tally.equivalent;
        sum.missed.extend(tally.missed);
    }
    report(&all);
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
    let tries = if only.is_some() { TRIES / 2 } else { TRIES };
    let mut seen = BTreeSet::new();
    let mut all = vec![];
    for _ in 0..tries {
        let mut program = job.program.clone();
        let Some(what) = (class.mutate)(&mut program, random) else { continue };
        if program != job.program && seen.insert(what.clone()) {
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
    tally.mutants += 1;
    tally.harmful += usize::from(harm.is_some());
    tally.rejected += usize::from(!accepted);
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

/// Prints past the test harness, which keeps `println` of passing tests to itself, and demands what must hold.
fn report(all: &BTreeMap<String, Tally>) {
    let total = |f: fn(&Tally) -> usize| all.values().map(f).sum::<usize>();
    let line = |name: &str, t: [usize; 5]| format!("{name:36} {:8} {:8} {:8} {:9} {:10}\n", t[0], t[1], t[2], t[3], t[4]);
    let mut text =
        format!("{:36} {:>8} {:>8} {:>8} {:>9} {:>10}\n", "", "mutants", "harmful", "rejected", "harmless", "equivalent");
    for (name, t) in all {
        text += &line(name, [t.mutants, t.harmful, t.rejected, t.overcautious, t.equivalent]);
    }
    let counts =
        [total(|t| t.mutants), total(|t| t.harmful), total(|t| t.rejected), total(|t| t.overcautious), total(|t| t.equivalent)];
    text += &line("all", counts);
    std::io::stderr().write_all(text.as_bytes()).expect("stderr is open");
    let missed: Vec<String> = all.iter().flat_map(|(name, t)| t.missed.iter().map(move |m| format!("{name}: {m}\n"))).collect();
    let [mutants, .., equivalent] = counts;
    assert!(mutants >= 5000, "{mutants} mutants");
    assert!(missed.is_empty(), "{} harmful mutants are accepted:\n{}", missed.len(), missed.concat());
    assert!(equivalent * 10 <= mutants, "{equivalent} of {mutants} mutants are equivalent");
}

/// Mutants in plan directories whose hashes fit: every command that opens one says in one diagnostic what is wrong.
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
    for (file, tries) in [("train.plan", 3), ("reference.plan", 1), ("eval.plan", 1)] {
        let path = here.join("plan").join(file);
        let (bytes, manifest) =
            (fs::read(&path).expect("a plan"), fs::read(here.join("plan/manifest.json")).expect("a manifest"));
        let good = decode(&bytes).expect("a good plan");
        let classes = CLASSES.iter().filter(|class| class.runs != Runs::OneRank);
        for class in classes.flat_map(|class| std::iter::repeat_n(class, tries)) {
            let mut program = good.clone();
            let Some(what) = (class.mutate)(&mut program, &mut random).filter(|_| program != good) else { continue };
            forge(&here.join("plan"), file, &encode(&program).expect("a mutant is a program"));
            let what = format!("{}: {what}", class.name);
            match catch_unwind(AssertUnwindSafe(|| plan_dir::read(&here.join("plan")))) {
                Err(_) => panic!("{what}: reading it panics"),
                Ok(Ok(_)) => accepted += 1,
                Ok(Err(Failure::User(diagnostics))) => {
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
