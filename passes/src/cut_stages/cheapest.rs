//! The ends that a stage can have: which of a range of them costs the least, while bytes are added
//! to ranges of them.
//!
//! A segment tree over the ends. An end costs bytes, and among equal bytes the state of the largest
//! stage from here on, which is the larger of two: that of the stages after the end, which does not
//! change, and that of the stage before it, which grows as the stage begins earlier. The second is
//! the state of all items before the end less that of the items before the stage, and what is
//! subtracted is the same for all ends. So a node keeps the least of the first over the ends where
//! the first is the larger, and the least of the second, nothing subtracted, over the others; an
//! end goes over from the first to the second once at most. Each call costs about the logarithm of
//! the number of ends.

/// What the ends cost.
pub struct Cheapest {
    /// The number of ends, rounded up to a power of two: the leaves of the tree.
    leaves: usize,
    /// From the root at 1, the least over the ends of each node, without what is added to the nodes
    /// above it.
    least: Vec<Least>,
    /// For each node, the bytes that are added to all its ends and not to all those of the node
    /// above it.
    added: Vec<i128>,
}

/// The least cost of some ends.
#[derive(Clone, Copy)]
pub struct Least {
    /// The bytes.
    pub bytes: i128,
    /// Over the ends of so many bytes, the least state after an end where that is the larger.
    pub after: u128,
    /// Over the others of them, the least state of all items before an end.
    pub before: u128,
}

/// The least over no end at all.
const NONE: Least = Least { bytes: i128::MAX, after: u128::MAX, before: u128::MAX };

impl Cheapest {
    /// Ends that each cost some bytes and have some state in the largest stage after them.
    pub fn new(ends: impl ExactSizeIterator<Item = (i128, u128)>) -> Cheapest {
        let leaves = ends.len().next_power_of_two();
        let mut least = vec![NONE; leaves];
        least.extend(ends.map(|(bytes, after)| Least { bytes, after, before: u128::MAX }));
        least.resize(2 * leaves, NONE);
        let mut cheapest = Cheapest { leaves, least, added: vec![0; 2 * leaves] };
        (1..leaves).rev().for_each(|node| cheapest.update(node));
        cheapest
    }

    /// Adds bytes to the cost of the ends from `from` up to, not including, `to`.
    pub fn add(&mut self, from: usize, to: usize, bytes: i128) {
        if from < to && bytes != 0 {
            self.add_within(1, (0, self.leaves), (from, to), bytes);
        }
    }

    /// From now on the stage before this end has more state than those after it. All items before
    /// the end have the state `before`.
    pub fn outgrow(&mut self, end: usize, before: u128) {
        let leaf = self.leaves + end;
        (self.least[leaf].after, self.least[leaf].before) = (u128::MAX, before);
        std::iter::successors(Some(leaf / 2), |n| Some(n / 2)).take_while(|n| *n > 0).for_each(|node| self.update(node));
    }

    /// The least cost of the ends from `from` up to, not including, `to`.
    pub fn least(&self, from: usize, to: usize) -> Least {
        if from < to { self.least_within(1, (0, self.leaves), (from, to)) } else { NONE }
    }

    fn update(&mut self, node: usize) {
        let least = self.least[2 * node].or(self.least[2 * node + 1]);
        self.least[node] = least.plus(self.added[node]);
    }

    /// Adds to the part of a range that lies in a node of the ends `span`.
    fn add_within(&mut self, node: usize, span: (usize, usize), range: (usize, usize), bytes: i128) {
        if range.1 <= span.0 || span.1 <= range.0 {
            return;
        }
        if range.0 <= span.0 && span.1 <= range.1 {
            self.least[node] = self.least[node].plus(bytes);
            self.added[node] += bytes;
            return;
        }
        let middle = (span.0 + span.1) / 2;
        self.add_within(2 * node, (span.0, middle), range, bytes);
        self.add_within(2 * node + 1, (middle, span.1), range, bytes);
        self.update(node);
    }

    /// The least over the part of a range that lies in a node of the ends `span`.
    fn least_within(&self, node: usize, span: (usize, usize), range: (usize, usize)) -> Least {
        if range.1 <= span.0 || span.1 <= range.0 {
            return NONE;
        }
        if range.0 <= span.0 && span.1 <= range.1 {
            return self.least[node];
        }
        let middle = (span.0 + span.1) / 2;
        let least = self.least_within(2 * node, (span.0, middle), range);
        least.or(self.least_within(2 * node + 1, (middle, span.1), range)).plus(self.added[node])
    }
}

impl Least {
    /// The least over the ends of both.
    fn or(self, other: Least) -> Least {
        match self.bytes.cmp(&other.bytes) {
            std::cmp::Ordering::Less => self,
            std::cmp::Ordering::Greater => other,
            std::cmp::Ordering::Equal => {
                Least { after: self.after.min(other.after), before: self.before.min(other.before), ..self }
            }
        }
    }

    /// The same ends with some more bytes each. No end at all stays none.
    fn plus(self, bytes: i128) -> Least {
        if self.bytes == i128::MAX { self } else { Least { bytes: self.bytes + bytes, ..self } }
    }
}
