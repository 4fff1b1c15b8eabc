//! Who was the last to write to some bytes, found in logarithmic time however ranges overlap: a
//! segment tree over the bounds of the places that are asked for, one for each slot of a buffer
//! with several, and one for all other bytes.

use super::memory::Place;
use std::collections::BTreeMap;

/// The latest of growing numbers that was written to any byte of a place; 0 where none was.
pub struct Latest {
    /// The trees of each buffer with several slots, by its first byte, and that of all other bytes.
    trees: BTreeMap<Option<u64>, Trees>,
    nodes: Vec<Node>,
}

/// The trees of the slots of one buffer, which are alike.
struct Trees {
    /// The bounds of all places in the first slot, ascending; a segment lies between two neighbors.
    bounds: Vec<u64>,
    /// Where their nodes begin.
    first: usize,
    slots: u64,
}

/// The latest number that was written to all segments of a node at once, and to any of them.
type Node = [u32; 2];

/// The leaves of the segments that share a byte with a place.
#[derive(Debug, Clone, Copy)]
pub struct Leaves {
    /// Where the nodes of the first slot begin.
    tree: usize,
    /// How many nodes each slot has.
    size: usize,
    slots: u64,
    /// The first leaf, and the one behind the last.
    leaves: (usize, usize),
}

impl Leaves {
    /// Where the nodes of the tree begin, of which the first is not used and the second is the
    /// root, at micro-batch `time`.
    fn tree(&self, time: u64) -> usize {
        self.tree + (time % self.slots) as usize * self.size
    }
}

impl Latest {
    /// Nothing is written yet; only such places will be asked for.
    pub fn over(places: impl Iterator<Item = Place>) -> Latest {
        let mut trees: BTreeMap<Option<u64>, Trees> = BTreeMap::new();
        for place in places.filter(|place| !place.is_empty()) {
            let new = || Trees { bounds: vec![], first: 0, slots: place.slots() };
            trees.entry(place.buffer()).or_insert_with(new).bounds.extend([place.start, place.end]);
        }
        let mut count = 0;
        for of_buffer in trees.values_mut() {
            of_buffer.bounds.sort();
            of_buffer.bounds.dedup();
            of_buffer.first = count;
            count += 2 * of_buffer.bounds.len() * of_buffer.slots as usize;
        }
        Latest { trees, nodes: vec![[0; 2]; count] }
    }

    /// The leaves of a place.
    pub fn leaves(&self, place: &Place) -> Leaves {
        let Some(Trees { bounds, first, slots }) = self.trees.get(&place.buffer()).filter(|_| !place.is_empty()) else {
            return Leaves { tree: 0, size: 0, slots: 1, leaves: (0, 0) };
        };
        let count = bounds.len();
        let begin = bounds.partition_point(|bound| *bound <= place.start).saturating_sub(1);
        let end = bounds.partition_point(|bound| *bound < place.end).min(count - 1);
        Leaves { tree: *first, size: 2 * count, slots: *slots, leaves: (count + begin, count + end.max(begin)) }
    }

    /// Writes `number`, larger than all before, to a place at micro-batch `time`.
    pub fn write(&mut self, leaves: &Leaves, time: u64, number: u32) {
        let (tree, (first, end)) = (leaves.tree(time), leaves.leaves);
        if first == end {
            return;
        }
        cover(first, end, |node| self.nodes[tree + node] = [number; 2]);
        above(first, end - 1, |node| self.nodes[tree + node][1] = number);
    }

    /// The latest number that was written to a byte of a place at micro-batch `time`.
    pub fn of(&self, leaves: &Leaves, time: u64) -> u32 {
        let (tree, (first, end)) = (leaves.tree(time), leaves.leaves);
        let mut latest = 0;
        if first < end {
            cover(first, end, |node| latest = self.nodes[tree + node][1].max(latest));
            above(first, end - 1, |node| latest = self.nodes[tree + node][0].max(latest));
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
                let at = |place: &Place, time: u64| {
                    let shift = 10 * (time % place.slots());
                    (place.start + shift) as usize..(place.end + shift) as usize
                };
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
