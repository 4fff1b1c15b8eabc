//! The proof of launch tables has teeth: every mutant that does harm is refused. Harm is decided by
//! a device that knows nothing of the proof: some order of the queues in which the host, another
//! rank or the next step sees something else than in the order of the plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command;
mod device;
#[path = "../support/job.rs"]
mod job;
mod mutate;
#[path = "../support/mod.rs"]
mod support;

use device::{Device, First, ORDERS, Seen};
use mutate::CLASSES;
use shardc::{Options, compile};
use shardc_codegen::program::Kernels;
use shardc_codegen::table::{Part, Range, Run, Table, Work, check, check_seconds, derive};
use shardc_ir::plan::Program;
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Models, meshes, micro-batches and lines of the jobs.
const JOBS: [(&str, &str, u64, &str); 8] = [
    ("mlp", "dp=2", 1, ""),
    ("mlp", "dp=2", 4, "zero stage=1 axis=dp\n"),
    ("resnet", "dp=2", 2, "batchnorm statistics=microbatch\n"),
    ("inception", "dp=2", 1, "zero stage=3 axis=dp\n"),
    ("resnet", "pp=2", 4, "pipeline axis=pp schedule=1f1b\nbatchnorm statistics=microbatch\n"),
    ("mlp", "pp=2 dp=2", 4, "pipeline axis=pp schedule=zb-h1\n"),
    ("mlp", "dp=1", 1, ""),
    ("mlp", "pp=2 tp=2", 4, "pipeline axis=pp schedule=1f1b\n"),
];

/// Mutants of each class that are tried for each program; `SHARDC_MUTANTS` times as many where it
/// says so.
const TRIES: usize = 24;

fn tries() -> usize {
    let times = std::env::var("SHARDC_MUTANTS").ok().map(|times| times.parse::<usize>().expect("SHARDC_MUTANTS is a number"));
    TRIES * times.unwrap_or(1)
}

/// The programs of training of a job.
fn programs(model: &str, mesh: &str, microbatches: u64, lines: &str) -> Vec<Program> {
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let here = support::folder(&format!("launches-{model}-{}", FOLDERS.fetch_add(1, Relaxed)));
    std::fs::write(here.join("job.shard"), job::spec(model, mesh, microbatches, lines)).unwrap();
    let spec = shardc_frontend::spec::load(&here.join("job.shard")).unwrap_or_else(|e| panic!("{e:?}"));
    let options = Options { train: true, weights: true, verify: false, certify: false };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(model).join("model.onnx");
    let compiled = compile(&model, &spec, &options).unwrap_or_else(|e| panic!("{model:?} {mesh}: {e:?}"));
    compiled.plans.training.unwrap().programs.programs
}

/// A program with its table, and what is seen of that.
struct Subject {
    program: Program,
    table: Table,
    kernels: Kernels,
}

impl Subject {
    fn new(program: Program) -> Subject {
        let mut kernels = Kernels::default();
        let table = derive(&program, &mut kernels);
        assert!(kernels.missing.is_empty(), "{:?}", kernels.missing);
        Subject { program, table, kernels }
    }

    /// How a mutant does harm, if it does in some order of the queues.
    fn harm(&self, mutant: &Table) -> Option<String> {
        let device = Device::new(&self.program, &[&self.table, mutant], &self.kernels);
        let good = device.run(&self.table, &self.program, First::Table).expect("the table stays inside its memory");
        ORDERS.into_iter().find_map(|first| match device.run(mutant, &self.program, first) {
            Ok(seen) if seen == good => None,
            Ok(_) => Some(format!("{first:?}: something else is seen")),
            Err(why) => Some(format!("{first:?}: {why}")),
        })
    }
}

/// The outcomes for the mutants of a class.
#[derive(Default)]
struct Tally {
    tried: usize,
    harmful: usize,
    refused: usize,
    missed: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.tried += other.tried;
        self.harmful += other.harmful;
        self.refused += other.refused;
        self.missed.extend(other.missed);
    }
}

#[test]
fn harmful_mutants_are_refused() {
    let of_jobs = parallel::map(JOBS.len(), |number| {
        let (model, mesh, microbatches, lines) = JOBS[number];
        let all = programs(model, mesh, microbatches, lines).into_iter().enumerate();
        all.map(move |(place, program)| (number, place, program)).collect::<Vec<_>>()
    });
    let all: Vec<(usize, usize, Program)> = of_jobs.into_iter().flatten().collect();
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for (class, tally) in parallel::map(all.len(), |at| tried(&all[at])).into_iter().flatten() {
        tallies.entry(class).or_default().add(tally);
    }
    report(&tallies);
}

/// The mutants of the program at a place of a job's, by class.
fn tried((number, place, program): &(usize, usize, Program)) -> Vec<(&'static str, Tally)> {
    let (model, mesh, microbatches, _) = JOBS[*number];
    let mut subject = Subject::new(program.clone());
    let name = format!("{model} {mesh} {microbatches} {place}");
    let checked = check(&subject.table, &subject.program, &mut subject.kernels);
    checked.unwrap_or_else(|why| panic!("{name}: the table is refused: {why}"));
    assert_eq!(subject.harm(&subject.table), None, "{name}");
    let mut random = Random(*number as u64 * 100 + *place as u64);
    let tries_of = |(class, mutate): mutate::Class| {
        let mut tally = Tally::default();
        for _ in 0..tries() {
            let mut mutant = subject.table.clone();
            let Some(what) = mutate(&mut mutant, &mut random).filter(|_| mutant != subject.table) else { continue };
            let is_refused = check(&mutant, &subject.program, &mut subject.kernels).is_err();
            let harm = is_readable(&mutant).then(|| subject.harm(&mutant)).flatten();
            tally.tried += 1;
            tally.refused += usize::from(is_refused);
            tally.harmful += usize::from(harm.is_some());
            if let Some(harm) = harm.filter(|_| !is_refused) {
                tally.missed.push(format!("{name}, {class}: {what}: {harm}"));
            }
        }
        (class, tally)
    };
    CLASSES.into_iter().map(tries_of).collect()
}

