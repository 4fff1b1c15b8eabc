//! Where the time of training went: tables for people, and a trace of the last step for
//! `chrome://tracing` or Perfetto.

use super::failure::Failure;
use super::output::{print, write_whole};
use serde_json::json;
use shardc_executor::bench::Peaks;
use shardc_executor::profile::{Profile, Timed};
use shardc_ir::columns::{Column, align};
use shardc_ir::diagnostic::counted;
use shardc_ir::kernel::{CommunicationKind, Kernel, Work};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Step, Turn};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Scopes that are listed; the others are one line.
const SCOPES: usize = 16;

/// The turns of one kind, of all ranks and steps.
#[derive(Debug, Default)]
struct Sum {
    calls: u64,
    time: Duration,
    waited: Duration,
    work: Work,
    /// How long it takes at the machine's peaks.
    least: Duration,
}

impl Sum {
    fn and(mut self, other: &Sum) -> Sum {
        self.calls += other.calls;
        self.time += other.time;
        self.waited += other.waited;
        self.work = self.work.and(other.work);
        self.least += other.least;
        self
    }
}

/// Prints the tables, beside the peaks of the machine by so many `threads`, and writes the trace.
///
/// # Errors
/// If the trace cannot be written, or the machine cannot be measured.
pub fn finish(programs: &PlanSet, profile: &Profile, path: &Path, threads: usize) -> Result<(), Failure> {
    write_whole(path, trace(programs, profile).to_string().as_bytes())?;
    let peaks = Peaks::measure(threads).map_err(|why| Failure::Machine(why.into()))?;
    print(&tables(programs, profile, peaks))
}

/// The program of a rank.
pub fn program(programs: &PlanSet, rank: usize) -> &Program {
    &programs.programs[programs.at(programs.mesh(), rank as u64)]
}

/// The step that was timed, if it was no exchange.
pub fn step<'p>(program: &'p Program, timed: &Timed) -> Option<&'p Step> {
    let Turn::Launch(launch) = timed.turn else { return None };
    Some(&program.tasks[launch.task].steps[launch.step])
}

/// What a rank has done in a turn.
pub fn work(program: &Program, timed: &Timed) -> Work {
    let work = step(program, timed).and_then(|step| step.kernel.work(&program.mesh).ok());
    work.unwrap_or_default().shared_by(timed.shared_by as u64)
}

/// The form of a kernel, or the kind of a call.
pub fn kind(step: Option<&Step>) -> &'static str {
    match step.map(|step| &step.kernel) {
        None => "exchange",
        Some(Kernel::Collective(call)) => CommunicationKind::from(call.kind).name(),
        Some(kernel) => kernel.name(),
    }
}

/// What each form takes, and each scope of the model: means over ranks and steps.
fn tables(programs: &PlanSet, profile: &Profile, peaks: Peaks) -> String {
    let (mut kinds, mut scopes): (BTreeMap<String, Sum>, BTreeMap<String, Sum>) = Default::default();
    // A rank has its share of the machine.
    let share = profile.ranks.len().max(1) as f64;
    let of_rank = Peaks { flops: peaks.flops / share, bytes: peaks.bytes / share };
    for (rank, turns) in profile.ranks.iter().enumerate() {
        let program = program(programs, rank);
        for timed in turns {
            let step = step(program, timed);
            let scope = step.and_then(|step| step.provenance.scope.clone());
            let work = work(program, timed);
            let kind = kind(step).to_string();
            let one = Sum { calls: 1, time: timed.time, waited: timed.waited, work, least: of_rank.least(work) };
            for sum in [kinds.entry(kind).or_default(), scopes.entry(scope.unwrap_or_default()).or_default()] {
                *sum = std::mem::take(sum).and(&one);
            }
        }
    }
    let ranks = profile.ranks.len().max(1) as f64;
    let steps = profile.steps.max(1) as f64;
    let whole: Duration = kinds.values().map(|sum| sum.time).sum();
    let head = format!(
        "a step takes {:.3} ms, {:.3} ms of it in launches (means of {} and {}); the peaks are {:.1} GFLOP/s, {:.1} GB/s\n",
        profile.time.as_secs_f64() * 1e3 / steps,
        whole.as_secs_f64() * 1e3 / steps / ranks,
        counted(profile.steps, "step"),
        counted(profile.ranks.len(), "rank"),
        peaks.flops / 1e9,
        peaks.bytes / 1e9,
    );
    let by_kind = table("form", sorted(kinds), whole, steps, ranks);
    format!("{head}{by_kind}\n{}", table("scope", folded(sorted(scopes)), whole, steps, ranks))
}

