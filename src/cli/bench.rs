//! `shardc bench`: how fast this machine is, and beside that its kernels or the steps of a job.

use super::failure::Failure;
use super::job::MaybeJobArgs;
use super::machine::MachineArgs;
use super::output::{note, print};
use super::profile::{kind, program, step, work};
use crate::job::Job;
use crate::machine::Machine;
use crate::timing;
use clap::{Args, ValueEnum};
use serde::Serialize;
use shardc_executor::bench::{self, Peaks};
use shardc_executor::profile::Timed;
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::kernel::{Kernel, Work};
use shardc_ir::mesh::Mesh;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{BufferKind, Program, Step, View};
use shardc_ir::reason::Reason;
use std::collections::BTreeMap;
use std::time::Duration;

/// Lines of a table for people; the others are one line.
const LINES: usize = 40;

/// The arguments.
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    job: MaybeJobArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// How many steps of the job are timed, of which the shortest counts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Only kernels with this word in their line
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// `text` or `json`
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// All that was measured.
#[derive(Debug, Serialize)]
struct Report {
    /// Threads of all ranks.
    threads: usize,
    /// The rate of the fastest product of f32, in GFLOP/s.
    product_gflops: f64,
    /// The rate of a copy from memory to memory, read and written, in GB/s.
    copy_gbytes: f64,
    kernels: Vec<Line>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<StepReport>,
}

/// One kernel, or those of a job that are alike: on one rank, in one step.
#[derive(Debug, Clone, Default, Serialize)]
struct Line {
    form: String,
    /// The name of a kernel of the list, or the op of a step.
    what: String,
    /// The shapes that a step reads and writes.
    #[serde(skip_serializing_if = "String::is_empty")]
    shapes: String,
    launches: f64,
    seconds: f64,
    flops: f64,
    bytes: f64,
    /// How long it takes at the machine's peaks.
    least_seconds: f64,
}

/// A whole step of a job.
#[derive(Debug, Serialize)]
struct StepReport {
    /// The shortest.
    seconds: f64,
    /// Its launches at the machine's peaks, one after another.
    least_seconds: f64,
    /// Operations of all ranks.
    flops: f64,
    /// How long the bytes of the optimizer's updates, of all ranks, take at the rate of a copy.
    update_seconds: f64,
    /// The operations over the rest of the step, as a share of the product rate.
    share_of_product_rate: f64,
}

impl Bench {
    /// Measures.
    ///
    /// # Errors
    /// All that is wrong with the job; a machine without memory for it.
    pub fn run(self) -> Result<(), Failure> {
        let machine = self.machine.read(Some("bench"))?;
        let job = self.job.clone().job().map(|job| job.open(true)).transpose()?;
        let threads = machine.threads();
        let failed = |why: Reason| Failure::Machine(why.into());
        let mut peaks = Peaks::measure(threads).map_err(failed)?;
        let (mut lines, step) = match &job {
            Some(job) => {
                let programs = job.training()?;
                let (turns, shortest) = self.steps(job, programs, &machine)?;
                peaks = peaks.max(Peaks::measure(threads).map_err(failed)?);
                let (lines, step) = summed(programs, &turns, shortest, peaks);
                (lines, Some(step))
            }
            None => (self.kernels(threads, peaks).map_err(failed)?, None),
        };
        lines.retain(|line| self.wants(line));
        let (product_gflops, copy_gbytes) = (peaks.flops / 1e9, peaks.bytes / 1e9);
        let report = Report { threads, product_gflops, copy_gbytes, kernels: lines, step };
        match self.format {
            Format::Text => print(&text(&report)),
            Format::Json => {
                let json = serde_json::to_string_pretty(&report);
                print(&(json.map_err(|error| Failure::Machine(format!("cannot write JSON: {error}")))? + "\n"))
            }
        }
    }

    fn wants(&self, line: &Line) -> bool {
        self.only.as_ref().is_none_or(|word| format!("{} {} {}", line.form, line.what, line.shapes).contains(word))
    }

    /// Everyday kernels of every form.
    fn kernels(&self, threads: usize, peaks: Peaks) -> Result<Vec<Line>, Reason> {
        let mut lines = vec![];
        for (name, kernel) in Kernel::everyday() {
            let line = Line { form: kernel.name().to_string(), what: name, launches: 1.0, ..Line::default() };
            if self.wants(&line) {
                let work = kernel.work(&Mesh::single())?;
                let mut line = Line { seconds: bench::time(&kernel, threads)?.as_secs_f64(), ..line };
                line.add(work, peaks, 1.0);
                lines.push(line);
            }
        }
        Ok(lines)
    }

    /// Steps of the job over made-up data: the shortest time of each turn, and of a step.
    fn steps(&self, job: &Job, programs: &PlanSet, machine: &Machine) -> Result<(Vec<Vec<Timed>>, Duration), Failure> {
        let mut executor = job.start(programs, machine)?;
        note(&format!("timing {} of {}", counted(self.steps, "step"), counted(programs.mesh().world_size(), "rank")));
        let steps = timing::steps(&mut executor, self.steps as usize, Duration::ZERO)?;
        let shortest = steps.iter().map(|step| step.time).min().unwrap_or_default();
        let best = steps.into_iter().map(|step| step.turns).reduce(|best, turns| shorter(best, &turns));
        Ok((best.unwrap_or_default(), shortest))
    }
}

/// For each turn the shorter of two times.
fn shorter(mut best: Vec<Vec<Timed>>, turns: &[Vec<Timed>]) -> Vec<Vec<Timed>> {
    for (best, timed) in best.iter_mut().flatten().zip(turns.iter().flatten()) {
        if timed.time < best.time {
            *best = *timed;
        }
    }
    best
}

