//! Candidates for a product, each 64 bytes of plain data.

use super::{INVALID_VALUE, NOT_SUPPORTED};
use shardc_cuda_testing::product::Product;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What every candidate's data begin with.
const MARK: u64 = 0x6f67_6c61_656b_6166;

/// Candidates for each product.
const COUNT: u64 = 4;

/// A candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algo {
    /// Its place among the candidates.
    pub number: u64,
    /// Whether it is the first of its list.
    pub is_first: bool,
    /// Bytes of room that it needs.
    pub workspace: u64,
    /// The reduction schemes that were allowed.
    pub reductions: u32,
    /// Bytes of which the matrices begin at a multiple.
    pub alignment: [u64; 4],
    /// The product that it was chosen for.
    of: u64,
}

/// A number of all that says which kernels do a product.
fn number_of(product: &Product) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Product { compute, scale, transposed, a, b, c, d, epilogue, bias, bias_stride, .. } = product;
    format!("{compute:?} {scale:?} {transposed:?} {a:?} {b:?} {c:?} {d:?} {epilogue:?} {bias:?} {bias_stride}").hash(&mut hasher);
    hasher.finish()
}

impl Algo {
    /// The candidates for a product in so much room, the best first.
    pub fn all(product: &Product, room: u64, reductions: u32, alignment: [u64; 4]) -> Vec<Algo> {
        let of = number_of(product);
        let all = (0..COUNT).map(|number| Algo { number, is_first: false, workspace: number << 16, reductions, alignment, of });
        // The best one is not the one that needs nothing.
        let mut all: Vec<Algo> = all.filter(|algo| algo.workspace <= room).collect();
        all.reverse();
        if let Some(first) = all.first_mut() {
            first.is_first = true;
        }
        all
    }

    /// The plain data.
    pub fn data(&self) -> [u64; 8] {
        let [a, b, c, d] = self.alignment.map(|bytes| bytes.min(0xffff));
        let alignment = a | b << 16 | c << 32 | d << 48;
        [MARK, self.number, self.workspace, u64::from(self.reductions), alignment, self.of, u64::from(self.is_first), 0]
    }

    /// The candidate that data say, for a product.
    pub fn of(data: [u64; 8], product: &Product) -> Result<Algo, (u32, String)> {
        let [mark, number, workspace, reductions, alignment, of, first, _] = data;
        if mark != MARK || number >= COUNT {
            return Err((INVALID_VALUE, "data that are no candidate's".into()));
        }
        if of != number_of(product) {
            return Err((NOT_SUPPORTED, "a candidate that was chosen for another product".into()));
        }
        let alignment = [0, 16, 32, 48].map(|shift| alignment >> shift & 0xffff);
        Ok(Algo { number, is_first: first != 0, workspace, reductions: reductions as u32, alignment, of })
    }
}
