//! Hints to the processor about memory that is read soon.
#![expect(unsafe_code, reason = "an instruction that only hints, and takes any address")]

/// Brings the line of the first element into the first cache.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn near<T>(elements: &[T]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every processor of this architecture has the instruction, which changes no memory.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(elements.as_ptr().cast()) }
}
