//! Boxes of arrays: which elements of a whole array a rank holds, in words that know no mesh, so
//! that whoever splits the array another way can read them.

use crate::mesh::Mesh;
use crate::sharding::{Sharding, free_digits, origin};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A box of an array: `start[d]..start[d] + shape[d]` of each dimension `d`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Region {
    /// The first index of each dimension.
    pub start: Vec<u64>,
    /// Indices of each dimension.
    pub shape: Vec<u64>,
}

/// A box of a whole array that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Where it is in the whole array.
    pub global: Region,
    /// Where it is in the part that dimensions leave to the rank ([`Sharding::part`]), of which it
    /// holds the elements from [`Part::begin`] on.
    pub local: Region,
}

/// What a rank holds of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The shape that dimensions leave to the rank.
    pub shape: Vec<u64>,
    /// Where the rank's range of that begins, as one line of elements; 0 where it is not cut so.
    pub begin: u64,
    /// Boxes that have each element once.
    pub boxes: Vec<Held>,
}

/// As in Python: `[0:768, 32:64]`.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.start.iter().zip(&self.shape).map(|(start, size)| format!("{start}:{}", start + size));
        write!(f, "[{}]", ends.collect::<Vec<_>>().join(", "))
    }
}

impl Region {
    /// All of an array.
    pub fn whole(shape: &[u64]) -> Region {
        Region { start: vec![0; shape.len()], shape: shape.to_vec() }
    }

    /// How many elements it has; `None` where they are more than can be counted.
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))
    }

    /// Whether it lies inside an array of that shape.
    pub fn is_inside(&self, shape: &[u64]) -> bool {
        let fits = |((start, size), whole): ((&u64, &u64), &u64)| start.checked_add(*size).is_some_and(|end| end <= *whole);
        let same = self.start.len() == shape.len() && self.shape.len() == shape.len();
        same && self.start.iter().zip(&self.shape).zip(shape).all(fits)
    }

    /// Whether both have an element.
    pub fn overlaps(&self, other: &Region) -> bool {
        let mut dims = self.start.iter().zip(&self.shape).zip(other.start.iter().zip(&other.shape));
        dims.all(|((a, n), (b, m))| *a < b + m && *b < a + n)
    }

    /// Calls `f(element of the array, element of the region, elements)` for runs that are
    /// contiguous in an array of shape `of`, in their order.
    pub fn for_each_run(&self, of: &[u64], f: impl FnMut(u64, u64, u64)) {
        Region::whole(of).for_each_shared_run(self, f);
    }

    /// Calls `f(element of this one, element of the other, elements)` for runs of elements of one
    /// array that both have, contiguous in both, in their order.
    pub fn for_each_shared_run(&self, other: &Region, mut f: impl FnMut(u64, u64, u64)) {
        let dims = 0..self.shape.len();
        let end = |region: &Region, d: usize| region.start[d] + region.shape[d];
        let start: Vec<u64> = dims.clone().map(|d| self.start[d].max(other.start[d])).collect();
        let size = |d: usize| end(self, d).min(end(other, d)).saturating_sub(start[d]);
        let shape: Vec<u64> = dims.clone().map(size).collect();
        if shape.contains(&0) {
            return;
        }
        // Dimensions behind the last that is cut belong to every run, and that one's indices too.
        let outer = dims.clone().rposition(|d| shape[d] != self.shape[d] || shape[d] != other.shape[d]).unwrap_or(0);
        let run: u64 = shape.iter().skip(outer).product();
        let mut index = vec![0; outer];
        loop {
            let place = |d: usize| start[d] + index.get(d).copied().unwrap_or(0);
            let at = |region: &Region| dims.clone().fold(0, |sum, d| sum * region.shape[d] + place(d) - region.start[d]);
            f(at(self), at(other), run);
            let Some(next) = (0..outer).rev().find(|d| index[*d] + 1 < shape[*d]) else { return };
            index[next] += 1;
            index[next + 1..].fill(0);
        }
    }
}

