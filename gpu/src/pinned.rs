//! Memory of the host that a GPU reads and writes by itself while the host goes on.
#![allow(unsafe_code, reason = "two sides share the memory")]

use shardc_ir::reason::Reason;
use std::ops::Range;
use std::ptr::NonNull;

/// A piece of pinned memory. Whoever has it touches it only while no copy that names it is under
/// way: [`crate::rank`] does so between steps.
#[derive(Debug)]
pub struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, and to copies that its owner waits for.
unsafe impl Send for Pinned {}

impl Pinned {
    /// The `bytes` bytes at `start`, which nobody else has.
    ///
    /// # Safety
    /// They can be read and written as long as the value lives.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Pinned {
        Pinned { start, bytes }
    }

    /// The address of a range.
    ///
    /// # Errors
    /// If the range is not inside.
    pub fn address(&self, range: &Range<usize>) -> Result<*mut u8, Reason> {
        let inside = range.start <= range.end && range.end <= self.bytes;
        // SAFETY: the offset is inside of the piece, or at its end.
        if inside { Ok(unsafe { self.start.as_ptr().add(range.start) }) } else { Err("a copy leaves pinned memory".into()) }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes live as long as the value, were written when it was made, and no copy
        // is under way.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// All bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the value is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}
