//! `shardc explain PLAN/ NAME`: why a tensor lies as it does, and what is sent for it.

use super::failure::Failure;
use super::output::{json, write};
use super::overwrite::Files;
use super::shown::{Format, ShownArgs};
use crate::explanation::{Call, Explanation, Lies, Link, OnAxis};
use crate::plan_dir::{self, Trust};
use clap::Args;
use shardc_ir::columns::{Column, align};
use shardc_ir::listing::units::bytes_text;
use shardc_ir::programs::ProgramKind;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Explain {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// A parameter, another state variable, or a value as `inspect` names it
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    shown: ShownArgs,
}

/// Tensors of a long way that are shown at each of its ends.
const ENDS: usize = 4;

impl Explain {
    /// Prints the explanation.
    ///
    /// # Errors
    /// If the directory cannot be read, or has no such tensor.
    pub fn run(self) -> Result<(), Failure> {
        Files::default().reads_plan(&self.plan).writes("--output", self.shown.output.as_deref()).check()?;
        let plan = plan_dir::read(&self.plan, Trust::Graphs)?;
        let main = if plan.programs.training.is_some() { ProgramKind::Train } else { ProgramKind::Eval };
        let explanation = Explanation::of(&plan, self.shown.program.unwrap_or(main), &self.name)?;
        let text = match self.shown.format {
            Format::Json => json(&explanation)?,
            Format::Text => text(&explanation),
        };
        write(&text, self.shown.output.as_deref())
    }
}

fn text(explanation: &Explanation) -> String {
    let Explanation { name, what, scope, tensor, bytes, local_bytes, axes, calls } = explanation;
    let scope = scope.as_ref().map(|scope| format!(" of {scope}")).unwrap_or_default();
    let held = match local_bytes == bytes {
        true => bytes_text(*bytes),
        false => format!("{} of {} on a rank", bytes_text(*local_bytes), bytes_text(*bytes)),
    };
    let mut text = format!("{name} : {tensor}\n  {what}{scope}, {held}\n");
    if axes.is_empty() {
        text.push_str("  there is one rank\n");
    }
    axes.iter().for_each(|axis| text.push_str(&axis_text(axis)));
    match calls.is_empty() {
        true => text.push_str("\nnothing is sent for it\n"),
        false => text.push_str("\nsent for it in a step\n"),
    }
    calls.iter().for_each(|call| text.push_str(&call_text(call)));
    text
}

fn axis_text(on: &OnAxis) -> String {
    let OnAxis { axis, lies, spec_line, spec, chain } = on;
    let lies = match lies {
        Lies::Whole => "each rank has all of it".to_string(),
        Lies::Split { dimension: Some(dimension) } => format!("splits dimension {dimension}"),
        Lies::Split { dimension: None } => "each rank has a range of its elements".to_string(),
        Lies::Partial => "each rank has a part of every element, which are still to be combined".to_string(),
        Lies::Placed => "ranks of some stages have it".to_string(),
    };
    let line = match (spec_line, spec) {
        (Some(line), Some(spec)) => format!(", by line {line}: {spec}"),
        _ => String::new(),
    };
    let rows: Vec<[String; 3]> = chain.iter().skip(1).map(row).collect();
    let columns = [Column::after("      "), Column::after(" = "), Column::after("  : ")];
    let ways = match rows.len() > 2 * ENDS + 1 {
        false => align(&rows, columns),
        true => {
            let lines = align(&rows, columns);
            let lines: Vec<&str> = lines.lines().collect();
            let (first, last) = (lines[..ENDS].join("\n"), lines[lines.len() - ENDS..].join("\n"));
            format!("{first}\n      … {} more\n{last}\n", lines.len() - 2 * ENDS)
        }
    };
    let from = if rows.is_empty() { "" } else { "    from\n" };
    format!("  {axis}: {lies}{line}\n{from}{ways}")
}

fn row(link: &Link) -> [String; 3] {
    [format!("%{}", link.value), link.op.clone(), link.tensor.clone()]
}

fn call_text(call: &Call) -> String {
    let Call { ranks, step, kind, axes, times, bytes_sent, others, reason, spec_line, remedy, .. } = call;
    let number = step.map_or("  ".to_string(), |step| format!("{step:02}"));
    let times = if *times == 1 { String::new() } else { format!(" {times} times") };
    let others = match others {
        0 => String::new(),
        1 => " with another tensor".to_string(),
        more => format!(" with {more} other tensors"),
    };
    let reason = reason.as_ref().map(|reason| format!("  {reason}")).unwrap_or_default();
    let line = spec_line.map(|line| format!(" (line {line})")).unwrap_or_default();
    let who = match &ranks[..] {
        [only] => format!("rank {only}"),
        [first, ..] => format!("rank {first} and {} more", ranks.len() - 1),
        [] => "no rank".to_string(),
    };
    let (kind, axes, bytes) = (kind.name(), axes.join(","), bytes_text(*bytes_sent));
    let remedy = remedy.as_ref().map(|remedy| format!("      to be without it, {remedy}\n")).unwrap_or_default();
    format!("  {number}  {kind} {axes}  {bytes}{times}{others}{reason}{line}, on {who}\n{remedy}")
}
