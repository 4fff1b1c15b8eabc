//! Makes the certificate of a job's graphs: that the reference is the step of training which the
//! spec asks for of the model, and evaluation the model. The proof holds programs against graphs;
//! this holds the graphs against what they were made from, with nothing of the passes that made
//! them.
//!
//! A model that is small enough is run, on whole tensors in f64, from weights near its own and on
//! random data:
//!
//! | what | is held against |
//! |---|---|
//! | state variables: roles, types, beginnings | the imported model, the spec's optimizer |
//! | each gradient | a difference of the loss along a random direction |
//! | each update, the norm, clipping | its formula ([`formulas`]) for random gradients |
//! | the loss, in training and in evaluation | its formula over the model's outputs |
//! | running statistics | mean and variance of what each normalisation reads in evaluation |
//! | the model's outputs | those that tract computes of the same file |
//!
//! Of a larger one each update and the loss are read op by op ([`syntax`]). What could not be held
//! against anything is named, with the reason.

mod differences;
pub mod formulas;
mod gradients;
mod loss;
mod outputs;
mod sample;
mod segments;
mod states;
mod statistics;
mod syntax;
mod updates;
mod whole;

use crate::certificate::{Certificate, Finding};
use sample::Sample;
use shardc_frontend::onnx::Imported;
use shardc_ir::graph::{Graph, State};
use shardc_ir::listing::units::count_text;
use shardc_ir::ops::Op;
use shardc_ir::plan::StateRole;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use shardc_ir::spec::{LossScale, Spec};
use shardc_ir::train::LearningRate;
use std::path::Path;
use std::thread;

/// No part of a certificate costs more operations: about a second.
pub const MOST_WORK: u64 = 10_000_000_000;

/// Nothing is run of a graph with more elements in its state, its constants and its inputs.
pub const MOST_ELEMENTS: u64 = 1 << 22;

/// No program is run that takes more bytes.
pub const MOST_BYTES: u64 = 1 << 27;

/// The graphs of a job, and what they were made from.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The step of training on one rank, where the job trains.
    pub reference: Option<&'a Graph>,
    /// Evaluation, under any mesh.
    pub eval: &'a Graph,
    /// The imported model.
    pub imported: &'a Imported,
    /// The model's file.
    pub model: &'a Path,
    /// The spec.
    pub spec: &'a Spec,
    /// The learning rate that the host gives the step of training.
    pub learning_rate: Option<LearningRate>,
}

/// What one part of the certificate found.
enum Found {
    /// It holds: how that was seen.
    Holds(String),
    /// It could not be seen: why.
    Unseen(Reason),
    /// Another program finds something else, which may be right or wrong.
    Doubted(Reason),
}

/// Why a part of the certificate found nothing.
#[derive(Debug, Clone)]
enum Stop {
    /// The graphs are not what the spec asks for.
    Wrong(Reason),
    /// They are not run: they cost too much, or the machine cannot.
    Unseen(Reason),
}

impl<R: Into<Reason>> From<R> for Stop {
    fn from(why: R) -> Stop {
        Stop::Wrong(why.into())
    }
}

impl Certificate {
    fn add(&mut self, what: &str, found: Result<Found, Stop>) -> Result<(), Reason> {
        let (list, how) = match found {
            Ok(Found::Holds(how)) => (&mut self.certified, how),
            Ok(Found::Unseen(why)) | Err(Stop::Unseen(why)) => (&mut self.not_certified, why.into()),
            Ok(Found::Doubted(why)) => (&mut self.doubted, why.into()),
            Err(Stop::Wrong(why)) => return Err(why),
        };
        list.push(Finding { what: what.to_string(), how });
        Ok(())
    }
}

/// Certifies the graphs of a job.
///
/// # Errors
/// What in them is not what the spec asks for of the model.
pub fn certify(subject: &Subject<'_>) -> Result<Certificate, Reason> {
    let graphs = || subject.reference.into_iter().chain([subject.eval]);
    let held = graphs().chain([&subject.imported.graph]).map(held).max().unwrap_or(0);
    if held > MOST_ELEMENTS {
        let (held, most) = (count_text(held), count_text(MOST_ELEMENTS));
        let why = reason!("nothing is run where state, constants and inputs have {held} elements, more than {most}");
        return by_reading(subject, &why);
    }
    let sample = Sample::new(graphs(), subject.imported, subject.spec);
    // Both are much of the work, and know nothing of each other.
    let (training, outputs) = thread::scope(|scope| {
        let outputs = thread::Builder::new().spawn_scoped(scope, || outputs::check(subject, &sample));
        let training = training(subject, &sample);
        let outputs = outputs.map_or_else(
            |error| Err(Stop::Unseen(reason!("there is no thread for them: {error}"))),
            |outputs| outputs.join().unwrap_or_else(|_| Err("their thread is gone".into())),
        );
        (training, outputs)
    });
    let mut certificate = training?;
    certificate.add("loss", loss::check(subject, Some(&sample)))?;
    certificate.add("outputs", outputs)?;
    Ok(certificate)
}

/// The elements of a graph's state, its constants and its inputs.
fn held(graph: &Graph) -> u64 {
    let given = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Constant(_) | Op::Input(_)));
    let given = given.map(|(_, node)| graph.ty(node.results[0]).elements());
    graph.states.iter().map(|state| state.ty.elements()).chain(given).fold(0, u64::saturating_add)
}

/// Certifies the step of training, but for its loss.
fn training(subject: &Subject<'_>, sample: &Sample) -> Result<Certificate, Reason> {
    let mut certificate = Certificate::default();
    let Some(reference) = subject.reference else { return Ok(certificate) };
    certificate.add("states", states::check(reference, subject).map_err(Stop::Wrong))?;
    certificate.add("gradients", gradients::check(reference, subject, sample))?;
    certificate.add("updates", updates::check(reference, subject, sample))?;
    certificate.add("statistics", statistics::check(reference, subject, sample))?;
    Ok(certificate)
}

/// Certifies what can be read of the graphs, of which nothing is run, `why` says why.
///
/// # Errors
/// As [`certify`].
pub fn by_reading(subject: &Subject<'_>, why: &Reason) -> Result<Certificate, Reason> {
    let mut certificate = Certificate::default();
    let unseen = || Ok(Found::Unseen(why.clone()));
    if let Some(reference) = subject.reference {
        certificate.add("states", states::check(reference, subject).map_err(Stop::Wrong))?;
        certificate.add("updates", syntax::updates(reference, subject).map_err(Stop::Wrong))?;
        certificate.add("gradients", unseen())?;
    }
    certificate.add("loss", loss::check(subject, None))?;
    certificate.add("outputs", unseen())?;
    Ok(certificate)
}

/// Whether a state variable is the number of that name which loss scaling remembers; where the
/// model has the name, it has more of `_`.
fn is_scaling(state: &State, name: &str) -> bool {
    state.role == StateRole::Scaling && state.name.trim_end_matches('_') == name
}

/// The constant that the loss is scaled by. A dynamic scale is 1 in what is run.
fn constant_scale(spec: &Spec) -> f64 {
    match spec.precision.as_ref().and_then(|line| line.value.scaling()) {
        Some(LossScale::Constant(scale)) => scale,
        Some(LossScale::Dynamic { .. }) | None => 1.0,
    }
}