impl Line {
    fn add(&mut self, work: Work, peaks: Peaks, part: f64) {
        self.flops += work.flops as f64 * part;
        self.bytes += work.read.saturating_add(work.written) as f64 * part;
        self.least_seconds += peaks.least(work).as_secs_f64() * part;
    }
}

/// The turns of all ranks as lines, those that take longest first, and the step that they make.
fn summed(programs: &PlanSet, turns: &[Vec<Timed>], time: Duration, peaks: Peaks) -> (Vec<Line>, StepReport) {
    let ranks = turns.len().max(1) as f64;
    // A rank has its share of the machine.
    let of_rank = Peaks { flops: peaks.flops / ranks, bytes: peaks.bytes / ranks };
    let mut lines: BTreeMap<(&str, &str, String), Line> = BTreeMap::new();
    let mut update_bytes = 0.0;
    for (rank, timed) in turns.iter().enumerate().flat_map(|(rank, turns)| turns.iter().map(move |timed| (rank, timed))) {
        let program = program(programs, rank);
        let step = step(program, timed);
        let work = work(program, timed);
        if step.is_some_and(|step| is_update(program, step)) {
            update_bytes += work.read.saturating_add(work.written) as f64;
        }
        let (form, what) = (kind(step), step.map(|step| &*step.op).unwrap_or_default());
        let shapes = step.map(|step| shapes(program, step)).unwrap_or_default();
        let line = lines.entry((form, what, shapes.clone())).or_insert_with(|| Line {
            form: form.into(),
            what: what.into(),
            shapes,
            ..Line::default()
        });
        line.launches += 1.0 / ranks;
        line.seconds += timed.time.as_secs_f64() / ranks;
        line.add(work, of_rank, 1.0 / ranks);
    }
    let mut lines: Vec<Line> = lines.into_values().collect();
    lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let seconds = time.as_secs_f64();
    let flops = lines.iter().map(|line| line.flops).sum::<f64>() * ranks;
    let update_seconds = update_bytes / peaks.bytes;
    let report = StepReport {
        seconds,
        least_seconds: lines.iter().map(|line| line.least_seconds).sum(),
        flops,
        update_seconds,
        share_of_product_rate: flops / (seconds - update_seconds).max(1e-9) / peaks.flops,
    };
    (lines, report)
}

/// Whether a step makes a state variable of the one before, element by element.
fn is_update(program: &Program, step: &Step) -> bool {
    let is_state = |buffer: usize| matches!(program.buffers[buffer].kind, BufferKind::State(_));
    matches!(step.kernel, Kernel::Map(_) | Kernel::Bundle(_)) && step.writes.iter().any(|view| is_state(view.buffer.index()))
}

/// The shapes of what a step reads and writes.
fn shapes(program: &Program, step: &Step) -> String {
    let shapes = |views: &[View]| {
        let shape = |view: &View| format!("{:?}", program.buffers[view.buffer.index()].shape);
        views.iter().map(shape).collect::<Vec<_>>().join(" ")
    };
    format!("{} to {}", shapes(&step.reads), shapes(&step.writes))
}

/// The beginning of a text that is longer than that.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_string() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

fn text(report: &Report) -> String {
    let mut out = format!(
        "this machine by {}: {:.1} GFLOP/s in products of f32, {:.1} GB/s read and written in copies\n",
        counted(report.threads, "thread"),
        report.product_gflops,
        report.copy_gbytes,
    );
    let head = ["form", "launches", "us each", "GFLOP/s", "GB/s", "of peak", "what", ""];
    let mut rows = vec![head.map(str::to_string)];
    let (listed, others) = report.kernels.split_at(match report.step {
        Some(_) => report.kernels.len().min(LINES),
        None => report.kernels.len(),
    });
    let rest = others.iter().fold(Line { what: counted(others.len(), "other"), ..Line::default() }, |sum, line| Line {
        launches: sum.launches + line.launches,
        seconds: sum.seconds + line.seconds,
        flops: sum.flops + line.flops,
        bytes: sum.bytes + line.bytes,
        least_seconds: sum.least_seconds + line.least_seconds,
        ..sum
    });
    for line in listed.iter().chain((!others.is_empty()).then_some(&rest)) {
        let rate = |amount: f64| if amount > 0.0 { format!("{:.1}", amount / line.seconds / 1e9) } else { String::new() };
        rows.push([
            line.form.clone(),
            format!("{:.0}", line.launches),
            format!("{:.1}", line.seconds / line.launches.max(1.0) * 1e6),
            rate(line.flops),
            rate(line.bytes),
            format!("{:.0} %", 100.0 * line.least_seconds / line.seconds.max(1e-12)),
            cut(&line.what, 40),
            cut(&line.shapes, 50),
        ]);
    }
    let mut columns = [Column::NUMBERS; 8];
    columns[0] = Column::after("  ");
    columns[6] = Column::WORDS;
    columns[7] = Column::WORDS;
    out.push_str(&align(&rows, columns));
    if let Some(step) = &report.step {
        out.push_str(&format!(
            "a step takes {:.2} ms; its launches at these peaks {:.2} ms, {:.0} %\n\
             without {:.2} ms for the bytes of the updates, its {:.2} GFLOP are at {:.0} % of the rate of products\n",
            step.seconds * 1e3,
            step.least_seconds * 1e3,
            100.0 * step.least_seconds / step.seconds,
            step.update_seconds * 1e3,
            step.flops / 1e9,
            100.0 * step.share_of_product_rate,
        ));
    }
    out
}
