//! How a `shard` line splits one dimension, and the digits of the index that this gives each axis.

use crate::diagnostic::counted;
use crate::mesh::{AxisId, Mesh};
use crate::reason;
use crate::reason::Reason;
use crate::sharding::{Splits, outermost};
use serde::{Deserialize, Serialize};

/// One entry of `[-, ?, tp, (dp,tp), 3*tp, (64|32|32)*tp, [8:dp 32:tp]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DimSharding {
    /// `-`: whole on every rank.
    Closed,
    /// `?`: as propagation finds best.
    Open,
    /// Blocks side by side, each split by the same axes, outer to inner.
    Split {
        /// The blocks.
        blocks: Blocks,
        /// The axes, at least one.
        axes: Vec<AxisId>,
    },
    /// Letters, outer to inner: (size, the axes that split it).
    Letters(Vec<(u64, Vec<AxisId>)>),
}

/// The blocks of a dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blocks {
    /// That many of equal size; 1 is the dimension itself.
    Equal(u64),
    /// These sizes.
    Unequal(Vec<u64>),
}

impl DimSharding {
    /// The axes that split it, in the order of the text.
    pub fn axes(&self) -> Vec<AxisId> {
        match self {
            DimSharding::Closed | DimSharding::Open => vec![],
            DimSharding::Split { axes, .. } => axes.clone(),
            DimSharding::Letters(letters) => letters.iter().flat_map(|(_, axes)| axes.clone()).collect(),
        }
    }

    /// The sizes of its blocks, where they differ: then the dimension is a concatenation, and its
    /// digits are those of each block.
    pub fn unequal_blocks(&self) -> Option<&[u64]> {
        match self {
            DimSharding::Split { blocks: Blocks::Unequal(sizes), .. } if sizes.iter().any(|n| *n != sizes[0]) => Some(sizes),
            _ => None,
        }
    }

    /// How it splits one of its unequal blocks.
    pub fn of_block(&self) -> DimSharding {
        DimSharding::Split { blocks: Blocks::Equal(1), axes: self.axes() }
    }

    /// The digits of the index of a dimension of `size` that it gives to axes; `None` for an open
    /// one. Blocks of different sizes have no digits in common, and give none.
    ///
    /// # Errors
    /// Why it does not fit, in words, when sizes do not divide or add up.
    pub fn splits(&self, size: u64, mesh: &Mesh) -> Result<Option<Splits>, Reason> {
        match self {
            DimSharding::Open => Ok(None),
            DimSharding::Closed => Ok(Some(vec![])),
            DimSharding::Split { blocks: Blocks::Equal(blocks), axes } => {
                let what = if *blocks == 1 { "its size".to_string() } else { format!("each of its {blocks} blocks") };
                if !size.is_multiple_of(*blocks) {
                    return Err(reason!("{size} is not a multiple of its {blocks} blocks"));
                }
                Ok(Some(letter_splits(size / blocks, axes, 1, mesh, &what)?))
            }
            DimSharding::Split { blocks: Blocks::Unequal(sizes), axes } => {
                let total = sizes.iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
                if total != size {
                    return Err(reason!("its blocks add up to {total}, its size is {size}"));
                }
                if self.unequal_blocks().is_none() {
                    let blocks = Blocks::Equal(sizes.len() as u64);
                    return DimSharding::Split { blocks, axes: axes.clone() }.splits(size, mesh);
                }
                for block in sizes {
                    letter_splits(*block, axes, 1, mesh, "a block")?;
                }
                Ok(Some(vec![]))
            }
            DimSharding::Letters(letters) => {
                let total = letters.iter().fold(1, |product: u64, (n, _)| product.saturating_mul(*n));
                if total != size {
                    return Err(reason!("its letters multiply to {total}, its size is {size}"));
                }
                let mut splits = vec![];
                let mut inner = size;
                for (n, axes) in letters {
                    inner /= n;
                    splits.extend(letter_splits(*n, axes, inner, mesh, "a letter")?);
                }
                Ok(Some(splits))
            }
        }
    }
}

