//! Memory that ranks of one process hold in common, in parts: while anybody reads, nobody writes,
//! and who writes has a part to itself. Nobody waits: an order of readers and writers is for others
//! to make, and who comes at a wrong time is told so.
#![expect(unsafe_code, reason = "ranks read the same bytes, and write parts of them that are disjoint")]

use crate::arena::zeroed;
use shardc_ir::plan::aligned;
use shardc_ir::reason;
use shardc_ir::reason::Reason;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Elements that are in one part together; of any type so many end where a line of a cache does.
const TOGETHER: u64 = 64;

/// Which of `elements` elements are in part `part` of `parts`.
pub fn share(elements: u64, part: usize, parts: usize) -> Range<u64> {
    let groups = elements.div_ceil(TOGETHER);
    let end = |part: usize| (groups * part as u64 / parts as u64 * TOGETHER).min(elements);
    end(part)..end(part + 1)
}

/// A buffer that is held in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where it lies in the arena of each rank, which has no use for these bytes.
    pub range: Range<u64>,
    /// Its elements.
    pub elements: u64,
    /// The bytes of each.
    pub bytes: u64,
}

/// The memory of some buffers, zero at first.
#[derive(Debug)]
pub struct Common {
    /// The whole allocation, and the first byte in it that is used.
    words: NonNull<[u64]>,
    first: usize,
    /// The buffers in the order of their places, each with the position of its first byte.
    places: Vec<(Place, usize)>,
    /// For each part how many read it, or -1 while it is written.
    users: Vec<AtomicIsize>,
}

// SAFETY: the bytes are reached by `Reading` and `Writing` alone. While there is one that writes a
// part, there is no other of that part, on any thread.
unsafe impl Send for Common {}
// SAFETY: as above.
unsafe impl Sync for Common {}

/// Nobody writes while it is there.
#[derive(Debug)]
pub struct Reading(Arc<Common>);

/// Bytes that nobody writes while this is there.
#[derive(Debug)]
pub struct BytesInCommon {
    reading: Reading,
    range: Range<u64>,
}

/// Nobody else reads or writes these parts while it is there.
#[derive(Debug)]
pub struct Writing(Arc<Common>, Range<usize>);

impl Common {
    /// Memory of buffers, in so many parts.
    ///
    /// # Errors
    /// If the machine has not so much, or a buffer is longer than its place.
    pub fn new(mut buffers: Vec<Place>, parts: usize) -> Result<Common, Reason> {
        buffers.sort_by_key(|place| place.range.start);
        let (mut places, mut end) = (vec![], 0_u64);
        for place in buffers {
            let len = place.range.end.saturating_sub(place.range.start);
            if place.elements.checked_mul(place.bytes).is_none_or(|bytes| bytes > len) {
                return Err(reason!("{} elements are too many for bytes {:?}", place.elements, place.range));
            }
            places.push((place, end as usize));
            end += aligned(len);
        }
        let (words, first) = zeroed(end)?;
        let words = NonNull::from(Box::leak(words.into_boxed_slice()));
        Ok(Common { words, first: first * 8, places, users: (0..parts).map(|_| AtomicIsize::new(0)).collect() })
    }

    /// How many parts it has.
    pub fn parts(&self) -> usize {
        self.users.len()
    }

    /// Its buffers.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().map(|(place, _)| place)
    }

    /// Whether bytes `range` of an arena are held here instead.
    pub fn holds(&self, range: &Range<u64>) -> bool {
        self.find(range).is_some()
    }

    /// Leave to read.
    ///
    /// # Errors
    /// If somebody writes.
    pub fn reading(self: &Arc<Self>) -> Result<Reading, Reason> {
        self.enter(0..self.parts(), |users| (users >= 0).then_some(users + 1), leave_reading)?;
        Ok(Reading(self.clone()))
    }

    /// Leave to write these parts.
    ///
    /// # Errors
    /// If somebody else reads or writes one of them.
    pub fn writing(self: &Arc<Self>, parts: Range<usize>) -> Result<Writing, Reason> {
        self.enter(parts.clone(), |users| (users == 0).then_some(-1), leave_writing)?;
        Ok(Writing(self.clone(), parts))
    }

    /// Changes the users of all parts, or of none.
    fn enter(
        &self,
        parts: Range<usize>,
        enter: impl Fn(isize) -> Option<isize>,
        leave: impl Fn(&AtomicIsize),
    ) -> Result<(), Reason> {
        for (at, users) in self.users[parts.clone()].iter().enumerate() {
            if users.fetch_update(Ordering::Acquire, Ordering::Relaxed, &enter).is_err() {
                self.users[parts][..at].iter().for_each(leave);
                return Err("memory that ranks hold in common is read while it is written".into());
            }
        }
        Ok(())
    }

    /// The buffer that `range` is in, and the position of its first byte.
    fn find(&self, range: &Range<u64>) -> Option<usize> {
        let at = self.places.partition_point(|(place, _)| place.range.start <= range.start).checked_sub(1)?;
        let (place, first) = &self.places[at];
        (range.start < range.end && range.end <= place.range.end).then(|| first + (range.start - place.range.start) as usize)
    }

    /// The first of all bytes.
    fn bytes(&self) -> *mut u8 {
        // SAFETY: `first` is in the allocation, or at its end.
        unsafe { self.words.as_ptr().cast::<u8>().add(self.first) }
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        // SAFETY: it is the leaked box of `new`, and nobody holds this memory any more.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}

fn leave_reading(users: &AtomicIsize) {
    users.fetch_sub(1, Ordering::Release);
}

fn leave_writing(users: &AtomicIsize) {
    users.store(0, Ordering::Release);
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.users.iter().for_each(leave_reading);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.users[self.1.clone()].iter().for_each(leave_writing);
    }
}

