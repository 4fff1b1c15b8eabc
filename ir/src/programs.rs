//! The programs of a job: a step of training, the same on one rank, and evaluation.

use crate::graph::Graph;
use crate::plan::Program;
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

/// A program and the explicit graph that it carries out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program.
    pub program: Program,
    /// The graph.
    pub graph: Graph,
}

/// A program, a plan or anything else, for each program of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Programs<P = Program> {
    /// Those of training, where the job trains.
    pub training: Option<Training<P>>,
    /// That of evaluation.
    pub eval: P,
}

/// The two programs of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Training<P = Program> {
    /// Over the spec's mesh.
    pub program: P,
    /// With one rank on every axis.
    pub reference: P,
}

impl<P> Programs<P> {
    /// One for each kind that `make` is asked for: all of them where the job `trains`, else
    /// evaluation.
    ///
    /// # Errors
    /// The first of `make`.
    pub fn try_new<E>(trains: bool, mut make: impl FnMut(ProgramKind) -> Result<P, E>) -> Result<Programs<P>, E> {
        let training = match trains {
            true => Some(Training { program: make(ProgramKind::Train)?, reference: make(ProgramKind::Reference)? }),
            false => None,
        };
        Ok(Programs { training, eval: make(ProgramKind::Eval)? })
    }

    /// That of training, or that of evaluation where nothing is trained.
    pub fn main(&self) -> &P {
        self.training.as_ref().map_or(&self.eval, |training| &training.program)
    }

    /// That of a kind.
    pub fn get(&self, kind: ProgramKind) -> Option<&P> {
        match kind {
            ProgramKind::Train => self.training.as_ref().map(|training| &training.program),
            ProgramKind::Reference => self.training.as_ref().map(|training| &training.reference),
            ProgramKind::Eval => Some(&self.eval),
        }
    }

    /// All that there are.
    pub fn iter(&self) -> impl Iterator<Item = (ProgramKind, &P)> {
        ProgramKind::ALL.into_iter().filter_map(|kind| Some((kind, self.get(kind)?)))
    }

    /// What `f` makes of each.
    pub fn map<Q>(self, mut f: impl FnMut(P) -> Q) -> Programs<Q> {
        let training = self.training.map(|t| Training { program: f(t.program), reference: f(t.reference) });
        Programs { training, eval: f(self.eval) }
    }
}
