//! What is told of a training while it goes on: progress, metrics, curves, notes.

use super::curves::Curves;
use super::metrics::{Line, MetricsFile};
use super::output::note;
use super::progress::Progress;
use crate::checkpoint::saver::Saved;
use crate::evaluation::Score;
use crate::training::{Rates, Step};
use shardc_executor::data::Dataset;

/// Where steps are told, and what of them counts in the end.
#[derive(Default)]
pub struct Told {
    /// Whether this process speaks for all ranks.
    speaks: bool,
    /// The file of metrics.
    pub metrics: Option<MetricsFile>,
    /// The curves.
    pub curves: Option<Curves>,
    /// What a step does, and the machine could.
    pub rates: Rates,
    /// The line for people.
    pub progress: Option<Progress>,
    /// Steps that have changed nothing but the loss scale.
    pub skipped: u64,
    /// Whether a step without labels was told of.
    without_labels: bool,
}

impl Told {
    /// Nothing yet, of a process that `speaks` for all ranks or is silent.
    pub fn of(speaks: bool) -> Told {
        Told { speaks, ..Told::default() }
    }

    /// A line for people.
    pub fn note(&self, text: &str) {
        if self.speaks {
            note(text);
        }
    }

    /// Tells of a step over `data`.
    pub fn step(&mut self, step: &Step, data: &Dataset) {
        let score = step.validated.map(|validated| validated.score).unwrap_or_default();
        let line = Line::new(&step.metrics, &self.rates, &score);
        self.metrics.iter_mut().for_each(|file| file.write(&line));
        self.curves.iter_mut().for_each(|curves| curves.write(&line));
        let line = &step.metrics;
        let rates = self.rates;
        self.progress.iter_mut().for_each(|progress| progress.step(line, &rates));
        if step.validated.is_some() {
            self.note(&validation_text(line.step + 1, &score));
        }
        self.skipped += u64::from(line.grad_norm.is_none() && line.loss_scale.is_some());
        if line.loss.is_none() && data.is_ignored(line.step) && !std::mem::replace(&mut self.without_labels, true) {
            let number = line.step + 1;
            self.note(&format!("note: no label of step {number} counts, so its loss is no number, and its gradients are 0"));
        }
        step.saved.iter().for_each(|saved| self.saved(saved));
    }

    /// Tells of a checkpoint that could not be saved, or removed.
    pub fn saved(&self, Saved { step, result, left }: &Saved) {
        if let Err(why) = result {
            self.note(&format!("warning: no checkpoint of step {step}: {why}; training goes on"));
        }
        left.iter().for_each(|left| self.note(&format!("warning: {left}")));
    }
}

/// What a validation after `done` steps came to.
fn validation_text(done: u64, score: &Score) -> String {
    let number = |name: &str, value: Option<f64>| value.map(|value| format!(", {name} {value:.4}")).unwrap_or_default();
    let loss = score.loss.map_or("no loss".to_string(), |loss| format!("loss {loss:.4}"));
    let rest = number("accuracy", score.accuracy) + &number("perplexity", score.perplexity);
    format!("validation after step {done}: {loss}{rest}")
}
