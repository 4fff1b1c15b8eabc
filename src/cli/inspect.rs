//! `shardc inspect PLAN/`: a plan for people or for programs.

use super::output::write;
use super::overwrite::Files;
use crate::failure::Failure;
use crate::plan_dir::{self, PlanDir, Trust};
use crate::proof::plan_reference;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use serde::Serialize;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::listing::{self, NamedSizes, ProgramSummary, RankSummary};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::ProgramKind;
use std::borrow::Cow;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Only this rank; text is of rank 0 unless told otherwise
    #[arg(long, value_name = "R")]
    rank: Option<u64>,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Which program; by default that of training
    #[arg(long, value_name = "PROGRAM", value_parser = program_kinds())]
    program: Option<ProgramKind>,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The names of programs on the command line.
fn program_kinds() -> impl TypedValueParser<Value = ProgramKind> {
    let names = PossibleValuesParser::new(ProgramKind::ALL.map(ProgramKind::name));
    names.map(|name| ProgramKind::ALL.into_iter().find(|kind| kind.name() == name).expect("a name of the list"))
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    world_size: u64,
    mesh: &'a NamedSizes,
    microbatches: u64,
    plan_hash: &'a str,
    ranks: Vec<RankSummary<'a>>,
}

impl Inspect {
    /// Prints the listing.
    ///
    /// # Errors
    /// If the directory cannot be read, or has no such rank or program.
    pub fn run(self) -> Result<(), Failure> {
        Files::default().reads_plan(&self.plan).writes("--output", self.output.as_deref()).check()?;
        let plan = plan_dir::read(&self.plan, Trust::Graphs)?;
        let programs = &*self.programs(&plan)?;
        let mesh = programs.mesh();
        let ranks = mesh.world_size();
        if let Some(rank) = self.rank.filter(|rank| *rank >= ranks) {
            let error = Diagnostic::error(format!("there is no rank {rank}, the plan is for {ranks}"));
            return Err(error.at(Place::File(self.plan)).help(format!("ranks count from 0 to {}", ranks - 1)).into());
        }
        let text = if self.format == Format::Text {
            let rank = self.rank.unwrap_or(0);
            listing::text(programs.of_rank(mesh, rank), rank, &plan.manifest.spec.file)
        } else {
            let shown = self.rank.map_or(0..ranks, |rank| rank..rank + 1);
            let held: Vec<ProgramSummary> = programs.programs.iter().map(listing::summary).collect();
            let summary = |rank| RankSummary {
                rank,
                coordinates: listing::coordinates(programs.first(), rank),
                held: &held[programs.at(mesh, rank)],
            };
            let report = Report {
                name: &programs.first().name,
                world_size: ranks,
                mesh: &NamedSizes(mesh.rank_axes().iter().map(|a| (a.name.clone(), a.size)).collect()),
                microbatches: mesh.microbatches(),
                plan_hash: &plan.manifest.plan_hash,
                ranks: shown.map(summary).collect(),
            };
            let json = serde_json::to_string_pretty(&report);
            json.map_err(|e| Failure::Machine(format!("cannot write JSON: {e}")))? + "\n"
        };
        write(&text, self.output.as_deref())
    }

    fn programs<'p>(&self, plan: &'p PlanDir) -> Result<Cow<'p, PlanSet>, Failure> {
        let found = match self.program {
            None => Some(Cow::Borrowed(plan.programs.main())),
            Some(ProgramKind::Eval) => Some(Cow::Borrowed(&plan.programs.eval)),
            Some(ProgramKind::Train) => plan.programs.training.as_ref().map(Cow::Borrowed),
            Some(ProgramKind::Reference) => {
                let planned = plan.reference.as_ref().map(|graph| plan_reference(graph, &plan.spec));
                planned.transpose()?.map(|program| Cow::Owned(program.into()))
            }
        };
        found.ok_or_else(|| {
            let error = Diagnostic::error("this plan only evaluates").at(Place::File(self.plan.clone()));
            error.help("its spec has no `loss` and no `optimizer`").into()
        })
    }
}
