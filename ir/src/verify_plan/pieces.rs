//! Whether the destinations of several copies, such as those of a concatenation, fill a buffer together.

use crate::kernel::Move;

/// The elements that a copy writes: a box in a mixed-radix index, strides descending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The first element.
    offset: u64,
    /// (stride, size) of each dimension of more than one element.
    dims: Vec<(u64, u64)>,
}

impl Piece {
    /// What `copy` writes; `None` where that depends on the rank, or runs backwards.
    pub fn of(copy: &Move) -> Option<Piece> {
        let offset = u64::try_from(copy.dst_offset.base).ok().filter(|_| copy.dst_offset.terms.is_empty())?;
        let mut dims: Vec<(u64, u64)> = vec![];
        for (stride, size) in copy.dst_strides.iter().zip(&copy.shape).filter(|(_, size)| **size > 1) {
            dims.push((u64::try_from(*stride).ok().filter(|s| *s > 0)?, *size));
        }
        dims.sort_by(|a, b| b.cmp(a));
        Some(Piece { offset, dims })
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |n, (_, size)| n.saturating_mul(*size))
    }

    /// The element after the last one.
    pub fn end(&self) -> u64 {
        self.dims
            .iter()
            .fold(self.offset.saturating_add(1), |end, (stride, size)| end.saturating_add(stride.saturating_mul(size - 1)))
    }

    /// Whether it is sure that the two have no element in common.
    pub fn is_apart(&self, other: &Piece) -> bool {
        if self.end() <= other.offset || other.end() <= self.offset {
            return true;
        }
        let mut strides: Vec<u64> = self.dims.iter().chain(&other.dims).map(|(stride, _)| *stride).chain([1]).collect();
        strides.sort_by(|a, b| b.cmp(a));
        strides.dedup();
        let (Some(a), Some(b)) = (self.digits(&strides), other.digits(&strides)) else { return false };
        a.iter().zip(&b).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0)
    }

    /// For each stride the range of its digit, if every element has exactly one such index.
    fn digits(&self, strides: &[u64]) -> Option<Vec<(u64, u64)>> {
        let mut rest = self.offset;
        let mut above = u64::MAX;
        let mut digits = vec![];
        for stride in strides {
            let size = self.dims.iter().find(|(s, _)| s == stride).map_or(1, |(_, size)| *size);
            let first = rest / stride;
            let past = first.checked_add(size)?;
            if past.checked_mul(*stride)? > above {
                return None;
            }
            digits.push((first, past));
            rest %= stride;
            above = *stride;
        }
        Some(digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel::Offset;

    fn piece(offset: i64, shape: &[u64], strides: &[i64]) -> Piece {
        let copy = Move {
            dtype: DType::F32,
            shape: shape.to_vec(),
            src_offset: Offset::default(),
            src_strides: vec![1; shape.len()],
            dst_offset: Offset::constant(offset),
            dst_strides: strides.to_vec(),
        };
        Piece::of(&copy).expect("a piece")
    }

    /// Every element, by the definition.
    fn elements(piece: &Piece) -> Vec<u64> {
        let spread = |from: Vec<u64>, (stride, size): &(u64, u64)| -> Vec<u64> {
            from.iter().flat_map(|at| (0..*size).map(move |i| at + i * stride)).collect()
        };
        piece.dims.iter().fold(vec![piece.offset], spread)
    }

    #[test]
    fn parts_of_a_concatenation_are_apart() {
        let (left, middle, right) = (piece(0, &[4, 3], &[8, 1]), piece(3, &[4, 1], &[8, 1]), piece(4, &[4, 4], &[8, 1]));
        assert!(left.is_apart(&middle) && middle.is_apart(&right) && right.is_apart(&left));
        assert_eq!(left.elements() + middle.elements() + right.elements(), 32);
        assert!(!left.is_apart(&piece(2, &[4, 2], &[8, 1])));
        assert!(piece(0, &[2, 8], &[8, 1]).is_apart(&piece(16, &[2, 8], &[8, 1])));
    }

    #[test]
    fn what_is_called_apart_is() {
        let mut found = 0;
        let all: Vec<Piece> = [0, 1, 2, 3, 5, 8]
            .into_iter()
            .flat_map(|offset| {
                [[1, 1], [2, 1], [1, 3], [2, 2], [3, 2]].into_iter().flat_map(move |shape| {
                    [[1, 2], [2, 1], [4, 1], [1, 4], [3, 1], [6, 2]].into_iter().map(move |s| piece(offset, &shape, &s))
                })
            })
            .collect();
        for a in &all {
            assert_eq!(elements(a).len() as u64, a.elements());
            assert_eq!(elements(a).iter().max().copied(), Some(a.end() - 1));
            for b in &all {
                let meet = elements(a).iter().any(|e| elements(b).contains(e));
                assert!(!(a.is_apart(b) && meet), "{a:?} {b:?}");
                found += usize::from(a.is_apart(b));
            }
        }
        assert!(found > 1000);
    }
}
