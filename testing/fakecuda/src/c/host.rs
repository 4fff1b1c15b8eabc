//! The memory of the program that calls the library, by addresses that it gave.

use std::alloc::{Layout, alloc, dealloc};

/// What pinned memory begins at a multiple of.
const PAGE: usize = 4096;

/// Bytes of the host. Addresses come from calls, which say how long they hold.
pub fn read(at: u64, bytes: u64) -> Vec<u8> {
    let mut to = vec![0u8; bytes as usize];
    // SAFETY: the caller gave this memory to be read until the copy that does it is done, or
    // allocated it here.
    unsafe { std::ptr::copy(at as *const u8, to.as_mut_ptr(), to.len()) };
    to
}

/// Writes bytes of the host.
pub fn write(at: u64, bytes: &[u8]) {
    // SAFETY: the caller gave this memory to be written until the copy that does it is done, or
    // allocated it here.
    unsafe { std::ptr::copy(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// New memory of the host, which begins a page; `None` where there is none.
pub fn allocate(bytes: u64) -> Option<u64> {
    let layout = Layout::from_size_align(usize::try_from(bytes).ok()?.max(1), PAGE).ok()?;
    // SAFETY: the layout has at least one byte.
    let at = unsafe { alloc(layout) };
    if at.is_null() {
        return None;
    }
    write(at as u64, &vec![crate::memory::POISON; bytes as usize]);
    Some(at as u64)
}

/// Frees what [`allocate`] gave with as many bytes, once.
pub fn free(at: u64, bytes: u64) {
    if let Ok(layout) = Layout::from_size_align((bytes as usize).max(1), PAGE) {
        // SAFETY: the world knew the address and its bytes until now, and does no longer.
        unsafe { dealloc(at as *mut u8, layout) };
    }
}
