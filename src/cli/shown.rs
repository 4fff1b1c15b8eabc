//! What commands that show plan directories have in common: which program, and in what form.

use super::failure::Failure;
use crate::plan_dir::PlanDir;
use crate::proof::plan_reference;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use shardc_ir::diagnostic::{Diagnostic, Place};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::programs::ProgramKind;
use std::borrow::Cow;
use std::path::PathBuf;

/// The form of what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// The arguments about the form, and about which program.
#[derive(Debug, Args)]
pub struct ShownArgs {
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Which program; by default that of training
    #[arg(long, value_name = "PROGRAM", value_parser = program_kinds())]
    pub program: Option<ProgramKind>,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// The names of programs on the command line.
fn program_kinds() -> impl TypedValueParser<Value = ProgramKind> {
    let names = PossibleValuesParser::new(ProgramKind::ALL.map(ProgramKind::name));
    names.map(|name| ProgramKind::ALL.into_iter().find(|kind| kind.name() == name).expect("a name of the list"))
}

/// The programs of that kind; those of training, or else of evaluation, where none is named.
///
/// # Errors
/// If the plan has none.
pub fn chosen(plan: &PlanDir, kind: Option<ProgramKind>) -> Result<Cow<'_, PlanSet>, Failure> {
    let found = match kind {
        None => Some(Cow::Borrowed(plan.programs.main())),
        Some(ProgramKind::Eval) => Some(Cow::Borrowed(&plan.programs.eval)),
        Some(ProgramKind::Train) => plan.programs.training.as_ref().map(Cow::Borrowed),
        Some(ProgramKind::Reference) => {
            let planned = plan.reference.as_ref().map(|graph| plan_reference(graph, &plan.spec));
            planned.transpose()?.map(|program| Cow::Owned(program.into()))
        }
    };
    found.ok_or_else(|| {
        let error = Diagnostic::error("this plan only evaluates").at(Place::File(plan.path.clone()));
        error.help("its spec has no `loss` and no `optimizer`").into()
    })
}
