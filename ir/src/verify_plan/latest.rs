//! Who was the last to write to some bytes, found in logarithmic time however ranges overlap: a
//! segment tree over the bounds of the places that are asked for.

use super::memory::Place;

/// The latest of growing numbers that was written to any byte of a place; 0 where none was.
pub struct Latest {
    /// 0 and the bounds of all places with all their slots, ascending; a segment lies between two
    /// neighbors.
    bounds: Vec<u64>,
    /// For each node of the tree, the root at 1, the latest written to all of its segments at once.
    to_all: Vec<u32>,
    /// For each node, the latest written to any of its segments.
    to_any: Vec<u32>,
}

/// The leaves of the segments that share a byte with a place.
#[derive(Debug, Clone, Copy)]
pub struct Leaves {
    first: usize,
    end: usize,
    slots: u64,
    /// How far those of one slot are behind those of the slot before.
    shift: usize,
}

impl Leaves {
    /// The first, and the one behind the last, at micro-batch `time`.
    fn at(&self, time: u64) -> (usize, usize) {
        let shift = (time % self.slots) as usize * self.shift;
        (self.first + shift, self.end + shift)
    }
}

impl Latest {
    /// Nothing is written yet; only such places will be asked for.
    pub fn over(places: impl Iterator<Item = Place>) -> Latest {
        let slots = places.filter(|place| !place.is_empty()).flat_map(|place| (0..place.slots()).map(move |slot| place.at(slot)));
        let mut bounds: Vec<u64> = slots.flat_map(|bytes| [bytes.start, bytes.end]).chain([0]).collect();
        bounds.sort();
        bounds.dedup();
        let nodes = vec![0; 2 * bounds.len()];
        Latest { bounds, to_all: nodes.clone(), to_any: nodes }
    }

    /// The leaves of a place. All slots have the same bounds, so the leaves of each are as far
    /// apart.
    pub fn leaves(&self, place: &Place) -> Leaves {
        let count = self.bounds.len();
        let of = |slot: u64| {
            let bytes = place.at(slot);
            let first = self.bounds.partition_point(|bound| *bound <= bytes.start) - 1;
            let end = self.bounds.partition_point(|bound| *bound < bytes.end).min(count - 1);
            if place.is_empty() { (first, first) } else { (first, end.max(first)) }
        };
        let ((first, end), slots) = (of(0), place.slots());
        let shift = if slots > 1 { of(1).0 - first } else { 0 };
        Leaves { first: count + first, end: count + end, slots, shift }
    }

    /// Writes `number`, larger than all before, to a place at micro-batch `time`.
    pub fn write(&mut self, leaves: &Leaves, time: u64, number: u32) {
        let (first, end) = leaves.at(time);
        if first == end {
            return;
        }
        let (to_all, to_any) = (&mut self.to_all, &mut self.to_any);
        cover(first, end, |node| (to_all[node], to_any[node]) = (number, number));
        above(first, end - 1, |node| to_any[node] = number);
    }

    /// The latest number that was written to a byte of a place at micro-batch `time`.
    pub fn of(&self, leaves: &Leaves, time: u64) -> u32 {
        let (first, end) = leaves.at(time);
        let mut latest = 0;
        if first < end {
            cover(first, end, |node| latest = self.to_any[node].max(latest));
            above(first, end - 1, |node| latest = self.to_all[node].max(latest));
        }
        latest
    }
}

/// Visits the nodes that together have exactly these leaves.
fn cover(mut first: usize, mut end: usize, mut visit: impl FnMut(usize)) {
    while first < end {
        if first % 2 == 1 {
            visit(first);
            first += 1;
        }
        if end % 2 == 1 {
            end -= 1;
            visit(end);
        }
        (first, end) = (first / 2, end / 2);
    }
}

/// Visits the nodes above two leaves.
fn above(first: usize, last: usize, mut visit: impl FnMut(usize)) {
    let (mut first, mut last) = (first / 2, last / 2);
    while last > 0 {
        visit(last);
        if first != last && first > 0 {
            visit(first);
        }
        (first, last) = (first / 2, last / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::Latest;
    use crate::verify_plan::memory::{Place, Slot, Slots};

    #[test]
    fn the_latest_is_that_of_bytes_one_by_one() {
        let mut seed = 7u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..400 {
            // Three slots of 10 bytes, and 40 bytes of one slot before or behind them.
            let (several, one) = if round % 2 == 0 { (40, 0) } else { (0, 30) };
            let slots = Slots::from([(several, Slot { end: several + 10, count: 3 })]);
            let mut place = || {
                let (from, size) = if below(2) == 0 { (one, 40) } else { (several, 10) };
                let start = from + below(size);
                Place::of(&slots, &(start..start + below(from + size - start + 1)))
            };
            let asked: Vec<Place> = (0..round % 9).map(|_| place()).collect();
            let mut latest = Latest::over(asked.iter().copied());
            let mut bytes = [0; 70];
            for number in 1..30 {
                let (written, time) = (place(), u64::from(number) % 5);
                latest.write(&latest.leaves(&written), time, number);
                let at = |place: &Place, time| place.at(time).start as usize..place.at(time).end as usize;
                bytes[at(&written, time)].fill(number);
                for asked in &asked {
                    for time in 0..3 {
                        let found = bytes[at(asked, time)].iter().max().copied().unwrap_or(0);
                        assert_eq!(latest.of(&latest.leaves(asked), time), found, "{asked:?} after {written:?}");
                    }
                }
            }
        }
    }
}
