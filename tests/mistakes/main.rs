//! Mistakes that a proof of programs against graphs cannot see, because the graphs have them too:
//! made alike in the graphs of training and of the reference, in that of evaluation, or in the
//! spec. Reading a plan directory refuses all of them, as its model and spec give other graphs; and
//! the certificate, which never sees the right graphs, finds nearly all that do harm.
//!
//! `SHARDC_MISTAKES=10` tries ten times as many.

mod change;
mod gradients;
mod harm;
mod jobs;
#[path = "../support/mod.rs"]
mod support;

use change::{Change, Draw, Kind};
use harm::Good;
use jobs::Job;
use shardc::certify::{Subject, by_reading, certify};
use shardc::plan_dir::{self, Manifest, Trust};
use shardc::{Options, derive};
use shardc_frontend::spec;
use shardc_ir::builder::Builder;
use shardc_ir::graph::{Graph, Part, ValueId};
use shardc_ir::ops::Op;
use shardc_ir::packed::pack;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan_file::{encode, hash};
use shardc_ir::spec::Spec;
use shardc_ir::text;
use shardc_ir::verify::verify;
use shardc_passes::{Context, Mode, planning};
use shardc_testkit::parallel;
use shardc_testkit::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use support::folder;

/// The program's, with which graphs are compiled twice as fast.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Mistakes of each class that are tried for each job.
const TRIES: usize = 2;

/// Draws for one mistake of a class, of which some jobs have none.
const DRAWS: usize = 30;

/// Graphs with a mistake, or the spec's text.
#[derive(Clone)]
struct Mistake {
    /// Of training and of the reference.
    training: Graph,
    eval: Graph,
    spec: String,
    what: String,
}

/// What each part of the certificate says of a mistake: every part finds some.
const WORDS: [&str; 9] = [
    " that begins ",
    "the gradient of ",
    "the norm of the gradients is ",
    "where the spec's optimizer makes it ",
    "the loss of training is ",
    "the loss of evaluation is ",
    "is not what the imported model computes",
    "the batch's ",
    "another share stays",
];

/// The classes of mistakes.
const CLASSES: [(&str, Class); 19] = [
    ("forward, operand", Class::Training(Part::Forward, Draw::Operand)),
    ("forward, op", Class::Training(Part::Forward, Draw::Op)),
    ("forward, attribute", Class::Training(Part::Forward, Draw::Attribute)),
    ("forward, constant", Class::Training(Part::Forward, Draw::Constant)),
    ("forward, left out", Class::Training(Part::Forward, Draw::Omit)),
    ("backward, operand", Class::Training(Part::Backward, Draw::Operand)),
    ("backward, op", Class::Training(Part::Backward, Draw::Op)),
    ("backward, constant", Class::Training(Part::Backward, Draw::Constant)),
    ("backward, left out", Class::Training(Part::Backward, Draw::Omit)),
    ("update, operand", Class::Training(Part::Update, Draw::Operand)),
    ("update, attribute", Class::Training(Part::Update, Draw::Attribute)),
    ("update, constant", Class::Training(Part::Update, Draw::Constant)),
    ("gradients exchanged", Class::Gradients),
    ("state variables", Class::States),
    ("evaluation, operand", Class::Evaluation(Draw::Operand)),
    ("evaluation, op or number", Class::Evaluation(Draw::Attribute)),
    ("everywhere, operand", Class::Everywhere(Draw::Operand)),
    ("everywhere, number", Class::Everywhere(Draw::Attribute)),
    ("spec", Class::Spec),
];

#[derive(Clone, Copy)]
enum Class {
    /// In the graphs of training and of the reference.
    Training(Part, Draw),
    /// In the graph of evaluation.
    Evaluation(Draw),
    /// The same in all.
    Everywhere(Draw),
    Gradients,
    States,
    /// In the text of the spec.
    Spec,
}

