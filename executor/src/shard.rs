//! Between a whole array and the part that one rank holds.

use shardc_ir::mesh::{AxisId, Mesh};
use shardc_ir::sharding::{Sharding, free_digits, origin};

/// How an array is laid over a mesh.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// The global shape.
    pub shape: &'a [u64],
    /// Its sharding.
    pub sharding: &'a Sharding,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// Bytes of one element.
    pub element: u64,
}

impl Layout<'_> {
    /// Copies the part at `coordinates` (`time` among them) of the `global` bytes to `local`, with
    /// zeros where a range of a line is filled up.
    ///
    /// # Panics
    /// If a slice is shorter than its shape, or the splits do not fit the shape.
    pub fn shard(&self, global: &[u8], coordinates: &[u64], local: &mut [u8]) {
        if self.sharding.is_padded(self.shape, self.mesh) {
            local.fill(0);
        }
        self.for_each_run(coordinates, |from, to, len| local[to..to + len].copy_from_slice(&global[from..from + len]));
    }

    /// Copies the `local` part at `coordinates` to its place in the `global` bytes.
    ///
    /// # Panics
    /// As [`Layout::shard`].
    pub fn unshard(&self, local: &[u8], coordinates: &[u64], global: &mut [u8]) {
        self.for_each_run(coordinates, |to, from, len| global[to..to + len].copy_from_slice(&local[from..from + len]));
    }

    /// Bytes of the whole array.
    pub fn global_bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element
    }

    /// Bytes of one rank's part.
    pub fn local_bytes(&self) -> u64 {
        self.sharding.local(self.shape, self.mesh).iter().product::<u64>() * self.element
    }

    /// Whether the rank at `coordinates` is the first of those that hold the same part.
    pub fn is_first_replica(&self, coordinates: &[u64]) -> bool {
        let axes = 0..self.mesh.rank_axes().len();
        axes.into_iter().all(|axis| coordinates[axis] == 0 || self.sharding.splits(AxisId(axis as u8)))
    }

    /// Calls `f(global byte, local byte, bytes)` for runs that are contiguous on both sides.
    fn for_each_run(&self, coordinates: &[u64], mut f: impl FnMut(usize, usize, usize)) {
        if self.sharding.flat.is_empty() {
            return self.for_each_run_of_part(coordinates, f);
        }
        let range = self.local_bytes() as usize;
        let begin = self.sharding.range(coordinates, self.mesh) as usize * range;
        self.for_each_run_of_part(coordinates, |global, at, len| {
            let (first, last) = (at.max(begin), (at + len).min(begin + range));
            if first < last {
                f(global + first - at, first - begin, last - first);
            }
        });
    }

    /// The same for what dimensions leave to the rank, before it is cut as a line.
    fn for_each_run_of_part(&self, coordinates: &[u64], mut f: impl FnMut(usize, usize, usize)) {
        if self.shape.contains(&0) {
            return;
        }
        // Dimensions after the last split one belong to every run.
        let split = self.sharding.dims.iter().rposition(|s| !s.is_empty());
        let inner: u64 = self.shape[split.map_or(0, |d| d + 1)..].iter().product::<u64>() * self.element;
        let Some(last) = split else { return f(0, 0, inner as usize) };
        let runs: Vec<Vec<Run>> = (0..=last).map(|d| self.runs(d, coordinates, d == last)).collect();
        let mut starts = vec![(0u64, 0u64)];
        for (d, runs) in runs.iter().enumerate().take(last) {
            let (size, local) = (self.shape[d], runs.len() as u64);
            starts = starts
                .iter()
                .flat_map(|(g, l)| runs.iter().map(move |run| (g * size + run.global, l * local + run.local)))
                .collect();
        }
        let local: u64 = runs[last].iter().map(|run| run.len).sum();
        for (g, l) in starts {
            for run in &runs[last] {
                let global = (g * self.shape[last] + run.global) * inner;
                f(global as usize, ((l * local + run.local) * inner) as usize, (run.len * inner) as usize);
            }
        }
    }

    /// The local indices of a dimension in runs of neighbours, or one by one.
    fn runs(&self, dimension: usize, coordinates: &[u64], joined: bool) -> Vec<Run> {
        let (splits, size) = (&self.sharding.dims[dimension], self.shape[dimension]);
        let digits = free_digits(splits, size, self.mesh);
        let local: u64 = digits.iter().map(|(_, n)| n).product();
        let step = if !joined {
            1
        } else if splits.is_empty() {
            size
        } else {
            digits.last().filter(|(weight, _)| *weight == 1).map_or(1, |(_, n)| *n)
        };
        let origin = origin(splits, size, self.mesh);
        let at = |index| Run { global: origin.global(index, coordinates) as u64, local: index, len: step };
        (0..local / step).map(|i| at(i * step)).collect()
    }
}

