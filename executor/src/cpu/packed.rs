//! Products by vector instructions: of f32 by those of AVX-512 or AVX2, and of bf16 by the one of
//! AVX-512 that multiplies pairs.
//!
//! Both operands are packed alike, but in [`plain`]: 16 rows of `a`, or 16 columns of `b`, are a
//! group, and a line of a group holds one f32 or two neighbouring bf16 of each of the 16, as a
//! register of AVX-512 does. A panel is a few groups, their lines in turn. What is missing at the
//! edges is zero. Each sum runs over the blocks of terms and the lines of a block in order, so it
//! is the same to the bit wherever its element lies in a tile. Source: Goto and van de Geijn,
//! Anatomy of High-Performance Matrix Multiplication (2008).

pub mod plain;
mod rows;
pub mod shared;
pub mod small;
pub mod x86;

use crate::cpu::element::Element;
use crate::cpu::lines;
use crate::cpu::prefetch;
use faer::{Accum, MatMut, MatRef};
use x86::{HEIGHT, LINE, Line, WIDTH};

/// The most lines of a group in one block: so many of a panel of `b` stay near.
const DEPTH: usize = 256;

/// How many terms before they are needed they are brought into the caches.
const AHEAD: usize = 8;

/// The elements of a product, and the instructions for them.
pub trait Packing: Copy + Send + Sync {
    /// What is multiplied.
    type Element: Element;

    /// How many terms of the sum are in a line: 1 or 2.
    const TERMS: usize;

    /// The most rows of a tile: [`HEIGHT`], or some groups.
    fn tall(self) -> usize {
        HEIGHT
    }

    /// `c = a b`, or `c += a b`: `c` is a tile of `V` groups of columns, `a` the lines of the
    /// groups of its rows, `stride` lines from one to the next, of which rows from `first` are
    /// taken, and `b` the lines of a panel of `W` groups.
    ///
    /// # Panics
    /// If an operand is too short, or a row of `c` is not contiguous.
    fn multiply<const W: usize, const V: usize>(
        self,
        a: (&[Line], usize),
        first: usize,
        b: &[Line],
        c: MatMut<'_, f32>,
        accumulate: bool,
    );

    /// Packs 16 rows of terms, missing ones zero, for as many lines as the longest row has:
    /// `lines[p * width][i]` is line `p` of row `i`.
    ///
    /// # Panics
    /// If there is no room for the longest row.
    fn transpose(self, rows: &[&[Self::Element]; LINE], lines: &mut [Line], width: usize);

    /// Packs the terms of one line of many rows, missing ones zero: `lines[q * stride + v][i]` is
    /// the line of row `16 (width q + v) + i`.
    fn interleave(self, terms: [&[Self::Element]; 2], lines: &mut [Line], width: usize, stride: usize);

    /// A line of one or two terms of 16 rows.
    fn line(terms: [&[Self::Element; LINE]; 2]) -> Line;
}

/// `c = a b`, or `c += a b`, with sums in f32; `a` is m x k, `b` k x n, and `c` m x n.
pub fn multiply<P: Packing>(
    packing: P,
    a: MatRef<'_, P::Element>,
    b: MatRef<'_, P::Element>,
    mut c: MatMut<'_, f32>,
    accumulate: Accum,
) {
    let (rows, cols, terms) = (a.nrows(), b.ncols(), a.ncols());
    assert!((b.nrows(), c.nrows(), c.ncols()) == (terms, rows, cols), "sizes fit");
    let mut accumulate = matches!(accumulate, Accum::Add);
    if terms == 0 && !accumulate {
        c.fill(0.0);
    }
    if rows * cols * terms == 0 {
        return;
    }
    let depth = depth::<P>(terms);
    let (of_a, of_b) = (Panels::rows::<P>(rows, depth), Panels::columns::<P>(cols, depth));
    lines::with_lines(of_a.lines() + of_b.lines(), |lines: &mut [Line]| {
        let (a_lines, b_lines) = lines.split_at_mut(of_a.lines());
        for start in (0..terms).step_by(depth) {
            let depth = depth.min(terms - start);
            of_a.pack(packing, a.subcols(start, depth), a_lines);
            of_b.pack(packing, b.subrows(start, depth).transpose(), b_lines);
            multiply_block(packing, (of_a, a_lines), (of_b, b_lines), depth.div_ceil(P::TERMS), c.as_mut(), accumulate);
            accumulate = true;
        }
    });
}

