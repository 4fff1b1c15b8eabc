//! A program as people read it: one step a line, then where memory and messages go; and as other
//! programs read it.

mod carried;
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

pub use carried::{carried, carried_by};
pub use kinds::kinds;
pub use peak::{Part, Peak, layer};
pub use pipeline::timeline_text;
pub use report::{ProgramReport, programs, report};
pub use summary::{
    Communication, NamedSizes, ProgramSummary, RankSummary, axes_text, bytes_sent, communication, communication_by_kind,
    coordinates, summary,
};

use crate::columns::{Column, align};
use crate::plan::Program;
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

/// The listing of `rank`'s program among those of all ranks, with what each program sends.
/// `spec_name` is the spec's file name, for the lines that asked for messages.
pub fn text(set: &PlanSet, rank: u64, sent: &[Vec<Communication>], spec_name: &str, options: &Options<'_>) -> String {
    let program = set.of_rank(set.mesh(), rank);
    let summary = summary(program);
    let report = report(program);
    let mut out = format!("plan @{}  device {rank}/{}{}", program.name, program.mesh.world_size(), place_text(program, rank));
    if program.mesh.microbatches() > 1 {
        out.push_str(&format!("  {} micro-batches", program.mesh.microbatches()));
    }
    out.push_str(&format!("  peak {}\n", bytes_text(summary.peak_bytes)));
    out.push_str(&Steps { program, report: &report, rank, spec_name, options }.text());
    let common = if options.all { Short::default() } else { Short::of_leaves(&report.buffers) };
    out.push_str(&pipeline::messages_text(program, spec_name, options));
    out.push_str(&timeline_text(set, options.width));
    out.push_str(&memory_text(&summary, &report.peak, &common, options));
    out.push_str(&fullest_text(set, program, options));
    out.push_str(&communication_text(sent.get(set.at(set.mesh(), rank)).unwrap_or(&summary.communication)));
    out
}

/// ` (dp=0 pp=1)`; empty of a mesh without axes.
fn place_text(program: &Program, rank: u64) -> String {
    let coordinates: Vec<String> = coordinates(program, rank).0.iter().map(|(axis, at)| format!("{axis}={at}")).collect();
    if coordinates.is_empty() { String::new() } else { format!(" ({})", coordinates.join(" ")) }
}

/// The largest arena and who has it: `2.4 MiB on rank 1 (dp=0 pp=1) and 3 others`.
pub fn fullest_place(set: &PlanSet) -> String {
    let (program, rank) = (set.fullest(), set.fullest_rank());
    let bytes = bytes_text(program.arena_bytes);
    match set.ranks_of(program.arena_bytes) {
        all if all == set.mesh().world_size() => format!("{bytes} on each rank"),
        1 => format!("{bytes} on rank {rank}{}", place_text(program, rank)),
        2 => format!("{bytes} on rank {rank}{} and 1 other", place_text(program, rank)),
        many => format!("{bytes} on rank {rank}{} and {} others", place_text(program, rank), many - 1),
    }
}

/// The fullest rank and what it holds where most of it is live; empty if `shown` holds as much.
fn fullest_text(set: &PlanSet, shown: &Program, options: &Options<'_>) -> String {
    let fullest = set.fullest();
    if shown.arena_bytes == fullest.arena_bytes {
        return String::new();
    }
    let report = report(fullest);
    let common = if options.all { Short::default() } else { Short::of_leaves(&report.buffers) };
    let head = fitted(&format!("    fullest {}; most is live {}", fullest_place(set), peak_place(&report.peak)), options);
    format!("{head}\n{}", parts_of_peak(&report.peak, &common, options))
}

/// A line, cut or broken.
fn fitted(line: &str, options: &Options<'_>) -> String {
    if options.all { page::wrapped(line, options.width) } else { page::cut(line, options.width) }
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
    let place = fitted(&format!("    most is live {}: {}", peak_place(peak), bytes_text(peak.bytes)), options);
    format!("\n  memory\n{held}{place}\n{}", parts_of_peak(peak, common, options))
}

/// What is live at the peak, by kind and by module.
fn parts_of_peak(peak: &Peak<'_>, common: &Short, options: &Options<'_>) -> String {
    let most = if options.all { usize::MAX } else { NAMED };
    let scopes: Vec<Part> = peak.scopes.iter().map(|part| Part { name: common.of_name(&part.name), ..*part }).collect();
    let rows =
        [["by kind".to_string(), parts_text(&peak.kinds, usize::MAX)], ["by module".to_string(), parts_text(&scopes, most)]];
    let parts = align(&rows, [Column::after("      "), Column::WORDS]);
    parts.lines().map(|line| fitted(line, options) + "\n").collect()
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

/// The bytes that a rank sends in a step, as a table, beside the least where it is known; empty if
/// it sends nothing.
pub fn communication_text(calls: &[Communication]) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let header = ["collective", "over", "carries", "calls a step", "bytes sent a step", "the least"].map(str::to_string);
    let row = |c: &Communication| {
        let least = c.least_bytes.map_or(String::new(), bytes_text);
        [c.kind_name(), c.axis.clone(), c.carries.to_string(), c.calls.to_string(), bytes_text(c.bytes_sent), least]
    };
    let mut rows: Vec<_> = std::iter::once(header).chain(calls.iter().map(row)).collect();
    if calls.iter().all(|c| c.least_bytes.is_none()) {
        rows[0][5].clear();
    }
    let columns = [Column::after("    "), Column::WORDS, Column::WORDS, Column::NUMBERS, Column::NUMBERS, Column::NUMBERS];
    format!("\n  communication\n{}", align(&rows, columns))
}
