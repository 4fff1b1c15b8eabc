//! `shardc diff A/ B/`: what the ranks of two plans hold, send and wait for otherwise.

use super::failure::Failure;
use super::output::{json, write};
use super::overwrite::Files;
use super::shown::{Format, ShownArgs, chosen};
use crate::difference::{Calls, Difference, Held, Ranks, Sent, Side};
use crate::plan_dir::{self, PlanDir, Trust};
use clap::Args;
use serde::Serialize;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::listing::units::bytes_text;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Diff {
    /// A plan directory
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Another one
    #[arg(value_name = "B")]
    b: PathBuf,
    #[command(flatten)]
    shown: ShownArgs,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// Whether both have the same programs.
    same: bool,
    #[serde(flatten)]
    difference: &'a Difference,
}

impl Diff {
    /// Prints what differs.
    ///
    /// # Errors
    /// If a directory cannot be read, or has no such program.
    pub fn run(self) -> Result<(), Failure> {
        let files = Files::default().reads_plan(&self.a).reads_plan(&self.b);
        files.writes("--output", self.shown.output.as_deref()).check()?;
        let [a, b] = [plan_dir::read(&self.a, Trust::Graphs)?, plan_dir::read(&self.b, Trust::Graphs)?];
        let difference = Difference::of(&*chosen(&a, self.shown.program)?, &*chosen(&b, self.shown.program)?);
        let same = a.manifest.plan_hash == b.manifest.plan_hash;
        let text = match self.shown.format {
            Format::Json => json(&Report { same, difference: &difference })?,
            Format::Text => text(&difference, [&a, &b], same),
        };
        write(&text, self.shown.output.as_deref())
    }
}

fn text(difference: &Difference, plans: [&PlanDir; 2], same: bool) -> String {
    let rows = [("A", &difference.a, plans[0]), ("B", &difference.b, plans[1])].map(|(name, side, plan)| head(name, side, plan));
    let columns = [Column::after(""), Column::WORDS, Column::WORDS, Column::WORDS, Column::WORDS, Column::WORDS, Column::WORDS];
    let mut text = align(&rows, columns);
    if same {
        text.push_str("\nthe programs are the same\n");
    } else if difference.ranks.is_empty() {
        text.push_str("\nno rank holds or sends more or less\n");
    }
    let is_by_rank = difference.a.world_size == difference.b.world_size;
    difference.ranks.iter().for_each(|ranks| text.push_str(&ranks_text(ranks, is_by_rank)));
    text
}

/// A line on a plan.
fn head(name: &str, side: &Side, plan: &PlanDir) -> [String; 7] {
    let axes: Vec<String> = side.mesh.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let idle = side.idle_share.map_or("waits for ever".to_string(), |share| format!("idle {:.1} %", 100.0 * share));
    [
        name.to_string(),
        format!("`{}`", plan.path.display()),
        counted(side.world_size, "rank") + &if axes.is_empty() { String::new() } else { format!(" ({})", axes.join(" ")) },
        counted(side.microbatches, "micro-batch"),
        format!("peak {} on rank {}", bytes_text(side.peak_bytes), side.fullest_rank),
        format!("all ranks send {}", bytes_text(side.bytes_sent)),
        idle,
    ]
}

/// A table of ranks that differ alike, or of the two that hold most.
fn ranks_text(ranks: &Ranks, is_by_rank: bool) -> String {
    let Ranks { of_a, of_b, a, b, calls } = ranks;
    let title = match is_by_rank {
        true => ranges(of_a),
        false => format!("rank {} of A, rank {} of B, which hold most", of_a[0], of_b[0]),
    };
    let mut rows = vec![[String::new(), "A".to_string(), "B".to_string(), String::new()]];
    for ((name, a), (_, b)) in numbers(a).into_iter().zip(numbers(b)) {
        if a != b {
            rows.push([name.to_string(), bytes_text(a), bytes_text(b), change(a, b)]);
        }
    }
    for Calls { kind, axis, carries, a, b } in calls {
        let name = format!("{} of {carries} over {axis}", kind.name());
        rows.push([name, sent_text(a), sent_text(b), change(a.bytes_sent, b.bytes_sent)]);
    }
    let columns = [Column::after("  "), Column::NUMBERS, Column::NUMBERS, Column::NUMBERS];
    format!("\n{title}\n{}", align(&rows, columns))
}

/// What is told of a rank, by name.
fn numbers(held: &Held) -> [(&'static str, u64); 6] {
    [
        ("peak", held.peak_bytes),
        ("parameters", held.parameter_bytes),
        ("gradients", held.gradient_bytes),
        ("optimizer", held.optimizer_bytes),
        ("activations", held.activation_bytes),
        ("sent", held.bytes_sent),
    ]
}

fn sent_text(sent: &Sent) -> String {
    match sent.calls {
        0 => "none".to_string(),
        calls => format!("{} in {calls}", bytes_text(sent.bytes_sent)),
    }
}

/// By how much `b` is more or less than `a`.
fn change(a: u64, b: u64) -> String {
    match (a, b) {
        (0, _) | (_, 0) => String::new(),
        _ => format!("{:+.1} %", 100.0 * (b as f64 / a as f64 - 1.0)),
    }
}

/// `rank 3`, or `ranks 0-3, 6`.
fn ranges(ranks: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = vec![];
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let run = |(first, last): &(u64, u64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let runs: Vec<String> = runs.iter().map(run).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, runs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_stand_in_runs() {
        assert_eq!([ranges(&[3]), ranges(&[0, 1, 2, 5]), ranges(&[1, 3])], ["rank 3", "ranks 0-2, 5", "ranks 1, 3"]);
        assert_eq!([change(200, 100), change(0, 5), change(8, 9)], ["-50.0 %", "", "+12.5 %"]);
    }
}
