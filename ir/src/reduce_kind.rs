//! How elements are combined: by reductions, by collectives, and in partial values.

use serde::{Deserialize, Serialize};

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceKind {
    /// The sum; the sum of no elements is 0.
    Sum,
    /// The largest; of no elements -infinity.
    Max,
    /// The smallest; of no elements +infinity.
    Min,
}

impl ReduceKind {
    /// Every kind.
    pub const ALL: [ReduceKind; 3] = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];

    /// The name in text.
    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
        }
    }

    /// Two numbers combined; not-a-number stays.
    pub fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            ReduceKind::Sum => a + b,
            ReduceKind::Max | ReduceKind::Min if a.is_nan() || b.is_nan() => f64::NAN,
            ReduceKind::Max => a.max(b),
            ReduceKind::Min => a.min(b),
        }
    }

    /// The number that combines to nothing.
    pub fn neutral(self) -> f64 {
        match self {
            ReduceKind::Sum => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }
}
