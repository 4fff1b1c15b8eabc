//! The memory of one rank: a single zeroed allocation that every buffer is a range of.

use shardc_ir::memory;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::Range;

/// One rank's memory. Byte 0 and every multiple of 64 are aligned to 64.
#[derive(Debug, Default)]
pub struct Arena {
    words: Vec<u64>,
    first: usize,
    len: usize,
    used: u64,
}

/// The operands of one step, borrowed together.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Ranges read; empty where the operand is the same memory as a written one.
    pub reads: Vec<&'a [u8]>,
    /// Ranges written.
    pub writes: Vec<&'a mut [u8]>,
}

impl Arena {
    /// Allocates `bytes` zeros; an error if the machine has not so many.
    pub fn new(bytes: u64) -> Result<Arena, Reason> {
        let (words, first) = zeroed(bytes)?;
        Ok(Arena { first, words, len: bytes as usize, used: 0 })
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The end of what was ever written.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The bytes of `range`.
    pub fn bytes(&self, range: Range<u64>) -> Result<&[u8], Reason> {
        let all: &[u8] = bytemuck::cast_slice(&self.words[self.first..]);
        all[..self.len].get(range.start as usize..range.end as usize).ok_or_else(|| outside(&range))
    }

    /// The bytes of `range`, for writing.
    pub fn bytes_mut(&mut self, range: Range<u64>) -> Result<&mut [u8], Reason> {
        self.used = self.used.max(range.end.min(self.len()));
        self.all_mut().get_mut(range.start as usize..range.end as usize).ok_or_else(|| outside(&range))
    }

    /// The bytes of several ranges at once. `in_place` says for each read which write is the same
    /// memory; any other overlap of a written range is an error.
    pub fn operands(
        &mut self,
        reads: &[Range<u64>],
        writes: &[Range<u64>],
        in_place: &[Option<usize>],
    ) -> Result<Operands<'_>, Reason> {
        let end = writes.iter().map(|range| range.end).max().unwrap_or(0);
        self.used = self.used.max(end.min(self.len()));
        operands([(0, self.all_mut())], reads, writes, in_place)
    }

    fn all_mut(&mut self) -> &mut [u8] {
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[self.first..]);
        &mut all[..self.len]
    }
}

/// Zeros that `bytes` bytes fit in, and the first of them that is aligned to 64 bytes.
pub(crate) fn zeroed(bytes: u64) -> Result<(Vec<u64>, usize), Reason> {
    const LINE: usize = 64;
    let none = || format!("no memory for an arena of {bytes} bytes");
    let words = bytes.div_ceil(8).checked_add(LINE as u64 / 8).and_then(|n| usize::try_from(n).ok()).ok_or_else(none)?;
    memory::reserve(&mut Vec::<u64>::new(), words).map_err(|_| none())?;
    // Pages that the system has zeroed take memory once they are used.
    let memory = vec![0u64; words];
    let first = memory.as_ptr().align_offset(LINE);
    Ok((memory, first))
}

/// As [`Arena::operands`], of an arena of which there are these pieces, each with its first byte.
pub(crate) fn operands<'a>(
    pieces: impl IntoIterator<Item = (u64, &'a mut [u8])>,
    reads: &[Range<u64>],
    writes: &[Range<u64>],
    in_place: &[Option<usize>],
) -> Result<Operands<'a>, Reason> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|w| writes[*w].start);
    let mut written: Vec<(usize, &mut [u8])> = Vec::with_capacity(writes.len());
    let mut gaps: Vec<(u64, &[u8])> = Vec::with_capacity(writes.len() + 1);
    let mut pieces = pieces.into_iter();
    let (mut at, mut rest) = pieces.next().unwrap_or((0, &mut []));
    for w in order {
        let range = &writes[w];
        if range.start == range.end {
            written.push((w, &mut []));
            continue;
        }
        while range.start >= at + rest.len() as u64 {
            gaps.push((at, rest));
            (at, rest) = pieces.next().ok_or_else(|| outside(range))?;
        }
        if range.start < at {
            return Err(reason!("bytes {range:?} are outside the arena, or written twice by one step"));
        }
        let inside = range.end > range.start && range.end - at <= rest.len() as u64;
        if !inside {
            return Err(outside(range));
        }
        let (gap, tail) = rest.split_at_mut((range.start - at) as usize);
        let (bytes, tail) = tail.split_at_mut((range.end - range.start) as usize);
        gaps.push((at, gap));
        written.push((w, bytes));
        (at, rest) = (range.end, tail);
    }
    gaps.push((at, rest));
    gaps.extend(pieces.map(|(at, piece)| (at, &*piece)));
    written.sort_by_key(|(w, _)| *w);
    let find = |(read, range): (usize, &Range<u64>)| {
        if range.start == range.end || in_place.get(read).copied().flatten().is_some() {
            return Ok(&[] as &[u8]);
        }
        let gap = gaps[..].partition_point(|(start, _)| *start <= range.start).checked_sub(1).map(|g| gaps[g]);
        let (start, bytes) = gap.ok_or_else(|| outside(range))?;
        let inside = bytes.get((range.start - start) as usize..range.end.saturating_sub(start) as usize);
        inside.ok_or_else(|| reason!("bytes {range:?} are outside the arena, or written by the step that reads them"))
    };
    let reads = reads.iter().enumerate().map(find).collect::<Result<_, _>>()?;
    Ok(Operands { reads, writes: written.into_iter().map(|(_, bytes)| bytes).collect() })
}

fn outside(range: &Range<u64>) -> Reason {
    reason!("bytes {range:?} are outside the arena")
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "operands are lists of ranges")]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        let arena = Arena::new(1000).unwrap();
        assert_eq!(arena.bytes(0..1000).unwrap().as_ptr().align_offset(64), 0);
        assert!(arena.bytes(0..1000).unwrap().iter().all(|b| *b == 0));
        assert!(arena.bytes(0..1001).is_err());
        assert!(arena.bytes(u64::MAX..u64::MAX).is_err());
        assert!(Arena::new(u64::MAX).is_err());
    }

    #[test]
    fn operands_are_disjoint_or_in_place() {
        let mut arena = Arena::new(256).unwrap();
        let operands = arena.operands(&[0..64, 32..64, 200..256], &[128..192, 64..128], &[]).unwrap();
        assert_eq!(operands.reads.iter().map(|r| r.len()).collect::<Vec<_>>(), [64, 32, 56]);
        operands.writes.into_iter().enumerate().for_each(|(i, w)| w.fill(i as u8 + 1));
        assert_eq!(arena.bytes(127..129).unwrap(), [2, 1]);
        assert!(arena.operands(&[0..65], &[64..128], &[]).is_err());
        assert!(arena.operands(&[100..101], &[64..128], &[]).is_err());
        assert!(arena.operands(&[64..128], &[64..128], &[Some(0)]).is_ok());
        assert!(arena.operands(&[], &[0..65, 64..128], &[]).is_err());
        assert!(arena.operands(&[], &[200..257], &[]).is_err());
        assert!(arena.operands(&[], &[300..301], &[]).is_err());
        assert!(arena.operands(&[250..257], &[], &[]).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "a forged range")]
        let backwards = 128..64;
        assert!(arena.operands(&[], std::slice::from_ref(&backwards), &[]).is_err());
        assert!(arena.operands(&[backwards], &[], &[]).is_err());
    }
}
