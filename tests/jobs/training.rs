//! A training of the library: what each step gives, and how it ends.

use shardc::checkpoint::read::Checkpoint;
use shardc::plan_dir::Trust;
use shardc::training::{End, Options, Prepared, Saving, Validating};
use shardc::{Error, Job, Machine};
use shardc_executor::inject::Injections;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const SPEC: &str = "batch 64\nloss cross_entropy logits=logits labels=y\n";

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("training-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn job(here: &Path, lines: &str) -> Job {
    fs::write(here.join("job.shard"), format!("{SPEC}{lines}")).unwrap();
    Job::open("examples/digits/model.onnx", here.join("job.shard")).unwrap()
}

fn digits(steps: u64) -> Options {
    Options { steps: Some(steps), ..Options::over("examples/digits/train.npz") }
}

#[test]
fn it_stops_between_two_steps_and_goes_on_to_the_same_end() {
    let (here, lines) = (folder("stops"), "optimizer sgd lr=0.1 momentum=0.9\n");
    let whole = job(&here, lines).train(digits(6)).unwrap().run(|_| {}).unwrap();
    assert_eq!((whole.summary.steps, whole.summary.end), (6, Some(End::Done)));

    let saving = || Some(Saving::to(here.join("run")));
    let stop = Rc::new(Cell::new(false));
    let asked = stop.clone();
    let prepared = Prepared::new(job(&here, lines), Options { saving: saving(), ..digits(6) }).unwrap();
    let mut training = prepared.start(None, move || asked.get()).unwrap();
    for number in 0..3 {
        assert_eq!(training.step().unwrap().unwrap().metrics.step, number);
    }
    stop.set(true);
    assert!(training.step().unwrap().is_none() && training.step().unwrap().is_none());
    let stopped = training.finish().unwrap();
    assert_eq!((stopped.summary.steps, stopped.summary.end), (3, Some(End::Stopped)));
    assert_eq!(stopped.saved.last().unwrap().step, 3);

    let resume = Checkpoint::find(&here.join("run")).unwrap();
    let rest = job(&here, lines).train(Options { resume, saving: saving(), ..digits(6) }).unwrap().run(|_| {}).unwrap();
    assert_eq!((rest.summary.steps, rest.summary.end), (3, Some(End::Done)));
    assert_eq!(rest.summary.last.unwrap().loss, whole.summary.last.unwrap().loss);
    for (_, state) in whole.executor.programs().states() {
        let value = |of: &shardc_executor::run::Executor| of.get_state(&state.name).unwrap();
        assert_eq!(value(&rest.executor), value(&whole.executor), "{}", state.name);
    }
}

#[test]
fn a_checkpoint_is_kept_whenever_it_is_asked_for() {
    let (here, lines) = (folder("asked"), "optimizer sgd lr=0.1\n");
    let mut training = job(&here, lines).train(digits(4)).unwrap();
    assert!(matches!(training.checkpoint(), Err(Error::User(_))), "none are kept");
    let saving = Some(Saving { every: Some(2), ..Saving::to(here.join("run")) });
    let mut training = job(&here, lines).train(Options { saving, ..digits(4) }).unwrap();
    while let Some(step) = training.step().unwrap() {
        if step.metrics.step < 2 {
            // Of the second step one has begun already.
            training.checkpoint().unwrap();
        }
    }
    let last = training.finish().unwrap().saved.pop().unwrap();
    assert!(last.step == 4 && last.result.is_ok(), "{last:?}");
    let mut steps: Vec<u64> = Vec::new();
    for entry in fs::read_dir(here.join("run")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        steps.extend(name.strip_prefix("step-").map(|step| step.parse::<u64>().unwrap()));
    }
    steps.sort_unstable();
    assert_eq!(steps, [1, 2, 4]);
}

#[test]
fn a_plan_directory_is_the_job_that_it_was_made_from() {
    let (here, lines) = (folder("plan"), "mesh dp=2\ndata axis=dp\noptimizer sgd lr=0.1\n");
    let made = job(&here, lines);
    let compiled = Job::compile_to("examples/digits/model.onnx", here.join("job.shard"), here.join("plan")).unwrap();
    let read = Job::open_plan(here.join("plan"), Trust::Nothing).unwrap();
    assert!(!made.proven.is_empty() && made.proven == compiled.proven && made.proven == read.proven);
    let loss = |job: Job| job.train(digits(3)).unwrap().run(|_| {}).unwrap().summary.last.unwrap().loss;
    let wanted = loss(made);
    assert_eq!([loss(compiled), loss(read)], [wanted, wanted]);
}

#[test]
fn it_ends_when_validation_gets_no_better() {
    let here = folder("patience");
    let test = vec![PathBuf::from("examples/digits/test.npz")];
    let validating = Some(Validating { data: test, every: Some(1), samples: None, patience: Some(2) });
    let options = Options { validating, ..digits(50) };
    // Nothing changes, so the first validation stays the best.
    let trained = job(&here, "optimizer sgd lr=0\n").train(options).unwrap().run(|step| {
        assert_eq!(step.validated.unwrap().is_best, step.metrics.step == 0);
    });
    let summary = trained.unwrap().summary;
    assert_eq!((summary.steps, summary.end), (3, Some(End::NoBetter)));
}

#[test]
fn a_step_that_is_not_finite_is_given_and_is_the_last() {
    let here = folder("not-finite");
    let saving = Some(Saving::to(here.join("run")));
    let mut training = job(&here, "optimizer sgd lr=1e30\n").train(Options { saving, ..digits(5) }).unwrap();
    assert!(training.step().unwrap().unwrap().metrics.loss.is_some());
    assert_eq!(training.step().unwrap().unwrap().metrics.loss, None);
    assert!(training.step().unwrap().is_none());
    let Err(Error::User(errors)) = training.finish() else { panic!("it ends well") };
    assert!(errors[0].message.contains("not a finite number at step 2"), "{}", errors[0]);
    assert!(Checkpoint::find(&here.join("run")).unwrap().is_none(), "no such state is saved");
}

#[test]
fn a_step_is_given_before_what_fails_behind_it() {
    let here = folder("replicas");
    let faults = Injections::parse(&["flip:rank=1,step=1,state=fc1.weight,bit=3".to_string()]).unwrap();
    let machine = Machine { faults, ..Machine::default() };
    let options = Options { check_replicas: Some(1), machine, ..digits(5) };
    let mut training = job(&here, "mesh dp=2\ndata axis=dp\noptimizer sgd lr=0.1\n").train(options).unwrap();
    let mut given = 0;
    let error = loop {
        match training.step() {
            Ok(step) => given = step.unwrap().metrics.step + 1,
            Err(error) => break error,
        }
    };
    assert_eq!((training.summary().steps, training.summary().end), (given, Some(End::Failed)));
    assert!(matches!(&error, Error::Machine(why) if why.contains(&format!("after step {given}: "))), "{error}");
    assert!(training.step().unwrap().is_none());
}
