//! The mesh: named axes over ranks, and the axis of micro-batches in time.

use crate::limits::{MAX_AXES, MAX_MICROBATCHES, MAX_RANKS};
use crate::reason;
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// An axis of the mesh, by its position in [`Mesh::axes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AxisId(pub u8);

impl AxisId {
    /// The position in [`Mesh::axes`] and in coordinates.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshAxis {
    /// Its name in the spec: `dp`.
    pub name: String,
    /// Its number of positions, at least 1.
    pub size: u64,
}

/// All axes: those of ranks in the order of the spec, then `time`, whose positions are the
/// micro-batches.
///
/// A rank is the row-major position over the axes of ranks, the first axis slowest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mesh {
    axes: Vec<MeshAxis>,
}

/// The name of the axis of micro-batches.
pub const TIME: &str = "time";

impl Mesh {
    /// A mesh over `axes` (name, size) with that many micro-batches.
    pub fn new(axes: impl IntoIterator<Item = (String, u64)>, microbatches: u64) -> Mesh {
        let mut axes: Vec<MeshAxis> = axes.into_iter().map(|(name, size)| MeshAxis { name, size }).collect();
        axes.push(MeshAxis { name: TIME.to_string(), size: microbatches });
        Mesh { axes }
    }

    /// One rank, one micro-batch.
    pub fn single() -> Mesh {
        Mesh::new([], 1)
    }

    /// The same axes with one rank on each; micro-batches stay.
    pub fn reference(&self) -> Mesh {
        Mesh::new(self.rank_axes().iter().map(|a| (a.name.clone(), 1)), self.microbatches())
    }

    /// The same axes, one of them of another size.
    pub fn resized(&self, axis: AxisId, size: u64) -> Mesh {
        let mut mesh = self.clone();
        mesh.axes[axis.index()].size = size;
        mesh
    }

    /// All axes, `time` last.
    pub fn axes(&self) -> &[MeshAxis] {
        &self.axes
    }

    /// The axes of ranks.
    pub fn rank_axes(&self) -> &[MeshAxis] {
        &self.axes[..self.axes.len() - 1]
    }

    /// The axis of micro-batches.
    pub fn microbatch_axis(&self) -> AxisId {
        AxisId((self.axes.len() - 1) as u8)
    }

    /// The number of positions on `axis`.
    pub fn size(&self, axis: AxisId) -> u64 {
        self.axes[axis.index()].size
    }

    /// The name of `axis`.
    pub fn name(&self, axis: AxisId) -> &str {
        &self.axes[axis.index()].name
    }

    /// The axis with that name.
    pub fn axis(&self, name: &str) -> Option<AxisId> {
        self.axes.iter().position(|a| a.name == name).map(|i| AxisId(i as u8))
    }

    /// The number of micro-batches of a step.
    pub fn microbatches(&self) -> u64 {
        self.axes.last().map_or(1, |a| a.size)
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u64 {
        self.rank_axes().iter().map(|a| a.size).product()
    }

    /// Checks that there are axes, each with a position, and no more than [`crate::limits`] allow.
    ///
    /// # Errors
    /// The rule that is broken, in words.
    pub fn check(&self) -> Result<(), Reason> {
        let sizes = || self.axes.iter().map(|axis| axis.size);
        if self.axes.is_empty() || self.axes.len() > MAX_AXES + 1 || sizes().any(|size| size == 0) {
            return Err("the mesh has no sensible axes".into());
        }
        let ranks = sizes().take(self.axes.len() - 1).try_fold(1u64, |n, size| n.checked_mul(size));
        if ranks.is_none_or(|ranks| ranks > MAX_RANKS) || self.microbatches() > MAX_MICROBATCHES {
            return Err(reason!("the mesh is larger than {MAX_RANKS} ranks and {MAX_MICROBATCHES} micro-batches"));
        }
        Ok(())
    }

    /// The coordinates of `rank` on every axis; `time` is 0.
    pub fn coordinates(&self, rank: u64) -> Vec<u64> {
        let mut coordinates = vec![0; self.axes.len()];
        let mut rest = rank;
        for (i, axis) in self.rank_axes().iter().enumerate().rev() {
            coordinates[i] = rest % axis.size;
            rest /= axis.size;
        }
        coordinates
    }

    /// The rank at `coordinates`.
    pub fn rank(&self, coordinates: &[u64]) -> u64 {
        self.rank_axes().iter().zip(coordinates).fold(0, |rank, (axis, c)| rank * axis.size + c)
    }

    /// The ranks that differ from `rank` only on `axes`, in row-major order of `axes` as given; an
    /// axis counts once.
    pub fn group(&self, rank: u64, axes: &[AxisId]) -> Vec<u64> {
        let mut groups = vec![self.coordinates(rank)];
        for axis in axes.iter().enumerate().filter(|(i, axis)| !axes[..*i].contains(axis)).map(|(_, axis)| axis) {
            groups = groups
                .into_iter()
                .flat_map(|c| {
                    (0..self.size(*axis)).map(move |position| {
                        let mut c = c.clone();
                        c[axis.index()] = position;
                        c
                    })
                })
                .collect();
        }
        groups.iter().map(|c| self.rank(c)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_counts_once_in_a_group() {
        let mesh = Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 3)], 1);
        assert_eq!(mesh.group(4, &[AxisId(1); 40]), [3, 4, 5]);
        assert_eq!(mesh.group(4, &[AxisId(0), AxisId(1), AxisId(0)]), mesh.group(4, &[AxisId(0), AxisId(1)]));
    }
}
