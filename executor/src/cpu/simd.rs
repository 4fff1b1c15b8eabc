//! One list of instruction sets for every inner loop.

/// Compiles functions for AVX-512, AVX2 and the baseline, and chooses at run time. Functions that
/// they call must be `inline(always)`.
macro_rules! simd {
    ($($(#[$meta:meta])* $visibility:vis fn $name:ident $(<$($generic:ident: $bound:path),+>)? ($($args:tt)*) $(-> $result:ty)? $body:block)*) => {
        $($(#[$meta])*
        #[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw+avx2+fma", "x86_64+avx2+fma"))]
        $visibility fn $name $(<$($generic: $bound),+>)? ($($args)*) $(-> $result)? $body)*
    };
}
pub(crate) use simd;
