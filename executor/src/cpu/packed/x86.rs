//! The instructions that multiply packed floats or pairs of bf16, and that pack them.
#![expect(unsafe_code, reason = "vectors are loaded and stored through pointers, and instructions used that were looked for")]

use super::{DEPTH, Packing, rows};
use crate::cpu::lines::avx512::transposed;
use crate::cpu::lines::{self, Block, Vectors, avx2, first_lanes};
use crate::cpu::prefetch;
use ::half::bf16;
use ::half::slice::HalfFloatSliceExt;
use faer::MatMut;
use std::arch::x86_64::*;

/// The rows or columns of one line.
pub const LINE: usize = 16;

/// The terms of 16 rows or columns: one f32 of each, or two bf16 of each, the first of them in the
/// lower half.
pub type Line = [u32; LINE];

/// The rows of one tile in registers.
pub const HEIGHT: usize = 8;

/// The most groups of columns of one tile in registers.
pub const WIDTH: usize = 3;

/// The most rows of a tile where sums are in memory: a few groups.
const TALL: usize = 8 * LINE;

/// That the processor has the instructions for f32.
#[derive(Debug, Clone, Copy)]
pub struct Singles(Vectors);

/// That the processor has the instructions for pairs of bf16.
#[derive(Debug, Clone, Copy)]
pub struct Pairs(());

impl Singles {
    /// Looks for the instructions.
    pub fn detect() -> Option<Singles> {
        Vectors::detect().map(Singles)
    }

    /// Whether they are those of AVX-512.
    pub fn are_avx512(self) -> bool {
        self.0.are_avx512()
    }

    /// The narrowest that the processor has.
    #[cfg(test)]
    pub fn narrowest() -> Option<Singles> {
        Vectors::all().last().map(Singles)
    }
}

impl Pairs {
    /// Looks for the instructions.
    pub fn detect() -> Option<Pairs> {
        let found = Vectors::detect().is_some_and(Vectors::are_avx512) && is_x86_feature_detected!("avx512bf16");
        found.then_some(Pairs(()))
    }
}

impl Packing for Singles {
    type Element = f32;
    const TERMS: usize = 1;

    #[inline]
    fn multiply<const W: usize, const V: usize>(
        self,
        (a, stride): (&[Line], usize),
        first: usize,
        b: &[Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) {
        check::<W, V>((a, stride), first, b, &c, self.tall());
        // SAFETY: a `Singles` is made only where its instructions were found.
        unsafe {
            match self.0.are_avx512() {
                true => multiply_singles::<W, V>(a, first, b, c, accumulate),
                false => multiply_narrow::<W, V>((a, stride), b, c, accumulate),
            }
        }
    }

    fn tall(self) -> usize {
        if self.0.are_avx512() { HEIGHT } else { TALL }
    }

    fn transpose(self, rows: &[&[f32]; LINE], lines: &mut [Line], width: usize) {
        match self.0.are_avx512() {
            // SAFETY: as above.
            true => unsafe { transpose_singles(rows, lines, width) },
            false => self.0.interleave(rows, bytemuck::cast_slice_mut(lines), width),
        }
    }

    fn interleave(self, [column, _]: [&[f32]; 2], lines: &mut [Line], width: usize, stride: usize) {
        match self.0.are_avx512() {
            // SAFETY: as above.
            true => unsafe { interleave_singles(column, lines, width, stride) },
            false => interleave_narrow(column, lines, width, stride),
        }
    }

    #[inline]
    fn line([first, _]: [&[f32; LINE]; 2]) -> Line {
        first.map(f32::to_bits)
    }
}

impl Packing for Pairs {
    type Element = bf16;
    const TERMS: usize = 2;

