//! What an evaluation adds up over its steps: the loss, hits, and the model's outputs.

use super::Evaluation;
use super::score::Score;
use shardc_executor::run::StepResult;
use shardc_executor::tensor::Tensor;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The totals over steps.
#[derive(Debug, Default)]
pub struct Totals {
    /// Samples that count so far.
    pub samples: u64,
    /// Samples at the end of the data that fill no batch, and could not be filled up: they are not
    /// counted ([`Evaluation::add_rest`]).
    pub left: u64,
    /// The model's outputs, if they are kept.
    pub outputs: Outputs,
    sum: f64,
    labels: f64,
    hits: u64,
}

/// The model's outputs for all samples.
#[derive(Debug, Default)]
pub struct Outputs {
    /// By name, samples along dimension 0.
    pub arrays: BTreeMap<String, Tensor>,
    /// Names of outputs without a dimension of samples that differ between batches.
    pub differing: Vec<String>,
}

impl Totals {
    /// Adds a step of `batch` samples, of which the first `real` count.
    pub(super) fn add(&mut self, of: &Evaluation, arrays: &[Tensor], result: StepResult, (batch, real): (u64, u64)) {
        let StepResult { mut outputs } = result;
        self.samples += real;
        if let Some((sum, labels)) = &of.loss {
            let mut number = |name| outputs.remove(name).and_then(|output| output.first()).unwrap_or(f64::NAN);
            self.sum += number(sum);
            self.labels += number(labels);
        }
        if let Some(classes) = &of.classes {
            self.hits += classes.hits(&outputs, arrays);
        }
        if of.asked.is_none() {
            outputs.into_iter().for_each(|(name, output)| {
                let real = of.is_by_sample(&name, &output, batch).then_some(real);
                self.outputs.add(name, output, real);
            });
        }
    }

    pub(super) fn score(&self, of: &Evaluation) -> Score {
        if of.loss.is_none() {
            return Score::default();
        }
        let loss = Some(self.sum / self.labels).filter(|_| self.labels > 0.0);
        let (accuracy, perplexity) = match of.classes.as_ref().zip(loss) {
            Some((classes, loss)) => classes.measured(loss, self.hits as f64 / self.labels),
            None => (None, None),
        };
        Score { loss, labels: Some(self.labels as u64), accuracy, perplexity }
    }
}

impl Outputs {
    /// Adds the first `real` samples of an output. One without a dimension of samples is the same
    /// for all batches, or left out.
    fn add(&mut self, name: String, mut output: Tensor, real: Option<u64>) {
        if self.differing.contains(&name) {
            return;
        }
        if let Some(real) = real {
            output.bytes.truncate(output.bytes.len() / output.shape[0] as usize * real as usize);
            output.shape[0] = real;
        }
        match self.arrays.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(output)),
            Entry::Occupied(mut entry) => match real {
                Some(real) => {
                    let all = entry.get_mut();
                    all.bytes.extend(output.bytes);
                    all.shape[0] += real;
                }
                None if *entry.get() != output => self.differing.push(entry.remove_entry().0),
                None => {}
            },
        }
    }
}