/// Lines that a spec may have instead of, or beside, its own.
const LINES: [&str; 22] = [
    "optimizer sgd lr=0.1 momentum=0.9 weight_decay=0.05",
    "optimizer sgd lr=0.1 momentum=0.8 nesterov=true weight_decay=0.05",
    "optimizer sgd lr=0.1 nesterov=true momentum=0.9",
    "optimizer sgd lr=0.5 weight_decay=0.01",
    "optimizer sgd lr=0.2 momentum=0.9 nesterov=true weight_decay=0.05",
    "optimizer adamw lr=0.02 beta1=0.8 beta2=0.9 weight_decay=0.1 decay=all",
    "optimizer adamw lr=0.02 beta1=0.8 beta2=0.99 weight_decay=0.1",
    "optimizer adamw lr=0.02 beta1=0.8 beta2=0.9 weight_decay=0.1 eps=0.01",
    "optimizer adam lr=0.02 beta1=0.8 beta2=0.9 weight_decay=0.1",
    "optimizer lamb lr=0.05 beta2=0.9 weight_decay=0.01",
    "clip norm=0.1",
    "clip norm=4",
    "schedule cosine warmup=1 steps=9 min_lr=0.002",
    "schedule linear warmup=3 steps=9 min_lr=0.001",
    "loss cross_entropy labels=y label_smoothing=0.2",
    "loss cross_entropy labels=y ignore_index=1",
    "loss mse labels=t",
    "loss cross_entropy labels=y",
    "freeze \"*weight\"",
    "freeze \"*bias\"",
    "init \"*weight*\" normal std=0.5",
    "zero stage=1 axis=dp",
];

/// What came of the mistakes of a job.
#[derive(Default)]
struct Tally {
    /// Class: made, proven without deriving, harmful, of these found by the certificate.
    counts: BTreeMap<usize, [usize; 4]>,
    unseen: Vec<String>,
    said_of: BTreeSet<&'static str>,
}

/// Makes mistakes of each class in a job, so many times as often as usual.
fn tried(job: &Job, number: usize, times: usize) -> Tally {
    let here = folder(&format!("mistakes-{number}"));
    let mut tally = Tally::default();
    let mut random = Random(200 + number as u64);
    let good = Good::new(job);
    let plan = here.join("plan");
    plan_dir::write(&plan, &job.compiled, &job.model, &written(&here, job), true).expect("a plan can be written");
    plan_dir::read(&plan, Trust::Nothing).expect("a good plan is accepted");
    for (class, (_, kind)) in CLASSES.iter().enumerate() {
        for _ in 0..TRIES * times {
            let Some(mistake) = (0..DRAWS).find_map(|_| mistake(job, *kind, &mut random)) else { break };
            let what = format!("{}: {}", job.name, mistake.what);
            let Some(proven) = forged(&plan, job, &mistake, &what) else { continue };
            let count = tally.counts.entry(class).or_default();
            count[0] += 1;
            count[1] += usize::from(proven);
            let Some(harm) = good.harm(job, &mistake) else { continue };
            count[2] += 1;
            match found(job, &mistake, &what) {
                Some(said) => {
                    count[3] += 1;
                    tally.said_of.extend(WORDS.iter().copied().filter(|words| said.contains(words)));
                }
                None => tally.unseen.push(format!("{what}: {harm}\n")),
            }
        }
    }
    tally
}

