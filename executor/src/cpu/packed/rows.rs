//! Products of rows that lie as they are with 16 columns a register, by AVX-512.
//!
//! Terms of eight rows are taken one by one, so these need no packing. Columns are packed in a
//! panel: before, or while the first rows are multiplied with them, which costs no time of its own.
//! Sums become rows of `c`, or its columns where those are contiguous.
#![expect(unsafe_code, reason = "instructions are used that were looked for, on elements that were looked at")]

use super::x86::{HEIGHT, LINE, Line, Singles, WIDTH};
use crate::cpu::lines::avx512::{self, turned_by_fours};
use crate::cpu::lines::first_lanes;
use faer::{MatMut, MatRef};
use std::arch::x86_64::*;

/// How many terms before they are needed columns are brought near.
const AHEAD: usize = 16;

/// After so many terms other lines are brought nearer.
const EVERY: usize = 4;

/// Lines of memory in runs, which are brought nearer one by one while sums are made, so that
/// nothing waits for them.
#[derive(Debug, Clone, Copy)]
struct Soon {
    /// Where the run begins.
    at: *const f32,
    /// The lines of a run.
    run: usize,
    /// How many of them were brought.
    done: usize,
    /// Elements from one run to the next.
    step: isize,
    /// How many runs are left.
    left: usize,
}

impl Soon {
    /// None.
    const NOTHING: Soon = Soon { at: std::ptr::null(), run: 0, done: 0, step: 0, left: 0 };

    /// Those that hold the rows of a matrix, if these are contiguous, or its columns.
    fn of(matrix: MatRef<'_, f32>) -> Soon {
        let by_rows = matrix.col_stride() == 1;
        let (step, left, elements) = match by_rows {
            true => (matrix.row_stride(), matrix.nrows(), matrix.ncols()),
            false => (matrix.col_stride(), matrix.ncols(), matrix.nrows()),
        };
        Soon { at: matrix.as_ptr(), run: elements.div_ceil(LINE), done: 0, step, left }
    }

    #[inline(always)]
    fn bring(&mut self) {
        if self.left == 0 {
            return;
        }
        // SAFETY: every processor of this architecture has the instruction; no memory changes.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.wrapping_add(self.done * LINE).cast()) };
        self.done += 1;
        if self.done >= self.run {
            (self.at, self.done, self.left) = (self.at.wrapping_offset(self.step), 0, self.left - 1);
        }
    }
}

/// The sums of one tile.
pub(super) type Sums<const V: usize> = [[__m512; V]; HEIGHT];

/// How many groups of columns a panel of so many has.
fn groups(cols: usize) -> usize {
    cols.div_ceil(LINE)
}

impl Singles {
    /// `c = a b`, or `c += a b`, where `lines` are the terms of the columns of `c`, in a panel of
    /// `W` groups. Meanwhile `soon` is brought nearer; without it, the next rows of `a`.
    ///
    /// # Panics
    /// If sizes do not fit, the processor has no AVX-512, or neither rows nor columns of `c` are
    /// contiguous.
    pub fn rows_by_panel<const W: usize>(
        self,
        a: MatRef<'_, f32>,
        lines: &[Line],
        mut c: MatMut<'_, f32>,
        accumulate: bool,
        soon: Option<MatRef<'_, f32>>,
    ) {
        assert!(self.are_avx512() && a.nrows() == c.nrows() && lines.len() == W * a.ncols(), "operands fit");
        assert!(groups(c.ncols()) <= W, "columns fit");
        for row in (0..a.nrows()).step_by(HEIGHT) {
            let height = HEIGHT.min(a.nrows() - row);
            let soon = match soon {
                Some(soon) => share(soon, row, a.nrows()),
                None => a.subrows(row + height, HEIGHT.min(a.nrows() - row - height)),
            };
            let (rows, c) = (Rows::of(a, row), c.as_mut().subrows_mut(row, height));
            let soon = [Soon::of(c.as_ref()), Soon::of(soon)];
            // SAFETY: the instructions are there, and the rows are those of a matrix.
            unsafe {
                match groups(c.ncols()) {
                    1 => put(by_lines::<W, 1>(rows, lines, soon), c, accumulate),
                    2 => put(by_lines::<W, 2>(rows, lines, soon), c, accumulate),
                    _ => put(by_lines::<W, 3>(rows, lines, soon), c, accumulate),
                }
            }
        }
    }

