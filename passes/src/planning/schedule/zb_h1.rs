//! ZB-H1 (Qi et al., 2024, Zero Bubble Pipeline Parallelism): the order of 1F1B, with the gradients
//! of weights apart. At position r, W of micro-batch i follows B of micro-batch i+r at once; the
//! last r of them end it.
//!
//! ```text
//! pp=0 |F0 F1 F2 F3 ·  ·  ·  B0 W0 B1 W1 B2 W2 B3 W3 |
//! pp=1 |·  F0 F1 F2 ·  ·  B0 F3 B1 W0 B2 W1 B3 W2 W3 |
//! pp=2 |·  ·  F0 F1 ·  B0 F2 B1 F3 B2 W0 B3 W1 W2 W3 |
//! pp=3 |·  ·  ·  F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3 |
//! ```
//!
//! B gives the gradients of inputs alone, so the stage before goes on earlier, and W fills the
//! time in which a position would wait. It idles (p-1)/(3m) of the ideal time where F, B and W
//! cost the same and m is at least p, and keeps no more than 1F1B does at its first position: at
//! every position at most p micro-batches between F and W.

use super::{Cell, Pass, Shape, Table, one_f_one_b};

/// The table of a training step; a position has one stage.
pub fn table(shape: Shape) -> Table {
    let rows = one_f_one_b::table(shape).into_iter().zip(0..);
    rows.map(|(cells, r)| with_weights(cells, r, shape.microbatches)).collect()
}

/// Adds the gradients of weights to the cells of position `r`.
fn with_weights(cells: Vec<Cell>, r: u64, m: u64) -> Vec<Cell> {
    let mut row = Vec::with_capacity(cells.len() + m as usize);
    for cell in cells {
        row.push(cell);
        let follows = (cell.pass == Pass::Backward).then(|| cell.time.checked_sub(r)).flatten();
        row.extend(follows.map(|t| Cell::weight(r, t)));
    }
    row.extend((m.saturating_sub(r)..m).map(|t| Cell::weight(r, t)));
    row
}