    #[inline]
    fn multiply<const W: usize, const V: usize>(
        self,
        (a, stride): (&[Line], usize),
        first: usize,
        b: &[Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) {
        check::<W, V>((a, stride), first, b, &c, HEIGHT);
        // SAFETY: a `Pairs` is made only where the instructions were found.
        unsafe { multiply_pairs::<W, V>(a, first, b, c, accumulate) }
    }

    fn transpose(self, rows: &[&[bf16]; LINE], lines: &mut [Line], width: usize) {
        // SAFETY: as above.
        unsafe { transpose_pairs(&rows.map(|row| row.reinterpret_cast()), lines, width) }
    }

    fn interleave(self, [even, odd]: [&[bf16]; 2], lines: &mut [Line], width: usize, stride: usize) {
        // SAFETY: as above.
        unsafe { interleave_pairs(even.reinterpret_cast(), odd.reinterpret_cast(), lines, width, stride) }
    }

    #[inline]
    fn line([first, second]: [&[bf16; LINE]; 2]) -> Line {
        std::array::from_fn(|i| u32::from(first[i].to_bits()) | (u32::from(second[i].to_bits()) << 16))
    }
}

/// # Panics
/// If an operand of a tile of at most so many rows is too short or too long, or a row of `c` is not
/// contiguous.
#[inline]
fn check<const W: usize, const V: usize>(
    (a, stride): (&[Line], usize),
    first: usize,
    b: &[Line],
    c: &MatMut<'_, f32>,
    tall: usize,
) {
    const { assert!(V <= W && W <= WIDTH) };
    let (depth, rows) = (b.len() / W, c.nrows());
    assert!(first.is_multiple_of(HEIGHT) && first + tall.min(LINE) <= LINE, "rows of a line");
    assert!(depth <= DEPTH && b.len() == W * depth && depth <= stride, "operands fit");
    assert!(rows > 0 && rows <= tall && a.len() == (rows - 1) / LINE * stride + depth, "rows fit");
    assert!(c.ncols() <= V * LINE && c.ncols() > (V - 1) * LINE, "a tile of registers");
    assert!(c.col_stride() == 1 || c.ncols() <= 1, "rows of neighbours");
}

/// One tile in registers: `$fma` adds the products of a line of `b` with one row's terms, in all
/// lanes, to a sum.
macro_rules! multiply {
    ($name:ident, $features:literal, |$sum:ident, $a:ident, $b:ident| $fma:expr) => {
        #[target_feature(enable = $features)]
        fn $name<const W: usize, const V: usize>(a: &[Line], first: usize, b: &[Line], c: MatMut<'_, f32>, accumulate: bool) {
            let (start, step) = (c.as_ptr(), c.row_stride());
            for row in 0..c.nrows() {
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
                    let a = _mm512_set1_epi32(a as i32);
                    for (sum, b) in sums.iter_mut().zip(&columns) {
                        let ($sum, $a, $b) = (*sum, a, *b);
                        *sum = $fma;
                    }
                }
            }
            rows::put(sums, c, accumulate);
        }
    };
}

multiply!(multiply_singles, "avx512f,avx512bw,avx512vl", |sum, a, b| {
    _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum)
});
multiply!(multiply_pairs, "avx512f,avx512bw,avx512vl,avx512bf16", |sum, a, b| _mm512_dpbf16_ps(sum, as_pairs(a), as_pairs(b)));

