//! How good a model is over data, in the few numbers that people compare.

use serde::Serialize;
use shardc_executor::tensor::Tensor;
use shardc_ir::plan::set::PlanSet;
use shardc_ir::plan::{Program, ProgramOutput};
use shardc_ir::spec::Loss;
use std::collections::BTreeMap;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Score {
    /// The mean loss over all labels that count; `None` where there are none, or without a `loss`
    /// line.
    pub loss: Option<f64>,
    /// The labels that count.
    pub labels: Option<u64>,
    /// The share of them whose logit is the largest one, 0 to 1; of equal ones the first is taken.
    /// For cross entropy with one label a sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// e to the power of the mean loss. For cross entropy with several labels a sample, as those of
    /// tokens are, and without label smoothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

/// What is measured of a loss over classes.
#[derive(Debug)]
pub(super) enum Classes {
    /// Accuracy.
    One {
        /// The output of logits, samples by classes.
        logits: String,
        /// The number of the input that holds the labels.
        labels: usize,
        /// The label that does not count.
        ignored: Option<i64>,
    },
    /// Perplexity.
    Several,
}

impl Classes {
    /// What is measured of `loss`, where the programs' outputs are the model's and the two of the
    /// loss.
    pub fn of(loss: &Loss, programs: &PlanSet, of_loss: Option<(&str, &str)>) -> Option<Classes> {
        let Loss::CrossEntropy { logits, labels, ignore_index, label_smoothing, .. } = loss else { return None };
        let (sum, count) = of_loss?;
        let outputs = programs.outputs().into_iter().filter(|(_, output)| ![sum, count].contains(&output.name.as_str()));
        let named = |(_, output): &(&Program, &ProgramOutput)| logits.as_ref().is_none_or(|name| name.value == output.name);
        let (program, output) = outputs.into_iter().find(named)?;
        if program.buffers.get(output.buffer.index())?.shape.len() > 2 {
            return (*label_smoothing == 0.0).then_some(Classes::Several);
        }
        let labels = programs.inputs().into_iter().position(|(_, input)| input.name == labels.value)?;
        Some(Classes::One { logits: output.name.clone(), labels, ignored: *ignore_index })
    }

    /// The output that it is measured from, beside those of the loss.
    pub fn logits(&self) -> Option<&str> {
        match self {
            Classes::One { logits, .. } => Some(logits),
            Classes::Several => None,
        }
    }

    /// The labels of a step that count and are the class of their sample's largest logit. A sample
    /// with a logit that is no number has no largest one. Labels that fill up a batch are no class.
    pub fn hits(&self, outputs: &BTreeMap<String, Tensor>, inputs: &[Tensor]) -> u64 {
        let Classes::One { logits, labels, ignored } = self else { return 0 };
        let (Some(logits), Some(labels)) = (outputs.get(logits), inputs.get(*labels)) else { return 0 };
        let classes = logits.shape.last().copied().unwrap_or(1).max(1) as usize;
        let (logits, labels) = (logits.to_f64(), labels.to_i64());
        let is_hit = |(row, label): &(&[f64], &i64)| {
            let chosen = usize::try_from(**label).ok().filter(|_| Some(**label) != *ignored);
            chosen.is_some_and(|label| largest(row) == Some(label))
        };
        logits.chunks_exact(classes).zip(&labels).filter(is_hit).count() as u64
    }

    /// Accuracy and perplexity, whichever it is, for a mean loss and a share of hits.
    pub fn measured(&self, loss: f64, hits: f64) -> (Option<f64>, Option<f64>) {
        match self {
            Classes::One { .. } => (Some(hits), None),
            Classes::Several => (None, Some(loss.exp()).filter(|perplexity| perplexity.is_finite())),
        }
    }
}

/// The position of the largest number, the first of equal ones.
fn largest(row: &[f64]) -> Option<usize> {
    let later = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
    (0..row.len()).reduce(later).filter(|_| row.iter().all(|x| !x.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_logits_is_the_largest() {
        assert_eq!(largest(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(largest(&[f64::NEG_INFINITY; 2]), Some(0));
        assert_eq!(largest(&[]), None);
        assert_eq!(largest(&[0.0, f64::NAN]), None);
    }

    #[test]
    fn labels_that_do_not_count_hit_nothing() {
        let classes = |ignored| Classes::One { logits: "x".into(), labels: 1, ignored };
        let outputs = BTreeMap::from([("x".to_string(), Tensor::from_f32(&[4, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 5.0, 0.0]))]);
        let inputs = |labels: &[i64]| [Tensor::from_f32(&[4], &[0.0; 4]), Tensor::from_i64(&[4], labels)];
        assert_eq!(classes(None).hits(&outputs, &inputs(&[0, 1, 1, i64::MIN])), 2);
        assert_eq!(classes(Some(0)).hits(&outputs, &inputs(&[0, 1, 0, -100])), 1);
    }
}
