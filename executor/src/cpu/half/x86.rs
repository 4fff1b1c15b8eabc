//! The instructions of AVX-512 that multiply pairs of bf16, and that bring operands into pairs.
#![expect(unsafe_code, reason = "vectors are loaded and stored through pointers, and instructions used that were looked for")]

use crate::cpu::avx512::transposed;
use faer::MatMut;
use std::arch::x86_64::*;

/// The rows or columns of one line.
pub const LINE: usize = 16;

/// Two terms of each of 16 rows or columns, the first of them in the lower half.
pub type Line = [u32; LINE];

/// The rows of one tile in registers.
pub const HEIGHT: usize = 8;

/// The most groups of columns of one tile in registers.
pub const WIDTH: usize = 3;

/// That the processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub struct Pairs(());

impl Pairs {
    /// Looks for the instructions.
    pub fn detect() -> Option<Pairs> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bf16");
        found.then_some(Pairs(()))
    }

    /// `c = a b`, or `c += a b`: `c` is of at most [`HEIGHT`] rows and `V` groups of columns, `a`
    /// the lines of one group, of which rows from `first` are taken, and `b` the lines of a panel
    /// of `W` groups.
    ///
    /// # Panics
    /// If an operand is too short, or a row of `c` is not contiguous.
    #[inline]
    pub fn multiply<const W: usize, const V: usize>(
        self,
        a: &[Line],
        first: usize,
        b: &[Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) {
        assert!(first.is_multiple_of(HEIGHT) && first < LINE && V <= W && b.len() == W * a.len(), "operands fit");
        assert!(c.nrows() <= HEIGHT && c.ncols() <= V * LINE && c.ncols() > (V - 1) * LINE, "a tile of registers");
        assert!(c.col_stride() == 1 || c.ncols() <= 1, "rows of neighbours");
        // SAFETY: a `Pairs` is made only where the instructions were found.
        unsafe { multiply::<W, V>(a, first, b, c, accumulate) }
    }

    /// Packs 16 rows of terms, missing ones zero: `lines[p * width][i]` is terms `2 p` and
    /// `2 p + 1` of row `i`.
    #[inline]
    pub fn transpose(self, rows: &[&[u16]; LINE], lines: &mut [Line], width: usize) {
        // SAFETY: a `Pairs` is made only where the instructions were found.
        unsafe { transpose(rows, lines, width) }
    }

    /// Brings elements into the caches.
    #[inline]
    pub fn prefetch(self, elements: &[u16]) {
        for line in elements.chunks(2 * LINE) {
            prefetch(line);
        }
    }

    /// Packs one pair of terms of many rows, missing ones zero: `lines[q * stride + v][i]` is
    /// `even` and `odd` of row `16 (width q + v) + i`.
    #[inline]
    pub fn interleave(self, even: &[u16], odd: &[u16], lines: &mut [Line], width: usize, stride: usize) {
        // SAFETY: a `Pairs` is made only where the instructions were found.
        unsafe { interleave(even, odd, lines, width, stride) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn multiply<const W: usize, const V: usize>(a: &[Line], first: usize, b: &[Line], c: MatMut<'_, f32>, accumulate: bool) {
    let (rows, cols) = (c.nrows(), c.ncols());
    let (start, step) = (c.as_ptr_mut(), c.row_stride());
    for row in 0..rows {
        // The rows are there when they are needed.
        for line in 0..=V {
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_offset(row as isize * step).wrapping_add(line * LINE).cast());
        }
    }
    let mut sums = [[_mm512_setzero_ps(); V]; HEIGHT];
    let a: &[[[u32; HEIGHT]; LINE / HEIGHT]] = bytemuck::cast_slice(a);
    let part = first / HEIGHT % (LINE / HEIGHT);
    for (a, b) in a.iter().zip(b.as_chunks::<W>().0) {
        let mut columns = [_mm512_setzero_si512(); V];
        for (column, b) in columns.iter_mut().zip(b) {
            *column = load(b);
        }
        for (sums, a) in sums.iter_mut().zip(a[part]) {
            let a = as_pairs(_mm512_set1_epi32(a as i32));
            for (sum, b) in sums.iter_mut().zip(columns) {
                *sum = _mm512_dpbf16_ps(*sum, a, as_pairs(b));
            }
        }
    }
    let last = tail(cols - (V - 1) * LINE);
    for (row, sums) in sums.iter().enumerate().take(rows) {
        for (v, sum) in sums.iter().enumerate() {
            let mask = if v + 1 == V { last } else { !0 };
            // SAFETY: the row is one of `c`, and the mask takes columns of `c` only, which are
            // neighbours.
            unsafe {
                let at = start.offset(row as isize * step).add(v * LINE);
                let sum = if accumulate { _mm512_add_ps(*sum, _mm512_maskz_loadu_ps(mask, at)) } else { *sum };
                _mm512_mask_storeu_ps(at, mask, sum);
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose(rows: &[&[u16]; LINE], lines: &mut [Line], width: usize) {
    let mut from = 0;
    for lines in lines.chunks_mut(LINE * width) {
        let mut part = [_mm512_setzero_si512(); LINE];
        for (part, row) in part.iter_mut().zip(rows) {
            *part = load_terms(row.get(from..).unwrap_or_default());
            prefetch(row.get(from + 8 * LINE..).unwrap_or_default());
        }
        for (line, part) in lines.iter_mut().step_by(width).zip(transposed(part)) {
            store(line, part);
        }
        from += 2 * LINE;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn interleave(even: &[u16], odd: &[u16], lines: &mut [Line], width: usize, stride: usize) {
    let order = load_terms(&ORDER);
    for (panel, even) in even.chunks(LINE * width).enumerate() {
        let odd = odd.get(panel * LINE * width..).unwrap_or_default();
        let lines = &mut lines[panel * stride..];
        let (evens, even) = even.as_chunks::<LINE>();
        let (odds, odd) = odd[..odd.len().min(LINE * width)].as_chunks::<LINE>();
        if evens.len() == odds.len() {
            for ((even, odd), line) in evens.iter().zip(odds).zip(lines.iter_mut()) {
                store(line, _mm512_permutex2var_epi16(load_half(even), order, load_half(odd)));
            }
        } else {
            for (even, line) in evens.iter().zip(lines.iter_mut()) {
                store(line, _mm512_permutex2var_epi16(load_half(even), order, _mm512_setzero_si512()));
            }
        }
        if !even.is_empty() {
            store(&mut lines[evens.len()], _mm512_permutex2var_epi16(load_terms(even), order, load_terms(odd)));
        }
    }
}

/// Takes an element of one register, then one of another, in turn.
const ORDER: [u16; 2 * LINE] = {
    let mut order = [0; 2 * LINE];
    let mut i = 0;
    while i < LINE {
        order[2 * i] = i as u16;
        order[2 * i + 1] = (2 * LINE + i) as u16;
        i += 1;
    }
    order
};

/// Brings the line of the first element into the caches.
#[inline]
fn prefetch(elements: &[u16]) {
    // SAFETY: every processor of this architecture has the instruction, which changes no memory.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(elements.as_ptr().cast()) }
}

/// The mask of the first `count` of 16.
#[inline]
fn tail(count: usize) -> __mmask16 {
    if count >= LINE { !0 } else { (1 << count) - 1 }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line is as long as a register.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(line: &mut Line, value: __m512i) {
    // SAFETY: a line is as long as a register.
    unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), value) }
}

/// 16 elements; the others are of any value.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_half(elements: &[u16; LINE]) -> __m512i {
    // SAFETY: the elements are as long as half a register.
    _mm512_castsi256_si512(unsafe { _mm256_loadu_si256(elements.as_ptr().cast()) })
}

/// The first 32 terms, missing ones zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_terms(terms: &[u16]) -> __m512i {
    let mask = if terms.len() >= 2 * LINE { !0 } else { (1u32 << terms.len()) - 1 };
    // SAFETY: the mask takes elements of the slice only.
    unsafe { _mm512_maskz_loadu_epi16(mask, terms.as_ptr().cast()) }
}

/// The same bits, as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of any value.
    unsafe { std::mem::transmute(bits) }
}
