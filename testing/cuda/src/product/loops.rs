//! The loops: tiles of four by four results, each summed in the order of `k`.

use super::{Compute, Element, Epilogue, Layout, Memory, Place, Product};
use crate::ptx::exact::{Round, bf16_of, bf16_to, f16_of, f16_to};

/// The sides of a tile.
const TILE: usize = 4;

/// Carries out a call that fulfils its demands.
pub(super) fn run(product: &Product, memory: &mut Memory) {
    let [[m, k], [_, n]] = product.operands().map(|sizes| sizes.map(|size| size as usize));
    for matrix in 0..product.d.batch as usize {
        let [a, b] = matrices(product, [&memory.a, &memory.b], matrix);
        let vector = matrix * product.bias_stride as usize;
        let columns = panels(n, k, |column, term| b.at(term, column));
        for top in (0..m).step_by(TILE) {
            let rows = panels(TILE.min(m - top), k, |row, term| a.at(top + row, term));
            for (tile, columns) in columns.iter().enumerate() {
                let sums = tile_of(&rows[0], columns);
                for (j, sums) in sums.iter().enumerate().take(n - tile * TILE) {
                    for (i, sum) in sums.iter().enumerate().take(m - top) {
                        let (row, column) = (top + i, tile * TILE + j);
                        let mut value = product.alpha * sum;
                        if product.beta != 0.0 {
                            let c = memory.c.as_ref().unwrap_or(&memory.d);
                            value += product.beta * read(product.c.element, &c.bytes, offset(&product.c, matrix, row, column));
                        }
                        if let (Epilogue::Bias, Some(bias)) = (product.epilogue, &memory.bias) {
                            value += read(product.d.element, &bias.bytes, vector + row);
                        }
                        write(product.d.element, &mut memory.d.bytes, offset(&product.d, matrix, row, column), value);
                    }
                }
            }
        }
        let Some(bias) = &mut memory.bias else { continue };
        let mut put = |at: usize, sum: f64| write(product.d.element, &mut bias.bytes, vector + at, sum);
        match product.epilogue {
            Epilogue::Default | Epilogue::Bias => {}
            Epilogue::BiasGradientA => (0..m).for_each(|row| put(row, (0..k).map(|term| a.at(row, term)).sum())),
            Epilogue::BiasGradientB => (0..n).for_each(|column| put(column, (0..k).map(|term| b.at(term, column)).sum())),
        }
    }
}

/// The sum of terms, and the sum of their magnitudes.
fn both(terms: impl Iterator<Item = f64>) -> [f64; 2] {
    terms.fold([0.0; 2], |[sum, most], term| [sum + term, most + term.abs()])
}

/// One element of `D`, not rounded to its type, with the magnitudes of its terms.
pub(super) fn element(product: &Product, memory: &Memory, [matrix, row, column]: [u64; 3]) -> [f64; 2] {
    let (matrix, row, column) = (matrix as usize, row as usize, column as usize);
    let [a, b] = matrices(product, [&memory.a, &memory.b], matrix);
    let terms = product.operands()[0][1] as usize;
    let mut all = both((0..terms).map(|term| product.alpha * a.at(row, term) * b.at(term, column)));
    let mut add = |value: f64| all = [all[0] + value, all[1] + value.abs()];
    if product.beta != 0.0 {
        let c = memory.c.as_ref().unwrap_or(&memory.d);
        add(product.beta * read(product.c.element, &c.bytes, offset(&product.c, matrix, row, column)));
    }
    if let (Epilogue::Bias, Some(bias)) = (product.epilogue, &memory.bias) {
        add(read(product.d.element, &bias.bytes, matrix * product.bias_stride as usize + row));
    }
    all
}

/// One element of the first bias gradient, with the magnitudes of its terms.
pub(super) fn gradient(product: &Product, memory: &Memory, at: u64) -> Option<[f64; 2]> {
    let [a, b] = matrices(product, [&memory.a, &memory.b], 0);
    let (at, terms) = (at as usize, 0..product.operands()[0][1] as usize);
    match product.epilogue {
        Epilogue::Default | Epilogue::Bias => None,
        Epilogue::BiasGradientA => Some(both(terms.map(|term| a.at(at, term)))),
        Epilogue::BiasGradientB => Some(both(terms.map(|term| b.at(term, at)))),
    }
}