/// What takes longest first.
fn sorted(sums: BTreeMap<String, Sum>) -> Vec<(String, Sum)> {
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.time));
    sums
}

/// The first scopes, and one line for all others.
fn folded(mut scopes: Vec<(String, Sum)>) -> Vec<(String, Sum)> {
    let others = scopes.split_off(scopes.len().min(SCOPES));
    let rest = others.iter().fold(Sum::default(), |rest, (_, sum)| rest.and(sum));
    if !others.is_empty() {
        scopes.push((format!("{} others", others.len()), rest));
    }
    scopes
}

fn table(of: &str, sums: Vec<(String, Sum)>, whole: Duration, steps: f64, ranks: f64) -> String {
    let head = [of, "launches", "ms", "share", "GFLOP/s", "GB/s", "of peak", "ms waited"];
    let mut rows = vec![head.map(str::to_string)];
    for (name, sum) in sums {
        let seconds = sum.time.as_secs_f64();
        let rate = |amount: u64| match amount {
            0 => String::new(),
            _ => format!("{:.1}", amount as f64 * steps / seconds.max(1e-12) / 1e9),
        };
        let waited = sum.waited.as_secs_f64() * 1e3 / steps / ranks;
        rows.push([
            if name.is_empty() { "no scope".to_string() } else { name },
            format!("{:.0}", sum.calls as f64 / ranks),
            format!("{:.3}", seconds * 1e3 / steps / ranks),
            format!("{:.1} %", 100.0 * seconds / whole.as_secs_f64().max(1e-12)),
            rate(sum.work.flops),
            rate(sum.work.read.saturating_add(sum.work.written)),
            match sum.work {
                Work { flops: 0, read: 0, written: 0 } => String::new(),
                _ => format!("{:.0} %", 100.0 * sum.least.as_secs_f64() * steps / seconds.max(1e-12)),
            },
            if waited > 0.0 { format!("{waited:.3}") } else { String::new() },
        ]);
    }
    let mut columns = [Column::NUMBERS; 8];
    columns[0] = Column::after("  ");
    align(&rows, columns)
}

/// The last step as events of the trace format: a process, a thread for each rank, times in
/// microseconds.
fn trace(programs: &PlanSet, profile: &Profile) -> serde_json::Value {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let event = |(rank, timed): (usize, &Timed)| {
        let program = program(programs, rank);
        let step = step(program, timed);
        let name = step.map_or_else(|| "exchange".to_string(), |step| program.text_of(step));
        let scope = step.and_then(|step| step.provenance.scope.clone());
        let work = work(program, timed);
        json!({
            "name": name, "cat": kind(step), "ph": "X", "pid": 0, "tid": rank,
            "ts": micros(timed.start), "dur": micros(timed.time),
            "args": {
                "scope": scope, "waited_us": micros(timed.waited),
                "flops": work.flops, "bytes_read": work.read, "bytes_written": work.written,
            },
        })
    };
    let events = profile.last.iter().enumerate().flat_map(|(rank, turns)| turns.iter().map(move |timed| (rank, timed)));
    json!({ "displayTimeUnit": "ms", "traceEvents": events.map(event).collect::<Vec<_>>() })
}