/// The terms of one block; of all blocks but the last where there are several.
fn depth<P: Packing>(terms: usize) -> usize {
    terms.div_ceil(terms.div_ceil(DEPTH * P::TERMS)).next_multiple_of(P::TERMS)
}

/// `c = a b`, or `c += a b`, over one block of `depth` lines of terms, both operands packed.
fn multiply_block<P: Packing>(
    packing: P,
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
        for row in (0..rows).step_by(packing.tall()) {
            let height = packing.tall().min(rows - row);
            let (others, first) = ((height - 1) / LINE, row % LINE);
            let a = (&a[row / LINE * of_a.stride..][..others * of_a.stride + depth], of_a.stride);
            let c = c.as_mut().submatrix_mut(row, col, height, width);
            match (of_b.width, groups) {
                (1, _) => packing.multiply::<1, 1>(a, first, b, c, accumulate),
                (2, 1) => packing.multiply::<2, 1>(a, first, b, c, accumulate),
                (2, _) => packing.multiply::<2, 2>(a, first, b, c, accumulate),
                (_, 1) => packing.multiply::<3, 1>(a, first, b, c, accumulate),
                (_, 2) => packing.multiply::<3, 2>(a, first, b, c, accumulate),
                _ => packing.multiply::<3, 3>(a, first, b, c, accumulate),
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
    /// The panels of so many rows of `a` and at most `depth` terms.
    fn rows<P: Packing>(rows: usize, depth: usize) -> Panels {
        Panels::new(rows, 1, depth.div_ceil(P::TERMS))
    }

    /// The panels of so many columns of `b` and at most `depth` terms.
    fn columns<P: Packing>(cols: usize, depth: usize) -> Panels {
        // Four groups are better cut in the middle than into three and one.
        let groups = cols.div_ceil(LINE);
        Panels::new(cols, if groups == 4 { 2 } else { groups.min(WIDTH) }, depth.div_ceil(P::TERMS))
    }

    fn new(count: usize, width: usize, depth: usize) -> Panels {
        Panels { count: count.div_ceil(LINE * width), width, stride: (width * depth) | 1 }
    }

    fn lines(&self) -> usize {
        self.count * self.stride
    }

    /// Packs the rows of `matrix`, whose columns are the terms. Groups that are missing in the last
    /// panel stay as they were.
    fn pack<P: Packing>(&self, packing: P, matrix: MatRef<'_, P::Element>, lines: &mut [Line]) {
        let (rows, terms) = (matrix.nrows(), matrix.ncols());
        let depth = terms.div_ceil(P::TERMS);
        let groups = (0..rows.div_ceil(LINE)).map(|group| (group, group / self.width * self.stride + group % self.width));
        if matrix.col_stride() == 1 {
            let row = |row: usize| -> &[P::Element] {
                let row = (row < rows).then(|| matrix.row(row).try_as_row_major()).flatten();
                row.map(|row| row.as_slice()).unwrap_or_default()
            };
            for (group, start) in groups {
                let mut parts: [&[P::Element]; LINE] = [&[]; LINE];
                for (next, part) in (group * LINE..).zip(&mut parts) {
                    *part = row(next);
                    let ahead = row(next + LINE);
                    bring(&ahead[..ahead.len().min(AHEAD * LINE)]);
                }
                packing.transpose(&parts, &mut lines[start..][..(depth - 1) * self.width + 1], self.width);
            }
        } else if matrix.row_stride() == 1 {
            let column = |term: usize| -> &[P::Element] {
                let col = (term < terms).then(|| matrix.col(term).try_as_col_major()).flatten();
                col.map(|col| col.as_slice()).unwrap_or_default()
            };
            for line in 0..depth {
                let first = line * P::TERMS;
                (first..first + P::TERMS).for_each(|term| bring(column(term + AHEAD)));
                let lines = &mut lines[line * self.width..];
                packing.interleave([column(first), column(first + 1)], lines, self.width, self.stride);
            }
        } else {
            let element = |row: usize, term: usize| {
                if row < rows && term < terms { matrix[(row, term)] } else { bytemuck::Zeroable::zeroed() }
            };
            for (group, start) in groups {
                for line in 0..depth {
                    let first = line * P::TERMS;
                    let of = |term: usize| std::array::from_fn(|i| element(group * LINE + i, term));
                    lines[start + line * self.width] = P::line([&of(first), &of(first + 1)]);
                }
            }
        }
    }
}

/// Brings elements into the caches.
#[inline]
fn bring<T>(elements: &[T]) {
    elements.chunks(size_of::<Line>() / size_of::<T>()).for_each(prefetch::near);
}
