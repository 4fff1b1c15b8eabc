//! Progress of training, for people: one line that redraws itself on a terminal, elsewhere a line
//! now and then.
//!
//! The loss is the mean of the last [`RECENT`] steps. Parts that a window has no room for are left
//! out: first the share of the peak, then the rate, the bar, the time that is left, the loss.

use super::foot;
use super::output::note;
use crate::training::Rates;
use shardc_executor::train::Metrics;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The time between two updates of the line on a terminal.
const REDRAW: Duration = Duration::from_millis(100);
/// The time between two lines elsewhere.
const LINE: Duration = Duration::from_secs(10);
/// The share of a new step in the running mean of step times.
const SMOOTHING: f64 = 0.1;
/// Steps whose losses the mean is of.
const RECENT: usize = 20;
/// The least and the greatest length of the bar, its ends included.
const BAR: (usize, usize) = (10, 42);
/// Columns that stay free, so that neither a full row nor the `^C` of a terminal begins another
/// one.
const FREE: usize = 3;
/// The placeholder of the bar.
const BAR_HERE: &str = "";

/// The unit of what a step takes in, to count by.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Such as `tokens`.
    pub name: &'static str,
    /// How many of them a step takes.
    pub each_step: u64,
}

/// The progress of training.
pub struct Progress {
    steps: u64,
    unit: Unit,
    shown: Option<Instant>,
    seconds: Option<f64>,
    losses: VecDeque<f64>,
    last: Option<Parts>,
}

/// The parts of a line.
#[derive(Debug, Clone, Default)]
struct Parts {
    /// Steps done.
    done: u64,
    steps: u64,
    loss: String,
    rate: String,
    /// Empty where no peak is known.
    share: String,
    left: String,
}

impl Progress {
    /// Of a run that ends with step `steps`.
    pub fn new(steps: u64, unit: Unit) -> Progress {
        Progress { steps, unit, shown: None, seconds: None, losses: VecDeque::new(), last: None }
    }

    /// Shows a step, if it is time.
    pub fn step(&mut self, metrics: &Metrics, rates: &Rates) {
        let mean = self.seconds.map_or(metrics.seconds, |mean| mean + SMOOTHING * (metrics.seconds - mean));
        self.seconds = Some(mean);
        self.losses.extend(metrics.loss);
        if self.losses.len() > RECENT {
            self.losses.pop_front();
        }
        let parts = self.parts(metrics, mean, rates);
        let is_last = parts.done == self.steps;
        let columns = foot::columns();
        let wait = if columns.is_some() { REDRAW } else { LINE };
        if is_last || self.shown.is_none_or(|shown| shown.elapsed() >= wait) {
            self.shown = Some(Instant::now());
            match columns {
                Some(columns) => foot::draw(&layout(&parts, columns), columns),
                None => note(&plain(&parts)),
            }
        }
        self.last = Some(parts);
    }

    /// Ends the line, which stays with the last step.
    pub fn finish(&mut self) {
        if let (Some(parts), Some(columns)) = (self.last.take(), foot::columns()) {
            foot::draw(&layout(&parts, columns), columns);
            foot::end();
        }
    }

