//! Which bytes of the arena are taken at which moments: finds the lowest place that is free for a
//! whole life.
//!
//! A segment tree over the moments. Every node knows the bytes that are taken throughout its
//! moments, and those taken at some of them. Ranges of bytes that touch are joined, so a stack of
//! buffers is passed in one leap, and each leap costs about the square of the logarithm of the
//! number of moments.

use std::collections::BTreeMap;

/// The taken bytes of an arena.
pub struct Occupied {
    /// The number of moments, rounded up to a power of two: the leaves of the tree.
    moments: usize,
    /// For each node, from the root at 1, the bytes that a life which covers all its moments has
    /// taken.
    throughout: Vec<Ranges>,
    /// For each node, the bytes taken at some of its moments by lives that do not cover all those
    /// of the node above it.
    sometimes: Vec<Ranges>,
}

impl Occupied {
    /// An arena that is free at all moments.
    pub fn new(moments: usize) -> Occupied {
        let moments = moments.next_power_of_two();
        let free = || (0..2 * moments).map(|_| Ranges::default()).collect();
        Occupied { moments, throughout: free(), sometimes: free() }
    }

    /// The lowest offset, from `bottom`, of `bytes` bytes that are free from the moment `life.0` to
    /// `life.1`, both included.
    pub fn lowest(&self, life: (usize, usize), bytes: u64, bottom: u64) -> u64 {
        if bytes == 0 {
            return bottom;
        }
        let covering = self.cover(life);
        let above =
            covering.iter().flat_map(|node| std::iter::successors(Some(node / 2), |n| Some(n / 2)).take_while(|n| *n > 0));
        let mut above: Vec<usize> = above.collect();
        above.sort_unstable();
        above.dedup();
        let within = covering.iter().map(|node| &self.sometimes[*node]);
        let taken: Vec<&Ranges> =
            within.chain(above.iter().map(|node| &self.throughout[*node])).filter(|r| !r.is_free()).collect();
        let mut offset = bottom;
        let mut agreed = 0;
        for ranges in taken.iter().cycle() {
            if agreed == taken.len() {
                break;
            }
            match ranges.conflict(offset, bytes) {
                Some(end) => (offset, agreed) = (end, 0),
                None => agreed += 1,
            }
        }
        offset
    }

    /// Takes `bytes` bytes at `offset` for a life.
    pub fn take(&mut self, life: (usize, usize), offset: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        for node in self.cover(life) {
            self.throughout[node].insert(offset, offset + bytes);
            for above in std::iter::successors(Some(node), |n| Some(n / 2)).take_while(|n| *n > 0) {
                self.sometimes[above].insert(offset, offset + bytes);
            }
        }
    }

    /// The largest nodes that together have the moments of a life.
    fn cover(&self, life: (usize, usize)) -> Vec<usize> {
        let (mut from, mut to) = (self.moments + life.0, self.moments + life.1 + 1);
        let mut nodes = vec![];
        while from < to {
            if from % 2 == 1 {
                nodes.push(from);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                nodes.push(to);
            }
            (from, to) = (from / 2, to / 2);
        }
        nodes
    }
}

/// Bytes as ranges that do not touch: the start of each, and its end.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn is_free(&self) -> bool {
        self.0.is_empty()
    }

    /// The end of the last range that has a byte of `bytes` bytes at `offset`: between it and
    /// others there is no room for them.
    fn conflict(&self, offset: u64, bytes: u64) -> Option<u64> {
        self.0.range(..offset + bytes).next_back().map(|(_, end)| *end).filter(|end| *end > offset)
    }

    fn insert(&mut self, mut start: u64, mut end: u64) {
        while let Some((&s, &e)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_lowest_that_are_free() {
        let mut number = 7_u64;
        let mut random = |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % below
        };
        for moments in [1, 2, 13, 64] {
            let mut occupied = Occupied::new(moments as usize);
            let mut placed: Vec<((usize, usize), u64, u64)> = vec![];
            for _ in 0..300 {
                let (a, b) = (random(moments) as usize, random(moments) as usize);
                let (life, bytes) = ((a.min(b), a.max(b)), random(5) * 64);
                let meets = |other: &&((usize, usize), u64, u64)| other.0.0 <= life.1 && life.0 <= other.0.1;
                let free = |offset: &u64| !placed.iter().filter(meets).any(|(_, o, n)| *o < offset + bytes && *offset < o + n);
                let expected = (0..).map(|i| 128 + 64 * i).find(free).expect("the arena has no end");
                let offset = occupied.lowest(life, bytes, 128);
                assert_eq!(offset, expected, "{bytes} bytes at {life:?}");
                occupied.take(life, offset, bytes);
                placed.push((life, offset, bytes));
            }
        }
    }
}