#[derive(Debug, Clone, Copy)]
struct Run {
    global: u64,
    local: u64,
    len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;
    use shardc_ir::mesh::AxisId;
    use shardc_ir::sharding::{Split, degree, with_split};

    /// Random splits of random shapes: all ranks' parts together are the whole, each with as many
    /// elements as its local shape has, and each element where the digits of its indices say.
    #[test]
    fn parts_make_the_whole() {
        let mesh = Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 2);
        let random = Stream::new(1, "shards");
        let mut at = 0;
        let mut below = |n: u64| {
            at += 1;
            random.below(at, n)
        };
        for _ in 0..400 {
            let shape: Vec<u64> = (0..1 + below(3)).map(|_| [1, 2, 6, 12, 24][below(5) as usize]).collect();
            let mut sharding = Sharding::replicated(shape.len());
            for axis in [0, 1, 2].map(AxisId) {
                let d = below(shape.len() as u64) as usize;
                let stride = [1, 2, 3, 4, 6, 12][below(6) as usize];
                if let Some(splits) = with_split(&sharding.dims[d], Split { axis, stride }, shape[d], &mesh) {
                    sharding.dims[d] = splits;
                }
            }
            let layout = Layout { shape: &shape, sharding: &sharding, mesh: &mesh, element: 2 };
            let global: Vec<u8> = (0..layout.global_bytes()).map(|i| (i * 7 % 251) as u8).collect();
            let mut whole = vec![0; global.len()];
            let mut replicas = 0;
            for rank in 0..mesh.world_size() {
                for time in 0..mesh.microbatches() {
                    let mut coordinates = mesh.coordinates(rank);
                    coordinates[2] = time;
                    let mut local = vec![0; layout.local_bytes() as usize];
                    layout.shard(&global, &coordinates, &mut local);
                    layout.unshard(&local, &coordinates, &mut whole);
                    replicas += u64::from(layout.is_first_replica(&coordinates) && (sharding.splits(AxisId(2)) || time == 0));
                    let held = held(&layout, &coordinates);
                    assert_eq!(
                        local,
                        held.iter().flat_map(|i| global[2 * i..2 * i + 2].to_vec()).collect::<Vec<_>>(),
                        "{sharding:?}"
                    );
                }
            }
            assert_eq!(whole, global, "{shape:?} {sharding:?}");
            assert_eq!(replicas, sharding.dims.iter().map(|splits| degree(splits, &mesh)).product::<u64>());
        }
    }

    /// The row-major positions whose digits are the coordinates.
    fn held(layout: &Layout<'_>, coordinates: &[u64]) -> Vec<usize> {
        let total: u64 = layout.shape.iter().product();
        let here = |position: &u64| {
            let mut rest = *position;
            layout.shape.iter().zip(&layout.sharding.dims).rev().all(|(size, splits)| {
                let index = rest % size;
                rest /= size;
                splits.iter().all(|s| index / s.stride % layout.mesh.size(s.axis) == coordinates[s.axis.index()])
            })
        };
        (0..total).filter(here).map(|position| position as usize).collect()
    }
}