/// `A` and `B` of one matrix of the batch.
fn matrices<'m>(product: &'m Product, places: [&'m Place; 2], matrix: usize) -> [Matrix<'m>; 2] {
    let (layouts, is_tf32) = ([&product.a, &product.b], product.compute == Compute::Tf32);
    std::array::from_fn(|i| {
        let is_turned = product.transposed[i];
        Matrix { layout: layouts[i], bytes: &places[i].bytes, matrix, is_turned, is_tf32 }
    })
}

/// One matrix of a batch, as `op` makes it.
struct Matrix<'m> {
    layout: &'m Layout,
    bytes: &'m [u8],
    matrix: usize,
    is_turned: bool,
    is_tf32: bool,
}

impl Matrix<'_> {
    fn at(&self, row: usize, column: usize) -> f64 {
        let (row, column) = if self.is_turned { (column, row) } else { (row, column) };
        let value = read(self.layout.element, self.bytes, offset(self.layout, self.matrix, row, column));
        if self.is_tf32 { tf32(value) } else { value }
    }
}

pub(super) fn offset(layout: &Layout, matrix: usize, row: usize, column: usize) -> usize {
    matrix * layout.stride as usize + column * layout.leading as usize + row
}

/// For each four of `count` rows or columns their terms, one four after another; what is beyond is
/// 0.
fn panels(count: usize, terms: usize, at: impl Fn(usize, usize) -> f64) -> Vec<Vec<[f64; TILE]>> {
    let four = |first: usize, term: usize| std::array::from_fn(|i| if first + i < count { at(first + i, term) } else { 0.0 });
    (0..count).step_by(TILE).map(|first| (0..terms).map(|term| four(first, term)).collect()).collect()
}

/// The sums of a tile: for each of four columns those of four rows.
fn tile_of(rows: &[[f64; TILE]], columns: &[[f64; TILE]]) -> [[f64; TILE]; TILE] {
    let mut sums = [[0.0; TILE]; TILE];
    for (rows, columns) in rows.iter().zip(columns) {
        for (sums, column) in sums.iter_mut().zip(columns) {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum += row * column;
            }
        }
    }
    sums
}

/// The nearest number with 11 bits of mantissa, ties to even.
fn tf32(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    let rounded = bits.wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff;
    if x.is_finite() { f64::from(f32::from_bits(rounded)) } else { x }
}

pub(super) fn read(element: Element, bytes: &[u8], at: usize) -> f64 {
    fn own<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        std::array::from_fn(|i| bytes[at * N + i])
    }
    match element {
        Element::F64 => f64::from_le_bytes(own(bytes, at)),
        Element::F32 => f64::from(f32::from_le_bytes(own(bytes, at))),
        Element::BF16 => f64::from(bf16_to(u16::from_le_bytes(own(bytes, at)))),
        Element::F16 => f64::from(f16_to(u16::from_le_bytes(own(bytes, at)))),
    }
}

/// Writes the nearest number of a type.
fn write(element: Element, bytes: &mut [u8], at: usize, value: f64) {
    let size = element.bytes() as usize;
    let into = &mut bytes[at * size..][..size];
    match element {
        Element::F64 => into.copy_from_slice(&value.to_le_bytes()),
        Element::F32 => into.copy_from_slice(&(value as f32).to_le_bytes()),
        Element::BF16 => into.copy_from_slice(&bf16_of(odd(value)).to_le_bytes()),
        Element::F16 => into.copy_from_slice(&f16_of(value).to_le_bytes()),
    }
}

/// A number of f32 that rounds further as `x` does: its last bit stands for all that follow.
fn odd(x: f64) -> f32 {
    let cut = Round::Zero.to_f32(x);
    if x.is_nan() || f64::from(cut) == x { cut } else { f32::from_bits(cut.to_bits() | 1) }
}
