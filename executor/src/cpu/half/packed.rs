//! Products of bf16 by an instruction that multiplies pairs.
//!
//! Both operands are packed alike: 16 rows of `a`, or 16 columns of `b`, are a group, and a line of
//! a group holds two neighbouring terms of each of the 16, as one vector register does. What is
//! missing at the edges is zero. Each sum runs over the blocks of terms and the pairs of a block in
//! order, so it is the same to the bit wherever its element lies in a tile.

use super::x86::{HEIGHT, LINE, Line, Pairs, WIDTH};
use crate::cpu::scratch;
use ::half::bf16;
use ::half::slice::HalfFloatSliceExt;
use faer::{Accum, MatMut, MatRef};

/// The most terms of the sum in one block: so many of a panel of `b` stay in the first cache.
const DEPTH: usize = 256;

/// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
pub fn multiply(pairs: Pairs, a: MatRef<'_, bf16>, b: MatRef<'_, bf16>, mut c: MatMut<'_, f32>, accumulate: Accum) {
    let (rows, cols, terms) = (a.nrows(), b.ncols(), a.ncols());
    assert!((b.nrows(), c.nrows(), c.ncols()) == (terms, rows, cols), "sizes fit");
    let mut accumulate = matches!(accumulate, Accum::Add);
    if terms == 0 {
        if !accumulate {
            c.fill(0.0);
        }
        return;
    }
    let blocks = terms.div_ceil(DEPTH);
    let depth = terms.div_ceil(blocks).next_multiple_of(2);
    // Lines at the same place of neighbouring groups are in different sets of the caches.
    let stride = (depth / 2) | 1;
    let groups = [rows.div_ceil(LINE), cols.div_ceil(LINE)];
    with_lines((groups[0] + groups[1]) * stride, |lines| {
        let (of_a, of_b) = lines.split_at_mut(groups[0] * stride);
        for start in (0..terms).step_by(depth) {
            let depth = depth.min(terms - start);
            pack(pairs, a.subcols(start, depth), of_a, stride);
            pack(pairs, b.subrows(start, depth).transpose(), of_b, stride);
            multiply_block(pairs, (of_a, of_b), stride, depth.div_ceil(2), c.as_mut(), accumulate);
            accumulate = true;
        }
    });
}

/// `c = a b`, or `c += a b`, over one block of terms, `depth` pairs of them, both operands packed.
fn multiply_block(
    pairs: Pairs,
    (a, b): (&[Line], &[Line]),
    stride: usize,
    depth: usize,
    mut c: MatMut<'_, f32>,
    accumulate: bool,
) {
    let (rows, cols) = (c.nrows(), c.ncols());
    let mut col = 0;
    while col < cols {
        // Four groups are better cut in the middle than into three and one.
        let left = (cols - col).div_ceil(LINE);
        let groups = if left == 4 { 2 } else { left.min(WIDTH) };
        let width = (groups * LINE).min(cols - col);
        let b = &b[col / LINE * stride..][..(groups - 1) * stride + depth];
        for row in (0..rows).step_by(HEIGHT) {
            let height = HEIGHT.min(rows - row);
            let a = &a[row / LINE * stride..][..depth];
            let c = c.as_mut().submatrix_mut(row, col, height, width);
            match groups {
                1 => pairs.multiply::<1>(a, row % LINE, b, stride, c, accumulate),
                2 => pairs.multiply::<2>(a, row % LINE, b, stride, c, accumulate),
                _ => pairs.multiply::<3>(a, row % LINE, b, stride, c, accumulate),
            }
        }
        col += width;
    }
}

/// Packs the rows of `matrix`, whose columns are the terms: the groups lie `stride` lines apart.
fn pack(pairs: Pairs, matrix: MatRef<'_, bf16>, lines: &mut [Line], stride: usize) {
    let (count, terms) = (matrix.nrows(), matrix.ncols());
    let depth = terms.div_ceil(2);
    let bits = |row: usize| Some(matrix.row(row).try_as_row_major()?.as_slice().reinterpret_cast());
    if matrix.col_stride() == 1 {
        for (group, lines) in lines.chunks_mut(stride).enumerate() {
            let mut rows: [&[u16]; LINE] = [&[]; LINE];
            for (row, of) in (group * LINE..count).zip(&mut rows) {
                *of = bits(row).unwrap_or_default();
            }
            pairs.transpose(&rows, &mut lines[..depth]);
        }
    } else if matrix.row_stride() == 1 {
        let column = |term: usize| -> &[u16] {
            if term == terms {
                return &[];
            }
            matrix.col(term).try_as_col_major().map(|col| col.as_slice().reinterpret_cast()).unwrap_or_default()
        };
        for pair in 0..depth {
            pairs.interleave(column(2 * pair), column(2 * pair + 1), &mut lines[pair..], stride);
        }
    } else {
        for (group, lines) in lines.chunks_mut(stride).enumerate() {
            for (pair, line) in lines[..depth].iter_mut().enumerate() {
                let element = |row: usize, term: usize| {
                    if row < count && term < terms { u32::from(matrix[(row, term)].to_bits()) } else { 0 }
                };
                let of = |i: usize| element(group * LINE + i, 2 * pair) | (element(group * LINE + i, 2 * pair + 1) << 16);
                *line = std::array::from_fn(of);
            }
        }
    }
}

/// Runs `f` with `count` lines of whatever was there before, aligned as registers are.
fn with_lines<R>(count: usize, f: impl FnOnce(&mut [Line]) -> R) -> R {
    scratch::with((count + 1) * LINE, |memory: &mut [f32]| {
        let start = memory.as_ptr().align_offset(size_of::<Line>()).min(LINE);
        f(bytemuck::cast_slice_mut(&mut memory[start..start + count * LINE]))
    })
}