/// As [`multiply_singles`], by registers of AVX2, for rows of several groups: of `b` so many terms
/// are multiplied with all of them as stay in the first cache, while sums are in memory.
#[target_feature(enable = "avx2,fma")]
fn multiply_narrow<const W: usize, const V: usize>(
    (a, stride): (&[Line], usize),
    b: &[Line],
    c: MatMut<'_, f32>,
    accumulate: bool,
) {
    const OFFSETS: [u32; avx2::NEAR] = {
        let mut offsets = [0; avx2::NEAR];
        let mut k = 0;
        while k < avx2::NEAR {
            offsets[k] = (k * LINE) as u32;
            k += 1;
        }
        offsets
    };
    const { assert!(HEIGHT == lines::HEIGHT && WIDTH == lines::WIDTH) };
    lines::with_lines(c.nrows().div_ceil(HEIGHT) * HEIGHT * WIDTH, |sums: &mut [lines::Line]| {
        sums.fill([0.0; LINE]);
        let blocks: &mut [Block] = bytemuck::cast_slice_mut(sums);
        for (chunk, b) in b.chunks(avx2::NEAR * W).enumerate() {
            let terms = b.len() / W;
            for (i, block) in blocks.iter_mut().enumerate() {
                let row = i * HEIGHT;
                let a: &[f32] = bytemuck::cast_slice(&a[row / LINE * stride + chunk * avx2::NEAR..][..terms]);
                let rows = std::array::from_fn(|i| a.as_ptr().wrapping_add(row % LINE + i));
                // SAFETY: each line of `a` has a term of each row, `b` has `W` lines for each, and
                // `V` are no more.
                unsafe { avx2::add_products::<W, false>(rows, &OFFSETS[..terms], bytemuck::cast_slice(b), V, block) };
            }
        }
        let (cols, start, step) = (c.ncols(), c.as_ptr_mut(), c.row_stride());
        for (row, sums) in (0..c.nrows()).zip(blocks.iter().flatten()) {
            // SAFETY: the row is one of `c`, whose elements are neighbours.
            let row = unsafe { std::slice::from_raw_parts_mut(start.offset(row as isize * step), cols) };
            for (x, sum) in row.iter_mut().zip(sums.as_flattened()) {
                *x = if accumulate { *x + sum } else { *sum };
            }
        }
    });
}

/// As [`interleave_singles`].
fn interleave_narrow(column: &[f32], lines: &mut [Line], width: usize, stride: usize) {
    for (panel, column) in column.chunks(LINE * width).enumerate() {
        for (part, line) in column.chunks(LINE).zip(&mut lines[panel * stride..]) {
            *line = [0; LINE];
            line[..part.len()].copy_from_slice(bytemuck::cast_slice(part));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose_singles(rows: &[&[f32]; LINE], lines: &mut [Line], width: usize) {
    let mut from = 0;
    for lines in lines.chunks_mut(LINE * width) {
        let mut part = [_mm512_setzero_si512(); LINE];
        for (part, row) in part.iter_mut().zip(rows) {
            *part = load_singles(row.get(from..).unwrap_or_default());
            prefetch::near(row.get(from + 4 * LINE..).unwrap_or_default());
        }
        for (line, part) in lines.iter_mut().step_by(width).zip(transposed(part)) {
            store(line, part);
        }
        from += LINE;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn interleave_singles(column: &[f32], lines: &mut [Line], width: usize, stride: usize) {
    for (panel, column) in column.chunks(LINE * width).enumerate() {
        let lines = &mut lines[panel * stride..];
        let (whole, rest) = column.as_chunks::<LINE>();
        for (part, line) in whole.iter().zip(lines.iter_mut()) {
            store(line, load_singles(part));
        }
        if !rest.is_empty() {
            store(&mut lines[whole.len()], load_singles(rest));
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose_pairs(rows: &[&[u16]; LINE], lines: &mut [Line], width: usize) {
    let mut from = 0;
    for lines in lines.chunks_mut(LINE * width) {
        let mut part = [_mm512_setzero_si512(); LINE];
        for (part, row) in part.iter_mut().zip(rows) {
            *part = load_terms(row.get(from..).unwrap_or_default());
            prefetch::near(row.get(from + 8 * LINE..).unwrap_or_default());
        }
        for (line, part) in lines.iter_mut().step_by(width).zip(transposed(part)) {
            store(line, part);
        }
        from += 2 * LINE;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn interleave_pairs(even: &[u16], odd: &[u16], lines: &mut [Line], width: usize, stride: usize) {
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

/// The first 16 elements, missing ones zero.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_singles(elements: &[f32]) -> __m512i {
    // SAFETY: the mask takes elements of the slice only.
    _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(first_lanes(elements.len()), elements.as_ptr()) })
}

/// The same bits, as pairs of bf16.
#[inline]
#[target_feature(enable = "avx512f")]
fn as_pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of any value.
    unsafe { std::mem::transmute(bits) }
}
