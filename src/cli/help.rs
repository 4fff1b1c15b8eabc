//! `shardc help`: of the program, of one command, or of the spec: its page, or the section of one
//! statement.

use super::failure::Failure;
use super::output::{no_reader_is_no_failure, print};
use super::page;
use clap::{Args, Command};
use shardc_frontend::spec::statement_kinds;
use shardc_ir::diagnostic::near_names;

/// The page of the spec's statements, as the repository shows it.
const SPEC: &str = include_str!("../../docs/spec.md");

/// The topic beside the names of commands.
const SPEC_TOPIC: &str = "spec";

/// The arguments.
#[derive(Debug, Args)]
pub struct Help {
    /// A command, or `spec`
    #[arg(value_name = "COMMAND|spec")]
    topic: Option<String>,
    /// After `spec`: one of its statements, such as `shard`
    #[arg(value_name = "STATEMENT")]
    statement: Option<String>,
}

impl Help {
    /// Prints the help of what was named in `program`.
    ///
    /// # Errors
    /// If there is nothing of that name.
    pub fn run(self, program: Command) -> Result<(), Failure> {
        match (self.topic.as_deref(), self.statement) {
            (Some(SPEC_TOPIC), None) => print(&page::text(SPEC)),
            (Some(SPEC_TOPIC), Some(statement)) => of_statement(&statement),
            (_, Some(more)) => Err(Failure::Usage(format!("unexpected `{more}`: only `{SPEC_TOPIC}` has parts"))),
            (command, None) => of_command(program, command),
        }
    }
}

/// The help that `--help` prints after the name of the program, or of one of its commands.
fn of_command(program: Command, name: Option<&str>) -> Result<(), Failure> {
    let names: Vec<&str> = program.get_subcommands().map(Command::get_name).chain([SPEC_TOPIC]).collect();
    if let Some(name) = name.filter(|name| !names.contains(name)) {
        return Err(unknown("command", name, &names));
    }
    let arguments = [program.get_name()].into_iter().chain(name).chain(["--help"]).map(str::to_string).collect::<Vec<_>>();
    match program.try_get_matches_from(arguments) {
        Err(help) => no_reader_is_no_failure(help.print()),
        Ok(_) => Ok(()),
    }
}

fn of_statement(name: &str) -> Result<(), Failure> {
    match page::section(SPEC, name).filter(|_| statement_kinds().any(|kind| kind.name == name)) {
        Some(section) => print(&page::text(section)),
        None => Err(unknown("statement of the spec", name, &statement_kinds().map(|kind| kind.name).collect::<Vec<_>>())),
    }
}

fn unknown(what: &str, name: &str, names: &[&str]) -> Failure {
    let quoted = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let near = near_names(name, names.iter().copied());
    let help = if near.is_empty() { format!("there are {}", quoted(names)) } else { format!("near names are {}", quoted(&near)) };
    Failure::Usage(format!("no {what} is called `{name}`; {help}"))
}
