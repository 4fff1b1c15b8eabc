//! Products of bf16 by an instruction that multiplies pairs.
//!
//! Both operands are packed alike: 16 rows of `a`, or 16 columns of `b`, are a group, and a line of
//! a group holds two neighbouring terms of each of the 16, as one vector register does. A panel is
//! a few groups, their lines in turn. What is missing at the edges is zero. Each sum runs over the
//! blocks of terms and the pairs of a block in order, so it is the same to the bit wherever its
//! element lies in a tile.

use super::x86::{HEIGHT, LINE, Line, Pairs, WIDTH};
use crate::cpu::avx512;
use ::half::bf16;
use ::half::slice::HalfFloatSliceExt;
use faer::{Accum, MatMut, MatRef};

/// The most terms of the sum in one block: so many of a panel of `b` stay in the first cache.
const DEPTH: usize = 512;

/// How many terms before they are needed they are brought into the caches.
const AHEAD: usize = 8;

/// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
pub fn multiply(pairs: Pairs, a: MatRef<'_, bf16>, b: MatRef<'_, bf16>, mut c: MatMut<'_, f32>, accumulate: Accum) {
    let (rows, cols, terms) = (a.nrows(), b.ncols(), a.ncols());
    assert!((b.nrows(), c.nrows(), c.ncols()) == (terms, rows, cols), "sizes fit");
    let mut accumulate = matches!(accumulate, Accum::Add);
    if terms == 0 && !accumulate {
        c.fill(0.0);
    }
    if rows * cols * terms == 0 {
        return;
    }
    let depth = terms.div_ceil(terms.div_ceil(DEPTH)).next_multiple_of(2);
    let of_a = Panels::new(rows, 1, depth);
    // Four groups are better cut in the middle than into three and one.
    let groups = cols.div_ceil(LINE);
    let of_b = Panels::new(cols, if groups == 4 { 2 } else { groups.min(WIDTH) }, depth);
    avx512::with_lines(of_a.lines() + of_b.lines(), |lines: &mut [Line]| {
        let (a_lines, b_lines) = lines.split_at_mut(of_a.lines());
        for start in (0..terms).step_by(depth) {
            let depth = depth.min(terms - start);
            of_a.pack(pairs, a.subcols(start, depth), a_lines);
            of_b.pack(pairs, b.subrows(start, depth).transpose(), b_lines);
            multiply_block(pairs, (of_a, a_lines), (of_b, b_lines), depth.div_ceil(2), c.as_mut(), accumulate);
            accumulate = true;
        }
    });
}

/// `c = a b`, or `c += a b`, over one block of `depth` pairs of terms, both operands packed.
fn multiply_block(
    pairs: Pairs,
    (of_a, a): (Panels, &[Line]),
    (of_b, b): (Panels, &[Line]),
    depth: usize,
    mut c: MatMut<'_, f32>,
    accumulate: bool,
) {
    let (rows, cols) = (c.nrows(), c.ncols());
    for (panel, col) in (0..cols).step_by(of_b.width * LINE).enumerate() {
        let width = (of_b.width * LINE).min(cols - col);
        let groups = width.div_ceil(LINE);
        let b = &b[panel * of_b.stride..][..of_b.width * depth];
        for row in (0..rows).step_by(HEIGHT) {
            let height = HEIGHT.min(rows - row);
            let (a, first) = (&a[row / LINE * of_a.stride..][..depth], row % LINE);
            let c = c.as_mut().submatrix_mut(row, col, height, width);
            match (of_b.width, groups) {
                (1, _) => pairs.multiply::<1, 1>(a, first, b, c, accumulate),
                (2, 1) => pairs.multiply::<2, 1>(a, first, b, c, accumulate),
                (2, _) => pairs.multiply::<2, 2>(a, first, b, c, accumulate),
                (_, 1) => pairs.multiply::<3, 1>(a, first, b, c, accumulate),
                (_, 2) => pairs.multiply::<3, 2>(a, first, b, c, accumulate),
                _ => pairs.multiply::<3, 3>(a, first, b, c, accumulate),
            }
        }
    }
}

/// How one operand is packed.
#[derive(Debug, Clone, Copy)]
struct Panels {
    count: usize,
    /// The groups of a panel.
    width: usize,
    /// Lines from one panel to the next: an odd number, so that lines at the same place of
    /// neighbouring panels are in different sets of the caches.
    stride: usize,
}

impl Panels {
    /// The panels of `rows` rows, of `width` groups each, and at most `depth` terms.
    fn new(rows: usize, width: usize, depth: usize) -> Panels {
        Panels { count: rows.div_ceil(LINE * width), width, stride: (width * depth.div_ceil(2)) | 1 }
    }

    fn lines(&self) -> usize {
        self.count * self.stride
    }

    /// Packs the rows of `matrix`, whose columns are the terms. Groups that are missing in the last
    /// panel stay as they were.
    fn pack(&self, pairs: Pairs, matrix: MatRef<'_, bf16>, lines: &mut [Line]) {
        let (rows, terms) = (matrix.nrows(), matrix.ncols());
        let depth = terms.div_ceil(2);
        let groups = (0..rows.div_ceil(LINE)).map(|group| (group, group / self.width * self.stride + group % self.width));
        if matrix.col_stride() == 1 {
            let row = |row: usize| -> &[u16] {
                let row = (row < rows).then(|| matrix.row(row).try_as_row_major()).flatten();
                row.map(|row| row.as_slice().reinterpret_cast()).unwrap_or_default()
            };
            for (group, start) in groups {
                let mut parts: [&[u16]; LINE] = [&[]; LINE];
                for (next, part) in (group * LINE..).zip(&mut parts) {
                    *part = row(next);
                    let ahead = row(next + LINE);
                    pairs.prefetch(&ahead[..ahead.len().min(AHEAD * LINE)]);
                }
                pairs.transpose(&parts, &mut lines[start..][..(depth - 1) * self.width + 1], self.width);
            }
        } else if matrix.row_stride() == 1 {
            let column = |term: usize| -> &[u16] {
                let col = (term < terms).then(|| matrix.col(term).try_as_col_major()).flatten();
                col.map(|col| col.as_slice().reinterpret_cast()).unwrap_or_default()
            };
            for pair in 0..depth {
                pairs.prefetch(column(2 * pair + AHEAD));
                pairs.prefetch(column(2 * pair + 1 + AHEAD));
                let lines = &mut lines[pair * self.width..];
                pairs.interleave(column(2 * pair), column(2 * pair + 1), lines, self.width, self.stride);
            }
        } else {
            let element = |row: usize, term: usize| {
                if row < rows && term < terms { u32::from(matrix[(row, term)].to_bits()) } else { 0 }
            };
            for (group, start) in groups {
                for pair in 0..depth {
                    let of = |row: usize| element(row, 2 * pair) | (element(row, 2 * pair + 1) << 16);
                    lines[start + pair * self.width] = std::array::from_fn(|i| of(group * LINE + i));
                }
            }
        }
    }
}