#[test]
fn mistakes_are_refused_and_certificates_find_them() {
    let times = std::env::var("SHARDC_MISTAKES").map_or(1, |times| times.parse().expect("SHARDC_MISTAKES is a number"));
    let jobs = jobs::all();
    let Tally { mut counts, mut unseen, mut said_of } = Tally::default();
    for tally in parallel::map(jobs.len(), |number| tried(&jobs[number], number, times)) {
        for (class, more) in tally.counts {
            let count = counts.entry(class).or_default();
            *count = [0, 1, 2, 3].map(|i| count[i] + more[i]);
        }
        unseen.extend(tally.unseen);
        said_of.extend(tally.said_of);
    }
    let mut out = std::io::stderr();
    let total = counts.values().fold([0; 4], |sum, count| [0, 1, 2, 3].map(|i| sum[i] + count[i]));
    for (name, [made, proven, harmful, found]) in
        counts.iter().map(|(class, count)| (CLASSES[*class].0, count)).chain([("all", &total)])
    {
        writeln!(
            out,
            "{name:26} {made:5} refused, {proven:5} of them proven; {harmful:5} harmful, {found:5} found by the certificate"
        )
        .expect("stderr is open");
    }
    writeln!(out, "not found:\n{}", unseen.concat()).expect("stderr is open");
    let silent: Vec<&str> = WORDS.into_iter().filter(|words| !said_of.contains(words)).collect();
    assert!(silent.is_empty(), "no mistake was found by {silent:?}");
    let [made, proven, harmful, found] = total;
    assert!(made >= 300 && proven >= 200 && harmful >= 200, "{made} {proven} {harmful}");
    assert!(found * 100 >= harmful * 98, "the certificate finds {found} of {harmful} harmful mistakes");
}

/// The job's spec as a file.
fn written(here: &Path, job: &Job) -> Spec {
    let file = here.join("job.shard");
    fs::write(&file, &job.text).expect("a spec can be written");
    spec::load(&file).expect("a good spec")
}

fn mistake(job: &Job, class: Class, random: &mut Random) -> Option<Mistake> {
    let (training, eval) = (job.graphs.reference.as_ref()?, &job.graphs.programs.eval);
    let good = Mistake { training: training.clone(), eval: eval.clone(), spec: job.text.clone(), what: String::new() };
    let mistake = match class {
        Class::Training(part, kind) => {
            let change = change::draw(training, part, kind, random)?;
            Mistake { training: change::apply(training, &change)?, what: format!("{change:?}"), ..good }
        }
        Class::Evaluation(kind) => {
            let kind = if kind == Draw::Attribute { random.pick(&[Draw::Attribute, Draw::Op, Draw::Constant])? } else { kind };
            let change = change::draw(eval, Part::Forward, kind, random)?;
            Mistake { eval: change::apply(eval, &change)?, what: format!("evaluation: {change:?}"), ..good }
        }
        Class::Everywhere(kind) => {
            let kind = if kind == Draw::Attribute {
                random.pick(&[Draw::Attribute, Draw::Op, Draw::Constant, Draw::Omit])?
            } else {
                kind
            };
            let change = change::draw(eval, Part::Forward, kind, random)?;
            let (training, eval) = (change::apply(training, &change)?, change::apply(eval, &change)?);
            Mistake { training, eval, what: format!("everywhere: {change:?}"), ..good }
        }
        Class::Gradients => {
            let (training, what) = change::exchange_gradients(training, random)?;
            Mistake { training, what, ..good }
        }
        Class::States => {
            let (training, what) = change::change_states(training, random)?;
            Mistake { training, what, ..good }
        }
        Class::Spec => {
            let line = random.pick(&LINES)?;
            let keyword = line.split(' ').next()?;
            let kept = job.text.lines().filter(|own| own.split(' ').next() != Some(keyword));
            let text: String = kept.chain([line]).map(|line| format!("{line}\n")).collect();
            spec::parse(Path::new("job.shard"), &text).ok()?;
            Mistake { spec: text, what: format!("spec: {line}"), ..good }
        }
    };
    let differs = text::print(&mistake.training) != text::print(training)
        || text::print(&mistake.eval) != text::print(eval)
        || mistake.spec != job.text;
    differs.then_some(mistake)
}

