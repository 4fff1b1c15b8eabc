//! `shardc plan MODEL.onnx --ranks N --memory M`: the ten best ways to spread a job over ranks, and
//! the best of them as a spec.

use super::failure::Failure;
use super::init;
use super::machine::MachineArgs;
use super::output::{json, note, print, write};
use super::overwrite::Files;
use super::shown::Format;
use super::simulate::time_text;
use crate::error::Error;
use crate::search::{Again, Candidate, Found, Order, Search, Wish, search};
use crate::simulation::cluster;
use clap::Args;
use serde::Serialize;
use shardc_ir::columns::{Column, align};
use shardc_ir::listing::units::bytes_text;
use shardc_ir::spec::ZeroStage;
use std::path::{Path, PathBuf};

/// The arguments.
#[derive(Debug, Args)]
pub struct Plan {
    /// The ONNX model; its weights need not be there
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,
    /// A spec whose lines hold but for those that spread the job; by default what `init` proposes
    #[arg(long, value_name = "JOB.shard")]
    spec: Option<PathBuf>,
    /// Ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=16384))]
    ranks: u64,
    /// The memory of a rank, such as `80GB`; by default that of the cluster's device
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// The cluster: a file of TOML, such as `shardc calibrate` writes, or `a100`, `h100`, `h200`
    #[arg(long, value_name = "FILE", default_value = "h100")]
    cluster: String,
    #[command(flatten)]
    machine: MachineArgs,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Write the best spec to this file; without it, it is printed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report<'s> {
    candidates: usize,
    fitting: usize,
    planned: usize,
    best: Vec<Line<'s>>,
}

/// One way, in the JSON form.
#[derive(Debug, Serialize)]
struct Line<'s> {
    spec: &'s str,
    seconds: f64,
    estimated_seconds: f64,
    estimated_bytes: f64,
    share_of_peak: Option<f64>,
    tokens_per_second: Option<f64>,
    peak_bytes: u64,
    bytes_sent: u64,
    exposed_share: f64,
    idle_share: f64,
    why_not: Option<String>,
}

impl Plan {
    /// Searches.
    ///
    /// # Errors
    /// All that is wrong with the model, the spec or the cluster; if nothing fits.
    pub fn run(self) -> Result<(), Failure> {
        let mut files = Files::default().reads("the cluster", self.cluster.as_ref()).reads_model(&self.model);
        if let Some(spec) = &self.spec {
            files = files.reads("the spec", spec);
        }
        files.writes("--output", self.output.as_deref()).check()?;
        let (path, text) = match &self.spec {
            Some(path) => (path.clone(), std::fs::read_to_string(path).map_err(|error| read_error(path, &error))?),
            None => {
                note("no `--spec`: batch, loss and optimizer are what `shardc init` proposes");
                (PathBuf::from("starter.shard"), init::starter(&self.model)?)
            }
        };
        let threads = self.machine.read(Some("plan"))?.threads();
        let wish = Wish { ranks: self.ranks, memory: self.memory.clone(), cluster: cluster(&self.cluster)?, threads };
        let found = search(&self.model, &path, &text, &wish, note)?;
        let best = &found.best[0].spec;
        if self.output.is_some() {
            write(best, self.output.as_deref())?;
        }
        match self.format {
            Format::Json => print(&json(&report(&found))?),
            Format::Text => {
                let spec = if self.output.is_none() { format!("\nthe best as a spec:\n\n{best}") } else { String::new() };
                print(&format!("{}{spec}", table(&found, &wish.cluster.name)))
            }
        }
    }
}

fn read_error(path: &Path, error: &std::io::Error) -> Error {
    Error::io(format!("cannot read the spec `{}`", path.display()), error)
}

fn report(found: &Search) -> Report<'_> {
    let Search { best, candidates, fitting, planned } = found;
    let best = best.iter().map(|one| line(one, &best[0])).collect();
    Report { candidates: *candidates, fitting: *fitting, planned: *planned, best }
}