    /// The same for the columns of `b`, which are packed into `lines`.
    ///
    /// # Panics
    /// As above, and if the rows of `b` are not contiguous.
    pub fn rows_by_columns(
        self,
        a: MatRef<'_, f32>,
        b: MatRef<'_, f32>,
        lines: &mut [Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
        soon: Option<MatRef<'_, f32>>,
    ) {
        match groups(b.ncols()) {
            1 => self.rows_packing::<1>(a, b, lines, c, accumulate, soon),
            2 => self.rows_packing::<2>(a, b, lines, c, accumulate, soon),
            _ => self.rows_packing::<3>(a, b, lines, c, accumulate, soon),
        }
    }

    /// `c = a b`, or `c += a b`, for at most eight rows, where `lines` have the terms of `W` groups
    /// of columns, of which the first `V` are those of `c`.
    ///
    /// # Panics
    /// If sizes do not fit, the processor has no AVX-512, or neither rows nor columns of `c` are
    /// contiguous.
    pub(super) fn tile<const W: usize, const V: usize>(
        self,
        a: MatRef<'_, f32>,
        lines: &[Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) {
        assert!(self.are_avx512() && a.nrows() == c.nrows() && lines.len() == W * a.ncols(), "operands fit");
        // SAFETY: the instructions are there, and the rows are those of a matrix.
        unsafe { put_by_lines::<W, V>(Rows::of(a, 0), lines, c, accumulate) };
    }

    /// Packs the columns of `b` times a factor, `W` groups, missing ones zero.
    ///
    /// # Panics
    /// If sizes do not fit, the processor has no AVX-512, or neither rows nor columns of `b` are
    /// contiguous.
    pub(super) fn pack_columns<const W: usize>(self, b: MatRef<'_, f32>, factor: f32, lines: &mut [Line]) {
        assert!(self.are_avx512(), "the instructions are there");
        // SAFETY: as said.
        unsafe { pack_columns::<W>(b, factor, lines) };
    }

    fn rows_packing<const V: usize>(
        self,
        a: MatRef<'_, f32>,
        b: MatRef<'_, f32>,
        lines: &mut [Line],
        mut c: MatMut<'_, f32>,
        accumulate: bool,
        soon: Option<MatRef<'_, f32>>,
    ) {
        assert!(self.are_avx512() && a.nrows() == c.nrows() && b.ncols() == c.ncols(), "sizes fit");
        assert!(b.nrows() == a.ncols() && groups(b.ncols()) == V && (b.col_stride() == 1 || b.ncols() == 1), "columns fit");
        let (first, others) = a.split_at_row(HEIGHT.min(a.nrows()));
        let (of_first, of_others) = c.as_mut().split_at_row_mut(first.nrows());
        let lines = &mut lines[..V * a.ncols()];
        // SAFETY: the instructions are there, the rows are those of a matrix, and `b` has a row of
        // as many elements as are taken for each term.
        unsafe { put(by_columns::<V>(Rows::of(first, 0), b, lines), of_first, accumulate) };
        if others.nrows() > 0 {
            self.rows_by_panel::<V>(others, lines, of_others, accumulate, soon);
        }
    }
}

/// The rows of a matrix that are brought nearer with the tile at `row` of so many.
fn share(matrix: MatRef<'_, f32>, row: usize, rows: usize) -> MatRef<'_, f32> {
    let at = |row: usize| row.min(rows) * matrix.nrows() / rows;
    matrix.subrows(at(row), at(row + HEIGHT) - at(row))
}

/// Eight rows: where each begins, and how far its terms are from each other.
#[derive(Debug, Clone, Copy)]
struct Rows {
    starts: [*const f32; HEIGHT],
    step: isize,
}

impl Rows {
    /// Those from `first` on, the last one again where there are fewer.
    ///
    /// # Panics
    /// If there is no row.
    fn of(a: MatRef<'_, f32>, first: usize) -> Rows {
        assert!(first < a.nrows(), "there is a row");
        Rows { starts: std::array::from_fn(|i| a.row((first + i).min(a.nrows() - 1)).as_ptr()), step: a.col_stride() }
    }
}

/// # Safety
/// The processor has the instructions, and each row has a term for every `W` lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_lines<const W: usize, const V: usize>(rows: Rows, lines: &[Line], [mut own, mut soon]: [Soon; 2]) -> Sums<V> {
    const { assert!(V <= WIDTH) };
    let mut sums = [[_mm512_setzero_ps(); V]; HEIGHT];
    for (part, lines) in lines.chunks(EVERY * W).enumerate() {
        own.bring();
        soon.bring();
        soon.bring();
        for (term, lines) in lines.as_chunks::<W>().0.iter().enumerate() {
            let mut columns = [_mm512_setzero_ps(); V];
            for (column, line) in columns.iter_mut().zip(lines) {
                // SAFETY: a line is as long as a register.
                *column = unsafe { _mm512_loadu_ps(line.as_ptr().cast()) };
            }
            // SAFETY: the caller promises the term.
            unsafe { add(&mut sums, rows, part * EVERY + term, columns) };
        }
    }
    sums
}

/// Stores the sums.
///
/// # Safety
/// As [`by_lines`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn put_by_lines<const W: usize, const V: usize>(rows: Rows, lines: &[Line], c: MatMut<'_, f32>, accumulate: bool) {
    // SAFETY: as the caller promises.
    put(unsafe { by_lines::<W, V>(rows, lines, [Soon::NOTHING; 2]) }, c, accumulate);
}

/// See [`Singles::pack_columns`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn pack_columns<const W: usize>(b: MatRef<'_, f32>, factor: f32, lines: &mut [Line]) {
    let (terms, cols, start) = (b.nrows(), b.ncols(), b.as_ptr());
    assert!(cols.div_ceil(LINE) == W && lines.len() == W * terms, "columns fit");
    let factor = _mm512_set1_ps(factor);
    let put = |line: &mut Line, elements: __m512| {
        // SAFETY: a line is as long as a register.
        unsafe { _mm512_storeu_ps(line.as_mut_ptr().cast(), _mm512_mul_ps(elements, factor)) }
    };
    if b.col_stride() == 1 || cols == 1 {
        let last = first_lanes(cols - (W - 1) * LINE);
        for (row, lines) in (0..terms).zip(lines.as_chunks_mut::<W>().0) {
            let row = start.wrapping_offset(row as isize * b.row_stride());
            for (w, line) in lines.iter_mut().enumerate() {
                let mask = if w + 1 == W { last } else { !0 };
                // SAFETY: the mask takes elements of the row only.
                put(line, unsafe { _mm512_maskz_loadu_ps(mask, row.wrapping_add(w * LINE)) });
            }
        }
        return;
    }
    assert!(b.row_stride() == 1 || terms == 1, "rows or columns of neighbours");
    for (block, lines) in lines.chunks_mut(LINE * W).enumerate() {
        let mask = first_lanes(terms - block * LINE);
        for w in 0..W {
            let mut columns = [_mm512_setzero_si512(); LINE];
            for (col, column) in (w * LINE..cols).zip(&mut columns) {
                let at = start.wrapping_offset(col as isize * b.col_stride()).wrapping_add(block * LINE);
                // SAFETY: the mask takes elements of the column only.
                *column = _mm512_castps_si512(unsafe { _mm512_maskz_loadu_ps(mask, at) });
            }
            for (line, terms) in lines.iter_mut().skip(w).step_by(W).zip(avx512::transposed(columns)) {
                put(line, _mm512_castsi512_ps(terms));
            }
        }
    }
}

