//! Progress of training, for people: one line that updates itself on a terminal, elsewhere a line now and then.

use shardc_executor::train::Metrics;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// The time between two updates of the line on a terminal.
const REDRAW: Duration = Duration::from_millis(100);
/// The time between two lines elsewhere.
const LINE: Duration = Duration::from_secs(10);
/// The share of a new step in the running mean of step times.
const SMOOTHING: f64 = 0.1;

/// Where training stands.
pub struct Progress {
    steps: u64,
    terminal: bool,
    shown: Option<Instant>,
    seconds: Option<f64>,
}

impl Progress {
    /// Of a run that ends with step `steps`.
    pub fn new(steps: u64) -> Progress {
        Progress { steps, terminal: stderr().is_terminal(), shown: None, seconds: None }
    }

    /// Shows a step, if it is time.
    pub fn step(&mut self, metrics: &Metrics) {
        let mean = self.seconds.map_or(metrics.seconds, |mean| mean + SMOOTHING * (metrics.seconds - mean));
        self.seconds = Some(mean);
        let wait = if self.terminal { REDRAW } else { LINE };
        let last = metrics.step + 1 == self.steps;
        if !last && self.shown.is_some_and(|shown| shown.elapsed() < wait) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = self.line(metrics, mean);
        let mut out = stderr().lock();
        // If nobody reads it, nothing is lost.
        let _ = if self.terminal { write!(out, "\r{line}\x1b[K") } else { writeln!(out, "{line}") };
    }

    /// Ends the line.
    pub fn finish(&self) {
        if self.terminal && self.shown.is_some() {
            let _ = writeln!(stderr().lock());
        }
    }

    fn line(&self, metrics: &Metrics, mean: f64) -> String {
        let number = |value: Option<f64>| value.map_or("-".to_string(), |v| format!("{v:.4}"));
        let left = (self.steps - metrics.step - 1) as f64 * mean;
        format!(
            "step {}/{}  loss {}  grad norm {}  lr {:.3e}  {} samples/s  {} left",
            metrics.step + 1,
            self.steps,
            number(metrics.loss),
            number(metrics.grad_norm),
            metrics.lr,
            rate_text(metrics.samples_per_second),
            time_text(left),
        )
    }
}

fn rate_text(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// `seconds` as `8 s`, `3 min 20 s`, `2 h 05 min`.
pub fn time_text(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (seconds, text) in [(0.2, "0 s"), (59.4, "59 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 05 min")] {
            assert_eq!(time_text(seconds), text);
        }
    }
}
