//! Iteration spaces: dimensions that every operand steps through alike are one.

use crate::text::{digit, over, times};

/// The sizes of a space, and for each operand its strides over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// Sizes, outer to inner; none is 1.
    pub sizes: Vec<u64>,
    /// For each dimension the group that it belongs to.
    pub groups: Vec<usize>,
    /// For each operand a stride for each dimension.
    pub strides: Vec<Vec<i64>>,
}

impl Space {
    /// The space over `shape` in which neighbouring dimensions of one group are joined where every
    /// operand steps through them as through one.
    pub fn joined(shape: &[u64], groups: &[usize], strides: &[Vec<i64>]) -> Space {
        let mut space = Space { sizes: vec![], groups: vec![], strides: vec![vec![]; strides.len()] };
        for d in (0..shape.len()).filter(|d| shape[*d] != 1) {
            let last = space.sizes.len().checked_sub(1);
            let joins = |last: &usize| {
                let alike = |(joined, own): (&Vec<i64>, &Vec<i64>)| {
                    i128::from(joined[*last]) == i128::from(own[d]) * i128::from(shape[d])
                };
                space.groups[*last] == groups[d] && space.strides.iter().zip(strides).all(alike)
            };
            match last.filter(joins) {
                Some(last) => {
                    space.sizes[last] *= shape[d];
                    space.strides.iter_mut().zip(strides).for_each(|(joined, own)| joined[last] = own[d]);
                }
                None => {
                    space.sizes.push(shape[d]);
                    space.groups.push(groups[d]);
                    space.strides.iter_mut().zip(strides).for_each(|(joined, own)| joined.push(own[d]));
                }
            }
        }
        space
    }

    /// The dimensions of a group.
    pub fn of_group(&self, group: usize) -> Vec<usize> {
        (0..self.sizes.len()).filter(|d| self.groups[*d] == group).collect()
    }

    /// Elements of a group's dimensions.
    pub fn elements(&self, group: usize) -> u64 {
        self.of_group(group).iter().map(|d| self.sizes[*d]).product()
    }
}

/// Lines that find the index `c0`, `c1`... along each of `dims` from the position `from` in
/// row-major
/// order. `kind` is the type of an index.
pub fn indices(sizes: &[u64], dims: &[usize], from: &str, kind: &str) -> Vec<String> {
    let mut lines = vec![];
    let mut below = 1;
    for (at, d) in dims.iter().enumerate().rev() {
        let index = if at == 0 { format!("{from}{}", over(below)) } else { digit(from, below, sizes[*d]) };
        lines.push(format!("{kind} c{d} = {index};"));
        below *= sizes[*d];
    }
    lines.reverse();
    lines
}

/// The same where each of the positions stands for `lanes` neighbours along the last of `dims`.
pub fn lane_indices(sizes: &[u64], dims: &[usize], from: &str, kind: &str, lanes: u64) -> Vec<String> {
    let mut sizes = sizes.to_vec();
    if let Some(last) = dims.last() {
        sizes[*last] /= lanes;
    }
    let mut lines = indices(&sizes, dims, from, kind);
    if let Some(last) = lines.last_mut().filter(|_| lanes > 1) {
        *last = last.replace(';', &format!(" * {lanes};"));
    }
    lines
}

/// The first of the neighbours that the position `i` stands for.
pub fn position(lanes: u64) -> String {
    if lanes > 1 { format!("i * {lanes}") } else { "i".into() }
}

/// The element at the indices `c0`, `c1`... under `strides`.
pub fn offset(strides: &[i64]) -> String {
    let term = |(d, stride): (usize, &i64)| match *stride {
        0 => None,
        stride => Some(format!("c{d}{}", times(stride))),
    };
    crate::text::sum(strides.iter().enumerate().filter_map(term).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_contiguous_is_one_dimension() {
        let space = Space::joined(&[2, 1, 3, 4], &[0; 4], &[vec![12, 5, 4, 1], vec![0, 0, 4, 1]]);
        assert_eq!((space.sizes, space.strides), (vec![2, 12], vec![vec![12, 1], vec![0, 1]]));
        let space = Space::joined(&[2, 3], &[0, 1], &[vec![3, 1]]);
        assert_eq!((space.elements(0), space.elements(1)), (2, 3));
    }

    #[test]
    fn indices_come_from_positions() {
        assert_eq!(indices(&[2, 3, 4], &[0, 1, 2], "i", "u32"), ["u32 c0 = i / 12;", "u32 c1 = i / 4 % 3;", "u32 c2 = i % 4;"]);
        assert_eq!(indices(&[5], &[0], "i", "u32"), ["u32 c0 = i;"]);
        assert_eq!(offset(&[12, 0, 1]), "c0 * 12 + c2");
    }
}
