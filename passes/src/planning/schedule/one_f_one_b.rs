//! 1F1B: position r begins with F of p-1-r micro-batches, then F and B take turns, and B of those
//! that are left ends it.
//!
//! ```text
//! pp=0 |F0 F1 F2 F3 ·  ·  ·  ·  ·  ·  B0─── ·  B1─── ·  B2─── ·  B3─── |
//! pp=1 |·  F0 F1 F2 ·  ·  ·  ·  B0─── F3 B1─── ·  B2─── ·  B3─── ·  ·  |
//! pp=2 |·  ·  F0 F1 ·  ·  B0─── F2 B1─── F3 B2─── ·  B3─── ·  ·  ·  ·  |
//! pp=3 |·  ·  ·  F0 B0─── F1 B1─── F2 B2─── F3 B3─── ·  ·  ·  ·  ·  ·  |
//! ```
//!
//! It idles as much as GPipe, (p-1)/m of the ideal time, but position r has at most p-r
//! micro-batches between F and B.

use super::{Cell, Shape, Table};

/// The table of a training step; a position has one stage.
pub fn table(shape: Shape) -> Table {
    (0..shape.positions).map(|r| row(shape, r)).collect()
}

/// The cells of a position.
fn row(shape: Shape, r: u64) -> Vec<Cell> {
    let m = shape.microbatches;
    let warm_up = (shape.positions - 1 - r).min(m);
    let mut cells: Vec<Cell> = (0..warm_up).map(|t| Cell::forward(r, t)).collect();
    for t in 0..m {
        cells.extend((warm_up + t < m).then(|| Cell::forward(r, warm_up + t)));
        cells.push(Cell::backward(r, t));
    }
    cells
}
