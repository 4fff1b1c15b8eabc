//! Vector clocks: of each stream, how much of its work comes before.

use std::collections::BTreeMap;

/// For each stream the number of its last operation that comes before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<u64, u64>);

impl Clock {
    /// Takes in what comes before `other`.
    pub fn join(&mut self, other: &Clock) {
        for (stream, number) in &other.0 {
            self.reach(*stream, *number);
        }
    }

    /// Operation `number` of `stream` comes before.
    pub fn reach(&mut self, stream: u64, number: u64) {
        let known = self.0.entry(stream).or_default();
        *known = number.max(*known);
    }

    /// Whether operation `number` of `stream` comes before.
    pub fn covers(&self, stream: u64, number: u64) -> bool {
        self.of(stream) >= number
    }

    /// The last operation of `stream` that comes before.
    pub fn of(&self, stream: u64) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }
}
