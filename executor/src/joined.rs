//! Several operands as one: their bytes one after another, without being moved.

use std::ops::Range;

/// Parts that follow one another.
#[derive(Debug)]
pub struct Joined<'a> {
    /// The parts.
    parts: Vec<&'a mut [u8]>,
    /// The first byte of each.
    starts: Vec<usize>,
    /// Bytes of all of them.
    pub len: usize,
}

impl<'a> Joined<'a> {
    /// `parts`, in their order.
    pub fn of(parts: Vec<&'a mut [u8]>) -> Joined<'a> {
        let mut len = 0;
        let mut starts = Vec::with_capacity(parts.len());
        for part in &parts {
            starts.push(len);
            len += part.len();
        }
        Joined { parts, starts, len }
    }

    /// Shows the bytes of `range`, part by part, each with its position in the range.
    pub fn each(&mut self, range: Range<usize>, mut f: impl FnMut(usize, &mut [u8])) {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        for (part, start) in self.parts[first..].iter_mut().zip(&self.starts[first..]) {
            if *start >= range.end {
                break;
            }
            let from = range.start.saturating_sub(*start).min(part.len());
            let to = (range.end - start).min(part.len());
            if from < to {
                f(start + from - range.start, &mut part[from..to]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_the_bytes_of_its_parts() {
        let mut bytes: Vec<Vec<u8>> = vec![vec![0, 1, 2], vec![], vec![3], vec![4, 5, 6, 7], vec![]];
        let mut joined = Joined::of(bytes.iter_mut().map(Vec::as_mut_slice).collect());
        assert_eq!(joined.len, 8);
        for from in 0..=8 {
            for to in from..=8 {
                let mut seen = vec![];
                joined.each(from..to, |at, bytes| {
                    assert_eq!(at, seen.len());
                    seen.extend_from_slice(bytes);
                });
                assert_eq!(seen, (from as u8..to as u8).collect::<Vec<_>>());
            }
        }
    }
}
