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

/// Brings the elements into the second cache, a line at a time from the first one on.
#[inline(always)]
pub fn far<T>(elements: &[T]) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in elements.chunks((LINE / size_of::<T>()).max(1)) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (elements, LINE);
}
