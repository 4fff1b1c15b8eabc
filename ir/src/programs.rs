//! The programs of a job: a step of training, the same on one rank, and evaluation.

use crate::graph::Graph;
use crate::plan::set::PlanSet;
use std::fmt;

/// Which of a job's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramKind {
    /// A step of training over the spec's mesh.
    Train,
    /// The same with one rank on every axis: the program that it is compared with.
    Reference,
    /// The model's outputs, with the loss where the spec has one.
    Eval,
}

impl ProgramKind {
    /// Every kind.
    pub const ALL: [ProgramKind; 3] = [ProgramKind::Train, ProgramKind::Reference, ProgramKind::Eval];

    /// The name of its files: `train`.
    pub fn name(self) -> &'static str {
        match self {
            ProgramKind::Train => "train",
            ProgramKind::Reference => "reference",
            ProgramKind::Eval => "eval",
        }
    }
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The programs of all ranks, and the explicit graph that they carry out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The programs.
    pub programs: PlanSet,
    /// The graph.
    pub graph: Graph,
}

/// The programs of all ranks, a plan or anything else, for each kind that a job keeps. The
/// reference's is planned from its graph when somebody runs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs<P = PlanSet> {
    /// That of training, where the job trains.
    pub training: Option<P>,
    /// That of evaluation.
    pub eval: P,
}

impl<P> Programs<P> {
    /// One for each kind that `make` is asked for: both where the job `trains`, else evaluation.
    ///
    /// # Errors
    /// The first of `make`.
    pub fn try_new<E>(trains: bool, mut make: impl FnMut(ProgramKind) -> Result<P, E>) -> Result<Programs<P>, E> {
        let training = if trains { Some(make(ProgramKind::Train)?) } else { None };
        Ok(Programs { training, eval: make(ProgramKind::Eval)? })
    }

    /// That of training, or that of evaluation where nothing is trained.
    pub fn main(&self) -> &P {
        self.training.as_ref().unwrap_or(&self.eval)
    }

    /// All that there are.
    pub fn iter(&self) -> impl Iterator<Item = (ProgramKind, &P)> {
        let training = self.training.as_ref().map(|training| (ProgramKind::Train, training));
        training.into_iter().chain([(ProgramKind::Eval, &self.eval)])
    }

    /// The results of `f` on each.
    pub fn map<Q>(self, mut f: impl FnMut(P) -> Q) -> Programs<Q> {
        Programs { training: self.training.map(&mut f), eval: f(self.eval) }
    }

    /// The results of `f` on each.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn try_map<Q, E>(self, mut f: impl FnMut(ProgramKind, P) -> Result<Q, E>) -> Result<Programs<Q>, E> {
        let training = self.training.map(|training| f(ProgramKind::Train, training)).transpose()?;
        Ok(Programs { training, eval: f(ProgramKind::Eval, self.eval)? })
    }
}
