//! Bytes that a member of a group shows to the others: a copy, or its own memory while it waits for
//! them.
#![expect(unsafe_code, reason = "memory of one thread is read by others, which its owner waits for")]

use std::ops::Range;
use std::slice;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// Some bytes, and where they begin among all that are shown.
pub type Part<'a> = (usize, &'a [u8]);

/// What one member shows; nothing at first.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Bytes>);

#[derive(Debug, Default)]
struct Bytes {
    /// The copy, and how many bytes of it are shown.
    copy: Vec<u64>,
    copied: usize,
    lent: Vec<Lent>,
}

/// A part that belongs to somebody else.
#[derive(Debug, Clone, Copy)]
struct Lent {
    start: usize,
    address: *const u8,
    len: usize,
}

// SAFETY: who lends holds a shared borrow of the bytes, which any thread may read, until they are
// lent no more.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

/// Ends a loan.
struct End<'s>(&'s Shown);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.change().lent.clear();
    }
}

impl Shown {
    /// Shows a copy of `bytes` bytes until something else is shown. `fill` writes it, or a part of
    /// it: the rest is whatever was there.
    pub fn copy(&self, bytes: usize, fill: impl FnOnce(&mut [u8])) {
        let mut shown = self.change();
        if shown.copy.len() * 8 < bytes {
            shown.copy.resize(bytes.div_ceil(8), 0);
        }
        shown.copied = bytes;
        fill(&mut bytemuck::cast_slice_mut(&mut shown.copy)[..bytes]);
    }

    /// Shows `parts`, each behind the one before, while `f` runs. It returns when nobody reads them
    /// any more.
    pub fn lend<R>(&self, parts: &[Part<'_>], f: impl FnOnce() -> R) -> R {
        debug_assert!(parts.is_sorted_by(|a, b| a.0 + a.1.len() <= b.0), "parts are in order");
        let _end = End(self);
        let mut shown = self.change();
        shown.copied = 0;
        shown.lent.extend(parts.iter().map(|(start, part)| Lent { start: *start, address: part.as_ptr(), len: part.len() }));
        drop(shown);
        f()
    }

    /// Calls `f` with the bytes of `range`, part by part, each with its position in the range, and
    /// says whether all of them are shown.
    pub fn each(&self, range: Range<usize>, mut f: impl FnMut(usize, &[u8])) -> bool {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if range.end <= shown.copied {
            f(0, &bytemuck::cast_slice(&shown.copy)[range]);
            return true;
        }
        let mut seen = 0;
        let first = shown.lent.partition_point(|part| part.start + part.len <= range.start);
        for part in shown.lent[first..].iter().take_while(|part| part.start < range.end) {
            // SAFETY: `parts` of `lend` are borrowed as long as they are listed, and as this thread
            // holds the lock they stay so until `f` has returned.
            let bytes = unsafe { slice::from_raw_parts(part.address, part.len) };
            let (from, to) = (range.start.max(part.start), range.end.min(part.start + part.len));
            f(from - range.start, &bytes[from - part.start..to - part.start]);
            seen += to - from;
        }
        seen == range.len()
    }

    fn change(&self) -> RwLockWriteGuard<'_, Bytes> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(shown: &Shown, range: Range<usize>) -> (Vec<u8>, bool) {
        let mut seen = vec![];
        let is_all = shown.each(range, |at, bytes| {
            assert_eq!(at, seen.len());
            seen.extend_from_slice(bytes);
        });
        (seen, is_all)
    }

    #[test]
    fn copies_and_loans_show_their_bytes() {
        let shown = Shown::default();
        assert_eq!(seen(&shown, 0..1), (vec![], false));
        shown.copy(3, |bytes| bytes.copy_from_slice(&[7, 8, 9]));
        assert_eq!(seen(&shown, 1..3), (vec![8, 9], true));
        assert!(!seen(&shown, 1..4).1, "there are three");
        shown.lend(&[(0, &[1, 2]), (2, &[]), (2, &[3]), (5, &[4, 5])], || {
            assert_eq!(seen(&shown, 0..3), (vec![1, 2, 3], true));
            assert_eq!(seen(&shown, 1..2), (vec![2], true));
            assert_eq!(seen(&shown, 6..7), (vec![5], true));
            assert!(!seen(&shown, 3..5).1, "a gap");
        });
        assert_eq!(seen(&shown, 0..3), (vec![], false), "the loan has ended");
    }

    /// A loan whose lender goes on, even by a panic, ends when its readers have read.
    #[test]
    fn a_loan_lasts_while_it_is_read() {
        let shown = Shown::default();
        let (begun, done) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let memory = vec![1; 1000];
                let lent = std::panic::AssertUnwindSafe(|| {
                    shown.lend(&[(0, &memory)], || {
                        begun.wait();
                        begun.wait();
                        std::panic::resume_unwind(Box::new(()));
                    })
                });
                assert!(std::panic::catch_unwind(lent).is_err());
                assert!(done.load(std::sync::atomic::Ordering::SeqCst), "it waits for the reader");
            });
            begun.wait();
            let is_all = shown.each(0..1000, |_, bytes| {
                begun.wait();
                std::thread::sleep(std::time::Duration::from_millis(20));
                done.store(bytes.iter().all(|byte| *byte == 1), std::sync::atomic::Ordering::SeqCst);
            });
            assert!(is_all);
        });
        assert!(!seen(&shown, 0..1).1);
    }
}
