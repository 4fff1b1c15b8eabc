//! The sums that Winograd's convolutions make of their operands, for 16 channels at a time, and
//! back.
//!
//! Of tiles of 2 x 2 results with kernels of 3 x 3: `y = A' ((G g G') * (B' d B)) A`, where `d` are
//! the 4 x 4 elements that a tile sees, and `*` multiplies element by element.

use crate::cpu::lines::{LINE, Line};
use crate::cpu::simd::simd;

/// The elements that a tile sees, and the products for it.
pub const POINTS: usize = 16;

/// What a tile sees or makes is not there.
pub const OUTSIDE: u32 = u32::MAX;

/// `G` for one row.
#[inline(always)]
fn of_kernel([a, b, c]: [Line; 3]) -> [Line; 4] {
    let (mut sum, mut difference) = ([0.0; LINE], [0.0; LINE]);
    for i in 0..LINE {
        let ends = 0.5 * (a[i] + c[i]);
        sum[i] = ends + 0.5 * b[i];
        difference[i] = ends - 0.5 * b[i];
    }
    [a, sum, difference, c]
}

/// `G'` for one row.
#[inline(always)]
fn to_kernel([a, b, c, d]: [Line; 4]) -> [Line; 3] {
    let mut out = [[0.0; LINE]; 3];
    for i in 0..LINE {
        let half = 0.5 * (b[i] + c[i]);
        out[0][i] = a[i] + half;
        out[1][i] = 0.5 * (b[i] - c[i]);
        out[2][i] = half + d[i];
    }
    out
}

/// `B'` for one row.
#[inline(always)]
fn of_seen([a, b, c, d]: [Line; 4]) -> [Line; 4] {
    let mut out = [[0.0; LINE]; 4];
    for i in 0..LINE {
        out[0][i] = a[i] - c[i];
        out[1][i] = b[i] + c[i];
        out[2][i] = c[i] - b[i];
        out[3][i] = b[i] - d[i];
    }
    out
}

/// `A'` for one row.
#[inline(always)]
fn to_made([a, b, c, d]: [Line; 4]) -> [Line; 2] {
    let mut out = [[0.0; LINE]; 2];
    for i in 0..LINE {
        out[0][i] = a[i] + b[i] + c[i];
        out[1][i] = b[i] - c[i] - d[i];
    }
    out
}

/// `A` for one row.
#[inline(always)]
fn of_made([a, b]: [Line; 2]) -> [Line; 4] {
    let mut out = [[0.0; LINE]; 4];
    for i in 0..LINE {
        out[0][i] = a[i];
        out[1][i] = a[i] + b[i];
        out[2][i] = a[i] - b[i];
        out[3][i] = -b[i];
    }
    out
}

/// Column `j` of rows.
#[inline(always)]
fn column<const N: usize, const M: usize>(rows: &[[Line; M]; N], j: usize) -> [Line; N] {
    let mut out = [[0.0; LINE]; N];
    for (out, row) in out.iter_mut().zip(rows) {
        *out = row[j];
    }
    out
}

simd! {
    /// `G g G'`: of 9 lines the points, each `stride` lines behind the one before.
    pub fn kernel_to_points(taps: &[Line], backwards: bool, points: &mut [Line], stride: usize) {
        let tap = |i: usize| if backwards { taps[8 - i] } else { taps[i] };
        let rows = [[tap(0), tap(1), tap(2)], [tap(3), tap(4), tap(5)], [tap(6), tap(7), tap(8)]];
        let columns = [of_kernel(column(&rows, 0)), of_kernel(column(&rows, 1)), of_kernel(column(&rows, 2))];
        for i in 0..4 {
            let row = of_kernel([columns[0][i], columns[1][i], columns[2][i]]);
            for (j, line) in row.into_iter().enumerate() {
                points[(4 * i + j) * stride] = line;
            }
        }
    }

    /// `G' p G`: of the points, each `stride` lines behind the one before, 9 lines.
    pub fn points_to_kernel(points: &[Line], stride: usize, taps: &mut [Line; 9]) {
        let row = |i: usize| [0, 1, 2, 3].map(|j| points[(4 * i + j) * stride]);
        let rows = [row(0), row(1), row(2), row(3)];
        let columns = [to_kernel(column(&rows, 0)), to_kernel(column(&rows, 1)), to_kernel(column(&rows, 2)), to_kernel(column(&rows, 3))];
        for i in 0..3 {
            let row = to_kernel([columns[0][i], columns[1][i], columns[2][i], columns[3][i]]);
            taps[3 * i..3 * i + 3].copy_from_slice(&row);
        }
    }

    /// `B' d B` of many tiles: which elements each sees, and their points, `step` lines from a tile
    /// to the next and `stride` from a point to the next.
    pub fn seen_to_points(elements: &[Line], tiles: &[[u32; POINTS]], points: &mut [Line], step: usize, stride: usize) {
        let nothing = [0.0; LINE];
        for (tile, seen) in tiles.iter().enumerate() {
            let element = |at: usize| *elements.get(seen[at] as usize).unwrap_or(&nothing);
            let mut columns = [[[0.0; LINE]; 4]; 4];
            for (j, column) in columns.iter_mut().enumerate() {
                *column = of_seen([element(j), element(4 + j), element(8 + j), element(12 + j)]);
            }
            let points = &mut points[tile * step..];
            for i in 0..4 {
                let row = of_seen([columns[0][i], columns[1][i], columns[2][i], columns[3][i]]);
                for (j, line) in row.into_iter().enumerate() {
                    points[(4 * i + j) * stride] = line;
                }
            }
        }
    }

    /// `A m A'` of many tiles: which elements each made, and their points.
    pub fn made_to_points(elements: &[Line], tiles: &[[u32; 4]], points: &mut [Line], step: usize, stride: usize) {
        let nothing = [0.0; LINE];
        for (tile, made) in tiles.iter().enumerate() {
            let element = |at: usize| *elements.get(made[at] as usize).unwrap_or(&nothing);
            let columns = [of_made([element(0), element(2)]), of_made([element(1), element(3)])];
            let points = &mut points[tile * step..];
            for i in 0..4 {
                let row = of_made([columns[0][i], columns[1][i]]);
                for (j, line) in row.into_iter().enumerate() {
                    points[(4 * i + j) * stride] = line;
                }
            }
        }
    }

    /// `A' p A` of many tiles: of their points the elements that each makes.
    pub fn points_to_made(points: &[Line], step: usize, stride: usize, tiles: &[[u32; 4]], elements: &mut [Line]) {
        for (tile, made) in tiles.iter().enumerate() {
            let points = &points[tile * step..];
            let mut columns = [[[0.0; LINE]; 2]; 4];
            for (j, column) in columns.iter_mut().enumerate() {
                *column = to_made([points[j * stride], points[(4 + j) * stride], points[(8 + j) * stride], points[(12 + j) * stride]]);
            }
            for i in 0..2 {
                let row = to_made([columns[0][i], columns[1][i], columns[2][i], columns[3][i]]);
                for (j, line) in row.into_iter().enumerate() {
                    if let Some(element) = elements.get_mut(made[2 * i + j] as usize) {
                        *element = line;
                    }
                }
            }
        }
    }
}
