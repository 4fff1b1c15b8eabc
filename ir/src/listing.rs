//! A program as people read it: one step a line, then where memory and messages go; and as other
//! programs read it.

mod fold;
mod kinds;
mod lines;
mod names;
mod page;
mod peak;
mod pipeline;
mod report;
mod short;
mod steps;
mod summary;
pub mod units;

pub use peak::{Part, Peak};
pub use pipeline::timeline_text;
pub use report::{ProgramReport, programs, report};
pub use summary::{Communication, NamedSizes, ProgramSummary, RankSummary, communication, coordinates, summary};

use crate::columns::{Column, align};
use crate::plan::set::PlanSet;
use short::Short;
use steps::Steps;
use units::bytes_text;

/// How a listing is shown.
#[derive(Debug, Clone)]
pub struct Options<'o> {
    /// Columns of a line.
    pub width: usize,
    /// Whether every step has its line and nothing is left out; long lines are broken.
    pub all: bool,
    /// Which layers that repeat are shown one by one.
    pub expand: Expand<'o>,
}

/// Layers that are shown one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expand<'o> {
    /// None: what repeats is shown once.
    Nothing,
    /// All.
    All,
    /// Those of a fold in which this scope is, or a scope that matches it.
    Scope(&'o str),
}

/// The parts of what is live at the peak that are named.
const NAMED: usize = 5;

/// The listing of `rank`'s program among those of all ranks. `spec_name` is the spec's file name,
/// for the lines that asked for messages.
pub fn text(set: &PlanSet, rank: u64, spec_name: &str, options: &Options<'_>) -> String {
    let program = set.of_rank(set.mesh(), rank);
    let (summary, coordinates) = (summary(program), coordinates(program, rank));
    let report = report(program);
    let mut out = format!("plan @{}  device {rank}/{}", program.name, program.mesh.world_size());
    if !coordinates.0.is_empty() {
        let coordinates = coordinates.0.iter().map(|(axis, at)| format!("{axis}={at}"));
        out.push_str(&format!(" ({})", coordinates.collect::<Vec<_>>().join(" ")));
    }
    if program.mesh.microbatches() > 1 {
        out.push_str(&format!("  {} micro-batches", program.mesh.microbatches()));
    }
    out.push_str(&format!("  peak {}\n", bytes_text(summary.peak_bytes)));
    out.push_str(&Steps { program, report: &report, rank, spec_name, options }.text());
    let common = if options.all { Short::default() } else { Short::of_leaves(&report.buffers) };
    out.push_str(&pipeline::messages_text(program, spec_name, options));
    out.push_str(&timeline_text(set, options.width));
    out.push_str(&memory_text(&summary, &report.peak, &common, options));
    out.push_str(&communication_text(&summary.communication));
    out
}

fn memory_text(summary: &ProgramSummary, peak: &Peak<'_>, common: &Short, options: &Options<'_>) -> String {
    let parts = [
        ("parameters", summary.parameter_bytes),
        ("gradients", summary.gradient_bytes),
        ("optimizer", summary.optimizer_bytes),
        ("activations", summary.activation_bytes),
    ];
    let rest = summary.peak_bytes.saturating_sub(parts.iter().map(|(_, bytes)| bytes).sum());
    let all = parts.into_iter().chain([("data, constants, padding", rest), ("peak", summary.peak_bytes)]);
    let rows: Vec<_> = all.map(|(name, bytes)| [name.to_string(), bytes_text(bytes)]).collect();
    let held = align(&rows, [Column::after("    "), Column::NUMBERS]);
    let most = if options.all { usize::MAX } else { NAMED };
    let scopes: Vec<Part> = peak.scopes.iter().map(|part| Part { name: common.of_name(&part.name), ..*part }).collect();
    let rows =
        [["by kind".to_string(), parts_text(&peak.kinds, usize::MAX)], ["by module".to_string(), parts_text(&scopes, most)]];
    let parts = align(&rows, [Column::after("      "), Column::WORDS]);
    let fitted = |line: &str| if options.all { page::wrapped(line, options.width) } else { page::cut(line, options.width) };
    let parts: String = parts.lines().map(|line| fitted(line) + "\n").collect();
    let place = fitted(&format!("    most is live {}: {}", peak_place(peak), bytes_text(peak.bytes)));
    format!("\n  memory\n{held}{place}\n{parts}")
}

/// `at step 134 (%add_3 in B)`
pub fn peak_place(peak: &Peak<'_>) -> String {
    match (peak.step, &peak.value, peak.task) {
        (Some(step), Some(value), Some(task)) => format!("at step {step} (%{value} in {task})"),
        _ => "without a step".to_string(),
    }
}

/// `parameters 466 KiB, gradients 466 KiB`, the first `most` of them.
pub fn parts_text(parts: &[Part], most: usize) -> String {
    let shown = parts.iter().take(most).map(|part| format!("{} {}", part.name, bytes_text(part.bytes)));
    let rest: u64 = parts.iter().skip(most).map(|part| part.bytes).sum();
    let others = (parts.len() > most).then(|| format!("{} more {}", parts.len() - most, bytes_text(rest)));
    shown.chain(others).collect::<Vec<_>>().join(", ")
}

/// The bytes that a rank sends in a step, as a table; empty if it sends nothing.
pub fn communication_text(calls: &[Communication]) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let header = ["collective", "over", "calls a step", "bytes sent a step"].map(str::to_string);
    let row = |c: &Communication| [c.kind_name(), c.axis.clone(), c.calls.to_string(), bytes_text(c.bytes_sent)];
    let rows: Vec<_> = std::iter::once(header).chain(calls.iter().map(row)).collect();
    let columns = [Column::after("    "), Column::WORDS, Column::NUMBERS, Column::NUMBERS];
    format!("\n  communication\n{}", align(&rows, columns))
}
