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

    /// The bytes of `range`, part by part, each with its position in the range: those in `own`, a
    /// range of positions, and the others.
    pub fn cut(&mut self, range: Range<usize>, own: Range<usize>) -> [Vec<(usize, &mut [u8])>; 2] {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let mut cut = [vec![], vec![]];
        for (part, start) in self.parts[first..].iter_mut().zip(&self.starts[first..]) {
            if *start >= range.end {
                break;
            }
            let from = range.start.saturating_sub(*start).min(part.len());
            let to = (range.end - start).min(part.len());
            if from >= to {
                continue;
            }
            let (mut at, mut rest) = (start + from - range.start, &mut part[from..to]);
            for (end, group) in [(own.start, 1), (own.end, 0), (usize::MAX, 1)] {
                let (bytes, others) = rest.split_at_mut(end.saturating_sub(at).min(rest.len()));
                rest = others;
                let len = bytes.len();
                if len > 0 {
                    cut[group].push((at, bytes));
                }
                at += len;
            }
        }
        cut
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
        for (from, to) in (0..=8).flat_map(|from| (from..=8).map(move |to| (from, to))) {
            for (start, end) in (0..=to - from).flat_map(|start| (start..=to - from).map(move |end| (start, end))) {
                let mut seen = vec![None; to - from];
                for (group, is_own) in joined.cut(from..to, start..end).into_iter().zip([true, false]) {
                    for (at, bytes) in group {
                        for (at, byte) in (at..).zip(bytes) {
                            assert_eq!((start..end).contains(&at), is_own);
                            assert_eq!(seen[at].replace(*byte), None);
                        }
                    }
                }
                assert_eq!(seen, (from as u8..to as u8).map(Some).collect::<Vec<_>>());
            }
        }
    }
}