fn line<'s>(one: &'s Found, best: &Found) -> Line<'s> {
    let Found { spec, simulation, sent, estimate, .. } = one;
    Line {
        spec,
        seconds: simulation.seconds,
        estimated_seconds: estimate.seconds,
        estimated_bytes: estimate.bytes,
        share_of_peak: simulation.share_of_peak,
        tokens_per_second: simulation.tokens_per_second,
        peak_bytes: simulation.peak_bytes,
        bytes_sent: *sent,
        exposed_share: simulation.mean.exposed / simulation.seconds,
        idle_share: simulation.mean.idle / simulation.seconds,
        why_not: why(one, best),
    }
}

fn table(found: &Search, cluster: &str) -> String {
    let mut rows = vec![
        ["", "mesh", "zero", "parts", "schedule", "again", "step", "MFU", "peak", "sent", "exposed", "idle", "beside the best"]
            .map(str::to_string),
    ];
    for (number, one) in found.best.iter().enumerate() {
        let Found { candidate, simulation, sent, .. } = one;
        let share = |part: f64| format!("{:.1} %", 100.0 * part / simulation.seconds);
        rows.push([
            format!("{}.", number + 1),
            mesh(candidate),
            if candidate.zero > ZeroStage::Replicated { (candidate.zero as u8).to_string() } else { String::new() },
            candidate.microbatches.to_string(),
            schedule(candidate),
            again(candidate.again).to_string(),
            time_text(simulation.seconds),
            simulation.share_of_peak.map(|share| format!("{:.1} %", 100.0 * share)).unwrap_or_default(),
            bytes_text(simulation.peak_bytes),
            bytes_text(*sent),
            share(simulation.mean.exposed),
            share(simulation.mean.idle),
            why(one, &found.best[0]).unwrap_or_default(),
        ]);
    }
    let mut columns = [Column::NUMBERS; 13];
    columns[1] = Column::WORDS;
    columns[4] = Column::WORDS;
    columns[5] = Column::WORDS;
    columns[12] = Column::WORDS;
    format!(
        "{} ways on {cluster}, {} of them may fit, {} planned whole; the best {}:\n\n{}",
        found.candidates,
        found.fitting,
        found.planned,
        found.best.len(),
        align(&rows, columns),
    )
}

/// `pp=8 dp=16 tp=8 sequence`.
fn mesh(candidate: &Candidate) -> String {
    let Candidate { pp, dp, fsdp, tp, sequence, .. } = candidate;
    let axes = [("pp", pp), ("dp", dp), ("fsdp", fsdp), ("tp", tp)];
    let mut words: Vec<String> =
        axes.iter().filter(|(_, size)| **size > 1).map(|(name, size)| format!("{name}={size}")).collect();
    if *sequence {
        words.push("sequence".to_string());
    }
    if words.is_empty() { "one rank".to_string() } else { words.join(" ") }
}

fn schedule(candidate: &Candidate) -> String {
    match (candidate.pp, candidate.order) {
        (1, _) => String::new(),
        (_, Order::Plain) => "1f1b".to_string(),
        (_, Order::Interleaved(chunks)) => format!("interleaved {chunks}"),
        (_, Order::ZeroBubble) => "zb-h1".to_string(),
    }
}

fn again(again: Again) -> &'static str {
    match again {
        Again::Nothing => "",
        Again::Selective => "selective",
        Again::Blocks => "blocks",
    }
}

/// Where the time goes by which one is slower than the best; `None` of the best itself.
fn why(one: &Found, best: &Found) -> Option<String> {
    let (a, b) = (&one.simulation.mean, &best.simulation.mean);
    let more =
        [("computes", a.computing - b.computing), ("communicates, exposed,", a.exposed - b.exposed), ("waits", a.idle - b.idle)];
    let (what, seconds) = more.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let slower = one.simulation.seconds - best.simulation.seconds;
    (one.candidate != best.candidate).then(|| match seconds > 0.0 && slower > 0.0 {
        true => format!("{what} {} more", time_text(seconds)),
        false => "as fast".to_string(),
    })
}
