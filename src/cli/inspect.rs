//! `shardc inspect PLAN/`: a plan for people or for programs.

use super::failure::Failure;
use super::output::{json, write};
use super::overwrite::Files;
use super::shown::{Format, ShownArgs, chosen};
use crate::cuda;
use crate::plan_dir::{self, PlanDir, Trust};
use crate::proof::sent;
use clap::Args;
use serde::Serialize;
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::listing::{self, Expand, NamedSizes, Options, ProgramReport, ProgramSummary, RankSummary};
use shardc_ir::names::matches_scope;
use shardc_ir::plan::Program;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::ProgramKind;
use std::io;
use std::path::PathBuf;
use terminal_size::{Width, terminal_size_of};

/// The arguments.
#[derive(Debug, Args)]
pub struct Inspect {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Only this rank; text is of rank 0 unless told otherwise
    #[arg(long, value_name = "R")]
    rank: Option<u64>,
    #[command(flatten)]
    shown: ShownArgs,
    /// Every step in a line of its own, with all that it reads and writes
    #[arg(long, conflicts_with = "expand")]
    all: bool,
    /// Layers that repeat one by one: all, or those that this module is in
    #[arg(long, value_name = "SCOPE", num_args = 0..=1)]
    expand: Option<Option<String>>,
    /// The CUDA kernels that `compile --target cuda` wrote, in place of the steps
    #[arg(long, conflicts_with_all = ["rank", "program", "all", "expand"])]
    kernels: bool,
    /// The launch table that `compile --target cuda` wrote, in place of the steps
    #[arg(long, conflicts_with_all = ["all", "expand", "kernels"])]
    launches: bool,
    /// Columns of a line; by default those of the terminal, or 160
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(80..))]
    width: Option<u32>,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    world_size: u64,
    mesh: &'a NamedSizes,
    microbatches: u64,
    plan_hash: &'a str,
    /// The spec's file name, for the lines that steps name.
    spec: &'a str,
    /// The first rank with the largest arena.
    fullest_rank: u64,
    ranks: Vec<RankSummary<'a>>,
    programs: Vec<ProgramReport<'a>>,
}

/// Columns of a line where nobody says otherwise and no terminal shows it.
const WIDTH: u32 = 160;

impl Inspect {
    /// Prints the listing.
    ///
    /// # Errors
    /// If the directory cannot be read, or has no such rank or program.
    pub fn run(self) -> Result<(), Failure> {
        let files = Files::default().reads_plan(&self.plan).reads("the list of kernels", &cuda::list_path(&self.plan));
        let files = ProgramKind::ALL
            .iter()
            .fold(files, |files, kind| files.reads("a launch table", &cuda::tables::path(&self.plan, *kind)));
        files.writes("--output", self.shown.output.as_deref()).check()?;
        let plan = plan_dir::read(&self.plan, Trust::Graphs)?;
        if self.kernels {
            let list = cuda::read(&self.plan, &plan.manifest.plan_hash)?;
            let text = match self.shown.format {
                Format::Text => cuda::table(&list, self.width()),
                Format::Json => json(&list)?,
            };
            return write(&text, self.shown.output.as_deref());
        }
        let programs = &*chosen(&plan, self.shown.program)?;
        let mesh = programs.mesh();
        let ranks = mesh.world_size();
        if let Some(rank) = self.rank.filter(|rank| *rank >= ranks) {
            let error = Diagnostic::error(format!("there is no rank {rank}, the plan is for {ranks}"));
            return Err(error.at(Place::File(self.plan)).help(format!("ranks count from 0 to {}", ranks - 1)).into());
        }
        if self.launches {
            return self.launches(&plan, programs);
        }
        let sent = sent(&plan.proven, self.shown.program);
        let text = if self.shown.format == Format::Text {
            let rank = self.rank.unwrap_or(0);
            let program = programs.of_rank(mesh, rank);
            listing::text(programs, rank, sent, &plan.manifest.spec.file, &self.options(program)?)
        } else {
            let shown = self.rank.map_or(0..ranks, |rank| rank..rank + 1);
            let mut held: Vec<ProgramSummary> = programs.programs.iter().map(listing::summary).collect();
            held.iter_mut().zip(sent).for_each(|(held, sent)| held.communication.clone_from(sent));
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
                spec: &plan.manifest.spec.file,
                fullest_rank: programs.fullest_rank(),
                ranks: shown.clone().map(summary).collect(),
                programs: listing::programs(programs, &|program| self.rank.is_none_or(|rank| programs.at(mesh, rank) == program)),
            };
            json(&report)?
        };
        write(&text, self.shown.output.as_deref())
    }

    /// Prints launch tables: that of one rank for people, those of all programs for programs.
    fn launches(&self, plan: &PlanDir, programs: &PlanSet) -> Result<(), Failure> {
        let kind = match self.shown.program {
            Some(ProgramKind::Reference) => {
                let error = Diagnostic::error("the reference has no launch table").at(Place::File(self.plan.clone()));
                return Err(error.help("it runs on the CPU, to be compared with").into());
            }
            Some(kind) => kind,
            None => plan.programs.iter().next().map_or(ProgramKind::Eval, |(kind, _)| kind),
        };
        let tables = cuda::tables::open(&self.plan, &plan.manifest.plan_hash, kind)?;
        let text = match self.shown.format {
            Format::Json => json(&tables)?,
            Format::Text => {
                let at = programs.at(programs.mesh(), self.rank.unwrap_or(0));
                let (table, program) = tables.of_program(&self.plan, kind, programs, at)?;
                cuda::launches(table, program, self.width())
            }
        };
        write(&text, self.shown.output.as_deref())
    }

    /// How the listing is shown.
    fn options(&self, program: &Program) -> Result<Options<'_>, Failure> {
        let scopes = || program.tasks.iter().flat_map(|task| &task.steps).filter_map(|step| step.provenance.scope.as_deref());
        let expand = match &self.expand {
            None => Expand::Nothing,
            Some(None) => Expand::All,
            Some(Some(scope)) if scopes().any(|path| matches_scope(scope, path)) => Expand::Scope(scope),
            Some(Some(scope)) => {
                let error = Diagnostic::error(format!("the model has no module `{scope}`")).at(Place::File(self.plan.clone()));
                let help = match scopes().min() {
                    Some(first) => format!("`{first}` is one; without a name all layers are shown"),
                    None => "without a name all layers are shown".to_string(),
                };
                return Err(error.help(help).into());
            }
        };
        Ok(Options { width: self.width(), all: self.all, expand })
    }

    /// Columns of a line.
    fn width(&self) -> usize {
        let terminal = || self.shown.output.is_none().then(|| terminal_size_of(io::stdout())).flatten();
        let width = self.width.or_else(|| terminal().map(|(Width(columns), _)| u32::from(columns).max(80))).unwrap_or(WIDTH);
        width as usize
    }
}