/// What a rank at `coordinates` holds of an array of that shape.
pub fn held(sharding: &Sharding, shape: &[u64], mesh: &Mesh, coordinates: &[u64]) -> Part {
    let part = sharding.part(shape, mesh);
    let elements: u64 = part.iter().product();
    let (begin, end) = if sharding.flat.is_empty() {
        (0, elements)
    } else {
        let length = elements.div_ceil(sharding.ranges(mesh));
        let begin = sharding.range(coordinates, mesh) * length;
        (begin, (begin + length).min(elements))
    };
    let mut boxes = vec![];
    for local in of_range(&part, begin, end) {
        // Neighbours of a split dimension may be apart in the whole array.
        let mut found = vec![Held { global: Region::whole(&[]), local: Region::whole(&[]) }];
        for (d, size) in shape.iter().enumerate() {
            let splits = &sharding.dims[d];
            let digits = free_digits(splits, *size, mesh);
            let chunk = match digits.last() {
                _ if splits.is_empty() => *size,
                Some((1, n)) => *n,
                _ => 1,
            };
            let origin = origin(splits, *size, mesh);
            let stretches = stretches(local.start[d], local.shape[d], chunk, |index| origin.global(index, coordinates) as u64);
            let with = |held: &Held, (local, global, size): &(u64, u64, u64)| {
                let mut held = held.clone();
                for (region, start) in [(&mut held.local, local), (&mut held.global, global)] {
                    region.start.push(*start);
                    region.shape.push(*size);
                }
                held
            };
            found =
                found.iter().flat_map(|held| stretches.iter().map(|stretch| with(held, stretch)).collect::<Vec<_>>()).collect();
        }
        boxes.extend(found);
    }
    Part { shape: part, begin, boxes }
}

/// The local indices from `start` on that are neighbours in the whole dimension too: (local,
/// global, how many). Those of a chunk are.
fn stretches(start: u64, count: u64, chunk: u64, global: impl Fn(u64) -> u64) -> Vec<(u64, u64, u64)> {
    let mut found: Vec<(u64, u64, u64)> = vec![];
    let mut local = start;
    while local < start + count {
        let end = ((local / chunk + 1) * chunk).min(start + count);
        let (at, size) = (global(local), end - local);
        match found.last_mut() {
            Some((_, before, length)) if *before + *length == at => *length += size,
            _ => found.push((local, at, size)),
        }
        local = end;
    }
    found
}

