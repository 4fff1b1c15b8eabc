//! Bytes of a step's operands: none is written twice, and none that is still read is written but in
//! place.

use crate::plan::{Program, Step, View};
use std::ops::Range;

impl Program {
    /// For each operand that a step reads, which one that it writes is the same memory, where its
    /// kernel may work in place.
    pub fn in_place(&self, step: &Step) -> Vec<Option<usize>> {
        let beginning = |view: &View| {
            let buffer = self.buffers.get(view.buffer.index()).filter(|_| view.bytes > 0)?;
            Some((buffer.offset + view.offset, buffer.slot_bytes, buffer.slots))
        };
        let writes: Vec<_> = step.writes.iter().map(beginning).collect();
        let same = |read: &View| beginning(read).and_then(|own| writes.iter().position(|write| *write == Some(own)));
        (0..).zip(&step.reads).map(|(r, read)| same(read).filter(|w| step.kernel.in_place(r, *w))).collect()
    }
}

/// Two operands of a step that share bytes, by their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Two that are written.
    Writes(usize, usize),
    /// One that is read and one that is written.
    ReadAndWrite(usize, usize),
}

/// The first overlap of operands; `in_place` says which read and write may share bytes.
pub fn overlap(reads: &[Range<u64>], writes: &[Range<u64>], in_place: impl Fn(usize, usize) -> bool) -> Option<Overlap> {
    let mut order: Vec<usize> = (0..writes.len()).filter(|w| !writes[*w].is_empty()).collect();
    order.sort_by_key(|w| (writes[*w].start, *w));
    if let Some(pair) = order.windows(2).find(|pair| writes[pair[1]].start < writes[pair[0]].end) {
        return Some(Overlap::Writes(pair[0].min(pair[1]), pair[0].max(pair[1])));
    }
    for (r, read) in reads.iter().enumerate().filter(|(_, read)| !read.is_empty()) {
        let first = order.partition_point(|w| writes[*w].end <= read.start);
        let shared = order[first..].iter().take_while(|w| writes[**w].start < read.end);
        if let Some(w) = shared.copied().find(|w| !in_place(r, *w)) {
            return Some(Overlap::ReadAndWrite(r, w));
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "operands are lists of ranges")]
mod tests {
    use super::*;

    #[test]
    fn overlaps_are_found() {
        let never = |_, _| false;
        assert_eq!(overlap(&[0..4, 8..12], &[4..8, 12..16], never), None);
        assert_eq!(overlap(&[], &[8..12, 0..4, 3..5], never), Some(Overlap::Writes(1, 2)));
        assert_eq!(overlap(&[0..4, 5..9], &[12..16, 8..12], never), Some(Overlap::ReadAndWrite(1, 1)));
        assert_eq!(overlap(&[0..4, 4..8], &[0..4, 4..8], |r, w| r == w), None);
        assert_eq!(overlap(&[4..8, 0..4], &[0..4, 4..8], |r, w| r == w), Some(Overlap::ReadAndWrite(0, 1)));
        assert_eq!(overlap(&[4..4, 0..8], &[4..4], never), None);
    }
}