/// `axes` split a letter of `size` whose positions are `inner` apart; `what` is its name in the
/// error.
fn letter_splits(size: u64, axes: &[AxisId], inner: u64, mesh: &Mesh, what: &str) -> Result<Splits, Reason> {
    outermost(size, inner, axes, mesh).map_err(|_| {
        let names: Vec<&str> = axes.iter().map(|a| mesh.name(*a)).collect();
        let ranks: u64 = axes.iter().map(|a| mesh.size(*a)).product();
        reason!("{what}, {size}, is not a multiple of the {} of `{}`", counted(ranks, "rank"), names.join("` and `"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DP: AxisId = AxisId(0);
    const TP: AxisId = AxisId(1);

    fn mesh() -> Mesh {
        Mesh::new([("dp".to_string(), 2), ("tp".to_string(), 4)], 1)
    }

    fn split(blocks: Blocks, axes: &[AxisId]) -> DimSharding {
        DimSharding::Split { blocks, axes: axes.to_vec() }
    }

    fn strides(dim: &DimSharding, size: u64) -> Vec<(AxisId, u64)> {
        dim.splits(size, &mesh()).unwrap().unwrap().iter().map(|s| (s.axis, s.stride)).collect()
    }

    #[test]
    fn digits_of_each_form() {
        assert_eq!(DimSharding::Open.splits(7, &mesh()), Ok(None));
        assert_eq!(strides(&DimSharding::Closed, 7), []);
        assert_eq!(strides(&split(Blocks::Equal(1), &[TP]), 64), [(TP, 16)]);
        assert_eq!(strides(&split(Blocks::Equal(1), &[DP, TP]), 64), [(DP, 32), (TP, 8)]);
        assert_eq!(strides(&split(Blocks::Equal(3), &[TP]), 192), [(TP, 16)]);
        assert_eq!(strides(&split(Blocks::Unequal(vec![64, 64, 64]), &[TP]), 192), [(TP, 16)]);
        let unequal = split(Blocks::Unequal(vec![64, 32, 32]), &[TP]);
        assert_eq!((strides(&unequal, 128), unequal.unequal_blocks()), (vec![], Some(&[64, 32, 32][..])));
        assert_eq!(strides(&unequal.of_block(), 32), [(TP, 8)]);
        assert_eq!(strides(&DimSharding::Letters(vec![(8, vec![DP]), (32, vec![TP])]), 256), [(DP, 128), (TP, 8)]);
        assert_eq!(strides(&DimSharding::Letters(vec![(3, vec![]), (8, vec![DP, TP]), (2, vec![])]), 48), [(DP, 8), (TP, 2)]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_explained() {
        for (dim, size, expected) in [
            (split(Blocks::Equal(1), &[TP]), 6, "its size, 6, is not a multiple of the 4 ranks of `tp`"),
            (split(Blocks::Equal(1), &[DP, TP]), 12, "its size, 12, is not a multiple of the 8 ranks of `dp` and `tp`"),
            (split(Blocks::Equal(3), &[TP]), 64, "64 is not a multiple of its 3 blocks"),
            (split(Blocks::Equal(3), &[TP]), 18, "each of its 3 blocks, 6, is not a multiple of the 4 ranks of `tp`"),
            (split(Blocks::Unequal(vec![64, 32]), &[TP]), 100, "its blocks add up to 96, its size is 100"),
            (split(Blocks::Unequal(vec![64, 30]), &[TP]), 94, "a block, 30, is not a multiple of the 4 ranks of `tp`"),
            (DimSharding::Letters(vec![(8, vec![DP]), (32, vec![])]), 255, "its letters multiply to 256, its size is 255"),
            (DimSharding::Letters(vec![(3, vec![DP]), (2, vec![])]), 6, "a letter, 3, is not a multiple of the 2 ranks of `dp`"),
        ] {
            assert_eq!(dim.splits(size, &mesh()), Err(expected.into()));
        }
    }
}