/// Puts the mistake into the plan directory, with programs that carry out its graphs and hashes
/// that fit, and panics unless reading refuses it. Whether the proof alone accepts it; none where
/// it cannot be planned, or gives no other job.
fn forged(plan: &Path, job: &Job, mistake: &Mistake, what: &str) -> Option<bool> {
    let graphs = [("train", &mistake.training), ("reference", &mistake.training), ("eval", &mistake.eval)];
    if [&mistake.training, &mistake.eval].iter().any(|graph| verify(graph).is_err()) {
        return None;
    }
    if mistake.spec != job.text && same_job(job, &mistake.spec) {
        return None;
    }
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::from([("job.shard".to_string(), mistake.spec.clone().into_bytes())]);
    for (name, graph) in graphs {
        files.insert(format!("{name}.shir.gz"), pack(text::print(graph).as_bytes()).expect("a graph can be packed"));
        if name != "reference" {
            let mode = if name == "train" { Mode::Train } else { Mode::Evaluate };
            let cx = Context { spec: &job.spec, mode, verify: false };
            let program = catch_unwind(AssertUnwindSafe(|| planning::plan(graph, &cx))).ok()?.ok()?.into_first();
            files.insert(format!("{name}.plan"), encode(&PlanSet::from(program)).expect("a plan can be written"));
        }
    }
    let manifest = plan.join("manifest.json");
    let good = fs::read(&manifest).expect("a manifest");
    let mut forged: Manifest = serde_json::from_slice(&good).expect("a manifest");
    for (name, bytes) in &files {
        forged.files.insert(name.clone(), hash(bytes));
    }
    forged.spec.sha256.clone_from(&forged.files["job.shard"]);
    let hashes = forged.files.iter().filter(|(name, _)| name.ends_with(".plan"));
    forged.plan_hash = hash(hashes.map(|(name, hash)| format!("{name} {hash}\n")).collect::<String>().as_bytes());
    let old: Vec<(String, Vec<u8>)> =
        files.keys().map(|name| (name.clone(), fs::read(plan.join(name)).expect("a file of the plan"))).collect();
    files.iter().for_each(|(name, bytes)| fs::write(plan.join(name), bytes).expect("a file can be written"));
    fs::write(&manifest, serde_json::to_vec(&forged).expect("a manifest")).expect("a file can be written");
    let accepted = |trust| {
        catch_unwind(AssertUnwindSafe(|| plan_dir::read(plan, trust)))
            .unwrap_or_else(|_| panic!("{what}: reading it panics"))
            .is_ok()
    };
    let (proven, derived) = (accepted(Trust::Graphs), accepted(Trust::Nothing));
    assert!(!derived, "{what}: it is accepted");
    old.iter().for_each(|(name, bytes)| fs::write(plan.join(name), bytes).expect("a file can be written"));
    fs::write(&manifest, good).expect("a file can be written");
    Some(proven)
}

/// Whether another spec gives the same job.
fn same_job(job: &Job, text: &str) -> bool {
    let other = spec::parse(Path::new("job.shard"), text).expect("it was parsed");
    let Ok((graphs, _)) = derive(&job.model, &other, &Options::default()) else { return false };
    let same = |a: &Graph, b: &Graph| text::print(a) == text::print(b);
    let own = &job.graphs;
    let training = match (&own.reference, &graphs.reference) {
        (Some(a), Some(b)) => same(a, b),
        _ => false,
    };
    training && same(&own.programs.eval, &graphs.programs.eval) && other.learning_rate() == job.spec.learning_rate()
}

/// What the certificate, which knows the model and the spec, says of the mistake, if it finds it.
fn found(job: &Job, mistake: &Mistake, what: &str) -> Option<String> {
    let spec = spec::parse(Path::new("job.shard"), &mistake.spec).expect("it was parsed");
    let derived = if mistake.spec == job.text { None } else { Some(derive(&job.model, &spec, &Options::default())) };
    let imported = match &derived {
        None => &job.imported,
        Some(Ok((_, imported))) => imported,
        // The spec asks for what cannot be had.
        Some(Err(errors)) => return errors.first().map(|error| error.message.clone()),
    };
    let subject = Subject {
        reference: Some(&mistake.training),
        eval: &mistake.eval,
        imported,
        model: &job.model,
        spec: &spec,
        learning_rate: job.spec.learning_rate(),
    };
    let certified = catch_unwind(AssertUnwindSafe(|| certify(&subject)));
    let certified = certified.unwrap_or_else(|_| panic!("{what}: certifying it panics"));
    match certified {
        Err(why) => Some(why.to_string()),
        Ok(certificate) => certificate.doubted.into_iter().next().map(|doubt| doubt.how),
    }
}

