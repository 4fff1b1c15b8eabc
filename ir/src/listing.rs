//! A program as people read it: one step a line, then where memory and messages go.

mod steps;
mod summary;
pub mod units;

pub use summary::{Communication, NamedSizes, ProgramSummary, RankSummary, communication, coordinates, summary};

use crate::columns::{Column, align};
use crate::plan::Program;
use units::bytes_text;

/// The listing of `rank`. `spec_name` is the spec's file name, for the lines that asked for
/// messages.
pub fn text(program: &Program, rank: u64, spec_name: &str) -> String {
    let (summary, coordinates) = (summary(program), coordinates(program, rank));
    let mut out = format!("plan @{}  device {rank}/{}", program.name, program.mesh.world_size());
    if !coordinates.0.is_empty() {
        let coordinates = coordinates.0.iter().map(|(axis, at)| format!("{axis}={at}"));
        out.push_str(&format!(" ({})", coordinates.collect::<Vec<_>>().join(" ")));
    }
    if program.mesh.microbatches() > 1 {
        out.push_str(&format!("  {} micro-batches", program.mesh.microbatches()));
    }
    out.push_str(&format!("  peak {}\n", bytes_text(summary.peak_bytes)));
    out.push_str(&steps::text(program, rank, spec_name));
    out.push_str(&memory_text(&summary));
    out.push_str(&communication_text(&summary.communication));
    out
}

fn memory_text(summary: &ProgramSummary) -> String {
    let parts = [
        ("parameters", summary.parameter_bytes),
        ("gradients", summary.gradient_bytes),
        ("optimizer", summary.optimizer_bytes),
        ("activations", summary.activation_bytes),
    ];
    let rest = summary.peak_bytes.saturating_sub(parts.iter().map(|(_, bytes)| bytes).sum());
    let all = parts.into_iter().chain([("data, constants, padding", rest), ("peak", summary.peak_bytes)]);
    let rows: Vec<_> = all.map(|(name, bytes)| [name.to_string(), bytes_text(bytes)]).collect();
    format!("\n  memory\n{}", align(&rows, [Column::after("    "), Column::NUMBERS]))
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