/// Whether a device can be told all rows of a table: else it cannot even begin.
fn is_readable(mutant: &Table) -> bool {
    let rows = mutant.first_rows()[mutant.sections.len()];
    let waits = mutant.sections.iter().flat_map(|section| &section.rows).flat_map(|row| &row.waits);
    let is_there = |run: &Run| mutant.sections.get(run.section as usize).is_some();
    mutant.order.iter().all(is_there) && { waits }.all(|on| (*on as usize) < rows)
}

fn report(tallies: &BTreeMap<&str, Tally>) {
    let mut to = std::io::stderr().lock();
    for (class, Tally { tried, harmful, refused, .. }) in tallies {
        writeln!(to, "{class:20} {tried:5} mutants, {harmful:5} harmful, {refused:5} refused").unwrap();
    }
    let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
    let (tried, harmful, refused) = (sum(|t| t.tried), sum(|t| t.harmful), sum(|t| t.refused));
    writeln!(to, "{tried} mutants of launch tables, {harmful} harmful, {refused} refused").unwrap();
    let missed: Vec<&String> = tallies.values().flat_map(|tally| &tally.missed).collect();
    assert!(missed.is_empty(), "{} harmful mutants are accepted:\n{missed:#?}", missed.len());
    assert!(tried >= 2000 && harmful * 3 > tried * 2, "{tried} mutants, {harmful} harmful");
    for (class, tally) in tallies {
        assert!(tally.harmful > 0, "no mutant of `{class}` does harm");
    }
}

/// The part of the proof that is of products with two steps refuses what the rest would not see: a
/// reader of what is never written, a step that has passed another, a result over an operand.
#[test]
fn products_with_two_steps_lose_nothing() {
    let [program] = &programs("gpt2", "dp=1", 1, "")[..] else { panic!("one program") };
    let subject = Subject::new(program.clone());
    assert_eq!(check_seconds(&subject.table, program), Ok(()));
    let refused = |change: &dyn Fn(&mut Table)| {
        let mut mutant = subject.table.clone();
        change(&mut mutant);
        check_seconds(&mutant, program).unwrap_err().to_string()
    };
    let (mut absent, mut passed, mut over) = (0, 0, 0);
    for (at, section) in subject.table.sections.iter().enumerate() {
        let Part::Task(task) = section.part else { continue };
        let steps = &program.tasks[task as usize].steps;
        for (number, row) in section.rows.iter().enumerate().filter(|(_, row)| row.second.is_some()) {
            let [own, second] = [row.step, row.second].map(|step| &steps[step.unwrap() as usize]);
            let left_out = own.writes[0];
            if second.reads.contains(&left_out) {
                let buffer = &program.buffers[left_out.buffer.index()];
                let range = Range { start: buffer.offset, bytes: 4, slots: 1, slot_bytes: 0 };
                let why = refused(&|table| {
                    let next = table.sections[at].rows[number + 1..].iter_mut().find_map(|row| match &mut row.work {
                        Work::Launch { pointers, .. } => pointers.iter_mut().find(|pointer| pointer.is_read),
                        _ => None,
                    });
                    next.expect("a kernel behind it").range = range;
                });
                absent += usize::from(why.contains("which a product did not write"));
            }
            // The step that reads what the product makes is not the other side of it.
            let reader = steps.iter().position(|step| step.reads.iter().any(|read| second.writes.contains(read)));
            if let Some(reader) = reader.filter(|reader| *reader as u32 > row.second.unwrap()) {
                let why = refused(&|table| {
                    let rows = &mut table.sections[at].rows;
                    let there = rows.iter().position(|row| row.step == Some(reader as u32)).unwrap_or(number);
                    rows.swap(number, there);
                });
                passed += usize::from(why.contains("on the other side of"));
            }
            let why = refused(&|table| {
                if let Work::Product { a, d, .. } = &mut table.sections[at].rows[number].work {
                    *d = *a;
                }
            });
            over += usize::from(why.contains("writes what it reads"));
        }
    }
    assert!(absent > 0 && passed > 0 && over > 10, "{absent} {passed} {over}");
}

/// What is seen of a good table is the same in every order of the queues, and is not the same of a
/// table without its waits.
#[test]
fn the_device_sees_races() {
    let [program] = &programs("mlp", "dp=2", 1, "")[..] else { panic!("one program") };
    let subject = Subject::new(program.clone());
    let mut bare = subject.table.clone();
    bare.sections.iter_mut().flat_map(|section| &mut section.rows).for_each(|row| row.waits.clear());
    let device = Device::new(&subject.program, &[&subject.table], &subject.kernels);
    let seen = |table: &Table| -> Vec<Seen> {
        ORDERS.into_iter().map(|first| device.run(table, &subject.program, first).unwrap()).collect()
    };
    let good = seen(&subject.table);
    assert!(good.iter().all(|seen| *seen == good[0]));
    let bare = seen(&bare);
    assert!(bare[0] == good[0] && bare[1..].iter().any(|seen| *seen != good[0]));
}