/// The elements `from..to` of an array, in the order of rows, as boxes: at most two for each
/// dimension.
fn of_range(shape: &[u64], from: u64, to: u64) -> Vec<Region> {
    if from >= to {
        return vec![];
    }
    let Some((size, rest)) = shape.split_first() else { return vec![Region::whole(&[])] };
    let row: u64 = rest.iter().product();
    let of_row = |at: u64, from: u64, to: u64| {
        of_range(rest, from, to)
            .into_iter()
            .map(move |inner| Region { start: [vec![at], inner.start].concat(), shape: [vec![1], inner.shape].concat() })
    };
    let (first, last) = (from / row, to / row);
    if first == last {
        return of_row(first, from % row, to % row).collect();
    }
    let mut boxes = vec![];
    let whole = from.div_ceil(row);
    if whole > first {
        boxes.extend(of_row(first, from % row, row));
    }
    if whole < last {
        let start = [vec![whole], vec![0; rest.len()]].concat();
        boxes.push(Region { start, shape: [vec![last - whole], rest.to_vec()].concat() });
    }
    if last < *size {
        boxes.extend(of_row(last, 0, to % row));
    }
    boxes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::AxisId;
    use crate::philox::word;
    use crate::sharding::{Split, with_split};

    fn elements(region: &Region, of: &[u64]) -> Vec<u64> {
        let mut found = vec![];
        region.for_each_run(of, |at, own, count| {
            assert_eq!(own, found.len() as u64);
            found.extend(at..at + count);
        });
        found
    }

    #[test]
    fn ranges_are_boxes() {
        for shape in [vec![], vec![7], vec![3, 5], vec![2, 3, 4], vec![1, 6], vec![4, 1, 3], vec![0, 3]] {
            let all: u64 = shape.iter().product();
            for from in 0..=all {
                for to in from..=all {
                    let boxes = of_range(&shape, from, to);
                    assert!(boxes.iter().all(|region| region.is_inside(&shape)), "{shape:?} {from}..{to}");
                    assert!(boxes.len() < (2 * shape.len()).max(2), "{boxes:?}");
                    let found: Vec<u64> = boxes.iter().flat_map(|region| elements(region, &shape)).collect();
                    assert_eq!(found, (from..to).collect::<Vec<_>>(), "{shape:?} {from}..{to}");
                }
            }
        }
    }

    #[test]
    fn shared_runs_are_the_elements_of_both() {
        let shape = [3, 4, 2];
        let cuts = |size: u64| (0..=size).flat_map(move |from| (from..=size).map(move |to| (from, to - from)));
        let mut regions = vec![];
        for (a, n) in cuts(3) {
            for (b, m) in cuts(4) {
                regions.extend(cuts(2).map(|(c, k)| Region { start: vec![a, b, c], shape: vec![n, m, k] }));
            }
        }
        for (number, one) in regions.iter().enumerate() {
            for other in regions.iter().skip(number % 7).step_by(7) {
                let (ones, others) = (elements(one, &shape), elements(other, &shape));
                let mut found = vec![];
                one.for_each_shared_run(other, |at, there, count| {
                    let run = ones[at as usize..(at + count) as usize].to_vec();
                    assert_eq!(run, others[there as usize..(there + count) as usize]);
                    found.extend(run);
                });
                let both: Vec<u64> = ones.into_iter().filter(|element| others.contains(element)).collect();
                assert_eq!(found, both, "{one} and {other}");
            }
        }
    }

    /// The boxes of all ranks are the whole array, each element as often as ranks hold it, and
    /// where the digits of its indices say.
    #[test]
    fn what_ranks_hold_is_the_whole() {
        let mesh = Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 1);
        let mut drawn = 0;
        let mut below = |n: u64| {
            drawn += 1;
            u64::from(word(drawn, 3, 0, 0)) % n
        };
        for _ in 0..400 {
            let shape: Vec<u64> = (0..1 + below(3)).map(|_| [1, 2, 6, 12, 24][below(5) as usize]).collect();
            let mut sharding = Sharding::replicated(shape.len());
            for axis in [0, 1].map(AxisId) {
                match below(3) {
                    0 => sharding.flat.push(axis),
                    _ => {
                        let (d, stride) = (below(shape.len() as u64) as usize, [1, 2, 3, 4, 6, 12][below(6) as usize]);
                        let split = with_split(&sharding.dims[d], Split { axis, stride }, shape[d], &mesh);
                        sharding.dims[d] = split.unwrap_or(sharding.dims[d].clone());
                    }
                }
            }
            let mut times = vec![0; shape.iter().product::<u64>() as usize];
            for rank in 0..mesh.world_size() {
                let coordinates = mesh.coordinates(rank);
                let part = held(&sharding, &shape, &mesh, &coordinates);
                let mut in_part = vec![];
                for Held { global, local } in &part.boxes {
                    assert_eq!(global.shape, local.shape);
                    let (globals, locals) = (elements(global, &shape), elements(local, &part.shape));
                    for at in &globals {
                        times[*at as usize] += 1;
                        let mut rest = *at;
                        for (size, splits) in shape.iter().zip(&sharding.dims).rev() {
                            let index = rest % size;
                            rest /= size;
                            let is_own = |s: &Split| index / s.stride % mesh.size(s.axis) == coordinates[s.axis.index()];
                            assert!(splits.iter().all(is_own), "{sharding:?} {shape:?}");
                        }
                    }
                    in_part.extend(locals);
                }
                in_part.sort_unstable();
                let end = part.begin + in_part.len() as u64;
                assert_eq!(in_part, (part.begin..end).collect::<Vec<_>>());
            }
            let split = |axis: &AxisId| sharding.splits(*axis);
            let replicas: u64 = [0, 1].map(AxisId).iter().filter(|axis| !split(axis)).map(|axis| mesh.size(*axis)).product();
            assert!(times.iter().all(|n| *n == replicas), "{sharding:?} {shape:?} {times:?}");
        }
    }
}
