//! Iteration spaces: the fewest dimensions that describe them, and the way through them.

use shardc_ir::kernel::signature::row_major;
use shardc_ir::limits::MAX_KERNEL_RANK;

/// Row-major strides of `shape`.
pub fn contiguous(shape: &[usize]) -> Vec<isize> {
    let shape: Vec<u64> = shape.iter().map(|size| *size as u64).collect();
    row_major(&shape).into_iter().map(|stride| stride as isize).collect()
}

/// Drops dimensions of size 1 and merges neighbours of equal `group` wherever every operand steps
/// through both as through one. `strides` holds one list for each operand. At least one dimension
/// remains.
pub fn collapse(shape: &[usize], strides: &mut [Vec<isize>], groups: &[usize]) -> Vec<usize> {
    let mut out: Vec<usize> = vec![];
    let mut group = usize::MAX;
    let mut merged: Vec<Vec<isize>> = vec![vec![]; strides.len()];
    for (d, size) in shape.iter().enumerate() {
        if *size == 1 {
            continue;
        }
        let joins = group == groups[d]
            && strides.iter().zip(&merged).all(|(s, m)| m.last().is_some_and(|outer| *outer == s[d] * *size as isize));
        if joins {
            let last = out.len() - 1;
            out[last] *= size;
            for (s, m) in strides.iter().zip(&mut merged) {
                m[last] = s[d];
            }
        } else {
            out.push(*size);
            for (s, m) in strides.iter().zip(&mut merged) {
                m.push(s[d]);
            }
        }
        group = groups[d];
    }
    if out.is_empty() {
        out.push(1);
        merged.iter_mut().for_each(|m| m.push(0));
    }
    for (s, m) in strides.iter_mut().zip(merged) {
        *s = m;
    }
    out
}

/// The index along each dimension of the row-major position `linear`.
pub fn digits(shape: &[usize], linear: usize) -> [usize; MAX_KERNEL_RANK] {
    let (mut index, mut rest) = ([0; MAX_KERNEL_RANK], linear);
    for d in (0..shape.len()).rev() {
        index[d] = rest % shape[d];
        rest /= shape[d];
    }
    index
}

/// A position in an iteration space, advanced in row-major order, and the offset it has in one
/// operand.
#[derive(Debug, Clone)]
pub struct Odometer<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    index: [usize; MAX_KERNEL_RANK],
    /// The offset of the current position.
    pub offset: isize,
}

impl<'a> Odometer<'a> {
    /// Stands at the row-major position `linear`.
    pub fn at(shape: &'a [usize], strides: &'a [isize], linear: usize) -> Odometer<'a> {
        let index = digits(shape, linear);
        let offset = strides.iter().zip(index).map(|(stride, i)| stride * i as isize).sum();
        Odometer { shape, strides, index, offset }
    }

    /// Goes to the next position; after the last one comes the first.
    #[inline]
    pub fn advance(&mut self) {
        for d in (0..self.shape.len()).rev() {
            self.index[d] += 1;
            self.offset += self.strides[d];
            if self.index[d] < self.shape[d] {
                return;
            }
            self.offset -= self.strides[d] * self.shape[d] as isize;
            self.index[d] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_what_every_operand_steps_through_alike() {
        let mut strides = vec![vec![20, 20, 5, 1], vec![0, 0, 0, 1]];
        assert_eq!(collapse(&[3, 1, 4, 5], &mut strides, &[0; 4]), vec![12, 5]);
        assert_eq!(strides, vec![vec![5, 1], vec![0, 1]]);
        let mut strides = vec![vec![20, 5, 1]];
        assert_eq!(collapse(&[3, 4, 5], &mut strides, &[0, 1, 1]), vec![3, 20]);
        assert_eq!(collapse(&[1, 1], &mut [vec![7, 7]], &[0, 0]), vec![1]);
    }

    #[test]
    fn an_odometer_steps_as_division_does() {
        let (shape, strides) = ([3, 4, 2], [100, -10, 1]);
        let mut odometer = Odometer::at(&shape, &strides, 0);
        for linear in 0..24 {
            assert_eq!(odometer.offset, Odometer::at(&shape, &strides, linear).offset);
            odometer.advance();
        }
        assert_eq!(odometer.offset, 0);
    }
}
