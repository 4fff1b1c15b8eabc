//! What was seen of kernels and calls while jobs ran.

use crate::timing::TimedStep;
use shardc_executor::profile::Timed;
use shardc_ir::kernel::{CommunicationKind, Kernel};
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Turn};
use shardc_simulator::kernels::Load;
use std::time::Duration;

/// Kernels and calls with the seconds that they took, and the seconds of steps that no rank used.
#[derive(Debug, Default)]
pub struct Observed {
    /// Kernels.
    pub kernels: Vec<(Load, f64)>,
    /// Calls, and messages, by the bytes that a rank sends in them.
    pub calls: Vec<(CommunicationKind, f64, f64)>,
    /// What steps took beside what the slowest rank did.
    pub beside: Vec<f64>,
}

impl Observed {
    /// Notes a kernel.
    pub fn kernel(&mut self, load: Load, seconds: f64) {
        self.kernels.push((load, seconds));
    }

    /// Notes the steps of a job: of each turn what it usually takes.
    pub fn add(&mut self, programs: &PlanSet, steps: &[TimedStep]) {
        let Some(first) = steps.first() else { return };
        for (rank, turns) in first.turns.iter().enumerate() {
            let program = programs.of_rank(programs.mesh(), rank as u64);
            for (at, turn) in turns.iter().enumerate() {
                let is_alike = programs.programs.len() == 1 && is_call(program, turn.turn);
                let time = |step: &TimedStep| match is_alike {
                    true => call_time(&step.turns, at),
                    false => own_time(step.turns.get(rank)?, at),
                };
                let times = steps.iter().filter_map(time);
                self.turn(program, turn.turn, median(times.collect()));
            }
        }
        let end = |turns: &Vec<Timed>| turns.last().map_or(0.0, |last| (last.start + last.time).as_secs_f64());
        let beside = steps.iter().map(|step| step.time.as_secs_f64() - step.turns.iter().map(end).fold(0.0, f64::max));
        self.beside.push(median(beside.collect()));
    }

    fn turn(&mut self, program: &Program, turn: Turn, seconds: f64) {
        match turn {
            Turn::Launch(launch) => match &program.step(launch).kernel {
                Kernel::Collective(call) => {
                    let members = call.axes.iter().map(|axis| program.mesh.size(*axis)).product();
                    self.calls.push((call.kind.into(), call.bytes_sent(members) as f64, seconds));
                }
                kernel => self.kernels.extend(Load::of(kernel, &program.mesh).map(|load| (load, seconds))),
            },
            Turn::Exchange(row) => {
                let (mut bytes, mut messages) = (0.0, 0);
                for (message, _) in program.exchange(row) {
                    bytes += message.view.bytes as f64;
                    messages += 1;
                }
                if messages > 0 {
                    let each = f64::from(messages);
                    self.calls.push((CommunicationKind::Send, bytes / each, seconds / each));
                }
            }
        }
    }
}

fn is_call(program: &Program, turn: Turn) -> bool {
    matches!(turn, Turn::Launch(launch) if matches!(program.step(launch).kernel, Kernel::Collective(_)))
}

/// How long a call took of ranks that all run the same turns: from when the last of them came to it
/// until the last of them went on. Who was woken goes on late, and is the one that others wait for
/// in the next call.
fn call_time(turns: &[Vec<Timed>], at: usize) -> Option<f64> {
    let start = turns.iter().map(|turns| turns.get(at).map(|turn| turn.start)).max()??;
    let end = turns.iter().map(|turns| until(turns, at)).max()??;
    Some(end.saturating_sub(start).as_secs_f64())
}

/// When a rank goes on from a turn.
fn until(turns: &[Timed], at: usize) -> Option<Duration> {
    let turn = turns.get(at)?;
    Some(turns.get(at + 1).map_or(turn.start + turn.time, |next| next.start))
}

/// How long a rank was busy with a turn: until the next one begins, without what it waited.
fn own_time(turns: &[Timed], at: usize) -> Option<f64> {
    let turn = turns.get(at)?;
    Some((until(turns, at)? - turn.start).saturating_sub(turn.waited).as_secs_f64())
}

/// The middle one; of none 0.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}
