//! How much of a step positions idle, and how many micro-batches would halve that.
//!
//! The ideal is a step in which the position with the most work never waits.

use super::{Row, Times};

/// How much a table idles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Idle {
    /// When the last row ends.
    pub makespan: u64,
    /// The ideal: the cost of all rows of the position with the most.
    pub busy_max: u64,
    /// The share of the makespan that is more than the ideal.
    pub share: f64,
}

impl Idle {
    /// The idle time as a multiple of the ideal time: (p-1)/m for GPipe and 1F1B.
    pub fn over_ideal(&self) -> f64 {
        ratio(self.makespan - self.busy_max, self.busy_max)
    }
}

/// How much lists idle that run at these times.
pub fn idle<T>(times: &Times, lists: &[Vec<Row<T>>]) -> Idle {
    let makespan = times.iter().flatten().map(|(_, end)| *end).max().unwrap_or(0);
    let busy = lists.iter().map(|rows| rows.iter().map(|row| row.cost).sum());
    let busy_max = busy.max().unwrap_or(0);
    Idle { makespan, busy_max, share: ratio(makespan - busy_max, makespan) }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The least number of micro-batches above `m`, and at most `most`, with at most half the idle
/// share of `m`. `share` gives the share of a number of micro-batches, `None` where the schedule
/// does not take it; it falls as numbers grow. `None` also where nothing idles.
pub fn microbatches_to_halve(share: impl Fn(u64) -> Option<f64>, m: u64, most: u64) -> Option<u64> {
    // Shares are quotients of whole numbers; half of one may be off in the last bit.
    let enough = share(m).filter(|s| *s > 0.0)? / 2.0 * (1.0 + 1e-12);
    let first = |mut numbers: std::ops::RangeInclusive<u64>| numbers.find_map(|n| Some((n, share(n)?)));
    // Up to `low` no number is enough, and from `high` on every one that the schedule takes.
    let mut low = m;
    let mut high = loop {
        let double = low.saturating_mul(2).min(most);
        let up_to_most = || (low + 1..double).rev().find_map(|n| Some((n, share(n)?)));
        let (n, s) = first(double.max(low + 1)..=most).or_else(up_to_most)?;
        if s <= enough {
            break n;
        }
        low = n;
    };
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match first(middle..=high - 1) {
            Some((n, s)) if s > enough => low = n,
            _ => high = middle,
        }
    }
    first(high..=most).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;

    #[test]
    fn idle_is_what_the_busiest_position_waits() {
        let row = |cost, needs: &[u32], gives: &[u32]| Row { cost, needs: needs.to_vec(), gives: gives.to_vec() };
        let lists = [vec![row(2, &[], &[1]), row(2, &[2], &[])], vec![row(6, &[1], &[2])]];
        let idle = idle(&run(&lists).expect("it ends"), &lists);
        assert_eq!(idle, Idle { makespan: 10, busy_max: 6, share: 0.4 });
        assert!((idle.over_ideal() - 4.0 / 6.0).abs() < 1e-9);
        let nothing = super::idle(&vec![], &Vec::<Vec<Row<u32>>>::new());
        assert_eq!((nothing.share, nothing.over_ideal()), (0.0, 0.0));
    }

    #[test]
    fn the_least_number_that_halves_is_found() {
        for p in 1..=16 {
            for m in 1..=40 {
                for step in [1, p, 7] {
                    for most in [m, m + 1, 100, 2 * m + p, 1000] {
                        // The share of 1F1B, and a schedule that takes only multiples of `step`.
                        let share = |m: u64| m.is_multiple_of(step).then(|| ratio(p - 1, m + p - 1));
                        let halves = |n: &u64| n.is_multiple_of(step) && *n >= 2 * m + p - 1;
                        let least = (m + 1..=most).find(halves).filter(|_| p > 1 && m.is_multiple_of(step));
                        assert_eq!(microbatches_to_halve(share, m, most), least, "p={p} m={m} step={step} most={most}");
                    }
                }
            }
        }
    }
}
