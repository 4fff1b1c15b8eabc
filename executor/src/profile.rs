//! Where the time of a step goes: each launch and each exchange of each rank, timed.

use shardc_ir::plan::Turn;
use std::time::{Duration, Instant};

/// One turn of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// What it did.
    pub turn: Turn,
    /// When it began, from the beginning of the step.
    pub start: Duration,
    /// How long it took.
    pub time: Duration,
    /// How much of that it slept, waiting for other ranks.
    pub waited: Duration,
    /// How many ranks have shared it out: each has done as much of what the program says.
    pub shared_by: usize,
}

/// The times of some steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// How many steps. The first one after the start is not among them if there is another: it
    /// touches memory for the first time.
    pub steps: u64,
    /// For each rank its turns; times are sums over all steps, and starts are those of the last.
    pub ranks: Vec<Vec<Timed>>,
    /// How long the slowest rank took, all steps together.
    pub time: Duration,
    /// For each rank its turns in the last step.
    pub last: Vec<Vec<Timed>>,
    is_warm: bool,
}

impl Profile {
    pub(crate) fn add(&mut self, step: Vec<Vec<Timed>>) {
        let fits = self.ranks.len() == step.len() && self.ranks.iter().zip(&step).all(|(sums, turns)| sums.len() == turns.len());
        let turns = |ranks: &[Vec<Timed>]| ranks.iter().map(Vec::len).sum::<usize>();
        if turns(&step) < turns(&self.ranks) {
            // A step that was given up.
            return;
        }
        let end = |turns: &Vec<Timed>| turns.last().map_or(Duration::ZERO, |timed| timed.start + timed.time);
        let time = step.iter().map(end).max().unwrap_or_default();
        if self.is_warm && fits {
            self.time += time;
            for (sum, timed) in self.ranks.iter_mut().flatten().zip(step.iter().flatten()) {
                *sum = Timed { time: sum.time + timed.time, waited: sum.waited + timed.waited, ..*timed };
            }
            self.steps += 1;
        } else {
            self.is_warm = !self.ranks.is_empty();
            (self.steps, self.time, self.ranks) = (1, time, step.clone());
        }
        self.last = step;
    }
}

/// Times the turns of one rank in a step.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    began: Instant,
    timed: Vec<Timed>,
}

impl Stopwatch {
    pub fn new(began: Instant) -> Stopwatch {
        Stopwatch { began, timed: vec![] }
    }

    /// When a turn begins, and how long the rank had `waited` before.
    pub fn begin(&self, waited: Duration) -> (Duration, Duration) {
        (self.began.elapsed(), waited)
    }

    /// Notes a turn that has ended, and how many ranks share it out; `waited` is what the rank has
    /// waited until now.
    pub fn end(&mut self, turn: Turn, shared_by: usize, (start, before): (Duration, Duration), waited: Duration) {
        self.timed.push(Timed { turn, start, time: self.began.elapsed() - start, waited: waited - before, shared_by });
    }

    pub fn timed(self) -> Vec<Timed> {
        self.timed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_left_out() {
        let turn = |ms| Timed {
            turn: Turn::Exchange(0),
            start: Duration::ZERO,
            time: Duration::from_millis(ms),
            waited: Duration::ZERO,
            shared_by: 1,
        };
        let mut profile = Profile::default();
        profile.add(vec![vec![turn(100)]]);
        assert_eq!((profile.steps, profile.ranks[0][0].time.as_millis()), (1, 100));
        profile.add(vec![vec![turn(3)]]);
        profile.add(vec![vec![turn(4)]]);
        assert_eq!((profile.steps, profile.ranks[0][0].time.as_millis()), (2, 7));
        assert_eq!(profile.last[0][0].time.as_millis(), 4);
        profile.add(vec![vec![]]);
        assert_eq!((profile.steps, profile.last[0].len()), (2, 1), "a step that was given up does not count");
    }
}
