//! The allocator: small pieces, which come and go by the million as graphs are rewritten, from
//! mimalloc; large ones, such as weights and arenas, from the system, which takes them back at
//! once. On Linux, large pieces are asked to lie on huge pages: a step walks through gigabytes of
//! them, and a page of 4 KiB for every kilofloat costs a fifth of the machine's bandwidth.
//!
//! The two never mix, because a piece's size, which everybody who gives one back must know, says
//! whose it is. Under a limit of addresses all comes from the system: mimalloc takes many more
//! than it uses, for each thread anew. Who lacks memory is told so in words, whoever found it
//! lacking. Source: Leijen, Zorn and de Moura, Mimalloc: Free List
//! Sharding in Action (2019).
#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use mimalloc::MiMalloc;
use shardc::cli::MACHINE;
use shardc_ir::memory::can_do_without;
use std::alloc::{GlobalAlloc, Layout, System};
#[cfg(unix)]
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Pieces of so many bytes are large.
const LARGE: usize = 1 << 20;

/// The allocator of the program.
pub struct Heap;

/// Who makes small pieces: nobody knows before the first one.
static SMALL: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const BY_MIMALLOC: u8 = 1;
const BY_SYSTEM: u8 = 2;

/// A process that may have fewer bytes of addresses has no room for mimalloc.
const ROOM: u64 = 16 << 30;

/// Whether pieces of `size` bytes are mimalloc's. The first question is asked by the one thread
/// that a process begins with.
fn is_by_mimalloc(size: usize) -> bool {
    if SMALL.load(Ordering::Relaxed) == UNKNOWN {
        let has_room = most_addresses().is_none_or(|most| most >= ROOM);
        if !has_room {
            share_addresses();
        }
        SMALL.store(if has_room { BY_MIMALLOC } else { BY_SYSTEM }, Ordering::Relaxed);
    }
    size < LARGE && SMALL.load(Ordering::Relaxed) == BY_MIMALLOC
}

/// The bytes of addresses that the process may have at most, if that is limited.
#[cfg(unix)]
fn most_addresses() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::As).current
}

#[cfg(not(unix))]
fn most_addresses() -> Option<u64> {
    None
}

/// All threads take pieces from one range of addresses.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn share_addresses() {
    // SAFETY: it is called before the first piece is made. Without effect each thread takes 64 MiB
    // of addresses, and fewer have room.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn share_addresses() {}

/// The piece, or the end of the process where it is not there, but for who can do without it.
fn piece_or_end(piece: *mut u8, size: usize) -> *mut u8 {
    if piece.is_null() && !can_do_without() {
        end(format_args!("{size} more bytes"));
    }
    piece
}

/// A thread that has no room for its signal stack panics in the standard library, which cannot say
/// so otherwise: from now on that ends the process as any lack of memory does.
pub fn end_without_stacks() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        if cfg!(unix) && what.location().is_some_and(|at| at.file().ends_with("stack_overflow.rs")) {
            end(format_args!("the stack of one more thread"));
        }
        before(what);
    }));
}

/// Ends the process with words, for which no memory is needed. One thread says them.
#[cfg(unix)]
fn end(lacking: std::fmt::Arguments<'_>) -> ! {
    use std::os::fd::FromRawFd;
    static ENDS: AtomicBool = AtomicBool::new(false);
    while ENDS.swap(true, Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    // SAFETY: standard error stays open, as the file is not closed.
    let mut words = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(2) });
    // Who cannot be told is not told.
    let _ = writeln!(words, "error: there is no memory for {lacking}\n  = help: allow the process more, or give it less to do");
    signal_hook::low_level::exit(MACHINE)
}

#[cfg(not(unix))]
fn end(_lacking: std::fmt::Arguments<'_>) -> ! {
    std::process::abort()
}

/// Whose a piece of `size` bytes is.
fn owner(size: usize) -> &'static dyn GlobalAlloc {
    if is_by_mimalloc(size) { &MiMalloc } else { &System }
}

/// Asks the system for huge pages under the pieces that are worth it. It is a hint: where the
/// system has none, everything is as before.
#[cfg(target_os = "linux")]
fn on_huge_pages(piece: *mut u8, size: usize) -> *mut u8 {
    const PAGE: usize = 2 << 20;
    const WORTH_IT: usize = 2 * PAGE;
    if size >= WORTH_IT && !piece.is_null() {
        let first = piece.align_offset(PAGE);
        let pages = (size - first) / PAGE;
        // SAFETY: the range lies inside of the piece, and the advice changes no byte of it.
        unsafe { libc::madvise(piece.add(first).cast(), pages * PAGE, libc::MADV_HUGEPAGE) };
    }
    piece
}

#[cfg(not(target_os = "linux"))]
fn on_huge_pages(piece: *mut u8, _size: usize) -> *mut u8 {
    piece
}

// SAFETY: both allocators keep the contract, and each is given back and asked to resize what it has
// made itself: the size of a piece does not change without `realloc`, and who makes small pieces
// does not change after the first.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function, which is the same.
        let piece = unsafe { owner(layout.size()).alloc(layout) };
        on_huge_pages(piece_or_end(piece, layout.size()), layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let piece = unsafe { owner(layout.size()).alloc_zeroed(layout) };
        on_huge_pages(piece_or_end(piece, layout.size()), layout.size())
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: the piece has this layout, so this allocator has made it.
        unsafe { owner(layout.size()).dealloc(piece, layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_by_mimalloc(layout.size()) == is_by_mimalloc(size) {
            // SAFETY: the piece has this layout, so this allocator has made it, and the new size is
            // its own too.
            let piece = unsafe { owner(size).realloc(piece, layout, size) };
            return on_huge_pages(piece_or_end(piece, size), size);
        }
        // SAFETY: the caller promises that `size` is not zero and, rounded up to the alignment, no
        // more than `isize::MAX`. The new piece is another one than the old, both have the bytes
        // that are copied, and the old one is given back to who has made it.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_bytes_from_one_allocator_to_the_other() {
        let byte = |i: usize| (i % 251) as u8;
        let mut bytes: Vec<u8> = (0..LARGE / 2).map(byte).collect();
        for length in [LARGE - 1, LARGE, 3 * LARGE, 17 * LARGE, LARGE + 1, LARGE - 1, 10, LARGE] {
            let before = bytes.len().min(length);
            bytes.truncate(length);
            bytes.shrink_to_fit();
            bytes.reserve_exact(length - before);
            assert!((0..before).all(|i| bytes[i] == byte(i)), "{length} bytes");
            bytes.extend((before..length).map(byte));
        }
        let zeros = vec![0_u8; LARGE];
        assert!(zeros.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn who_can_do_without_goes_on() {
        assert!(shardc_ir::memory::reserve(&mut Vec::<u8>::new(), 1 << 62).is_err());
    }
}
