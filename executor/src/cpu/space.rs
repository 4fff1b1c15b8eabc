//! Iteration spaces: bounds of strided accesses, and the fewest dimensions that describe them.

/// The most dimensions that a kernel may iterate over.
pub const MAX_RANK: usize = 16;

/// The number of elements of `shape`, or an error where that is no sensible number.
pub fn elements(shape: &[u64]) -> Result<usize, String> {
    if shape.len() > MAX_RANK {
        return Err(format!("{} dimensions are more than the {MAX_RANK} that kernels take", shape.len()));
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let total = shape.iter().try_fold(1u64, |n, size| n.checked_mul(*size)).filter(|n| *n <= isize::MAX as u64);
    total.map(|n| n as usize).ok_or_else(|| format!("shape {shape:?} has too many elements"))
}

/// How many elements a buffer must have for accesses at `start + sum of index * stride` over `shape`; an error if one would lie
/// before its beginning. `start` is the lowest and the highest first element.
pub fn extent(shape: &[u64], strides: &[i64], start: (i64, i64)) -> Result<u64, String> {
    if shape.len() != strides.len() {
        return Err(format!("{} strides for {} dimensions", strides.len(), shape.len()));
    }
    if elements(shape)? == 0 {
        return Ok(0);
    }
    let (mut low, mut high) = (i128::from(start.0), i128::from(start.1));
    for (size, stride) in shape.iter().zip(strides) {
        let reach = i128::from(*size - 1) * i128::from(*stride);
        low += reach.min(0);
        high += reach.max(0);
    }
    if low < 0 {
        return Err(format!("strides {strides:?} reach {} elements before the view", -low));
    }
    u64::try_from(high + 1).map_err(|_| format!("strides {strides:?} reach beyond every view"))
}

/// Row-major strides of `shape`.
pub fn contiguous(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i] as isize;
    }
    strides
}

/// Drops dimensions of size 1 and merges neighbours of equal `group` wherever every operand steps through both as through one.
/// `strides` holds one list for each operand. At least one dimension remains.
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

/// A position in an iteration space, advanced in row-major order, and the offset it has in one operand.
#[derive(Debug, Clone)]
pub struct Odometer<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    index: [usize; MAX_RANK],
    /// The offset of the current position.
    pub offset: isize,
}

impl<'a> Odometer<'a> {
    /// Stands at the row-major position `linear`.
    pub fn at(shape: &'a [usize], strides: &'a [isize], linear: usize) -> Odometer<'a> {
        let mut index = [0; MAX_RANK];
        let (mut rest, mut offset) = (linear, 0);
        for d in (0..shape.len()).rev() {
            index[d] = rest % shape[d];
            rest /= shape[d];
            offset += index[d] as isize * strides[d];
        }
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
    fn extents_of_forged_strides_are_errors() {
        assert_eq!(extent(&[3, 4], &[4, 1], (0, 2)), Ok(14));
        assert_eq!(extent(&[3, 4], &[-4, 1], (8, 8)), Ok(12));
        assert!(extent(&[3, 4], &[-4, 1], (0, 0)).is_err());
        assert!(extent(&[u64::MAX, 2], &[1, 1], (0, 0)).is_err());
        assert!(extent(&[1 << 40], &[i64::MAX], (0, 0)).is_err());
        assert!(extent(&[2], &[], (0, 0)).is_err());
        assert_eq!(extent(&[0, u64::MAX], &[1, 1], (0, 0)), Ok(0));
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
