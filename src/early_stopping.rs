//! When training has stopped getting better, and which of its moments was the best.
//!
//! ```
//! use shardc::early_stopping::EarlyStopping;
//!
//! let mut watch = EarlyStopping::new(Some(2));
//! assert!(watch.add(100, Some(1.5)), "the first loss is the best so far");
//! assert!(!watch.add(200, Some(1.6)) && !watch.is_over());
//! assert!(!watch.add(300, None) && watch.is_over());
//! assert_eq!(watch.best(), Some((100, 1.5)));
//! ```

use serde::{Deserialize, Serialize};

/// The best loss of the validations so far, and how many have come since. A checkpoint keeps
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStopping {
    #[serde(skip)]
    patience: Option<u64>,
    best: Option<(u64, f64)>,
    since: u64,
}

impl EarlyStopping {
    /// Training is over after `patience` validations in a row, at least 1, that are not the best;
    /// without it never.
    pub fn new(patience: Option<u64>) -> EarlyStopping {
        EarlyStopping { patience: patience.map(|patience| patience.max(1)), best: None, since: 0 }
    }

    /// The same validations with another patience.
    pub fn with_patience(self, patience: Option<u64>) -> EarlyStopping {
        EarlyStopping { patience: EarlyStopping::new(patience).patience, ..self }
    }

    /// Adds the loss of a validation after `step` steps, and says whether it is the best: less than
    /// all before. One that is no finite number never is.
    pub fn add(&mut self, step: u64, loss: Option<f64>) -> bool {
        let is_best = |loss: &f64| loss.is_finite() && self.best.is_none_or(|(_, best)| *loss < best);
        match loss.filter(is_best) {
            Some(loss) => {
                (self.best, self.since) = (Some((step, loss)), 0);
                true
            }
            None => {
                self.since += 1;
                false
            }
        }
    }

    /// The step and the loss of the best validation.
    pub fn best(&self) -> Option<(u64, f64)> {
        self.best
    }

    /// Whether the patience is used up.
    pub fn is_over(&self) -> bool {
        self.patience.is_some_and(|patience| self.since >= patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_lower_and_finite_is_the_best() {
        let mut watch = EarlyStopping::new(None);
        let losses =
            [None, Some(f64::NAN), Some(f64::INFINITY), Some(2.0), Some(2.0), Some(f64::NEG_INFINITY), Some(1.5), Some(1.75)];
        let best: Vec<u64> = (0..).zip(losses).filter(|(step, loss)| watch.add(*step, *loss)).map(|(step, _)| step).collect();
        assert_eq!((best, watch.best()), (vec![3, 6], Some((6, 1.5))));
        assert!(!watch.is_over(), "without patience nothing ends");
    }

    #[test]
    fn patience_counts_validations_in_a_row() {
        let mut watch = EarlyStopping::new(Some(2));
        let over = [3.0, 4.0, 2.0, 2.0, f64::NAN].map(|loss| {
            watch.add(0, Some(loss));
            watch.is_over()
        });
        assert_eq!(over, [false, false, false, false, true]);
        // A run that goes on from a checkpoint counts on.
        let text = serde_json::to_string(&watch).expect("JSON");
        let read = serde_json::from_str::<EarlyStopping>(&text).expect("it is read");
        assert_eq!((read.is_over(), read.with_patience(Some(2))), (false, watch));
        let mut never = EarlyStopping::new(Some(0));
        never.add(0, Some(1.0));
        assert!(!never.is_over(), "the best is never the end");
    }
}
