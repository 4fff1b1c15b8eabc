//! Positions: numbers that depend on where a rank stands in the mesh, and the way from a local
//! index to the global one.

use crate::limits::MAX_DIGITS;
use crate::mesh::{AxisId, Mesh};
use crate::reason::Reason;
use serde::{Deserialize, Serialize};

/// A number that depends on the coordinates of a rank: `base + sum of coordinate(axis) * factor`.
/// `time` counts as an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Offset {
    /// The part that all ranks share.
    pub base: i64,
    /// The parts that move with a coordinate.
    pub terms: Vec<(AxisId, i64)>,
}

impl Offset {
    /// The same number on every rank.
    pub fn constant(base: i64) -> Offset {
        Offset { base, terms: vec![] }
    }

    /// Its value at `coordinates` (one for each axis of the mesh, `time` last).
    pub fn at(&self, coordinates: &[u64]) -> i64 {
        self.terms.iter().fold(self.base, |sum, (axis, factor)| sum + coordinates[axis.index()] as i64 * factor)
    }

    /// Its lowest and its highest value over all coordinates of `mesh`.
    ///
    /// # Errors
    /// If it names an axis that the mesh does not have, or a value has no place in an `i64`.
    pub fn range(&self, mesh: &Mesh) -> Result<(i64, i64), Reason> {
        let (mut low, mut high) = (i128::from(self.base), i128::from(self.base));
        for (axis, factor) in &self.terms {
            if axis.index() >= mesh.axes().len() {
                return Err("an offset depends on an axis that is not there".into());
            }
            let reach = i128::from(mesh.size(*axis) - 1) * i128::from(*factor);
            low += reach.min(0);
            high += reach.max(0);
        }
        match (i64::try_from(low), i64::try_from(high)) {
            (Ok(low), Ok(high)) => Ok((low, high)),
            _ => Err("an offset is out of bounds".into()),
        }
    }
}

/// How one index of an iteration space maps to a global position: digits of the local index, outer
/// to inner, interleaved with the digits that mesh coordinates hold.
/// Global = `offset + sum over digits of ((local / divisor) % size) * stride`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The part that the coordinates add.
    pub offset: Offset,
    /// The digits of the local index; one digit `(1, size, 1)` where the split is outermost or
    /// absent.
    pub digits: Vec<OriginDigit>,
}

/// One digit of a local index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OriginDigit {
    /// The weight of the digit in the local index.
    pub divisor: u64,
    /// The number of values of the digit.
    pub size: u64,
    /// The weight of the digit in the global index.
    pub stride: u64,
}

impl Origin {
    /// Local and global index are the same, for a dimension of `size`.
    pub fn whole(size: u64) -> Origin {
        Origin { offset: Offset::default(), digits: vec![OriginDigit { divisor: 1, size, stride: 1 }] }
    }

    /// The global index of `local` at `coordinates`.
    pub fn global(&self, local: u64, coordinates: &[u64]) -> i64 {
        self.digits.iter().fold(self.offset.at(coordinates), |sum, d| sum + ((local / d.divisor % d.size) * d.stride) as i64)
    }

    /// Checks that it can be evaluated for indices below `size` on `mesh`.
    ///
    /// # Errors
    /// If digits are none, too many, or reach too far, or the offset is none on this mesh.
    pub fn check(&self, size: u64, mesh: &Mesh) -> Result<(), Reason> {
        self.offset.range(mesh)?;
        let reaches = |d: &OriginDigit| d.size.checked_mul(d.stride).is_some_and(|reach| reach <= i64::MAX as u64 / 64);
        let digits_fit = self.digits.iter().all(|d| d.divisor > 0 && d.size > 0 && reaches(d));
        if digits_fit && self.digits.len() <= MAX_DIGITS && size <= isize::MAX as u64 {
            Ok(())
        } else {
            Err("an origin has digits that are no digits".into())
        }
    }
}
