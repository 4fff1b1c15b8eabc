//! `shardc simulate PLAN/ --cluster FILE`: how long a step takes on a cluster, and where the time
//! goes.

use super::failure::Failure;
use super::output::{json, write, write_whole};
use super::overwrite::Files;
use super::shown::Format;
use crate::plan_dir::{self, Trust};
use crate::simulation::{Beside, Simulation, beside, cluster, trace};
use clap::Args;
use serde::Serialize;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::listing::NamedSizes;
use shardc_ir::listing::units::bytes_text;
use shardc_simulator::totals::Totals;
use std::path::PathBuf;

/// The arguments.
#[derive(Debug, Args)]
pub struct Simulate {
    /// A plan directory
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// The cluster: a file of TOML, such as `shardc calibrate` writes, or `a100`, `h100`, `h200`
    #[arg(long, value_name = "FILE")]
    cluster: String,
    /// Write the step for `chrome://tracing` or Perfetto, a row for each rank and queue
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Show it beside a profile of the same plan that `train --profile` has written
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report<'s> {
    #[serde(flatten)]
    simulation: &'s Simulation,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<&'s Beside>,
}

/// Places that are listed one by one; of more, the first.
const PLACES: usize = 16;

impl Simulate {
    /// Prints the simulation.
    ///
    /// # Errors
    /// If the directory, the cluster or the profile cannot be read.
    pub fn run(self) -> Result<(), Failure> {
        let mut files = Files::default().reads_plan(&self.plan).reads("the cluster", self.cluster.as_ref());
        if let Some(measured) = &self.measured {
            files = files.reads("the profile", measured);
        }
        files.writes("--output", self.output.as_deref()).writes("--trace", self.trace.as_deref()).check()?;
        let cluster = cluster(&self.cluster)?;
        let plan = plan_dir::read(&self.plan, Trust::Graphs)?;
        let simulation = Simulation::of(&plan, &cluster)?;
        let measured = self.measured.as_deref().map(|path| beside(&simulation, path)).transpose()?;
        if let Some(path) = &self.trace {
            write_whole(path, trace(plan.programs.main(), &simulation).to_string().as_bytes())?;
        }
        let text = match self.format {
            Format::Json => json(&Report { simulation: &simulation, measured: measured.as_ref() })?,
            Format::Text => text(&simulation, measured.as_ref()),
        };
        write(&text, self.output.as_deref())
    }
}

fn text(simulation: &Simulation, measured: Option<&Beside>) -> String {
    let Simulation { cluster, world_size, seconds, mean, peak_bytes, device_bytes, .. } = simulation;
    let mut text = format!("a step on {} of {cluster} takes {}\n", counted(*world_size, "rank"), time_text(*seconds));
    if let Some(tokens) = simulation.tokens_per_second {
        text.push_str(&format!("  {tokens:.0} tokens a second\n"));
    } else {
        text.push_str(&format!("  {:.1} samples a second\n", simulation.samples_per_second));
    }
    if let Some(flops) = simulation.flops_per_rank {
        let share = simulation.share_of_peak.map(|share| format!(", {:.1} % of the peak (MFU)", 100.0 * share));
        text.push_str(&format!("  {} on each rank{}\n", rate_text(flops), share.unwrap_or_default()));
    }
    let Totals { computing, exposed, idle, communicating } = mean;
    let share = |part: &f64| format!("{:.1} %", 100.0 * part / seconds);
    text.push_str(&format!(
        "  kernels {}, exposed communication {} of {} in all, idle {}\n",
        share(computing),
        share(exposed),
        share(communicating),
        share(idle),
    ));
    let of = match device_bytes {
        Some(bytes) if bytes < peak_bytes => format!(", more than the {} of a device", bytes_text(*bytes)),
        Some(bytes) => format!(" of the {} of a device", bytes_text(*bytes)),
        None => String::new(),
    };
    text.push_str(&format!("  at most {} on a rank{of}\n", bytes_text(*peak_bytes)));
    if simulation.places.len() > 1 {
        text.push_str(&places(simulation));
    }
    text.push('\n');
    text.push_str(&kinds(simulation, measured));
    text
}

fn places(simulation: &Simulation) -> String {
    let mut rows = vec![["", "ranks", "kernels", "exposed", "idle", "peak"].map(str::to_string)];
    for place in simulation.places.iter().take(PLACES) {
        let NamedSizes(at) = &place.coordinates;
        let name: Vec<String> = at.iter().map(|(axis, position)| format!("{axis}={position}")).collect();
        let share = |part: f64| format!("{:.1} %", 100.0 * part / simulation.seconds);
        let Totals { computing, exposed, idle, .. } = place.totals;
        let held = bytes_text(place.peak_bytes);
        rows.push([name.join(" "), place.ranks.to_string(), share(computing), share(exposed), share(idle), held]);
    }
    let mut columns = [Column::NUMBERS; 6];
    columns[0] = Column::after("  ");
    let more = simulation.places.len().saturating_sub(PLACES);
    let more = if more > 0 { format!("  and {more} more\n") } else { String::new() };
    format!("\n{}{more}", align(&rows, columns))
}

/// What kernels and calls take, and what they took.
fn kinds(simulation: &Simulation, measured: Option<&Beside>) -> String {
    let head = ["", "launches", "time", "of the step", "measured", ""];
    let mut rows = vec![head.map(|word| if measured.is_none() && word == "measured" { "" } else { word }.to_string())];
    let took = |name: &str| measured.and_then(|beside| beside.kinds.get(name)).map(|pair| pair.measured);
    let mut row = |name: &str, launches: String, seconds: f64, took: Option<f64>| {
        let share = format!("{:.1} %", 100.0 * seconds / simulation.seconds);
        let change = took.filter(|took| *took > 0.0).map(|took| format!("{:+.1} %", 100.0 * (seconds / took - 1.0)));
        let took = took.map(time_text).unwrap_or_default();
        rows.push([name.to_string(), launches, time_text(seconds), share, took, change.unwrap_or_default()]);
    };
    for kind in &simulation.kinds {
        row(&kind.name, format!("{:.0}", kind.launches), kind.seconds, took(&kind.name));
    }
    if let Some(beside) = measured {
        row("the step", String::new(), simulation.seconds, Some(beside.step.measured));
    }
    let mut columns = [Column::NUMBERS; 6];
    columns[0] = Column::after("  ");
    align(&rows, columns)
}

/// A time in the unit that suits it.
pub fn time_text(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

fn rate_text(flops: f64) -> String {
    match flops {
        f if f >= 1e12 => format!("{:.1} TFLOP/s", f / 1e12),
        f => format!("{:.1} GFLOP/s", f / 1e9),
    }
}