/// As [`by_lines`], for the columns of `b`, which become the lines.
///
/// # Safety
/// The processor has the instructions, and each row of the first operand and `b` have a term for
/// every `V` lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn by_columns<const V: usize>(rows: Rows, b: MatRef<'_, f32>, lines: &mut [Line]) -> Sums<V> {
    const { assert!(V <= WIDTH) };
    let (start, step) = (b.as_ptr(), b.row_stride());
    let last = first_lanes(b.ncols() - (V - 1) * LINE);
    let mut sums = [[_mm512_setzero_ps(); V]; HEIGHT];
    for (term, lines) in lines.as_chunks_mut::<V>().0.iter_mut().enumerate() {
        let row = start.wrapping_offset(term as isize * step);
        let soon = start.wrapping_offset((term + AHEAD) as isize * step);
        let mut columns = [_mm512_setzero_ps(); V];
        for (v, (column, line)) in columns.iter_mut().zip(lines).enumerate() {
            _mm_prefetch::<_MM_HINT_T0>(soon.wrapping_add(v * LINE).cast());
            let mask = if v + 1 == V { last } else { !0 };
            // SAFETY: the mask takes elements of the row only, and a line is as long as a register.
            unsafe {
                *column = _mm512_maskz_loadu_ps(mask, row.wrapping_add(v * LINE));
                _mm512_storeu_ps(line.as_mut_ptr().cast(), *column);
            }
        }
        // SAFETY: the caller promises the term.
        unsafe { add(&mut sums, rows, term, columns) };
    }
    sums
}