/// Of what is too large to be run, updates and losses are read: good ones are taken, and mistakes
/// in them found.
#[test]
fn updates_and_losses_are_read() {
    let (mut taken, mut found) = (0, 0);
    for job in jobs::all() {
        let (training, eval) = (job.graphs.reference.as_ref().expect("it trains"), &job.graphs.programs.eval);
        let read = |training: &Graph, eval: &Graph| {
            let learning_rate = job.spec.learning_rate();
            let (imported, model, spec) = (&job.imported, job.model.as_path(), &job.spec);
            by_reading(&Subject { reference: Some(training), eval, imported, model, spec, learning_rate }, &"a test".into())
        };
        let good = read(training, eval).unwrap_or_else(|why| panic!("{}: {why}", job.name));
        assert!(good.certified.iter().any(|finding| finding.what == "loss"), "{}: {good:?}", job.name);
        taken += usize::from(good.certified.iter().any(|finding| finding.what == "updates"));
        let is_update = |node: &shardc_ir::graph::Node| matches!(node.op, Op::Sgd(_) | Op::Adam(_));
        let changed = |graph: &Graph, at: ValueId, kind: Kind| {
            change::apply(graph, &Change { at: graph.value(at).name.to_string(), kind }).expect("a change that fits")
        };
        for (_, node) in training.nodes().filter(|(_, node)| is_update(node)) {
            let mut op = node.op.clone();
            match &mut op {
                Op::Sgd(sgd) => sgd.weight_decay += 0.125,
                Op::Adam(adam) => adam.eps *= 2.0,
                _ => {}
            }
            let gradient = training.value(node.operands[1]).ty.clone();
            let other = training.values().find(|(v, value)| *v != node.operands[1] && value.ty == gradient);
            let (_, other) = other.expect("the parameter has the gradient's type");
            for kind in [Kind::Op(Box::new(op)), Kind::Operand(1, other.name.to_string())] {
                let why = read(&changed(training, node.results[0], kind), eval).expect_err(job.name);
                assert!(why.to_string().contains("is not what the spec's optimizer makes"), "{}: {why}", job.name);
                found += 1;
            }
        }
        let scaled = |graph: &Graph, output: usize| {
            let mut b = Builder::extend(graph.clone());
            let value = graph.outputs[output].value;
            let twice = b.add(value, value);
            b.graph_mut().outputs[output].value = twice;
            b.finish()
        };
        let sum = eval.outputs.len() - 2;
        for (training, eval) in [(scaled(training, 0), eval.clone()), (training.clone(), scaled(eval, sum))] {
            let why = read(&training, &eval).expect_err(job.name);
            assert!(why.to_string().contains("the loss is not the spec's"), "{}: {why}", job.name);
            found += 1;
        }
    }
    assert!(taken >= 6 && found >= 100, "{taken} {found}");
}

/// Where tract computes something else of the file, the certificate says so.
#[test]
fn what_tract_finds_otherwise_is_doubted() {
    let mut job = jobs::all().swap_remove(0);
    let mut bytes = job.imported.model.to_vec();
    let at = bytes.windows(6).position(|piece| piece == b"\x22\x04Relu").expect("the model has a Relu");
    bytes[at + 2..at + 6].copy_from_slice(b"Tanh");
    job.imported.model = bytes.into();
    let subject = Subject {
        reference: job.graphs.reference.as_ref(),
        eval: &job.graphs.programs.eval,
        imported: &job.imported,
        model: &job.model,
        spec: &job.spec,
        learning_rate: job.spec.learning_rate(),
    };
    let certificate = certify(&subject).expect("nothing is wrong with the graphs");
    assert!(certificate.doubted.len() == 1 && certificate.doubted[0].how.contains("tract"), "{certificate:?}");
}
