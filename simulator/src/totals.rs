//! Where the time of a simulated step goes.

use crate::run::{Event, Lane, Step};
use serde::Serialize;
use shardc_ir::kernel::Kernel;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, Turn};

/// The time of a step as shares of it: of one place, or the mean of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Seconds in which kernels run.
    pub computing: f64,
    /// Seconds in which only calls and messages run: communication that nothing hides.
    pub exposed: f64,
    /// Seconds in which nothing runs: other ranks are waited for.
    pub idle: f64,
    /// Seconds in which calls and messages run, hidden or not.
    pub communicating: f64,
}

impl Totals {
    /// Those of a place in a step of so many seconds.
    pub fn of(set: &PlanSet, lane: &Lane, seconds: f64) -> Totals {
        let program = &set.programs[lane.program];
        let (mut kernels, mut calls) = (vec![], vec![]);
        for event in &lane.events {
            let spans = if is_kernel(program, event) { &mut kernels } else { &mut calls };
            spans.push((event.start, event.end));
        }
        let (computing, communicating) = (covered(kernels.clone()), covered(calls.clone()));
        let either = covered(kernels.into_iter().chain(calls).collect());
        Totals { computing, exposed: either - computing, idle: seconds - either, communicating }
    }

    /// The mean over all ranks.
    pub fn mean(set: &PlanSet, step: &Step) -> Totals {
        let part = 1.0 / step.lanes.len().max(1) as f64;
        step.lanes.iter().map(|lane| Totals::of(set, lane, step.seconds)).fold(Totals::default(), |sum, one| Totals {
            computing: sum.computing + one.computing * part,
            exposed: sum.exposed + one.exposed * part,
            idle: sum.idle + one.idle * part,
            communicating: sum.communicating + one.communicating * part,
        })
    }
}

/// Whether an event is the launch of a kernel.
pub fn is_kernel(program: &Program, event: &Event) -> bool {
    match event.turn {
        Turn::Launch(launch) => !matches!(program.step(launch).kernel, Kernel::Collective(_)),
        Turn::Exchange(_) => false,
    }
}

/// How long at least one of the spans lasts.
fn covered(mut spans: Vec<(f64, f64)>) -> f64 {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, 0.0f64);
    for (start, end) in spans {
        sum += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_counts_once() {
        assert_eq!(covered(vec![(2.0, 4.0), (0.0, 3.0), (3.0, 3.5), (6.0, 7.0)]), 5.0);
        assert_eq!(covered(vec![]), 0.0);
    }
}