    fn parts(&self, metrics: &Metrics, seconds: f64, rates: &Rates) -> Parts {
        let done = metrics.step + 1;
        // Of a step without a number the mean of others says nothing.
        let mean = self.losses.iter().sum::<f64>() / self.losses.len() as f64;
        let rate = rate_text(self.unit.each_step as f64 / seconds.max(1e-9));
        // As wide as before, so that nothing moves where a number loses a digit.
        let before = self.last.clone().unwrap_or_default();
        let padded = |text: String, before: &str| format!("{text:>width$}", width = before.len());
        Parts {
            done,
            steps: self.steps,
            loss: padded(metrics.loss.map_or("-".to_string(), |_| loss_text(mean)), &before.loss),
            rate: padded(format!("{rate} {}/s", self.unit.name), &before.rate),
            share: rates.share_of_peak(seconds).map_or(String::new(), |share| padded(share_text(share), &before.share)),
            left: padded(format!("{} left", clock_text((self.steps - done) as f64 * seconds)), &before.left),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The line for a terminal of `columns`, of fewer characters than those.
fn layout(parts: &Parts, columns: usize) -> String {
    let room = columns.saturating_sub(FREE);
    let Parts { done, steps, loss, rate, share, left } = parts;
    let counter = format!("{done:>width$}/{steps}", width = steps.to_string().len());
    let (step, mean, loss) = (format!("step {counter}"), format!("mean loss {loss}"), format!("loss {loss}"));
    let percent = format!("{}%", done * 100 / (*steps).max(1));
    let with_share: &[&str] = &[&step, BAR_HERE, &mean, rate, share, left];
    let lines: [&[&str]; 12] = [
        if share.is_empty() { &[&step, BAR_HERE, &mean, rate, left] } else { with_share },
        &[&step, BAR_HERE, &mean, rate, left],
        &[&step, BAR_HERE, &mean, left],
        &[&step, BAR_HERE, &loss, left],
        &[&counter, BAR_HERE, &loss, left],
        &[&step, &loss, left],
        &[&counter, &loss, left],
        &[&counter, &loss],
        &[&step],
        &[&counter],
        &[&percent],
        &[],
    ];
    let width = |line: &[&str]| line.iter().map(|part| part.len()).sum::<usize>() + 2 * line.len().saturating_sub(1);
    let least = |line: &[&str]| width(line) + if line.contains(&BAR_HERE) { BAR.0 } else { 0 };
    let line = lines.into_iter().find(|line| least(line) <= room).unwrap_or_default();
    let bar = bar((*done, *steps), (room - width(line).min(room)).min(BAR.1));
    line.iter().map(|part| if *part == BAR_HERE { &*bar } else { *part }).collect::<Vec<_>>().join("  ")
}

/// `[====>     ]` in `length` characters.
fn bar((done, steps): (u64, u64), length: usize) -> String {
    let inside = length.saturating_sub(2);
    let filled = (inside as f64 * done as f64 / steps.max(1) as f64) as usize;
    let head = if filled < inside { ">" } else { "" };
    format!("[{:<inside$}]", "=".repeat(filled) + head)
}

/// The line where it stays, under others of its kind.
fn plain(parts: &Parts) -> String {
    let Parts { done, steps, loss, rate, share, left } = parts;
    let share = if share.is_empty() { String::new() } else { format!("  {share:>12}") };
    format!("step {done:>width$}/{steps}  mean loss {loss:>7}  {rate:>15}{share}  {left:>10}", width = steps.to_string().len())
}

fn loss_text(loss: f64) -> String {
    if loss != 0.0 && !(1e-3..1e4).contains(&loss.abs()) { format!("{loss:.2e}") } else { format!("{loss:.4}") }
}

fn rate_text(rate: f64) -> String {
    match rate {
        ..1e2 => format!("{rate:.1}"),
        ..1e5 => format!("{rate:.0}"),
        ..1e8 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

fn share_text(share: f64) -> String {
    format!("{:.0} % of peak", share * 100.0)
}

/// `seconds` as `0:08`, `3:20`, `2:05:00`.
fn clock_text(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..3600 => format!("{}:{:02}", whole / 60, whole % 60),
        3600..360_000 => format!("{}:{:02}:{:02}", whole / 3600, whole % 3600 / 60, whole % 60),
        _ => format!("{} days", (whole / 86_400).min(9999)),
    }
}

/// `seconds` as `0.25 s`, `12 s`, `3 min 20 s`, `2 h 05 min`.
pub fn time_text(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(done: u64, steps: u64) -> Parts {
        let text = str::to_string;
        let share = String::new();
        Parts { done, steps, loss: text("2.3456"), rate: text("7812 samples/s"), share, left: text("0:20 left") }
    }

    fn metrics(step: u64, loss: Option<f64>, seconds: f64) -> Metrics {
        Metrics { step, loss, grad_norm: None, lr: 0.1, loss_scale: None, seconds, samples_per_second: 64.0 / seconds }
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out() {
        let lines = [
            (100, "step  250/1000  [========>                         ]  mean loss 2.3456  7812 samples/s  0:20 left"),
            (80, "step  250/1000  [===>          ]  mean loss 2.3456  7812 samples/s  0:20 left"),
            (60, "step  250/1000  [==>       ]  mean loss 2.3456  0:20 left"),
            (55, "step  250/1000  [==>       ]  loss 2.3456  0:20 left"),
            (50, " 250/1000  [==>       ]  loss 2.3456  0:20 left"),
            (40, " 250/1000  loss 2.3456  0:20 left"),
            (30, " 250/1000  loss 2.3456"),
            (20, "step  250/1000"),
            (10, "25%"),
            (5, ""),
            (0, ""),
        ];
        for (columns, line) in lines {
            assert_eq!(layout(&parts(250, 1000), columns), line, "{columns} columns");
        }
        let known = Parts { share: share_text(0.4321), ..parts(250, 1000) };
        let line = "step  250/1000  [=====>              ]  mean loss 2.3456  7812 samples/s  43 % of peak  0:20 left";
        assert_eq!(layout(&known, 100), line);
        assert_eq!(layout(&known, 80), layout(&parts(250, 1000), 80), "the share goes first");
    }

    #[test]
    fn no_line_is_as_wide_as_the_terminal() {
        let mut large = parts(123_456_789_012, u64::MAX);
        large.loss = "-1.23e-300".to_string();
        large.rate = "999999M tokens/s".to_string();
        large.left = "9999 days left".to_string();
        let all = [parts(1, 1), parts(0, 0), parts(1, 2), parts(250, 1000), parts(1000, 1000), large];
        for (columns, parts) in (0..=200).flat_map(|columns| all.iter().map(move |parts| (columns, parts))) {
            let line = layout(parts, columns);
            // Each of these takes one column in every terminal.
            assert!(line.chars().all(|c| (' '..='~').contains(&c)), "{line:?}");
            assert!(line.len() <= columns.saturating_sub(FREE), "{columns} columns: {line:?}");
            assert!(columns < 30 || !line.is_empty(), "{columns} columns say something");
        }
    }

    #[test]
    fn bars_begin_empty_and_end_full() {
        let bars = [
            ((0, 8), "[>       ]"),
            ((1, 8), "[=>      ]"),
            ((7, 8), "[=======>]"),
            ((8, 8), "[========]"),
            ((0, 0), "[>       ]"),
        ];
        for (steps, text) in bars {
            assert_eq!(bar(steps, 10), text);
        }
    }

    #[test]
    fn lines_that_stay_stand_under_each_other() {
        let (one, other) =
            (plain(&parts(1, 1000)), plain(&Parts { loss: "0.1".into(), left: "1:00:00 left".into(), ..parts(1000, 1000) }));
        assert_eq!(one, "step    1/1000  mean loss  2.3456   7812 samples/s   0:20 left");
        assert_eq!(other, "step 1000/1000  mean loss     0.1   7812 samples/s  1:00:00 left");
    }

    #[test]
    fn the_loss_is_the_mean_of_recent_steps() {
        let mut progress = Progress::new(100, Unit { name: "samples", each_step: 64 });
        progress.shown = Some(Instant::now() + LINE);
        let mut after = |step, loss| {
            progress.step(&metrics(step, loss, 0.5), &Rates::default());
            progress.last.clone().expect("a step")
        };
        assert_eq!(after(0, Some(10.0)).loss, "10.0000");
        let second = after(1, Some(2.0));
        assert_eq!((second.done, second.loss.as_str()), (2, " 6.0000"), "no part loses its width");
        assert_eq!((second.rate.as_str(), second.left.as_str()), ("128 samples/s", "0:49 left"));
        assert_eq!(after(2, None).loss.trim(), "-");
        for step in 3..23 {
            after(step, Some(1.0));
        }
        assert_eq!(after(23, Some(1.0)).loss.trim(), "1.0000");
        progress.last = None;
    }

    #[test]
    fn numbers_are_short() {
        for (seconds, text) in [(0.2, "0.20 s"), (59.4, "59 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 05 min")] {
            assert_eq!(time_text(seconds), text);
        }
        for (seconds, text) in
            [(0.2, "0:00"), (200.0, "3:20"), (7500.0, "2:05:00"), (1e6, "11 days"), (f64::INFINITY, "9999 days")]
        {
            assert_eq!(clock_text(seconds), text);
        }
        for (rate, text) in [(0.52, "0.5"), (99.0, "99.0"), (7812.4, "7812"), (123_456.0, "123k"), (2.5e9, "2500M")] {
            assert_eq!(rate_text(rate), text);
        }
        for (loss, text) in [(0.0, "0.0000"), (2.3456, "2.3456"), (1e-5, "1.00e-5"), (-12345.0, "-1.23e4")] {
            assert_eq!(loss_text(loss), text);
        }
    }
}