impl Reading {
    /// Bytes `range` of an arena; `None` if they are not held here.
    pub fn bytes(&self, range: &Range<u64>) -> Option<&[u8]> {
        let at = self.0.find(range)?;
        // SAFETY: the bytes are in the memory of the buffer that was found, which is initialised;
        // and as long as `self` is borrowed nobody writes.
        Some(unsafe { slice::from_raw_parts(self.0.bytes().add(at), (range.end - range.start) as usize) })
    }
}

impl Reading {
    /// Bytes `range` of an arena, with the leave to read them; `None` if they are not held here.
    pub fn hold(self, range: &Range<u64>) -> Option<BytesInCommon> {
        self.0.holds(range).then(|| BytesInCommon { reading: self, range: range.clone() })
    }
}

impl Deref for BytesInCommon {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.reading.bytes(&self.range).unwrap_or_default()
    }
}

impl Writing {
    /// What these parts have of each buffer, with its place in an arena, in the order of places.
    pub fn pieces(&mut self) -> Vec<(u64, &mut [u8])> {
        let Writing(common, parts) = self;
        let piece = |(place, first): &(Place, usize)| {
            let of = |part: usize| share(place.elements, part, common.parts());
            let elements = if parts.start == parts.end { 0..0 } else { of(parts.start).start..of(parts.end - 1).end };
            let (start, end) = (elements.start * place.bytes, elements.end * place.bytes);
            // SAFETY: `new` has seen that the elements are in the memory of this buffer, which is
            // initialised. Parts share no element, buffers no memory, and as long as `self` is
            // borrowed nobody else has these parts.
            let bytes = unsafe { slice::from_raw_parts_mut(common.bytes().add(first + start as usize), (end - start) as usize) };
            (place.range.start + start, bytes)
        };
        common.places.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(parts: usize) -> Arc<Common> {
        let place = |range: Range<u64>, elements, bytes| Place { range, elements, bytes };
        Arc::new(Common::new(vec![place(1024..1664, 150, 4), place(64..128, 1, 8)], parts).unwrap())
    }

    #[test]
    fn shares_are_all_elements_once() {
        for (elements, parts) in [(0, 3), (1, 2), (63, 2), (64, 1), (65, 2), (150, 2), (1000, 7), (64 * 8, 8)] {
            let shares: Vec<_> = (0..parts).map(|part| share(elements, part, parts)).collect();
            assert_eq!((shares[0].start, shares[parts - 1].end), (0, elements));
            assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(shares.iter().all(|share| share.start % TOGETHER == 0 || share.is_empty()), "{shares:?}");
        }
    }

    #[test]
    fn parts_are_written_at_once_and_read_by_all() {
        let common = common(2);
        std::thread::scope(|scope| {
            for part in 0..2 {
                let mut writing = common.writing(part..part + 1).unwrap();
                scope.spawn(move || {
                    let pieces = writing.pieces();
                    assert_eq!(
                        pieces.iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(),
                        match part {
                            0 => [(64, 0), (1024, 256)],
                            _ => [(64, 8), (1280, 344)],
                        }
                    );
                    pieces.into_iter().for_each(|(_, piece)| piece.fill(part as u8 + 1));
                });
            }
        });
        let (one, two) = (common.reading().unwrap(), common.reading().unwrap());
        let whole = one.bytes(&(1024..1624)).unwrap();
        assert_eq!(whole.as_ptr().align_offset(64), 0);
        assert!(whole[..256].iter().all(|byte| *byte == 1) && whole[256..].iter().all(|byte| *byte == 2));
        assert_eq!(two.bytes(&(1276..1284)).unwrap(), [1, 1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(two.bytes(&(64..72)).unwrap(), [2; 8]);
        assert_eq!(two.bytes(&(72..73)).unwrap(), [0]);
        #[expect(clippy::reversed_empty_ranges, reason = "a forged range")]
        let outside = [0..8, 63..65, 120..129, 1020..1030, 1600..1665, 1664..1665, 1664..1664, 1100..1100, 1100..1090];
        assert!(outside.iter().all(|range| two.bytes(range).is_none() && !common.holds(range)));
    }

    #[test]
    fn nobody_reads_what_is_written() {
        let common = common(3);
        let reading = common.reading().unwrap();
        assert!(common.writing(1..2).is_err() && common.reading().is_ok());
        drop(reading);
        let writing = common.writing(1..2).unwrap();
        assert!(common.reading().is_err() && common.writing(0..3).is_err() && common.writing(2..3).is_ok());
        drop(writing);
        let mut all = common.writing(0..3).unwrap();
        assert_eq!(all.pieces().iter().map(|(at, piece)| (*at, piece.len())).collect::<Vec<_>>(), [(64, 8), (1024, 600)]);
        drop(all);
        assert!(common.reading().is_ok());
        assert!(Common::new(vec![Place { range: 0..64, elements: 17, bytes: 4 }], 2).is_err());
        assert!(Common::new(vec![Place { range: 0..64, elements: u64::MAX, bytes: 4 }], 2).is_err());
    }
}