/// # Safety
/// The processor has the instructions, and each row has the term.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn add<const V: usize>(sums: &mut Sums<V>, rows: Rows, term: usize, columns: [__m512; V]) {
    for (sums, start) in sums.iter_mut().zip(rows.starts) {
        // SAFETY: the caller promises the term.
        let a = _mm512_set1_ps(unsafe { *start.offset(term as isize * rows.step) });
        for (sum, column) in sums.iter_mut().zip(columns) {
            *sum = _mm512_fmadd_ps(a, column, *sum);
        }
    }
}

/// Stores sums in the first rows and columns, all that `c` has.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn put<const V: usize>(sums: Sums<V>, c: MatMut<'_, f32>, accumulate: bool) {
    let (rows, cols, start) = (c.nrows(), c.ncols(), c.as_ptr_mut());
    let (down, along) = (c.row_stride(), c.col_stride());
    assert!(rows <= HEIGHT && cols <= V * LINE && cols > (V - 1) * LINE, "a tile of registers");
    if along == 1 || cols == 1 {
        let last = first_lanes(cols - (V - 1) * LINE);
        for (row, sums) in sums.iter().enumerate().take(rows) {
            for (v, sum) in sums.iter().enumerate() {
                let mask = if v + 1 == V { last } else { !0 };
                // SAFETY: the row is one of `c`, and the mask takes columns of `c` only, which are
                // neighbours.
                unsafe {
                    let at = start.offset(row as isize * down).add(v * LINE);
                    let sum = if accumulate { _mm512_add_ps(*sum, _mm512_maskz_loadu_ps(mask, at)) } else { *sum };
                    _mm512_mask_storeu_ps(at, mask, sum);
                }
            }
        }
        return;
    }
    assert!(down == 1 || rows == 1, "rows or columns of neighbours");
    let mask = first_lanes(rows) as __mmask8;
    for v in 0..V {
        let columns = transposed(sums.map(|sums| sums[v]));
        for (col, column) in (v * LINE..cols).zip(columns) {
            // SAFETY: the column is one of `c`, and the mask takes rows of `c` only, which are
            // neighbours.
            unsafe {
                let at = start.offset(col as isize * along);
                let sum = if accumulate { _mm256_add_ps(column, _mm256_maskz_loadu_ps(mask, at)) } else { column };
                _mm256_mask_storeu_ps(at, mask, sum);
            }
        }
    }
}

/// The 16 columns of eight rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; HEIGHT]) -> [__m256; LINE] {
    let fours = turned_by_fours(rows.map(|row| _mm512_castps_si512(row)));
    let (low, high) = (_mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4));
    let mut columns = [_mm256_setzero_ps(); LINE];
    for j in 0..4 {
        for (half, order) in [low, high].into_iter().enumerate() {
            let two = _mm512_permutex2var_epi64(fours[j], order, fours[4 + j]);
            columns[8 * half + j] = _mm256_castsi256_ps(_mm512_castsi512_si256(two));
            columns[8 * half + 4 + j] = _mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(two));
        }
    }
    columns
}
